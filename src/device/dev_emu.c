/* The GPU that tests have: kernels run by gpu/emu.h on this machine's cores, each launch on a number of groups that a fixed sequence
 * picks, since no result may depend on it. So are launches between two barriers: backwards in one step, shuffled in the next.
 * Memory is the host's. */
#include "device/dev_gpu.h"

#include "base/pool.h"
#include "gpu/emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct block {
    struct block *next;
    void *at;
    u64 bytes;
};

struct emu_backend {
    struct emu *emu;
    struct emu_opts opts;
    struct block *blocks;
    u64 n_launches, n_steps;
};

struct program {
    u32 n;
    u32 *order; /* [n] */
    struct gpu_launch list[];
};

static void emu_device_close(void *self)
{
    struct emu_backend *e = self;
    if (!e)
        return;
    for (struct block *b = e->blocks, *next; b; b = next) {
        next = b->next;
        mem_free(b->at, b->bytes);
        free(b);
    }
    emu_close(e->emu);
    free(e);
}

static int emu_device_open(void **self, u32 index, const struct device_opts *opts, struct gpu_info *info, struct err *err)
{
    if (index)
        return err_set(err, "--device emu: there is one");
    struct emu_backend *e = mem_array(1, sizeof *e);
    if (e) {
        e->opts = (struct emu_opts){.n_threads = opts->n_threads ? opts->n_threads : pool_cores(), .seed = 1, .poison = true};
        e->emu = emu_open(&e->opts);
    }
    if (!e || !e->emu) {
        emu_device_close(e);
        return err_set(err, "out of memory: the emulator of %u threads", opts->n_threads);
    }
    *info = (struct gpu_info){.few_rows = opts->few_rows, .n_groups = EMU_GROUPS, .shm_bytes = EMU_SHM};
    snprintf(info->name, sizeof info->name, "emulated");
    *self = e;
    return 0;
}

static int emu_device_alloc(void *self, u64 bytes, u64 *base, struct err *err)
{
    struct emu_backend *e = self;
    struct block *b = mem_array(1, sizeof *b);
    u64 with_room = bytes + 256; /* mem_alloc aligns to 64 */
    void *at = b ? mem_alloc(with_room) : NULL;
    if (!at) {
        free(b);
        return err_set(err, "out of memory: %llu bytes", (unsigned long long)bytes);
    }
    *b = (struct block){e->blocks, at, with_room};
    e->blocks = b;
    *base = round_up_u64((uintptr_t)at, 256);
    return 0;
}

static void *address(struct gpu_ref r)
{
    return (void *)(uintptr_t)(r.base + r.offset);
}

static int emu_device_upload(void *self, struct gpu_ref to, const void *from, u64 bytes, struct err *err)
{
    (void)self, (void)err;
    memcpy(address(to), from, bytes);
    return 0;
}

static int emu_device_download(void *self, void *to, struct gpu_ref from, u64 bytes, struct err *err)
{
    (void)self, (void)err;
    memcpy(to, address(from), bytes);
    return 0;
}

static int emu_device_copy(void *self, struct gpu_ref to, struct gpu_ref from, u64 bytes, struct err *err)
{
    (void)self, (void)err;
    memcpy(address(to), address(from), bytes);
    return 0;
}

static int emu_device_prepare(void *self, const struct gpu_launch *list, u32 n, bool one_by_one, void **program, struct err *err)
{
    (void)self, (void)one_by_one;
    struct program *p = malloc(sizeof *p + n * (sizeof *list + sizeof *p->order));
    if (!p)
        return err_set(err, "out of memory: a program of %u launches", n);
    p->n = n;
    p->order = (u32 *)(p->list + n);
    memcpy(p->list, list, n * sizeof *list);
    *program = p;
    return 0;
}

static void emu_device_discard(void *self, void *program)
{
    (void)self;
    free(program);
}

/* Groups of launch i: mostly numbers that two threads share evenly. */
static u32 n_groups(u64 i)
{
    static const u8 GROUPS[] = {2, 4, 1, 6, 2, 3, 4, 5};
    return GROUPS[(i * 2654435761u >> 7) % COUNT(GROUPS)];
}

static int run_launch(struct emu_backend *e, const struct gpu_launch *l, struct err *err)
{
    struct bufs b = {{0}};
    for (u32 i = 0; i < l->n_bufs; i++)
        b.p[i] = address(l->bufs[i]);
    e->opts.seed = ++e->n_launches;
    emu_set(e->emu, &e->opts);
    return emu_launch(e->emu, l->kernel, &l->args, &b, n_groups(e->n_launches), l->shm_bytes, err);
}

/* Each stretch up to the next flag: backwards, so that what should have waited comes first, or as chance has it. */
static void set_order(struct program *p, u64 step)
{
    for (u32 from = 0, to; from < p->n; from = to) {
        for (to = from + 1; to < p->n && !p->list[to].barrier;)
            to++;
        for (u32 i = from; i < to; i++)
            p->order[i] = to - 1 - (i - from);
        for (u32 n = to - from; step % 2 && n > 1; n--) {
            u32 other = (u32)((step * 0x9E3779B97F4A7C15u + from) >> 33) % n;
            u32 *a = &p->order[from + n - 1], *b = &p->order[from + other], c = *a;
            *a = *b;
            *b = c;
        }
    }
}

static int emu_device_submit(void *self, void *program, struct gpu_ref to, const void *inputs, u64 n_bytes, void *out, struct gpu_ref out_from,
                             u64 n_out, struct err *err)
{
    struct program *p = program;
    struct emu_backend *e = self;
    memcpy(address(to), inputs, n_bytes);
    set_order(p, e->n_steps++);
    for (u32 i = 0; i < p->n; i++)
        if (run_launch(e, &p->list[p->order[i]], err))
            return -1;
    if (n_out)
        memcpy(out, address(out_from), n_out);
    return 0;
}

static int emu_device_wait(void *self, struct err *err)
{
    (void)self, (void)err;
    return 0;
}

const struct gpu_backend gpu_backend_emu = {
    .name = "emu",
    .open = emu_device_open,
    .close = emu_device_close,
    .alloc = emu_device_alloc,
    .upload = emu_device_upload,
    .download = emu_device_download,
    .copy = emu_device_copy,
    .prepare = emu_device_prepare,
    .discard = emu_device_discard,
    .submit = emu_device_submit,
    .wait = emu_device_wait,
};
