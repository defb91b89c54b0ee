/* Memory decided ahead. See budget.h. */
#include "engine/budget.h"

#include "base/sysmem.h"
#include "device/device.h"

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
static u64 fixed_bytes(const struct budget *b, u32 n_slots)
{
    u64 sum = RESERVE_BYTES, row = 0;
    for (u32 i = 0; i < b->plan->n_weights; i++)
        sum += weight_bytes(b, &b->plan->weights[i]);
    for (u32 i = 0; i < BUF_COUNT; i++)
        if (i != BUF_LOGITS)
            row += (u64)b->plan->bufs[i].width * b->plan->bufs[i].ranks * 6;
    return sum + (b->own ? 2 : 1) * row * (n_slots + b->chunk) + (u64)n_slots * b->plan->hp.n_vocab * sizeof(float);
}

static u64 needed(const struct budget *b, u32 n_slots, u32 n_ctx)
{
    return fixed_bytes(b, n_slots) + n_ctx * position_bytes(b, n_slots);
}

static u32 fitting_ctx(const struct budget *b, u32 n_slots)
{
    u64 fixed = fixed_bytes(b, n_slots), left = b->available > fixed ? b->available - fixed : 0;
    u64 fits = b->available == 0 ? b->plan->hp.n_ctx : left / position_bytes(b, n_slots);
    return fits >= b->plan->hp.n_ctx ? b->plan->hp.n_ctx : (u32)fits / CTX_STEP * CTX_STEP;
}

/* What stands behind a refusal for want of `need` bytes: "; another plainsong (pid 12) holds 17.4 GB", where its memory is this one's (not of a
 * device that has its own), and what the device knows to do. Or nothing. */
static void behind(const struct budget *b, u64 need, char *text, size_t n)
{
    u32 pid;
    u64 bytes;
    char advice[128] = "";
    bool shared = !b->own || (b->device && device_advise(b->device, need, advice, sizeof advice));
    text[0] = 0;
    if (shared && sysmem_others(&pid, &bytes, NULL))
        snprintf(text, n, "; another plainsong (pid %u) holds %.1f GB%s", pid, (double)bytes / 1e9, advice);
    else
        snprintf(text, n, "%s", advice);
}

static int refuse(const struct budget *b, u32 wish, u32 fits, struct err *err)
{
    u32 alone = fitting_ctx(b, 1);
    u64 need = needed(b, b->n_slots, wish ? wish : CTX_STEP), least = needed(b, 1, CTX_STEP);
    double gb = (double)b->available / 1e9;
    char who[256];
    int digits = sysmem_digits(need, b->available);
    behind(b, need, who, sizeof who); /* room for all that was asked for: what it names need not be typed twice */
    if (fits)
        return err_set(err, "not enough memory: --slots %u --ctx %u needs %.*f GB, %.*f GB are available: try --slots %u --ctx %u%s", b->n_slots,
                       wish, digits, (double)need / 1e9, digits, gb, b->n_slots, fits, who);
    if (alone)
        return err_set(err, "not enough memory: --slots %u does not fit in the %.1f GB available: try --slots 1 --ctx %u%s", b->n_slots, gb, alone,
                       who);
    digits = sysmem_digits(least, b->available);
    return err_set(err, "not enough memory: the model takes %.*f GB, %.*f GB are available%s", digits, (double)least / 1e9, digits, gb, who);
}

u32 budget_ctx(const struct budget *b, u32 wish, struct err *err)
{
    u32 top = b->plan->hp.n_ctx, fits = fitting_ctx(b, b->n_slots);
    if (wish > top) {
        err_set(err, "--ctx %u: this model reads at most %u positions", wish, top);
        return 0;
    }
    if (fits && wish <= fits)
        return wish ? wish : fits;
    if (wish && needed(b, b->n_slots, wish) <= b->available) /* between two of the steps that we choose by */
        return wish;
    if (!wish && b->available == 0)
        return top;
    refuse(b, wish, fits, err);
    return 0;
}
