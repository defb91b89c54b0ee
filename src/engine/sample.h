/* From one row of logits to one token: rule 9 of docs/numerics.md. Order: bias, penalties, mask, temperature, sort by
 * (logit down, id up), top-k, own exp, sums in sorted order, top-p, min-p, first cumulative > u * total. A choice
 * depends on the logits, the stream's own tokens and (seed, choice, position): nothing else. */
#ifndef PS_SAMPLE_H
#define PS_SAMPLE_H

#include "base/base.h"
#include "plainsong.h"

struct sampler; /* one per stream: scratch for n_vocab, counts of seen tokens */

/* Copies what it needs of opts. err: a value out of range, named (NaN, negative temperature, top_p > 1, bias id >= n_vocab). */
int sampler_open(struct sampler **out, const struct ps_sampling *opts, u32 choice, u32 n_vocab, struct err *err);
void sampler_close(struct sampler *s);

/* Tells the sampler of a token of the text, prompt or generated, in order: for the penalties. No allocation. */
void sampler_see(struct sampler *s, u32 id);

/* Chooses. logits: (n_vocab), not changed. position: absolute index that the new token will have. mask: one bit a
 * token (1 = allowed), or NULL. Returns the id; -1 with err when a logit is not finite or the mask allows none.
 * No allocation. */
i32 sampler_choose(struct sampler *s, const float *logits, u32 position, const u32 *mask, struct err *err);

#endif
