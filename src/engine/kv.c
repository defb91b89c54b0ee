/* Slots and the texts they hold. See kv.h.
 *
 * Which free slot does a new text get? The one whose kept tokens save the most work is the obvious answer, but it may
 * cost more than it saves: a long conversation that shares only its first line with the newcomer would be
 * overwritten. So a slot is a match when at least half of what it holds is of use; otherwise the slot that was released
 * longest ago is taken, empty ones first. When some other slot holds a much longer prefix of the newcomer (a system prompt
 * that running streams share), that prefix is copied. Exact tokens are compared, never hashes: reuse must not change a
 * byte. */
#include "engine/kv.h"

#include <stdlib.h>
#include <string.h>

enum { COPY_GAIN = 32 }; /* tokens that a copy must save to be worth its bytes */

struct slot {
    u64 domain;
    u32 *ids;      /* [n_ctx]: token at each position */
    u32 length;
    bool used;
    u64 released;  /* when, in claims; 0: never used */
};

struct kv {
    u32 n_slots, n_ctx;
    u64 clock;
    u32 *ids;      /* all slots' lists */
    struct slot slots[];
};

int kv_open(struct kv **out, u32 n_slots, u32 n_ctx, struct err *err)
{
    *out = NULL;
    u64 list_bytes;
    struct kv *kv = mul_u64(n_slots, (u64)n_ctx * sizeof(u32), &list_bytes)
                        ? mem_array(1, sizeof *kv + n_slots * sizeof kv->slots[0])
                        : NULL;
    if (!kv || !(kv->ids = mem_array(n_slots, (u64)n_ctx * sizeof(u32)))) {
        kv_close(kv);
        return err_set(err, "out of memory: token lists of %u slots x %u positions", n_slots, n_ctx);
    }
    kv->n_slots = n_slots;
    kv->n_ctx = n_ctx;
    for (u32 i = 0; i < n_slots; i++)
        kv->slots[i].ids = kv->ids + (u64)i * n_ctx;
    *out = kv;
    return 0;
}

void kv_close(struct kv *kv)
{
    if (!kv)
        return;
    free(kv->ids);
    free(kv);
}

static u32 shared_prefix(const struct slot *s, u64 domain, const u32 *ids, u32 n)
{
    u32 i = 0, most = s->domain == domain ? min_u32(s->length, n) : 0;
    while (i < most && s->ids[i] == ids[i])
        i++;
    return i;
}

/* The free slot to give, or -1; *kept: of the newcomer's tokens, what it holds. */
static int choose_slot(const struct kv *kv, u64 domain, const u32 *ids, u32 n, u32 *kept)
{
    int best = -1, oldest = -1;
    *kept = 0;
    for (u32 i = 0; i < kv->n_slots; i++) {
        const struct slot *s = &kv->slots[i];
        if (s->used)
            continue;
        u32 k = shared_prefix(s, domain, ids, n);
        if (k > *kept && k >= s->length - k) {
            best = (int)i;
            *kept = k;
        }
        if (oldest < 0 || s->released < kv->slots[oldest].released)
            oldest = (int)i;
    }
    if (best < 0 && oldest >= 0)
        *kept = shared_prefix(&kv->slots[oldest], domain, ids, n);
    return best >= 0 ? best : oldest;
}

int kv_claim(struct kv *kv, u64 domain, const u32 *ids, u32 n, u32 *kept, i32 *from)
{
    u32 own;
    int chosen = choose_slot(kv, domain, ids, n, &own);
    *from = -1;
    if (chosen < 0)
        return -1;
    struct slot *s = &kv->slots[chosen];
    u32 most = own + COPY_GAIN;
    for (u32 i = 0; i < kv->n_slots; i++) {
        u32 k = i == (u32)chosen ? 0 : shared_prefix(&kv->slots[i], domain, ids, n);
        if (k >= most) {
            *from = (i32)i;
            most = k + 1;
            own = k;
        }
    }
    *kept = min_u32(own, n - 1);
    memcpy(s->ids, ids, *kept * sizeof *ids);
    s->domain = domain;
    s->length = *kept;
    s->used = true;
    return chosen;
}

void kv_append(struct kv *kv, u32 slot, const u32 *ids, u32 n)
{
    struct slot *s = &kv->slots[slot];
    memcpy(s->ids + s->length, ids, n * sizeof *ids);
    s->length += n;
}

u32 kv_length(const struct kv *kv, u32 slot)
{
    return kv->slots[slot].length;
}

u32 kv_room(const struct kv *kv, u32 slot)
{
    return kv->n_ctx - kv->slots[slot].length;
}

void kv_release(struct kv *kv, u32 slot)
{
    kv->slots[slot].used = false;
    kv->slots[slot].released = ++kv->clock;
}

void kv_cut(struct kv *kv, u32 slot, u32 n)
{
    kv->slots[slot].length = min_u32(kv->slots[slot].length, n);
}

u32 kv_free_slots(const struct kv *kv)
{
    u32 n = 0;
    for (u32 i = 0; i < kv->n_slots; i++)
        n += !kv->slots[i].used;
    return n;
}
