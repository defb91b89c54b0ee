/* The frozen ids of the golden run are what the tokenizer makes of its prompt. */
#include "check.h"

#include "golden_prompt.h"
#include "plainsong.h"

static void the_ids_are_the_text(void **state)
{
    (void)state;
    struct ps_error err;
    uint32_t *ids;
    size_t n;
    struct ps_model *model = ps_model_open("models/plainsong-tiny-q4_0.gguf", &err);
    if (!model)
        fail_msg("%s", err.text);
    assert_int_equal(ps_encode(model, GOLDEN_PROMPT, sizeof GOLDEN_PROMPT - 1, true, false, &ids, &n, &err), 0);
    assert_int_equal(n, COUNT(GOLDEN_IDS));
    assert_memory_equal(ids, GOLDEN_IDS, sizeof GOLDEN_IDS);
    free(ids);
    ps_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_ids_are_the_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
