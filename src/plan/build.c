/* One builder for the decoder family qwen3moe, qwen3, llama, Mixtral, qwen2, qwen2moe and olmoe: what sets them apart is
 * which tensors a layer has, and that the weights already say. A model of another shape gets a builder of its own. */
#include "plan/plan.h"

#include "base/exact.h"

#include <stdlib.h>
#include <string.h>

struct builder {
    struct plan *p;
    struct err *err;
    i32 layer;
    bool last;              /* past the last layer's keys: rows that want logits only */
    bool failed;
    struct plan_op nowhere; /* written after a failed allocation, never read */
};

static void *grow(void *items, u32 n, u32 *cap, u64 item_bytes)
{
    if (n < *cap)
        return items;
    u32 want = *cap ? *cap * 2 : 64;
    void *more = realloc(items, want * item_bytes);
    if (more)
        *cap = want;
    return more;
}

static void out_of_memory(struct builder *b)
{
    if (!b->failed)
        err_set(b->err, "plan: out of memory");
    b->failed = true;
}

/* The index of a tensor's entry; PLAN_NONE for NULL. A tensor used twice (tied output) has one entry. */
static i32 weight(struct builder *b, const struct gguf_tensor *t, bool vector)
{
    struct plan *p = b->p;
    if (!t)
        return PLAN_NONE;
    for (u32 i = 0; i < p->n_weights; i++)
        if (p->weights[i].tensor == t)
            return (i32)i;
    void *more = grow(p->weights, p->n_weights, &p->cap_weights, sizeof *p->weights);
    if (!more) {
        out_of_memory(b);
        return PLAN_NONE;
    }
    p->weights = more;
    p->weights[p->n_weights] = (struct plan_weight){
        .tensor = t,
        .n_in = (u32)t->ne[0],
        .n_out = vector ? 1 : (u32)t->ne[1],
        .n_mats = vector ? 1 : (u32)t->ne[2],
        .vector = vector,
        .file_bytes = t->bytes,
    };
    return (i32)p->n_weights++;
}

static struct plan_mat mat(struct builder *b, const struct gguf_tensor *w, const struct gguf_tensor *bias,
                           enum plan_buf out)
{
    return (struct plan_mat){weight(b, w, false), weight(b, bias, true), out};
}

static struct plan_op *op(struct builder *b, enum plan_kind kind, enum plan_buf in, enum plan_buf out)
{
    struct plan *p = b->p;
    void *more = grow(p->ops, p->n_ops, &p->cap_ops, sizeof *p->ops);
    if (!more) {
        out_of_memory(b);
        return &b->nowhere;
    }
    p->ops = more;
    struct plan_op *o = &p->ops[p->n_ops++];
    *o = (struct plan_op){.kind = kind, .layer = b->layer, .in = in, .out = out, .norm = PLAN_NONE, .norm2 = PLAN_NONE,
                           .last = b->last};
    return o;
}

static void norm(struct builder *b, const struct gguf_tensor *w)
{
    i32 index = weight(b, w, true);
    struct plan_op *o = op(b, OP_NORM, BUF_X, BUF_H);
    o->norm = index;
}

static void attention(struct builder *b, const struct layer_weights *l)
{
    const struct hparams *hp = &b->p->hp;
    norm(b, l->attn_norm);
    struct plan_mat q = mat(b, l->q, l->q_bias, BUF_Q), k = mat(b, l->k, l->k_bias, BUF_K),
                    v = mat(b, l->v, l->v_bias, BUF_V);
    struct plan_op *o = op(b, OP_MAT, BUF_H, BUF_Q);
    o->n_mats = 3;
    o->mats[0] = q;
    o->mats[1] = k;
    o->mats[2] = v;
    i32 qn = weight(b, l->q_norm, true), kn = weight(b, l->k_norm, true);
    o = op(b, OP_ROPE_STORE, BUF_Q, BUF_Q);
    o->norm = qn;
    o->norm2 = kn;
    o->whole_norm = l->q_norm && l->q_norm->ne[0] != hp->d_head;
    if (b->layer + 1 == (i32)hp->n_layers) { /* keys and values of all rows are kept; the rest is for logits */
        b->last = true;
        op(b, OP_KEEP, BUF_Q, BUF_X);
    }
    op(b, OP_ATTEND, BUF_Q, BUF_ATT);
    struct plan_mat out = mat(b, l->o, l->o_bias, BUF_O);
    o = op(b, OP_MAT, BUF_ATT, BUF_O);
    o->n_mats = 1;
    o->mats[0] = out;
    o->add = true;
}

/* gate and up, then their product, then down to `out`. */
static void gated(struct builder *b, const struct gguf_tensor *gate, const struct gguf_tensor *up,
                  const struct gguf_tensor *down, enum plan_buf out, bool add)
{
    struct plan_mat g = mat(b, gate, NULL, BUF_GATE), u = mat(b, up, NULL, BUF_UP);
    struct plan_op *o = op(b, OP_MAT, BUF_H, BUF_GATE);
    o->n_mats = 2;
    o->mats[0] = g;
    o->mats[1] = u;
    op(b, OP_SWIGLU, BUF_GATE, BUF_GATE);
    struct plan_mat d = mat(b, down, NULL, out);
    o = op(b, OP_MAT, BUF_GATE, out);
    o->n_mats = 1;
    o->mats[0] = d;
    o->add = add;
}

