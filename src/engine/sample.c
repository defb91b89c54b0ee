/* The sampler. It owns the counts of a stream's tokens and the scratch for one row; it refuses
 * logits that are not finite.
 *
 * The full sort that sample.h describes is never made. The first weight is ex_exp(0) = 1, so every
 * cumulative sum is at least 1 and half a unit in its last place at least 2^-24. A weight below
 * 2^-24 therefore leaves the sum as it is, and a token that does not raise the sum is never the
 * first above a threshold, nor does it move top-p's cut or any total. So tokens further than CUT
 * below the largest are dropped before the sort without changing a choice. What remains is narrowed
 * to top-k's last bucket and radix-sorted: linear time, the same steps on every machine.
 *
 * The head of a row (the largest logits, from the device) is chosen from when it holds the beginning of the sorted list and
 * that beginning settles the token: always with a top-k inside it, and where the rest is below CUT. Otherwise the rest's
 * weights are unknown, but bounded by the last known one: when the least and the most that they can sum to lead to one token,
 * so does what they do sum to, since everything in a draw rises with the total. */
#include "engine/sample.h"

#include "base/exact.h"
#include "device/device.h"

#include <assert.h>
#include <float.h>
#include <stdlib.h>

/* e^-16.75 = 5.32e-8 < 2^-24 = 5.96e-8, far more than ex_exp's 1.1 ulp apart. */
#define CUT (-16.75f)

enum {
    BUCKETS = 2048,
    BUCKETS_PER_UNIT = 122, /* 16.75 * 122 = 2043.5 */
    RADIX_BITS = 11,        /* three digits of 11, 11 and 10 bits */
    RADIX = 1 << RADIX_BITS,
    MAX_WINDOW = 1 << 24 /* no context is longer: a wider window is the whole text */
};

struct sampler {
    struct ps_sampling o; /* bias points to our copy */
    u32 choice, n_vocab;
    bool penalties;
    u32 *counts;      /* (n_vocab) occurrences in the window; NULL without penalties */
    u32 *ring;        /* (window) the ids in it; NULL: the window is the whole text */
    u32 window, next; /* next: where the coming id goes */
    u32 n_seen;       /* ids in the ring, at most window */
    float *l;         /* (n_vocab) adjusted logits by id, then cumulative sums by rank */
    u64 *keys[2];     /* (n_vocab) sort_key << 32 | id; NULL when greedy */
    struct ps_bias *bias;
    u32 digits[3][RADIX];
    u32 buckets[BUCKETS];
};

/* Below it logits that differ at all are apart by more than exp can show, and dividing would overflow: greedy. */
static const float LEAST_TEMPERATURE = 1e-6f;

static int check_range(const char *name, float v, float lo, float hi, const char *wish,
                       struct err *err)
{
    if (v >= lo && v <= hi)
        return 0;
    return err_set(err, "%s is %g: must be %s", name, (double)v, wish);
}

static int check_options(const struct ps_sampling *o, u32 n_vocab, struct err *err)
{
    const char *fraction = "from 0 to 1", *finite = "a finite number";
    if (check_range("temperature", o->temperature, 0, FLT_MAX, "0 (greedy) or more, and finite",
                    err) ||
        check_range("top_p", o->top_p, 0, 1, fraction, err) ||
        check_range("min_p", o->min_p, 0, 1, fraction, err) ||
        check_range("repeat_penalty", o->repeat_penalty, 0, FLT_MAX, "0 (off) or more, and finite",
                    err) ||
        check_range("presence_penalty", o->presence_penalty, -FLT_MAX, FLT_MAX, finite, err) ||
        check_range("frequency_penalty", o->frequency_penalty, -FLT_MAX, FLT_MAX, finite, err))
        return -1;
    for (u32 i = 0; i < o->n_bias; i++) {
        if (o->bias[i].id >= n_vocab)
            return err_set(err,
                           "bias %u is for token %u: the vocabulary has %u tokens, the last is %u",
                           i, o->bias[i].id, n_vocab, n_vocab - 1);
        if (!(o->bias[i].add <= FLT_MAX)) /* NaN too */
            return err_set(
                err, "bias of token %u is %g: must be a number, or -infinity to ban the token",
                o->bias[i].id, (double)o->bias[i].add);
    }
    return 0;
}

