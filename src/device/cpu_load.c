/* Weights from the mapped file into panels, in slices, so that progress shows and the file's pages can go as soon as
 * they are read: at no time does memory hold the model twice. */
#include "device/dev_cpu.h"
#include "kernel/pack.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLICE_PANELS = 2048, TASK_PANELS = 16 };

struct load_job {
    const struct plan_weight *w;
    struct cpu_weight *to;
    u32 mat, p0, p1;
    const u8 *src;           /* the matrix */
    u8 *dst;
    atomic_uint bad_row;     /* of the matrix; n_out: none. The least one is kept: the message is the same every time */
};

static void load_task(void *arg, u32 task, u32 thread)
{
    (void)thread;
    struct load_job *j = arg;
    u32 p0 = j->p0 + task * TASK_PANELS, p1 = min_u32(p0 + TASK_PANELS, j->p1), bad;
    if (pack(j->w->tensor->type, j->src, j->w->n_in, j->w->n_out, j->dst, p0, p1, &bad)) {
        u32 old = atomic_load(&j->bad_row);
        while (bad < old && !atomic_compare_exchange_weak(&j->bad_row, &old, bad))
            ;
    }
}

/* Tells the system that these bytes of the file will not be read again. */
static void forget(const u8 *at, u64 bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)at + page - 1) / page * page, end = ((uintptr_t)at + bytes) / page * page;
    if (end > begin)
        madvise((void *)begin, end - begin, MADV_DONTNEED); /* a private read-only mapping: it can be read again */
}

static int refuse(const struct plan_weight *w, u32 mat, u32 row, struct err *err)
{
    char name[96];
    err_quote(name, sizeof name, w->tensor->name.at, w->tensor->name.len);
    return err_set(err, "tensor \"%s\": matrix %u, row %u holds a value that is not finite; the file is damaged or badly converted",
                   name, mat, row);
}

static int load_vector(const struct plan_weight *w, struct cpu_weight *to, struct err *err)
{
    to->bytes = round_up_u64(w->n_in, 16) * sizeof(float);
    to->floats = mem_alloc(to->bytes);
    if (!to->floats)
        return err_set(err, "out of memory: %llu bytes of weights", (unsigned long long)to->bytes);
    if (pack_floats(w->tensor->type, w->tensor->data, w->n_in, to->floats))
        return refuse(w, 0, 0, err);
    return 0;
}

static int load_matrices(struct cpu *c, const struct plan_weight *w, struct cpu_weight *to, u64 *done, u64 total,
                         struct err *err)
{
    to->n_panels = pack_panels(w->n_out);
    to->mat_bytes = pack_panel_bytes(w->tensor->type, w->n_in) * to->n_panels;
    to->bytes = to->mat_bytes * w->n_mats;
    to->panels = mem_alloc(to->bytes);
    if (!to->panels)
        return err_set(err, "out of memory: %llu bytes of weights", (unsigned long long)to->bytes);
    u64 src_bytes = w->file_bytes / w->n_mats, told = *done;
    for (u32 m = 0; m < w->n_mats; m++) {
        struct load_job j = {.w = w, .to = to, .mat = m, .src = w->tensor->data + m * src_bytes,
                             .dst = to->panels + m * to->mat_bytes};
        atomic_init(&j.bad_row, w->n_out);
        for (j.p0 = 0; j.p0 < to->n_panels; j.p0 = j.p1) {
            j.p1 = min_u32(j.p0 + SLICE_PANELS, to->n_panels);
            pool_run(c->pool, (j.p1 - j.p0 + TASK_PANELS - 1) / TASK_PANELS, load_task, &j);
            if (c->dev.opts.tell)
                c->dev.opts.tell(c->dev.opts.tell_arg, "loading",
                                 told + m * src_bytes + src_bytes / to->n_panels * j.p1, total);
        }
        if (atomic_load(&j.bad_row) != w->n_out)
            return refuse(w, m, atomic_load(&j.bad_row), err);
        forget(j.src, src_bytes);
    }
    return 0;
}

int cpu_load(struct cpu *c, struct err *err)
{
    const struct plan *p = c->dev.plan;
    c->weights = mem_array(p->n_weights, sizeof *c->weights);
    if (!c->weights)
        return err_set(err, "out of memory: table of weights");
    u64 total = 0, done = 0;
    for (u32 i = 0; i < p->n_weights; i++)
        total += p->weights[i].file_bytes;
    double start = time_now();
    for (u32 i = 0; i < p->n_weights; i++) {
        const struct plan_weight *w = &p->weights[i];
        if (w->vector ? load_vector(w, &c->weights[i], err) : load_matrices(c, w, &c->weights[i], &done, total, err))
            return -1;
        done += w->file_bytes;
        c->dev.stats.weight_bytes += c->weights[i].bytes;
    }
    if (c->dev.opts.tell)
        c->dev.opts.tell(c->dev.opts.tell_arg, "loading", total, total);
    c->dev.stats.load_s = time_now() - start;
    return 0;
}

void cpu_unload(struct cpu *c)
{
    for (u32 i = 0; c->weights && i < c->dev.plan->n_weights; i++) {
        mem_free(c->weights[i].panels, c->weights[i].bytes);
        mem_free(c->weights[i].floats, c->weights[i].bytes);
    }
    free(c->weights);
}
