/* k_router on the emulator against the CPU's reference by memcmp: norm, rule 1 and product; lengths, rows and classes, any number of groups, any
 * order of lanes, poison around and between. And every barrier is needed. */
#include "gpu_area.h"

#include "device/dev_gpu.h"
#include "kernel/pack.h"

enum { NORM_ROWS = PS_METAL ? 64 : 8 }; /* with a norm, at most */

struct router {
    u32 rows, n_in, n_out, segs, stride;
    struct area in, x, norm, w, parts, act;
    u8 *cpu;    /* the CPU's panels */
    float *h;   /* (rows, stride) normalised, or as they are */
    union gpu_args a;
};

/* most: rows of the class; norm: SRC_NORM. */
static struct router router_of(u32 rows, u32 most, u32 n_in, u32 n_out, bool norm)
{
    u32 which = check_below(2), panels = n_out / GPU_PANEL, bad;
    struct router s = {.rows = rows, .n_in = n_in, .n_out = n_out, .segs = GPU_PAD(n_in) / GPU_SEG, .stride = GPU_STRIDE(n_in) + 32 * check_below(2)};
    float *file = mem_array((u64)n_in * n_out, sizeof *file);
    bool plain = check_below(2), act = norm && n_in % 32 == 0 && check_below(4);
    s.in = inputs_of(rows, which);
    s.x = area_of((u64)most * s.stride);
    s.norm = area_of(n_in);
    s.w = area_of(panels * gpu_panel_bytes(DT_F32, n_in) / 4);
    s.parts = area_of((u64)rows * s.segs * n_out);
    s.act = area_of((u64)rows * GPU_ACT_BYTES(n_in) / 4);
    s.cpu = mem_array(panels * pack_panel_bytes(DT_F32, n_in), 1);
    s.h = mem_array((u64)rows * s.stride + 1, sizeof *s.h);
    for (u64 i = 0; i < (u64)n_in * n_out; i++)
        file[i] = plain ? check_plain() : check_float();
    assert_int_equal(pack(DT_F32, (const u8 *)file, n_in, n_out, s.cpu, 0, panels, &bad), 0);
    assert_int_equal(gpu_pack(DT_F32, (const u8 *)file, n_in, n_out, (u8 *)s.w.got, 0, panels, &bad), 0);
    memcpy(s.w.want, s.w.got, s.w.n * sizeof *s.w.got);
    area_floats(&s.norm, 0, n_in, check_plain);
    for (u32 r = 0; r < rows; r++) {
        area_floats(&s.x, (u64)r * s.stride, n_in, plain ? check_plain : check_float);
        if (check_below(20) == 0)
            area_put(&s.x, (u64)r * s.stride + check_below(n_in), EX_BITS(check_below(2) ? NAN : INFINITY));
    }
    s.a.router_ = (struct router_args){.which = which, .source = norm ? SRC_NORM : SRC_FLOAT, .n_in = n_in, .n_out = n_out, .x_stride = s.stride,
                                       .eps = check_below(2) ? 1e-6f : 0.0f, .write_act = act, .rows = most};
    free(file);
    return s;
}

static void router_free(struct router *s)
{
    area_free(&s->in);
    area_free(&s->x);
    area_free(&s->norm);
    area_free(&s->w);
    area_free(&s->parts);
    area_free(&s->act);
    free(s->cpu);
    free(s->h);
}

static float *router_rows_of(const struct router *s)
{
    for (u32 r = 0; r < s->rows; r++) {
        float *h = s->h + (u64)r * s->stride;
        const float *x = floats(s->x.got + (u64)r * s->stride);
        if (s->a.router_.source == SRC_NORM)
            kernels_scalar.rmsnorm(h, x, floats(s->norm.got), s->n_in, s->a.router_.eps);
        else
            memcpy(h, x, s->n_in * sizeof *h);
    }
    return s->h;
}

/* A segment by itself is a product of 256 elements. The reference adds it to 0: a part may be -0 where it has 0. */
static void want_router(struct router *s)
{
    const float *h = router_rows_of(s);
    float *y = mem_array(s->n_out, sizeof *y);
    for (u32 r = 0; r < s->rows; r++)
        for (u32 seg = 0; seg < s->segs; seg++) {
            u32 n = min_u32(GPU_SEG, s->n_in - seg * GPU_SEG);
            for (u32 p = 0; p < s->n_out / GPU_PANEL; p++) {
                struct act x = {.x = h + (u64)r * s->stride + seg * GPU_SEG};
                const struct act *px = &x;
                const u8 *w = s->cpu + p * pack_panel_bytes(DT_F32, s->n_in) + (u64)seg * GPU_SEG * GPU_PANEL * sizeof(float);
                kernels_scalar.mat[DT_F32](&y, &px, 1, w, n, 0, 1);
                memcpy(s->parts.want + ((u64)r * s->segs + seg) * s->n_out + p * GPU_PANEL, y, GPU_PANEL * sizeof *y);
            }
        }
    if (s->a.router_.write_act)
        act_rows(s->act.want, h, s->n_in, s->stride, s->rows);
    free(y);
}

static void no_minus_zeros(struct router *s)
{
    for (u32 i = 0; i < s->parts.n; i++)
        if (s->parts.got[i] == 0x80000000)
            s->parts.got[i] = 0;
}

