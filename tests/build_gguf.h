/* GGUF files for tests, written from a list of metadata and a list of tensors that a test may
 * change at will, also into something no honest writer would produce. Tensor bytes are zero unless
 * given. */
#ifndef PS_BUILD_GGUF_H
#define PS_BUILD_GGUF_H

#include "base/dtype.h"
#include "model/gguf.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUILD_ENTRIES = 512, BUILD_VALUE_BYTES = 64 };

struct bytes { /* zero-initialise; released with free(at) */
    u8 *at;
    size_t len, cap;
};

struct build_kv {
    char key[96];
    u32 type;
    u8 value[BUILD_VALUE_BYTES];
    const u8 *large; /* instead of value, the caller's */
    size_t bytes;
};

struct build_tensor {
    char name[96];
    u32 type, n_dims;
    u64 ne[GGUF_MAX_DIMS];
    u64 bytes;        /* in the data */
    const void *data; /* NULL: zeros */
    i64 offset;       /* -1: after the one before it */
};

struct build {
    u32 version, alignment;
    u32 n_kv, n_tensors;
    size_t header_bytes; /* set by build_bytes: up to the first tensor's data */
    struct build_kv kv[BUILD_ENTRIES];
    struct build_tensor tensors[BUILD_ENTRIES];
};

static inline void put(struct bytes *b, const void *p, size_t n)
{
    if (b->len + n > b->cap) {
        b->cap = (b->len + n) * 2;
        b->at = realloc(b->at, b->cap);
        assert(b->at);
    }
    if (n)
        memcpy(b->at + b->len, p, n);
    b->len += n;
}

static inline void put_zeros(struct bytes *b, size_t n)
{
    static const u8 zeros[256];
    for (; n > sizeof zeros; n -= sizeof zeros)
        put(b, zeros, sizeof zeros);
    put(b, zeros, n);
}

static inline void put_u32(struct bytes *b, u32 v) /* the tests run on little-endian machines */
{
    put(b, &v, 4);
}

static inline void put_u64(struct bytes *b, u64 v)
{
    put(b, &v, 8);
}

