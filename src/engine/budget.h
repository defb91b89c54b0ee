/* What an engine will cost in memory, decided before any weight is read: weights + arena (slots x context x bytes a
 * position) + scratch, against what the system and the cgroup leave, or a device with memory of its own. What such a
 * device needs beside weights and arena differs from the CPU's, so there it is reckoned generously. */
#ifndef PS_BUDGET_H
#define PS_BUDGET_H

#include "plan/plan.h"

struct budget {
    const struct plan *plan;
    enum kv_type kv;
    u32 n_slots, chunk; /* chunk: prompt rows in a step, beside a row of each slot */
    u64 available; /* bytes, 0: not known */
    bool own;      /* they are the device's own */
    const char *device; /* which may know how to have more; NULL: the host */
};

/* The context a slot gets: wish if it fits; for 0 the largest that does, up to the model's own. 0 on failure, with err:
 * the largest setting that would fit, and who else holds memory. */
u32 budget_ctx(const struct budget *b, u32 wish, struct err *err);

#endif
