/* Memory decided ahead: what fits, what is offered instead, and that the numbers are named. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#include "base/sysmem.h"
#include "engine/budget.h"
#include "plainsong.h"

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
    return (struct budget){.plan = &plan, .n_slots = n_slots, .chunk = 64, .available = available};
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

/* One slot takes less than many in what each takes besides its context, too: what one has room for is offered, and no less. */
static void one_slot_is_offered_where_many_take_all(void **state)
{
    (void)state;
    bool seen = false;
    for (u64 mib = 500; mib < 1500; mib += 20) {
        struct err err;
        u32 slots = 0, ctx = 0;
        struct budget many = budget(mib << 20, 1000), one = budget(mib << 20, 1);
        u32 fits = budget_ctx(&one, 0, &err);
        if (budget_ctx(&many, 0, &err) || !fits)
            continue;
        assert_non_null(strstr(err.text, "try"));
        assert_int_equal(sscanf(strstr(err.text, "try"), "try --slots %u --ctx %u", &slots, &ctx), 2);
        assert_int_equal(slots, 1);
        assert_int_equal(ctx, fits);
        seen = true;
    }
    assert_true(seen);
}

/* Also between two of the contexts that we choose by; one position more than fits does not. */
static void a_context_that_fits_is_not_refused(void **state)
{
    (void)state;
    struct err err;
    struct budget b = budget(1100ull << 20, 64);
    u32 lo = budget_ctx(&b, 0, &err), hi = lo + 256;
    assert_int_equal(lo % 256, 0);
    assert_true(lo > 0 && hi < 4096);
    while (hi - lo > 1) {
        u32 mid = (lo + hi) / 2;
        *(budget_ctx(&b, mid, &err) ? &lo : &hi) = mid;
    }
    assert_int_equal(budget_ctx(&b, lo, &err), lo);
    assert_int_equal(budget_ctx(&b, hi, &err), 0);
    double needs, there;
    assert_int_equal(sscanf(strstr(err.text, "needs"), "needs %lf GB, %lf GB", &needs, &there), 2);
    assert_true(needs > there);
}

