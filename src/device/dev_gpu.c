/* A GPU device: its memory, laid out once at open and refused there when it does not fit, and the step. What is prepared for a class of
 * steps is kept: that is the setup cache. Nothing here allocates in a step, but for a class that is new. */
#include "base/sysmem.h"
#include "device/account.h"
#include "device/gpu_host.h"
#include "plan/rope.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CTX_STEP = 256,            /* a context we propose is a multiple of this */
    RESERVE_BYTES = 256 << 20, /* of the chip's memory: programs, and what its driver takes as it goes */
    SLOT_EXTRA = 3             /* rows in excess of one a slot that k_attend has parts for (a prompt's last few) */
};

/* ---- memory: two regions besides the weights; counted first, then placed ---- */

struct carve {
    struct gpu *g;  /* notes where each part begins */
    u64 base, used; /* base 0: counting */
};

static struct gpu_ref take(struct carve *v, u64 n, u64 item_bytes)
{
    struct gpu_ref r = {v->base, v->used};
    assert(v->g->n_regions < GPU_REGIONS);
    v->g->regions[v->g->n_regions++] = v->used;
    v->used += round_up_u64(n * item_bytes, 256);
    return r;
}

static struct gpu_buf take_rows(struct carve *v, u32 width, u32 ranks, u32 rows, bool act)
{
    struct gpu_buf b = {.ranks = ranks, .stride = GPU_STRIDE(width)};
    if (!width)
        return b;
    b.x = take(v, (u64)rows * ranks * b.stride, sizeof(float));
    if (act)
        b.act = take(v, (u64)rows * ranks, GPU_ACT_BYTES(width));
    return b;
}

static u32 round_4(u32 words)
{
    return (words + 3) / 4 * 4;
}

static void carve_lists(struct gpu *g, struct carve *v)
{
    const struct hparams *hp = &g->dev.plan->hp;
    u32 pairs = round_4(g->dev.opts.max_rows * hp->n_used);
    if (!hp->n_experts)
        return;
    g->exp_up = take_rows(v, hp->d_ff_exp, hp->n_used, g->dev.opts.max_rows, false);
    g->ids_at = 0;
    g->w_at = pairs;
    g->pairs_at = 2 * pairs;
    g->tiles_at = 3 * pairs;
    g->lists = take(v, 5 * (u64)pairs + 4, sizeof(u32));
    g->route_parts = take(v, (u64)g->dev.opts.max_rows * (GPU_PAD(hp->d_model) / GPU_SEG), hp->n_experts * sizeof(float));
}

static void carve_scratch(struct gpu *g, struct carve *v)
{
    const struct plan *p = g->dev.plan;
    const struct hparams *hp = &p->hp;
    const struct device_opts *o = &g->dev.opts;
    g->inputs = take(v, gpu_inputs_words(g), sizeof(u32));
    for (u32 b = 0; b < BUF_COUNT; b++)
        g->bufs[b] = take_rows(v, p->bufs[b].width, p->bufs[b].ranks, b == BUF_LOGITS ? o->max_logits : o->max_rows, p->bufs[b].quantised);
    g->kept_x = take_rows(v, p->bufs[BUF_X].width, 1, o->max_logits, false);
    g->kept_q = take_rows(v, p->bufs[BUF_Q].width, 1, o->max_logits, false);
    carve_lists(g, v);
    g->parts = take(v, (u64)g->max_items * hp->n_heads, (hp->d_head + 2) * sizeof(float));
    g->hits_words = hp->n_experts ? (u32)round_up_u64(hp->n_layers, 64) : 0; /* 256 bytes: picks follow at once */
    g->hits = take(v, g->hits_words, sizeof(u32));
    g->picks = take(v, o->max_logits, PICK_WORDS * sizeof(u32));
    g->pick_keys = take(v, o->max_logits, PICK_BLOCKS * sizeof(u32));
}

