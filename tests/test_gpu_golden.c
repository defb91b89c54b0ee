/* plainsong-tiny's logits over 64 generated positions after a prompt, on the emulated GPU: the hash that every CPU meets. */
#include "check.h"

#include "golden_prompt.h"
#include "plainsong.h"

enum { N_GEN = 64 };

static struct ps_model *model;

/* The hash of 64 x n_vocab logits, greedy after a tale's prompt. */
static u64 run(struct ps_engine_options o)
{
    struct ps_error err;
    struct ps_model_info info;
    u64 h = 0;
    o.device = "emu";
    ps_model_info(model, &info);
    struct ps_engine *e = ps_engine_open(model, &o, &err);
    if (!e)
        fail_msg("%s", err.text);
    struct ps_request r = {.ids = GOLDEN_IDS, .n_ids = COUNT(GOLDEN_IDS), .max_tokens = N_GEN, .want_logits = true, .ignore_end = true};
    struct ps_stream *s = ps_stream_open(e, &r, &err);
    if (!s)
        fail_msg("%s", err.text);
    struct ps_token t;
    u32 made = 0;
    while (ps_stream_next(s, &t, &err) == 1) {
        h = check_hash(h, t.logits, info.n_vocab * sizeof *t.logits);
        made++;
    }
    assert_int_equal(made, N_GEN);
    ps_stream_close(s);
    ps_engine_close(e);
    return h;
}

static void sixty_four_positions(void **state)
{
    (void)state;
    check_golden("plainsong-tiny.q4_0.64", run((struct ps_engine_options){.n_slots = 1, .n_ctx = 256}));
}

static void threads_chunks_and_modes_do_not_show(void **state)
{
    (void)state;
    for (u32 i = 0; i < 3; i++) {
        static const u32 CHUNKS[] = {1, 7, 64};
        check_golden("plainsong-tiny.q4_0.64",
                     run((struct ps_engine_options){.n_slots = 2, .n_ctx = 512, .n_threads = 1 + i, .chunk = CHUNKS[i], .experts_per_row = i & 1,
                                                    .no_setup_cache = i & 1, .serialize = i > 1}));
    }
}

static int open_model(void **state)
{
    (void)state;
    struct ps_error err;
    model = ps_model_open("models/plainsong-tiny-q4_0.gguf", &err);
    if (!model)
        print_error("%s\n", err.text);
    return model ? 0 : -1;
}

static int close_model(void **state)
{
    (void)state;
    ps_model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixty_four_positions),
        cmocka_unit_test(threads_chunks_and_modes_do_not_show),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
