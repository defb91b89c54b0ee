/* Additive increase, multiplicative decrease of the prompt rows in a mixed step. See pace.h. */
#include "engine/pace.h"

#include <stdlib.h>

static const double PACE_LIMIT = 1.6; /* the promise is 2; the rest is for noise */

enum { REMEASURE = 64 }; /* mixed steps after which one goes without a prompt: contexts grow, so idle steps get longer */

/* Follows the quick ones of a step's times: what else this machine does makes some steps long, none short. */
static void follow(double *idle, double seconds)
{
    if (*idle <= 0)
        *idle = seconds;
    else if (seconds < *idle)
        *idle += 0.3 * (seconds - *idle);
    else
        *idle += 0.05 * ((seconds < 1.5 * *idle ? seconds : 1.5 * *idle) - *idle);
}

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
    if (p->idle[n_decode] <= 0 || p->mixed >= REMEASURE)
        return 0;
    return min_u32((u32)p->rows, p->chunk);
}

void pace_note(struct pace *p, u32 n_decode, u32 n_prompt, double seconds)
{
    if (n_decode == 0)
        return;
    if (n_prompt == 0) {
        follow(&p->idle[n_decode], seconds);
        p->mixed = 0;
        return;
    }
    p->mixed++;
    if (seconds > PACE_LIMIT * p->idle[n_decode])
        p->rows = p->rows * 0.75 < 1 ? 1 : p->rows * 0.75;
    else if (n_prompt >= (u32)p->rows) /* a step that used less says nothing of more */
        p->rows = p->rows * 1.05 + 0.25 > p->chunk ? p->chunk : p->rows * 1.05 + 0.25;
}
