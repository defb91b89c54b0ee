/* The sampler against a reference that follows sample.h word by word: every token sorted, every
 * weight summed. Plus Philox's published answers, the drawn distribution, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/exact.h"
#include "device/device.h"
#include "engine/sample.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- random rows ---- */

static u64 rng_state;

static u32 rng(void) /* SplitMix64's upper half */
{
    u64 z = rng_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (u32)((z ^ z >> 31) >> 32);
}

static float rng_between(float lo, float hi)
{
    return lo + (hi - lo) * ex_unit(rng());
}

enum { ROW_KINDS = 12 };

static void fill_row(float *l, u32 n, u32 kind)
{
    static const float edges[] = {0.0f,   -0.0f,  1e-45f,  -1e-45f,  FLT_MIN,  -FLT_MIN,
                                  1.0f,   -1.0f,  FLT_MAX, -FLT_MAX, 0x1p-24f, -16.75f,
                                  -16.7f, -17.0f, 88.0f,   -87.5f};
    for (u32 i = 0; i < n; i++)
        switch (kind) {
        case 0:
            l[i] = rng_between(-10, 10);
            break;
        case 1: /* all equal */
            l[i] = 3.25f;
            break;
        case 2: /* ties at every cut */
            l[i] = (float)(i32)(rng() % 7) - 3;
            break;
        case 3:
            l[i] = edges[rng() % COUNT(edges)];
            break;
        case 4: /* equal, told apart by their sign bit only */
            l[i] = rng() & 1 ? 0.0f : -0.0f;
            break;
        case 5: /* denormals */
            l[i] = EX_FLOAT((rng() & 0x807FFFFFu));
            break;
        case 6:
            l[i] = rng_between(-3e38f, 3e38f);
            break;
        case 7: /* all in one bucket */
            l[i] = 5.0f + rng_between(0, 1e-4f);
            break;
        case 8: /* sorted */
            l[i] = (float)i * -1e-4f;
            break;
        case 9: /* sorted the wrong way */
            l[i] = (float)i * 1e-4f;
            break;
        case 10: /* around CUT */
            l[i] = -16.75f + rng_between(-0.01f, 0.01f) + (i == n / 2 ? 16.75f : 0);
            break;
        default: { /* like a language model: most tokens far below a few */
            float a = rng_between(-1, 1), b = rng_between(-1, 1);
            l[i] = 4 * a * b;
            if (rng() % 64 == 0)
                l[i] += rng_between(0, 15);
        }
        }
}

/* ---- the reference ---- */

struct item {
    float l;
    u32 id;
};

