/* What an engine will cost in memory, decided before any weight is read: weights + arena (slots x context x bytes a
 * position) + scratch, against what the system and the cgroup leave. */
#ifndef PS_BUDGET_H
#define PS_BUDGET_H

#include "plan/plan.h"

struct budget {
    const struct plan *plan;
    enum kv_type kv;
    u32 n_slots, max_rows;
    u64 available; /* bytes, 0: not known */
};

/* The context a slot gets: wish if it fits; for 0 the largest that does, up to the model's own. 0 on failure, with err:
 * the largest setting that would fit, and who else holds memory. */
u32 budget_ctx(const struct budget *b, u32 wish, struct err *err);

#endif