/* One head's keys, or values, of a slot's layer. Kernels count them in 32 bits. */
static u64 head_bytes(const struct gpu *g, u32 n_ctx)
{
    u32 panels = (n_ctx + GPU_KV_PANEL - 1) / GPU_KV_PANEL;
    return (u64)panels * GPU_KV_PANEL_BYTES(g->dev.plan->hp.d_head, g->dev.opts.kv == KV_Q8_0);
}

void gpu_lay_out(struct gpu *g, u32 n_ctx, u64 base)
{
    const struct hparams *hp = &g->dev.plan->hp;
    g->dev.opts.n_ctx = n_ctx;
    g->head_bytes = (u32)head_bytes(g, n_ctx);
    g->layer_bytes = 2 * (u64)hp->n_kv * g->head_bytes;
    g->slot_bytes = hp->n_layers * g->layer_bytes;
    g->arena_bytes = g->slot_bytes * g->dev.opts.n_slots;
    g->rope_bytes = (u64)n_ctx * hp->d_rope * sizeof(float);
    g->chunks = (n_ctx + GPU_CHUNK - 1) / GPU_CHUNK;
    g->max_items = min_u32(g->dev.opts.max_rows, g->dev.opts.n_slots + SLOT_EXTRA) * g->chunks;
    struct carve v = {.g = g, .base = base};
    g->n_regions = 0;
    carve_scratch(g, &v);
    g->rope = take(&v, g->rope_bytes, 1);
    g->scratch_bytes = v.used;
}

static u64 needed(struct gpu *g, u32 n_ctx)
{
    gpu_lay_out(g, n_ctx, 0);
    return g->weight_bytes + g->arena_bytes + g->scratch_bytes + RESERVE_BYTES;
}

/* In memory, and each part in a buffer. */
static bool fits(struct gpu *g, u32 n_ctx)
{
    u64 most = g->info.max_buffer_bytes ? g->info.max_buffer_bytes : UINT64_MAX;
    return needed(g, n_ctx) <= g->info.free_bytes && g->arena_bytes <= most && g->scratch_bytes <= most && head_bytes(g, n_ctx) <= UINT32_MAX;
}

