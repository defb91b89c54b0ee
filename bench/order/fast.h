/* Bodies that may sum in any order: what order.c holds the product's own against. Built with -ffast-math for this
 * machine only (run.sh), never part of the product or of a test. Shapes are those of kernel.h; row-major weights are
 * the file's blocks. */
#ifndef ORDER_FAST_H
#define ORDER_FAST_H

#include "kernel/kernel.h"

enum { FAST_MAX_IN = 4096 };

/* Products with panels [p0, p1), as kernels.mat: n_rows 1, 8 or a multiple of 16, n_in a multiple of 256 up to
 * FAST_MAX_IN. */
void fast_q4_0(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1);
void fast_q4_k(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1);
/* The same text, but every sum in the product's order: gives its bits. */
void fixed_q4_0(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1);
void fixed_q4_k(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1);
/* The same outputs, 16 * p0 to 16 * p1, from the file's rows, lanes along the contraction. */
void fast_q4_0_rows(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1);
void fast_q4_k_rows(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1);
/* Float panels, as kernels.mat[DT_F32]; and rows of floats as the file has them. */
void fast_f32(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1);
void fast_f32_rows(float *const *y, const struct act *const *x, u32 n_rows, const u8 *w, u32 n_in, u32 p0, u32 p1);

void fast_rmsnorm(float *y, const float *x, const float *w, u32 n, float eps);
void fast_attend_many(struct attend_query *a, u32 n, const u16 *k, const u16 *v, u32 d_head, float scale);
void fast_route(const float *logits, u32 n, u32 n_used, bool used_norm, float scale, u16 *ids, float *w);
/* The product's own text, compiled for this machine. */
void fixed_route(const float *logits, u32 n, u32 n_used, bool used_norm, float scale, u16 *ids, float *w);

#endif