/* The first logit that is not finite, or -1. */
static i32 find_bad(const float *l, u32 n)
{
    u32 bad = 0;
    for (u32 i = 0; i < n; i++)
        bad |= (EX_BITS(l[i]) & 0x7F800000u) +
               0x00800000u; /* an exponent of all ones carries into bit 31 */
    if (!(bad >> 31))
        return -1;
    for (u32 i = 0; i < n; i++)
        if ((EX_BITS(l[i]) & 0x7F800000u) == 0x7F800000u)
            return (i32)i;
    return -1;
}

static int bad_logit(const char *when, float v, u32 id, struct err *err)
{
    return err_set(err, "logit of token %u is %s%s: not a finite number", id,
                   v != v  ? "nan"
                   : v > 0 ? "inf"
                           : "-inf",
                   when);
}

/* s->l = logits with bias and penalties; bans are left to `forbid`. */
static int adjust(struct sampler *s, const float *logits, struct err *err)
{
    const struct ps_sampling *o = &s->o;
    float *l = s->l;
    memcpy(l, logits, (size_t)s->n_vocab * sizeof *l);
    for (u32 i = 0; i < o->n_bias; i++)
        if (o->bias[i].add >= -FLT_MAX) {
            float *v = &l[o->bias[i].id];
            *v += o->bias[i].add;
            if (!(*v >= -FLT_MAX && *v <= FLT_MAX))
                return bad_logit(" with its bias", *v, o->bias[i].id, err);
        }
    if (!s->penalties)
        return 0;
    for (u32 id = 0; id < s->n_vocab; id++) {
        u32 count = s->counts[id];
        if (count == 0)
            continue;
        float v = l[id];
        v = v > 0 ? v / o->repeat_penalty : v * o->repeat_penalty;
        v -= (float)count * o->frequency_penalty + o->presence_penalty;
        if (!(v >= -FLT_MAX && v <= FLT_MAX))
            return bad_logit(" with its penalties", v, id, err);
        l[id] = v;
    }
    return 0;
}

static float scaled(float v, float temperature)
{
    v /= temperature;
    v = v > FLT_MAX ? FLT_MAX : v;
    return v < -FLT_MAX ? -FLT_MAX : v;
}

static void scale(struct sampler *s)
{
    for (u32 i = 0; i < s->n_vocab; i++)
        s->l[i] = scaled(s->l[i], s->o.temperature);
}

/* -INFINITY from here on means: not allowed. It is below CUT whatever the largest is. */
static void forbid(struct sampler *s, const u32 *mask)
{
    for (u32 i = 0; i < s->o.n_bias; i++)
        if (s->o.bias[i].add < -FLT_MAX)
            s->l[s->o.bias[i].id] = -INFINITY;
    if (!mask)
        return;
    for (u32 w = 0; w < (s->n_vocab + 31) / 32; w++) {
        u32 end = min_u32(32, s->n_vocab - 32 * w);
        for (u32 b = 0; mask[w] != 0xFFFFFFFFu && b < end; b++)
            if (!(mask[w] >> b & 1))
                s->l[32 * w + b] = -INFINITY;
    }
}

/* Sixteen maxima side by side, since one would wait for itself: all are finite or -INFINITY, so any order finds it. */
static u32 find_max(const float *l, u32 n)
{
    float max = l[0], top[16];
    u32 i = 0, best = 0;
    for (u32 j = 0; j < 16; j++)
        top[j] = l[0];
    for (; i + 16 <= n; i += 16)
        for (u32 j = 0; j < 16; j++)
            top[j] = l[i + j] > top[j] ? l[i + j] : top[j];
    for (u32 j = 0; j < 16; j++)
        max = top[j] > max ? top[j] : max;
    for (; i < n; i++)
        max = l[i] > max ? l[i] : max;
    while (l[best] != max)
        best++;
    return best;
}

/* Monotone in x, CUT <= x <= 0. */
static u32 bucket_of(float x)
{
    return (u32)(x * -(float)BUCKETS_PER_UNIT);
}

