/* What the fixed order of every sum costs (docs/numerics.md, rule 16): the table's bodies against bodies that may sum
 * as they like (fast.h), on the same inputs. Bodies take turns in one process; times are CPU time of the one thread,
 * each the best and the median of ROUNDS; every unordered result is compared with the product's first. Prints
 * Markdown.
 *
 *   order [ISA [NAME]]    ISA: of the product's table; the other bodies want AVX-512 VNNI. NAME: rows that begin so */
#include "fast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/exact.h"
#include "kernel/pack.h"

enum { N_IN = 2048, COLD_BYTES = 96 << 20, WARM_BYTES = 1 << 20, MAX_M = 64, ROUNDS = 25, PARTS = 8 };

enum body {
    TABLE, /* the product's */
    FIXED, /* the text of FREE in the product's order: what FREE gains by its order alone */
    FREE,  /* any order, the same layout */
    ROWS,  /* any order, the file's rows */
    BODIES
};

/* What one row of the table measures. run: body b over part `part` of the data. */
struct bench {
    char name[96];
    u32 bodies, n_parts, times; /* bodies: a bit each; times: runs in one timing */
    void (*run)(void *arg, u32 body, u32 part);
    void *arg;
    double work; /* of one part */
    const char *unit;
    float off; /* largest difference of an unordered result, against the root mean square */
};

static const char *only = "";
static u64 state = 0x9E3779B97F4A7C15u;

static u32 draw(void) /* xorshift64* */
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (u32)(state * 0x2545F4914F6CDD1Dull >> 32);
}

