/* Memory decided ahead. See budget.h. */
#include "engine/budget.h"

#include "base/sysmem.h"

#include <stdio.h>

enum {
    CTX_STEP = 256,           /* a context we choose is a multiple of this */
    RESERVE_BYTES = 512 << 20 /* left to the system and to streams */
};

/* Of one position in every slot, and once in the rotation table. On a GPU the parts of attention's chunks come on top, about a
 * thousandth of the keys and values: a 64th leaves room. */
static u64 position_bytes(const struct budget *b, u32 n_slots)
{
    u64 kv = plan_kv_bytes(b->plan, b->kv);
    return n_slots * (kv + (b->own ? kv / 64 : 0) + sizeof(u32)) + b->plan->hp.d_rope * sizeof(float);
}

/* Panels are up to 3 % larger than the file's blocks; a GPU's rows are filled up to a multiple of 256. */
static u64 weight_bytes(const struct budget *b, const struct plan_weight *w)
{
    u64 bytes = w->file_bytes + w->file_bytes / 32;
    return b->own ? bytes * round_up_u64(w->n_in, 256) / w->n_in : bytes;
}

/* What does not grow with the context. A row's quantised copies are about a third of its floats; on a GPU it is taken twice. */
static u64 fixed_bytes(const struct budget *b)
{
    u64 sum = RESERVE_BYTES, row = 0;
    for (u32 i = 0; i < b->plan->n_weights; i++)
        sum += weight_bytes(b, &b->plan->weights[i]);
    for (u32 i = 0; i < BUF_COUNT; i++)
        if (i != BUF_LOGITS)
            row += (u64)b->plan->bufs[i].width * b->plan->bufs[i].ranks * 6;
    return sum + (b->own ? 2 : 1) * row * b->max_rows + (u64)b->n_slots * b->plan->hp.n_vocab * sizeof(float);
}

static u32 fitting_ctx(const struct budget *b, u32 n_slots)
{
    u64 fixed = fixed_bytes(b), left = b->available > fixed ? b->available - fixed : 0;
    u64 fits = b->available == 0 ? b->plan->hp.n_ctx : left / position_bytes(b, n_slots);
    return fits >= b->plan->hp.n_ctx ? b->plan->hp.n_ctx : (u32)fits / CTX_STEP * CTX_STEP;
}

/* "; another plainsong (pid 12) holds 17.4 GB", or nothing: what it holds of a device's own memory is not known. */
static const char *others(const struct budget *b, char *text, size_t n)
{
    u32 pid;
    u64 bytes;
    text[0] = 0;
    if (!b->own && sysmem_others(&pid, &bytes))
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
                b->n_slots, fits, others(b, who, sizeof who));
    else if (alone)
        err_set(err, "not enough memory: --slots %u does not fit in the %.1f GB available: try --slots 1 --ctx %u%s",
                b->n_slots, gb, alone, others(b, who, sizeof who));
    else
        err_set(err, "not enough memory: the model takes %.1f GB, %.1f GB are available%s", (double)fixed_bytes(b) / 1e9, gb,
                others(b, who, sizeof who));
    return 0;
}
