/* What the tests of products on the GPU share: one launch on the emulator against the scalar reference on the CPU, over types, shapes, rows, group
 * counts and orders by chance. Every buffer of a launch lies before an unmapped page and is compared as a whole: inputs, rows that are not
 * the step's and columns past n_out keep what they held. Included by one program each, which defines one_of_each for the barriers' test. */
#ifndef PS_GPU_SCENE_H
#define PS_GPU_SCENE_H

#include "file_blocks.h"

#include "device/dev_gpu.h"
#include "gpu/emu.h"
#include "gpu/layout.h"
#include "kernel/pack.h"

#include <signal.h>
#include <sys/wait.h>

#define POISON 0x7FA5A5A5u /* a signalling NaN: what was not written is not there to be read */

enum { SPARE = 2 /* rows behind the step's */ };

static const u32 TYPES[] = {GT_Q4_0, GT_Q4_1, GT_Q5_0, GT_Q5_1, GT_Q8_0, GT_Q4_K,
                            GT_Q5_K, GT_Q6_K, GT_F32,  GT_F16,  GT_BF16};
enum { N_32 = 5, N_QUANT = 8 }; /* of TYPES: blocks of 32; with integers */

static const u32 N_IN[] = {256, 512, 768, 2048, 32, 64, 288, 2880}; /* whole tiles first: K types have no others */
enum { N_WHOLE = 4 };
static const u32 N_OUT[] = {1, 15, 16, 17, 40, 96, 128};
static const u32 ROWS[] = {1, 2, 3, 7, 8, 9, 16, 31, 33, 64, 70};
static const u32 GROUPS[] = {1, 2, 3, 5};

static struct emu *emu;
static u32 no_barrier[2]; /* file and line of one that is left out; then the first difference ends the program */

/* ---- one launch ---- */

struct scene {
    struct guarded mem[GPU_BUFS];
    u32 *at[GPU_BUFS], *want[GPU_BUFS];
    u64 words[GPU_BUFS];
    u32 stride[GPU_BUFS];  /* words in a row, to say where */
    bool floats[GPU_BUFS]; /* any NaN is as good as another */
    u32 n_groups;
    union gpu_args args;
    u32 rows;
    char what[256];
};

static void *buffer(struct scene *s, u32 slot, u64 rows, u64 row_bytes)
{
    u64 words = (rows * row_bytes + 15) / 16 * 4;
    s->at[slot] = guard(&s->mem[slot], words * 4, true);
    s->words[slot] = words;
    s->stride[slot] = (u32)(row_bytes / 4);
    for (u64 i = 0; i < words; i++)
        s->at[slot][i] = POISON;
    return s->at[slot];
}

static float *float_rows(struct scene *s, u32 slot, u64 rows, u32 stride)
{
    s->floats[slot] = true;
    return buffer(s, slot, rows, stride * sizeof(float));
}

/* Act rows of n elements: the padding is zero from the start, as device memory is, and stays so. */
static void *act_rows(struct scene *s, u32 slot, u64 rows, u32 n)
{
    u8 *p = buffer(s, slot, rows, GPU_ACT_BYTES(n));
    u32 pad = GPU_PAD(n);
    for (u64 r = 0; r < rows; r++, p += GPU_ACT_BYTES(n))
        for (u32 b = n / 32; b < pad / 32; b++) {
            for (u32 w = 0; w < 8; w++)
                memset(p + b / 2 * 64 + w % 4 * 16 + b % 2 * 8 + w / 4 * 4, 0, 4);
            memset(p + pad + 4 * b, 0, 4);
            memset(p + pad + pad / 8 + 4 * b, 0, 4);
        }
    return s->at[slot];
}

static void put_act(void *row, const struct act *a, u32 n)
{
    u32 pad = GPU_PAD(n);
    u8 *p = row;
    for (u32 b = 0; b < n / 32; b++) {
        i32 sum = a->sum[b];
        for (u32 w = 0; w < 8; w++)
            memcpy(p + b / 2 * 64 + w % 4 * 16 + b % 2 * 8 + w / 4 * 4, a->q + 32 * b + 4 * w, 4);
        memcpy(p + pad + 4 * b, a->d + b, 4);
        memcpy(p + pad + pad / 8 + 4 * b, &sum, 4);
    }
}

