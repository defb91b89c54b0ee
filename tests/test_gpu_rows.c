/* Kernels of rows, routes and picks (k_rows.h, k_route.h, k_pick.h) on the emulator against the CPU's reference by memcmp: lengths and rows
 * odd and even, extremes, ties, NaN, any number of groups, any order of lanes. Each buffer is compared as a whole, what stands
 * before, between and after its rows included. And every barrier of these kernels is needed. */
#include "file_blocks.h"
#include "gpu_area.h"

#include <signal.h>
#include <sys/wait.h>

#include "device/dev_gpu.h"
#include "kernel/pack.h"

/* Every float there is at one time or another, not often what is not finite. */
static float any_float(void)
{
    u32 u = check_u32();
    if (check_below(200) == 0)
        return check_below(2) ? NAN : check_below(2) ? INFINITY : -INFINITY;
    return check_below(8) ? check_float() : EX_FLOAT((u & 0x807FFFFF) | (1 + check_below(250)) << 23);
}

static u32 any_length(void)
{
    return check_below(3) == 0 ? 32 * (1 + check_below(20)) : check_below(4) ? 1 + check_below(200) : 500 + check_below(700);
}

/* ---- embedding ---- */

/* What a kernel that ends in a norm leaves besides x: weights, rows, act rows, and the arguments that say so. */
struct normed {
    struct area w, h, act;
    struct norm_args args;
};

static struct normed normed_rows(u32 n, const struct area *x, u32 x_stride, u32 rows)
{
    struct normed o = {.args = {.n = n, .h_stride = GPU_STRIDE(n) + 4 * check_below(3)}};
    struct norm_args *a = &o.args;
    a->write_h = check_below(2);
    a->write_act = !a->write_h || check_below(2);
    o.w = area_of(n);
    o.h = area_of((u64)rows * a->h_stride);
    o.act = area_of((u64)rows * GPU_ACT_BYTES(n) / 4);
    float *y = mem_array((u64)rows * a->h_stride + 1, sizeof *y);
    a->eps = check_below(2) ? 1e-6f : 0.0f;
    area_floats(&o.w, 0, n, check_plain);
    for (u32 r = 0; r < rows; r++) {
        float *row = y + (u64)r * a->h_stride;
        kernels_scalar.rmsnorm(row, floats(x->want + (u64)r * x_stride), floats(o.w.got), n, a->eps);
        if (a->write_h)
            memcpy(o.h.want + (u64)r * a->h_stride, row, n * sizeof *row);
    }
    if (a->write_act && n % 32 == 0)
        act_rows(o.act.want, y, n, a->h_stride, rows);
    free(y);
    return o;
}

static void normed_same(struct normed *o, const struct area *x)
{
    area_same("x before the norm", x);
    area_same("h", &o->h);
    area_same("act", &o->act);
    area_free(&o->w);
    area_free(&o->h);
    area_free(&o->act);
}

/* The rows that embed_norm is to give, through the norm that follows. */
static void norm_embedded(const struct embed_args *e, const struct area *x, u32 rows, struct bufs b)
{
    struct normed o = normed_rows(e->n_in, x, e->x_stride, rows);
    union gpu_args a = {.embed_norm_ = {.embed = *e, .norm = o.args}};
    b.p[3] = o.h.got;
    b.p[4] = o.act.got;
    b.p[5] = o.w.got;
    launch(GK_embed_norm, &a, b, GPU_SHM_NORM(e->n_in));
    normed_same(&o, x);
}

