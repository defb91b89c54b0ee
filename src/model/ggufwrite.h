/* Writes a GGUF v3 file: metadata and directory after an open one, data streamed in order. The
 * bytes go to a temporary name beside the final one; only a complete, synced file is renamed.
 * Source: the GGUF specification. */
#ifndef PS_GGUFWRITE_H
#define PS_GGUFWRITE_H

#include "model/gguf.h"

#include <stdio.h>

struct ggufwrite { /* zero-initialise */
    FILE *file;
    char *path, *temp; /* the final name; the name until commit */
    const struct gguf *from;
    const u32 *types;
    u64 tensor, room; /* the tensor whose data comes next, and what it still lacks */
    u64 bytes;        /* written so far */
};

struct ggufwrite_u32 { /* one integer of the metadata */
    const char *key;
    u32 value;
};

/* Starts the file: from's metadata and tensors, tensor i stored as types[i]. set: n_set integers
 * that replace their namesake or follow at the end. The keys of a split file (split.*) are left
 * out. from and types must outlive w. On failure w is closed. err: the name and the system's
 * reason. */
int ggufwrite_open(struct ggufwrite *w, const char *path, const struct gguf *from, const u32 *types,
                   const struct ggufwrite_u32 *set, u32 n_set, struct err *err);

/* The next bytes of the data; tensor after tensor, n at most what the current tensor lacks. Padding
 * is added. */
int ggufwrite_data(struct ggufwrite *w, const void *bytes, u64 n, struct err *err);

/* After the last byte: syncs, renames over path. Then only close is left to do. */
int ggufwrite_commit(struct ggufwrite *w, struct err *err);

/* Removes the temporary file unless committed. Accepts a zeroed or closed object. */
void ggufwrite_close(struct ggufwrite *w);

/* Bytes of tensor i when stored as type. */
u64 ggufwrite_tensor_bytes(const struct gguf_tensor *t, u32 type);

#endif