static void inputs(struct scene *s, u32 rows, u32 *which)
{
    u32 *in = buffer(s, 0, 1, IN_HEADER * 4);
    *which = check_below(2);
    in[IN_ROWS] = in[IN_ROWS + 1] = 0;
    in[IN_ROWS + *which] = rows;
    s->rows = rows;
}

/* What the launch shall leave begins as what is there. */
static void snapshot(struct scene *s)
{
    for (u32 i = 0; i < GPU_BUFS; i++)
        if (s->at[i]) {
            s->want[i] = malloc(s->words[i] * 4 + 1);
            assert_non_null(s->want[i]);
            memcpy(s->want[i], s->at[i], s->words[i] * 4);
        }
}

static bool same(const struct scene *s, u32 slot, u64 i)
{
    u32 a = s->at[slot][i], w = s->want[slot][i];
    return a == w || (s->floats[slot] && w != POISON && isnan(EX_FLOAT(a)) && isnan(EX_FLOAT(w)));
}

static void differs(const struct scene *s, u32 slot, u64 i, u64 seed)
{
    u32 is = s->at[slot][i], want = s->want[slot][i];
    if (no_barrier[0])
        _exit(1);
    fail_msg("%s, %u rows, %u groups, seed %llu: buffer %u row %llu word %llu is %08x (%g), expected %08x (%g)",
             s->what, s->rows, s->n_groups, (unsigned long long)seed, slot, (unsigned long long)(i / s->stride[slot]),
             (unsigned long long)(i % s->stride[slot]), is, (double)EX_FLOAT(is), want, (double)EX_FLOAT(want));
}

static void launch(struct scene *s, enum gpu_kernel kernel)
{
    struct bufs b;
    struct err err = {0};
    u64 seed = check_u32();
    for (u32 i = 0; i < GPU_BUFS; i++)
        b.p[i] = s->at[i];
    s->n_groups = GROUPS[check_below(COUNT(GROUPS))];
    emu_set(emu, &(struct emu_opts){
                     .n_threads = 1, .seed = seed, .poison = true, .no_file = no_barrier[0], .no_line = no_barrier[1]});
    if (emu_launch(emu, kernel, &s->args, &b, s->n_groups, gpu_shm_bytes(kernel, &s->args), &err)) {
        if (no_barrier[0])
            _exit(1);
        fail_msg("%s, %u groups, seed %llu: %s", s->what, s->n_groups, (unsigned long long)seed, err.text);
    }
    for (u32 slot = 0; slot < GPU_BUFS; slot++)
        for (u64 i = 0; i < s->words[slot]; i++)
            if (!same(s, slot, i))
                differs(s, slot, i, seed);
    for (u32 i = 0; i < GPU_BUFS; i++)
        if (s->at[i]) {
            unguard(&s->mem[i]);
            free(s->want[i]);
        }
}

/* ---- rows of activations ---- */

struct rows {
    u32 n, n_in;
    float *x; /* (n, n_in) */
    i8 *q;
    float *d;
    i16 *sum;
    struct act *act;
};

static void *some(u64 n, u64 size)
{
    void *p = calloc(n ? n : 1, size);
    assert_non_null(p);
    return p;
}

static void make_rows(struct rows *r, u32 n, u32 n_in)
{
    *r = (struct rows){.n = n,
                       .n_in = n_in,
                       .x = some((u64)n * n_in, sizeof(float)),
                       .q = some((u64)n * n_in, 1),
                       .d = some((u64)n * n_in / 32 + 1, sizeof(float)),
                       .sum = some((u64)n * n_in / 32 + 1, sizeof(i16)),
                       .act = some(n, sizeof(struct act))};
    for (u32 i = 0; i < n; i++) {
        u32 kind = check_below(40);
        float *x = r->x + (u64)i * n_in;
        for (u32 k = 0; k < n_in; k++)
            x[k] = kind == 0 ? 0.0f : kind < 16 ? check_float() : check_plain();
        if (kind == 1)
            x[check_below(n_in)] = NAN;
        u32 b = n_in / 32;
        r->act[i] = (struct act){x, r->q + (u64)i * n_in, r->d + (u64)i * b, r->sum + (u64)i * b};
    }
}

static void quantise_rows(struct rows *r)
{
    for (u32 i = 0; i < r->n; i++)
        kernels_scalar.quantise(r->act[i].x, r->n_in, (i8 *)r->act[i].q, (float *)r->act[i].d, (i16 *)r->act[i].sum);
}

