/* Weights from the mapped file into panels, in slices. While one slice is packed the system already reads the next ones;
 * its pages of the file are let go as soon as it is packed (file_pages.h). Nothing here is read again once the device
 * is open. */
#include "device/dev_cpu.h"
#include "device/file_pages.h"
#include "kernel/pack.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { TASK_PANELS = 16 /* of one matrix: 300 KB of a q4_0 file with rows of 2,048 */ };

struct load_job {
    const struct plan_weight *w;
    struct cpu_weight *to;
    u64 src_bytes;           /* a matrix in the file */
    u32 mat_tasks, first;    /* tasks of a matrix; the slice's first task */
    atomic_ullong bad;       /* the least row, counted through all matrices, that holds something not finite; else ~0: the
                              * message is the same every time */
};

static void load_task(void *arg, u32 task, u32 thread)
{
    (void)thread;
    struct load_job *j = arg;
    u32 mat = (j->first + task) / j->mat_tasks, p0 = (j->first + task) % j->mat_tasks * TASK_PANELS;
    u32 p1 = min_u32(p0 + TASK_PANELS, j->to->n_panels), row;
    if (!pack(j->w->tensor->type, j->w->tensor->data + mat * j->src_bytes, j->w->n_in, j->w->n_out,
              j->to->panels + mat * j->to->mat_bytes, p0, p1, &row))
        return;
    unsigned long long bad = (unsigned long long)mat * j->w->n_out + row, old = atomic_load(&j->bad);
    while (bad < old && !atomic_compare_exchange_weak(&j->bad, &old, bad))
        ;
}

/* ---- one weight ---- */

static int load_vector(const struct plan_weight *w, struct cpu_weight *to, struct err *err)
{
    to->bytes = round_up_u64(w->n_in, 16) * sizeof(float);
    to->floats = mem_alloc(to->bytes);
    if (!to->floats)
        return err_set(err, "out of memory: %llu bytes of weights", (unsigned long long)to->bytes);
    if (pack_floats(w->tensor->type, w->tensor->data, w->n_in, to->floats))
        return pages_refuse(w, 0, err);
    return 0;
}

struct loading {
    struct cpu *cpu;
    u64 done, total; /* bytes of the file */
    bool scarce;     /* memory holds no second copy */
};

static int load_matrices(struct loading *l, const struct plan_weight *w, struct cpu_weight *to, struct err *err)
{
    const struct device_opts *o = &l->cpu->dev.opts;
    to->n_panels = pack_panels(w->n_out);
    to->mat_bytes = pack_panel_bytes(w->tensor->type, w->n_in) * to->n_panels;
    to->bytes = to->mat_bytes * w->n_mats;
    to->panels = mem_alloc(to->bytes);
    if (!to->panels)
        return err_set(err, "out of memory: %llu bytes of weights", (unsigned long long)to->bytes);
    struct load_job j = {.w = w, .to = to, .src_bytes = w->file_bytes / w->n_mats,
                         .mat_tasks = (to->n_panels + TASK_PANELS - 1) / TASK_PANELS};
    atomic_init(&j.bad, ~0ull);
    u32 tasks = j.mat_tasks * w->n_mats; /* at most one for each 256 rows of a checked shape */
    u64 task_bytes = w->file_bytes / tasks, told = 0, asked = 0;
    u32 step = (u32)min_u64(SLICE_BYTES / (task_bytes + 1) + 1, tasks);
    for (; j.first < tasks; j.first += step) {
        u32 n = min_u32(step, tasks - j.first);
        u64 end = j.first + n == tasks ? w->file_bytes : task_bytes * (j.first + n);
        u64 ask = min_u64(end + AHEAD_BYTES, w->file_bytes);
        pages_ask(w->tensor, asked, ask);
        asked = ask;
        pool_run(l->cpu->pool, n, load_task, &j);
        pages_forget(w->tensor, told, end, l->scarce);
        told = end;
        if (o->tell)
            o->tell(o->tell_arg, "loading", l->done + told, l->total);
    }
    return atomic_load(&j.bad) == ~0ull ? 0 : pages_refuse(w, atomic_load(&j.bad), err);
}

/* ---- all weights ---- */

static int load_all(struct loading *l, const struct plan_weight **order, struct err *err)
{
    struct cpu *c = l->cpu;
    const struct plan *p = c->dev.plan;
    for (u32 i = 0; i < p->n_weights; i++) {
        const struct plan_weight *w = order[i];
        struct cpu_weight *to = &c->weights[w - p->weights];
        u64 next = i + 1 < p->n_weights ? order[i + 1]->file_bytes : 0;
        if (next) /* so that the disk does not rest between two weights */
            pages_ask(order[i + 1]->tensor, 0, min_u64(next, SLICE_BYTES));
        if (w->vector ? load_vector(w, to, err) : load_matrices(l, w, to, err))
            return -1;
        l->done += w->file_bytes;
        c->dev.stats.weight_bytes += to->bytes;
    }
    return 0;
}

int cpu_load(struct cpu *c, struct err *err)
{
    const struct plan *p = c->dev.plan;
    struct loading l = {.cpu = c};
    c->weights = mem_array(p->n_weights, sizeof *c->weights);
    const struct plan_weight **order = pages_order(p, &l.total, &l.scarce);
    double start = time_now();
    int rc = c->weights && order ? load_all(&l, order, err) : err_set(err, "out of memory: table of weights");
    free(order);
    if (rc)
        return -1;
    if (c->dev.opts.tell)
        c->dev.opts.tell(c->dev.opts.tell_arg, "loading", l.total, l.total);
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
