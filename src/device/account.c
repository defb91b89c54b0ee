/* See account.h. */
#include "device/account.h"

#include <string.h>

u64 account_bytes(const struct device *d, const struct plan_op *op, u32 rows, u64 positions, u32 hit)
{
    const struct plan *p = d->plan;
    switch (op->kind) {
    case OP_EMBED:
        return plan_op_bytes(p, op) * rows;
    case OP_EXPERTS_IN:
    case OP_EXPERTS_OUT:
        return plan_op_bytes_hit(p, op, hit);
    case OP_ATTEND:
        return positions * (plan_kv_bytes(p, d->opts.kv) / p->hp.n_layers);
    default:
        return rows ? plan_op_bytes(p, op) : 0;
    }
}

/* FNV-1a over a row's words: enough to tell which operation parted first. */
static u64 hash_row(const float *x, u32 n)
{
    u64 h = 0xCBF29CE484222325ull;
    for (u32 i = 0; i < n; i++) {
        u32 u;
        memcpy(&u, x + i, 4);
        h = (h ^ u) * 0x100000001B3ull;
    }
    return h;
}

u32 account_width(const struct plan *p, const struct plan_op *op, enum plan_buf b)
{
    const struct plan_op *from = op->kind == OP_SWIGLU ? op - 1 : op; /* in place: what the products before it wrote */
    for (u32 m = 0; from->kind == OP_MAT && m < from->n_mats; m++)
        if (from->mats[m].out == b)
            return p->weights[from->mats[m].weight].n_out;
    return p->bufs[b].width;
}

u64 account_hash(u64 h, const float *x, u32 ranks, u32 stride, u32 width)
{
    for (u32 k = 0; k < ranks; k++)
        h = h * 31 + hash_row(x + (u64)k * stride, width);
    return h;
}