static inline void put_str(struct bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static inline struct build *build_new(void)
{
    struct build *b = calloc(1, sizeof *b);
    assert(b);
    b->version = 3;
    b->alignment = 32;
    return b;
}

/* The entry of that key; a new one at the end when there is none. */
static inline struct build_kv *build_kv(struct build *b, const char *key)
{
    for (u32 i = 0; i < b->n_kv; i++)
        if (!strcmp(b->kv[i].key, key))
            return &b->kv[i];
    assert(b->n_kv < BUILD_ENTRIES);
    struct build_kv *kv = &b->kv[b->n_kv++];
    snprintf(kv->key, sizeof kv->key, "%s", key);
    return kv;
}

static inline void build_raw(struct build *b, const char *key, u32 type, const void *value,
                             size_t n)
{
    struct build_kv *kv = build_kv(b, key);
    assert(n <= BUILD_VALUE_BYTES);
    kv->type = type;
    kv->large = NULL;
    kv->bytes = n;
    memcpy(kv->value, value, n);
}

static inline void build_u32(struct build *b, const char *key, u32 v)
{
    build_raw(b, key, GGUF_U32, &v, 4);
}

static inline void build_f32(struct build *b, const char *key, float v)
{
    build_raw(b, key, GGUF_F32, &v, 4);
}

static inline void build_bool(struct build *b, const char *key, u8 v)
{
    build_raw(b, key, GGUF_BOOL, &v, 1);
}

static inline void build_string(struct build *b, const char *key, const char *text)
{
    u8 value[BUILD_VALUE_BYTES];
    u64 n = strlen(text);
    assert(n + 8 <= sizeof value);
    memcpy(value, &n, 8);
    memcpy(value + 8, text, n);
    build_raw(b, key, GGUF_STRING, value, n + 8);
}

/* An array's value: item type, count and the items' bytes. */
static inline void build_array(struct build *b, const char *key, u32 item, u64 count,
                               const void *items, size_t n)
{
    u8 value[BUILD_VALUE_BYTES];
    assert(n + 12 <= sizeof value);
    memcpy(value, &item, 4);
    memcpy(value + 4, &count, 8);
    memcpy(value + 12, items, n);
    build_raw(b, key, GGUF_ARRAY, value, n + 12);
}

static inline void build_large(struct build *b, const char *key, u32 type,
                               const struct bytes *value)
{
    struct build_kv *kv = build_kv(b, key);
    kv->type = type;
    kv->large = value->at;
    kv->bytes = value->len;
}

static inline void build_drop(struct build *b, const char *key)
{
    for (u32 i = 0; i < b->n_kv; i++)
        if (!strcmp(b->kv[i].key, key)) {
            memmove(&b->kv[i], &b->kv[i + 1], (--b->n_kv - i) * sizeof b->kv[0]);
            return;
        }
    assert(!"no such key");
}

static inline struct build_tensor *build_find(struct build *b, const char *name)
{
    for (u32 i = 0; i < b->n_tensors; i++)
        if (!strcmp(b->tensors[i].name, name))
            return &b->tensors[i];
    return NULL;
}

/* ne innermost first; 0 ends the list. */
static inline struct build_tensor *build_tensor(struct build *b, const char *name, u32 type,
                                                u64 ne0, u64 ne1, u64 ne2)
{
    const struct dtype_info *dt = dtype_info(type);
    struct build_tensor *t = build_find(b, name);
    if (!t) {
        assert(b->n_tensors < BUILD_ENTRIES);
        t = &b->tensors[b->n_tensors++];
    }
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    t->n_dims = ne2 ? 3 : ne1 ? 2 : 1;
    t->ne[0] = ne0;
    t->ne[1] = ne1 ? ne1 : 1;
    t->ne[2] = ne2 ? ne2 : 1;
    t->ne[3] = 1;
    t->bytes = dt ? t->ne[0] * t->ne[1] * t->ne[2] / dt->block_elems * dt->block_bytes : 32;
    t->offset = -1;
    t->data = NULL;
    return t;
}

static inline void build_drop_tensor(struct build *b, const char *name)
{
    struct build_tensor *t = build_find(b, name);
    assert(t);
    memmove(t, t + 1, (size_t)(b->tensors + --b->n_tensors - t) * sizeof *t);
}

/* The file. The caller frees at. */
static inline struct bytes build_bytes(struct build *b)
{
    struct bytes out = {0}, data = {0};
    put(&out, "GGUF", 4);
    put_u32(&out, b->version);
    put_u64(&out, b->n_tensors);
    put_u64(&out, b->n_kv);
    for (u32 i = 0; i < b->n_kv; i++) {
        put_str(&out, b->kv[i].key);
        put_u32(&out, b->kv[i].type);
        put(&out, b->kv[i].large ? b->kv[i].large : b->kv[i].value, b->kv[i].bytes);
    }
    for (u32 i = 0; i < b->n_tensors; i++) {
        const struct build_tensor *t = &b->tensors[i];
        put_str(&out, t->name);
        put_u32(&out, t->n_dims);
        for (u32 d = 0; d < t->n_dims; d++)
            put_u64(&out, d < GGUF_MAX_DIMS ? t->ne[d] : 1);
        put_u32(&out, t->type);
        put_zeros(&data, (b->alignment - data.len % b->alignment) % b->alignment);
        put_u64(&out, t->offset < 0 ? data.len : (u64)t->offset);
        if (t->data)
            put(&data, t->data, t->bytes);
        else
            put_zeros(&data, t->bytes);
    }
    put_zeros(&out, (b->alignment - out.len % b->alignment) % b->alignment);
    b->header_bytes = out.len;
    put(&out, data.at, data.len);
    free(data.at);
    return out;
}

static inline void build_write(struct build *b, const char *path)
{
    struct bytes out = build_bytes(b);
    FILE *f = fopen(path, "wb");
    assert(f);
    size_t n = fwrite(out.at, 1, out.len, f);
    assert(n == out.len);
    (void)n;
    fclose(f);
    free(out.at);
}

/* A whole small model of 2 layers, d_model 64, 2 heads of 32, 1 of them for keys and values, 32
 * tokens. With experts: 4, of which 2 are used, 32 wide; without: 96 wide. */
static inline struct build *build_model(const char *arch, bool experts)
{
    struct build *b = build_new();
    char key[96];
    bool qwen2 = !strcmp(arch, "qwen2") || !strcmp(arch, "qwen2moe");
    bool olmoe = !strcmp(arch, "olmoe");
    bool head_norm = olmoe || !strcmp(arch, "qwen3") || !strcmp(arch, "qwen3moe");
    bool ff_is_exp = olmoe || !strcmp(arch, "llama");
    const struct {
        const char *name;
        u32 value;
    } ints[] = {{"block_count", 2},
                {"context_length", 128},
                {"embedding_length", 64},
                {"feed_forward_length", experts && ff_is_exp ? 32 : 96},
                {"attention.head_count", 2},
                {"attention.head_count_kv", 1},
                {"expert_count", 4},
                {"expert_used_count", 2},
                {"expert_feed_forward_length", 32}};
    build_string(b, "general.architecture", arch);
    build_string(b, "general.name", "Test");
    for (u32 i = 0; i < COUNT(ints); i++) {
        if (!strncmp(ints[i].name, "expert", 6) && (!experts || (ff_is_exp && i == 8)))
            continue;
        snprintf(key, sizeof key, "%s.%s", arch, ints[i].name);
        build_u32(b, key, ints[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    build_f32(b, key, 1e-6f);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    build_f32(b, key, 1e6f);
    if (!strcmp(arch, "qwen2moe"))
        build_u32(b, "qwen2moe.expert_shared_feed_forward_length", 64);
    build_tensor(b, "token_embd.weight", DT_Q8_0, 64, 32, 0);
    build_tensor(b, "output_norm.weight", DT_F32, 64, 0, 0);
    for (u32 i = 0; i < 2; i++) {
#define T(name, type, a, b_, c)                       \
    do {                                              \
        snprintf(key, sizeof key, "blk.%u." name, i); \
        build_tensor(b, key, type, a, b_, c);         \
    } while (0)
        T("attn_norm.weight", DT_F32, 64, 0, 0);
        T("attn_q.weight", DT_Q4_0, 64, 64, 0);
        T("attn_k.weight", DT_Q4_0, 64, 32, 0);
        T("attn_v.weight", DT_Q4_0, 64, 32, 0);
        T("attn_output.weight", DT_Q4_0, 64, 64, 0);
        if (qwen2) {
            T("attn_q.bias", DT_F32, 64, 0, 0);
            T("attn_k.bias", DT_F32, 32, 0, 0);
            T("attn_v.bias", DT_F32, 32, 0, 0);
        }
        if (head_norm) {
            T("attn_q_norm.weight", DT_F32, olmoe ? 64 : 32, 0, 0);
            T("attn_k_norm.weight", DT_F32, 32, 0, 0);
        }
        T("ffn_norm.weight", DT_F32, 64, 0, 0);
        if (!experts) {
            T("ffn_gate.weight", DT_Q4_0, 64, 96, 0);
            T("ffn_up.weight", DT_Q4_0, 64, 96, 0);
            T("ffn_down.weight", DT_Q4_0, 96, 64, 0);
            continue;
        }
        T("ffn_gate_inp.weight", DT_F32, 64, 4, 0);
        T("ffn_gate_exps.weight", DT_Q4_0, 64, 32, 4);
        T("ffn_up_exps.weight", DT_Q4_0, 64, 32, 4);
        T("ffn_down_exps.weight", DT_Q4_0, 32, 64, 4);
        if (strcmp(arch, "qwen2moe"))
            continue;
        T("ffn_gate_shexp.weight", DT_Q4_0, 64, 64, 0);
        T("ffn_up_shexp.weight", DT_Q4_0, 64, 64, 0);
        T("ffn_down_shexp.weight", DT_Q4_0, 64, 64, 0);
        T("ffn_gate_inp_shexp.weight", DT_F32, 64, 0, 0);
#undef T
    }
    return b;
}

#endif
