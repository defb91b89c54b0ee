/* Products and packed weights: the scalar reference against the rules written out once more from the file's layout, one output
 * at a time, and every other instruction set against scalar. Always memcmp. The seed is fixed and printed on failure. */
#include "file_blocks.h"

#include "kernel/pack.h"

enum { MAX_IN = 3072, MAX_OUT = 80, MAX_M = 33 };

static const enum dtype QUANT[] = {DT_Q4_0, DT_Q4_1, DT_Q5_0, DT_Q5_1, DT_Q8_0, DT_Q4_K, DT_Q5_K, DT_Q6_K};
static const enum dtype FLOATS[] = {DT_F32, DT_F16, DT_BF16};

/* ---- the rules once more: one element of the file's layout at a time ---- */

struct elem { /* weight = d * sc * q - (or +) m * mn */
    float d, m;
    i32 sc, mn, q;
};

static void k_scale(const u8 *s, u32 j, i32 *sc, i32 *mn)
{
    if (j < 4) {
        *sc = s[j] & 63;
        *mn = s[j + 4] & 63;
    } else {
        *sc = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *mn = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    }
}

static struct elem element(enum dtype type, const u8 *row, u32 i)
{
    const struct dtype_info *t = dtype_info(type);
    const u8 *b = row + i / t->block_elems * t->block_bytes;
    u32 k = i % t->block_elems;
    struct elem e = {.d = ex_half(get16(b)), .sc = 1};
    u32 high;
    switch (type) {
    case DT_Q4_0:
        e.q = (k < 16 ? b[2 + k] & 15 : b[2 + k - 16] >> 4) - 8;
        break;
    case DT_Q4_1:
        e.m = ex_half(get16(b + 2));
        e.q = k < 16 ? b[4 + k] & 15 : b[4 + k - 16] >> 4;
        break;
    case DT_Q5_0:
        high = (u32)(b[2 + k / 8] >> k % 8 & 1);
        e.q = (i32)((k < 16 ? b[6 + k] & 15 : b[6 + k - 16] >> 4) | (i32)(high << 4)) - 16;
        break;
    case DT_Q5_1:
        e.m = ex_half(get16(b + 2));
        high = (u32)(b[4 + k / 8] >> k % 8 & 1);
        e.q = (i32)((k < 16 ? b[8 + k] & 15 : b[8 + k - 16] >> 4) | (i32)(high << 4));
        break;
    case DT_Q8_0:
        e.q = (i8)b[2 + k];
        break;
    case DT_Q4_K:
    case DT_Q5_K: {
        const u8 *q = b + (type == DT_Q4_K ? 16 : 48) + k / 64 * 32 + k % 32;
        e.m = ex_half(get16(b + 2));
        k_scale(b + 4, k / 32, &e.sc, &e.mn);
        e.q = k / 32 % 2 ? *q >> 4 : *q & 15;
        if (type == DT_Q5_K)
            e.q |= (b[16 + k % 32] >> k / 32 & 1) << 4;
        break;
    }
    default: { /* q6_k */
        u32 half = k / 128, l = k % 128;
        u8 low = b[64 * half + l % 64], up = b[128 + 32 * half + l % 32];
        e.d = ex_half(get16(b + 208));
        e.sc = (i8)b[192 + k / 16];
        e.q = (i32)((l < 64 ? low & 15 : low >> 4) | (up >> l / 32 * 2 & 3) << 4) - 32;
        break;
    }
    }
    return e;
}

static bool is_k(enum dtype type)
{
    return type == DT_Q4_K || type == DT_Q5_K || type == DT_Q6_K;
}

