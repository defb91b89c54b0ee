/* Hyperparameters: the keys ARCH.* of a GGUF as one checked struct. See hparams.h.
 *
 * Key names and defaults are those that llama.cpp's converter writes and its loader assumes. A key
 * that we do not know is harmless unless it changes the arithmetic; those that do are listed in
 * NEUTRAL and refused by name, since a wrong answer without a word is worse than no answer. */
#include "model/hparams.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { KEY_BYTES = 96 };

/* Scales outside these are damage, and inside them no product of a few can leave fp32. */
#define MIN_FACTOR 1e-6f
#define MAX_FACTOR 1e6f

enum experts { NEVER, MAYBE, ALWAYS };

static const struct {
    const char *name;
    enum experts experts;
    bool rope_neox;
    bool used_norm; /* unless the file says otherwise */
    bool ff_is_exp; /* feed_forward_length is the width of one expert */
    bool has_shared;
} ARCHS[ARCH_COUNT] = {
    [ARCH_QWEN3MOE] = {"qwen3moe", ALWAYS, true, true, false, false},
    [ARCH_QWEN3] = {"qwen3", NEVER, true, false, false, false},
    [ARCH_LLAMA] = {"llama", MAYBE, false, true, true, false}, /* with experts it is Mixtral */
    [ARCH_QWEN2] = {"qwen2", NEVER, true, false, false, false},
    [ARCH_QWEN2MOE] = {"qwen2moe", ALWAYS, true, false, false, true},
    [ARCH_OLMOE] = {"olmoe", ALWAYS, true, false, true, false},
};

static const struct { /* values that leave the arithmetic as it is */
    const char *name;
    double a, b;
} NEUTRAL[] = {
    {"attention.causal", 1, 1},
    {"attention.clamp_kqv", 0, 0},
    {"attention.max_alibi_bias", 0, 0},
    {"attention.scale", 0, 0},
    {"attn_logit_softcapping", 0, 0},
    {"final_logit_softcapping", 0, 0},
    {"logit_scale", 0, 1},
    {"embedding_scale", 0, 1},
    {"residual_scale", 0, 1},
    {"rope.scaling.attn_factor", 0, 1},
    {"expert_gating_func", 0, 1}, /* 1: softmax */
    {"expert_group_count", 0, 1},
};

struct source {
    const struct gguf *g;
    const char *arch;
    struct err *err;
};

static void key_of(const struct source *s, char key[KEY_BYTES], const char *name)
{
    snprintf(key, KEY_BYTES, "%s.%s", s->arch, name);
}

static int missing(const struct source *s, const char *name, const char *wish)
{
    return err_set(s->err, "%s: metadata \"%s.%s\": is missing, expected %s", s->g->path, s->arch,
                   name, wish);
}

/* An integer, or an array of one integer per layer if they are all the same. Returns as gguf_u32.
 */
static int int_of(const struct source *s, const char *key, u32 *out)
{
    const struct gguf_kv *kv = gguf_find(s->g, key);
    if (!kv || kv->type != GGUF_ARRAY)
        return gguf_u32(s->g, key, out, s->err);
    if (!gguf_type_is_int(kv->item) || kv->count == 0)
        return err_set(s->err,
                       "%s: metadata \"%s\": is an array of %" PRIu64 " %s, expected an integer",
                       s->g->path, key, kv->count, gguf_type_name(kv->item));
    i64 value = gguf_item_int(kv, 0);
    for (u64 i = 1; i < kv->count; i++)
        if (gguf_item_int(kv, i) != value)
            return err_set(s->err,
                           "%s: metadata \"%s\": item %" PRIu64 " is %" PRId64 ", expected %" PRId64
                           " as in the first layer",
                           s->g->path, key, i, gguf_item_int(kv, i), value);
    if (value < 0 || value > UINT32_MAX)
        return err_set(s->err, "%s: metadata \"%s\": items are %" PRId64 ", expected 0 to %" PRIu32,
                       s->g->path, key, value, UINT32_MAX);
    *out = (u32)value;
    return 1;
}

/* *out keeps its value when the key is absent. */
static int may_u32(const struct source *s, const char *name, u32 lo, u32 hi, u32 *out)
{
    char key[KEY_BYTES];
    key_of(s, key, name);
    u32 value;
    int found = int_of(s, key, &value);
    if (found <= 0)
        return found;
    if (value < lo || value > hi)
        return err_set(s->err,
                       "%s: metadata \"%s\": is %" PRIu32 ", expected %" PRIu32 " to %" PRIu32,
                       s->g->path, key, value, lo, hi);
    *out = value;
    return 0;
}

