/* The forward pass as data: a flat array of operations built once for a model; every device walks the same array.
 *
 * A step runs R rows. A row is one token of one stream; its result depends on that row and on what its slot holds
 * before it, never on the other rows. Values live in named buffers of `width` floats a row (times n_used where an
 * operation works per chosen expert). A new model is a new builder out of these operations (build.c). */
#ifndef PS_PLAN_H
#define PS_PLAN_H

#include "model/weights.h"

#include <stdio.h>

enum kv_type { KV_F16, KV_Q8_0 }; /* how keys and values are kept (rule 7) */

struct row {
    u32 slot, pos, token;
    bool wants_logits;
};

enum plan_buf {
    BUF_X,        /* (d_model) the residual stream */
    BUF_H,        /* (d_model) normalised: input of products */
    BUF_Q,        /* (n_heads * d_head) */
    BUF_K, BUF_V, /* (n_kv * d_head) */
    BUF_ATT,      /* (n_heads * d_head) attention's result */
    BUF_O,        /* (d_model) a product on its way into the residual stream */
    BUF_GATE, BUF_UP, /* (d_ff or d_ff_shared) */
    BUF_ROUTER,   /* (n_experts) logits */
    BUF_EXP_ACT,  /* n_used x (d_ff_exp) */
    BUF_EXP_OUT,  /* n_used x (d_model) */
    BUF_SHARED,   /* (d_model) the shared expert's result */
    BUF_SHARED_W, /* (1) its router's logit */
    BUF_LOGITS,   /* (n_vocab), rows that want logits only */
    BUF_COUNT
};

struct plan_buffer {
    u32 width;     /* floats in a row (of one rank); 0: unused */
    u32 ranks;     /* 1, or n_used */
    bool quantised; /* some product reads it with quantised weights: kept by rule 1 as well */
};

enum plan_kind {
    OP_EMBED,       /* x = embedding row of the token */
    OP_NORM,        /* out = rmsnorm(in) * weight */
    OP_MAT,         /* each mat: out = weight . in (+ bias); add: x = x + out afterwards */
    OP_ROPE_STORE,  /* q, k: per-head or whole-row norm, rotation; k, v into the slot at the row's position */
    OP_KEEP,        /* x and q of the rows that want logits move to the front: all that follows works on them alone */
    OP_ATTEND,      /* att = attention of q over the slot's positions 0..pos */
    OP_SWIGLU,      /* gate = silu(gate) * up */
    OP_ROUTE,       /* chosen experts and their weights */
    OP_EXPERTS_IN,  /* exp_act = silu(gate . h) * (up . h) for each chosen expert */
    OP_EXPERTS_OUT, /* exp_out = down . exp_act */
    OP_COMBINE,     /* x = x + sum over ranks of w * exp_out (+ sigmoid(shared_w) * shared) */
    OP_KINDS
};

enum { PLAN_NONE = -1, PLAN_MAX_MATS = 3 };

struct plan_weight {
    const struct gguf_tensor *tensor;
    u32 n_in, n_out;   /* of one matrix; a vector is (n_in = length, n_out = 1) */
    u32 n_mats;        /* matrices one after another: experts; else 1 */
    bool vector;       /* norm or bias: kept as floats */
    u64 file_bytes;
};

struct plan_mat {
    i32 weight, bias;  /* indices into plan.weights; bias may be PLAN_NONE */
    enum plan_buf out;
};

struct plan_op {
    enum plan_kind kind;
    i32 layer;               /* -1 outside layers */
    enum plan_buf in, out;
    u32 n_mats;
    struct plan_mat mats[PLAN_MAX_MATS]; /* EXPERTS_IN: gate, up; EXPERTS_OUT: down; EMBED: the table */
    i32 norm, norm2;         /* NORM: weight; ROPE_STORE: q and k norms; or PLAN_NONE */
    bool whole_norm;         /* ROPE_STORE: the norm runs over the whole row (olmoe) */
    bool add;                /* MAT: into the residual stream */
    bool shared;             /* COMBINE: a shared expert takes part */
    bool last;               /* on the rows that OP_KEEP left: those that want logits */
};

struct plan {
    struct hparams hp;
    struct plan_op *ops;
    u32 n_ops, cap_ops;
    struct plan_weight *weights;
    u32 n_weights, cap_weights;
    struct plan_buffer bufs[BUF_COUNT];
    float *rope_factors;     /* (d_rope / 2), or NULL */
};

/* Builds the plan of a model. w and its gguf must outlive it. On failure nothing is left behind. */
int plan_build(struct plan *p, const struct weights *w, struct err *err);
void plan_close(struct plan *p);

/* Bytes of weights (file format) that one row reads in this operation when nothing is shared: experts count n_used. */
u64 plan_op_bytes(const struct plan *p, const struct plan_op *op);
/* The same for a step in which `hit` distinct experts take part. */
u64 plan_op_bytes_hit(const struct plan *p, const struct plan_op *op, u32 hit);
u64 plan_token_bytes(const struct plan *p); /* sum over operations, one row */

/* Bytes of keys and values one position takes in all layers. */
u64 plan_kv_bytes(const struct plan *p, enum kv_type kv);

const char *plan_kind_name(enum plan_kind kind);
const char *plan_buf_name(enum plan_buf buf);
void plan_print(const struct plan *p, FILE *out);

#endif
