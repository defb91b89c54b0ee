/* From one row of logits to one token: rule 9 of docs/numerics.md. A choice depends on the logits,
 * the stream's own tokens and (seed, choice, position): nothing else. In order, all in fp32:
 *
 *   bias         l + add, entry by entry; an add of -INFINITY bans the token
 *   penalties    for tokens among the last repeat_last_n: l > 0 ? l / repeat : l * repeat, then
 *                l - (count * frequency + presence), as llama.cpp does
 *   temperature  l / temperature, saturating at +-FLT_MAX; 0: the largest l allowed is taken, of
 *                equals the lowest id
 *   mask, bans   those tokens leave the list (whether before or after temperature cannot be seen)
 *   sort         by (l down, id up); -0 equals +0
 *   top-k        the first k
 *   weights      p = ex_exp(l - largest l); cumulative sums from the left
 *   top-p        the shortest prefix with cumulative >= top_p * total, the last cumulative
 *   min-p        the prefix before the first p < min_p; the first p is 1
 *   draw         u = ex_unit(word 0 of Philox: key the seed, its low word first; counter choice,
 *                position, 0, 0); the first token with cumulative > u * total of what was kept */
#ifndef PS_SAMPLE_H
#define PS_SAMPLE_H

#include "base/base.h"
#include "plainsong.h"

struct sampler; /* one per stream: scratch for n_vocab, counts of seen tokens */

/* Copies what it needs of opts. err: the field out of range, its value and the range. A
 * repeat_last_n > 0 costs a ring of that many ids: a caller that knows the text to be shorter
 * passes 0. */
int sampler_open(struct sampler **out, const struct ps_sampling *opts, u32 choice, u32 n_vocab,
                 struct err *err);
void sampler_close(struct sampler *s); /* NULL is fine */

/* Tells the sampler of a token of the text, prompt or generated, in order: for the penalties. id <
 * n_vocab. No allocation. */
void sampler_see(struct sampler *s, u32 id);

/* Chooses. logits: (n_vocab), not changed. position: absolute index that the new token will have.
 * mask: one bit a token, 32 to a word, low bit first (1 = allowed), or NULL. Returns the id; -1
 * with err when a logit (masked or not) is not finite, bias or penalty makes one so, or nothing is
 * allowed. No allocation. */
i32 sampler_choose(struct sampler *s, const float *logits, u32 position, const u32 *mask,
                   struct err *err);

/* The same choice from the head of the row alone, as device_picks gives it (device/device.h), where
 * the head proves it: the id that sampler_choose would give for the full row without a mask. -1: not
 * proven (a logit not finite, bias or penalties, or too flat a row): then sampler_choose decides. No
 * allocation. */
i32 sampler_choose_head(struct sampler *s, const u32 *picks, u32 position);

#endif