/* However little is missing, the two numbers that say so differ. */
static void what_is_missing_can_be_read(void **state)
{
    (void)state;
    for (u64 mib = 100; mib < 700; mib += 3) {
        struct err err;
        struct budget b = budget(mib << 20, 1);
        double takes, there;
        if (budget_ctx(&b, 0, &err))
            continue;
        assert_int_equal(sscanf(strstr(err.text, "takes"), "takes %lf GB, %lf GB", &takes, &there), 2);
        assert_true(takes > there);
    }
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

/* Of a device with memory of its own more is asked, some percent of what grows and twice the scratch; the words are the same. */
static void a_devices_own_memory_is_reckoned_generously(void **state)
{
    (void)state;
    struct err err;
    struct budget b = budget(1100ull << 20, 64);
    u32 host = budget_ctx(&b, 0, &err);
    b.own = true;
    u32 own = budget_ctx(&b, 0, &err);
    assert_true(own > 0 && own <= host && own > host - host / 4);
    assert_int_equal(budget_ctx(&b, own + 256, &err), 0);
    assert_non_null(strstr(err.text, "GB are available: try --slots 64 --ctx"));
    assert_null(strstr(err.text, "another plainsong"));
}

/* A child of the same name is seen, with its memory. */
static void another_of_our_kind_is_named(void **state)
{
    (void)state;
#if defined(__linux__) || defined(__APPLE__)
    int up[2], down[2];
    pid_t child[2];
    assert_int_equal(pipe(up), 0);
    assert_int_equal(pipe(down), 0);
    for (u32 k = 0; k < 2; k++) {
        child[k] = fork();
        if (child[k] == 0) {
            char c;
            u32 n = (k ? 32 : 64) << 20;
            volatile u8 *p = malloc(n);
            for (u32 i = 0; i < n; i += 4096)
                p[i] = 1;
            close(down[1]);
            _exit(write(up[1], "x", 1) != 1 || read(down[0], &c, 1) < 0);
        }
    }
    char c;
    u32 pid;
    u64 bytes, all;
    assert_int_equal(read(up[0], &c, 1), 1);
    assert_int_equal(read(up[0], &c, 1), 1);
    assert_true(sysmem_others(&pid, &bytes, &all) >= 2);
    assert_int_equal(pid, child[0]);
    assert_true(bytes >= 64 << 20);
    assert_true(all >= bytes + (32 << 20)); /* not the largest alone */
    close(down[1]);
    waitpid(child[0], NULL, 0);
    waitpid(child[1], NULL, 0);
#endif
    assert_true(sysmem_available() > 0);
}

#if defined(__linux__)
static void write_file(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}
#endif

/* Limits of this process's cgroup and of those above it, both versions; pages of files count as free. */
static void a_cgroup_limits_what_is_available(void **state)
{
    (void)state;
#if defined(__linux__)
    char root[] = "build/cgroup-XXXXXX", command[600], v2[128], v1[128], self[128];
    assert_non_null(mkdtemp(root));
    snprintf(command, sizeof command, "mkdir -p %s/a/b %s/memory/c", root, root);
    assert_int_equal(system(command), 0);
    snprintf(v2, sizeof v2, "%s/a", root);
    snprintf(v1, sizeof v1, "%s/memory/c", root);
    snprintf(self, sizeof self, "%s/self", root);
    write_file(v2, "memory.max", "1000000\n");
    write_file(v2, "memory.current", "700000\n");
    write_file(v2, "b/memory.max", "max\n");
    write_file(v2, "b/memory.current", "5000\n");
    write_file(root, "self", "0::/a/b\n");
    assert_int_equal(sysmem_grouped(root, self, 5000000), 300000); /* the group above has the limit */
    assert_int_equal(sysmem_grouped(root, self, 200000), 200000);
    assert_int_equal(sysmem_grouped(root, self, 0), 300000);
    write_file(v2, "memory.stat", "anon 100000\ninactive_file 400000\nactive_file 100000\n");
    assert_int_equal(sysmem_grouped(root, self, 5000000), 800000);
    write_file(v1, "memory.limit_in_bytes", "600000\n");
    write_file(v1, "memory.usage_in_bytes", "700000\n");
    write_file(root, "self", "9:name=systemd:/\n4:memory:/c\n0::/a/b\n");
    assert_int_equal(sysmem_grouped(root, self, 5000000), 1); /* nothing; 0 says: not known */
    write_file(v1, "memory.stat", "inactive_file 9\ntotal_inactive_file 250000\n");
    assert_int_equal(sysmem_grouped(root, self, 5000000), 150000);
    write_file(root, "self", "4:memory:/not/there\nnonsense\n");
    assert_int_equal(sysmem_grouped(root, self, 5000000), 5000000);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
#endif
}

/* What the public API says of an open engine: parts that add up, and less than was decided on beforehand. */
static void an_engine_says_what_it_costs(void **state)
{
    (void)state;
    struct ps_error err;
    struct ps_model *m = ps_model_open("models/plainsong-tiny-q4_0.gguf", &err);
    assert_non_null(m);
    for (u32 q8 = 0; q8 < 2; q8++) {
        struct ps_engine_options o = {.n_slots = 3, .n_ctx = 512, .kv = q8 ? "q8_0" : "f16"};
        struct ps_cost c;
        struct ps_stats s;
        struct ps_engine *e = ps_engine_open(m, &o, &err);
        assert_non_null(e);
        ps_engine_cost(e, &c);
        ps_engine_stats(e, &s);
        assert_int_equal(c.total, c.weights + c.kv + c.setup + c.scratch);
        assert_true(c.weights > 20000000 && c.setup > 0 && c.scratch > 0);
        assert_int_equal(c.n_slots, 3);
        assert_int_equal(c.n_ctx, 512);
        assert_int_equal(c.position_bytes, plan_kv_bytes(&plan, q8 ? KV_Q8_0 : KV_F16));
        assert_int_equal(c.kv, 3 * 512 * c.position_bytes);
        assert_int_equal(c.weights, s.weight_bytes);
        assert_int_equal(c.scratch, s.scratch_bytes);
        assert_true(c.opened_bytes > 0 && c.free_bytes > 0);
        struct budget b = budget(c.total + (512ull << 20), 3); /* the reserve comes on top */
        struct err why;
        b.kv = q8 ? KV_Q8_0 : KV_F16;
        b.available += b.available / 8; /* panels and rows are reckoned generously */
        assert_int_equal(budget_ctx(&b, 512, &why), 512);
        b.available = c.total;
        assert_int_equal(budget_ctx(&b, 512, &why), 0);
        ps_engine_close(e);
    }
    ps_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plenty_gives_the_models_own_context),
        cmocka_unit_test(what_does_not_fit_is_answered_with_what_does),
        cmocka_unit_test(one_slot_is_offered_where_many_take_all),
        cmocka_unit_test(a_context_that_fits_is_not_refused),
        cmocka_unit_test(what_is_missing_can_be_read),
        cmocka_unit_test(q8_keys_take_about_half),
        cmocka_unit_test(a_devices_own_memory_is_reckoned_generously),
        cmocka_unit_test(another_of_our_kind_is_named),
        cmocka_unit_test(a_cgroup_limits_what_is_available),
        cmocka_unit_test(an_engine_says_what_it_costs),
    };
    return cmocka_run_group_tests(tests, open_plan, close_plan);
}
