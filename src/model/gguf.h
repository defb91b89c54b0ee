/* A GGUF file as it lies on disk: metadata and a directory of tensors, checked against the file and pointing
 * into it. Source: the GGUF specification, versions 2 and 3, little-endian; split files named
 * NAME-00001-of-0000N.gguf. Nothing is interpreted here: hparams.c and weights.c do that. */
#ifndef PS_GGUF_H
#define PS_GGUF_H

#include "base/base.h"
#include "base/dtype.h"

enum { GGUF_MAX_DIMS = 4 };

enum gguf_type { /* the file's own numbers for metadata values */
    GGUF_U8 = 0, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32,
    GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64
};

enum {
    /* What no real file comes near, and what sorts within half a second: the specification's own limit for
     * a key is 65535 bytes. */
    GGUF_MAX_KV = 1 << 16, GGUF_MAX_TENSORS = 1 << 17, GGUF_MAX_FILES = 512,
    GGUF_MAX_KEY = 1024, GGUF_MAX_NAME = 255,               /* bytes */
    GGUF_MIN_ALIGNMENT = 8, GGUF_MAX_ALIGNMENT = 1 << 20,   /* powers of two */
    GGUF_FLOOR_BYTES = 64 << 10                             /* see gguf_open */
};

struct gguf_str { /* bytes inside the mapping; no NUL at the end, may hold any byte */
    const char *at;
    u64 len;
};

struct gguf_kv {
    struct gguf_str key;
    enum gguf_type type;
    enum gguf_type item;  /* of an array's items (arrays of arrays are refused); of a scalar the same as type */
    u64 count;            /* items of an array; 1 otherwise */
    const u8 *at;         /* the value's bytes (unaligned), for an array its first item */
    u64 bytes;            /* of all its items */
};

struct gguf_tensor {
    struct gguf_str name;
    u32 type;                /* enum dtype, one that dtype_info knows */
    u32 n_dims;              /* 1..4 */
    u64 ne[GGUF_MAX_DIMS];   /* innermost first; those past n_dims are 1; none is 0 */
    const u8 *data;          /* in the mapping, bytes long; no two tensors share a byte */
    u64 bytes;
    u32 file;                /* which of the split files */
    int fd;                  /* that file, open while the mapping lives, for advice to the system; -1: none */
    u64 offset;              /* of data in it */
};

struct gguf_file {
    const u8 *at;
    u64 bytes;
    int fd;                                          /* -1: bytes in memory */
    u64 kv_at, n_kv, tensors_at, n_tensors, data_at; /* offsets of the three parts in it */
    u32 alignment;                                   /* of each tensor in the third */
};

struct gguf {
    char *path;              /* the first file's, for messages: cut at the front when it is very long */
    struct gguf_file *files; /* read-only mappings */
    u32 n_files;
    bool mapped;             /* the files are ours to unmap */
    u32 version;
    struct gguf_kv *kv;      /* of the first file, in file order */
    u64 n_kv;
    struct gguf_tensor *tensors; /* of all files */
    u64 n_tensors;
    u64 data_bytes;          /* sum over tensors */
    u32 *kv_order, *tensor_order; /* indices in the order of the names */
};

/* Map and check the file (and its other parts). On failure nothing is left behind and err names the file, the
 * field, the value and what was expected. Never allocates more than the files' bytes plus GGUF_FLOOR_BYTES, and
 * nothing by count before every entry counted has been seen; last, metadata and directory become a copy of their own.
 * After that only a tensor's data is read from the file: whoever has taken what he needs of it no longer cares
 * whether the file is cut short or gone. Any thread; afterwards g is read-only. */
int gguf_open(struct gguf *g, const char *path, struct err *err);

/* The same over bytes in memory that outlive g: for tests and fuzzing. A split file is an error here. */
int gguf_parse(struct gguf *g, const char *name, const void *bytes, u64 len, struct err *err);

/* Accepts a half-open or zeroed object. */
void gguf_close(struct gguf *g);

/* Part of opening: sorts the names into kv_order and tensor_order. -1, with err, when one appears twice. */
int gguf_index(struct gguf *g, struct err *err);

/* NULL when absent. O(log n). */
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* Scalars by key. Returns 1 and sets *out when present and of a type that holds it (any integer type in range
 * for u32; f32 or f64 for f32); 0 when absent, *out untouched; -1 when present but not such, with err. */
int gguf_u32(const struct gguf *g, const char *key, u32 *out, struct err *err);
int gguf_f32(const struct gguf *g, const char *key, float *out, struct err *err);
int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *err);
int gguf_string(const struct gguf *g, const char *key, struct gguf_str *out, struct err *err);

/* "u32", "string", ...; bytes of one value, 0 for strings and arrays; one of the eight integer types (bool is not). */
const char *gguf_type_name(enum gguf_type type);
u32 gguf_type_bytes(enum gguf_type type);
bool gguf_type_is_int(enum gguf_type type);
bool gguf_str_is(struct gguf_str s, const char *text);

/* Item i < count of an integer value (a u64 above INT64_MAX comes out negative) or of an f32 or f64 value; 0
 * for any other type: look at kv->item first. For strings the caller walks: *at starts at kv->at and is moved
 * past the item; checked at open, so it cannot fail. */
i64 gguf_item_int(const struct gguf_kv *kv, u64 i);
float gguf_item_f32(const struct gguf_kv *kv, u64 i);
struct gguf_str gguf_item_str(const u8 **at);

/* Little-endian words at any address, on a machine of any endianness. */
static inline u32 gguf_le32(const u8 *p)
{
    return (u32)p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
}

static inline u64 gguf_le64(const u8 *p)
{
    return gguf_le32(p) | (u64)gguf_le32(p + 4) << 32;
}

#endif