static void embed_of(enum dtype type, u32 n_in)
{
    const struct dtype_info *t = dtype_info(type);
    u32 n_out = 1 + check_below(40), rows = check_below(8), stride = GPU_STRIDE(n_in), bad;
    u32 panels = (n_out + GPU_PANEL - 1) / GPU_PANEL, which = check_below(2);
    u64 bytes = (u64)n_in / t->block_elems * t->block_bytes * n_out;
    u8 *file = mem_array(bytes, 1), *cpu = mem_array(panels * pack_panel_bytes(type, n_in), 1);
    struct area in = inputs_of(rows, which), w = area_of(panels * gpu_panel_bytes(type, n_in) / 4), x = area_of((u64)rows * stride);
    random_blocks(type, file, bytes);
    assert_int_equal(pack(type, file, n_in, n_out, cpu, 0, panels, &bad), 0);
    assert_int_equal(gpu_pack(type, file, n_in, n_out, (u8 *)w.got, 0, panels, &bad), 0);
    memcpy(w.want, w.got, w.n * sizeof *w.got);
    for (u32 r = 0; r < rows; r++) {
        u32 token = check_below(n_out);
        area_put(&in, IN_HEADER + 4 * r, token);
        unpack_row(type, cpu, n_in, token, floats(x.want + (u64)r * stride));
    }
    union gpu_args a = {.embed_ = {.which = which, .rows_at = IN_HEADER, .type = type, .n_in = n_in, .x_stride = stride}};
    struct bufs b = {{in.got, w.got, x.got}};
    if (check_below(2))
        norm_embedded(&a.embed_, &x, rows, b);
    else
        launch(GK_embed, &a, b, GPU_SHM_NONE);
    area_same(t->name, &x);
    area_same("packed weights", &w);
    free(file);
    free(cpu);
    area_free(&in);
    area_free(&w);
    area_free(&x);
}

static void embedding_rows_are_unpacked(void **state)
{
    (void)state;
    check_seed(1);
    for (u32 type = 0; type < DT_LIMIT; type++) {
        const struct dtype_info *t = dtype_info(type);
        for (u32 rep = 0; t && gpu_panel_bytes(type, 256) && rep < 24; rep++)
            embed_of(type, t->block_elems * (1 + check_below(t->block_elems == 256 ? 3 : t->quantised ? 20 : 600)));
        if (t && gpu_panel_bytes(type, 256))
            embed_of(type, 2304); /* a thread has more than one four */
    }
}

/* ---- norm and rule 1 ---- */

static void norm_of(u32 n)
{
    u32 ranks = 1 + check_below(3), table = check_below(7), rows = table * ranks, which = check_below(2);
    u32 stride = GPU_STRIDE(n) + 4 * check_below(3), h_stride = GPU_STRIDE(n);
    bool has_norm = check_below(4) != 0, write_h = check_below(2), write_act = !write_h || check_below(2);
    struct area in = inputs_of(table, which), x = area_of((u64)rows * stride), w = area_of(n), h = area_of((u64)rows * h_stride);
    struct area act = area_of((u64)rows * GPU_ACT_BYTES(n) / 4);
    float *y = mem_array((u64)rows * h_stride + 1, sizeof *y), eps = check_below(2) ? 1e-6f : 0.0f;
    area_floats(&w, 0, n, check_plain);
    for (u32 r = 0; r < rows; r++) {
        area_floats(&x, (u64)r * stride, n, check_below(4) ? check_float : any_float);
        if (check_below(8) == 0)
            for (u32 i = 0; i < n; i++)
                area_put(&x, (u64)r * stride + i, 0);
        float *row = y + (u64)r * h_stride;
        if (has_norm)
            kernels_scalar.rmsnorm(row, floats(x.got + (u64)r * stride), floats(w.got), n, eps);
        else
            memcpy(row, x.got + (u64)r * stride, n * sizeof *row);
        if (write_h)
            memcpy(h.want + (u64)r * h_stride, row, n * sizeof *row);
    }
    if (write_act && n % 32 == 0)
        act_rows(act.want, y, n, h_stride, rows);
    union gpu_args a = {.norm_ = {.which = which, .n = n, .x_stride = stride, .h_stride = h_stride, .has_norm = has_norm,
                                  .write_h = write_h, .write_act = write_act, .ranks = ranks, .more = check_below(GPU_NORM_MORE + 1), .eps = eps}};
    launch(GK_norm, &a, (struct bufs){{in.got, x.got, w.got, h.got, act.got}}, GPU_SHM_NORM(n) * (1 + a.norm_.more));
    area_same("norm", &h);
    area_same("act of norm", &act);
    area_same("x of norm", &x);
    free(y);
    area_free(&in);
    area_free(&x);
    area_free(&w);
    area_free(&h);
    area_free(&act);
}

static void rows_are_normalised_and_quantised(void **state)
{
    (void)state;
    check_seed(2);
    for (u32 n = 1; n <= 130; n += 1 + check_below(3))
        norm_of(n);
    for (u32 rep = 0; rep < 150; rep++)
        norm_of(any_length());
    norm_of(2048);
    norm_of(2880);
    norm_of(8192); /* PS_METAL: shared memory does not hold it */
}

/* ---- gating ---- */

