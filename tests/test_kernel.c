/* Every kernel: the scalar reference against the rules written out once more from the file's layout, one output at a
 * time, and every other instruction set against scalar. Always memcmp. The seed is fixed and printed on failure. */
#include "check.h"

#include "kernel/kernel.h"
#include "kernel/pack.h"
#include "kernel/tables.h"

enum { MAX_IN = 3072, MAX_OUT = 80, MAX_M = 33 };

static const enum dtype QUANT[] = {DT_Q4_0, DT_Q4_1, DT_Q5_0, DT_Q5_1, DT_Q8_0, DT_Q4_K, DT_Q5_K, DT_Q6_K};
static const enum dtype FLOATS[] = {DT_F32, DT_F16, DT_BF16};

/* ---- random file data ---- */

static u16 random_scale(void)
{
    switch (check_below(8)) {
    case 0:
        return (u16)check_below(0x400); /* denormal halves: usual in K types */
    case 1:
        return (u16)(check_u32() & 0xFBFF & ~0x7C00u); /* signed denormals */
    case 2:
        return 0x7BFF;
    case 3:
        return 0;
    default:
        return (u16)(ex_to_half(check_plain() * 0.1f));
    }
}

static void put16(u8 *p, u16 h)
{
    p[0] = (u8)h;
    p[1] = (u8)(h >> 8);
}

static void random_blocks(enum dtype type, u8 *p, u64 bytes)
{
    const struct dtype_info *t = dtype_info(type);
    for (u64 i = 0; i < bytes; i++)
        p[i] = (u8)check_u32();
    for (u64 b = 0; b < bytes; b += t->block_bytes) {
        if (type == DT_F32) {
            float x = check_float();
            memcpy(p + b, &x, 4);
        } else if (type == DT_F16) {
            put16(p + b, (u16)ex_to_half(check_float()));
        } else if (type == DT_BF16) {
            put16(p + b, (u16)(EX_BITS(check_float()) >> 16));
        } else {
            put16(p + b + (type == DT_Q6_K ? 208 : 0), random_scale());
            if (type == DT_Q4_1 || type == DT_Q5_1 || type == DT_Q4_K || type == DT_Q5_K)
                put16(p + b + 2, random_scale());
        }
    }
}

/* ---- the rules once more: one element of the file's layout at a time ---- */

static u16 get16(const u8 *p)
{
    return (u16)(p[0] | p[1] << 8);
}

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