/* The parts added up are the product as the plan has it. */
static void sums_are_products(const struct router *s)
{
    float *y = mem_array(s->n_out, sizeof *y), *sums = mem_array(s->n_out, sizeof *sums);
    for (u32 r = 0; r < s->rows; r++) {
        struct act x = {.x = s->h + (u64)r * s->stride};
        const struct act *px = &x;
        kernels_scalar.mat[DT_F32](&y, &px, 1, s->cpu, s->n_in, 0, s->n_out / GPU_PANEL);
        for (u32 o = 0; o < s->n_out; o++) {
            sums[o] = 0.0f;
            for (u32 seg = 0; seg < s->segs; seg++)
                sums[o] = sums[o] + floats(s->parts.got)[((u64)r * s->segs + seg) * s->n_out + o];
        }
        check_same_floats("parts added up", sums, y, s->n_out);
    }
    free(y);
    free(sums);
}

static struct bufs router_bufs(const struct router *s)
{
    return (struct bufs){{s->in.got, s->x.got, s->norm.got, s->w.got, s->parts.got, s->act.got}};
}

static void try_router(u32 rows, u32 most, u32 n_in, u32 n_out, bool norm)
{
    struct router s = router_of(rows, most, n_in, n_out, norm);
    want_router(&s);
    launch(GK_router, &s.a, router_bufs(&s), GPU_SHM_ROUTER(most));
    no_minus_zeros(&s);
    area_same("parts", &s.parts);
    area_same("act", &s.act);
    area_same("x", &s.x);
    area_same("weights", &s.w);
    sums_are_products(&s);
    router_free(&s);
}

static u32 some_length(void)
{
    return (u32[]){1 + check_below(300), 4 * (1 + check_below(200)), 32 * (1 + check_below(40)), 256 * (1 + check_below(5))}[check_below(4)];
}

static void rows_are_multiplied(void **state)
{
    (void)state;
    static const u32 ROWS[] = {0, 1, 2, 3, 8, 9, 15, 16, 17, 31, 32, 33, 64};
    check_seed(140);
    for (u32 rep = 0; rep < 60; rep++) {
        u32 rows = ROWS[rep % COUNT(ROWS)], most = check_below(2) ? rows + !rows : rows + 1 + check_below(64 - rows + !(64 - rows));
        try_router(rows, most, some_length(), 16 * (1 + check_below(4)), false);
    }
    for (u32 rep = 0; rep < 6; rep++) /* beyond 64: several tiles of rows */
        try_router((u32[]){65, 70, 128, 129, 150, 40}[rep], 150 + check_below(100), some_length(), 16 + 16 * check_below(2), false);
}

static void rows_are_normalised_multiplied_and_quantised(void **state)
{
    (void)state;
    check_seed(141);
    for (u32 rep = 0; rep < 60; rep++) {
        u32 limit = rep % 2 ? NORM_ROWS : 8, rows = check_below(limit + 1), most = rows + check_below(limit + 1 - rows);
        try_router(rows, most + !most, some_length(), 16 * (1 + check_below(4)), true);
    }
}

/* 30B-A3B's, and a long row. */
static void large_routers(void **state)
{
    (void)state;
    static const u32 ROWS[] = {1, 2, 8, 9, 16, 33, 64, 70};
    check_seed(142);
    for (u32 i = 0; i < COUNT(ROWS); i++)
        try_router(ROWS[i], ROWS[i] > 64 ? 128 : ROWS[i], 2048, 128, ROWS[i] <= NORM_ROWS);
    try_router(2, 2, 2880, 32, true);
    try_router(1, 1, 4096, 64, true);
    try_router(3, 4, 4096 + 512, 512, false);
}

/* ---- barriers ---- */

static bool one_differs(const struct emu_opts *without)
{
    struct err err = {.text = ""};
    bool norm = check_below(2);
    u32 rows = norm ? NORM_ROWS : 64;
    struct router s = router_of(rows, rows, 1024, 32, norm);
    want_router(&s);
    emu_set(emu, without);
    bool differs = launch_on(GK_router, &s.a, router_bufs(&s), 1 + check_below(3), GPU_SHM_ROUTER(s.a.router_.rows), &err) != 0;
    no_minus_zeros(&s);
    differs |= area_differs(&s.parts) >= 0 || area_differs(&s.act) >= 0;
    router_free(&s);
    return differs;
}

static void every_barrier_is_needed(void **state)
{
    (void)state;
    enum { SEEDS = 40 };
    u32 at[64][2], n, seen = 0;
    struct emu_opts without = {.n_threads = 1, .poison = true};
    check_seed(143);
    for (u32 i = 0; i < 4; i++)
        assert_false(one_differs(&without));
    n = emu_barriers(emu, at, COUNT(at));
    for (u32 i = 0; i < n; i++, seen++) {
        bool shows = false;
        without.no_file = at[i][0];
        without.no_line = at[i][1];
        for (without.seed = 0; without.seed < SEEDS && !shows; without.seed++)
            shows = one_differs(&without);
        if (!shows)
            fail_msg("without the barrier in line %u of file %u nothing changes in %u seeds", at[i][1], at[i][0], (u32)SEEDS);
    }
    assert_int_equal(seen, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_multiplied),
        cmocka_unit_test(rows_are_normalised_multiplied_and_quantised),
        cmocka_unit_test(large_routers),
        cmocka_unit_test(every_barrier_is_needed),
    };
    return cmocka_run_group_tests(tests, open_emu, close_emu);
}