static void free_rows(struct rows *r)
{
    free(r->x);
    free(r->q);
    free(r->d);
    free(r->sum);
    free(r->act);
}

/* Rows as a kernel reads them: floats, or act rows by rule 1. */
static void rows_to(struct scene *s, u32 slot, const struct rows *r, u32 stride)
{
    float *x = float_rows(s, slot, r->n + SPARE, stride);
    for (u32 i = 0; i < r->n; i++)
        memcpy(x + (u64)i * stride, r->act[i].x, r->n_in * sizeof *x);
}

static void acts_to(struct scene *s, u32 slot, const struct rows *r)
{
    u8 *p = act_rows(s, slot, r->n + SPARE, r->n_in);
    for (u32 i = 0; i < r->n; i++)
        put_act(p + (u64)i * GPU_ACT_BYTES(r->n_in), &r->act[i], r->n_in);
}

/* ---- weights ---- */

struct matrices {
    u32 type, n_in, n_out, n; /* n matrices one after another */
    u8 *cpu;
    u64 cpu_bytes; /* of a matrix */
};

static void make_weights(struct scene *s, u32 slot, struct matrices *w, u32 type, u32 n_in, u32 n_out, u32 n)
{
    const struct dtype_info *t = dtype_info(type);
    u32 panels = pack_panels(n_out), bad;
    u64 row_bytes = n_in / t->block_elems * t->block_bytes, gpu_bytes = gpu_panel_bytes(type, n_in) * panels;
    *w = (struct matrices){
        .type = type, .n_in = n_in, .n_out = n_out, .n = n, .cpu_bytes = pack_panel_bytes(type, n_in) * panels};
    w->cpu = some(n, w->cpu_bytes);
    u8 *file = some(row_bytes, n_out), *gpu = buffer(s, slot, n, gpu_bytes);
    for (u32 i = 0; i < n; i++) {
        u32 cut = check_below(panels + 1); /* any split of the panels */
        random_blocks(type, file, row_bytes * n_out);
        assert_int_equal(pack(type, file, n_in, n_out, w->cpu + i * w->cpu_bytes, 0, panels, &bad), 0);
        assert_int_equal(gpu_pack(type, file, n_in, n_out, gpu + i * gpu_bytes, 0, cut, &bad), 0);
        assert_int_equal(gpu_pack(type, file, n_in, n_out, gpu + i * gpu_bytes + cut * gpu_panel_bytes(type, n_in), cut,
                                  panels, &bad),
                         0);
    }
    free(file);
}

/* y: room for n_out up to whole panels. */
static void multiply(const struct matrices *w, u32 matrix, const struct act *x, float *y)
{
    kernels_scalar.mat[w->type](&y, &x, 1, w->cpu + matrix * w->cpu_bytes, w->n_in, 0, pack_panels(w->n_out));
}

/* ---- what to try ---- */

static u32 only_in, only_out; /* 0: any */

static u32 any_out(void)
{
    return only_out ? only_out : N_OUT[check_below(COUNT(N_OUT))];
}

static u32 any_in(u32 type)
{
    return only_in ? only_in : N_IN[check_below(dtype_info(type)->block_elems == 256 ? N_WHOLE : COUNT(N_IN))];
}

static const u32 FEW_TYPES[] = {GT_Q4_0, GT_Q8_0, GT_Q4_K, GT_Q6_K}; /* k_few.h's: blocks of 32 first */
static bool only_few;

/* A quantised type that rows of n_in can have. */
static u32 any_type(u32 n_in)
{
    if (only_few)
        return FEW_TYPES[check_below(n_in % GPU_SEG ? 2 : COUNT(FEW_TYPES))];
    return TYPES[check_below(n_in % GPU_SEG ? N_32 : N_QUANT)];
}

/* As many rows of so many weights each as take some 100 ms at most. */
static u64 budget = 1 << 20;

static u32 any_rows(u32 most, u64 weights)
{
    for (;;) {
        u32 r = ROWS[check_below(COUNT(ROWS))];
        if (r <= most && (r == 1 || r * weights <= budget))
            return r;
    }
}

static u32 any_stride(u32 width)
{
    return GPU_STRIDE(width) + 32 * check_below(2);
}

/* ---- products of all rows ---- */

