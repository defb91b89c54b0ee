/* Tensors by their place in the model. See weights.h.
 *
 * One pass over the file's directory puts each blk.N.* tensor into its layer by the table below, so
 * a name that the table lacks is noticed; a second pass over the layers asks for what must be
 * there, refuses what must not, and compares every shape. After that the plan can multiply without
 * looking. Rows of quantised tensors are whole blocks (32 or 256): gguf.c has checked that for
 * every tensor. */
#include "model/weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum dim { ONE, D_MODEL, D_Q, D_KV, D_Q_NORM, D_K_NORM, D_FF, D_FF_EXP, D_FF_SHARED, N_EXPERTS };

enum when {
    ALWAYS,
    QKV_BIAS, /* required by qwen2 and qwen2moe, optional elsewhere */
    OPTIONAL,
    HEAD_NORM, /* required by qwen3, qwen3moe, olmoe; unknown to the others */
    DENSE,     /* in layers without a router, and only there */
    ROUTED,    /* in layers with one, and only there */
    SHARED,    /* in those, when the model has a shared expert */
};

struct rule {
    const char *name; /* after "blk.N." */
    size_t field;     /* a pointer of struct layer_weights */
    enum when when;
    enum dim ne[3]; /* innermost first, as in the file */
};

#define FIELD(name) offsetof(struct layer_weights, name)
static const struct rule RULES[] = {
    {"attn_norm.weight", FIELD(attn_norm), ALWAYS, {D_MODEL}},
    {"attn_q.weight", FIELD(q), ALWAYS, {D_MODEL, D_Q}},
    {"attn_k.weight", FIELD(k), ALWAYS, {D_MODEL, D_KV}},
    {"attn_v.weight", FIELD(v), ALWAYS, {D_MODEL, D_KV}},
    {"attn_output.weight", FIELD(o), ALWAYS, {D_Q, D_MODEL}},
    {"attn_q.bias", FIELD(q_bias), QKV_BIAS, {D_Q}},
    {"attn_k.bias", FIELD(k_bias), QKV_BIAS, {D_KV}},
    {"attn_v.bias", FIELD(v_bias), QKV_BIAS, {D_KV}},
    {"attn_output.bias", FIELD(o_bias), OPTIONAL, {D_MODEL}},
    {"attn_q_norm.weight", FIELD(q_norm), HEAD_NORM, {D_Q_NORM}},
    {"attn_k_norm.weight", FIELD(k_norm), HEAD_NORM, {D_K_NORM}},
    {"ffn_norm.weight", FIELD(ffn_norm), ALWAYS, {D_MODEL}},
    {"ffn_gate.weight", FIELD(gate), DENSE, {D_MODEL, D_FF}},
    {"ffn_up.weight", FIELD(up), DENSE, {D_MODEL, D_FF}},
    {"ffn_down.weight", FIELD(down), DENSE, {D_FF, D_MODEL}},
    {"ffn_gate_inp.weight", FIELD(router), ROUTED, {D_MODEL, N_EXPERTS}},
    {"ffn_gate_exps.weight", FIELD(gate_exps), ROUTED, {D_MODEL, D_FF_EXP, N_EXPERTS}},
    {"ffn_up_exps.weight", FIELD(up_exps), ROUTED, {D_MODEL, D_FF_EXP, N_EXPERTS}},
    {"ffn_down_exps.weight", FIELD(down_exps), ROUTED, {D_FF_EXP, D_MODEL, N_EXPERTS}},
    {"ffn_gate_shexp.weight", FIELD(shared_gate), SHARED, {D_MODEL, D_FF_SHARED}},
    {"ffn_up_shexp.weight", FIELD(shared_up), SHARED, {D_MODEL, D_FF_SHARED}},
    {"ffn_down_shexp.weight", FIELD(shared_down), SHARED, {D_FF_SHARED, D_MODEL}},
    {"ffn_gate_inp_shexp.weight", FIELD(shared_router), SHARED, {D_MODEL}},
};
#undef FIELD

struct source {
    const struct gguf *g;
    const struct hparams *hp;
    struct err *err;
};

static u64 dim_of(const struct hparams *hp, enum dim dim)
{
    bool whole_row = hp->arch == ARCH_OLMOE; /* its q and k norms span all heads */
    u64 d_q = (u64)hp->n_heads * hp->d_head, d_kv = (u64)hp->n_kv * hp->d_head;
    switch (dim) {
    case ONE:
        return 1;
    case D_MODEL:
        return hp->d_model;
    case D_Q:
        return d_q;
    case D_KV:
        return d_kv;
    case D_Q_NORM:
        return whole_row ? d_q : hp->d_head;
    case D_K_NORM:
        return whole_row ? d_kv : hp->d_head;
    case D_FF:
        return hp->d_ff;
    case D_FF_EXP:
        return hp->d_ff_exp;
    case D_FF_SHARED:
        return hp->d_ff_shared;
    case N_EXPERTS:
        return hp->n_experts;
    }
    return 0;
}