static int by_logit(const void *pa, const void *pb)
{
    const struct item *a = pa, *b = pb;
    if (a->l != b->l)
        return a->l > b->l ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

static float clamp(float v)
{
    return v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : v;
}

/* -1 when nothing is allowed or an adjusted logit is not finite. */
static i32 reference(const struct ps_sampling *o, u32 choice, u32 position, const float *logits,
                     u32 n_vocab, const u32 *mask, const u32 *text, u32 n_text)
{
    struct item *list = calloc(n_vocab, sizeof *list);
    float *p = calloc(n_vocab, sizeof *p), *cum = calloc(n_vocab, sizeof *cum);
    u32 *count = calloc(n_vocab, sizeof *count), n = 0;
    u32 from = o->repeat_last_n && o->repeat_last_n < n_text ? n_text - o->repeat_last_n : 0;
    float repeat = o->repeat_penalty == 0 ? 1 : o->repeat_penalty;
    bool fine = true;
    for (u32 i = from; i < n_text; i++)
        count[text[i]]++;
    for (u32 id = 0; id < n_vocab; id++) {
        float l = logits[id];
        bool allowed = !mask || (mask[id / 32] >> id % 32 & 1);
        for (u32 b = 0; b < o->n_bias; b++)
            if (o->bias[b].id == id) {
                if (o->bias[b].add == -INFINITY)
                    allowed = false;
                else
                    l += o->bias[b].add;
            }
        if (count[id]) {
            l = l > 0 ? l / repeat : l * repeat;
            l -= (float)count[id] * o->frequency_penalty + o->presence_penalty;
        }
        fine = fine && isfinite(l);
        if (o->temperature >= 1e-6f)
            l = clamp(l / o->temperature);
        if (allowed)
            list[n++] = (struct item){l, id};
    }
    i32 result = -1;
    if (fine && n) {
        qsort(list, n, sizeof *list, by_logit);
        if (o->temperature < 1e-6f)
            n = 1;
        if (o->top_k && o->top_k < n)
            n = o->top_k;
        float sum = 0;
        for (u32 i = 0; i < n; i++) {
            p[i] = ex_exp(list[i].l - list[0].l);
            sum += p[i];
            cum[i] = sum;
        }
        if (o->top_p > 0 && o->top_p < 1)
            for (u32 i = 0; i < n; i++)
                if (cum[i] >= o->top_p * sum) {
                    n = i + 1;
                    break;
                }
        for (u32 i = 0; i < n; i++)
            if (p[i] < o->min_p) {
                n = i;
                break;
            }
        float u =
            ex_unit(ex_philox(choice, position, 0, 0, (u32)o->seed, (u32)(o->seed >> 32)).c[0]);
        for (u32 i = 0; i < n && result < 0; i++)
            if (cum[i] > u * cum[n - 1])
                result = (i32)list[i].id;
    }
    free(list);
    free(p);
    free(cum);
    free(count);
    return result;
}

static void random_options(struct ps_sampling *o, u32 n_vocab, struct ps_bias *bias, u32 max_bias)
{
    static const float temps[] = {0, 0.1f, 0.7f, 1, 1.5f, 40, 1e-30f, 1e30f};
    static const float top_ps[] = {0, 1, 0.9f, 0.5f, 1e-6f, 0.9999999f};
    static const float min_ps[] = {0, 0, 0.05f, 1, 1e-7f};
    *o = (struct ps_sampling){
        .bias = bias}; /* one rng() a statement: C leaves the order within one open */
    o->temperature = temps[rng() % COUNT(temps)];
    o->top_p = top_ps[rng() % COUNT(top_ps)];
    o->min_p = min_ps[rng() % COUNT(min_ps)];
    o->seed = rng();
    o->seed = o->seed << 32 | rng();
    u32 limit = rng() & 1 ? 8 : 2 * n_vocab;
    if (rng() & 1)
        o->top_k = 1 + rng() % limit;
    if (rng() & 1) {
        o->repeat_penalty = rng_between(0.5f, 2);
        o->presence_penalty = rng_between(-2, 2);
        o->frequency_penalty = rng_between(-1, 1);
        o->repeat_last_n = rng() % 40;
    }
    for (o->n_bias = 0; max_bias && o->n_bias < rng() % max_bias; o->n_bias++) {
        bias[o->n_bias].id = rng() % n_vocab;
        bias[o->n_bias].add = rng() % 4 ? rng_between(-20, 20) : -INFINITY;
    }
}

/* ---- tests ---- */

static void equals_full_sort(void **state)
{
    (void)state;
    static const u32 sizes[] = {1, 2, 3, 31, 32, 33, 64, 130, 1000, 5000};
    rng_state = 20240607;
    struct err err;
    u32 refused = 0, cases = 0;
    u64 hash = 0xCBF29CE484222325u;
    for (u32 round = 0; round < 2400; round++) {
        u32 n = sizes[rng() % COUNT(sizes)], kind = round % ROW_KINDS, n_text = 0, text[80];
        struct ps_bias bias[8];
        struct ps_sampling o;
        random_options(&o, n, bias, 8);
        float *l = malloc(n * sizeof *l), *kept = malloc(n * sizeof *l);
        u32 *mask = malloc((n + 31) / 32 * sizeof *mask), choice = rng() % 3;
        bool masked = rng() % 3 == 0;
        for (u32 i = 0; i < (n + 31) / 32; i++)
            mask[i] = rng() % 4 ? rng() : rng() % 2 ? 0 : 0xFFFFFFFFu;
        struct sampler *s;
        assert_int_equal(sampler_open(&s, &o, choice, n, &err), 0);
        for (u32 step = 0; step < 4; step++) {
            for (u32 i = rng() % 20; i > 0; i--) {
                text[n_text] = rng() % min_u32(n, 12);
                sampler_see(s, text[n_text++]);
            }
            fill_row(l, n, kind);
            memcpy(kept, l, n * sizeof *l);
            err.text[0] = 0;
            i32 want = reference(&o, choice, step, l, n, masked ? mask : NULL, text, n_text);
            i32 got = sampler_choose(s, l, step, masked ? mask : NULL, &err);
            if (got != want)
                fail_msg("round %u step %u kind %u n %u: chose %d, the full sort %d (temperature "
                         "%g top_k %u top_p %g "
                         "min_p %g) %s",
                         round, step, kind, n, got, want, (double)o.temperature, o.top_k,
                         (double)o.top_p, (double)o.min_p, err.text);
            assert_memory_equal(kept, l, n * sizeof *l);
            assert_int_equal(got < 0, err.text[0] != 0);
            refused += got < 0;
            cases++;
            hash = (hash ^ (u32)got) * 0x100000001B3u;
        }
        sampler_close(s);
        free(l);
        free(kept);
        free(mask);
    }
    print_message("%u choices compared, %u refused by both, hash %016llx\n", cases, refused,
                  (unsigned long long)hash);
    assert_true(refused < cases / 3);
    assert_int_equal(
        hash, 0x619712f2d166c2adu); /* frozen: a seed's text must not change with a version */
}

/* The size that matters: each kind of row over a real vocabulary. */
static void equals_full_sort_large(void **state)
{
    (void)state;
    enum { N = 151936 };
    float *l = malloc(N * sizeof *l);
    struct err err;
    rng_state = 7;
    for (u32 kind = 0; kind < ROW_KINDS; kind++) {
        struct ps_sampling o = {.temperature = 0.8f, .seed = kind, .top_p = kind & 1 ? 0.95f : 0};
        o.top_k = kind & 2 ? 50 : 0;
        struct sampler *s;
        assert_int_equal(sampler_open(&s, &o, 0, N, &err), 0);
        fill_row(l, N, kind);
        assert_int_equal(sampler_choose(s, l, 9, NULL, &err),
                         reference(&o, 0, 9, l, N, NULL, NULL, 0));
        sampler_close(s);
    }
    free(l);
}

/* The first position at or after `from` whose draw has the wanted 24 bits, modulo 2^bits. */
static u32 position_with(u64 seed, u32 from, u32 bits, u32 low, u32 high)
{
    for (u32 pos = from;; pos++) {
        u32 u = ex_philox(0, pos, 0, 0, (u32)seed, (u32)(seed >> 32)).c[0] >> 8;
        u &= (1u << bits) - 1;
        if (u >= low && u < high)
            return pos;
    }
}

/* One token at 0 and all others at x, down to where a weight moves the sum no more: draws near 1
 * fall on the others as long as they count. */
static void the_tail_counts_to_its_end(void **state)
{
    (void)state;
    enum { N = 151936, TOP = 1000 };
    static const float xs[] = {-12, -14.5f, -16.6f, -16.63f, -16.64f, -16.74f, -16.76f, -20};
    float *l = malloc(N * sizeof *l);
    struct err err;
    for (u32 k = 0; k < COUNT(xs); k++) {
        struct ps_sampling o = {.temperature = 1, .seed = 3};
        struct sampler *s;
        u32 pos = position_with(3, k * 1000, 24, 0xFF8000, 0x1000000); /* u >= 0.998 */
        for (u32 i = 0; i < N; i++)
            l[i] = i == TOP ? 0 : xs[k];
        assert_int_equal(sampler_open(&s, &o, 0, N, &err), 0);
        i32 id = sampler_choose(s, l, pos, NULL, &err);
        assert_int_equal(id, reference(&o, 0, pos, l, N, NULL, NULL, 0));
        assert_true((id == TOP) == (xs[k] < -16.6355f)); /* ln 2^-24 = -16.6355 */
        sampler_close(s);
    }
    free(l);
}

static i32 choose_once(const struct ps_sampling *o, const float *l, u32 n, const u32 *mask,
                       struct err *err)
{
    struct sampler *s;
    assert_int_equal(sampler_open(&s, o, 0, n, err), 0);
    i32 id = sampler_choose(s, l, 0, mask, err);
    sampler_close(s);
    return id;
}

static void greedy_ties_go_to_the_lower_id(void **state)
{
    (void)state;
    struct err err;
    struct ps_sampling o = {0};
    assert_int_equal(choose_once(&o, (float[]){1, 2, 2, 0}, 4, NULL, &err), 1);
    assert_int_equal(choose_once(&o, (float[]){-0.0f, 0.0f}, 2, NULL, &err), 0);
    assert_int_equal(choose_once(&o, (float[]){0.0f, -0.0f}, 2, NULL, &err), 0);
    assert_int_equal(choose_once(&o, (float[]){1, 2, 2, 0}, 4, (u32[]){0xD}, &err), 2);
    o.n_bias = 2;
    o.bias = (struct ps_bias[]){{3, 1.5f}, {3, 1.0f}};
    assert_int_equal(choose_once(&o, (float[]){1, 2, 2, 0}, 4, NULL, &err), 3);
}

/* Dividing by these would overflow, and every positive logit would tie. */
static void the_least_temperatures_are_greedy(void **state)
{
    (void)state;
    struct err err;
    static const float TINY[] = {1e-45f, 1e-38f, 1e-30f, 1e-7f};
    for (u32 i = 0; i < COUNT(TINY); i++)
        for (u32 seed = 0; seed < 20; seed++) {
            struct ps_sampling o = {.temperature = TINY[i], .seed = seed};
            assert_int_equal(choose_once(&o, (float[]){19, 21, 20, 20.5f}, 4, NULL, &err), 1);
        }
    struct ps_sampling o = {.temperature = 1e-5f};
    assert_int_equal(choose_once(&o, (float[]){19, 21, 20, 20.5f}, 4, NULL, &err), 1);
}

/* By hand: repeat 2 halves 4 and doubles -1; presence and frequency are subtracted. */
static void penalties_follow_the_window(void **state)
{
    (void)state;
    struct err err;
    struct sampler *s;
    float l[4] = {4, 3, -1, -1.5f};
    struct ps_sampling o = {.repeat_penalty = 2, .repeat_last_n = 2};
    assert_int_equal(sampler_open(&s, &o, 0, 4, &err), 0);
    assert_int_equal(sampler_choose(s, l, 0, NULL, &err), 0);
    sampler_see(s, 0);
    assert_int_equal(sampler_choose(s, l, 0, NULL, &err), 1); /* 2, 3 */
    sampler_see(s, 1);
    assert_int_equal(sampler_choose(s, l, 0, NULL, &err), 0); /* 2, 1.5 */
    sampler_see(s, 1);                                        /* 0 has left the window */
    assert_int_equal(sampler_choose(s, l, 0, NULL, &err), 0);
    l[0] = -2, l[1] = -3, l[2] = -1;
    sampler_see(s, 2);
    sampler_see(s, 2);
    assert_int_equal(sampler_choose(s, l, 0, NULL, &err), 3); /* -2, -3, -2, -1.5 */
    sampler_close(s);

    o = (struct ps_sampling){.presence_penalty = 0.5f, .frequency_penalty = 0.25f};
    assert_int_equal(sampler_open(&s, &o, 0, 4, &err), 0);
    memcpy(l, (float[]){4, 3.3f, 0, 0}, sizeof l);
    sampler_see(s, 0);
    assert_int_equal(sampler_choose(s, l, 0, NULL, &err), 1); /* 4 - 0.75 = 3.25 */
    l[1] = 3.2f;
    assert_int_equal(sampler_choose(s, l, 0, NULL, &err), 0);
    sampler_see(s, 0); /* 4 - 1 */
    assert_int_equal(sampler_choose(s, l, 0, NULL, &err), 1);
    sampler_close(s);
}

/* Seeds, choices and positions each give another draw, and the same ones the same. */
static void draws_depend_on_seed_choice_position(void **state)
{
    (void)state;
    enum { N = 4096 };
    float *l = calloc(N, sizeof *l);
    struct err err;
    i32 got[4];
    for (u32 i = 0; i < 4; i++) {
        struct ps_sampling o = {.temperature = 1, .seed = i == 1 ? 1ull << 32 : 5};
        struct sampler *s;
        assert_int_equal(sampler_open(&s, &o, i == 2, N, &err), 0);
        got[i] = sampler_choose(s, l, i == 3, NULL, &err);
        assert_int_equal(sampler_choose(s, l, i == 3, NULL, &err), got[i]);
        sampler_close(s);
        /* All equal: the draw is u * N, so the generator's word shows. */
        u32 word = ex_philox(i == 2, i == 3, 0, 0, (u32)o.seed, (u32)(o.seed >> 32)).c[0];
        assert_int_equal(got[i], word >> 20);
        for (u32 j = 0; j < i; j++)
            assert_int_not_equal(got[i], got[j]);
    }
    /* Where u * N is a whole number, a cumulative sum equals it: the next token is meant. */
    struct ps_sampling o = {.temperature = 1, .seed = 5};
    struct sampler *s;
    u32 pos = position_with(5, 0, 12, 0, 1), word = ex_philox(0, pos, 0, 0, 5, 0).c[0];
    assert_int_equal(sampler_open(&s, &o, 0, N, &err), 0);
    assert_int_equal(sampler_choose(s, l, pos, NULL, &err), word >> 20);
    sampler_close(s);
    free(l);
}

/* 40,000 draws from 16 weights: chi-square with 15 degrees of freedom, 0.1 % point 37.70. The seed
 * is fixed, so this passes always or never. */
static void draws_follow_the_weights(void **state)
{
    (void)state;
    enum { N = 16, DRAWS = 40000 };
    float l[N];
    double p[N], total = 0;
    u32 hits[N] = {0};
    struct err err;
    for (u32 i = 0; i < N; i++) {
        l[i] = 0.25f * (float)((i * 7) % N);
        total += p[i] = exp((double)l[i] / 1.5);
    }
    struct ps_sampling o = {.temperature = 1.5f, .seed = 1};
    struct sampler *s;
    assert_int_equal(sampler_open(&s, &o, 0, N, &err), 0);
    for (u32 i = 0; i < DRAWS; i++)
        hits[sampler_choose(s, l, i, NULL, &err)]++;
    sampler_close(s);
    double chi = 0;
    for (u32 i = 0; i < N; i++) {
        double want = DRAWS * p[i] / total, d = hits[i] - want;
        chi += d * d / want;
    }
    print_message("chi-square %.2f of 15 degrees\n", chi);
    assert_true(chi > 2.0 && chi < 37.70);
}

/* Salmon et al.'s kat_vectors. */
static void philox_known_answers(void **state)
{
    (void)state;
    static const u32 kat[][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8},
        {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0x408F276D,
         0x41C83B0E, 0xA20BC7C6, 0x6D5451FD},
        {0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0, 0xD16CFE09,
         0x94FDCCEB, 0x5001E420, 0x24126EA1},
    };
    for (u32 i = 0; i < COUNT(kat); i++) {
        const u32 *k = kat[i];
        struct ex_philox r = ex_philox(k[0], k[1], k[2], k[3], k[4], k[5]);
        assert_memory_equal(r.c, k + 6, sizeof r.c);
    }
    assert_true(ex_unit(0) == 0 && ex_unit(0xFF) == 0 && ex_unit(0xFFFFFFFFu) == 1 - 0x1p-24f);
}