static void swiglu_of(u32 n)
{
    u32 ranks = 1 + check_below(3), table = check_below(7), rows = table * ranks, which = check_below(2);
    u32 stride = GPU_STRIDE(n);
    bool write_act = check_below(2);
    struct area in = inputs_of(table, which), g = area_of((u64)rows * stride), u = area_of((u64)rows * stride);
    struct area act = area_of((u64)rows * GPU_ACT_BYTES(n) / 4);
    for (u32 r = 0; r < rows; r++) {
        area_floats(&g, (u64)r * stride, n, any_float);
        area_floats(&u, (u64)r * stride, n, check_below(2) ? any_float : check_float);
        float *y = floats(g.want + (u64)r * stride);
        kernels_scalar.swiglu(y, y, floats(u.want + (u64)r * stride), n);
    }
    if (write_act && n % 32 == 0)
        act_rows(act.want, floats(g.want), n, stride, rows);
    union gpu_args a = {.swiglu_ = {.which = which, .n = n, .stride = stride, .ranks = ranks, .write_act = write_act}};
    launch(GK_swiglu, &a, (struct bufs){{in.got, g.got, u.got, act.got}}, GPU_SHM_NONE);
    area_same("swiglu", &g);
    area_same("up of swiglu", &u);
    area_same("act of swiglu", &act);
    area_free(&in);
    area_free(&g);
    area_free(&u);
    area_free(&act);
}

static void rows_are_gated(void **state)
{
    (void)state;
    check_seed(3);
    for (u32 rep = 0; rep < 150; rep++)
        swiglu_of(any_length());
}

/* ---- experts joined ---- */

/* Rows of x, joined, through the norm that follows. */
static void norm_joined(const struct combine_args *c, const struct area *x, u32 rows, struct bufs b)
{
    struct normed o = normed_rows(c->n, x, c->x_stride, rows);
    union gpu_args a = {.combine_norm_ = {.combine = *c, .norm = o.args}};
    a.combine_norm_.norm.more = check_below(GPU_NORM_MORE + 1);
    b.p[6] = o.w.got;
    b.p[7] = o.h.got;
    b.p[8] = o.act.got;
    launch(GK_combine_norm, &a, b, GPU_SHM_NORM(c->n) * (1 + a.combine_norm_.norm.more));
    normed_same(&o, x);
}

static void combine_of(u32 n)
{
    u32 rows = check_below(7), which = check_below(2), n_used = 1 + check_below(check_below(3) ? 9 : 64), w_at = check_below(9);
    u32 stride = GPU_STRIDE(n), y_stride = stride + 32, shared_stride = stride + 64, w_stride = 32;
    bool shared = check_below(2);
    struct area in = inputs_of(rows, which), y = area_of((u64)rows * n_used * y_stride), lists = area_of(w_at + rows * n_used);
    struct area s = area_of((u64)rows * shared_stride), sw = area_of((u64)rows * w_stride), x = area_of((u64)rows * stride);
    for (u32 r = 0; r < rows; r++) {
        const float *from[65];
        float w[65], *to = floats(x.want + (u64)r * stride);
        for (u32 k = 0; k < n_used; k++) {
            u64 pair = (u64)r * n_used + k;
            area_floats(&y, pair * y_stride, n, check_below(2) ? check_float : any_float);
            w[k] = ex_flush(check_plain());
            area_put(&lists, w_at + pair, EX_BITS(w[k]));
            from[k] = floats(y.got + pair * y_stride);
        }
        area_floats(&x, (u64)r * stride, n, any_float);
        area_floats(&s, (u64)r * shared_stride, n, any_float);
        area_floats(&sw, (u64)r * w_stride, 1, any_float);
        float g = floats(sw.got)[(u64)r * w_stride], e = ex_exp(-fabsf(g));
        from[n_used] = floats(s.got + (u64)r * shared_stride);
        w[n_used] = ex_flush((g >= 0.0f ? 1.0f : e) / (1.0f + e));
        kernels_scalar.combine(to, from, w, n_used + shared, n);
    }
    union gpu_args a = {.combine_ = {.which = which, .n = n, .n_used = n_used, .w_at = w_at, .y_stride = y_stride, .x_stride = stride,
                                     .shared = shared, .shared_stride = shared_stride, .shared_w_stride = w_stride}};
    struct bufs b = {{in.got, y.got, lists.got, s.got, sw.got, x.got}};
    if (check_below(2)) {
        norm_joined(&a.combine_, &x, rows, b);
    } else {
        launch(GK_combine, &a, b, GPU_SHM_NONE);
        area_same("combine", &x);
    }
    area_free(&in);
    area_free(&y);
    area_free(&lists);
    area_free(&s);
    area_free(&sw);
    area_free(&x);
}