/* Compares with (rows2, rows1, columns) = (ne[2], ne[1], ne[0]); a vector must be of floats. */
static int check_shape(const struct source *s, const char *name, const struct gguf_tensor *t,
                       u64 ne0, u64 ne1, u64 ne2)
{
    if (t->ne[0] != ne0 || t->ne[1] != ne1 || t->ne[2] != ne2 || t->ne[3] != 1)
        return err_set(s->err,
                       "%s: tensor \"%s\": shape (%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64
                       "), expected (1, %" PRIu64 ", %" PRIu64 ", %" PRIu64 ")",
                       s->g->path, name, t->ne[3], t->ne[2], t->ne[1], t->ne[0], ne2, ne1, ne0);
    if (ne1 == 1 && ne2 == 1 && dtype_info(t->type)->quantised)
        return err_set(s->err, "%s: tensor \"%s\": type %s, expected f32, f16 or bf16", s->g->path,
                       name, dtype_info(t->type)->name);
    return 0;
}

static int missing(const struct source *s, const char *name)
{
    return err_set(s->err, "%s: tensor \"%s\": is missing, %s needs it", s->g->path, name,
                   hparams_arch_name(s->hp->arch));
}

/* One tensor outside the layers. *out is NULL when it is absent and optional. */
static int find_global(const struct source *s, const char *name, bool required, u64 ne0, u64 ne1,
                       const struct gguf_tensor **out)
{
    *out = gguf_find_tensor(s->g, name);
    if (!*out)
        return required ? missing(s, name) : 0;
    return check_shape(s, name, *out, ne0, ne1, 1);
}

static int check_rope_factors(const struct source *s, const struct gguf_tensor *t)
{
    if (t->type != DT_F32)
        return err_set(s->err, "%s: tensor \"rope_freqs.weight\": type %s, expected f32",
                       s->g->path, dtype_info(t->type)->name);
    for (u64 i = 0; i < t->ne[0]; i++) {
        float factor;
        memcpy(&factor, t->data + i * sizeof factor, sizeof factor);
        if (!(factor >= 1e-6f && factor <= 1e6f))
            return err_set(s->err,
                           "%s: tensor \"rope_freqs.weight\": item %" PRIu64
                           " is %g, expected 1e-06 to 1e+06",
                           s->g->path, i, (double)factor);
    }
    return 0;
}

static int find_globals(struct weights *w, const struct source *s)
{
    const struct hparams *hp = s->hp;
    if (find_global(s, "token_embd.weight", true, hp->d_model, hp->n_vocab, &w->embed) ||
        find_global(s, "output_norm.weight", true, hp->d_model, 1, &w->output_norm) ||
        find_global(s, "output.weight", false, hp->d_model, hp->n_vocab, &w->output) ||
        find_global(s, "rope_freqs.weight", false, hp->d_rope / 2, 1, &w->rope_factors))
        return -1;
    if (!w->output)
        w->output = w->embed;
    if (gguf_find_tensor(s->g, "output.bias"))
        return err_set(s->err, "%s: tensor \"output.bias\": not supported, expected none",
                       s->g->path);
    return w->rope_factors ? check_rope_factors(s, w->rope_factors) : 0;
}

/* "blk.N.REST" -> N and REST; false for any other name. N has at most 9 digits. */
static bool split_name(struct gguf_str name, u32 *layer, struct gguf_str *rest)
{
    if (name.len < 4 || memcmp(name.at, "blk.", 4))
        return false;
    u64 i = 4;
    u32 n = 0;
    for (; i < name.len && i < 4 + 9 && name.at[i] >= '0' && name.at[i] <= '9'; i++)
        n = n * 10 + (u32)(name.at[i] - '0');
    if (i == 4 || i == name.len || name.at[i] != '.')
        return false;
    *layer = n;
    *rest = (struct gguf_str){name.at + i + 1, name.len - i - 1};
    return true;
}

static bool begins_with(struct gguf_str s, const char *text)
{
    return s.len >= strlen(text) && !memcmp(s.at, text, strlen(text));
}

/* Names of other layouts get an answer that helps. */
static const char *why_unknown(struct gguf_str rest)
{
    static const char *const PER_EXPERT[] = {"ffn_gate.", "ffn_up.", "ffn_down."};
    for (u32 i = 0; i < COUNT(PER_EXPERT); i++) {
        size_t n = strlen(PER_EXPERT[i]);
        if (begins_with(rest, PER_EXPERT[i]) && rest.len > n && rest.at[n] >= '0' &&
            rest.at[n] <= '9')
            return "one tensor per expert is an old layout, expected ffn_gate_exps, ffn_up_exps "
                   "and "
                   "ffn_down_exps: convert the model again";
    }
    if (begins_with(rest, "attn_qkv."))
        return "fused q, k and v, expected attn_q, attn_k and attn_v";
    return NULL;
}