static void norm_rows(struct scene *s, struct rows *r, float eps)
{
    float *w = float_rows(s, 2, 1, r->n_in);
    for (u32 k = 0; k < r->n_in; k++)
        w[k] = check_plain();
    for (u32 i = 0; i < r->n; i++) {
        float *x = (float *)r->act[i].x;
        kernels_scalar.rmsnorm(x, x, w, r->n_in, eps);
    }
}

/* Sources of a product: slots 1, 2 and 13. Rows become what the reference multiplies. */
static void make_source(struct scene *s, struct product_args *a, struct rows *r, bool quantised)
{
    a->n_in = r->n_in;
    a->x_stride = any_stride(r->n_in);
    a->eps = 1e-6f;
    if (a->source != SRC_ACT || !quantised)
        rows_to(s, 1, r, a->x_stride);
    if (a->source == SRC_NORM)
        norm_rows(s, r, a->eps);
    if (r->n_in % 32 == 0)
        quantise_rows(r);
    if (a->source == SRC_ACT && quantised)
        acts_to(s, 1, r);
    a->write_act = a->source == SRC_NORM && r->n_in % 32 == 0 && check_below(2);
    if (a->write_act)
        act_rows(s, 13, r->n + SPARE, r->n_in);
}

/* Outputs and what else a matrix has: slots 6-12. */
static void make_outputs(struct scene *s, struct product_args *a, u32 m, u32 n_out, u32 rows)
{
    a->n_out[m] = n_out;
    a->y_stride[m] = any_stride(n_out);
    float_rows(s, 9 + m, rows + SPARE, a->y_stride[m]);
    a->has_bias[m] = check_below(2);
    float *bias = a->has_bias[m] ? float_rows(s, 6 + m, 1, n_out) : NULL;
    for (u32 i = 0; bias && i < n_out; i++)
        bias[i] = check_plain();
    if (m == 0 && (a->add = check_below(2))) {
        a->res_stride = any_stride(n_out);
        float *x = float_rows(s, 12, rows + SPARE, a->res_stride);
        for (u64 i = 0; i < (u64)rows * a->res_stride; i++)
            x[i] = check_float();
    }
}

static void expect_product(struct scene *s, const struct product_args *a, const struct matrices *w,
                           const struct rows *r)
{
    for (u32 i = 0; i < r->n; i++) {
        for (u32 m = 0; m < a->n_mats; m++) {
            float y[128 + GPU_PANEL], *to = (float *)s->want[9 + m] + (u64)i * a->y_stride[m];
            multiply(&w[m], 0, &r->act[i], y);
            for (u32 o = 0; o < a->n_out[m]; o++) {
                to[o] = a->has_bias[m] ? y[o] + ((float *)s->at[6 + m])[o] : y[o];
                if (m == 0 && a->add)
                    ((float *)s->want[12])[(u64)i * a->res_stride + o] += to[o];
            }
        }
        if (a->write_act)
            put_act((u8 *)s->want[13] + (u64)i * GPU_ACT_BYTES(r->n_in), &r->act[i], r->n_in);
    }
}

static void try_product(enum gpu_kernel kernel, const char *name, u32 source, u32 type, u32 most)
{
    struct scene s = {0};
    struct product_args *a = &s.args.product_;
    struct matrices w[3];
    struct rows r;
    bool quantised = dtype_info(type)->quantised;
    static const char *const SOURCES[] = {"act", "norm", "float"};
    u32 n_in = any_in(type), n_out[3], all = 0;
    if (!quantised && check_below(3) == 0)
        n_in = 1 + check_below(600);
    a->source = source;
    a->n_mats = check_below(2) ? 1 : 2 + check_below(2);
    for (u32 m = 0; m < a->n_mats; m++)
        all += n_out[m] = any_out();
    u32 rows = any_rows(most, (u64)all * n_in);
    inputs(&s, rows, &a->which);
    make_rows(&r, rows, n_in);
    make_source(&s, a, &r, quantised);
    int n = snprintf(s.what, sizeof s.what, "%s from %s, n_in %u, write_act %u:", name, SOURCES[source], n_in,
                     a->write_act);
    for (u32 m = 0; m < a->n_mats; m++) {
        a->type[m] = m == 0 ? type : quantised ? any_type(n_in) : TYPES[N_QUANT + check_below(3)];
        make_weights(&s, 3 + m, &w[m], a->type[m], n_in, n_out[m], 1);
        make_outputs(&s, a, m, n_out[m], rows);
        n += snprintf(s.what + n, sizeof s.what - (size_t)n, " %s x %u%s%s", dtype_info(a->type[m])->name, n_out[m],
                      a->has_bias[m] ? " bias" : "", m == 0 && a->add ? " add" : "");
    }
    if (!quantised)
        s.args.float_.rows = check_below(3) ? rows : check_below(2) ? 0 : rows + check_below(5);
    if (kernel == GK_dense_1 || kernel == GK_dense_2 || kernel == GK_dense_4)
        a->rows = rows + (check_below(2) ? check_below(40) : 0);
    snapshot(&s);
    expect_product(&s, a, w, &r);
    launch(&s, kernel);
    for (u32 m = 0; m < a->n_mats; m++)
        free(w[m].cpu);
    free_rows(&r);
}

