/* The logarithm of a token's probability under the model itself: before bias, penalties, mask and temperature, as OpenAI's
 * logprobs are meant. logprob(i) = (l_i - m) - log(sum of exp(l_j - m)), m the exact largest logit, the sum by rule 6 of
 * docs/numerics.md: the same bits in any company. */
#ifndef PS_LOGPROB_H
#define PS_LOGPROB_H

#include "base/base.h"
#include "plainsong.h"

enum { LOGPROB_MAX_TOP = 20 };

/* Of the token id, and of the n_top likeliest (by logprob down, id up), n_top <= LOGPROB_MAX_TOP and <= n. logits: (n), finite.
 * No allocation. */
float logprob_row(const float *logits, u32 n, u32 id, struct ps_logprob *top, u32 n_top);

#endif
