/* The Metal backend over the fake Metal of tests/metal: the CPU's bits, command buffers counted, refusals. The fake checks every call besides. */
#include "check.h"

#include "device/dev_gpu.h"
#include "golden_prompt.h"
#include "metal/fake_metal.h"
#include "plainsong.h"

#include <stdio.h>

enum { N_GEN = 64 };

static struct ps_model *model;

static struct ps_engine *open_engine(struct ps_engine_options o)
{
    struct ps_error err;
    o.device = "metal";
    struct ps_engine *e = ps_engine_open(model, &o, &err);
    if (!e)
        fail_msg("%s", err.text);
    return e;
}

/* The hash of 64 x n_vocab logits, greedy after a tale's prompt: what every CPU meets (tests/golden.txt). */
static u64 run(struct ps_engine_options o)
{
    struct ps_error err;
    struct ps_model_info info;
    u64 h = 0;
    u32 made = 0;
    ps_model_info(model, &info);
    struct ps_engine *e = open_engine(o);
    struct ps_request r = {.ids = GOLDEN_IDS, .n_ids = COUNT(GOLDEN_IDS), .max_tokens = N_GEN, .want_logits = true, .ignore_end = true};
    struct ps_stream *s = ps_stream_open(e, &r, &err);
    if (!s)
        fail_msg("%s", err.text);
    for (struct ps_token t; ps_stream_next(s, &t, &err) == 1; made++)
        h = check_hash(h, t.logits, info.n_vocab * sizeof *t.logits);
    assert_int_equal(made, N_GEN);
    ps_stream_close(s);
    ps_engine_close(e);
    return h;
}

static void golden_hash(void **state)
{
    (void)state;
    u32 before = fake_live();
    check_golden("plainsong-tiny.q4_0.64", run((struct ps_engine_options){.n_slots = 1, .n_ctx = 256}));
    assert_int_equal(fake_live(), before);
}

/* Another order of launches, macOS 14, command buffers for each launch. */
static void golden_hash_in_other_ways(void **state)
{
    (void)state;
    u32 before = fake_live();
    fake_options()->seed = 77;
    fake_options()->old = 1;
    check_golden("plainsong-tiny.q4_0.64",
                 run((struct ps_engine_options){.n_slots = 2, .n_ctx = 512, .chunk = 7, .no_setup_cache = true, .experts_per_row = true}));
    fake_options()->old = 0;
    assert_int_equal(fake_live(), before);
}

/* ---- submissions ---- */

enum { B = 8, GEN = 4 };

struct counted {
    u64 steps, submissions, command_buffers, encoders;
};

/* Eight streams of some tokens; what it took from the first step with all of them to the last with all of them. */
static struct counted count_eight(bool serialize)
{
    struct ps_error err;
    struct ps_stream *s[B];
    struct ps_stats a, b;
    struct fake_counts before, after;
    struct ps_engine *e = open_engine((struct ps_engine_options){.n_slots = B, .n_ctx = 64, .serialize = serialize});
    ps_engine_stats(e, &a);
    fake_count(&before);
    for (u32 i = 0; i < B; i++) {
        u32 ids[2] = {5, 7 + i};
        struct ps_request r = {.ids = ids, .n_ids = 2, .max_tokens = GEN, .ignore_end = true};
        s[i] = ps_stream_open(e, &r, &err);
        if (!s[i])
            fail_msg("%s", err.text);
    }
    for (u32 i = 0; i < B; i++) {
        struct ps_token t;
        while (ps_stream_next(s[i], &t, &err) == 1)
            ;
        ps_stream_close(s[i]);
    }
    ps_engine_stats(e, &b);
    fake_count(&after);
    ps_engine_close(e);
    return (struct counted){b.steps - a.steps, b.submissions - a.submissions, after.command_buffers - before.command_buffers,
                            after.encoders - before.encoders};
}

static void one_command_buffer_a_step(void **state)
{
    (void)state;
    struct counted fused = count_eight(false), serial = count_eight(true);
    print_message("8 streams: %llu command buffers in %llu steps; with --serialize %llu\n", (unsigned long long)fused.command_buffers,
                  (unsigned long long)fused.steps, (unsigned long long)serial.command_buffers);
    assert_int_equal(fused.command_buffers, fused.submissions);
    assert_int_equal(fused.encoders, fused.command_buffers);
    assert_true(fused.submissions <= 2 * GEN + B); /* streams may join one by one */
    assert_int_equal(serial.command_buffers, serial.submissions);
    assert_true(serial.command_buffers >= (u64)B * GEN);
}

/* ---- refusals ---- */

static void refused(const char *with, struct ps_engine_options o)
{
    struct ps_error err = {.text = ""};
    u32 before = fake_live();
    o.device = "metal";
    struct ps_engine *e = ps_engine_open(model, &o, &err);
    if (e) {
        ps_engine_close(e);
        fail_msg("opened; expected: %s", with);
    }
    if (!strstr(err.text, with))
        fail_msg("\"%s\"; expected: %s", err.text, with);
    if (strchr(err.text, '\n'))
        fail_msg("more than a line: %s", err.text);
    assert_int_equal(fake_live(), before);
}