/* ---- the head of a row ---- */

/* What a device gives: the first DEVICE_PICKS of the row sorted, here by insertion. */
static void make_picks(const float *l, u32 n, u32 *picks)
{
    struct item list[DEVICE_PICKS + 1];
    u32 n_list = 0;
    memset(picks, 0xA5, DEVICE_PICK_WORDS * sizeof *picks);
    picks[0] = 1;
    for (u32 i = 0; i < n; i++) {
        struct item x = {l[i], i};
        picks[0] &= isfinite(l[i]) != 0;
        u32 at = n_list;
        for (; at && by_logit(&list[at - 1], &x) > 0; at--)
            list[at] = list[at - 1];
        list[at] = x;
        n_list = min_u32(n_list + 1, DEVICE_PICKS);
    }
    picks[1] = n_list;
    for (u32 i = 0; i < n_list; i++) {
        picks[2 + 2 * i] = list[i].id;
        picks[3 + 2 * i] = EX_BITS(list[i].l);
    }
}

/* Of every kind of row and all options drawn: what the head proves is what the row says. */
static void a_head_says_what_the_row_says(void **state)
{
    (void)state;
    static const u32 sizes[] = {1, 2, 33, 63, 64, 65, 66, 130, 1000, 5000};
    rng_state = 20260101;
    struct err err;
    u32 cases = 0, proven = 0, by_top_k = 0;
    for (u32 round = 0; round < 4800; round++) {
        u32 n = sizes[rng() % COUNT(sizes)], kind = round % ROW_KINDS, picks[DEVICE_PICK_WORDS];
        struct ps_bias bias[2];
        struct ps_sampling o;
        random_options(&o, n, bias, rng() % 8 ? 0 : 2);
        if (rng() % 8)
            o.repeat_penalty = o.presence_penalty = o.frequency_penalty = 0;
        if (rng() % 4 == 0) /* divisions that make equal what differed */
            o.temperature = 1 + rng_between(0, 1);
        if (rng() % 4 == 0)
            o.top_k = DEVICE_PICKS - 2 + rng() % 4;
        float *l = malloc(n * sizeof *l);
        struct sampler *s;
        assert_int_equal(sampler_open(&s, &o, 1, n, &err), 0);
        sampler_see(s, rng() % n);
        for (u32 step = 0; step < 4; step++) {
            fill_row(l, n, kind);
            if (rng() % 3 == 0) /* many that differ in their last bits only */
                for (u32 i = 0; i < n; i++)
                    l[i] = EX_FLOAT(EX_BITS(7.0f) + rng() % 40);
            if (rng() % 16 == 0)
                l[rng() % n] = rng() & 1 ? NAN : -INFINITY;
            make_picks(l, n, picks);
            i32 head = sampler_choose_head(s, picks, step);
            i32 row = sampler_choose(s, l, step, NULL, &err);
            if (head >= 0 && head != row)
                fail_msg("round %u step %u kind %u n %u: the head says %d, the row %d (temperature %a top_k %u top_p %g "
                         "min_p %g)",
                         round, step, kind, n, head, row, (double)o.temperature, o.top_k, (double)o.top_p, (double)o.min_p);
            cases++;
            proven += head >= 0;
            by_top_k += head >= 0 && n > DEVICE_PICKS && o.top_k && o.temperature > 0;
        }
        sampler_close(s);
        free(l);
    }
    print_message("%u heads, %u proven, %u of them by top-k\n", cases, proven, by_top_k);
    assert_true(proven > cases / 3 && by_top_k > cases / 50);
}

