/* What a plan costs and how it looks to a person. See plan.h. */
#include "plan/plan.h"

static const char *const KINDS[OP_KINDS] = {
    [OP_EMBED] = "embed",     [OP_NORM] = "norm",       [OP_MAT] = "product",
    [OP_ROPE_STORE] = "rope+store", [OP_KEEP] = "keep",         [OP_ATTEND] = "attend", [OP_SWIGLU] = "swiglu",
    [OP_ROUTE] = "route",     [OP_EXPERTS_IN] = "experts in", [OP_EXPERTS_OUT] = "experts out",
    [OP_COMBINE] = "combine",
};

static const char *const BUFS[BUF_COUNT] = {
    [BUF_X] = "x",     [BUF_H] = "h",         [BUF_Q] = "q",           [BUF_K] = "k",
    [BUF_V] = "v",     [BUF_ATT] = "att",     [BUF_O] = "o",           [BUF_GATE] = "gate",
    [BUF_UP] = "up",   [BUF_ROUTER] = "router", [BUF_EXP_ACT] = "exp_act", [BUF_EXP_OUT] = "exp_out",
    [BUF_SHARED] = "shared", [BUF_SHARED_W] = "shared_w", [BUF_LOGITS] = "logits",
};

const char *plan_kind_name(enum plan_kind kind)
{
    return KINDS[kind];
}

const char *plan_buf_name(enum plan_buf buf)
{
    return BUFS[buf];
}

static u64 weight_bytes(const struct plan *p, i32 index, u32 mats)
{
    if (index < 0)
        return 0;
    const struct plan_weight *w = &p->weights[index];
    return w->file_bytes / w->n_mats * mats;
}

u64 plan_op_bytes_hit(const struct plan *p, const struct plan_op *op, u32 hit)
{
    u64 sum = weight_bytes(p, op->norm, 1) + weight_bytes(p, op->norm2, 1);
    bool experts = op->kind == OP_EXPERTS_IN || op->kind == OP_EXPERTS_OUT;
    for (u32 i = 0; i < op->n_mats; i++) {
        u64 bytes = weight_bytes(p, op->mats[i].weight, experts ? hit : 1);
        if (op->kind == OP_EMBED)
            bytes /= p->weights[op->mats[i].weight].n_out; /* one row of the table */
        sum += bytes + weight_bytes(p, op->mats[i].bias, 1);
    }
    return sum;
}

u64 plan_op_bytes(const struct plan *p, const struct plan_op *op)
{
    return plan_op_bytes_hit(p, op, p->hp.n_used);
}

u64 plan_token_bytes(const struct plan *p)
{
    u64 sum = 0;
    for (u32 i = 0; i < p->n_ops; i++)
        sum += plan_op_bytes(p, &p->ops[i]);
    return sum;
}

u64 plan_kv_bytes(const struct plan *p, enum kv_type kv)
{
    u64 head = kv == KV_Q8_0 ? p->hp.d_head / 32 * 34 : p->hp.d_head * 2;
    return (u64)p->hp.n_layers * p->hp.n_kv * 2 * head;
}

/* Types (once when all are the same) and shapes of an operation's matrices: "q4_k,q4_k,q6_k 4096+512+512x2048". */
static void describe(const struct plan *p, const struct plan_op *op, char *out, size_t n)
{
    const struct plan_weight *w[PLAN_MAX_MATS] = {0};
    size_t at = 0;
    bool same = true;
    out[0] = 0;
    for (u32 i = 0; i < op->n_mats; i++) {
        w[i] = &p->weights[op->mats[i].weight];
        same &= w[i]->tensor->type == w[0]->tensor->type;
    }
    for (u32 i = 0; i < (same ? min_u32(op->n_mats, 1) : op->n_mats) && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%s", i ? "," : "", dtype_info(w[i]->tensor->type)->name);
    for (u32 i = 0; i < op->n_mats && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%u", i ? "+" : " ", w[i]->n_out);
    if (op->n_mats && at < n)
        snprintf(out + at, n - at, "x%u", w[0]->n_in);
}

static void print_op(const struct plan *p, const struct plan_op *op, u32 index, FILE *out)
{
    char what[96], layer[12] = "-", kind[16], to[16];
    describe(p, op, what, sizeof what);
    if (op->layer >= 0)
        snprintf(layer, sizeof layer, "%d", op->layer);
    snprintf(kind, sizeof kind, "%s%s", KINDS[op->kind], op->last ? "*" : "");
    snprintf(to, sizeof to, "%s%s", BUFS[op->add ? BUF_X : op->out], op->add ? "+" : "");
    fprintf(out, "%4u %3s %-11s %-7s %-8s %9llu %s\n", index, layer, kind, BUFS[op->in], to,
            (unsigned long long)plan_op_bytes(p, op), what);
}

void plan_print(const struct plan *p, FILE *out)
{
    fprintf(out, "%4s %3s %-11s %-7s %-8s %9s %s\n", "op", "lay", "kind", "in", "out", "bytes/row", "weights");
    for (u32 i = 0; i < p->n_ops; i++)
        print_op(p, &p->ops[i], i, out);
    fprintf(out,
            "\nx+: added to x.  *: only rows that want logits.\n"
            "%u operations; a token alone reads %llu bytes of weights;\n"
            "a position keeps %llu bytes of keys and values in f16, %llu in q8_0\n",
            p->n_ops, (unsigned long long)plan_token_bytes(p), (unsigned long long)plan_kv_bytes(p, KV_F16),
            (unsigned long long)plan_kv_bytes(p, KV_Q8_0));
}
