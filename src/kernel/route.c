/* The two small joins that every device on the host shares as one text: experts chosen for a row, and chunks of
 * attention put together. See kernel.h. */
#include "kernel/kernel.h"

#include "base/exact.h"

void attend_join(float *o, float *m, float *l, const float *o2, float m2, float l2, u32 d_head)
{
    float top = m2 > *m ? m2 : *m;
    float a = ex_exp(*m - top), b = ex_exp(m2 - top);
    *l = fmaf(*l, a, l2 * b);
    for (u32 d = 0; d < d_head; d++)
        o[d] = fmaf(o[d], a, o2[d] * b);
    *m = top;
}

/* The next expert after (bar, id) in the order (logit down, id up); NaN counts as less than everything. */
static u32 next_best(const float *logits, u32 n, const u16 *taken, u32 n_taken)
{
    u32 best = n;
    for (u32 i = 0; i < n; i++) {
        bool used = false;
        for (u32 t = 0; t < n_taken; t++)
            used |= taken[t] == i;
        if (!used && (best == n || logits[i] > logits[best] || (logits[best] != logits[best] && logits[i] == logits[i])))
            best = i;
    }
    return best;
}

static float sum_exp(const float *logits, u32 n, float top)
{
    float s[32] = {0};
    for (u32 i = 0; i < n; i++)
        s[i % 32] += ex_flush(ex_exp(logits[i] - top));
    for (u32 half = 16; half; half /= 2)
        for (u32 i = 0; i < half; i++)
            s[i] += s[i + half];
    return s[0];
}

void route_topk(const float *logits, u32 n, u32 n_used, bool used_norm, float scale, u16 *ids, float *w)
{
    for (u32 r = 0; r < n_used; r++)
        ids[r] = (u16)next_best(logits, n, ids, r);
    float top = logits[ids[0]], sum = 0.0f;
    for (u32 r = 0; r < n_used; r++) {
        w[r] = ex_flush(ex_exp(logits[ids[r]] - top));
        sum += w[r];
    }
    if (!used_norm)
        sum = sum_exp(logits, n, top);
    for (u32 r = 0; r < n_used; r++)
        w[r] = ex_flush(w[r] / sum * scale);
}
