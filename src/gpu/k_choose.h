/* The experts of a row (rule 8): its logits as keys in the lanes of a SIMD group, the highest of them, their weights. For k_route.h, whose head says how; also
 * for few_in (k_few_experts.h). No barriers but those inside a SIMD group. */

/* Of the lists, on pointers. */
struct lists {
    DEV u32 *ids;
    DEV float *w;
    DEV u32 *pairs, *tiles;
    DEV u32 *hits; /* or NULL */
};

KFN void lists_at(THR struct lists *l, CON const struct route_args *a, DEV u32 *words, DEV u32 *hits)
{
    l->hits = a->hits ? hits + a->hits_at : (DEV u32 *)0;
    l->ids = words + a->ids_at;
    l->w = (DEV float *)words + a->w_at;
    l->pairs = words + a->pairs_at;
    l->tiles = words + a->tiles_at;
}

/* ---- a row's logits: as they are, or the sums of what k_router left. A part that is not there adds 0: a sum from 0 on is never -0 ---- */

enum { ROUTE_PARTS = 8 }; /* in flight */

KFN float route_value(CON const struct route_args *a, DEV const float *row, u32 e)
{
    float x = 0.0f;
    if (a->n_parts == 0)
        return row[e];
    NO_UNROLL
    for (u32 p0 = 0; p0 < a->n_parts; p0 += ROUTE_PARTS) {
        float v[ROUTE_PARTS];
        UNROLL
        for (u32 k = 0; k < ROUTE_PARTS; k++)
            v[k] = p0 + k < a->n_parts ? row[(p0 + k) * a->parts_stride + e] : 0.0f;
        UNROLL
        for (u32 k = 0; k < ROUTE_PARTS; k++)
            x = x + v[k];
    }
    return x;
}

/* x[j]: expert 32 j + lane, j < per (a constant: 4, 16 or 32); 0 where there is none. */
KFN void route_values(struct at at, const u32 per, CON const struct route_args *a, DEV const float *row, THR float *x)
{
    const u32 width = per == 4u ? 4u : 16u, at_once = 16u / width;
    u32 parts = a->n_parts ? a->n_parts : 1u; /* -0 becomes 0: the keys make no difference */
    UNROLL
    for (u32 j = 0; j < per; j++)
        x[j] = 0.0f;
    UNROLL
    for (u32 j0 = 0; j0 < per; j0 += width) {
        NO_UNROLL
        for (u32 p0 = 0; p0 < parts; p0 += at_once) {
            float v[16];
            UNROLL
            for (u32 i = 0; i < 16u; i++) {
                u32 p = p0 + i / width, e = 32u * (j0 + i % width) + at.lane;
                v[i] = p < parts && e < a->n_experts ? row[p * a->parts_stride + e] : 0.0f;
            }
            UNROLL
            for (u32 i = 0; i < 16u; i++)
                x[j0 + i % width] = x[j0 + i % width] + v[i];
        }
    }
}

KFN u32 route_plus(u32 a, u32 b)
{
    return EX_BITS(EX_FLOAT(a) + EX_FLOAT(b));
}

/* x[s]: experts e..e+3 of row first + 8 s, s < n (a constant: 2, 4 or 8); all bits set where there are none. */
KFN void route_rows(const u32 n, CON const struct route_args *a, DEV const float *logits, u32 first, u32 rows, u32 e, THR w4 *x)
{
    const u32 at_once = ROUTE_PARTS / n;
    const w4 none = {~0u, ~0u, ~0u, ~0u}, zero = {0, 0, 0, 0};
    u32 parts = a->n_parts ? a->n_parts : 1u;
    UNROLL
    for (u32 s = 0; s < n; s++)
        x[s] = zero;
    NO_UNROLL
    for (u32 p0 = 0; p0 < parts; p0 += at_once) {
        w4 v[ROUTE_PARTS];
        UNROLL
        for (u32 i = 0; i < at_once * n; i++) {
            u32 row = first + GPU_SIMDS * (i % n), p = p0 + i / n;
            v[i] = zero;
            if (row < rows && e < a->n_experts && p < parts)
                v[i] = load16(logits + row * a->stride + p * a->parts_stride + e);
        }
        UNROLL
        for (u32 i = 0; i < at_once * n; i++) {
            THR w4 *to = x + i % n;
            to->x = route_plus(to->x, v[i].x);
            to->y = route_plus(to->y, v[i].y);
            to->z = route_plus(to->z, v[i].z);
            to->w = route_plus(to->w, v[i].w);
        }
    }
    UNROLL
    for (u32 s = 0; s < n; s++)
        if (first + GPU_SIMDS * s >= rows || e >= a->n_experts)
            x[s] = none;
}

/* ---- top-k of a row ---- */

KFN u32 route_key(float x)
{
    u32 u = EX_BITS(x);
    u = (u & 0x7FFFFFFFu) == 0 ? 0 : u;
    u32 key = u >> 31 ? ~u : u | 0x80000000u; /* -infinity: 0x007FFFFF */
    return (u & 0x7FFFFFFFu) > 0x7F800000u ? 1u : key;
}