/* One output of one row, straight from rules 2-4. */
static float plain_product(enum dtype type, const u8 *row, const struct act *x, u32 n_in)
{
    float total = 0.0f;
    for (u32 s = 0; s < n_in; s += SEGMENT) {
        float p = 0.0f, b = 0.0f, d = 0.0f, m = 0.0f;
        for (u32 i = s; i < n_in && i < s + SEGMENT; i += 32) {
            i64 dot = 0, sum = 0;
            struct elem e = {0};
            for (u32 k = i; k < i + 32; k++) {
                e = element(type, row, k);
                dot += (i64)(is_k(type) ? e.sc : 1) * e.q * x->q[k];
                sum += x->q[k];
            }
            assert_true(dot < 1 << 24 && dot > -(1 << 24));
            assert_int_equal(sum, x->sum[i / 32]);
            float dx = x->d[i / 32];
            d = e.d;
            m = e.m;
            if (is_k(type)) {
                p = fmaf((float)dot, dx, p);
                b = fmaf((float)e.mn, dx * (float)sum, b);
            } else {
                p = fmaf((float)dot, d * dx, p);
                b = fmaf(m, dx * (float)sum, b);
            }
        }
        if (type == DT_Q4_K || type == DT_Q5_K)
            total += fmaf(-m, b, fmaf(d, p, 0.0f));
        else if (type == DT_Q6_K)
            total += fmaf(d, p, 0.0f);
        else if (type == DT_Q4_1 || type == DT_Q5_1)
            total += p + b;
        else
            total += p;
    }
    return total;
}

static float plain_value(enum dtype type, const u8 *row, u32 i)
{
    struct elem e = element(type, row, i);
    float v = (float)(e.sc * e.q) * e.d;
    if (type == DT_Q4_1 || type == DT_Q5_1)
        v = v + e.m;
    if (type == DT_Q4_K || type == DT_Q5_K)
        v = v - (float)e.mn * e.m;
    return ex_flush(v);
}

static float float_weight(enum dtype type, const u8 *row, u32 i)
{
    float x;
    if (type == DT_F32)
        memcpy(&x, row + 4 * i, 4);
    else
        x = type == DT_F16 ? ex_half(get16(row + 2 * i)) : ex_bf16(get16(row + 2 * i));
    return ex_flush(x);
}

static float plain_float_product(enum dtype type, const u8 *row, const float *x, u32 n_in)
{
    float total = 0.0f;
    for (u32 s = 0; s < n_in; s += SEGMENT) {
        float p = 0.0f;
        for (u32 i = s; i < n_in && i < s + SEGMENT; i++)
            p = fmaf(float_weight(type, row, i), x[i], p);
        total += p;
    }
    return total;
}

/* ---- one product problem: random weights and rows ---- */

struct problem {
    enum dtype type;
    u32 n_in, n_out, m, panels;
    u64 row_bytes;
    u8 *file, *packed;
    struct guarded file_g, packed_g, x_g[MAX_M], q_g[MAX_M], d_g[MAX_M], s_g[MAX_M];
    struct act act[MAX_M];
    const struct act *in[MAX_M];
};

static void make_problem(struct problem *p, enum dtype type, u32 n_in, u32 n_out, u32 m)
{
    const struct dtype_info *t = dtype_info(type);
    *p = (struct problem){.type = type, .n_in = n_in, .n_out = n_out, .m = m, .panels = pack_panels(n_out)};
    p->row_bytes = n_in / t->block_elems * t->block_bytes;
    p->file = guard(&p->file_g, p->row_bytes * n_out, true);
    random_blocks(type, p->file, p->row_bytes * n_out);
    p->packed = guard(&p->packed_g, pack_panel_bytes(type, n_in) * p->panels, true);
    u32 bad;
    assert_int_equal(pack(type, p->file, n_in, n_out, p->packed, 0, p->panels, &bad), 0);
    for (u32 i = 0; i < m; i++) {
        float *x = guard(&p->x_g[i], n_in * sizeof *x, true);
        i8 *q = guard(&p->q_g[i], n_in, true);
        float *d = guard(&p->d_g[i], (n_in / 32) * sizeof *d, true);
        i16 *s = guard(&p->s_g[i], (n_in / 32) * sizeof *s, true);
        bool wild = check_below(2);
        for (u32 k = 0; k < n_in; k++)
            x[k] = ex_flush(wild ? check_float() : check_plain());
        if (t->quantised)
            kernels_scalar.quantise(x, n_in, q, d, s);
        p->act[i] = (struct act){x, q, d, s};
        p->in[i] = &p->act[i];
    }
}

static void free_problem(struct problem *p)
{
    unguard(&p->file_g);
    unguard(&p->packed_g);
    for (u32 i = 0; i < p->m; i++) {
        unguard(&p->x_g[i]);
        unguard(&p->q_g[i]);
        unguard(&p->d_g[i]);
        unguard(&p->s_g[i]);
    }
}

