/* Rotary position tables, computed on the host with our own double-precision functions so that every machine holds
 * the same bits (rule 10 of docs/numerics.md). */
#ifndef PS_ROPE_H
#define PS_ROPE_H

#include "model/hparams.h"

/* cs: (n_pos, d_rope / 2, 2) floats, filled with cos and sin of position * frequency. factors: (d_rope / 2) divisors of
 * the frequencies, or NULL. */
void rope_table(float *cs, u32 n_pos, const struct hparams *hp, const float *factors);

/* For tests. */
double rope_log(double x);
double rope_exp(double x);
void rope_sincos(double x, double *s, double *c);

#endif