/* The logit again; a zero without its sign, a NaN without its payload. */
KFN float route_logit(u32 key)
{
    return EX_FLOAT(key == 1u ? 0x7FC00000u : key >> 31 ? key & 0x7FFFFFFFu : ~key);
}

/* Sum of the chosen in rank order, from lane 0 on. */
KFN float route_sum_used(struct at at, u32 n_used, THR const float *e)
{
    float sum = 0.0f;
    for (u32 r0 = 0; r0 < n_used; r0 += 8u) {
        float v[8];
        UNROLL
        for (u32 k = 0; k < 8; k++) {
            u32 r = r0 + k;
            v[k] = EX_FLOAT(shuffle_from(at, EX_BITS(r0 < 32u ? e[0] : e[1]), r % 32u));
        }
        UNROLL
        for (u32 k = 0; k < 8; k++)
            sum = r0 + k < n_used ? sum + v[k] : sum;
    }
    return sum;
}

/* Sum over all experts by rule 6. */
KFN float route_sum_all(struct at at, CON const struct route_args *a, DEV const float *logits, float top)
{
    float s = 0.0f;
    for (u32 e = at.lane; e < a->n_experts; e += 32u)
        s = s + ex_flush(ex_exp(route_value(a, logits, e) - top));
    return simd_tree(at, s);
}

KFN void route_weights(struct at at, CON const struct route_args *a, DEV const float *logits, THR const u32 *kept, u32 first,
                       THR float *w)
{
    float top = route_logit(first), e[2];
    UNROLL
    for (u32 s = 0; s < 2; s++)
        e[s] = ex_flush(ex_exp(route_logit(kept[s]) - top));
    float sum = a->used_norm ? route_sum_used(at, a->n_used, e) : route_sum_all(at, a, logits, top);
    UNROLL
    for (u32 s = 0; s < 2; s++)
        w[s] = ex_flush(div_rn(e[s], sum) * a->used_scale);
}

/* One row, experts in PER registers of each lane: PER * 32 >= n_experts. found: rank r's expert in lane r % 32 of found[r / 32], kept: its
 * key. Returns rank 0's key. */
#define ROUTE_CHOOSE(PER)                                                                                        \
    KFN u32 route_choose_##PER(struct at at, CON const struct route_args *a, DEV const float *logits, THR u32 *found, THR u32 *kept) \
    {                                                                                                            \
        u32 key[PER];                                                                                            \
        float x[PER];                                                                                            \
        route_values(at, PER, a, logits, x);                                                                     \
        UNROLL                                                                                                   \
        for (u32 j = 0; j < PER; j++) {                                                                          \
            u32 e = 32u * j + at.lane;                                                                           \
            key[j] = e < a->n_experts ? route_key(x[j]) : 0u;                                                    \
        }                                                                                                        \
        u32 first = 0;                                                                                           \
        for (u32 r = 0; r < a->n_used; r++) {                                                                    \
            u32 best = key[0], id = at.lane;                                                                     \
            UNROLL                                                                                               \
            for (u32 j = 1; j < PER; j++) {                                                                      \
                id = key[j] > best ? 32u * j + at.lane : id;                                                     \
                best = key[j] > best ? key[j] : best;                                                            \
            }                                                                                                    \
            u32 top = simd_max_u32(at, best);                                                                    \
            id = ~simd_max_u32(at, best == top ? ~id : 0u);                                                      \
            UNROLL                                                                                               \
            for (u32 j = 0; j < PER; j++)                                                                        \
                key[j] = id == 32u * j + at.lane ? 0u : key[j];                                                  \
            first = r ? first : top;                                                                             \
            UNROLL                                                                                               \
            for (u32 s = 0; s < 2; s++)                                                                          \
                if (r == 32u * s + at.lane) {                                                                    \
                    found[s] = id;                                                                               \
                    kept[s] = top;                                                                               \
                }                                                                                                \
        }                                                                                                        \
        return first;                                                                                            \
    }

ROUTE_CHOOSE(4)
ROUTE_CHOOSE(16)
ROUTE_CHOOSE(32)

/* A row's ids and weights to the lists; what a lane found stays in found. */
KFN void route_row(struct at at, CON const struct route_args *a, DEV const float *logits, THR const struct lists *l, u32 row,
                   THR u32 *found)
{
    u32 kept[2] = {0, 0}, first;
    float w[2];
    logits += (u64)row * a->stride;
    if (a->n_experts <= 128u)
        first = route_choose_4(at, a, logits, found, kept);
    else if (a->n_experts <= 512u)
        first = route_choose_16(at, a, logits, found, kept);
    else
        first = route_choose_32(at, a, logits, found, kept);
    route_weights(at, a, logits, kept, first, w);
    UNROLL
    for (u32 s = 0; s < 2; s++) {
        u32 r = 32u * s + at.lane;
        if (r < a->n_used) {
            l->ids[row * a->n_used + r] = found[s];
            l->w[row * a->n_used + r] = w[s];
        }
    }
}
