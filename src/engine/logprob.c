/* Log probabilities. See logprob.h. */
#include "engine/logprob.h"
#include "base/exact.h"

static float largest(const float *x, u32 n)
{
    float m = x[0];
    for (u32 i = 1; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

/* Rule 6: element i joins sum i mod 32, then the tree. */
static float sum_exp(const float *x, u32 n, float m)
{
    float s[32] = {0};
    u32 i = 0;
    for (; i + 32 <= n; i += 32)
        for (u32 k = 0; k < 32; k++)
            s[k] += ex_flush(ex_exp(x[i + k] - m));
    for (u32 k = 0; i + k < n; k++)
        s[k] += ex_flush(ex_exp(x[i + k] - m));
    for (u32 half = 16; half; half /= 2)
        for (u32 k = 0; k < half; k++)
            s[k] += s[k + half];
    return s[0];
}

/* Keeps the n_top best, sorted; most logits fail the first comparison. */
static void keep_top(const float *x, u32 n, struct ps_logprob *top, u32 n_top)
{
    u32 have = 0;
    for (u32 i = 0; i < n; i++) {
        if (have == n_top && !(x[i] > top[have - 1].logprob))
            continue;
        u32 at = have < n_top ? have++ : have - 1;
        for (; at > 0 && x[i] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (struct ps_logprob){i, x[i]};
    }
}

float logprob_row(const float *logits, u32 n, u32 id, struct ps_logprob *top, u32 n_top)
{
    float m = largest(logits, n), log_sum = ex_log(sum_exp(logits, n, m));
    if (n_top)
        keep_top(logits, n, top, n_top);
    for (u32 i = 0; i < n_top; i++)
        top[i].logprob = (top[i].logprob - m) - log_sum;
    return (logits[id] - m) - log_sum;
}