static const struct gguf_tensor **slot_of(struct layer_weights *layer, const struct rule *rule)
{
    return (const struct gguf_tensor **)((char *)layer + rule->field);
}

static int place(struct weights *w, const struct source *s, const struct gguf_tensor *t)
{
    u32 layer;
    struct gguf_str rest;
    char name[96];
    if (!split_name(t->name, &layer, &rest)) {
        if (!begins_with(t->name, "blk."))
            return 0;
        rest = t->name;
        layer = 0;
    }
    err_quote(name, sizeof name, t->name.at, t->name.len);
    if (layer >= s->hp->n_layers)
        return err_set(s->err,
                       "%s: tensor \"%s\": layer %" PRIu32 ", expected 0 to %" PRIu32
                       " as block_count says",
                       s->g->path, name, layer, s->hp->n_layers - 1);
    for (u32 i = 0; i < COUNT(RULES); i++) {
        if (!gguf_str_is(rest, RULES[i].name))
            continue;
        const struct gguf_tensor **slot = slot_of(&w->layers[layer], &RULES[i]);
        if (*slot) /* "blk.01.x" beside "blk.1.x" */
            return err_set(s->err,
                           "%s: tensor \"%s\": its place is taken, expected one name per tensor",
                           s->g->path, name);
        *slot = t;
        return 0;
    }
    const char *why = why_unknown(rest);
    if (why)
        return err_set(s->err, "%s: tensor \"%s\": %s", s->g->path, name, why);
    return err_set(s->err, "%s: tensor \"%s\": not known in a layer of %s", s->g->path, name,
                   hparams_arch_name(s->hp->arch));
}

enum wish { FORBIDDEN, ALLOWED, REQUIRED };

static enum wish wish_of(const struct hparams *hp, enum when when, bool routed)
{
    switch (when) {
    case ALWAYS:
        return REQUIRED;
    case QKV_BIAS:
        return hp->arch == ARCH_QWEN2 || hp->arch == ARCH_QWEN2MOE ? REQUIRED : ALLOWED;
    case OPTIONAL:
        return ALLOWED;
    case HEAD_NORM:
        return hp->arch == ARCH_QWEN3 || hp->arch == ARCH_QWEN3MOE || hp->arch == ARCH_OLMOE
                   ? REQUIRED
                   : FORBIDDEN;
    case DENSE:
        return routed ? FORBIDDEN : REQUIRED;
    case ROUTED:
        return routed ? REQUIRED : FORBIDDEN;
    case SHARED:
        return routed && hp->d_ff_shared ? REQUIRED : FORBIDDEN;
    }
    return FORBIDDEN;
}

static int check_layer(struct layer_weights *layer, u32 index, const struct source *s)
{
    const struct hparams *hp = s->hp;
    bool routed = layer->router && hp->n_experts;
    for (u32 i = 0; i < COUNT(RULES); i++) {
        const struct rule *rule = &RULES[i];
        const struct gguf_tensor *t = *slot_of(layer, rule);
        enum wish wish = wish_of(hp, rule->when, routed);
        char name[64];
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s", index, rule->name);
        if (!t && wish == REQUIRED)
            return missing(s, name);
        if (t && wish == FORBIDDEN)
            return err_set(s->err, "%s: tensor \"%s\": not known in a %s layer of %s", s->g->path,
                           name, routed ? "routed" : "dense", hparams_arch_name(hp->arch));
        if (t && check_shape(s, name, t, dim_of(hp, rule->ne[0]), dim_of(hp, rule->ne[1]),
                             dim_of(hp, rule->ne[2])))
            return -1;
    }
    return 0;
}

int weights_open(struct weights *w, const struct gguf *g, struct err *err)
{
    struct source s = {.g = g, .hp = &w->hp, .err = err};
    *w = (struct weights){0};
    if (hparams_read(&w->hp, g, err) || find_globals(w, &s))
        goto fail;
    w->layers = mem_array(w->hp.n_layers, sizeof *w->layers);
    if (!w->layers) {
        err_set(err, "%s: out of memory for %" PRIu32 " layers", g->path, w->hp.n_layers);
        goto fail;
    }
    for (u64 i = 0; i < g->n_tensors; i++)
        if (place(w, &s, &g->tensors[i]))
            goto fail;
    for (u32 i = 0; i < w->hp.n_layers; i++)
        if (check_layer(&w->layers[i], i, &s))
            goto fail;
    return 0;
fail:
    weights_close(w);
    return -1;
}

void weights_close(struct weights *w)
{
    free(w->layers);
    w->layers = NULL;
}