static int need_u32(const struct source *s, const char *name, u32 hi, u32 *out)
{
    char wish[64];
    *out = 0;
    if (may_u32(s, name, 1, hi, out))
        return -1;
    snprintf(wish, sizeof wish, "an integer from 1 to %" PRIu32, hi);
    return *out ? 0 : missing(s, name, wish);
}

/* *out keeps its value when the key is absent. NaN fails every comparison. */
static int may_f32(const struct source *s, const char *name, float lo, float hi, float *out)
{
    char key[KEY_BYTES];
    key_of(s, key, name);
    float value;
    int found = gguf_f32(s->g, key, &value, s->err);
    if (found <= 0)
        return found;
    if (!(value >= lo && value <= hi))
        return err_set(s->err, "%s: metadata \"%s\": is %g, expected %g to %g", s->g->path, key,
                       (double)value, (double)lo, (double)hi);
    *out = value;
    return 0;
}

static int read_arch(struct source *s, struct hparams *hp)
{
    struct gguf_str name;
    char quoted[64];
    int found = gguf_string(s->g, "general.architecture", &name, s->err);
    if (found < 0)
        return -1;
    if (!found)
        return err_set(s->err,
                       "%s: metadata \"general.architecture\": is missing, expected a string",
                       s->g->path);
    for (int i = 0; i < ARCH_COUNT; i++) {
        if (!gguf_str_is(name, ARCHS[i].name))
            continue;
        hp->arch = (enum arch)i;
        s->arch = ARCHS[i].name;
        return 0;
    }
    return err_set(s->err,
                   "%s: metadata \"general.architecture\": is \"%s\", expected qwen3moe, qwen3, "
                   "llama, qwen2, qwen2moe or olmoe",
                   s->g->path, err_quote(quoted, sizeof quoted, name.at, name.len));
}

static int read_name(const struct source *s, struct hparams *hp)
{
    struct gguf_str name;
    int found = gguf_string(s->g, "general.name", &name, s->err);
    if (found > 0)
        err_quote(hp->name, sizeof hp->name, name.at, name.len);
    return found < 0 ? -1 : 0;
}

static int check_neutral(const struct source *s)
{
    for (u32 i = 0; i < COUNT(NEUTRAL); i++) {
        char key[KEY_BYTES];
        key_of(s, key, NEUTRAL[i].name);
        const struct gguf_kv *kv = gguf_find(s->g, key);
        if (!kv)
            continue;
        double value = kv->type == GGUF_BOOL                          ? kv->at[0]
                       : gguf_type_is_int(kv->type)                   ? (double)gguf_item_int(kv, 0)
                       : kv->type == GGUF_F32 || kv->type == GGUF_F64 ? (double)gguf_item_f32(kv, 0)
                                                                      : NAN;
        if (value != NEUTRAL[i].a && value != NEUTRAL[i].b)
            return err_set(s->err, "%s: metadata \"%s\": is %g, expected %g: not supported",
                           s->g->path, key, value, NEUTRAL[i].b);
    }
    return 0;
}

/* The embedding has one row per token. */
static int read_vocab(const struct source *s, struct hparams *hp)
{
    const struct gguf_tensor *embed = gguf_find_tensor(s->g, "token_embd.weight");
    if (!embed)
        return err_set(s->err, "%s: tensor \"token_embd.weight\": is missing", s->g->path);
    if (embed->ne[1] > MAX_VOCAB)
        return err_set(
            s->err, "%s: tensor \"token_embd.weight\": has %" PRIu64 " rows, expected at most %d",
            s->g->path, embed->ne[1], MAX_VOCAB);
    hp->n_vocab = (u32)embed->ne[1];
    u32 stated = hp->n_vocab;
    if (may_u32(s, "vocab_size", 0, UINT32_MAX, &stated))
        return -1;
    if (stated != hp->n_vocab)
        return err_set(s->err,
                       "%s: metadata \"%s.vocab_size\": is %" PRIu32 ", expected %" PRIu32
                       ", the rows of token_embd.weight",
                       s->g->path, s->arch, stated, hp->n_vocab);
    return 0;
}