/* A row as a language model's: a few likely tokens, the rest `gap` and more below. */
static void fill_peaked(float *l, u32 n, float gap)
{
    for (u32 i = 0; i < n; i++)
        l[i] = 8 - gap - rng_between(0, 8);
    for (u32 i = 0; i < 12; i++)
        l[rng() % n] = rng_between(3, 8);
    l[rng() % n] = 8.5f;
}

static void a_head_proves_what_is_usual(void **state)
{
    (void)state;
    enum { N = 151936, ROWS = 40 };
    static const struct {
        struct ps_sampling o;
        float gap;
        u32 least, most; /* proven, of ROWS */
    } cases[] = {
        {{0}, 0, ROWS, ROWS},
        {{.temperature = 1e-7f}, 0, ROWS, ROWS},
        {{.temperature = 0.7f, .top_k = 20}, 0, ROWS, ROWS},
        {{.temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .min_p = 0.01f}, 0, ROWS, ROWS},
        {{.temperature = 1, .top_k = DEVICE_PICKS}, 0, ROWS, ROWS},
        {{.temperature = 1, .top_p = 0.95f}, 17, ROWS, ROWS},   /* the rest counts for nothing */
        {{.temperature = 1}, 17, ROWS, ROWS},
        {{.temperature = 0.7f, .top_p = 0.8f}, 12, ROWS - 4, ROWS}, /* it counts for little */
        {{.temperature = 1, .top_p = 0.95f}, 14, ROWS / 2, ROWS},
        {{.temperature = 1, .min_p = 0.05f}, 5, ROWS, ROWS},    /* it counts, but none of it is kept */
        {{.temperature = 1, .min_p = 0.05f, .top_p = 0.5f}, 5, 0, ROWS},
        {{.temperature = 1}, 0, 0, ROWS / 10},                  /* flat */
        {{.presence_penalty = 1}, 17, 0, 0},
    };
    float *l = malloc(N * sizeof *l);
    u32 picks[DEVICE_PICK_WORDS];
    struct err err;
    rng_state = 11;
    for (u32 c = 0; c < COUNT(cases); c++) {
        struct sampler *s;
        u32 proven = 0;
        assert_int_equal(sampler_open(&s, &cases[c].o, 0, N, &err), 0);
        for (u32 row = 0; row < ROWS; row++) {
            fill_peaked(l, N, cases[c].gap);
            make_picks(l, N, picks);
            i32 head = sampler_choose_head(s, picks, row);
            proven += head >= 0;
            if (head >= 0)
                assert_int_equal(head, sampler_choose(s, l, row, NULL, &err));
        }
        print_message("case %u: %u of %d proven\n", c, proven, ROWS);
        assert_in_range(proven, cases[c].least, cases[c].most);
        sampler_close(s);
    }
    free(l);
}

