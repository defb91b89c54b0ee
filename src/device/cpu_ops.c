/* The operations of a plan on the CPU: how each one's work is cut into tasks, and which kernels do it. Which thread runs
 * a task, and how many tasks there are, never shows in a result: tasks share no sums. */
#include "device/dev_cpu.h"

#include "base/exact.h"

#include <math.h>
#include <string.h>

enum {
    TASK_BYTES = 144 << 10, /* weights in a task: long against a claim (some 100 ns) and the wait for its first lines, short
                             * against a lost time slice */
    WIDE = 4                /* panels that a kernel reads side by side (mat_body.h) */
};

void cpu_quantise_part(const struct cpu *c, enum plan_buf b, u32 row, u32 c0, u32 c1)
{
    const struct act *a = &c->bufs[b].act[row];
    if (!a->q || c1 <= c0)
        return;
    c->k->quantise(a->x + c0, c1 - c0, (i8 *)a->q + c0, (float *)a->d + c0 / ACT_BLOCK, (i16 *)a->sum + c0 / ACT_BLOCK);
}

/* ---- where work is cut ---- */

static u32 ceil_div(u32 a, u32 b)
{
    return (a + b - 1) / b;
}

/* Panels in a task: TASK_BYTES of weights, but enough tasks that no thread waits long for the last one; a multiple of WIDE, or
 * two where the threads are many for the panels: even, so that a task's columns are whole activation blocks. */
static u32 chunk_panels(const struct cpu *c, u32 n_panels, u64 panel_bytes)
{
    u32 by_bytes = (u32)(TASK_BYTES / (panel_bytes ? panel_bytes : 1));
    u32 by_share = n_panels / (pool_threads(c->pool) * 4);
    u32 chunk = min_u32(by_bytes, by_share) / WIDE * WIDE;
    if (chunk)
        return chunk;
    return n_panels / pool_threads(c->pool) >= 2 * WIDE ? WIDE : 2;
}

static void cut_product(const struct cpu *c, const struct plan_op *op, struct cpu_cut *cut)
{
    u32 rows = cpu_op_rows(c, op), tasks = 0, panels = 0;
    u64 bytes = 0;
    for (u32 m = 0; m < op->n_mats; m++) {
        panels += cut->w[m]->n_panels;
        bytes += cut->w[m]->mat_bytes;
    }
    cut->chunk = chunk_panels(c, panels, bytes / panels);
    for (u32 m = 0; m < op->n_mats; m++) {
        cut->first[m] = tasks;
        tasks += ceil_div(cut->w[m]->n_panels, cut->chunk);
    }
    cut->first[op->n_mats] = tasks;
    cut->n_tasks = rows ? tasks : 0;
}

/* A weight by its tensor's name, as the file spells it. */
static const struct cpu_weight *find(const struct cpu *c, i32 index)
{
    if (index == PLAN_NONE)
        return NULL;
    const struct plan *p = c->dev.plan;
    const struct gguf_str *want = &p->weights[index].tensor->name;
    u32 lo = 0, hi = p->n_weights;
    while (hi - lo > 1) {
        u32 mid = lo + (hi - lo) / 2;
        if (cpu_name_order(&p->weights[c->by_name[mid]].tensor->name, want) <= 0)
            lo = mid;
        else
            hi = mid;
    }
    return &c->weights[c->by_name[lo]];
}

static void cut_op(const struct cpu *c, const struct plan_op *op, struct cpu_cut *cut)
{
    const struct hparams *hp = &c->dev.plan->hp;
    *cut = (struct cpu_cut){.norm = {find(c, op->norm), find(c, op->norm2)}};
    for (u32 m = 0; m < op->n_mats; m++) {
        cut->w[m] = find(c, op->mats[m].weight);
        cut->bias[m] = find(c, op->mats[m].bias);
    }
    switch (op->kind) {
    case OP_MAT:
        cut_product(c, op, cut);
        break;
    case OP_ATTEND:
        cut->n_tasks = ceil_div(cpu_op_rows(c, op), cpu_attend_rows(hp)) * hp->n_kv;
        break;
    case OP_EXPERTS_IN:
    case OP_EXPERTS_OUT: {
        const struct cpu_weight *w = cut->w[0];
        cut->chunk = chunk_panels(c, w->n_panels * hp->n_used, w->mat_bytes / w->n_panels);
        if (cut->chunk > w->n_panels)
            cut->chunk = (w->n_panels + 1) / 2 * 2;
        cut->first[1] = ceil_div(w->n_panels, cut->chunk); /* tasks of one group */
        break;
    }
    case OP_KEEP:
        cut->n_tasks = c->n_logits > 0;
        break;
    default:
        cut->n_tasks = cpu_op_rows(c, op);
        break;
    }
}