static void experts_are_joined(void **state)
{
    (void)state;
    check_seed(4);
    for (u32 rep = 0; rep < 240; rep++)
        combine_of(any_length());
}

/* ---- rows that want logits ---- */

static void keep_of(u32 n_x, u32 n_q)
{
    u32 all = 1 + check_below(9), rows = check_below(all + 1), x_stride = GPU_STRIDE(n_x), q_stride = GPU_STRIDE(n_q);
    struct area in = inputs_of(rows, 1), x = area_of((u64)all * x_stride), q = area_of((u64)all * q_stride);
    struct area x2 = area_of((u64)rows * x_stride), q2 = area_of((u64)rows * q_stride);
    for (u32 r = 0; r < all; r++) {
        area_floats(&x, (u64)r * x_stride, n_x, any_float);
        area_floats(&q, (u64)r * q_stride, n_q, any_float);
    }
    for (u32 r = 0; r < rows; r++) {
        u32 from = check_below(all);
        area_put(&in, IN_HEADER + 4 * r, from);
        memcpy(x2.want + (u64)r * x_stride, x.got + (u64)from * x_stride, n_x * sizeof(float));
        memcpy(q2.want + (u64)r * q_stride, q.got + (u64)from * q_stride, n_q * sizeof(float));
    }
    union gpu_args a = {.keep_ = {.rows_at = IN_HEADER, .n_x = n_x, .n_q = n_q, .x_stride = x_stride, .q_stride = q_stride}};
    launch(GK_keep, &a, (struct bufs){{in.got, x.got, q.got, x2.got, q2.got}}, GPU_SHM_NONE);
    area_same("x of keep", &x2);
    area_same("q of keep", &q2);
    area_free(&in);
    area_free(&x);
    area_free(&q);
    area_free(&x2);
    area_free(&q2);
}

static void chosen_rows_are_kept(void **state)
{
    (void)state;
    check_seed(5);
    for (u32 rep = 0; rep < 60; rep++)
        keep_of(any_length(), any_length());
}

/* ---- routes ---- */

/* Route lists of some rows; ids, w, pairs and tiles lie in an order and with gaps that the arguments tell. */
struct routes {
    u32 rows, n, tile_rows;
    struct area in, logits, lists, hits;
    float *sums; /* (rows, n_experts): the logits, or their parts added up */
    union gpu_args a;
};

static struct routes routes_of(u32 rows, u32 n_experts, u32 n_used)
{
    struct routes s = {.rows = rows, .n = rows * n_used};
    u32 which = check_below(2), parts = check_below(2) ? 0 : 1 + check_below(check_below(2) ? 3 : 20), gap = check_below(5);
    u32 stride = parts ? parts * n_experts : GPU_STRIDE(n_experts);
    s.sums = mem_array((u64)rows * n_experts + 1, sizeof *s.sums);
    s.tile_rows = (u32[]){1, 8, 16, 32, 255}[check_below(5)];
    s.in = inputs_of(rows, which);
    s.logits = area_of((u64)rows * stride);
    s.lists = area_of(5 * (u64)s.n + 1 + 4 * gap);
    s.hits = area_of(3);
    s.a.route_ = (struct route_args){.which = which, .n_experts = n_experts, .n_used = n_used, .stride = stride,
                                     .used_norm = check_below(2), .used_scale = check_below(2) ? 1.0f : 2.446f,
                                     .ids_at = gap, .w_at = s.n + 2 * gap, .pairs_at = 2 * s.n + 3 * gap,
                                     .tiles_at = 3 * s.n + 4 * gap, .tile_rows = s.tile_rows, .per_row = check_below(6) == 0,
                                     .hits = check_below(4) != 0, .hits_at = check_below(3),
                                     .n_parts = parts, .parts_stride = n_experts};
    return s;
}

static void routes_free(struct routes *s)
{
    area_free(&s->in);
    area_free(&s->logits);
    area_free(&s->lists);
    area_free(&s->hits);
    free(s->sums);
}

static struct bufs routes_bufs(const struct routes *s)
{
    return (struct bufs){{s->in.got, s->logits.got, s->lists.got, s->hits.got}};
}

