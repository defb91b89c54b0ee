/* Weights from the mapped file to a GPU's memory, in slices: packed into panels by all threads (gpu_pack.c), then uploaded. One piece
 * holds them all, unless the GPU's largest buffer is smaller; a table that is used twice (embedding and output) lies there once. */
#include "base/sysmem.h"
#include "device/file_pages.h"
#include "device/gpu_host.h"
#include "kernel/pack.h"

#include <stdatomic.h>
#include <stdlib.h>

enum {
    TASK_PANELS = 16, /* as cpu_load.c */
    ALIGN = 256
};

static u32 panels_of(const struct plan_weight *w)
{
    return (w->n_out + GPU_PANEL - 1) / GPU_PANEL;
}

/* Behind what was placed last, or in a piece of its own where the two are more than a buffer holds. */
static int place(struct gpu *g, struct gpu_weight *to, const struct plan_weight *w, struct err *err)
{
    u64 most = g->info.max_buffer_bytes ? g->info.max_buffer_bytes : UINT64_MAX, bytes = round_up_u64(to->bytes, ALIGN);
    char name[96];
    if (bytes > most) {
        int digits = sysmem_digits(bytes, most);
        return err_set(err, "--device %s: tensor %s takes %.*f GB; the GPU's largest buffer has %.*f", g->dev.ops->name,
                       err_quote(name, sizeof name, w->tensor->name.at, w->tensor->name.len), digits, (double)bytes / 1e9, digits,
                       (double)most / 1e9);
    }
    if (!g->n_pieces || g->piece_bytes[g->n_pieces - 1] > most - bytes) {
        if (g->n_pieces == GPU_PIECES)
            return err_set(err, "--device %s: the weights take more than %d buffers of %.1f GB", g->dev.ops->name, GPU_PIECES, (double)most / 1e9);
        g->n_pieces++;
    }
    to->piece = g->n_pieces - 1;
    to->at.offset = g->piece_bytes[to->piece];
    g->piece_bytes[to->piece] += bytes;
    g->weight_bytes += bytes;
    return 0;
}

int gpu_place_weights(struct gpu *g, struct err *err)
{
    const struct plan *p = g->dev.plan;
    g->weights = mem_array(p->n_weights, sizeof *g->weights);
    if (!g->weights)
        return err_set(err, "out of memory: table of weights");
    for (u32 i = 0; i < p->n_weights; i++) {
        const struct plan_weight *w = &p->weights[i];
        struct gpu_weight *to = &g->weights[i];
        u64 panel = w->vector ? 0 : gpu_panel_bytes(w->tensor->type, w->n_in);
        to->mat_bytes = w->vector ? w->n_in * sizeof(float) : panel * panels_of(w);
        if (!w->vector && !panel)
            return err_set(err, "--device %s: weights of type %s are not for GPUs", g->dev.ops->name, dtype_info(w->tensor->type)->name);
        if (!mul_u64(to->mat_bytes, w->n_mats, &to->bytes))
            return err_set(err, "the weights need more bytes than there are");
        if (place(g, to, w, err))
            return -1;
    }
    return 0;
}

struct load_job { /* one slice of a weight's matrices */
    const struct plan_weight *w;
    const struct gpu_weight *to;
    u64 src_bytes, panel_bytes; /* a matrix in the file; a panel on the GPU */
    u8 *stage;                  /* holds the slice's panels, the first one first */
    u32 mat_tasks, first;       /* tasks of a matrix; the slice's first task */
    atomic_ullong bad;          /* the least row, counted through all matrices, that is not finite; else ~0 */
};

/* Where the panels of task t begin, from the first matrix on. */
static u64 task_at(const struct load_job *j, u32 t)
{
    return t / j->mat_tasks * j->to->mat_bytes + t % j->mat_tasks * TASK_PANELS * j->panel_bytes;
}

static void load_task(void *arg, u32 task, u32 thread)
{
    (void)thread;
    struct load_job *j = arg;
    u32 t = j->first + task, mat = t / j->mat_tasks, p0 = t % j->mat_tasks * TASK_PANELS;
    u32 p1 = min_u32(p0 + TASK_PANELS, panels_of(j->w)), row;
    if (!gpu_pack(j->w->tensor->type, j->w->tensor->data + mat * j->src_bytes, j->w->n_in, j->w->n_out,
                  j->stage + (task_at(j, t) - task_at(j, j->first)), p0, p1, &row))
        return;
    unsigned long long bad = (unsigned long long)mat * j->w->n_out + row, old = atomic_load(&j->bad);
    while (bad < old && !atomic_compare_exchange_weak(&j->bad, &old, bad))
        ;
}

