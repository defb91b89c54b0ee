/* What is told of an operation in the same way on every device: the bytes it read, and a hash of what it wrote. */
#ifndef PS_ACCOUNT_H
#define PS_ACCOUNT_H

#include "device/device_impl.h"

/* Weights (file format), each once, and keys and values. rows: of the operation in this step; positions: those its rows look back
 * on, in all; hit: experts' matrices run, each counted once for all its rows. */
u64 account_bytes(const struct device *d, const struct plan_op *op, u32 rows, u64 positions, u32 hit);

/* Floats of a row of b that the operation wrote: buffers are as wide as their widest writer, and what lies behind is whatever was there. */
u32 account_width(const struct plan *p, const struct plan_op *op, enum plan_buf b);

/* One row of a buffer, all ranks, `stride` floats apart, into h. */
u64 account_hash(u64 h, const float *x, u32 ranks, u32 stride, u32 width);

#endif