/* Few values, so that there are ties; zeros of both signs; now and then what is not a number, or nothing else. */
static float route_logit_of(u32 kind)
{
    if (kind == 4 && check_below(10) == 0)
        return check_below(2) ? NAN : -INFINITY;
    return kind == 0   ? any_float()
           : kind == 1 ? (float)(i32)check_below(4) - 1.0f
           : kind == 2 ? (check_below(2) ? 0.0f : -0.0f)
           : kind == 3 ? (check_below(2) ? NAN : -NAN)
                       : check_plain() * 8.0f;
}

static void routes_logits(struct routes *s)
{
    const struct route_args *a = &s->a.route_;
    for (u32 r = 0; r < s->rows; r++) {
        u32 kind = check_below(6);
        for (u32 e = 0; e < a->n_experts; e++) {
            float sum = 0.0f, x = 0.0f;
            for (u32 p = 0; p < (a->n_parts ? a->n_parts : 1); p++) {
                x = route_logit_of(kind);
                sum = sum + x;
                area_put(&s->logits, (u64)r * a->stride + p * a->parts_stride + e, EX_BITS(x));
            }
            s->sums[(u64)r * a->n_experts + e] = a->n_parts ? sum : x;
        }
    }
}

static void want_route(struct routes *s)
{
    const struct route_args *a = &s->a.route_;
    for (u32 r = 0; r < s->rows; r++) {
        u16 ids[64];
        route_topk(s->sums + (u64)r * a->n_experts, a->n_experts, a->n_used, a->used_norm, a->used_scale, ids,
                   floats(s->lists.want + a->w_at + r * a->n_used));
        for (u32 k = 0; k < a->n_used; k++)
            s->lists.want[a->ids_at + r * a->n_used + k] = ids[k];
    }
}

/* From the ids that lists.want holds. */
static void want_group(struct routes *s)
{
    const struct route_args *a = &s->a.route_;
    u32 *ids = s->lists.want + a->ids_at, *pairs = s->lists.want + a->pairs_at, *tiles = s->lists.want + a->tiles_at, n_tiles = 0, hits = 0;
    for (u32 e = 0; e < a->n_experts; e++) {
        u32 hit = 0;
        for (u32 i = 0; i < s->n; i++)
            hit |= ids[i] == e;
        hits += hit;
    }
    if (a->hits)
        s->hits.want[a->hits_at] = a->per_row && s->n > 32 ? s->n : hits;
    if (a->per_row) {
        for (u32 i = 0; i < s->n; i++) {
            pairs[i] = i;
            tiles[1 + 2 * i] = ids[i];
            tiles[2 + 2 * i] = i | 1u << 24;
        }
        tiles[0] = s->n;
        return;
    }
    u32 at = 0;
    for (u32 e = 0; e < a->n_experts; e++) {
        u32 begin = at;
        for (u32 i = 0; i < s->n; i++)
            if (ids[i] == e)
                pairs[at++] = i;
        for (; begin < at; begin += a->tile_rows) {
            tiles[1 + 2 * n_tiles] = e;
            tiles[2 + 2 * n_tiles++] = begin | min_u32(a->tile_rows, at - begin) << 24;
        }
    }
    tiles[0] = n_tiles;
}

static u32 some_experts(void)
{
    return (u32[]){1 + check_below(40), 60, 64, 128, 129, 256, 512, 1024}[check_below(8)];
}

static u32 some_used(u32 n_experts)
{
    return 1 + check_below(min_u32(n_experts, check_below(3) ? 10 : 64));
}

static void experts_are_chosen_as_the_cpu_does(void **state)
{
    (void)state;
    check_seed(6);
    for (u32 rep = 0; rep < 150; rep++) {
        u32 n_experts = some_experts();
        struct routes s = routes_of(check_below(20), n_experts, some_used(n_experts));
        routes_logits(&s);
        want_route(&s);
        launch(GK_route, &s.a, routes_bufs(&s), GPU_SHM_ROUTE(n_experts));
        area_same("route", &s.lists);
        area_same("hits of route", &s.hits);
        routes_free(&s);
    }
}

