/* What works on one row at a time: quantising, norm, rotation, gating, sums, the choice of experts. Against the rules in
 * plain words and double precision, and every instruction set against scalar by memcmp. */
#include "check_kernel.h"

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

/* Every float there is at one time or another: extremes, what does not fit a half, ties between halves, NaN. */
static float any_float(void)
{
    u32 u = check_u32();
    return check_below(3) ? check_float() : EX_FLOAT(check_below(2) ? u : (u & 0x83FFE000u) + 0x38000000u + (u & 0x1000u));
}

static void combine_and_halves_of(const struct kernels *k)
{
    enum { MOST = 9, N = 300 };
    for (u32 rep = 0; rep < 300; rep++) {
        u32 n = rep < 131 ? rep : 1 + check_below(N), n_y = check_below(MOST + 1);
        struct guarded gx, gh, gy[MOST];
        float *x = guard(&gx, n * sizeof *x, true), *y[MOST], w[MOST], want[N];
        u16 *h = guard(&gh, n * sizeof *h, true), half[N];
        for (u32 r = 0; r < n_y; r++) {
            y[r] = guard(&gy[r], n * sizeof *x, true);
            w[r] = ex_flush(check_plain());
            for (u32 i = 0; i < n; i++)
                y[r][i] = check_float();
        }
        for (u32 i = 0; i < n; i++)
            x[i] = check_float();
        for (u32 i = 0; i < n; i++) { /* rule 8, one element at a time */
            float acc = 0.0f;
            for (u32 r = 0; r < n_y; r++)
                acc = fmaf(w[r], fabsf(y[r][i]) < 0x1p-40f ? 0.0f : y[r][i], acc);
            want[i] = x[i] + acc;
        }
        k->combine(x, (const float *const *)y, w, n_y, n);
        check_same_floats("combine", x, want, n);
        for (u32 i = 0; i < n; i++)
            x[i] = any_float();
        k->halves(h, x, n);
        kernels_scalar.halves(half, x, n);
        for (u32 i = 0; i < n; i++)
            if (h[i] != half[i] && !(isnan(x[i]) && isnan(ex_half(h[i]))))
                fail_msg("halves: element %u of %u, %a, is %04x, expected %04x", i, n, (double)x[i], h[i], half[i]);
        unguard(&gx);
        unguard(&gh);
        for (u32 r = 0; r < n_y; r++)
            unguard(&gy[r]);
    }
}

static void every_isa_combines_and_stores_alike(void **state)
{
    (void)state;
    check_seed(14);
    each_isa(combine_and_halves_of);
}

/* exp over all its range, and what is no number. */
static void swiglu_of(const struct kernels *k)
{
    enum { N = 4096 };
    static float g[N], u[N], a[N], b[N];
    for (u32 rep = 0; rep < 8; rep++) {
        for (u32 i = 0; i < N; i++) {
            g[i] = check_below(8) ? check_plain() * 100.0f : any_float();
            u[i] = check_plain();
        }
        k->swiglu(a, g, u, N);
        kernels_scalar.swiglu(b, g, u, N);
        check_same_floats("swiglu", a, b, N);
    }
}

static void every_isa_gates_alike(void **state)
{
    (void)state;
    check_seed(15);
    each_isa(swiglu_of);
}

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

/* ---- routing ---- */

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
    float nan[4] = {NAN, 1.0f, NAN, 0.5f}, w[4];
    u16 ids[4];
    route_topk(nan, 4, 4, true, 1.0f, ids, w);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 3);
    assert_int_equal(ids[2], 0);
    assert_int_equal(ids[3], 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_isa_quantises_by_rule_1),
        cmocka_unit_test(every_isa_does_rows_alike),
        cmocka_unit_test(every_isa_combines_and_stores_alike),
        cmocka_unit_test(every_isa_gates_alike),
        cmocka_unit_test(silu_and_norm_are_right),
        cmocka_unit_test(experts_are_chosen_by_rule_8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