/* The bucket in which the k-th largest lies. Those behind it hold none of the first k. */
static u32 last_bucket(struct sampler *s, float max, u32 k)
{
    memset(s->buckets, 0, sizeof s->buckets);
    for (u32 i = 0; i < s->n_vocab; i++) {
        float x = s->l[i] - max;
        if (x >= CUT)
            s->buckets[bucket_of(x)]++;
    }
    u32 b = 0;
    for (u32 n = s->buckets[0]; n < k && b < BUCKETS - 1; n += s->buckets[b])
        b++;
    return b;
}

/* Order of the bits = falling order of the values, -0 as +0. */
static u32 sort_key(float v)
{
    u32 u = EX_BITS(v + 0.0f);
    return u >> 31 ? u : ~u & 0x7FFFFFFFu;
}

static float key_value(u32 key)
{
    return EX_FLOAT(key >> 31 ? key : ~key & 0x7FFFFFFFu);
}

/* keys[0] = the tokens that may matter, by rising id. Returns their number. */
static u32 gather(struct sampler *s, float max)
{
    u32 last = s->o.top_k && s->o.top_k < s->n_vocab ? last_bucket(s, max, s->o.top_k) : BUCKETS;
    u64 *keys = s->keys[0];
    u32 n = 0;
    for (u32 i = 0; i < s->n_vocab; i++) {
        float v = s->l[i], x = v - max;
        if (x >= CUT && bucket_of(x) <= last)
            keys[n++] = (u64)sort_key(v) << 32 | i;
    }
    return n;
}

/* Stable radix sort of keys[0][0..n) by their upper halves; ids rise already. Returns the sorted
 * array. A digit that all keys share costs nothing. */
static u64 *sort(struct sampler *s, u32 n)
{
    memset(s->digits, 0, sizeof s->digits);
    for (u32 i = 0; i < n; i++) {
        u32 key = (u32)(s->keys[0][i] >> 32);
        s->digits[0][key % RADIX]++;
        s->digits[1][key >> RADIX_BITS & (RADIX - 1)]++;
        s->digits[2][key >> 2 * RADIX_BITS]++;
    }
    u64 *from = s->keys[0], *to = s->keys[1];
    for (u32 d = 0; d < 3; d++) {
        u32 *at = s->digits[d], shift = 32 + d * RADIX_BITS;
        if (at[from[0] >> shift & (RADIX - 1)] == n)
            continue;
        for (u32 i = 0, sum = 0; i < RADIX; i++) {
            u32 c = at[i];
            at[i] = sum;
            sum += c;
        }
        for (u32 i = 0; i < n; i++)
            to[at[from[i] >> shift & (RADIX - 1)]++] = from[i];
        u64 *swap = from;
        from = to;
        to = swap;
    }
    return from;
}

/* s->l = cumulative weights of n > 0 sorted tokens. *n_min: how many come before the first below min-p. Returns the sum. */
static float weigh(struct sampler *s, const u64 *keys, u32 n, u32 *n_min)
{
    float *cum = s->l, sum = 0, max = key_value((u32)(keys[0] >> 32));
    *n_min = n;
    for (u32 i = 0; i < n; i++) {
        float p = ex_exp(key_value((u32)(keys[i] >> 32)) - max);
        if (p < s->o.min_p)
            *n_min = min_u32(*n_min, i);
        sum += p;
        cum[i] = sum;
    }
    return sum;
}

static bool has_top_p(const struct sampler *s)
{
    return s->o.top_p > 0 && s->o.top_p < 1;
}

/* The first cumulative sum that is at least x (above x); n: none. */
static u32 first_least(const float *cum, u32 n, float x)
{
    u32 i = 0;
    while (i < n && cum[i] < x)
        i++;
    return i;
}

static u32 first_above(const float *cum, u32 n, float x)
{
    u32 i = 0;
    while (i < n && cum[i] <= x)
        i++;
    return i;
}

static float draw_unit(const struct sampler *s, u32 position)
{
    return ex_unit(ex_philox(s->choice, position, 0, 0, (u32)s->o.seed, (u32)(s->o.seed >> 32)).c[0]);
}