void cpu_prepare(struct cpu *c, struct cpu_setup *s)
{
    for (u32 i = 0; i < c->dev.plan->n_ops; i++)
        cut_op(c, &c->dev.plan->ops[i], &s->cuts[i]);
    s->rows = c->n_rows;
    s->logits = c->n_logits;
    c->dev.stats.setups++;
}

/* ---- tasks ---- */

static void embed_task(void *arg, u32 row, u32 thread)
{
    (void)thread;
    struct cpu *c = arg;
    const struct plan_weight *w = &c->dev.plan->weights[c->op->mats[0].weight];
    unpack_row(w->tensor->type, c->cut->w[0]->panels, w->n_in, c->rows[row].token,
               c->bufs[BUF_X].y[row]);
}

static void norm_task(void *arg, u32 row, u32 thread)
{
    (void)thread;
    struct cpu *c = arg;
    const struct hparams *hp = &c->dev.plan->hp;
    c->k->rmsnorm(c->bufs[BUF_H].y[row], c->bufs[BUF_X].y[row], c->cut->norm[0]->floats, hp->d_model, hp->eps);
    cpu_quantise_part(c, BUF_H, row, 0, hp->d_model);
}

static void mat_task(void *arg, u32 task, u32 thread)
{
    (void)thread;
    struct cpu *c = arg;
    const struct plan_op *op = c->op;
    u32 m = 0, rows = cpu_op_rows(c, op);
    while (task >= c->cut->first[m + 1])
        m++;
    const struct plan_mat *pm = &op->mats[m];
    const struct plan_weight *pw = &c->dev.plan->weights[pm->weight];
    const struct cpu_weight *w = c->cut->w[m];
    u32 p0 = (task - c->cut->first[m]) * c->cut->chunk, p1 = min_u32(p0 + c->cut->chunk, w->n_panels);
    u32 c0 = p0 * PANEL, n = min_u32(p1 * PANEL, pw->n_out) - c0;
    float **y = c->bufs[pm->out].y;
    c->k->mat[pw->tensor->type](y, c->bufs[op->in].in, rows, w->panels, pw->n_in, p0, p1);
    if (c->cut->bias[m])
        for (u32 r = 0; r < rows; r++)
            c->k->add(y[r] + c0, c->cut->bias[m]->floats + c0, n);
    if (op->add)
        for (u32 r = 0; r < rows; r++)
            c->k->add(c->bufs[BUF_X].y[r] + c0, y[r] + c0, n);
}

/* One task: row i comes from row i or a later one, so in order nothing is overwritten before it was moved. */
static void keep_task(void *arg, u32 task, u32 thread)
{
    (void)task;
    (void)thread;
    struct cpu *c = arg;
    const struct plan *p = c->dev.plan;
    for (u32 i = 0; i < c->n_logits; i++) {
        u32 from = c->logit_rows[i];
        if (from == i)
            continue;
        memcpy(c->bufs[BUF_X].y[i], c->bufs[BUF_X].y[from], p->bufs[BUF_X].width * sizeof(float));
        memcpy(c->bufs[BUF_Q].y[i], c->bufs[BUF_Q].y[from], p->bufs[BUF_Q].width * sizeof(float));
        if (c->dev.opts.kv == KV_Q8_0)
            cpu_quantise_part(c, BUF_Q, i, 0, p->bufs[BUF_Q].width);
    }
}

