/* The CPU device: its memory, laid out once at open, and the step. Nothing here allocates after cpu_open. */
#include "device/dev_cpu.h"

#include "device/account.h"
#include "kernel/pack.h"
#include "plan/rope.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory: one region, handed out front to back; counted first, then allocated ---- */

struct carve {
    u8 *base; /* NULL while counting */
    u64 used;
};

static void *take(struct carve *v, u64 n, u64 item_bytes)
{
    void *at = v->base ? v->base + v->used : NULL;
    v->used += round_up_u64(n * item_bytes, 64);
    return at;
}

static void carve_buffer(struct cpu *c, struct carve *v, enum plan_buf b)
{
    const struct plan_buffer *pb = &c->dev.plan->bufs[b];
    struct cpu_buf *buf = &c->bufs[b];
    if (!pb->width)
        return;
    u32 rows = b == BUF_LOGITS ? c->dev.opts.max_logits : c->dev.opts.max_rows;
    u32 n = rows * pb->ranks, blocks = (pb->width + ACT_BLOCK - 1) / ACT_BLOCK;
    bool quantised = pb->quantised || (b == BUF_Q && c->dev.opts.kv == KV_Q8_0);
    buf->ranks = pb->ranks;
    buf->stride = (u32)round_up_u64(pb->width, PANEL);
    buf->y = take(v, n, sizeof *buf->y);
    buf->act = take(v, n, sizeof *buf->act);
    buf->in = take(v, n, sizeof *buf->in);
    float *x = take(v, (u64)n * buf->stride, sizeof *x);
    i8 *q = quantised ? take(v, (u64)n * blocks * ACT_BLOCK, 1) : NULL;
    float *d = quantised ? take(v, (u64)n * blocks, sizeof *d) : NULL;
    i16 *sum = quantised ? take(v, (u64)n * blocks, sizeof *sum) : NULL;
    for (u32 i = 0; v->base && i < n; i++) {
        buf->y[i] = x + (u64)i * buf->stride;
        buf->act[i] = (struct act){.x = buf->y[i]};
        if (q)
            buf->act[i] = (struct act){buf->y[i], q + (u64)i * blocks * ACT_BLOCK, d + (u64)i * blocks,
                                       sum + (u64)i * blocks};
        buf->in[i] = &buf->act[i];
    }
}

static void carve_all(struct cpu *c, struct carve *v)
{
    const struct plan *p = c->dev.plan;
    const struct hparams *hp = &p->hp;
    u32 rows = c->dev.opts.max_rows, pairs = rows * hp->n_used;
    for (u32 b = 0; b < BUF_COUNT; b++)
        carve_buffer(c, v, b);
    c->logit_rows = take(v, c->dev.opts.max_logits, sizeof *c->logit_rows);
    c->att_parts = take(v, (u64)pool_threads(c->pool) * ATTEND_QUERIES * hp->d_head, sizeof *c->att_parts);
    for (u32 i = 0; i < CPU_SETUPS; i++)
        c->setups[i].cuts = take(v, p->n_ops, sizeof *c->setups[i].cuts);
    c->by_name = take(v, p->n_weights, sizeof *c->by_name);
    if (!hp->n_experts)
        return;
    u32 stride = c->bufs[BUF_EXP_ACT].stride;
    c->exp_up = take(v, (u64)pairs * stride, sizeof *c->exp_up);
    c->exp_up_rows = take(v, pairs, sizeof *c->exp_up_rows);
    c->route_ids = take(v, pairs, sizeof *c->route_ids);
    c->route_w = take(v, pairs, sizeof *c->route_w);
    c->pairs = take(v, pairs, sizeof *c->pairs);
    c->groups = take(v, pairs, sizeof *c->groups);
    c->counts = take(v, hp->n_experts + 1, sizeof *c->counts);
    c->pair_in = take(v, pairs, sizeof *c->pair_in);
    c->pair_y = take(v, pairs, sizeof *c->pair_y);
    c->pair_up = take(v, pairs, sizeof *c->pair_up);
    for (u32 i = 0; v->base && i < pairs; i++)
        c->exp_up_rows[i] = c->exp_up + (u64)i * stride;
}

static int open_scratch(struct cpu *c, struct err *err)
{
    struct carve v = {0};
    carve_all(c, &v);
    c->scratch_bytes = v.used;
    c->scratch = mem_alloc(v.used);
    if (!c->scratch)
        return err_set(err, "out of memory: %llu bytes of scratch for %u rows", (unsigned long long)v.used,
                       c->dev.opts.max_rows);
    v = (struct carve){.base = c->scratch};
    carve_all(c, &v);
    return 0;
}