/* The draw over n > 0 sorted tokens. */
static u32 draw(struct sampler *s, const u64 *keys, u32 n, u32 position)
{
    u32 n_kept;
    float sum = weigh(s, keys, n, &n_kept);
    if (has_top_p(s)) /* found: the last is sum */
        n_kept = min_u32(n_kept, first_least(s->l, n, s->o.top_p * sum) + 1);
    /* u <= 1 - 2^-24, so u * total < total also after rounding: the walk ends before n_kept. */
    return (u32)keys[first_above(s->l, n, draw_unit(s, position) * s->l[n_kept - 1])];
}

/* ---- the head of a row ---- */

/* The next float below a finite v; of -FLT_MAX -INFINITY. */
static float below(float v)
{
    u32 u = EX_BITS(v);
    return v == 0 ? -0x1p-149f : EX_FLOAT(u >> 31 ? u + 1 : u - 1);
}

struct head {
    u64 *keys;   /* the beginning of the sorted list */
    u32 n;       /* of it, known */
    bool whole;  /* nothing after it counts */
    u32 n_rest;  /* otherwise: tokens after it, at most, */
    float rest;  /* and how far they are below the largest, at least */
};

/* What of the picks is the beginning of the list. Their order is that of the logits; after temperature some that differed
 * may be equal, and then ids decide. A token outside whose logit is the last pick's has a larger id than that pick;
 * others outside may be equal to it only if the next float below its logit is. So what is sorted no later than the last
 * pick, or in the second case before all that equal it, is certain. */
static struct head make_head(struct sampler *s, const u32 *picks)
{
    struct head h = {.keys = s->keys[0], .n = picks[1]};
    float t = s->o.temperature, max = scaled(EX_FLOAT(picks[3]), t), lowest = EX_FLOAT(picks[1 + 2 * h.n]);
    float last = scaled(lowest, t);
    for (u32 i = 0; i < h.n; i++) {
        u64 key = (u64)sort_key(scaled(EX_FLOAT(picks[3 + 2 * i]), t)) << 32 | picks[2 + 2 * i];
        u32 at = i;
        for (; at && h.keys[at - 1] > key; at--)
            h.keys[at] = h.keys[at - 1];
        h.keys[at] = key;
    }
    h.whole = h.n == s->n_vocab || last - max < CUT;
    u64 certain = (u64)sort_key(last) << 32;
    certain = scaled(below(lowest), t) < last ? certain | picks[2 * h.n] : certain - 1;
    while (!h.whole && h.n && h.keys[h.n - 1] > certain)
        h.n--;
    while (h.n && key_value((u32)(h.keys[h.n - 1] >> 32)) - max < CUT)
        h.n--;
    if (s->o.top_k && s->o.top_k <= h.n) {
        h.n = s->o.top_k;
        h.whole = true;
    }
    h.n_rest = (s->o.top_k && s->o.top_k < s->n_vocab ? s->o.top_k : s->n_vocab) - h.n;
    h.rest = last - max;
    return h;
}

/* The most that the sum can come to when n more weights are added one by one: each addition rounds up by 2^-24 at most, and
 * (1 + 2^-24)^n <= 1 + 2 n 2^-24 for n <= 2^23. A weight may be ex_exp's 1.1 ulp above that of a larger x. */
static float most(float sum, u32 n, float x)
{
    double p = (double)ex_exp(x) * (1 + 0x1p-20), all = ((double)sum + n * p) * (1 + n * 0x1p-23);
    float f = (float)all;
    return (double)f < all ? EX_FLOAT(EX_BITS(f) + 1) : f;
}