static void group_of(u32 rows, u32 n_experts, u32 n_used)
{
    n_used = min_u32(n_used, n_experts);
    struct routes s = routes_of(rows, n_experts, n_used);
    u32 kind = check_below(4), hot = check_below(n_experts);
    for (u32 i = 0; i < s.n; i++) {
        u32 e = kind == 0 ? hot : kind == 1 && check_below(4) ? hot : check_below(n_experts), rank = i % n_used;
        if (rank && GPU_FEW_CHOOSES(n_experts, n_used)) /* a row's experts are different */
            e = (s.lists.got[s.a.route_.ids_at + i - 1] + 1 + (kind ? check_below(n_experts / n_used) : 0)) % n_experts;
        area_put(&s.lists, s.a.route_.ids_at + i, e);
    }
    want_group(&s);
    launch(GK_group, &s.a, routes_bufs(&s), GPU_SHM_ROUTE(n_experts));
    area_same("group", &s.lists);
    area_same("hits of group", &s.hits);
    routes_free(&s);
}

static void pairs_are_grouped(void **state)
{
    (void)state;
    check_seed(7);
    for (u32 rows = 0; rows <= 40; rows++)
        group_of(rows, some_experts(), 1);
    for (u32 rep = 0; rep < 100; rep++)
        group_of(check_below(rep % 10 ? 40 : 300), some_experts(), 1 + check_below(12));
    group_of(1000, 128, 8);
    group_of(65536, 31, 8);
}

static void rows_are_routed_and_grouped_at_once(void **state)
{
    (void)state;
    check_seed(8);
    for (u32 rep = 0; rep < 120; rep++) {
        u32 n_experts = some_experts(), rows = check_below(2) ? check_below(5) : check_below(65);
        struct routes s = routes_of(rows, n_experts, some_used(n_experts));
        routes_logits(&s);
        want_route(&s);
        want_group(&s);
        launch(GK_route_group, &s.a, routes_bufs(&s), GPU_SHM_ROUTE(n_experts));
        area_same("route_group", &s.lists);
        area_same("hits of route_group", &s.hits);
        routes_free(&s);
    }
}

/* ---- picks ---- */

struct picks {
    u32 rows;
    struct area in, logits, picks, scratch;
    union gpu_args a;
};

static struct picks picks_of(u32 rows, u32 n_vocab)
{
    u32 which = check_below(2), stride = GPU_STRIDE(n_vocab);
    struct picks s = {.rows = rows, .in = inputs_of(rows, which), .logits = area_of((u64)rows * stride),
                      .picks = area_of((u64)rows * PICK_WORDS), .scratch = area_of((u64)rows * PICK_BLOCKS)};
    s.a.pick_ = (struct pick_args){.which = which, .n_vocab = n_vocab, .stride = stride};
    return s;
}

static void picks_free(struct picks *s)
{
    area_free(&s->in);
    area_free(&s->logits);
    area_free(&s->picks);
    area_free(&s->scratch);
}

enum { LIKE_CHANCE, TIES, FEW_TIES, ZEROS, RISING, BLOCK, EXTREMES, NOT_FINITE, KINDS };

static float pick_logit(u32 kind, u32 i, u32 n)
{
    float x = check_plain() * 20.0f;
    switch (kind) {
    case TIES: return 1.5f;
    case FEW_TIES: return (float)(i32)check_below(9);
    case ZEROS: return check_below(2) ? 0.0f : -0.0f;
    case RISING: return (float)(i32)i;
    case BLOCK: return i / 300 == n / 600 ? x + 100.0f : x;
    case EXTREMES: return check_below(2) ? (check_below(2) ? 3.4028235e38f : -3.4028235e38f) : check_float();
    default: return x;
    }
}

static void picks_logits(struct picks *s, u32 kind)
{
    u32 n = s->a.pick_.n_vocab;
    for (u32 r = 0; r < s->rows; r++) {
        for (u32 i = 0; i < n; i++)
            area_put(&s->logits, (u64)r * s->a.pick_.stride + i, EX_BITS(pick_logit(kind, i, n)));
        if (kind == NOT_FINITE && check_below(3))
            area_put(&s->logits, (u64)r * s->a.pick_.stride + check_below(n),
                    EX_BITS(check_below(2) ? NAN : check_below(2) ? INFINITY : -INFINITY));
    }
}

static const float *sorted_by;

static int by_logit(const void *a, const void *b)
{
    u32 i = *(const u32 *)a, j = *(const u32 *)b;
    float x = sorted_by[i], y = sorted_by[j];
    return x > y ? -1 : x < y ? 1 : i < j ? -1 : 1;
}