/* ---- experts ---- */

struct routing {
    u32 n_used, n_experts, pairs;
    u32 ids_at, w_at, pairs_at, tiles_at;
    const u32 *ids;
    const float *w;
};

static u32 put_tile(u32 *tiles, u32 expert, u32 first, u32 pairs)
{
    tiles[1 + 2 * tiles[0]] = expert;
    tiles[2 + 2 * tiles[0]] = first | pairs << 24;
    return ++tiles[0];
}

/* Route lists as k_route and k_group leave them (args.h), at places of their own with poison between. */
static void make_routing(struct scene *s, u32 slot, struct routing *r, u32 rows, u32 tile_rows)
{
    r->n_experts = 1 + check_below(6);
    r->n_used = 1 + check_below(r->n_experts < 3 ? r->n_experts : 3);
    r->pairs = rows * r->n_used;
    r->ids_at = 4;
    r->w_at = r->ids_at + r->pairs + 3;
    r->pairs_at = r->w_at + r->pairs + 1;
    r->tiles_at = r->pairs_at + r->pairs + 5;
    u32 *list = buffer(s, slot, r->tiles_at + 1 + 2 * r->pairs, 4), *pairs = list + r->pairs_at,
        *tiles = list + r->tiles_at;
    bool per_row = check_below(6) == 0;
    for (u32 i = 0; i < r->pairs; i++) {
        u32 *id = list + r->ids_at + i;
        bool again = true;
        while (again) {
            *id = check_below(r->n_experts);
            again = false;
            for (u32 k = 1; k <= i % r->n_used; k++)
                again |= id[0] == *(id - k);
        }
        list[r->w_at + i] = check_below(5) ? EX_BITS(fabsf(check_plain())) : 0;
    }
    r->ids = list + r->ids_at;
    r->w = (const float *)(list + r->w_at);
    tiles[0] = 0;
    u32 n = 0;
    for (u32 e = 0; e < r->n_experts && !per_row; e++) {
        u32 begin = n;
        for (u32 i = 0; i < r->pairs; i++)
            if (r->ids[i] == e)
                pairs[n++] = i;
        for (; begin < n; begin += tile_rows)
            put_tile(tiles, e, begin, min_u32(tile_rows, n - begin));
    }
    for (u32 i = 0; i < r->pairs && per_row; i++) {
        pairs[i] = i;
        put_tile(tiles, r->ids[i], i, 1);
    }
}

/* Sums of parts, or logits: plain, few values (ties), zeros of both signs, now and then what is not a number. */
static float any_logit(u32 kind)
{
    return kind == 0   ? (float)(i32)check_below(4) - 1.0f
           : kind == 1 ? (check_below(2) ? 0.0f : -0.0f)
           : kind == 2 ? (check_below(9) ? check_plain() : check_below(2) ? NAN : -INFINITY)
                       : check_plain() * 8.0f;
}

/* What few_in, few_out and experts_in_1 choose from, in slot 7, and where they say what was chosen: 5 and 8. ids and w:
 * (rows, n_used), what shall be chosen. lists: pairs and tiles too. */