/* y: (m, panels * 16), each row between guards. */
static void run_problem(const struct kernels *k, const struct problem *p, float *out)
{
    struct guarded g[MAX_M];
    float *y[MAX_M];
    u32 n = p->panels * PANEL;
    for (u32 i = 0; i < p->m; i++) {
        y[i] = guard(&g[i], n * sizeof(float), true);
        memset(y[i], 0xA5, n * sizeof(float));
    }
    u32 cut = check_below(p->panels + 1); /* any split of the panels */
    k->mat[p->type](y, p->in, p->m, p->packed, p->n_in, 0, cut);
    k->mat[p->type](y, p->in, p->m, p->packed, p->n_in, cut, p->panels);
    for (u32 i = 0; i < p->m; i++) {
        memcpy(out + (u64)i * n, y[i], n * sizeof(float));
        unguard(&g[i]);
    }
}

static u32 random_n_in(enum dtype type)
{
    u32 block = dtype_info(type)->block_elems;
    if (block == 1)
        return 1 + check_below(check_below(4) ? 130 : 900);
    u32 most = (check_below(4) ? 1024 : MAX_IN) / block;
    return block * (1 + check_below(most));
}

static float *out_a, *out_b;

static void scalar_follows_the_rules(void **state)
{
    (void)state;
    check_seed(1);
    for (u32 t = 0; t < COUNT(QUANT); t++)
        for (u32 rep = 0; rep < 12; rep++) {
            struct problem p;
            make_problem(&p, QUANT[t], random_n_in(QUANT[t]), 1 + check_below(40), 1 + check_below(10));
            run_problem(&kernels_scalar, &p, out_a);
            for (u32 i = 0; i < p.m; i++)
                for (u32 r = 0; r < p.n_out; r++) {
                    float want = plain_product(p.type, p.file + r * p.row_bytes, &p.act[i], p.n_in);
                    check_same_floats(dtype_info(p.type)->name, out_a + (u64)i * p.panels * PANEL + r, &want, 1);
                }
            free_problem(&p);
        }
}

static void scalar_float_products_follow_rule_5(void **state)
{
    (void)state;
    check_seed(2);
    for (u32 t = 0; t < COUNT(FLOATS); t++)
        for (u32 rep = 0; rep < 20; rep++) {
            struct problem p;
            make_problem(&p, FLOATS[t], random_n_in(FLOATS[t]), 1 + check_below(40), 1 + check_below(10));
            run_problem(&kernels_scalar, &p, out_a);
            for (u32 i = 0; i < p.m; i++)
                for (u32 r = 0; r < p.n_out; r++) {
                    float want = plain_float_product(p.type, p.file + r * p.row_bytes, p.act[i].x, p.n_in);
                    check_same_floats(dtype_info(p.type)->name, out_a + (u64)i * p.panels * PANEL + r, &want, 1);
                }
            free_problem(&p);
        }
}

static void products_agree(const struct kernels *k, enum dtype type)
{
    for (u32 rep = 0; rep < 40; rep++) {
        struct problem p;
        make_problem(&p, type, random_n_in(type), 1 + check_below(MAX_OUT), 1 + (rep < MAX_M ? rep : check_below(9)));
        run_problem(&kernels_scalar, &p, out_a);
        run_problem(k, &p, out_b);
        char what[64];
        snprintf(what, sizeof what, "%s %s m=%u n_in=%u", k->isa, dtype_info(type)->name, p.m, p.n_in);
        check_same_floats(what, out_b, out_a, (u64)p.m * p.panels * PANEL);
        free_problem(&p);
    }
}

/* A row's result is the same alone and among others, wherever it stands. */
static void rows_are_alone_in_company(const struct kernels *k, enum dtype type)
{
    struct problem p;
    make_problem(&p, type, random_n_in(type), 1 + check_below(MAX_OUT), 2 + check_below(MAX_M - 2));
    u32 n = p.panels * PANEL;
    run_problem(k, &p, out_a);
    for (u32 i = 0; i < p.m; i++) {
        struct problem one = p;
        one.m = 1;
        one.in[0] = p.in[i];
        run_problem(k, &one, out_b);
        check_same_floats("alone", out_b, out_a + (u64)i * n, n);
    }
    free_problem(&p);
}

static void products_of(const struct kernels *k)
{
    for (u32 t = 0; t < COUNT(QUANT); t++) {
        products_agree(k, QUANT[t]);
        rows_are_alone_in_company(k, QUANT[t]);
    }
    for (u32 t = 0; t < COUNT(FLOATS); t++) {
        products_agree(k, FLOATS[t]);
        rows_are_alone_in_company(k, FLOATS[t]);
    }
}