static int open_arena(struct cpu *c, struct err *err)
{
    const struct hparams *hp = &c->dev.plan->hp;
    bool q8 = c->dev.opts.kv == KV_Q8_0;
    if (q8 && hp->d_head % ACT_BLOCK)
        return err_set(err, "--kv q8_0: this model's heads have %u dimensions; expected a multiple of %d: use --kv f16",
                       hp->d_head, ACT_BLOCK);
    c->panel_bytes = q8 ? hp->d_head / ACT_BLOCK * KV_Q8_BLOCK : hp->d_head * KV_PANEL * (u32)sizeof(u16);
    c->head_bytes = (u64)((c->dev.opts.n_ctx + KV_PANEL - 1) / KV_PANEL) * c->panel_bytes;
    c->layer_bytes = c->head_bytes * 2 * hp->n_kv;
    c->slot_bytes = c->layer_bytes * hp->n_layers;
    if (!mul_u64(c->slot_bytes, c->dev.opts.n_slots, &c->arena_bytes))
        return err_set(err, "--slots %u --ctx %u: the keys and values need more bytes than there are",
                       c->dev.opts.n_slots, c->dev.opts.n_ctx);
    c->arena = mem_alloc(c->arena_bytes);
    c->rope_bytes = (u64)c->dev.opts.n_ctx * hp->d_rope * sizeof(float);
    c->rope = mem_alloc(c->rope_bytes);
    if (!c->arena || !c->rope)
        return err_set(err, "out of memory: %llu bytes of keys and values for --slots %u --ctx %u; try less",
                       (unsigned long long)(c->arena_bytes + c->rope_bytes), c->dev.opts.n_slots, c->dev.opts.n_ctx);
    rope_table(c->rope, c->dev.opts.n_ctx, hp, c->dev.plan->rope_factors);
    c->dev.stats.kv_bytes = c->arena_bytes;
    return 0;
}

/* Insertion into sorted order, by halving: once, at open. */
static void sort_names(struct cpu *c)
{
    const struct plan *p = c->dev.plan;
    for (u32 i = 0; i < p->n_weights; i++) {
        u32 lo = 0, hi = i;
        while (lo < hi) {
            u32 mid = lo + (hi - lo) / 2;
            if (cpu_name_order(&p->weights[c->by_name[mid]].tensor->name, &p->weights[i].tensor->name) < 0)
                lo = mid + 1;
            else
                hi = mid;
        }
        memmove(c->by_name + lo + 1, c->by_name + lo, (i - lo) * sizeof *c->by_name);
        c->by_name[lo] = i;
    }
}

static void cpu_close(struct device *d)
{
    struct cpu *c = (struct cpu *)d;
    cpu_unload(c);
    mem_free(c->arena, c->arena_bytes);
    mem_free(c->rope, c->rope_bytes);
    mem_free(c->scratch, c->scratch_bytes);
    pool_close(c->pool);
    free(c);
}

static int cpu_open(struct device **out, const struct plan *p, const struct device_opts *opts, struct err *err)
{
    struct cpu *c = mem_array(1, sizeof *c);
    if (!c)
        return err_set(err, "out of memory");
    c->dev = (struct device){.ops = &device_cpu, .plan = p, .opts = *opts};
    c->k = kernels_choose(opts->isa);
    if (!c->k) {
        char text[32];
        err_set(err, "--isa: this CPU does not run \"%s\", or it is not built in",
                err_quote(text, sizeof text, opts->isa, strlen(opts->isa)));
        goto fail;
    }
    if (pool_open(&c->pool, opts->n_threads, err) || open_arena(c, err) || open_scratch(c, err) || cpu_load(c, err))
        goto fail;
    c->dev.stats.name = device_cpu.name;
    c->dev.stats.isa = c->k->isa;
    c->dev.stats.n_threads = pool_threads(c->pool);
    u64 cut_bytes = CPU_SETUPS * round_up_u64(p->n_ops * sizeof *c->setups[0].cuts, 64); /* they lie in the scratch */
    c->dev.stats.setup_bytes = cut_bytes + c->rope_bytes;
    c->dev.stats.scratch_bytes = c->scratch_bytes - cut_bytes;
    sort_names(c);
    *out = &c->dev;
    return 0;
fail:
    cpu_close(&c->dev);
    return -1;
}

/* ---- the step ---- */

static u64 count_bytes(const struct cpu *c, const struct plan_op *op)
{
    u64 positions = 0;
    for (u32 r = 0; op->kind == OP_ATTEND && r < cpu_op_rows(c, op); r++)
        positions += c->rows[cpu_row(c, op, r)].pos + 1;
    return account_bytes(&c->dev, op, cpu_op_rows(c, op), positions, c->n_groups);
}

