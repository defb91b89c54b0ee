/* Memory decided ahead. See budget.h. */
#include "engine/budget.h"

#include "base/sysmem.h"

#include <stdio.h>

enum {
    CTX_STEP = 256,           /* a context we choose is a multiple of this */
    RESERVE_BYTES = 512 << 20 /* left to the system and to streams */
};

/* Of one position in every slot, and once in the rotation table. */
static u64 position_bytes(const struct budget *b, u32 n_slots)
{
    return n_slots * (plan_kv_bytes(b->plan, b->kv) + sizeof(u32)) + b->plan->hp.d_rope * sizeof(float);
}

/* What does not grow with the context. Panels are up to 3 % larger than the file's blocks; a row's quantised copies
 * are about a third of its floats. */
static u64 fixed_bytes(const struct budget *b)
{
    u64 sum = RESERVE_BYTES, row = 0;
    for (u32 i = 0; i < b->plan->n_weights; i++)
        sum += b->plan->weights[i].file_bytes + b->plan->weights[i].file_bytes / 32;
    for (u32 i = 0; i < BUF_COUNT; i++)
        if (i != BUF_LOGITS)
            row += (u64)b->plan->bufs[i].width * b->plan->bufs[i].ranks * 6;
    return sum + row * b->max_rows + (u64)b->n_slots * b->plan->hp.n_vocab * sizeof(float);
}

static u32 fitting_ctx(const struct budget *b, u32 n_slots)
{
    u64 fixed = fixed_bytes(b), left = b->available > fixed ? b->available - fixed : 0;
    u64 fits = b->available == 0 ? b->plan->hp.n_ctx : left / position_bytes(b, n_slots);
    return fits >= b->plan->hp.n_ctx ? b->plan->hp.n_ctx : (u32)fits / CTX_STEP * CTX_STEP;
}

/* "; another plainsong (pid 12) holds 17.4 GB", or nothing. */
static const char *others(char *text, size_t n)
{
    u32 pid;
    u64 bytes;
    text[0] = 0;
    if (sysmem_others(&pid, &bytes))
        snprintf(text, n, "; another plainsong (pid %u) holds %.1f GB", pid, (double)bytes / 1e9);
    return text;
}

u32 budget_ctx(const struct budget *b, u32 wish, struct err *err)
{
    u32 top = b->plan->hp.n_ctx, fits = fitting_ctx(b, b->n_slots), alone = fitting_ctx(b, 1);
    double gb = (double)b->available / 1e9;
    char who[96];
    if (wish > top) {
        err_set(err, "--ctx %u: this model reads at most %u positions", wish, top);
        return 0;
    }
    if (fits && wish <= fits)
        return wish ? wish : fits;
    if (!wish && b->available == 0)
        return top;
    if (fits)
        err_set(err, "not enough memory: --slots %u --ctx %u needs %.1f GB, %.1f GB are available: try --slots %u --ctx %u%s",
                b->n_slots, wish, (double)(fixed_bytes(b) + wish * position_bytes(b, b->n_slots)) / 1e9, gb,
                b->n_slots, fits, others(who, sizeof who));
    else if (alone)
        err_set(err, "not enough memory: --slots %u does not fit in the %.1f GB available: try --slots 1 --ctx %u%s",
                b->n_slots, gb, alone, others(who, sizeof who));
    else
        err_set(err, "not enough memory: the model takes %.1f GB, %.1f GB are available%s", (double)fixed_bytes(b) / 1e9, gb,
                others(who, sizeof who));
    return 0;
}
