/* Additive increase, multiplicative decrease of the prompt rows in a mixed step. See pace.h. */
#include "engine/pace.h"

#include <stdlib.h>

static const double PACE_LIMIT = 1.6; /* the promise is 2; the rest is for noise */

int pace_open(struct pace *p, u32 n_slots, u32 chunk, struct err *err)
{
    *p = (struct pace){.n_slots = n_slots, .chunk = chunk, .rows = 4};
    p->idle = mem_array(n_slots + 1, sizeof *p->idle);
    return p->idle ? 0 : err_set(err, "out of memory");
}

void pace_close(struct pace *p)
{
    free(p->idle);
    p->idle = NULL;
}

u32 pace_budget(const struct pace *p, u32 n_decode)
{
    if (n_decode == 0)
        return p->chunk;
    if (p->idle[n_decode] <= 0)
        return 0;
    return min_u32((u32)p->rows, p->chunk);
}

void pace_note(struct pace *p, u32 n_decode, u32 n_prompt, double seconds)
{
    if (n_decode == 0)
        return;
    double *idle = &p->idle[n_decode];
    if (n_prompt == 0) {
        *idle = *idle > 0 ? *idle * 0.9 + seconds * 0.1 : seconds;
        return;
    }
    if (seconds > PACE_LIMIT * *idle)
        p->rows = p->rows * 0.75 < 1 ? 1 : p->rows * 0.75;
    else if (n_prompt >= (u32)p->rows) /* a step that used less says nothing of more */
        p->rows = p->rows * 1.05 + 0.25 > p->chunk ? p->chunk : p->rows * 1.05 + 0.25;
}