static int read_shape(const struct source *s, struct hparams *hp)
{
    if (need_u32(s, "embedding_length", MAX_D_MODEL, &hp->d_model) ||
        need_u32(s, "block_count", MAX_LAYERS, &hp->n_layers) ||
        need_u32(s, "context_length", MAX_CTX, &hp->n_ctx))
        return -1;
    /* Also bounds what weights_open allocates for layers. */
    if (hp->n_layers > s->g->n_tensors / MIN_LAYER_TENSORS)
        return err_set(s->err,
                       "%s: metadata \"%s.block_count\": is %" PRIu32 ", expected at most %" PRIu64
                       " for a file of %" PRIu64 " tensors",
                       s->g->path, s->arch, hp->n_layers, s->g->n_tensors / MIN_LAYER_TENSORS,
                       s->g->n_tensors);
    u32 window = 0;
    if (may_u32(s, "attention.sliding_window", 0, UINT32_MAX, &window))
        return -1;
    /* Inside the window there is nothing to slide: a shorter context is exact. */
    if (window && window < hp->n_ctx) {
        hp->n_ctx = window;
        hp->window_cut = true;
    }
    return read_vocab(s, hp);
}

static int read_heads(const struct source *s, struct hparams *hp)
{
    if (need_u32(s, "attention.head_count", MAX_HEADS, &hp->n_heads))
        return -1;
    hp->n_kv = hp->n_heads;
    if (may_u32(s, "attention.head_count_kv", 1, MAX_HEADS, &hp->n_kv))
        return -1;
    if (hp->n_heads % hp->n_kv)
        return err_set(s->err,
                       "%s: metadata \"%s.attention.head_count_kv\": is %" PRIu32
                       ", expected a divisor of head_count %" PRIu32,
                       s->g->path, s->arch, hp->n_kv, hp->n_heads);
    if (may_u32(s, "attention.key_length", 1, MAX_D_HEAD, &hp->d_head))
        return -1;
    if (!hp->d_head) {
        if (hp->d_model % hp->n_heads || hp->d_model / hp->n_heads > MAX_D_HEAD)
            return err_set(s->err,
                           "%s: metadata \"%s.attention.head_count\": is %" PRIu32
                           ", expected a divisor of embedding_length %" PRIu32
                           " that makes heads of at most %d",
                           s->g->path, s->arch, hp->n_heads, hp->d_model, MAX_D_HEAD);
        hp->d_head = hp->d_model / hp->n_heads;
    }
    if (hp->d_head % 2)
        return err_set(s->err,
                       "%s: metadata \"%s.attention.key_length\": heads of %" PRIu32
                       ", expected an even number",
                       s->g->path, s->arch, hp->d_head);
    return may_u32(s, "attention.value_length", hp->d_head, hp->d_head, &hp->d_head);
}

static int read_rope_scaling(const struct source *s, struct hparams *hp)
{
    char key[KEY_BYTES], quoted[48];
    struct gguf_str type = {"linear", 6}; /* what a factor alone means */
    float factor = 1;
    key_of(s, key, "rope.scaling.type");
    if (gguf_string(s->g, key, &type, s->err) < 0)
        return -1;
    if (!gguf_str_is(type, "none") && !gguf_str_is(type, "linear"))
        return err_set(s->err, "%s: metadata \"%s\": is \"%s\", expected none or linear",
                       s->g->path, key, err_quote(quoted, sizeof quoted, type.at, type.len));
    /* The second name is that of files older than rope.scaling. */
    if (may_f32(s, "rope.scale_linear", MIN_FACTOR, MAX_FACTOR, &factor) ||
        may_f32(s, "rope.scaling.factor", MIN_FACTOR, MAX_FACTOR, &factor))
        return -1;
    hp->rope_scale = gguf_str_is(type, "none") ? 1 : 1 / factor;
    return 0;
}

static int read_rope(const struct source *s, struct hparams *hp)
{
    hp->rope_base = 10000;
    hp->d_rope = hp->d_head;
    if (may_f32(s, "rope.freq_base", 1, 1e15f, &hp->rope_base) ||
        may_u32(s, "rope.dimension_count", 1, hp->d_head, &hp->d_rope))
        return -1;
    if (hp->d_rope % 2)
        return err_set(s->err,
                       "%s: metadata \"%s.rope.dimension_count\": is %" PRIu32
                       ", expected an even number",
                       s->g->path, s->arch, hp->d_rope);
    if (may_f32(s, "attention.layer_norm_rms_epsilon", FLT_MIN, 1, &hp->eps))
        return -1;
    if (hp->eps == 0)
        return missing(s, "attention.layer_norm_rms_epsilon", "a number above 0");
    return read_rope_scaling(s, hp);
}