static void experts(struct builder *b, const struct layer_weights *l)
{
    struct plan_mat router = mat(b, l->router, NULL, BUF_ROUTER),
                    shared = mat(b, l->shared_router, NULL, BUF_SHARED_W);
    struct plan_op *o = op(b, OP_MAT, BUF_H, BUF_ROUTER);
    o->n_mats = l->shared_router ? 2 : 1;
    o->mats[0] = router;
    o->mats[1] = shared;
    op(b, OP_ROUTE, BUF_ROUTER, BUF_ROUTER);
    struct plan_mat gate = mat(b, l->gate_exps, NULL, BUF_EXP_ACT), up = mat(b, l->up_exps, NULL, BUF_EXP_ACT);
    o = op(b, OP_EXPERTS_IN, BUF_H, BUF_EXP_ACT);
    o->n_mats = 2;
    o->mats[0] = gate;
    o->mats[1] = up;
    struct plan_mat down = mat(b, l->down_exps, NULL, BUF_EXP_OUT);
    o = op(b, OP_EXPERTS_OUT, BUF_EXP_ACT, BUF_EXP_OUT);
    o->n_mats = 1;
    o->mats[0] = down;
    if (l->shared_down)
        gated(b, l->shared_gate, l->shared_up, l->shared_down, BUF_SHARED, false);
    o = op(b, OP_COMBINE, BUF_EXP_OUT, BUF_X);
    o->shared = l->shared_down != NULL;
}

static void buffer(struct plan *p, enum plan_buf buf, u32 width, u32 ranks)
{
    p->bufs[buf] = (struct plan_buffer){.width = width, .ranks = ranks};
}

/* Widths, and which buffers products read in quantised form. */
static void buffers(struct plan *p)
{
    const struct hparams *hp = &p->hp;
    u32 d_ff = hp->d_ff > hp->d_ff_shared ? hp->d_ff : hp->d_ff_shared;
    buffer(p, BUF_X, hp->d_model, 1);
    buffer(p, BUF_H, hp->d_model, 1);
    buffer(p, BUF_Q, hp->n_heads * hp->d_head, 1);
    buffer(p, BUF_K, hp->n_kv * hp->d_head, 1);
    buffer(p, BUF_V, hp->n_kv * hp->d_head, 1);
    buffer(p, BUF_ATT, hp->n_heads * hp->d_head, 1);
    buffer(p, BUF_O, hp->d_model, 1);
    buffer(p, BUF_GATE, d_ff, 1);
    buffer(p, BUF_UP, d_ff, 1);
    if (hp->n_experts) {
        buffer(p, BUF_ROUTER, hp->n_experts, 1);
        buffer(p, BUF_EXP_ACT, hp->d_ff_exp, hp->n_used);
        buffer(p, BUF_EXP_OUT, hp->d_model, hp->n_used);
        buffer(p, BUF_SHARED, hp->d_ff_shared ? hp->d_model : 0, 1);
        buffer(p, BUF_SHARED_W, hp->d_ff_shared ? 1 : 0, 1);
    }
    buffer(p, BUF_LOGITS, hp->n_vocab, 1);
    for (u32 i = 0; i < p->n_ops; i++)
        for (u32 m = 0; m < p->ops[i].n_mats; m++) {
            const struct plan_weight *w = &p->weights[p->ops[i].mats[m].weight];
            if (p->ops[i].kind != OP_EMBED && dtype_info(w->tensor->type)->quantised)
                p->bufs[p->ops[i].in].quantised = true;
        }
}

static int rope_factors(struct builder *b, const struct gguf_tensor *t)
{
    if (!t)
        return 0;
    u32 n = b->p->hp.d_rope / 2;
    b->p->rope_factors = mem_array(n, sizeof(float));
    if (!b->p->rope_factors)
        return err_set(b->err, "plan: out of memory");
    for (u32 i = 0; i < n; i++) {
        u32 u;
        memcpy(&u, t->data + 4 * i, 4);
        b->p->rope_factors[i] = EX_FLOAT(u);
        if (!(b->p->rope_factors[i] > 0.0f) || (u & 0x7F800000u) == 0x7F800000u)
            return err_set(b->err, "rope_freqs.weight: element %u is %g; expected a positive number", i,
                           (double)b->p->rope_factors[i]);
    }
    return 0;
}

int plan_build(struct plan *p, const struct weights *w, struct err *err)
{
    *p = (struct plan){.hp = w->hp};
    struct builder b = {.p = p, .err = err, .layer = -1};
    if (rope_factors(&b, w->rope_factors))
        goto fail;
    struct plan_mat table = mat(&b, w->embed, NULL, BUF_X);
    struct plan_op *o = op(&b, OP_EMBED, BUF_X, BUF_X);
    o->n_mats = 1;
    o->mats[0] = table;
    for (u32 i = 0; i < w->hp.n_layers; i++) {
        const struct layer_weights *l = &w->layers[i];
        b.layer = (i32)i;
        attention(&b, l);
        norm(&b, l->ffn_norm);
        if (l->router)
            experts(&b, l);
        else
            gated(&b, l->gate, l->up, l->down, BUF_O, true);
    }
    b.layer = -1;
    norm(&b, w->output_norm);
    struct plan_mat out = mat(&b, w->output, NULL, BUF_LOGITS);
    o = op(&b, OP_MAT, BUF_H, BUF_LOGITS);
    o->n_mats = 1;
    o->mats[0] = out;
    if (b.failed)
        goto fail;
    buffers(p);
    return 0;
fail:
    plan_close(p);
    return -1;
}

void plan_close(struct plan *p)
{
    free(p->ops);
    free(p->weights);
    free(p->rope_factors);
    *p = (struct plan){0};
}