/* Where heads do not end on activation blocks the whole row is quantised after all its heads. */
static void attend_quantise_task(void *arg, u32 row, u32 thread)
{
    (void)thread;
    const struct cpu *c = arg;
    cpu_quantise_part(c, BUF_ATT, row, 0, c->dev.plan->bufs[BUF_ATT].width);
}

/* The width in use: a dense layer's or the shared expert's, whichever this operation's matrices have. */
static void swiglu_task(void *arg, u32 row, u32 thread)
{
    (void)thread;
    struct cpu *c = arg;
    const struct plan_op *before = c->op - 1; /* the product that wrote gate and up */
    u32 n = c->dev.plan->weights[before->mats[0].weight].n_out;
    float *g = c->bufs[BUF_GATE].y[row];
    c->k->swiglu(g, g, c->bufs[BUF_UP].y[row], n);
    if (n % ACT_BLOCK == 0)
        cpu_quantise_part(c, BUF_GATE, row, 0, n);
}

static void route_task(void *arg, u32 row, u32 thread)
{
    (void)thread;
    struct cpu *c = arg;
    const struct hparams *hp = &c->dev.plan->hp;
    route_topk(c->bufs[BUF_ROUTER].y[row], hp->n_experts, hp->n_used, hp->used_norm, hp->used_scale,
               c->route_ids + (u64)row * hp->n_used, c->route_w + (u64)row * hp->n_used);
}

static void experts_in_task(void *arg, u32 task, u32 thread)
{
    (void)thread;
    struct cpu *c = arg;
    const struct cpu_group *g = &c->groups[task / c->cut->first[1]];
    const struct plan_weight *pw = &c->dev.plan->weights[c->op->mats[0].weight];
    const struct cpu_weight *gate = c->cut->w[0], *up = c->cut->w[1];
    u32 p0 = task % c->cut->first[1] * c->cut->chunk, p1 = min_u32(p0 + c->cut->chunk, gate->n_panels);
    u32 c0 = p0 * PANEL, c1 = min_u32(p1 * PANEL, pw->n_out), n = g->end - g->begin;
    c->k->mat[pw->tensor->type](c->pair_y + g->begin, c->pair_in + g->begin, n, gate->panels + g->expert * gate->mat_bytes,
                                pw->n_in, p0, p1);
    c->k->mat[c->dev.plan->weights[c->op->mats[1].weight].tensor->type](
        c->pair_up + g->begin, c->pair_in + g->begin, n, up->panels + g->expert * up->mat_bytes, pw->n_in, p0, p1);
    for (u32 i = g->begin; i < g->end; i++) {
        float *y = c->pair_y[i] + c0;
        c->k->swiglu(y, y, c->pair_up[i] + c0, c1 - c0);
        cpu_quantise_part(c, BUF_EXP_ACT, c->pairs[i], c0, c1);
    }
}

static void experts_out_task(void *arg, u32 task, u32 thread)
{
    (void)thread;
    struct cpu *c = arg;
    const struct cpu_group *g = &c->groups[task / c->cut->first[1]];
    const struct plan_weight *pw = &c->dev.plan->weights[c->op->mats[0].weight];
    const struct cpu_weight *w = c->cut->w[0];
    u32 p0 = task % c->cut->first[1] * c->cut->chunk, p1 = min_u32(p0 + c->cut->chunk, w->n_panels);
    c->k->mat[pw->tensor->type](c->pair_y + g->begin, c->pair_in + g->begin, g->end - g->begin,
                                w->panels + g->expert * w->mat_bytes, pw->n_in, p0, p1);
}

