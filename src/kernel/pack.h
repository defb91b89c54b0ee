/* File blocks -> panels (kernel.h). One panel of 16 rows holds, for each block along the row, planes:
 *
 *   type   block   per panel and block, in this order                                              bytes
 *   q4_0    32     d[16] half; 4 x (16 rows x 4 bytes): byte j of vector v holds k = 8v+j low, 8v+4+j high   32+256
 *   q4_1    32     d[16], m[16] half; as q4_0                                                       64+256
 *   q5_0    32     d[16] half; as q4_0; bit plane: 16 x u32, bit k of word r = fifth bit of element k  32+256+64
 *   q5_1    32     d[16], m[16]; as q5_0                                                            64+256+64
 *   q8_0    32     d[16] half; 8 x (16 rows x 4 int8): group g = elements 4g..4g+3                  32+512
 *   q4_k   256     d[16], dmin[16] half; sc[8][16] u8, mn[8][16] u8; 8 x 256 nibbles as q4_0        64+256+2048
 *   q5_k   256     d, dmin, sc, mn; 8 x (256 nibbles + 64 bit plane)                                64+256+2560
 *   q6_k   256     d[16] half; sc[16][16] i8; 8 x (256 nibbles + 128: two-bit plane)                32+256+3072
 *   f32     1      (n_in)[16] f32         f16, bf16: (n_in)[16] u16
 *
 * Integers are stored as in the file (unsigned, before the -8, -16, -32). Two-bit plane of q6_k: 16 rows x 8 bytes as 2 x (16 rows x 4 bytes):
 * byte j of vector v holds elements k = 16v + j (bits 0-1), +4 (2-3), +8 (4-5), +12 (6-7). */
#ifndef PS_PACK_H
#define PS_PACK_H

#include "base/base.h"
#include "base/dtype.h"

/* Bytes of one panel of rows of n_in elements; 0 when n_in is not a multiple of the type's block. */
u64 pack_panel_bytes(enum dtype type, u32 n_in);

/* Panels of a matrix with n_out rows. */
u32 pack_panels(u32 n_out);

/* Packs panels [p0, p1) of src, (n_out, n_in) in the file's layout, to dst (the matrix's first panel). Scales that
 * are not finite and float weights that are not finite make it return -1 with *bad_row set; float weights are
 * flushed (rule 12). Source bytes need no alignment. Threads may pack disjoint panels at once. */
int pack(enum dtype type, const u8 *src, u32 n_in, u32 n_out, u8 *dst, u32 p0, u32 p1, u32 *bad_row);

/* The same as a plain row of floats: for norms and biases (f32, f16, bf16 only). -1 when one is not finite. */
int pack_floats(enum dtype type, const u8 *src, u64 n, float *dst);

#endif
