/* The GPU's start-up self-test: on the emulator nothing differs, and each word that a device gets wrong is named. */
#include "check.h"

#include "device/dev_gpu.h"

#define KERNEL_FILE 12
#include "gpu/k_probe.h"

static const char *const WHAT[] = {
#define X(name, what) what,
    GPU_PROBES(X)
#undef X
};

/* The emulated GPU, but what comes back from a submission is wrong in one bit, or nothing comes back. */
struct liar {
    u32 *out;
    u64 words, wrong; /* which word; words: none */
    bool dead;
};
static struct liar liar;

static int lying_submit(void *self, void *program, struct gpu_ref to, const void *inputs, u64 n_bytes, void *out, struct gpu_ref from,
                        u64 n_out, struct err *err)
{
    liar.out = out;
    liar.words = n_out / 4;
    return gpu_backend_emu.submit(self, program, to, inputs, n_bytes, out, from, n_out, err);
}

static int lying_wait(void *self, struct err *err)
{
    if (liar.dead)
        return err_set(err, "no answer");
    int status = gpu_backend_emu.wait(self, err);
    if (liar.wrong < liar.words)
        liar.out[liar.wrong] ^= 1;
    return status;
}

static int run(char *bad, size_t n, struct err *err)
{
    struct gpu_backend lying = gpu_backend_emu;
    struct device_opts opts = {.name = "emu", .n_threads = 2};
    struct gpu_info info;
    void *self;
    lying.submit = lying_submit;
    lying.wait = lying_wait;
    assert_int_equal(lying.open(&self, 0, &opts, &info, err), 0);
    int status = gpu_selftest(&lying, self, bad, n, err);
    lying.close(self);
    return status;
}

static void nothing_differs(void **state)
{
    (void)state;
    char bad[256];
    struct err err = {0};
    liar = (struct liar){.wrong = ~0ull};
    assert_int_equal(run(bad, sizeof bad, &err), 0);
    assert_string_equal(bad, "");
}

static void each_is_named(void **state)
{
    (void)state;
    char bad[256];
    struct err err = {0};
    for (u32 p = 0; p < PROBE_COUNT; p++) {
        liar = (struct liar){.wrong = p * 1024 + p % 7 * 150};
        assert_int_equal(run(bad, sizeof bad, &err), 0);
        assert_string_equal(bad, WHAT[p]);
    }
}

static void a_device_that_fails(void **state)
{
    (void)state;
    char bad[256];
    struct err err = {0};
    liar = (struct liar){.wrong = ~0ull, .dead = true};
    assert_int_equal(run(bad, sizeof bad, &err), -1);
    assert_string_equal(err.text, "no answer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_differs), cmocka_unit_test(each_is_named),
                                       cmocka_unit_test(a_device_that_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
