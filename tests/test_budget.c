/* Memory decided ahead: what fits, what is offered instead, and that the numbers are named. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#include "base/sysmem.h"
#include "engine/budget.h"

static struct gguf file;
static struct weights weights;
static struct plan plan;

static int open_plan(void **state)
{
    (void)state;
    struct err err;
    if (gguf_open(&file, "models/plainsong-tiny-q4_0.gguf", &err) || weights_open(&weights, &file, &err) ||
        plan_build(&plan, &weights, &err))
        return -1;
    return 0;
}

static int close_plan(void **state)
{
    (void)state;
    plan_close(&plan);
    weights_close(&weights);
    gguf_close(&file);
    return 0;
}

static struct budget budget(u64 available, u32 n_slots)
{
    return (struct budget){.plan = &plan, .n_slots = n_slots, .max_rows = 68, .available = available};
}

static void plenty_gives_the_models_own_context(void **state)
{
    (void)state;
    struct err err;
    struct budget b = budget(8ull << 30, 4);
    assert_int_equal(budget_ctx(&b, 0, &err), 4096);
    assert_int_equal(budget_ctx(&b, 4096, &err), 4096);
    assert_int_equal(budget_ctx(&b, 1000, &err), 1000);
    b.available = 0; /* not known */
    assert_int_equal(budget_ctx(&b, 0, &err), 4096);
    assert_int_equal(budget_ctx(&b, 4097, &err), 0);
    assert_non_null(strstr(err.text, "4096"));
}

/* What is offered is the largest that fits: a step more does not. */
static void what_does_not_fit_is_answered_with_what_does(void **state)
{
    (void)state;
    for (u32 slots = 1; slots <= 256; slots *= 4) {
        struct err err;
        struct budget b = budget(700ull << 20, slots);
        u32 fits = budget_ctx(&b, 0, &err), offered = 0, offered_slots = 0;
        if (fits == 4096)
            continue;
        assert_int_equal(budget_ctx(&b, 4096, &err), 0);
        assert_int_equal(sscanf(strstr(err.text, "try"), "try --slots %u --ctx %u", &offered_slots, &offered), 2);
        assert_int_equal(offered_slots, fits ? slots : 1);
        if (fits) {
            assert_int_equal(offered, fits);
            assert_int_equal(budget_ctx(&b, fits, &err), fits);
            assert_int_equal(budget_ctx(&b, fits + 256, &err), 0);
        } else {
            b.n_slots = 1;
            assert_int_equal(budget_ctx(&b, offered, &err), offered);
        }
    }
    struct err err;
    struct budget b = budget(100ull << 20, 1);
    assert_int_equal(budget_ctx(&b, 0, &err), 0);
    assert_non_null(strstr(err.text, "0.1 GB are available"));
}

static void q8_keys_take_about_half(void **state)
{
    (void)state;
    struct err err;
    struct budget b = budget(700ull << 20, 64);
    u32 f16 = budget_ctx(&b, 0, &err);
    b.kv = KV_Q8_0;
    u32 q8 = budget_ctx(&b, 0, &err);
    assert_true(f16 > 0 && q8 > f16 + f16 / 2);
}

/* A child of the same name is seen, with its memory. */
static void another_of_our_kind_is_named(void **state)
{
    (void)state;
#if defined(__linux__)
    int up[2], down[2];
    assert_int_equal(pipe(up), 0);
    assert_int_equal(pipe(down), 0);
    pid_t child = fork();
    if (child == 0) {
        char c;
        volatile u8 *p = malloc(64 << 20);
        for (u32 i = 0; i < 64 << 20; i += 4096)
            p[i] = 1;
        close(down[1]);
        _exit(write(up[1], "x", 1) != 1 || read(down[0], &c, 1) < 0);
    }
    char c;
    u32 pid;
    u64 bytes;
    assert_int_equal(read(up[0], &c, 1), 1);
    assert_true(sysmem_others(&pid, &bytes) >= 1);
    assert_int_equal(pid, child);
    assert_true(bytes >= 64 << 20);
    close(down[1]);
    waitpid(child, NULL, 0);
#endif
    assert_true(sysmem_available() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plenty_gives_the_models_own_context),
        cmocka_unit_test(what_does_not_fit_is_answered_with_what_does),
        cmocka_unit_test(q8_keys_take_about_half),
        cmocka_unit_test(another_of_our_kind_is_named),
    };
    return cmocka_run_group_tests(tests, open_plan, close_plan);
}