static void every_isa_multiplies_alike(void **state)
{
    (void)state;
    check_seed(3);
    each_isa(products_of);
}

/* ---- embedding rows, packing ---- */

static void rows_come_back_out_of_panels(void **state)
{
    (void)state;
    check_seed(9);
    static float y[MAX_IN];
    for (u32 t = 0; t < COUNT(QUANT) + COUNT(FLOATS); t++) {
        enum dtype type = t < COUNT(QUANT) ? QUANT[t] : FLOATS[t - COUNT(QUANT)];
        struct problem p;
        make_problem(&p, type, random_n_in(type), 1 + check_below(40), 1);
        for (u32 r = 0; r < p.n_out; r++) {
            const u8 *row = p.file + r * p.row_bytes;
            unpack_row(type, p.packed, p.n_in, r, y);
            for (u32 i = 0; i < p.n_in; i++) {
                float want = dtype_info(type)->quantised ? plain_value(type, row, i) : float_weight(type, row, i);
                check_same_floats(dtype_info(type)->name, y + i, &want, 1);
            }
        }
        free_problem(&p);
    }
}

static void scales_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    check_seed(10);
    static u8 file[64 * 1024], panels[64 * 1024];
    for (u32 t = 0; t < COUNT(QUANT) + COUNT(FLOATS); t++) {
        enum dtype type = t < COUNT(QUANT) ? QUANT[t] : FLOATS[t - COUNT(QUANT)];
        const struct dtype_info *ti = dtype_info(type);
        u32 n_in = 256, n_out = 20, bad = 99, row_bytes = n_in / ti->block_elems * ti->block_bytes;
        random_blocks(type, file, row_bytes * n_out);
        assert_int_equal(pack(type, file, n_in, n_out, panels, 0, 2, &bad), 0);
        u32 at = row_bytes * 17 + (type == DT_Q6_K ? 208 : 0);
        if (type == DT_F32)
            memcpy(file + at, &(float){INFINITY}, 4);
        else
            put16(file + at, type == DT_BF16 ? 0x7FC0 : 0x7C00);
        assert_int_equal(pack(type, file, n_in, n_out, panels, 0, 2, &bad), -1);
        assert_int_equal(bad, 17);
    }
}

/* ---- frozen hashes: the reference itself must not move with its compiler ---- */

static void hashes_are_frozen(void **state)
{
    (void)state;
    check_seed(12);
    for (u32 t = 0; t < COUNT(QUANT) + COUNT(FLOATS); t++) {
        enum dtype type = t < COUNT(QUANT) ? QUANT[t] : FLOATS[t - COUNT(QUANT)];
        char name[64];
        u64 h = 0;
        for (u32 rep = 0; rep < 5; rep++) {
            struct problem p;
            make_problem(&p, type, rep == 0 ? 512 : random_n_in(type), 33 + rep, 1 + 2 * rep);
            run_problem(&kernels_scalar, &p, out_a);
            for (u64 i = 0; i < (u64)p.m * p.panels * PANEL; i++)
                if (isnan(out_a[i]))
                    out_a[i] = NAN;
            h = check_hash(h, out_a, (u64)p.m * p.panels * PANEL * sizeof(float));
            free_problem(&p);
        }
        snprintf(name, sizeof name, "kernel.mat.%s", dtype_info(type)->name);
        check_golden(name, h);
    }
}

static int open_buffers(void **state)
{
    (void)state;
    out_a = calloc(MAX_M * (MAX_OUT + PANEL), sizeof *out_a);
    out_b = calloc(MAX_M * (MAX_OUT + PANEL), sizeof *out_b);
    return out_a && out_b ? 0 : -1;
}

static int close_buffers(void **state)
{
    (void)state;
    free(out_a);
    free(out_b);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_follows_the_rules),
        cmocka_unit_test(scalar_float_products_follow_rule_5),
        cmocka_unit_test(every_isa_multiplies_alike),
        cmocka_unit_test(rows_come_back_out_of_panels),
        cmocka_unit_test(scales_that_are_not_finite_are_refused),
        cmocka_unit_test(hashes_are_frozen),
    };
    return cmocka_run_group_tests(tests, open_buffers, close_buffers);
}
