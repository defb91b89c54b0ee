/* Attention over stored keys and values: every instruction set against scalar by memcmp, q8_0 against rule 7 one element at a
 * time, many queries against each alone, and joined chunks against double precision. */
#include "check_kernel.h"

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

/* The same over q8_0: random integers, scales that are NaN behind the last position seen. */
static void attend_q8_many_of(const struct kernels *k)
{
    enum { D = 288, N = 19, LAST = KV_CHUNK, ROW = D / 32 * 34 };
    static u8 keys[LAST * ROW], v[LAST * ROW];
    static float x[N * D], dq[N * D / 32], o[N * D], want[D];
    static i8 q[N * D];
    static i16 sum[N * D / 32];
    for (u32 rep = 0; rep < 40; rep++) {
        u32 blocks = rep % 4 ? 1 + check_below(4) : 1 + check_below(D / 32), d = 32 * blocks, n = 1 + check_below(N);
        u32 from = 1 + check_below(LAST - N), seen = from + n - 1;
        bool prompt = check_below(2);
        struct attend_query a[N];
        for (u32 i = 0; i < LAST * blocks * 34; i++) {
            keys[i] = check_below(9) ? (u8)check_u32() : 0x80;
            v[i] = (u8)check_u32();
        }
        for (u32 j = 0; j < LAST; j++)
            for (u32 b = 0; b < blocks; b++) {
                u16 nan = 0x7E00, dk = (u16)ex_to_half(check_plain() * 0.02f), dv = (u16)ex_to_half(check_plain() * 0.02f);
                put16(keys + (j / 32 * blocks + b) * KV_Q8_BLOCK + 2 * (j % 32), j < seen ? dk : nan);
                put16(v + j * blocks * 34 + 2 * b, j < seen ? dv : nan);
            }
        for (u32 i = 0; i < n * d; i++)
            x[i] = check_below(40) ? check_plain() : check_float();
        kernels_scalar.quantise(x, n * d, q, dq, sum);
        for (u32 r = 0; r < n; r++)
            a[r] = (struct attend_query){.act = {.q = q + r * d, .d = dq + r * blocks, .sum = sum + r * blocks},
                                         .o = o + r * d, .n_pos = prompt ? from + r : seen};
        k->attend_q8_many(a, n, keys, v, d, 0.125f);
        for (u32 r = 0; r < n; r++) {
            float m, l;
            kernels_scalar.attend_q8(want, &m, &l, &a[r].act, keys, v, a[r].n_pos, d, 0.125f);
            check_same_floats("attend_q8_many o", a[r].o, want, d);
            check_same_floats("attend_q8_many m", &a[r].m, &m, 1);
            check_same_floats("attend_q8_many l", &a[r].l, &l, 1);
        }
    }
}

static void join_and_end_of(const struct kernels *k)
{
    const struct kernels *s = &kernels_scalar;
    for (u32 rep = 0; rep < 200; rep++) {
        u32 n = rep < 131 ? rep : check_below(300);
        struct guarded g[3];
        float *a = guard(&g[0], n * sizeof *a, true), *b = guard(&g[1], n * sizeof *b, true);
        float *o2 = guard(&g[2], n * sizeof *o2, true), l2 = 1.0f + check_below(200), m2 = check_float();
        float la = 1.0f + check_below(200), ma = check_below(3) ? m2 + check_plain() * 50.0f : check_float(), lb = la, mb = ma;
        for (u32 i = 0; i < n; i++) {
            a[i] = b[i] = check_float();
            o2[i] = check_float();
        }
        k->attend_join(a, &ma, &la, o2, m2, l2, n);
        s->attend_join(b, &mb, &lb, o2, m2, l2, n);
        check_same_floats("join o", a, b, n);
        check_same_floats("join m", &ma, &mb, 1);
        check_same_floats("join l", &la, &lb, 1);
        k->attend_end(a, la, n);
        s->attend_end(b, lb, n);
        check_same_floats("end", a, b, n);
        for (u32 i = 0; i < 3; i++)
            unguard(&g[i]);
    }
}

static void every_isa_attends_alike(void **state)
{
    (void)state;
    check_seed(7);
    each_isa(attend_of);
    each_isa(attend_many_of);
    each_isa(attend_q8_many_of);
    each_isa(join_and_end_of);
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
            kernels_scalar.attend_join(o, &m, &l, part, m2, l2, D);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_isa_attends_alike),
        cmocka_unit_test(every_isa_attends_q8_by_rule_7),
        cmocka_unit_test(joined_chunks_are_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