/* The row's experts in rank order, the shared expert last, then the residual stream (rule 8). */
static void combine_task(void *arg, u32 row, u32 thread)
{
    (void)thread;
    struct cpu *c = arg;
    const struct hparams *hp = &c->dev.plan->hp;
    const float *y[MAX_USED + 1];
    float w[MAX_USED + 1];
    u32 n = 0;
    for (u32 i = row * hp->n_used; i < (row + 1) * hp->n_used; i++) {
        y[n] = c->bufs[BUF_EXP_OUT].y[i];
        w[n++] = c->route_w[i];
    }
    if (c->op->shared) {
        float g = c->bufs[BUF_SHARED_W].y[row][0], e = ex_exp(-fabsf(g));
        y[n] = c->bufs[BUF_SHARED].y[row];
        w[n++] = ex_flush((g >= 0.0f ? 1.0f : e) / (1.0f + e));
    }
    c->k->combine(c->bufs[BUF_X].y[row], y, w, n, hp->d_model);
}

/* ---- grouping ---- */

/* Pairs (row, rank) sorted by expert, stable; a group for each expert that any row chose. */
static void group_experts(struct cpu *c, const struct plan_op *op)
{
    const struct hparams *hp = &c->dev.plan->hp;
    u32 n = cpu_op_rows(c, op) * hp->n_used;
    c->n_groups = 0;
    if (c->dev.opts.experts_per_row) {
        for (u32 i = 0; i < n; i++) {
            c->pairs[i] = i;
            c->groups[c->n_groups++] = (struct cpu_group){c->route_ids[i], i, i + 1};
        }
        return;
    }
    memset(c->counts, 0, (hp->n_experts + 1) * sizeof *c->counts);
    for (u32 i = 0; i < n; i++)
        c->counts[c->route_ids[i] + 1]++;
    for (u32 e = 0; e < hp->n_experts; e++) {
        u32 begin = c->counts[e], end = begin + c->counts[e + 1];
        if (end > begin)
            c->groups[c->n_groups++] = (struct cpu_group){e, begin, end};
        c->counts[e + 1] = end;
    }
    for (u32 i = 0; i < n; i++)
        c->pairs[c->counts[c->route_ids[i]]++] = i;
}

/* The pairs' inputs and outputs for one expert operation. */
static void point_pairs(struct cpu *c, const struct plan_op *op)
{
    const struct hparams *hp = &c->dev.plan->hp;
    bool in = op->kind == OP_EXPERTS_IN;
    for (u32 i = 0; i < cpu_op_rows(c, op) * hp->n_used; i++) {
        u32 pair = c->pairs[i];
        c->pair_in[i] = in ? c->bufs[BUF_H].in[pair / hp->n_used] : c->bufs[BUF_EXP_ACT].in[pair];
        c->pair_y[i] = c->bufs[op->out].y[pair];
        if (in)
            c->pair_up[i] = c->exp_up_rows[pair];
    }
}

/* ---- an operation ---- */

void cpu_run_op(struct cpu *c, const struct plan_op *op, const struct cpu_cut *cut)
{
    static pool_fn *const TASKS[OP_KINDS] = {
        [OP_EMBED] = embed_task,           [OP_NORM] = norm_task,     [OP_MAT] = mat_task,
        [OP_ROPE_STORE] = cpu_rope_store_task, [OP_KEEP] = keep_task, [OP_ATTEND] = cpu_attend_task, [OP_SWIGLU] = swiglu_task,
        [OP_ROUTE] = route_task,           [OP_EXPERTS_IN] = experts_in_task,
        [OP_EXPERTS_OUT] = experts_out_task, [OP_COMBINE] = combine_task,
    };
    u32 tasks = cut->n_tasks;
    c->op = op;
    c->cut = cut;
    if (op->kind == OP_EXPERTS_IN)
        group_experts(c, op);
    if (op->kind == OP_EXPERTS_IN || op->kind == OP_EXPERTS_OUT) {
        point_pairs(c, op);
        tasks = c->n_groups * cut->first[1];
        c->dev.stats.expert_groups += c->n_groups;
    }
    double t0 = time_now();
    pool_run(c->pool, tasks, TASKS[op->kind], c);
    u32 share = c->dev.plan->hp.n_heads / c->dev.plan->hp.n_kv * c->dev.plan->hp.d_head;
    if (op->kind == OP_ATTEND && share % ACT_BLOCK)
        pool_run(c->pool, cpu_op_rows(c, op), attend_quantise_task, c);
    c->dev.stats.wait_s += time_now() - t0;
}