static u64 hash_buffer(const struct cpu *c, const struct plan_op *op, u64 h, enum plan_buf b, u32 row)
{
    const struct cpu_buf *buf = &c->bufs[b];
    return account_hash(h, buf->y[row * buf->ranks], buf->ranks, buf->stride, account_width(c->dev.plan, op, b));
}

/* Everything the operation wrote: each product's output, and what joins the residual stream. */
static void trace(struct cpu *c, const struct plan_op *op)
{
    for (u32 r = 0; r < cpu_op_rows(c, op); r++) {
        u64 h = hash_buffer(c, op, 0, op->add ? BUF_X : op->out, r);
        for (u32 m = 0; op->kind == OP_MAT && m < op->n_mats; m++)
            h = hash_buffer(c, op, h, op->mats[m].out, r);
        if (op->kind == OP_ROPE_STORE)
            h = hash_buffer(c, op, h, BUF_K, r);
        c->dev.trace(c->dev.trace_arg, op, cpu_row(c, op, r), h);
    }
}

/* The kept setup of this geometry, or the one to overwrite. */
static struct cpu_setup *choose_setup(struct cpu *c, bool *ready)
{
    struct cpu_setup *oldest = &c->setups[0];
    for (u32 i = 0; i < CPU_SETUPS; i++) {
        struct cpu_setup *s = &c->setups[i];
        if (s->rows == c->n_rows && s->logits == c->n_logits) {
            *ready = true;
            return s;
        }
        if (s->used < oldest->used)
            oldest = s;
    }
    *ready = false;
    return oldest;
}

/* What a plain implementation does each step: every row's views of every buffer made anew. */
static void rebuild_rows(struct cpu *c)
{
    struct carve v = {.base = c->scratch};
    carve_all(c, &v);
}

static int cpu_step(struct device *d, const struct row *rows, u32 n_rows, struct err *err)
{
    (void)err;
    struct cpu *c = (struct cpu *)d;
    const struct plan *p = d->plan;
    double t0 = time_now();
    bool ready;
    if (d->opts.no_setup_cache)
        rebuild_rows(c);
    c->rows = rows;
    c->n_rows = n_rows;
    c->n_logits = 0;
    for (u32 i = 0; i < n_rows; i++)
        if (rows[i].wants_logits)
            c->logit_rows[c->n_logits++] = i;
    struct cpu_setup *setup = choose_setup(c, &ready);
    if (!ready || d->opts.no_setup_cache)
        cpu_prepare(c, setup);
    setup->used = ++d->stats.steps;
    double t1 = time_now(), waited = d->stats.wait_s;
    d->stats.setup_s += t1 - t0;
    for (u32 i = 0; i < p->n_ops; i++) {
        const struct plan_op *op = &p->ops[i];
        cpu_run_op(c, op, &setup->cuts[i]);
        d->stats.bytes_read += count_bytes(c, op);
        if (d->trace)
            trace(c, op);
    }
    d->stats.submissions++;
    d->stats.waits++;
    d->stats.rows += n_rows;
    d->stats.logit_rows += c->n_logits;
    d->stats.submit_s += time_now() - t1 - (d->stats.wait_s - waited); /* all that is not inside a loop */
    return 0;
}

static void cpu_copy(struct device *d, u32 from, u32 to, u32 n)
{
    struct cpu *c = (struct cpu *)d;
    const struct hparams *hp = &d->plan->hp;
    u64 bytes = (u64)((n + KV_PANEL - 1) / KV_PANEL) * c->panel_bytes; /* whole panels: positions past n are the slot's to overwrite */
    for (u32 layer = 0; layer < hp->n_layers; layer++)
        for (u32 h = 0; h < 2 * hp->n_kv; h++)
            memcpy(cpu_k(c, to, layer, h), cpu_k(c, from, layer, h), bytes);
}

static const float *cpu_logits(const struct device *d, u32 i)
{
    return ((const struct cpu *)d)->bufs[BUF_LOGITS].y[i];
}

static void cpu_each(struct device *d, u32 n, void (*fn)(void *arg, u32 i, u32 thread), void *arg)
{
    pool_run(((struct cpu *)d)->pool, n, fn, arg);
}

const struct device_ops device_cpu = {.name = "cpu",
                                      .chunk = 128, /* of 128 experts 8 each: 8 rows an expert; 64 read 15 % fewer tokens a second, 256 as many */
                                      .open = cpu_open,
                                      .close = cpu_close,
                                      .step = cpu_step,
                                      .copy = cpu_copy,
                                      .logits = cpu_logits,
                                      .each = cpu_each};