/* Layers whose experts have a router; the others are dense. */
static u32 count_routers(const struct gguf *g, u32 n_layers)
{
    char name[64];
    u32 n = 0;
    for (u32 i = 0; i < n_layers; i++) {
        snprintf(name, sizeof name, "blk.%" PRIu32 ".ffn_gate_inp.weight", i);
        n += gguf_find_tensor(g, name) != NULL;
    }
    return n;
}

/* A width that older files leave out: the rows of the first such tensor; 0 when there is none. */
static u32 width_of(const struct gguf *g, u32 n_layers, const char *what)
{
    char name[64];
    for (u32 i = 0; i < n_layers; i++) {
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%s.weight", i, what);
        const struct gguf_tensor *t = gguf_find_tensor(g, name);
        if (t)
            return t->ne[1] <= MAX_D_FF ? (u32)t->ne[1] : 0;
    }
    return 0;
}

static int read_experts(const struct source *s, struct hparams *hp)
{
    char key[KEY_BYTES];
    if (ARCHS[hp->arch].experts == ALWAYS) {
        if (need_u32(s, "expert_count", MAX_EXPERTS, &hp->n_experts))
            return -1;
    } else if (may_u32(s, "expert_count", 0, ARCHS[hp->arch].experts == NEVER ? 0 : MAX_EXPERTS,
                       &hp->n_experts)) {
        return -1;
    }
    if (!hp->n_experts)
        return 0;
    if (need_u32(s, "expert_used_count", min_u32(hp->n_experts, MAX_USED), &hp->n_used))
        return -1;
    hp->used_norm = ARCHS[hp->arch].used_norm;
    hp->used_scale = 1;
    key_of(s, key, "expert_weights_norm");
    if (gguf_bool(s->g, key, &hp->used_norm, s->err) < 0 ||
        may_f32(s, "expert_weights_scale", MIN_FACTOR, MAX_FACTOR, &hp->used_scale))
        return -1;
    if (ARCHS[hp->arch].ff_is_exp)
        hp->d_ff_exp = hp->d_ff;
    else
        hp->d_ff_exp = width_of(s->g, hp->n_layers, "ffn_gate_exps");
    if (may_u32(s, "expert_feed_forward_length", 1, MAX_D_FF, &hp->d_ff_exp))
        return -1;
    if (!hp->d_ff_exp)
        return missing(s, "expert_feed_forward_length", "the width of an expert");
    if (!ARCHS[hp->arch].has_shared)
        return 0;
    hp->d_ff_shared = width_of(s->g, hp->n_layers, "ffn_gate_shexp");
    return may_u32(s, "expert_shared_feed_forward_length", 0, MAX_D_FF, &hp->d_ff_shared);
}

static int read_widths(const struct source *s, struct hparams *hp)
{
    if (may_u32(s, "feed_forward_length", 1, MAX_D_FF, &hp->d_ff) || read_experts(s, hp))
        return -1;
    u32 n_routers = count_routers(s->g, hp->n_layers);
    if (hp->n_experts && !n_routers)
        return err_set(s->err,
                       "%s: metadata \"%s.expert_count\": is %" PRIu32
                       ", but no layer has a tensor ffn_gate_inp.weight",
                       s->g->path, s->arch, hp->n_experts);
    if (!hp->n_experts && n_routers)
        return missing(s, "expert_count",
                       "the number of experts, as there are tensors ffn_gate_inp");
    if (n_routers == hp->n_layers)
        hp->d_ff = 0;
    else if (!hp->d_ff)
        return missing(s, "feed_forward_length", "the width of the dense layers");
    return 0;
}

/* Cannot wrap: tensors share no byte of their files and a byte holds at most two elements. */
static u64 count_params(const struct gguf *g)
{
    u64 n = 0;
    for (u64 i = 0; i < g->n_tensors; i++) {
        const u64 *ne = g->tensors[i].ne;
        n += ne[0] * ne[1] * ne[2] * ne[3];
    }
    return n;
}

const char *hparams_arch_name(enum arch arch)
{
    return (u32)arch < ARCH_COUNT ? ARCHS[arch].name : "?";
}

int hparams_read(struct hparams *hp, const struct gguf *g, struct err *err)
{
    struct source s = {.g = g, .err = err};
    *hp = (struct hparams){0};
    if (read_arch(&s, hp) || read_name(&s, hp) || check_neutral(&s) || read_shape(&s, hp) ||
        read_heads(&s, hp) || read_rope(&s, hp) || read_widths(&s, hp))
        return -1;
    hp->rope_neox = ARCHS[hp->arch].rope_neox;
    hp->n_params = count_params(g);
    return 0;
}