static float draw_float(void)
{
    return (float)(i32)draw() * 0x1p-31f;
}

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int up(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void *need(u64 bytes)
{
    void *p = mem_alloc(bytes);
    if (!p) {
        fprintf(stderr, "order: out of memory\n");
        abort();
    }
    return p;
}

static bool has(const struct bench *b, u32 body)
{
    return b->bodies >> body & 1;
}

/* What `a` takes more than the best of `bodies`, best and median runs. */
static void put_cost(double (*t)[ROUNDS], u32 a, u32 bodies)
{
    double best = 1e9, median = 1e9;
    for (u32 i = 0; i < BODIES; i++)
        if (bodies >> i & 1) {
            best = fmin(best, t[i][0]);
            median = fmin(median, t[i][ROUNDS / 2]);
        }
    printf(" %+.0f %% (%+.0f %%) |", 100 * (t[a][0] / best - 1), 100 * (t[a][ROUNDS / 2] / median - 1));
}

/* Cold bodies each read another part, and no part again until all have been read: nothing is found in a cache. */
static void measure(struct bench *b)
{
    double t[BODIES][ROUNDS];
    u32 part = 0;
    if (strncmp(b->name, only, strlen(only)))
        return;
    for (u32 round = 0; round < ROUNDS; round++)
        for (u32 i = 0; i < BODIES; i++) {
            u32 body = (i + round) % BODIES;
            if (!has(b, body))
                continue;
            double t0 = cpu_now();
            for (u32 k = 0; k < b->times; k++)
                b->run(b->arg, body, part);
            t[body][round] = (cpu_now() - t0) / b->times;
            part = (part + 1) % b->n_parts;
        }
    printf("| %s | %s |", b->name, b->unit);
    for (u32 i = 0; i < BODIES; i++) {
        if (has(b, i)) {
            qsort(t[i], ROUNDS, sizeof **t, up);
            printf(" %.1f (%.1f) |", b->work / t[i][0] * 1e-9, b->work / t[i][ROUNDS / 2] * 1e-9);
        } else {
            printf("  |");
        }
    }
    if (has(b, FIXED))
        put_cost(t, FIXED, 1 << FREE);
    else
        printf("  |");
    put_cost(t, TABLE, b->bodies & (1 << FREE | 1 << ROWS));
    printf(" %.0e |\n", (double)b->off);
    fflush(stdout);
}

/* The largest |a - b| against the root mean square of a; not below *most. Ends the program above 1e-3. */
static void compare(struct bench *b, const float *y, const float *z, u64 n)
{
    double square = 0, most = 0;
    for (u64 i = 0; i < n; i++) {
        square += (double)y[i] * y[i];
        most = fmax(most, fabs((double)y[i] - z[i]));
    }
    most /= sqrt(square / (double)n);
    if (!(most < 1e-3)) {
        fprintf(stderr, "order: %s: an unordered result is off by %g\n", b->name, most);
        abort();
    }
    b->off = most > b->off ? (float)most : b->off;
}

/* ---- products ---- */

typedef void (*mat_fn)(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1);

struct mat {
    mat_fn body[BODIES];
    const u8 *w[BODIES];
    u32 m, part; /* panels of a part */
    u32 n_in;
    const struct act *x[MAX_M];
    float *y[MAX_M];
    struct act act[MAX_M];
};

/* In tasks of a few panels, as the device has them. */
static void run_mat(void *arg, u32 body, u32 part)
{
    const struct mat *t = arg;
    u32 chunk = t->m < 16 ? 4 : 8, p0 = part * t->part, p1 = p0 + t->part;
    for (u32 p = p0; p < p1; p += chunk)
        t->body[body](t->y, t->x, t->m, t->w[body], t->n_in, p, min_u32(p + chunk, p1));
}

static void make_rows(struct mat *t, u32 n_out)
{
    for (u32 i = 0; i < MAX_M; i++) {
        float *x = need(N_IN * sizeof *x), *d = need(N_IN / ACT_BLOCK * sizeof *d);
        i8 *q = need(N_IN);
        i16 *sum = need(N_IN / ACT_BLOCK * sizeof *sum);
        for (u32 k = 0; k < N_IN; k++)
            x[k] = draw_float();
        kernels_choose("scalar")->quantise(x, N_IN, q, d, sum);
        t->act[i] = (struct act){x, q, d, sum};
        t->x[i] = &t->act[i];
        t->y[i] = need(n_out * sizeof *t->y[i]);
    }
}

static void check_mat(struct bench *b, struct mat *t)
{
    u32 n = t->part * PANEL;
    float *want = need((u64)MAX_M * n * sizeof *want);
    for (u32 body = 0; body < BODIES; body++) {
        if (!has(b, body))
            continue;
        for (u32 i = 0; i < t->m; i++)
            memset(t->y[i], 0xFF, n * sizeof *want); /* NaN: nothing is left of another body's */
        run_mat(t, body, 0);
        for (u32 i = 0; i < t->m; i++)
            if (body == TABLE)
                memcpy(want + (u64)i * n, t->y[i], n * sizeof *want);
            else if (body != FIXED)
                compare(b, want + (u64)i * n, t->y[i], n);
            else if (memcmp(want + (u64)i * n, t->y[i], n * sizeof *want)) {
                fprintf(stderr, "order: %s: the fixed order's bits differ\n", b->name);
                abort();
            }
    }
    mem_free(want, (u64)MAX_M * n * sizeof *want);
}

static void bench_mat(struct mat *t, const char *what, u32 m, bool cold, u64 row_bytes, u32 n_panels)
{
    u32 warm = (u32)(WARM_BYTES / (row_bytes * PANEL));
    struct bench b = {.n_parts = cold ? PARTS : 1, .times = cold ? 1 : m < 16 ? 8 : 2, .run = run_mat, .arg = t};
    for (u32 i = 0; i < BODIES; i++)
        b.bodies |= (u32) !!t->body[i] << i;
    t->m = m;
    t->part = cold ? n_panels / PARTS : min_u32(warm / 8 * 8, n_panels);
    b.unit = m == 1 ? "GB/s" : "GMAC/s";
    b.work = m == 1 ? (double)t->part * PANEL * (double)row_bytes : (double)t->part * PANEL * N_IN * m;
    snprintf(b.name, sizeof b.name, "%s, %u row%s, weights from %s", what, m, m > 1 ? "s" : "",
             cold ? "memory" : "the cache");
    check_mat(&b, t);
    measure(&b);
}

/* A quantised matrix, or the router's: 128 outputs in f32. */
static void bench_type(const struct kernels *k, enum dtype type, const char *what, mat_fn fixed, mat_fn panels,
                       mat_fn rows)
{
    static struct mat t;
    const struct dtype_info *info = dtype_info(type);
    bool router = type == DT_F32;
    u64 row = (u64)N_IN / info->block_elems * info->block_bytes, panel = pack_panel_bytes(type, N_IN);
    u32 n_panels = router ? 128 / PANEL : (u32)(COLD_BYTES / panel) / (8 * PARTS) * (8 * PARTS), bad;
    u8 *file = need(row * n_panels * PANEL), *packed = need(panel * n_panels);
    for (u64 i = 0; i < row * n_panels * PANEL; i++)
        file[i] = (u8)draw();
    for (u64 i = 0; router && i < row * n_panels * PANEL; i += 4)
        memcpy(file + i, &(float){draw_float()}, 4);
    for (u64 i = 0; !router && i < row * n_panels * PANEL; i += info->block_bytes) /* scales of about 2^-4 */
        for (u32 h = 0; h < (type == DT_Q4_K ? 4 : 2); h += 2)
            file[i + h + 1] = (u8)(0x28 | (file[i + h + 1] & 0x87));
    if (pack(type, file, N_IN, n_panels * PANEL, packed, 0, n_panels, &bad))
        abort();
    t = (struct mat){.body = {k->mat[type], fixed, panels, rows}, .w = {packed, packed, packed, file}, .n_in = N_IN};
    make_rows(&t, n_panels * PANEL);
    if (!router) {
        bench_mat(&t, what, 1, true, row, n_panels);
        bench_mat(&t, what, 8, true, row, n_panels);
    }
    bench_mat(&t, what, 1, false, row, n_panels);
    bench_mat(&t, what, 8, false, row, n_panels);
    bench_mat(&t, what, 64, false, row, n_panels);
    mem_free(file, row * n_panels * PANEL);
    mem_free(packed, panel * n_panels);
}

/* ---- rows ---- */

struct row {
    const struct kernels *k;
    float x[N_IN], w[N_IN], y[BODIES][N_IN];
    u32 n_experts;
    bool used_norm;
    u16 ids[BODIES][16];
};

static void run_rmsnorm(void *arg, u32 body, u32 part)
{
    struct row *t = arg;
    (void)part;
    (body == FREE ? fast_rmsnorm : t->k->rmsnorm)(t->y[body], t->x, t->w, N_IN, 1e-6f);
}

static void run_route(void *arg, u32 body, u32 part)
{
    struct row *t = arg;
    (void)part;
    (body == FREE ? fast_route : body == FIXED ? fixed_route : route_topk)(t->x, t->n_experts, 8, t->used_norm, 1.0f, t->ids[body], t->y[body]);
}

static void bench_rows(const struct kernels *k)
{
    static struct row t;
    t.k = k;
    t.n_experts = 128;
    for (u32 i = 0; i < N_IN; i++) {
        t.x[i] = draw_float() * 4;
        t.w[i] = draw_float();
    }
    struct bench b = {.bodies = 1 << TABLE | 1 << FREE,
                      .n_parts = 1,
                      .times = 400,
                      .run = run_rmsnorm,
                      .arg = &t,
                      .work = N_IN,
                      .unit = "elements/ns"};
    snprintf(b.name, sizeof b.name, "RMSNorm of %d", N_IN);
    run_rmsnorm(&t, TABLE, 0);
    run_rmsnorm(&t, FREE, 0);
    compare(&b, t.y[TABLE], t.y[FREE], N_IN);
    measure(&b);
    for (u32 i = 0; i < 2; i++) {
        t.used_norm = i == 0;
        b = (struct bench){.bodies = 1 << TABLE | 1 << FIXED | 1 << FREE,
                           .n_parts = 1,
                           .times = 400,
                           .run = run_route,
                           .arg = &t,
                           .work = 1e3,
                           .unit = "rows/us"};
        snprintf(b.name, sizeof b.name, "8 of 128 experts, softmax over %s", i ? "all" : "the chosen");
        run_route(&t, TABLE, 0);
        run_route(&t, FIXED, 0);
        run_route(&t, FREE, 0);
        if (memcmp(t.y[TABLE], t.y[FIXED], 8 * sizeof(float)))
            abort();
        if (memcmp(t.ids[TABLE], t.ids[FREE], 8 * sizeof(u16)))
            abort();
        compare(&b, t.y[TABLE], t.y[FREE], 8);
        measure(&b);
    }
}

/* ---- attention over a chunk of 256 positions ---- */

enum { D = 128, QUERIES = 32, HEAD = KV_CHUNK * D };

struct attend {
    const struct kernels *k;
    u16 *keys, *values; /* (PARTS, HEAD) times as many as a part has */
    u32 n, part;        /* queries; chunks of a part */
    float q[QUERIES * D], o[BODIES][QUERIES * D];
    struct attend_query a[BODIES][QUERIES];
};

static void run_attend(void *arg, u32 body, u32 part)
{
    struct attend *t = arg;
    float scale = 1.0f / sqrtf(D);
    for (u32 c = part * t->part; c < (part + 1) * t->part; c++)
        (body == FREE ? fast_attend_many : t->k->attend_f16_many)(t->a[body], t->n, t->keys + (u64)c * HEAD,
                                                                  t->values + (u64)c * HEAD, D, scale);
}

static void bench_attend(const struct kernels *k)
{
    static const struct {
        u32 n;
        bool cold;
        const char *what;
    } CASES[] = {{1, false, "1 query"},
                 {8, true, "8 queries (decode: heads that share keys), from memory"},
                 {8, false, "8 queries"},
                 {32, false, "32 queries (4 rows of a prompt)"}};
    static struct attend t;
    u64 n = COLD_BYTES / 2 / (2 * HEAD), bytes = n * HEAD * 2;
    t.k = k;
    t.keys = need(bytes);
    t.values = need(bytes);
    for (u64 i = 0; i < n * HEAD; i++) {
        t.keys[i] = (u16)ex_to_half(draw_float());
        t.values[i] = (u16)ex_to_half(draw_float());
    }
    for (u32 i = 0; i < QUERIES * D; i++)
        t.q[i] = draw_float() * 4;
    for (u32 body = 0; body < BODIES; body++)
        for (u32 i = 0; i < QUERIES; i++)
            t.a[body][i] = (struct attend_query){.q = t.q + i * D, .o = t.o[body] + i * D, .n_pos = KV_CHUNK};
    for (u32 i = 0; i < COUNT(CASES); i++) {
        bool cold = CASES[i].cold;
        t.n = CASES[i].n;
        t.part = cold ? (u32)n / PARTS : 1;
        struct bench b = {.bodies = 1 << TABLE | 1 << FREE,
                          .n_parts = cold ? PARTS : 1,
                          .times = cold ? 1 : 20,
                          .run = run_attend,
                          .arg = &t};
        b.work = 2.0 * HEAD * t.n * t.part;
        b.unit = "GMAC/s";
        snprintf(b.name, sizeof b.name, "attention, %s", CASES[i].what);
        run_attend(&t, TABLE, 0);
        run_attend(&t, FREE, 0);
        compare(&b, t.o[TABLE], t.o[FREE], (u64)t.n * D);
        for (u32 r = 0; r < t.n; r++)
            compare(&b, &t.a[TABLE][r].l, &t.a[FREE][r].l, 1);
        measure(&b);
    }
    mem_free(t.keys, bytes);
    mem_free(t.values, bytes);
}

int main(int argc, char **argv)
{
    const struct kernels *k = kernels_choose(argc > 1 ? argv[1] : NULL);
    only = argc > 2 ? argv[2] : only;
    if (!k || !kernels_choose("avx512vnni")) {
        fprintf(stderr, "order: the unordered bodies are written for AVX-512 VNNI\n");
        return 1;
    }
    printf("| kernel | unit | the table's (%s) | written once more, fixed order | unordered, same layout | unordered, "
           "file's rows | order alone | the table's against the best | off by |\n",
           k->isa);
    printf("|---|---|---|---|---|---|---|---|---|\n");
    bench_type(k, DT_Q4_0, "q4_0", fixed_q4_0, fast_q4_0, fast_q4_0_rows);
    bench_type(k, DT_Q4_K, "q4_k", fixed_q4_k, fast_q4_k, fast_q4_k_rows);
    bench_type(k, DT_F32, "router, f32", NULL, fast_f32, fast_f32_rows);
    bench_attend(k);
    bench_rows(k);
    return 0;
}
