/* Experts chosen for a row: one text that every device on the host shares. See kernel.h. */
#include "kernel/kernel.h"

#include "base/exact.h"

/* a stands before b: larger, or b is a NaN and a is not. Of equals the one that came first stays first. */
static bool before(float a, float b)
{
    return a > b || (b != b && a == a);
}

/* The n_used first in that order, by insertion into a short list: most experts are seen once and are not in it. */
static void choose(const float *logits, u32 n, u32 n_used, u16 *ids)
{
    u32 have = 0;
    for (u32 i = 0; i < n; i++) {
        if (have == n_used && !before(logits[i], logits[ids[have - 1]]))
            continue;
        u32 at = have < n_used ? have++ : have - 1;
        for (; at && before(logits[i], logits[ids[at - 1]]); at--)
            ids[at] = ids[at - 1];
        ids[at] = (u16)i;
    }
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
    choose(logits, n, n_used, ids);
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