static void make_choice(struct scene *s, struct route_args *a, struct routing *r, u32 rows, u32 n_experts, u32 *ids,
                        float *w, bool lists)
{
    u32 parts = check_below(3) ? 1 + check_below(11) : 0, stride = parts ? parts * n_experts : GPU_STRIDE(n_experts);
    u16 chosen[8];
    float *x = float_rows(s, 7, rows + SPARE, stride), sums[128];
    r->n_experts = n_experts;
    r->n_used = 1 + check_below(min_u32(n_experts, 8));
    r->pairs = rows * r->n_used;
    *a = (struct route_args){.which = a->which, .n_experts = n_experts, .n_used = r->n_used, .stride = stride, .used_norm = check_below(2),
                             .used_scale = check_below(2) ? 1.0f : 2.446f, .ids_at = 3, .w_at = r->pairs + 5, .pairs_at = POISON, .tiles_at = POISON,
                             .tile_rows = 8, .per_row = check_below(4) == 0, .hits = check_below(4) != 0, .hits_at = check_below(3),
                             .n_parts = parts, .parts_stride = n_experts};
    if (lists) {
        a->pairs_at = a->w_at + r->pairs + 2;
        a->tiles_at = a->pairs_at + r->pairs + 1;
    }
    buffer(s, 5, 1, (lists ? a->tiles_at + 2 * r->pairs + 4 : 2 * r->pairs + 9) * 4);
    buffer(s, 8, 1, 3 * 4);
    s->floats[5] = true;
    for (u32 i = 0; i < rows; i++) {
        u32 kind = check_below(6);
        for (u32 e = 0; e < n_experts; e++) {
            sums[e] = 0.0f;
            for (u32 p = 0; p < parts; p++)
                sums[e] += x[i * stride + p * n_experts + e] = any_logit(kind);
            if (!parts)
                sums[e] = x[i * stride + e] = any_logit(kind);
        }
        route_topk(sums, n_experts, r->n_used, a->used_norm, a->used_scale, chosen, w + i * r->n_used);
        for (u32 k = 0; k < r->n_used; k++)
            ids[i * r->n_used + k] = chosen[k];
    }
    r->ids = ids;
    r->w = w;
}

/* The lists of at most 8 rows: an expert has one tile, or each pair. */
static void expect_lists(struct scene *s, const struct route_args *a, const struct routing *r)
{
    u32 *pairs = s->want[5] + a->pairs_at, *tiles = s->want[5] + a->tiles_at, n = 0;
    tiles[0] = 0;
    for (u32 e = 0; e < r->n_experts && !a->per_row; e++) {
        u32 begin = n;
        for (u32 i = 0; i < r->pairs; i++)
            if (r->ids[i] == e)
                pairs[n++] = i;
        if (n > begin)
            put_tile(tiles, e, begin, n - begin);
    }
    for (u32 i = 0; i < r->pairs && a->per_row; i++) {
        pairs[i] = i;
        put_tile(tiles, r->ids[i], i, 1);
    }
}

static void expect_choice(struct scene *s, const struct route_args *a, const struct routing *r)
{
    u32 hits = 0;
    if (a->pairs_at != POISON)
        expect_lists(s, a, r);
    memcpy(s->want[5] + a->ids_at, r->ids, r->pairs * sizeof *r->ids);
    memcpy(s->want[5] + a->w_at, r->w, r->pairs * sizeof *r->w);
    for (u32 e = 0; e < r->n_experts; e++) {
        bool hit = false;
        for (u32 i = 0; i < r->pairs; i++)
            hit |= r->ids[i] == e;
        hits += hit;
    }
    if (a->hits)
        s->want[8][a->hits_at] = a->per_row && r->pairs > 32 ? r->pairs : hits;
}