i32 sampler_choose_head(struct sampler *s, const u32 *picks, u32 position)
{
    if (!picks[0] || s->o.n_bias || s->penalties)
        return -1;
    if (s->o.temperature == 0)
        return (i32)picks[2];
    struct head h = make_head(s, picks);
    if (h.n == 0 || h.n_rest > 1 << 23)
        return -1;
    u32 n_min;
    float *cum = s->l, sum = weigh(s, h.keys, h.n, &n_min), top = h.whole ? sum : most(sum, h.n_rest, h.rest);
    float u = draw_unit(s, position);
    u32 n_least = n_min, n_most = n_min;
    float base = n_min < h.n ? cum[n_min - 1] : top; /* the most that is kept */
    if (has_top_p(s)) {
        n_least = min_u32(n_min, first_least(cum, h.n, s->o.top_p * sum) + 1);
        n_most = first_least(cum, n_min, s->o.top_p * top);
        base = n_most < n_min ? cum[n_most] : base;
    }
    u32 i = first_above(cum, h.n, u * cum[n_least - 1]), j = first_above(cum, h.n, u * base);
    return i == j && i < h.n ? (i32)(u32)h.keys[i] : -1;
}

int sampler_open(struct sampler **out, const struct ps_sampling *opts, u32 choice, u32 n_vocab,
                 struct err *err)
{
    assert(n_vocab > 0 && n_vocab <= INT32_MAX);
    *out = NULL;
    if (check_options(opts, n_vocab, err))
        return -1;
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        goto none;
    s->o = *opts;
    if (opts->temperature < LEAST_TEMPERATURE)
        s->o.temperature = 0;
    s->o.bias = NULL;
    s->choice = choice;
    s->n_vocab = n_vocab;
    if (s->o.repeat_penalty == 0)
        s->o.repeat_penalty = 1;
    s->penalties =
        s->o.repeat_penalty != 1 || s->o.presence_penalty != 0 || s->o.frequency_penalty != 0;
    s->window = opts->repeat_last_n > MAX_WINDOW ? 0 : opts->repeat_last_n;
    if (opts->n_bias) {
        s->o.bias = s->bias = mem_array(opts->n_bias, sizeof *s->bias);
        if (!s->bias)
            goto none;
        memcpy(s->bias, opts->bias, opts->n_bias * sizeof *s->bias);
    }
    if (!(s->l = mem_array(n_vocab, sizeof *s->l)))
        goto none;
    for (int i = 0; i < 2 && s->o.temperature > 0; i++)
        if (!(s->keys[i] = mem_array(n_vocab, sizeof **s->keys)))
            goto none;
    if (s->penalties && !(s->counts = mem_array(n_vocab, sizeof *s->counts)))
        goto none;
    if (s->penalties && s->window && !(s->ring = mem_array(s->window, sizeof *s->ring)))
        goto none;
    *out = s;
    return 0;
none:
    sampler_close(s);
    return err_set(err, "no memory for a sampler over %u tokens", n_vocab);
}

void sampler_close(struct sampler *s)
{
    if (!s)
        return;
    free(s->bias);
    free(s->l);
    free(s->keys[0]);
    free(s->keys[1]);
    free(s->counts);
    free(s->ring);
    free(s);
}

void sampler_see(struct sampler *s, u32 id)
{
    assert(id < s->n_vocab);
    if (!s->penalties)
        return;
    s->counts[id]++;
    if (!s->ring)
        return;
    if (s->n_seen == s->window)
        s->counts[s->ring[s->next]]--;
    else
        s->n_seen++;
    s->ring[s->next] = id;
    s->next = s->next + 1 == s->window ? 0 : s->next + 1;
}

i32 sampler_choose(struct sampler *s, const float *logits, u32 position, const u32 *mask,
                   struct err *err)
{
    i32 bad = find_bad(logits, s->n_vocab);
    if (bad >= 0)
        return bad_logit("", logits[bad], (u32)bad, err);
    if (s->o.temperature == 0 && !mask && !s->o.n_bias && !s->penalties)
        return (i32)find_max(logits, s->n_vocab);
    if (adjust(s, logits, err))
        return -1;
    if (s->o.temperature > 0)
        scale(s);
    forbid(s, mask);
    u32 best = find_max(s->l, s->n_vocab);
    if (s->l[best] < -FLT_MAX)
        return err_set(err, "no token is allowed at position %u: mask and bans leave none",
                       position);
    if (s->o.temperature == 0)
        return (i32)best;
    u32 n = gather(s, s->l[best]);
    const u64 *keys = sort(s, n);
    if (s->o.top_k)
        n = min_u32(n, s->o.top_k);
    return (i32)draw(s, keys, n, position);
}