/* The largest context that fits; 0: none. */
static u32 fitting_ctx(struct gpu *g)
{
    u32 lo = 0, hi = g->dev.plan->hp.n_ctx / CTX_STEP;
    while (lo < hi) {
        u32 mid = lo + (hi - lo + 1) / 2;
        if (fits(g, mid * CTX_STEP))
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo * CTX_STEP;
}

/* There is memory, but no buffer that holds a part. best: the context that fits, 0: none with so many slots. */
static int refuse_buffer(struct gpu *g, u32 wish, u32 best, struct err *err)
{
    u32 slots = g->dev.opts.n_slots;
    double gb = (double)g->info.max_buffer_bytes / 1e9;
    g->dev.opts.n_slots = best ? slots : 1;
    best = best ? best : fitting_ctx(g);
    if (best)
        return err_set(err, "not enough memory on the GPU: --slots %u --ctx %u needs a buffer of more than the largest of %.1f GB: try --slots %u --ctx %u",
                       slots, wish, gb, g->dev.opts.n_slots, best);
    gpu_lay_out(g, CTX_STEP, 0);
    u64 part = g->arena_bytes > g->scratch_bytes ? g->arena_bytes : g->scratch_bytes;
    return err_set(err, "not enough memory on the GPU: a step of this model needs a buffer of %.3f GB; the largest has %.3f", (double)part / 1e9, gb);
}

/* Before anything is loaded. */
static int check_memory(struct gpu *g, struct err *err)
{
    u32 wish = g->dev.opts.n_ctx, slots = g->dev.opts.n_slots;
    u64 need = needed(g, wish);
    double gb = (double)g->info.free_bytes / 1e9;
    char advice[128] = "";
    if (g->info.free_bytes == 0 || fits(g, wish))
        return 0;
    if (need > g->info.free_bytes && g->backend->advise)
        g->backend->advise(need, advice, sizeof advice);
    u32 best = fitting_ctx(g);
    if (need <= g->info.free_bytes)
        return refuse_buffer(g, wish, best, err);
    int digits = sysmem_digits(need, g->info.free_bytes);
    if (best)
        return err_set(err, "not enough memory on the GPU: --slots %u --ctx %u needs %.*f GB, %.*f GB are available: try --slots %u --ctx %u%s",
                       slots, wish, digits, (double)need / 1e9, digits, gb, slots, best, advice);
    g->dev.opts.n_slots = 1;
    best = fitting_ctx(g);
    if (best)
        return err_set(err, "not enough memory on the GPU: --slots %u does not fit in the %.1f GB available: try --slots 1 --ctx %u%s", slots, gb,
                       best, advice);
    need = needed(g, CTX_STEP);
    digits = sysmem_digits(need, g->info.free_bytes);
    return err_set(err, "not enough memory on the GPU: the model takes %.*f GB, %.*f GB are available%s", digits, (double)need / 1e9, digits, gb,
                   advice);
}

/* ---- opening ---- */

static int open_host_side(struct gpu *g, struct err *err)
{
    const struct device_opts *o = &g->dev.opts;
    const struct plan *p = g->dev.plan;
    bool ok = true;
    g->list.cap = p->n_ops * GPU_OP_LAUNCHES;
    ok &= (g->list.at = mem_array(g->list.cap, sizeof *g->list.at)) != NULL;
    ok &= (g->list.op = mem_array(g->list.cap, sizeof *g->list.op)) != NULL;
    ok &= (g->words = mem_array(gpu_inputs_words(g), sizeof *g->words)) != NULL;
    for (u32 t = 0; t < 2; t++) {
        ok &= (g->items[t] = mem_array(g->max_items, sizeof *g->items[t])) != NULL;
        ok &= (g->tiles[t] = mem_array(o->max_rows, sizeof *g->tiles[t])) != NULL;
    }
    ok &= (g->logit_rows = mem_array(o->max_rows, sizeof *g->logit_rows)) != NULL;
    ok &= (g->out = mem_array(g->hits_words + o->max_logits * PICK_WORDS, sizeof *g->out)) != NULL;
    ok &= (g->logits = mem_alloc((u64)o->max_logits * p->hp.n_vocab * sizeof *g->logits)) != NULL;
    ok &= (g->logits_step = mem_array(o->max_logits, sizeof *g->logits_step)) != NULL;
    return ok ? 0 : err_set(err, "out of memory: what a step of %u rows takes on the host", o->max_rows);
}

static int open_rope(struct gpu *g, struct err *err)
{
    const struct plan *p = g->dev.plan;
    float *cs = mem_alloc(g->rope_bytes);
    if (!cs)
        return err_set(err, "out of memory: %llu bytes of the rotation table", (unsigned long long)g->rope_bytes);
    rope_table(cs, g->dev.opts.n_ctx, &p->hp, p->rope_factors);
    int rc = g->backend->upload(g->self, g->rope, cs, g->rope_bytes, err);
    mem_free(cs, g->rope_bytes);
    return rc;
}

/* A step of any size has launches, each in the shared memory that there is: a model is refused here, not in its first step. */
static int check_launches(struct gpu *g, struct err *err)
{
    const struct device_opts *o = &g->dev.opts;
    for (u32 rows = 1;; rows = min_u32(2 * rows, o->max_rows)) {
        struct gpu_class c = {.rows = rows, .logits = min_u32(rows, o->max_logits), .items = {1}, .join = {1}};
        if (gpu_lower(g, &c, err))
            return -1;
        c.tiles[0] = 1;
        if (gpu_lower(g, &c, err))
            return -1;
        if (rows == o->max_rows)
            return 0;
    }
}

static int open_memory(struct gpu *g, struct err *err)
{
    u64 weights[GPU_PIECES], scratch;
    if (gpu_place_weights(g, err) || check_memory(g, err))
        return -1;
    for (u32 i = 0; i < g->n_pieces; i++)
        if (g->backend->alloc(g->self, g->piece_bytes[i], &weights[i], err))
            return -1;
    if (g->backend->alloc(g->self, g->arena_bytes, &g->arena.base, err) || g->backend->alloc(g->self, g->scratch_bytes, &scratch, err))
        return -1;
    gpu_lay_out(g, g->dev.opts.n_ctx, scratch);
    return open_host_side(g, err) || check_launches(g, err) || open_rope(g, err) || gpu_load(g, weights, err) ? -1 : 0;
}

static int check_form(const struct gpu *g, struct err *err)
{
    const struct hparams *hp = &g->dev.plan->hp;
    const struct device_opts *o = &g->dev.opts;
    if (hp->d_head > 256)
        return err_set(err, "--device %s: this model's heads have %u dimensions; expected at most 256", g->dev.ops->name, hp->d_head);
    if (o->kv == KV_Q8_0 && hp->d_head % 32)
        return err_set(err, "--kv q8_0: this model's heads have %u dimensions; expected a multiple of 32: use --kv f16", hp->d_head);
    if (o->max_rows > 0xFFFF) /* an item is row | chunk << 16 */
        return err_set(err, "--device %s: a step has at most 65535 rows; %u were asked for", g->dev.ops->name, o->max_rows);
    if (head_bytes(g, o->n_ctx) > UINT32_MAX)
        return err_set(err, "--device %s: --ctx %u: one head's keys take %.1f GB; expected at most 4.2", g->dev.ops->name, o->n_ctx,
                       (double)head_bytes(g, o->n_ctx) / 1e9);
    return 0;
}

static void gpu_close(struct device *d)
{
    struct gpu *g = (struct gpu *)d;
    for (u32 i = 0; g->self && i < GPU_SETUPS; i++)
        g->backend->discard(g->self, g->setups[i].program);
    if (g->self)
        g->backend->close(g->self);
    pool_close(g->pool);
    free(g->weights);
    free(g->list.at);
    free(g->list.op);
    free(g->words);
    for (u32 t = 0; t < 2; t++) {
        free(g->items[t]);
        free(g->tiles[t]);
    }
    free(g->logit_rows);
    free(g->out);
    mem_free(g->logits, (u64)g->dev.opts.max_logits * d->plan->hp.n_vocab * sizeof *g->logits);
    free(g->logits_step);
    mem_free(g->traced, g->traced_bytes);
    free(g);
}

static void describe(struct gpu *g)
{
    struct device_stats *s = &g->dev.stats;
    s->name = g->dev.ops->name;
    s->isa = g->info.name;
    s->n_threads = g->backend == &gpu_backend_emu ? pool_threads(g->pool) : 0;
    s->peak_gb_s = g->info.peak_gb_s;
    s->weight_bytes = g->weight_bytes;
    s->kv_bytes = g->arena_bytes;
    s->setup_bytes = g->rope_bytes;
    s->scratch_bytes = g->scratch_bytes - g->rope_bytes;
}

/* Not the promised bits: it works all the same, and says so. */
static int test_words(struct gpu *g, struct err *err)
{
    char bad[128], text[320];
    if (gpu_selftest(g->backend, g->self, bad, sizeof bad, err))
        return -1;
    snprintf(text, sizeof text, "--device %s: results on this %.64s are not the promised bits: %s", g->dev.ops->name, g->info.name, bad);
    if (bad[0])
        device_warn(&g->dev, text);
    return 0;
}

int gpu_device_open(struct device **out, const struct device_ops *ops, const struct gpu_backend *backend, const struct plan *p,
                    const struct device_opts *opts, struct err *err)
{
    struct gpu *g = mem_array(1, sizeof *g);
    if (!g)
        return err_set(err, "out of memory");
    g->dev = (struct device){.ops = ops, .plan = p, .opts = *opts};
    g->backend = backend;
    if (check_form(g, err) || pool_open(&g->pool, opts->n_threads, err) || backend->open(&g->self, 0, opts, &g->info, err) ||
        test_words(g, err) || open_memory(g, err)) {
        gpu_close(&g->dev);
        return -1;
    }
    describe(g);
    *out = &g->dev;
    return 0;
}

/* ---- the step ---- */

/* The chip or its driver gave up: so will every later step. */
static int broken(struct gpu *g, const struct err *err)
{
    device_break(&g->dev, err->text);
    return -1;
}

static int prepare(struct gpu *g, bool one_by_one, void **program, struct err *err)
{
    g->dev.stats.setups++;
    return gpu_lower(g, &g->class, err) ? -1 : g->backend->prepare(g->self, g->list.at, g->list.n, one_by_one, program, err);
}

/* The kept setup of the step's class, or a new one in place of the one used longest ago. NULL with err. */
static struct gpu_setup *setup(struct gpu *g, struct err *err)
{
    struct gpu_setup *oldest = &g->setups[0];
    for (u32 i = 0; i < GPU_SETUPS; i++) {
        struct gpu_setup *s = &g->setups[i];
        if (s->program && !memcmp(&s->key, &g->class, sizeof s->key) && !g->dev.opts.no_setup_cache)
            return s;
        if (s->used < oldest->used)
            oldest = s;
    }
    g->backend->discard(g->self, oldest->program);
    oldest->program = NULL;
    oldest->key = g->class;
    return prepare(g, g->dev.opts.no_setup_cache, &oldest->program, err) ? NULL : oldest;
}

/* Experts' matrices that an operation ran, each once for all its rows. */
static u32 experts_hit(const struct gpu *g, const struct plan_op *op, u32 rows)
{
    return g->dev.opts.experts_per_row ? rows * g->dev.plan->hp.n_used : rows ? g->out[op->layer] : 0;
}

static void count(struct gpu *g)
{
    struct device_stats *s = &g->dev.stats;
    const struct plan *p = g->dev.plan;
    u64 positions[2] = {0};
    for (u32 i = 0; i < g->n_rows; i++)
        positions[0] += g->rows[i].pos + 1;
    for (u32 i = 0; i < g->n_logits; i++)
        positions[1] += g->rows[g->logit_rows[i]].pos + 1;
    for (u32 i = 0; i < p->n_ops; i++) {
        const struct plan_op *op = &p->ops[i];
        u32 rows = op->last ? g->n_logits : g->n_rows, hit = 0;
        if (op->kind == OP_EXPERTS_IN || op->kind == OP_EXPERTS_OUT)
            hit = experts_hit(g, op, rows);
        s->expert_groups += hit;
        s->bytes_read += account_bytes(&g->dev, op, rows, positions[op->last], hit);
    }
    s->submissions++;
    s->waits++;
    s->rows += g->n_rows;
    s->logit_rows += g->n_logits;
}

static int gpu_step(struct device *d, const struct row *rows, u32 n_rows, struct err *err)
{
    struct gpu *g = (struct gpu *)d;
    struct device_stats *s = &d->stats;
    struct err own; /* callers may pass none */
    err = err ? err : &own;
    double t0 = time_now();
    g->rows = rows;
    g->n_rows = n_rows;
    g->n_logits = 0;
    for (u32 i = 0; i < n_rows; i++)
        if (rows[i].wants_logits)
            g->logit_rows[g->n_logits++] = i;
    s->steps++;
    gpu_fill_inputs(g);
    if (d->trace)
        return gpu_trace_step(g, err) ? broken(g, err) : 0;
    struct gpu_setup *set = setup(g, err);
    if (!set)
        return broken(g, err);
    set->used = s->steps;
    double t1 = time_now();
    if (g->backend->submit(g->self, set->program, g->inputs, g->words, g->n_words * sizeof *g->words, g->out, g->hits, gpu_out_bytes(g), err))
        return broken(g, err);
    double t2 = time_now();
    if (g->backend->wait(g->self, err))
        return broken(g, err);
    count(g);
    s->setup_s += t1 - t0;
    s->submit_s += t2 - t1;
    s->wait_s += time_now() - t2;
    return 0;
}

/* Whole panels: positions past n are the slot's to overwrite. */
static void gpu_copy(struct device *d, u32 from, u32 to, u32 n)
{
    struct gpu *g = (struct gpu *)d;
    const struct hparams *hp = &d->plan->hp;
    struct err err;
    u64 bytes = g->head_bytes / ((d->opts.n_ctx + GPU_KV_PANEL - 1) / GPU_KV_PANEL) * (u64)((n + GPU_KV_PANEL - 1) / GPU_KV_PANEL);
    for (u32 i = 0; i < hp->n_layers * 2 * hp->n_kv; i++) {
        u64 at = (u64)i * g->head_bytes;
        if (g->backend->copy(g->self, gpu_at(g->arena, to * g->slot_bytes + at), gpu_at(g->arena, from * g->slot_bytes + at), bytes, &err)) {
            broken(g, &err);
            return;
        }
    }
}

/* On demand: most rows' picks are enough. */
static const float *gpu_logits(const struct device *d, u32 i)
{
    struct gpu *g = (struct gpu *)(uintptr_t)d;
    u32 n = d->plan->hp.n_vocab;
    float *row = g->logits + (u64)i * n;
    struct err err;
    if (g->logits_step[i] == d->stats.steps)
        return row;
    struct gpu_ref from = gpu_at(g->bufs[BUF_LOGITS].x, (u64)i * g->bufs[BUF_LOGITS].stride * sizeof *row);
    if (g->backend->download(g->self, row, from, n * sizeof *row, &err)) {
        broken(g, &err);
        return NULL;
    }
    g->logits_step[i] = d->stats.steps;
    return row;
}

static const u32 *gpu_picks(const struct device *d, u32 i)
{
    return ((const struct gpu *)d)->out + ((const struct gpu *)d)->hits_words + (u64)i * PICK_WORDS;
}

/* ---- the devices ---- */

static int emu_open(struct device **out, const struct plan *p, const struct device_opts *opts, struct err *err)
{
    return gpu_device_open(out, &device_emu, &gpu_backend_emu, p, opts, err);
}

static int cuda_open(struct device **out, const struct plan *p, const struct device_opts *opts, struct err *err)
{
    const struct gpu_backend *b = gpu_backend_cuda(err);
    return b ? gpu_device_open(out, &device_cuda, b, p, opts, err) : -1;
}

static int cuda_memory(u64 *free_bytes, struct err *err)
{
    const struct gpu_backend *b = gpu_backend_cuda(err);
    return b ? b->memory(0, free_bytes, err) : -1;
}

const struct device_ops device_emu = {.name = "emu",
                                      .chunk = 32,
                                      .open = emu_open,
                                      .close = gpu_close,
                                      .step = gpu_step,
                                      .copy = gpu_copy,
                                      .logits = gpu_logits,
                                      .picks = gpu_picks};

const struct device_ops device_cuda = {.name = "cuda",
                                       .chunk = 1024, /* 7 % more prompt tokens a second than 512; 2048: 10 %, but whoever comes waits twice as long */
                                       .memory = cuda_memory,
                                       .open = cuda_open,
                                       .close = gpu_close,
                                       .step = gpu_step,
                                       .copy = gpu_copy,
                                       .logits = gpu_logits,
                                       .picks = gpu_picks};

#if PS_METAL
static int metal_open(struct device **out, const struct plan *p, const struct device_opts *opts, struct err *err)
{
    return gpu_device_open(out, &device_metal, &gpu_backend_metal, p, opts, err);
}

static int metal_free(u64 *free_bytes, struct err *err)
{
    return gpu_backend_metal.memory(0, free_bytes, err);
}

static void metal_advise(u64 need, char *text, size_t n)
{
    gpu_backend_metal.advise(need, text, n);
}

const struct device_ops device_metal = {.name = "metal",
                                        .chunk = 512,
                                        .memory = metal_free,
                                        .advise = metal_advise,
                                        .open = metal_open,
                                        .close = gpu_close,
                                        .step = gpu_step,
                                        .copy = gpu_copy,
                                        .logits = gpu_logits,
                                        .picks = gpu_picks};
#endif