static void options_out_of_range_are_named(void **state)
{
    (void)state;
    struct ps_bias far = {.id = 10, .add = 1}, nan = {.id = 3, .add = NAN},
                   inf = {.id = 3, .add = INFINITY};
    const struct {
        struct ps_sampling o;
        const char *says;
    } cases[] = {
        {{.temperature = -1}, "temperature is -1: must be 0 (greedy) or more, and finite"},
        {{.temperature = NAN}, "temperature is nan"},
        {{.temperature = INFINITY}, "temperature is inf"},
        {{.top_p = 1.5f}, "top_p is 1.5: must be from 0 to 1"},
        {{.top_p = -0.5f}, "top_p is -0.5"},
        {{.top_p = NAN}, "top_p is nan"},
        {{.min_p = 2}, "min_p is 2: must be from 0 to 1"},
        {{.repeat_penalty = -2}, "repeat_penalty is -2"},
        {{.repeat_penalty = INFINITY}, "repeat_penalty is inf"},
        {{.presence_penalty = NAN}, "presence_penalty is nan"},
        {{.frequency_penalty = -INFINITY}, "frequency_penalty is -inf: must be a finite number"},
        {{.bias = &far, .n_bias = 1}, "bias 0 is for token 10: the vocabulary has 10 tokens"},
        {{.bias = &nan, .n_bias = 1}, "bias of token 3 is nan"},
        {{.bias = &inf, .n_bias = 1}, "bias of token 3 is inf"},
    };
    for (u32 i = 0; i < COUNT(cases); i++) {
        struct err err = {.text = ""};
        struct sampler *s = (struct sampler *)&err;
        assert_int_equal(sampler_open(&s, &cases[i].o, 0, 10, &err), -1);
        assert_null(s);
        if (strncmp(err.text, cases[i].says, strlen(cases[i].says)))
            fail_msg("case %u says: %s", i, err.text);
    }
    sampler_close(NULL);
}

