/* Who owns which slot, and which tokens each slot's keys and values stand for. The memory itself is the device's; a
 * slot here is a number, a length and a list of tokens. Slots are never wiped: a released slot keeps its tokens, so that
 * a later stream that begins alike finds them. Engine thread only. */
#ifndef PS_KV_H
#define PS_KV_H

#include "base/base.h"

struct kv;

/* n_slots slots of n_ctx positions, allocated once. */
int kv_open(struct kv **out, u32 n_slots, u32 n_ctx, struct err *err);
void kv_close(struct kv *kv);

/* Claim a slot for a text that begins with ids[0..n), n >= 1. Sets *kept to how many of them the slot holds once the
 * caller has done what *from says (at most n - 1: the last one must run to give logits); the caller must run
 * ids[*kept..n). *from is -1, or another slot, in use or not, from which positions [0, *kept) must be copied before
 * anything else is run or copied to that slot. Only slots of the same domain share prefixes. Returns the slot, or -1
 * when all are in use: not an error. */
int kv_claim(struct kv *kv, u64 domain, const u32 *ids, u32 n, u32 *kept, i32 *from);

/* Tells that tokens were run: their keys and values now stand at positions [length, length + n) of the slot. They
 * must fit (kv_room). */
void kv_append(struct kv *kv, u32 slot, const u32 *ids, u32 n);

u32 kv_length(const struct kv *kv, u32 slot);
u32 kv_room(const struct kv *kv, u32 slot);

/* The slot may be claimed again; its tokens stay for reuse. */
void kv_release(struct kv *kv, u32 slot);

/* After a failed step the device's contents from position n on are unknown: keep only the first n. */
void kv_cut(struct kv *kv, u32 slot, u32 n);

u32 kv_free_slots(const struct kv *kv);

#endif
