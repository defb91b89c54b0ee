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

struct gguf_str { /* bytes inside the mapping; no NUL at the end, may hold any byte */
    const char *at;
    u64 len;
};

struct gguf_kv {
    struct gguf_str key;
    enum gguf_type type;
    enum gguf_type item;  /* of an array; arrays of arrays are refused */
    u64 count;            /* items of an array; 1 otherwise */
    const u8 *at;         /* the value's bytes (unaligned), for an array its first item */
    u64 bytes;            /* of all its items */
};

struct gguf_tensor {
    struct gguf_str name;
    u32 type;                /* enum dtype, one that dtype_info knows */
    u32 n_dims;              /* 1..4 */
    u64 ne[GGUF_MAX_DIMS];   /* innermost first; those past n_dims are 1; none is 0 */
    const u8 *data;          /* in the mapping, bytes long */
    u64 bytes;
    u32 file;                /* which of the split files */
};

struct gguf_file {
    const u8 *at;
    u64 bytes;
};

struct gguf {
    char *path;              /* the first file's, for messages */
    struct gguf_file *files; /* read-only mappings */
    u32 n_files;
    u32 version;
    struct gguf_kv *kv;      /* of the first file, in file order */
    u64 n_kv;
    struct gguf_tensor *tensors; /* of all files */
    u64 n_tensors;
    u64 data_bytes;          /* sum over tensors */
    u32 *kv_index, *tensor_index; /* hash tables; see gguf.c */
    u32 kv_mask, tensor_mask;
};

/* Map and check the file (and its other parts). On failure nothing is left behind and err names the file, the
 * field, the value and what was expected. Never allocates more than the file's size. Any thread. */
int gguf_open(struct gguf *g, const char *path, struct err *err);

/* The same over bytes in memory that outlive g: for tests and fuzzing. */
int gguf_parse(struct gguf *g, const char *name, const void *bytes, u64 len, struct err *err);

/* Accepts a half-open or zeroed object. */
void gguf_close(struct gguf *g);

/* NULL when absent. */
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);

/* Scalars by key. Returns 1 and sets *out when present and of a type that holds it (any integer type in range
 * for u32; f32 or f64 for f32); 0 when absent, *out untouched; -1 when present but not such, with err. */
int gguf_u32(const struct gguf *g, const char *key, u32 *out, struct err *err);
int gguf_f32(const struct gguf *g, const char *key, float *out, struct err *err);
int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *err);
int gguf_string(const struct gguf *g, const char *key, struct gguf_str *out, struct err *err);

/* Item i of an integer array as i64 / of a string array. For strings the caller walks: *at starts at kv->at
 * and is moved past the item; checked at open, so it cannot fail. */
i64 gguf_item_int(const struct gguf_kv *kv, u64 i);
float gguf_item_f32(const struct gguf_kv *kv, u64 i);
struct gguf_str gguf_item_str(const u8 **at);

#endif
