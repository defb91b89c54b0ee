/* The mapped model file's pages while weights are read once, front to back: asked for ahead, let go behind, so that no thread waits
 * for the disk a page at a time and at no time memory holds the model twice. For every device that makes its own copy. */
#ifndef PS_FILE_PAGES_H
#define PS_FILE_PAGES_H

#include "plan/plan.h"

enum {
    SLICE_BYTES = 16 << 20, /* of the file, in work at a time: long against waiting for the slower thread, short against a progress bar */
    AHEAD_BYTES = 64 << 20  /* asked for beyond that */
};

/* Bytes [from, to) of a tensor will be read soon. */
void pages_ask(const struct gguf_tensor *t, u64 from, u64 to);

/* They will not be read again: out of this process and, where memory is scarce, out of the system's cache. */
void pages_forget(const struct gguf_tensor *t, u64 from, u64 to, bool scarce);

/* All weights of a plan in the order in which they lie in the file: [n_weights] pointers to free(), or NULL. *total: their bytes;
 * *scarce: memory holds no second copy. */
const struct plan_weight **pages_order(const struct plan *p, u64 *total, bool *scarce);

/* The message about row `bad`, counted through all matrices, that holds something not finite. Returns -1. */
int pages_refuse(const struct plan_weight *w, u64 bad, struct err *err);

#endif