/* Of logits [first, last) of sorted_by. */
static void want_list(u32 *w, u32 *ids, u32 first, u32 last)
{
    u32 n = last - first;
    w[0] = 1;
    for (u32 i = 0; i < n; i++) {
        ids[i] = first + i;
        w[0] &= isfinite(sorted_by[first + i]) != 0;
    }
    w[1] = w[0] ? min_u32(n, PICK_TOP) : 0;
    if (w[1])
        qsort(ids, n, sizeof *ids, by_logit);
    for (u32 i = 0; i < w[1]; i++) {
        w[2 + 2 * i] = ids[i];
        w[3 + 2 * i] = EX_BITS(sorted_by[ids[i]]);
    }
}

/* The best of logits [first, last) as ordered bits, all bits where one is not finite. */
static u32 want_key(u32 first, u32 last)
{
    u32 best = first;
    for (u32 i = first; i < last; i++) {
        if (!isfinite(sorted_by[i]))
            return ~0u;
        best = sorted_by[i] > sorted_by[best] ? i : best;
    }
    u32 u = sorted_by[best] == 0.0f ? 0 : EX_BITS(sorted_by[best]);
    return u >> 31 ? ~u : u | 0x80000000u;
}

static void want_picks(struct picks *s)
{
    u32 n = s->a.pick_.n_vocab, *ids = mem_array(n, sizeof *ids);
    for (u32 r = 0; r < s->rows; r++) {
        sorted_by = floats(s->logits.got + (u64)r * s->a.pick_.stride);
        want_list(s->picks.want + (u64)r * PICK_WORDS, ids, 0, n);
        for (u32 i = 0; i < n; i += GPU_PICK_BLOCK(n))
            s->scratch.want[(u64)r * PICK_BLOCKS + i / GPU_PICK_BLOCK(n)] = want_key(i, min_u32(i + GPU_PICK_BLOCK(n), n));
    }
    free(ids);
}

static struct bufs picks_bufs(const struct picks *s)
{
    return (struct bufs){{s->in.got, s->logits.got, s->picks.got, s->scratch.got}};
}

static void pick_of(u32 rows, u32 n_vocab, u32 kind)
{
    struct picks s = picks_of(rows, n_vocab);
    picks_logits(&s, kind);
    want_picks(&s);
    launch(GK_pick, &s.a, picks_bufs(&s), GPU_SHM_NONE);
    area_same("keys of blocks", &s.scratch);
    launch(GK_pick_join, &s.a, picks_bufs(&s), GPU_SHM_PICK_JOIN);
    area_same("picks", &s.picks);
    area_same("scratch of picks", &s.scratch);
    picks_free(&s);
}

static void best_tokens_are_picked(void **state)
{
    (void)state;
    check_seed(9);
    for (u32 rep = 0; rep < 60; rep++)
        pick_of(check_below(3), rep < 20 ? 1 + check_below(300) : 1 + check_below(9000), rep % KINDS);
    for (u32 kind = 0; kind < KINDS; kind++)
        pick_of(1, 33000 + check_below(5000), kind);
    pick_of(1, 151936, LIKE_CHANCE);
    pick_of(1, 300000, LIKE_CHANCE); /* blocks of 256 */
    pick_of(1, 300000, FEW_TIES);
}

/* ---- barriers ---- */

enum { ROWS_FILE = 1, ROUTE_FILE = 2, PICK_FILE = 11, SEEDS = 60 }; /* KERNEL_FILE of k_rows.h, k_route.h and k_pick.h */

static struct emu_opts without; /* the barrier that is left out, and the seed */

/* Whether results differ, or SIMD groups missed each other. */
static bool launch_differs(enum gpu_kernel k, const union gpu_args *a, struct bufs b, u32 shm_bytes, const struct area *out)
{
    struct err err = {.text = ""};
    emu_set(emu, &without);
    return launch_on(k, a, b, 1, shm_bytes, &err) || area_differs(out) >= 0;
}

static bool routes_differ(enum gpu_kernel k, u32 rows, u32 n_used)
{
    struct routes s = routes_of(rows, 64, n_used);
    s.a.route_.per_row = 0;
    routes_logits(&s);
    want_route(&s);
    if (k == GK_group)
        memcpy(s.lists.got + s.a.route_.ids_at, s.lists.want + s.a.route_.ids_at, s.n * sizeof(u32));
    if (k == GK_group)
        memcpy(s.lists.got + s.a.route_.w_at, s.lists.want + s.a.route_.w_at, s.n * sizeof(u32));
    want_group(&s);
    bool differ = launch_differs(k, &s.a, routes_bufs(&s), GPU_SHM_ROUTE(64), &s.lists);
    routes_free(&s);
    return differ;
}

