/* How many prompt rows a step may carry beside decoding streams, so that those keep their pace: a step with prompt rows
 * shall take at most PACE_LIMIT times the same step without. Measured, not modelled; what it decides never shows in
 * a byte, since a row's result does not depend on its company. Engine thread only. */
#ifndef PS_PACE_H
#define PS_PACE_H

#include "base/base.h"

struct pace {
    double *idle;   /* [n_slots + 1]: seconds of a step of so many decode rows and nothing else; 0: not known */
    u32 n_slots, chunk;
    double rows;    /* prompt rows allowed now */
    u32 mixed;      /* steps with prompt rows beside decoding ones since one without */
};

int pace_open(struct pace *p, u32 n_slots, u32 chunk, struct err *err);
void pace_close(struct pace *p);

/* Prompt rows for a step with n_decode decode rows. 0 when such a step has not been measured alone yet, or long ago: the
 * prompt waits one step for the measurement. */
u32 pace_budget(const struct pace *p, u32 n_decode);

/* What a step took. */
void pace_note(struct pace *p, u32 n_decode, u32 n_prompt, double seconds);

#endif