struct loading {
    struct gpu *g;
    u8 *stage;
    u64 stage_bytes;
    u64 done, total; /* bytes of the file */
    bool scarce;     /* memory holds no second copy */
};

/* Room for at least so many bytes: the greatest slice's, kept. */
static int stage(struct loading *l, u64 bytes, struct err *err)
{
    if (bytes <= l->stage_bytes)
        return 0;
    mem_free(l->stage, l->stage_bytes);
    l->stage_bytes = bytes;
    l->stage = mem_alloc(bytes);
    if (l->stage)
        return 0;
    l->stage_bytes = 0;
    return err_set(err, "out of memory: %llu bytes to pack weights in", (unsigned long long)bytes);
}

static int load_vector(struct loading *l, const struct plan_weight *w, const struct gpu_weight *to, struct err *err)
{
    if (stage(l, to->bytes, err))
        return -1;
    if (pack_floats(w->tensor->type, w->tensor->data, w->n_in, (float *)(void *)l->stage))
        return pages_refuse(w, 0, err);
    return l->g->backend->upload(l->g->self, to->at, l->stage, to->bytes, err);
}

static int load_matrices(struct loading *l, const struct plan_weight *w, const struct gpu_weight *to, struct err *err)
{
    struct gpu *g = l->g;
    const struct device_opts *o = &g->dev.opts;
    struct load_job j = {.w = w, .to = to, .src_bytes = w->file_bytes / w->n_mats, .panel_bytes = gpu_panel_bytes(w->tensor->type, w->n_in),
                         .mat_tasks = (panels_of(w) + TASK_PANELS - 1) / TASK_PANELS};
    u32 tasks = j.mat_tasks * w->n_mats; /* at most one for each 256 rows of a checked shape */
    u64 task_bytes = w->file_bytes / tasks, told = 0, asked = 0;
    u32 step = (u32)min_u64(SLICE_BYTES / (task_bytes + 1) + 1, tasks);
    atomic_init(&j.bad, ~0ull);
    if (stage(l, min_u64(step * TASK_PANELS * j.panel_bytes, to->bytes), err))
        return -1;
    j.stage = l->stage;
    for (; j.first < tasks; j.first += step) {
        u32 n = min_u32(step, tasks - j.first);
        u64 end = j.first + n == tasks ? w->file_bytes : task_bytes * (j.first + n), ask = min_u64(end + AHEAD_BYTES, w->file_bytes);
        u64 from = task_at(&j, j.first), until = task_at(&j, j.first + n);
        pages_ask(w->tensor, asked, ask);
        asked = ask;
        pool_run(g->pool, n, load_task, &j);
        if (g->backend->upload(g->self, gpu_at(to->at, from), l->stage, until - from, err))
            return -1;
        pages_forget(w->tensor, told, end, l->scarce);
        told = end;
        if (o->tell)
            o->tell(o->tell_arg, "loading", l->done + told, l->total);
    }
    return atomic_load(&j.bad) == ~0ull ? 0 : pages_refuse(w, atomic_load(&j.bad), err);
}

static int load_all(struct loading *l, const struct plan_weight **order, const u64 *bases, struct err *err)
{
    struct gpu *g = l->g;
    const struct plan *p = g->dev.plan;
    for (u32 i = 0; i < p->n_weights; i++)
        g->weights[i].at.base = bases[g->weights[i].piece];
    for (u32 i = 0; i < p->n_weights; i++) {
        const struct plan_weight *w = order[i];
        const struct gpu_weight *to = &g->weights[w - p->weights];
        u64 next = i + 1 < p->n_weights ? order[i + 1]->file_bytes : 0;
        if (next) /* so that the disk does not rest between two weights */
            pages_ask(order[i + 1]->tensor, 0, min_u64(next, SLICE_BYTES));
        if (w->vector ? load_vector(l, w, to, err) : load_matrices(l, w, to, err))
            return -1;
        l->done += w->file_bytes;
    }
    return 0;
}

int gpu_load(struct gpu *g, const u64 *bases, struct err *err)
{
    struct loading l = {.g = g};
    const struct plan_weight **order = pages_order(g->dev.plan, &l.total, &l.scarce);
    double start = time_now();
    int rc = order ? load_all(&l, order, bases, err) : err_set(err, "out of memory: table of weights");
    free(order);
    mem_free(l.stage, l.stage_bytes);
    if (rc)
        return -1;
    if (g->dev.opts.tell)
        g->dev.opts.tell(g->dev.opts.tell_arg, "loading", l.total, l.total);
    g->dev.stats.load_s = time_now() - start;
    return 0;
}
