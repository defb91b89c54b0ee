/* What a launch costs on a GPU, in each way that the CUDA backend can run a list (PLAINSONG_CUDA_MODE), and whether each launch sees all
 * that the one before it wrote: the self-test's kernel, each time on what the last one left, against one launch at a time.
 *   launches [LAUNCHES [GROUPS...]]     400 launches; groups: one, half, all that run at once, twice as many
 * Prints microseconds a launch; status 1 when something differs. */
#include "device/dev_gpu.h"

#define KERNEL_FILE 12
#include "gpu/k_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_EACH = 1024, WORDS = COUNT_EACH * PROBE_COUNT, BUF_WORDS = 3 * WORDS, STEPS = 50 };

struct rig {
    const struct gpu_backend *b;
    void *self;
    u64 bufs[2];
    u32 *in, *out;
};

/* Launch i reads buffer i % 2, of which the last launch wrote the first third, and writes the other. */
static int make(struct rig *r, u32 n, u32 groups, u32 count, bool one_by_one, void **program, struct err *err)
{
    struct gpu_launch *list = mem_array(n, sizeof *list);
    if (!list)
        return err_set(err, "out of memory");
    for (u32 i = 0; i < n; i++) {
        list[i] = (struct gpu_launch){.kernel = GK_probe, .n_groups = groups, .n_bufs = 2, .bufs = {{r->bufs[i % 2], 0}, {r->bufs[1 - i % 2], 0}}};
        list[i].args.probe_.count = count;
    }
    int status = r->b->prepare(r->self, list, n, one_by_one, program, err);
    free(list);
    return status;
}

static int step(struct rig *r, void *program, u32 n, struct err *err)
{
    struct gpu_ref to = {r->bufs[0], 0}, from = {r->bufs[n % 2], 0};
    return r->b->submit(r->self, program, to, r->in, BUF_WORDS * 4, r->out, from, WORDS * 4, err) || r->b->wait(r->self, err) ? -1 : 0;
}

/* The same words, however they were launched? Every step once more from the start. */
static int compare(struct rig *r, u32 n, u32 groups, u32 *wrong, struct err *err)
{
    void *single, *fast;
    u32 *wish = mem_array(WORDS, sizeof *wish);
    if (!wish || make(r, n, groups, COUNT_EACH, true, &single, err) || make(r, n, groups, COUNT_EACH, false, &fast, err))
        return -1;
    *wrong = 0;
    for (u32 i = 0; i <= STEPS; i++) {
        if (step(r, i ? fast : single, n, err))
            return -1;
        if (i == 0)
            memcpy(wish, r->out, WORDS * 4);
        *wrong += memcmp(wish, r->out, WORDS * 4) != 0;
    }
    r->b->discard(r->self, single);
    r->b->discard(r->self, fast);
    free(wish);
    return 0;
}

/* Seconds of a step with next to no work in it; the least of many. */
static int time_step(struct rig *r, u32 n, u32 groups, double *best_s, struct err *err)
{
    void *program;
    struct gpu_ref to = {r->bufs[0], 0};
    if (make(r, n, groups, 0, false, &program, err))
        return -1;
    *best_s = 1e9;
    for (u32 i = 0; i < 4 * STEPS; i++) {
        double t = time_now();
        if (r->b->submit(r->self, program, to, r->in, 1024, r->out, to, 1024, err) || r->b->wait(r->self, err))
            return -1;
        t = time_now() - t;
        *best_s = t < *best_s ? t : *best_s;
    }
    r->b->discard(r->self, program);
    return 0;
}

static int look(struct rig *r, u32 n, u32 groups, u32 *failures, struct err *err)
{
    double one_s, all_s;
    u32 wrong = 0, few = n < 64 ? n : 64;
    if (time_step(r, 1, groups, &one_s, err) || time_step(r, n, groups, &all_s, err) || compare(r, few, groups, &wrong, err))
        return -1;
    printf("%6u groups: %7.1f us for 1 launch, %8.1f for %u: %.2f us each; %u of %u chains of %u differ\n", groups, one_s * 1e6,
           all_s * 1e6, n, (all_s - one_s) * 1e6 / (n > 1 ? n - 1 : 1), wrong, STEPS, few);
    *failures += wrong;
    return 0;
}

int main(int argc, char **argv)
{
    struct err err = {{0}, 0};
    struct rig r = {.b = gpu_backend_cuda(&err)};
    struct gpu_info info;
    char bad[256] = "";
    u32 n = argc > 1 ? (u32)strtoul(argv[1], NULL, 10) : 400, failures = 0;
    r.in = mem_array(BUF_WORDS, sizeof *r.in);
    r.out = mem_array(WORDS, sizeof *r.out);
    if (!r.b || !r.in || !r.out || n == 0 || r.b->open(&r.self, 0, NULL, &info, &err))
        goto fail;
    printf("%s, %u groups at once, PLAINSONG_CUDA_MODE=%s\n", info.name, info.n_groups,
           getenv("PLAINSONG_CUDA_MODE") ? getenv("PLAINSONG_CUDA_MODE") : "");
    for (u32 i = 0; i < BUF_WORDS; i++)
        r.in[i] = probe_mix(i, 3);
    if (gpu_selftest(r.b, r.self, bad, sizeof bad, &err) || r.b->alloc(r.self, BUF_WORDS * 4, &r.bufs[0], &err) ||
        r.b->alloc(r.self, BUF_WORDS * 4, &r.bufs[1], &err) || r.b->upload(r.self, (struct gpu_ref){r.bufs[1], 0}, r.in, BUF_WORDS * 4, &err))
        goto fail;
    printf("self-test: %s\n", *bad ? bad : "nothing differs");
    failures += *bad != 0;
    u32 sizes[] = {1, info.n_groups / 2, info.n_groups, 2 * info.n_groups};
    for (u32 i = 0; i < (argc > 2 ? (u32)argc - 2 : COUNT(sizes)); i++)
        if (look(&r, n, argc > 2 ? (u32)strtoul(argv[2 + i], NULL, 10) : sizes[i], &failures, &err))
            goto fail;
    r.b->close(r.self);
    return failures != 0;
fail:
    fprintf(stderr, "launches: %s\n", err.text[0] ? err.text : "out of memory");
    return 1;
}