static void logits_that_are_not_finite_are_named(void **state)
{
    (void)state;
    const struct {
        float l[4];
        const char *says;
    } cases[] = {
        {{0, 0, NAN, INFINITY}, "logit of token 2 is nan: not a finite number"},
        {{0, INFINITY, 0, 0}, "logit of token 1 is inf: not a finite number"},
        {{0, 0, 0, -INFINITY}, "logit of token 3 is -inf: not a finite number"},
        {{FLT_MAX, 0, 0, 0}, "logit of token 0 is inf with its bias: not a finite number"},
    };
    struct ps_bias bias = {.id = 0, .add = FLT_MAX};
    for (u32 i = 0; i < COUNT(cases); i++)
        for (u32 greedy = 0; greedy < 2; greedy++) {
            struct err err;
            struct ps_sampling o = {.temperature = greedy ? 0 : 1, .bias = &bias, .n_bias = i == 3};
            assert_int_equal(choose_once(&o, cases[i].l, 4, (u32[]){1}, &err), -1);
            assert_string_equal(err.text, cases[i].says);
        }
    struct err err;
    struct ps_sampling o = {.temperature = 1};
    assert_int_equal(choose_once(&o, (float[4]){0}, 4, (u32[]){0xF0}, &err), -1);
    assert_string_equal(err.text, "no token is allowed at position 0: mask and bans leave none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(equals_full_sort),
        cmocka_unit_test(equals_full_sort_large),
        cmocka_unit_test(the_tail_counts_to_its_end),
        cmocka_unit_test(greedy_ties_go_to_the_lower_id),
        cmocka_unit_test(the_least_temperatures_are_greedy),
        cmocka_unit_test(penalties_follow_the_window),
        cmocka_unit_test(draws_depend_on_seed_choice_position),
        cmocka_unit_test(draws_follow_the_weights),
        cmocka_unit_test(a_head_says_what_the_row_says),
        cmocka_unit_test(a_head_proves_what_is_usual),
        cmocka_unit_test(options_out_of_range_are_named),
        cmocka_unit_test(logits_that_are_not_finite_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
