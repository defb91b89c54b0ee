/* Entries of an open GGUF by name, and their values. See gguf.h.
 *
 * Binary search over sorted indices, not a hash table: a stranger can choose names that collide in
 * any hash without a secret, nobody can make a heapsort slow, and duplicates end up side by side.
 */
#include "model/gguf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    u8 bytes; /* 0: not fixed */
    bool is_int;
} TYPES[] = {
    [GGUF_U8] = {"u8", 1, true},          [GGUF_I8] = {"i8", 1, true},
    [GGUF_U16] = {"u16", 2, true},        [GGUF_I16] = {"i16", 2, true},
    [GGUF_U32] = {"u32", 4, true},        [GGUF_I32] = {"i32", 4, true},
    [GGUF_F32] = {"f32", 4, false},       [GGUF_BOOL] = {"bool", 1, false},
    [GGUF_STRING] = {"string", 0, false}, [GGUF_ARRAY] = {"array", 0, false},
    [GGUF_U64] = {"u64", 8, true},        [GGUF_I64] = {"i64", 8, true},
    [GGUF_F64] = {"f64", 8, false},
};

/* Names in an array of structs that begin with a gguf_str. */
struct names {
    const void *items;
    size_t stride;
    u32 *order; /* [n] */
    u32 n;
};

static struct names kv_names(const struct gguf *g)
{
    return (struct names){g->kv, sizeof *g->kv, g->kv_order, (u32)g->n_kv};
}

static struct names tensor_names(const struct gguf *g)
{
    return (struct names){g->tensors, sizeof *g->tensors, g->tensor_order, (u32)g->n_tensors};
}

/* The name at a place of the order. */
static struct gguf_str name_at(const struct names *names, u32 i)
{
    return *(const struct gguf_str *)((const char *)names->items + names->order[i] * names->stride);
}

static int name_cmp(struct gguf_str a, struct gguf_str b)
{
    int c = memcmp(a.at, b.at, min_u64(a.len, b.len));
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

static void swap_names(const struct names *names, u32 i, u32 j)
{
    u32 t = names->order[i];
    names->order[i] = names->order[j];
    names->order[j] = t;
}

/* Moves the name at i down the heap of the first n until no child is greater. */
static void sift_down(const struct names *names, u32 i, u32 n)
{
    for (u32 child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && name_cmp(name_at(names, child), name_at(names, child + 1)) < 0)
            child++;
        if (name_cmp(name_at(names, i), name_at(names, child)) >= 0)
            return;
        swap_names(names, i, child);
    }
}

/* Heapsort: no memory, and n log n whatever the names are. */
static void sort_names(const struct names *names)
{
    for (u32 i = 0; i < names->n; i++)
        names->order[i] = i;
    for (u32 i = names->n / 2; i-- > 0;)
        sift_down(names, i, names->n);
    for (u32 i = names->n; i-- > 1;) {
        swap_names(names, 0, i);
        sift_down(names, 0, i);
    }
}

static int index_names(const struct names *names, const char *path, const char *kind,
                       struct err *err)
{
    char quoted[80];
    sort_names(names);
    for (u32 i = 1; i < names->n; i++) {
        struct gguf_str s = name_at(names, i);
        if (!name_cmp(name_at(names, i - 1), s))
            return err_set(err, "%s: %s \"%s\": appears twice, expected once", path, kind,
                           err_quote(quoted, sizeof quoted, s.at, s.len));
    }
    return 0;
}