static bool picks_differ(u32 rows, u32 n_vocab, u32 kind)
{
    struct picks s = picks_of(rows, n_vocab);
    picks_logits(&s, kind);
    want_picks(&s);
    memcpy(s.scratch.got, s.scratch.want, s.scratch.n * sizeof *s.scratch.got);
    bool differ = launch_differs(GK_pick_join, &s.a, picks_bufs(&s), GPU_SHM_PICK_JOIN, &s.picks);
    picks_free(&s);
    return differ;
}

static bool norms_differ(u32 more)
{
    enum { N = 544, ROWS = 5 };
    struct area in = inputs_of(ROWS, 0), x = area_of(ROWS * N), w = area_of(N), h = area_of(ROWS * N), act = area_of(1);
    area_floats(&w, 0, N, check_plain);
    area_floats(&x, 0, ROWS * N, check_plain);
    for (u32 r = 0; r < ROWS; r++) {
        float y[N];
        kernels_scalar.rmsnorm(y, floats(x.got + r * N), floats(w.got), N, 1e-6f);
        memcpy(h.want + r * N, y, sizeof y);
    }
    union gpu_args a = {.norm_ = {.n = N, .x_stride = N, .h_stride = N, .has_norm = 1, .write_h = 1, .ranks = 1, .more = more, .eps = 1e-6f}};
    bool differ = launch_differs(GK_norm, &a, (struct bufs){{in.got, x.got, w.got, h.got, act.got}}, GPU_SHM_NORM(N) * (1 + more), &h);
    area_free(&in);
    area_free(&x);
    area_free(&w);
    area_free(&h);
    area_free(&act);
    return differ;
}

static bool any_differs(u32 file)
{
    if (file == ROWS_FILE)
        return norms_differ(0) || norms_differ(GPU_NORM_MORE);
    return file == ROUTE_FILE ? routes_differ(GK_route_group, 3, 8) || routes_differ(GK_route_group, 3, 9) || routes_differ(GK_group, 40, 8) || routes_differ(GK_group, 40, 9)
                              : picks_differ(1, 33000, LIKE_CHANCE) || picks_differ(1, 12000, FEW_TIES) || picks_differ(2, 600, NOT_FINITE) ||
                                    picks_differ(2, 200, NOT_FINITE);
}

/* In a process of its own: what is read too early may be an index, and then anything may be written. */
static bool shows(u32 file)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        alarm(60); /* a wild count may run for long */
        if (!freopen("/dev/null", "w", stderr))
            _exit(0);
        for (without.seed = 0; without.seed < SEEDS; without.seed++)
            if (any_differs(file))
                _exit(1);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status != 0;
}

static void every_barrier_is_needed(void **state)
{
    (void)state;
    u32 at[256][2], n = emu_barriers(emu, at, COUNT(at)), seen = 0;
    check_seed(10);
    without = (struct emu_opts){.n_threads = 1, .poison = true};
    assert_false(any_differs(ROWS_FILE) || any_differs(ROUTE_FILE) || any_differs(PICK_FILE));
    for (u32 i = 0; i < n; i++, seen++) {
        without.no_file = at[i][0];
        without.no_line = at[i][1];
        if (!shows(at[i][0]))
            fail_msg("without the barrier in line %u of file %u nothing changes in %u seeds", at[i][1], at[i][0], (u32)SEEDS);
    }
    assert_true(seen >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_rows_are_unpacked),
        cmocka_unit_test(rows_are_normalised_and_quantised),
        cmocka_unit_test(rows_are_gated),
        cmocka_unit_test(experts_are_joined),
        cmocka_unit_test(chosen_rows_are_kept),
        cmocka_unit_test(experts_are_chosen_as_the_cpu_does),
        cmocka_unit_test(pairs_are_grouped),
        cmocka_unit_test(rows_are_routed_and_grouped_at_once),
        cmocka_unit_test(best_tokens_are_picked),
        cmocka_unit_test(every_barrier_is_needed),
    };
    return cmocka_run_group_tests(tests, open_emu, close_emu);
}