static void try_experts_in(enum gpu_kernel kernel, const char *name, u32 type, u32 tile_rows)
{
    struct scene s = {0};
    struct experts_in_args *a = &s.args.experts_in_;
    struct matrices gate, up;
    struct rows r;
    struct routing to;
    u32 n_in = any_in(type), n_out = any_out();
    bool few = kernel == GK_few_in, one = PS_METAL && kernel == GK_experts_in_1;
    bool choose = (few && check_below(3)) || (one && check_below(2));
    struct route_args *route = &s.args.few_in_.route;
    u32 ids[64], n_experts = (u64)n_in * n_out <= 4096 && check_below(2) ? 128 : 4 + 4 * check_below(3);
    float w[64];
    u32 rows = any_rows(few || choose ? 8 : 70, (u64)4 * n_in * n_out);
    u32 type_up = few || kernel == GK_experts_in_twin || check_below(4) ? type : any_type(n_in);
    inputs(&s, rows, &a->which);
    make_rows(&r, rows, n_in);
    quantise_rows(&r);
    acts_to(&s, 1, &r);
    if (choose) {
        s.args.few_in_.choose = 1;
        route->which = a->which;
        make_choice(&s, route, &to, rows, n_experts, ids, w, !few);
    } else {
        make_routing(&s, 5, &to, rows, tile_rows);
    }
    make_weights(&s, 2, &gate, type, n_in, n_out, to.n_experts);
    make_weights(&s, 3, &up, type_up, n_in, n_out, to.n_experts);
    *a = (struct experts_in_args){.which = a->which,
                                  .n_in = n_in,
                                  .n_out = n_out,
                                  .y_stride = any_stride(n_out),
                                  .type_gate = type,
                                  .type_up = type_up,
                                  .n_used = to.n_used,
                                  .pairs_at = choose ? POISON : to.pairs_at,
                                  .tiles_at = choose ? POISON : to.tiles_at};
    a->write_act = (kernel == GK_experts_in_1 || kernel == GK_experts_in_2) && GPU_EXPERTS_IN_ACT(n_in, n_out) && check_below(4);
    if (few) {
        a->write_act = n_out % 32 == 0 && check_below(2);
        a->few = rows + check_below(9 - rows);
        a->rows = check_below(2) ? rows : 0;
        a->ids_at = choose ? POISON : to.ids_at;
    }
    float_rows(&s, 4, to.pairs + SPARE, a->y_stride);
    if (a->write_act)
        act_rows(&s, 6, to.pairs + SPARE, n_out);
    snapshot(&s);
    if (choose)
        expect_choice(&s, route, &to);
    for (u32 i = 0; i < to.pairs; i++) {
        float g[128 + GPU_PANEL], u[128 + GPU_PANEL];
        multiply(&gate, to.ids[i], &r.act[i / to.n_used], g);
        multiply(&up, to.ids[i], &r.act[i / to.n_used], u);
        kernels_scalar.swiglu(g, g, u, n_out);
        memcpy((float *)s.want[4] + (u64)i * a->y_stride, g, n_out * sizeof *g);
        if (a->write_act) {
            i8 q[128];
            float d[4];
            i16 sum[4];
            kernels_scalar.quantise(g, n_out, q, d, sum);
            put_act((u8 *)s.want[6] + (u64)i * GPU_ACT_BYTES(n_out), &(struct act){g, q, d, sum}, n_out);
        }
    }
    snprintf(s.what, sizeof s.what, "%s%s %s and %s, n_in %u, n_out %u, %u of %u experts", name, choose ? ", experts chosen," : "", dtype_info(type)->name,
             dtype_info(type_up)->name, n_in, n_out, to.n_used, to.n_experts);
    launch(&s, kernel);
    free(gate.cpu);
    free(up.cpu);
    free_rows(&r);
}

static void expect_experts_out(struct scene *s, const struct experts_out_args *a, const struct matrices *down,
                               const struct routing *to, const struct rows *r)
{
    float *y = some((u64)to->pairs, (128 + GPU_PANEL) * sizeof *y);
    const float *rank[8];
    for (u32 i = 0; i < to->pairs; i++)
        multiply(down, to->ids[i], &r->act[i / a->per], y + i * (128 + GPU_PANEL));
    for (u32 i = 0; i < to->pairs && !a->fused; i++)
        memcpy((float *)s->want[4] + (u64)i * a->y_stride, y + i * (128 + GPU_PANEL), a->n_out * sizeof *y);
    for (u32 i = 0; i < s->rows && a->fused; i++) {
        for (u32 k = 0; k < to->n_used; k++)
            rank[k] = y + (i * to->n_used + k) * (128 + GPU_PANEL);
        kernels_scalar.combine((float *)s->want[6] + (u64)i * a->res_stride, rank, to->w + i * to->n_used, to->n_used,
                               a->n_out);
    }
    free(y);
}