static void no_metal_and_the_wrong_one(void **state)
{
    (void)state;
    struct fake_options *o = fake_options(), kept = *o;
    o->none = 1;
    refused("no GPU that Metal can use", (struct ps_engine_options){.n_ctx = 256});
    *o = kept;
    o->foreign = 1;
    refused("not Apple's own", (struct ps_engine_options){.n_ctx = 256});
    *o = kept;
    o->narrow = 1;
    refused("groups of at most 128 threads", (struct ps_engine_options){.n_ctx = 256});
    *o = kept;
}

static void a_text_that_does_not_compile(void **state)
{
    (void)state;
    fake_options()->broken = 1;
    refused("the kernels do not compile: program_source:7:9: error: use of undeclared identifier 'tonus'", (struct ps_engine_options){.n_ctx = 256});
    fake_options()->broken = 0;
}

static void memory_is_refused_before_loading(void **state)
{
    (void)state;
    struct fake_options *o = fake_options(), kept = *o;
    o->working_set = 800ull << 20; /* of 16 GiB: a limit that can be raised */
    refused("`sudo sysctl iogpu.wired_limit_mb=", (struct ps_engine_options){.n_slots = 64, .n_ctx = 4096});
    refused("try --slots 64 --ctx", (struct ps_engine_options){.n_slots = 64, .n_ctx = 4096});
    o->working_set = 500ull << 20;
    refused("the model takes", (struct ps_engine_options){.n_slots = 1, .n_ctx = 256});
    o->working_set = 800ull << 20;
    o->ram = 2ull << 30; /* nothing to raise */
    struct ps_error err;
    struct ps_engine *e = ps_engine_open(model, &(struct ps_engine_options){.device = "metal", .n_slots = 64, .n_ctx = 4096}, &err);
    assert_null(e);
    assert_null(strstr(err.text, "sysctl"));
    assert_non_null(strstr(err.text, "not enough memory"));
    *o = kept;
}

/* The limit to type has room for what is held already, even where that is more than the limit. */
static void what_is_held_counts(void **state)
{
    (void)state;
    struct fake_options *o = fake_options(), kept = *o;
    struct ps_engine *e = open_engine((struct ps_engine_options){.n_slots = 16, .n_ctx = 4096});
    struct ps_stats stats;
    char text[128];
    unsigned long long mib, need = 100ull << 20;
    ps_engine_stats(e, &stats);
    o->working_set = 1 << 20;
    assert_true(device_advise("metal", need, text, sizeof text));
    assert_int_equal(sscanf(strstr(text, "mb="), "mb=%llu", &mib), 1);
    assert_true(mib << 20 >= need + stats.weight_bytes + stats.kv_bytes);
    ps_engine_close(e);
    *o = kept;
}

/* Weights in several buffers, each whole in one; and what does not fit even so. */
static void the_largest_buffer(void **state)
{
    (void)state;
    struct fake_options *o = fake_options(), kept = *o;
    o->largest = 6000000;
    check_golden("plainsong-tiny.q4_0.64", run((struct ps_engine_options){.n_slots = 1, .n_ctx = 256, .chunk = 16}));
    refused("needs a buffer of more than the largest", (struct ps_engine_options){.n_slots = 4, .n_ctx = 4096, .chunk = 16});
    refused("a step of this model needs a buffer of", (struct ps_engine_options){.n_slots = 1, .n_ctx = 256, .chunk = 512});
    o->largest = 1500000;
    refused("the GPU's largest buffer has 0.0", (struct ps_engine_options){.n_slots = 1, .n_ctx = 256});
    *o = kept;
}

/* ---- a GPU that gives up ---- */

static void a_failed_command_buffer_breaks_the_device(void **state)
{
    (void)state;
    struct ps_error err = {.text = ""};
    struct ps_token t;
    struct ps_stats stats;
    struct fake_counts now;
    u32 before = fake_live(), made = 0, ids[] = {5, 6, 7};
    struct ps_engine *e = open_engine((struct ps_engine_options){.n_slots = 1, .n_ctx = 64});
    fake_count(&now);
    fake_options()->fail_at = now.command_buffers + 4;
    struct ps_request r = {.ids = ids, .n_ids = 3, .max_tokens = 32, .ignore_end = true};
    struct ps_stream *s = ps_stream_open(e, &r, &err);
    assert_non_null(s);
    int rc;
    while ((rc = ps_stream_next(s, &t, &err)) == 1)
        made++;
    assert_int_equal(rc, -1);
    assert_in_range(made, 1, 4);
    assert_non_null(strstr(err.text, "SubmissionsIgnored"));
    ps_stream_close(s);
    ps_engine_stats(e, &stats);
    assert_non_null(stats.broken);
    ps_engine_close(e);
    fake_options()->fail_at = 0;
    assert_int_equal(fake_live(), before);
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
        cmocka_unit_test(golden_hash),
        cmocka_unit_test(golden_hash_in_other_ways),
        cmocka_unit_test(one_command_buffer_a_step),
        cmocka_unit_test(no_metal_and_the_wrong_one),
        cmocka_unit_test(a_text_that_does_not_compile),
        cmocka_unit_test(memory_is_refused_before_loading),
        cmocka_unit_test(what_is_held_counts),
        cmocka_unit_test(the_largest_buffer),
        cmocka_unit_test(a_failed_command_buffer_breaks_the_device),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