static void each_isa(void (*fn)(const struct kernels *k))
{
    const char *names[16];
    u32 n = kernels_list(names, COUNT(names));
    for (u32 i = 0; i < n; i++)
        fn(kernels_choose(names[i]));
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

/* ---- rule 1 ---- */

static void plain_quantise(const float *x, i8 *q, float *d, i16 *sum)
{
    float m = 0.0f;
    bool finite = true;
    for (u32 i = 0; i < 32; i++) {
        finite &= isfinite(x[i]) != 0;
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    }
    *sum = 0;
    memset(q, 0, 32);
    if (!finite) {
        *d = NAN;
        return;
    }
    *d = ex_round11(m / 127.0f);
    if (*d < 0x1p-60f) {
        *d = 0.0f;
        return;
    }
    for (u32 i = 0; i < 32; i++) {
        float v = rintf(x[i] * (1.0f / *d));
        assert_true(fabsf(v) <= 127.0f);
        q[i] = (i8)v;
        *sum = (i16)(*sum + q[i]);
    }
}

static void quantise_of(const struct kernels *k)
{
    for (u32 rep = 0; rep < 4000; rep++) {
        struct guarded gx, gq;
        u32 blocks = 1 + check_below(3), n = blocks * 32;
        float *x = guard(&gx, n * sizeof *x, rep % 2), d[3], dw[3];
        i8 *q = guard(&gq, n, rep % 2), qw[96];
        i16 s[3], sw[3];
        float size = EX_FLOAT((1 + check_below(253)) << 23); /* any exponent */
        for (u32 i = 0; i < n; i++)
            x[i] = check_below(3) ? check_plain() * size : check_float();
        if (check_below(16) == 0)
            x[check_below(n)] = check_below(2) ? NAN : INFINITY;
        k->quantise(x, n, q, d, s);
        for (u32 b = 0; b < blocks; b++)
            plain_quantise(x + 32 * b, qw + 32 * b, dw + b, sw + b);
        check_same_floats("scale", d, dw, blocks);
        assert_memory_equal(q, qw, n);
        assert_memory_equal(s, sw, blocks * sizeof *s);
        unguard(&gx);
        unguard(&gq);
    }
}

static void every_isa_quantises_by_rule_1(void **state)
{
    (void)state;
    check_seed(4);
    each_isa(quantise_of);
}

/* ---- rows ---- */

static void rows_of(const struct kernels *k)
{
    const struct kernels *s = &kernels_scalar;
    for (u32 rep = 0; rep < 400; rep++) {
        u32 n = rep < 131 ? rep : 1 + check_below(600);
        struct guarded g[4];
        float *a = guard(&g[0], n * sizeof *a, true), *b = guard(&g[1], n * sizeof *b, true);
        float *x = guard(&g[2], n * sizeof *x, true), *w = guard(&g[3], n * sizeof *w, true);
        for (u32 i = 0; i < n; i++) {
            x[i] = check_float();
            w[i] = check_plain();
        }
        if (n) {
            k->rmsnorm(a, x, w, n, 1e-6f);
            s->rmsnorm(b, x, w, n, 1e-6f);
            check_same_floats("rmsnorm", a, b, n);
        }
        k->swiglu(a, x, w, n);
        s->swiglu(b, x, w, n);
        check_same_floats("swiglu", a, b, n);
        k->add(a, x, n);
        s->add(b, x, n);
        check_same_floats("add", a, b, n);
        float f = check_float();
        k->axpy(a, x, f, n);
        s->axpy(b, x, f, n);
        check_same_floats("axpy", a, b, n);
        u32 d_rope = n / 2 * 2;
        if (d_rope && check_below(3) == 0)
            d_rope = 2 * (1 + check_below(d_rope / 2));
        for (u32 neox = 0; d_rope && neox < 2; neox++) {
            memcpy(a, x, n * sizeof *a);
            memcpy(b, x, n * sizeof *b);
            k->rope(a, w, n, d_rope, neox);
            s->rope(b, w, n, d_rope, neox);
            check_same_floats("rope", a, b, n);
        }
        for (u32 i = 0; i < 4; i++)
            unguard(&g[i]);
    }
}

static void every_isa_does_rows_alike(void **state)
{
    (void)state;
    check_seed(5);
    each_isa(rows_of);
}

static void silu_and_norm_are_right(void **state)
{
    (void)state;
    check_seed(6);
    for (u32 rep = 0; rep < 2000; rep++) {
        float g = check_plain() * 30.0f, u = check_plain(), y;
        kernels_scalar.swiglu(&y, &g, &u, 1);
        double want = (double)g / (1.0 + exp(-(double)g)) * (double)u;
        assert_true(fabs((double)y - want) <= 1e-6 * fabs(want) + 1e-12);
    }
    for (u32 rep = 0; rep < 100; rep++) {
        float x[300], w[300], y[300];
        double sum = 0;
        u32 n = 1 + check_below(300);
        for (u32 i = 0; i < n; i++) {
            x[i] = check_plain();
            w[i] = check_plain();
            sum += (double)x[i] * x[i];
        }
        kernels_scalar.rmsnorm(y, x, w, n, 1e-5f);
        for (u32 i = 0; i < n; i++) {
            double want = (double)x[i] / sqrt(sum / n + 1e-5) * (double)w[i];
            assert_true(fabs((double)y[i] - want) <= 2e-6 * fabs(want) + 1e-12);
        }
    }
}

/* ---- attention ---- */

static void attend_of(const struct kernels *k)
{
    enum { MAX_D = 160 };
    for (u32 rep = 0; rep < 120; rep++) {
        u32 d = rep % 3 ? 16 * (1 + check_below(10)) : 2 * (1 + check_below(80));
        u32 n = rep < 66 ? 1 + rep : 1 + check_below(256), panels = (n + 31) / 32;
        struct guarded gk, gv, gq, go;
        u16 *kk = guard(&gk, (size_t)panels * 32 * d * 2, true), *v = guard(&gv, (size_t)n * d * 2, true);
        float *q = guard(&gq, d * sizeof *q, true), *o = guard(&go, d * sizeof *o, true);
        float want[MAX_D], m1, l1, m2, l2;
        for (u32 i = 0; i < panels * 32 * d; i++)
            kk[i] = (u16)ex_to_half(check_plain() * 4.0f);
        for (u32 i = 0; i < n * d; i++)
            v[i] = (u16)ex_to_half(check_below(20) ? check_plain() : check_float());
        for (u32 i = 0; i < d; i++)
            q[i] = ex_flush(check_plain() * 8.0f);
        k->attend_f16(o, &m1, &l1, q, kk, v, n, d, 0.125f);
        kernels_scalar.attend_f16(want, &m2, &l2, q, kk, v, n, d, 0.125f);
        check_same_floats("attend o", o, want, d);
        check_same_floats("attend m", &m1, &m2, 1);
        check_same_floats("attend l", &l1, &l2, 1);
        unguard(&gk);
        unguard(&gv);
        unguard(&gq);
        unguard(&go);
    }
}

/* q8_0 store: against the rules one element at a time, from the layout in kernel.h. */
static float plain_score(const struct act *q, const u8 *k, u32 j, u32 d_head)
{
    float p = 0.0f, total = 0.0f;
    for (u32 b = 0; b < d_head / 32; b++) {
        const u8 *block = k + b * KV_Q8_BLOCK;
        i32 dot = 0;
        for (u32 i = 0; i < 32; i++)
            dot += (i8)block[64 + i / 4 * 128 + j * 4 + i % 4] * q->q[b * 32 + i];
        p = fmaf((float)dot, ex_half(get16(block + 2 * j)) * q->d[b], p);
        if (b % 8 == 7 || b + 1 == d_head / 32) {
            total += p;
            p = 0.0f;
        }
    }
    return total * 0.125f;
}

static void attend_q8_of(const struct kernels *t)
{
    enum { MAX_D = 320 };
    for (u32 rep = 0; rep < 80 && t->attend_q8; rep++) {
        u32 d = 32 * (1 + check_below(MAX_D / 32)), n = rep < 40 ? 1 + rep : 1 + check_below(256);
        u32 k_bytes = (n + 31) / 32 * (d / 32) * KV_Q8_BLOCK, v_row = d / 32 * 34;
        struct guarded gk, gv, go;
        u8 *k = guard(&gk, k_bytes, true), *v = guard(&gv, n * v_row, true);
        float *o = guard(&go, d * sizeof *o, true), x[MAX_D], dq[MAX_D / 32], want[MAX_D] = {0}, m, l, s[256], part[32] = {0};
        i8 q[MAX_D];
        i16 sum[MAX_D / 32];
        for (u32 i = 0; i < k_bytes; i++)
            k[i] = (u8)check_u32();
        for (u32 i = 0; i < n * v_row; i++)
            v[i] = (u8)check_u32();
        for (u32 i = 0; i < k_bytes / KV_Q8_BLOCK; i++)
            for (u32 j = 0; j < 32; j++)
                put16(k + i * KV_Q8_BLOCK + 2 * j, (u16)ex_to_half(check_plain() * 0.02f));
        for (u32 j = 0; j < n; j++)
            for (u32 b = 0; b < d / 32; b++)
                put16(v + j * v_row + 2 * b, (u16)ex_to_half(check_plain() * 0.02f));
        for (u32 i = 0; i < d; i++)
            x[i] = check_plain();
        kernels_scalar.quantise(x, d, q, dq, sum);
        struct act a = {.q = q, .d = dq, .sum = sum};
        t->attend_q8(o, &m, &l, &a, k, v, n, d, 0.125f);
        float top = 0.0f;
        for (u32 j = 0; j < n; j++) {
            s[j] = plain_score(&a, k + j / 32 * (d / 32) * KV_Q8_BLOCK, j % 32, d);
            top = j == 0 || s[j] > top ? s[j] : top;
        }
        for (u32 j = 0; j < n; j++) {
            s[j] = ex_flush(ex_exp(s[j] - top));
            part[j % 32] += s[j];
            for (u32 i = 0; i < d; i++)
                want[i] = fmaf(s[j] * ex_half(get16(v + j * v_row + i / 32 * 2)), (float)(i8)v[j * v_row + d / 16 + i],
                               want[i]);
        }
        for (u32 half = 16; half; half /= 2)
            for (u32 i = 0; i < half; i++)
                part[i] += part[i + half];
        check_same_floats("attend_q8 o", o, want, d);
        check_same_floats("attend_q8 m", &m, &top, 1);
        check_same_floats("attend_q8 l", &l, part, 1);
        unguard(&gk);
        unguard(&gv);
        unguard(&go);
    }
}

static void every_isa_attends_q8_by_rule_7(void **state)
{
    (void)state;
    check_seed(13);
    each_isa(attend_q8_of);
}

/* n queries at once equal each alone: heads of one row see as much, rows of a prompt one position more each. What lies
 * behind the last position seen is NaN: nobody may read it into a result. */
static void attend_many_of(const struct kernels *k)
{
    enum { D = 96, N = 19, LAST = KV_CHUNK };
    static u16 keys[LAST * D], v[LAST * D];
    static float q[N * D], o[N * D], want[D];
    for (u32 rep = 0; rep < 40; rep++) {
        u32 d = 16 * (1 + check_below(D / 16)), n = 1 + check_below(N), from = 1 + check_below(LAST - N);
        u32 seen = from + n - 1;
        bool prompt = check_below(2);
        struct attend_query a[N];
        for (u32 i = 0; i < LAST * d; i++) {
            u32 pos = i / (32 * d) * 32 + i % 32;
            keys[i] = pos < seen ? (u16)ex_to_half(check_plain() * 4.0f) : 0x7E00;
            v[i] = i / d < seen ? (u16)ex_to_half(check_plain()) : 0x7E00;
        }
        for (u32 i = 0; i < n * d; i++)
            q[i] = check_below(40) ? ex_flush(check_plain() * 8.0f) : 0.0f;
        for (u32 r = 0; r < n; r++)
            a[r] = (struct attend_query){.q = q + r * d, .o = o + r * d, .n_pos = prompt ? from + r : seen};
        k->attend_f16_many(a, n, keys, v, d, 0.125f);
        for (u32 r = 0; r < n; r++) {
            float m, l;
            kernels_scalar.attend_f16(want, &m, &l, q + r * d, keys, v, a[r].n_pos, d, 0.125f);
            check_same_floats("attend_many o", a[r].o, want, d);
            check_same_floats("attend_many m", &a[r].m, &m, 1);
            check_same_floats("attend_many l", &a[r].l, &l, 1);
        }
    }
}

static void every_isa_attends_alike(void **state)
{
    (void)state;
    check_seed(7);
    each_isa(attend_of);
    each_isa(attend_many_of);
}

/* Chunks joined left to right against double precision: the order is ours, the answer is everybody's. */
static void joined_chunks_are_attention(void **state)
{
    (void)state;
    enum { D = 32, N = 256 * 5 + 77 };
    static u16 k[(N + 31) / 32 * 32 * D], v[N * D];
    static double s[N];
    float q[D], o[D], part[D], m, l, m2, l2;
    check_seed(8);
    for (u32 i = 0; i < COUNT(k); i++)
        k[i] = (u16)ex_to_half(check_plain());
    for (u32 i = 0; i < COUNT(v); i++)
        v[i] = (u16)ex_to_half(check_plain());
    for (u32 i = 0; i < D; i++)
        q[i] = check_plain() * 20.0f;
    for (u32 p = 0; p < N; p += KV_CHUNK) {
        u32 n = min_u32(N - p, KV_CHUNK);
        kernels_scalar.attend_f16(p ? part : o, p ? &m2 : &m, p ? &l2 : &l, q, k + p * D, v + p * D, n, D, 0.25f);
        if (p)
            attend_join(o, &m, &l, part, m2, l2, D);
    }
    double top = -1e300, sum = 0, want[D] = {0};
    for (u32 j = 0; j < N; j++) {
        s[j] = 0;
        for (u32 d = 0; d < D; d++)
            s[j] += (double)q[d] * (double)ex_half(k[(j / 32 * D + d) * 32 + j % 32]);
        s[j] *= 0.25;
        top = s[j] > top ? s[j] : top;
    }
    for (u32 j = 0; j < N; j++) {
        sum += exp(s[j] - top);
        for (u32 d = 0; d < D; d++)
            want[d] += exp(s[j] - top) * (double)ex_half(v[j * D + d]);
    }
    for (u32 d = 0; d < D; d++)
        assert_true(fabs((double)(o[d] / l) - want[d] / sum) < 2e-6);
}

/* ---- embedding rows, routing, packing ---- */

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

static void experts_are_chosen_by_rule_8(void **state)
{
    (void)state;
    check_seed(11);
    for (u32 rep = 0; rep < 500; rep++) {
        u32 n = 1 + check_below(128), k = 1 + check_below(min_u32(n, 8));
        float logits[128], w[8], want = 0.0f;
        u16 ids[8];
        bool norm = check_below(2);
        for (u32 i = 0; i < n; i++)
            logits[i] = check_below(3) ? (float)(i32)check_below(5) : check_plain() * 10.0f; /* many ties */
        route_topk(logits, n, k, norm, 1.0f, ids, w);
        double sum = 0, all = 0, total = 0;
        for (u32 i = 0; i < n; i++)
            all += exp((double)logits[i] - (double)logits[ids[0]]);
        for (u32 r = 0; r < k; r++)
            sum += exp((double)logits[ids[r]] - (double)logits[ids[0]]);
        for (u32 r = 0; r < k; r++) {
            u32 before = 0;
            for (u32 i = 0; i < n; i++)
                before += logits[i] > logits[ids[r]] || (logits[i] == logits[ids[r]] && i < ids[r]);
            assert_int_equal(before, r);
            double p = exp((double)logits[ids[r]] - (double)logits[ids[0]]) / (norm ? sum : all);
            assert_true(fabs((double)w[r] - p) < 1e-6);
            total += (double)w[r];
        }
        if (norm)
            assert_true(fabs(total - 1.0) < 1e-6);
        (void)want;
    }
    float nan[4] = {NAN, 1.0f, NAN, 0.5f}, w[2];
    u16 ids[2];
    route_topk(nan, 4, 2, true, 1.0f, ids, w);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 3);
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
        cmocka_unit_test(every_isa_quantises_by_rule_1),
        cmocka_unit_test(every_isa_does_rows_alike),
        cmocka_unit_test(silu_and_norm_are_right),
        cmocka_unit_test(every_isa_attends_alike),
        cmocka_unit_test(every_isa_attends_q8_by_rule_7),
        cmocka_unit_test(joined_chunks_are_attention),
        cmocka_unit_test(rows_come_back_out_of_panels),
        cmocka_unit_test(scales_that_are_not_finite_are_refused),
        cmocka_unit_test(experts_are_chosen_by_rule_8),
        cmocka_unit_test(hashes_are_frozen),
    };
    return cmocka_run_group_tests(tests, open_buffers, close_buffers);
}