static void try_experts_out(enum gpu_kernel kernel, const char *name, u32 type, u32 tile_rows, u32 source, bool fused)
{
    struct scene s = {0};
    struct experts_out_args *a = &s.args.experts_out_;
    struct matrices down;
    struct rows r;
    struct routing to;
    u32 n_in = any_in(type), n_out = any_out(), rows = any_rows(fused ? 8 : 70, (u64)2 * n_in * n_out);
    bool choose = kernel == GK_few_out && check_below(3);
    struct route_args *route = &s.args.few_out_.route;
    u32 ids[64], n_experts = (u64)n_in * n_out <= 4096 && check_below(2) ? 128 : 4 + 4 * check_below(3);
    float w[64];
    inputs(&s, rows, &a->which);
    if (choose) { /* the weights are there, the ids are not */
        s.args.few_out_.choose = 1;
        route->which = a->which;
        make_choice(&s, route, &to, rows, n_experts, ids, w, false);
        memcpy(s.at[5] + route->w_at, w, to.pairs * sizeof *w);
        to.w_at = route->w_at;
        to.ids_at = to.pairs_at = to.tiles_at = POISON;
    } else {
        make_routing(&s, 5, &to, rows, tile_rows);
    }
    if (PS_METAL && !fused && kernel != GK_experts_out_twin) /* there floats are for fused ones only (args.h) */
        source = SRC_ACT;
    u32 per = fused || check_below(3) ? 1 : to.n_used, most = fused ? rows + check_below(9 - rows) : 0;
    make_rows(&r, to.pairs / per, n_in);
    quantise_rows(&r);
    make_weights(&s, 3, &down, type, n_in, n_out, to.n_experts);
    *a = (struct experts_out_args){.which = a->which,
                                   .source = source,
                                   .n_in = n_in,
                                   .n_out = n_out,
                                   .x_stride = any_stride(n_in),
                                   .y_stride = any_stride(n_out),
                                   .res_stride = any_stride(n_out),
                                   .type = type,
                                   .n_used = to.n_used,
                                   .ids_at = to.ids_at,
                                   .w_at = to.w_at,
                                   .pairs_at = to.pairs_at,
                                   .tiles_at = to.tiles_at,
                                   .per = per,
                                   .fused = most,
                                   .rows = check_below(2) ? rows : 0};
    if (source == SRC_ACT)
        acts_to(&s, 2, &r);
    else
        rows_to(&s, 1, &r, a->x_stride);
    if (!fused) {
        float_rows(&s, 4, to.pairs + SPARE, a->y_stride);
    } else {
        float *x = float_rows(&s, 6, rows + SPARE, a->res_stride);
        for (u32 i = 0; i < rows * a->res_stride; i++)
            x[i] = check_float();
    }
    snapshot(&s);
    expect_experts_out(&s, a, &down, &to, &r);
    snprintf(s.what, sizeof s.what, "%s%s %s from %s%s, per %u, n_in %u, n_out %u, %u of %u experts", name,
             choose ? ", experts chosen," : "", dtype_info(type)->name, source == SRC_ACT ? "act" : "floats", fused ? ", fused" : "", per, n_in, n_out,
             to.n_used, to.n_experts);
    launch(&s, kernel);
    free(down.cpu);
    free_rows(&r);
}

static void one_of_each(void);

static void harmed(int signal_number)
{
    (void)signal_number;
    _exit(1);
}

/* Without any one of their barriers the kernels give something else, in some launch at least: it is looked for in a process
 * of its own, which may come to harm by it. */
static void every_barrier_is_needed(void **state)
{
    (void)state;
    enum { MOST = 256, ROUNDS = 40 };
    static u32 barriers[MOST][2];
    check_seed(130);
    budget = 1 << 18;
    for (u32 i = 0; i < 6; i++)
        one_of_each();
    u32 n = emu_barriers(emu, barriers, MOST), needless = 0;
    assert_in_range(n, 8, MOST); /* as many as there are at least */
    for (u32 i = 0; i < n; i++) {
        int status = 0;
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
            for (u32 k = 0; k < COUNT(SIGNALS); k++)
                signal(SIGNALS[k], harmed);
            memcpy(no_barrier, barriers[i], sizeof no_barrier);
            for (u32 round = 0; round < ROUNDS; round++)
                one_of_each();
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            print_message("the barrier of file %u, line %u can be left out\n", barriers[i][0], barriers[i][1]);
            needless++;
        }
    }
    assert_int_equal(needless, 0);
}

static int open_emu(void **state)
{
    (void)state;
    emu = emu_open(&(struct emu_opts){.n_threads = 1, .seed = 1, .poison = true});
    return emu ? 0 : -1;
}

static int close_emu(void **state)
{
    (void)state;
    emu_close(emu);
    return 0;
}

#endif