/* The item of that name, or NULL. */
static const void *find_name(const struct names *names, const char *name)
{
    struct gguf_str want = {name, strlen(name)};
    u32 lo = 0, hi = names->n;
    while (lo < hi) {
        u32 mid = lo + (hi - lo) / 2;
        int c = name_cmp(name_at(names, mid), want);
        if (!c)
            return (const char *)names->items + names->order[mid] * names->stride;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

int gguf_index(struct gguf *g, struct err *err)
{
    struct names kv = kv_names(g), tensors = tensor_names(g);
    if (index_names(&kv, g->path, "metadata", err) || index_names(&tensors, g->path, "tensor", err))
        return -1;
    return 0;
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    struct names names = kv_names(g);
    return find_name(&names, key);
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    struct names names = tensor_names(g);
    return find_name(&names, name);
}

static int wrong_type(const struct gguf *g, const char *key, const struct gguf_kv *kv,
                      const char *wish, struct err *err)
{
    return err_set(err, "%s: metadata \"%s\": is of type %s, expected %s", g->path, key,
                   TYPES[kv->type].name, wish);
}

int gguf_u32(const struct gguf *g, const char *key, u32 *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (!gguf_type_is_int(kv->type))
        return wrong_type(g, key, kv, "an integer", err);
    i64 value = gguf_item_int(kv, 0);
    bool negative = value < 0 && kv->type != GGUF_U64;
    u64 magnitude = negative ? 0 - (u64)value : (u64)value;
    if (negative || magnitude > UINT32_MAX)
        return err_set(err, "%s: metadata \"%s\": is %s%" PRIu64 ", expected 0 to %" PRIu32,
                       g->path, key, negative ? "-" : "", magnitude, UINT32_MAX);
    *out = (u32)value;
    return 1;
}

int gguf_f32(const struct gguf *g, const char *key, float *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->type != GGUF_F32 && kv->type != GGUF_F64)
        return wrong_type(g, key, kv, "f32 or f64", err);
    *out = gguf_item_f32(kv, 0);
    return 1;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->type != GGUF_BOOL)
        return wrong_type(g, key, kv, "bool", err);
    *out = kv->at[0] != 0;
    return 1;
}

int gguf_string(const struct gguf *g, const char *key, struct gguf_str *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->type != GGUF_STRING)
        return wrong_type(g, key, kv, "string", err);
    const u8 *at = kv->at;
    *out = gguf_item_str(&at);
    return 1;
}

const char *gguf_type_name(enum gguf_type type)
{
    return (u32)type < COUNT(TYPES) ? TYPES[type].name : "?";
}

u32 gguf_type_bytes(enum gguf_type type)
{
    return (u32)type < COUNT(TYPES) ? TYPES[type].bytes : 0;
}

bool gguf_type_is_int(enum gguf_type type)
{
    return (u32)type < COUNT(TYPES) && TYPES[type].is_int;
}

bool gguf_str_is(struct gguf_str s, const char *text)
{
    return s.len == strlen(text) && !memcmp(s.at, text, s.len);
}

i64 gguf_item_int(const struct gguf_kv *kv, u64 i)
{
    const u8 *p = kv->at + i * TYPES[kv->item].bytes;
    switch (kv->item) {
    case GGUF_U8:
        return p[0];
    case GGUF_I8:
        return (i8)p[0];
    case GGUF_U16:
        return p[0] | p[1] << 8;
    case GGUF_I16:
        return (i16)(p[0] | p[1] << 8);
    case GGUF_U32:
        return gguf_le32(p);
    case GGUF_I32:
        return (i32)gguf_le32(p);
    case GGUF_U64:
    case GGUF_I64:
        return (i64)gguf_le64(p);
    default:
        return 0;
    }
}

float gguf_item_f32(const struct gguf_kv *kv, u64 i)
{
    const u8 *p = kv->at + i * TYPES[kv->item].bytes;
    if (kv->item == GGUF_F32) {
        u32 bits = gguf_le32(p);
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    if (kv->item == GGUF_F64) {
        u64 bits = gguf_le64(p);
        double value;
        memcpy(&value, &bits, sizeof value);
        return (float)value;
    }
    return 0;
}

struct gguf_str gguf_item_str(const u8 **at)
{
    struct gguf_str s = {(const char *)*at + 8, gguf_le64(*at)};
    *at += 8 + s.len;
    return s;
}
