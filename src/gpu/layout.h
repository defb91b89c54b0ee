/* How a GPU device keeps its data: read by the kernels and by the hosts that fill and size the buffers. All sizes are bytes.
 *
 * Weights. A matrix (n_out, n_in) is panels of 16 output rows; a panel is tiles of 256 elements along the row (the last one
 * filled up with zeros: a zero scale and a zero activation add +0), each tile one of these, in this order. Lane 4 g + t of a SIMD group
 * works on rows g and g + 8 of the panel. "Word w" of a block of 32 is its elements 4w..4w+3; a nibble word t has elements 4t..4t+3 in the
 * low nibbles and 16+4t.. in the high ones. Integers are stored unsigned as in the file (q8_0: signed).
 *
 *   nibbles  4 x (32 lanes x 16): chunk c, a lane's four words: block 2c row g, block 2c row g + 8, block 2c + 1 row g, row g + 8
 *   fifth    32 lanes x 16: for each of 8 blocks a u16: bits 0-3 row g elements 4t.., 4-7 row g elements 16+4t.., 8-15 row g + 8
 *   sixth    2 x (32 lanes x 16): chunk c, a word for each of blocks 4c..4c+3: 2 bits each of: row g elements 4t..4t+3 (bits 0-7), row
 *            g + 8 (8-15), row g elements 16+4t.. (16-23), row g + 8 (24-31)
 *   bytes    8 x (32 lanes x 16): block c, words: row g word t, row g + 8 word t, row g word 4 + t, row g + 8 word 4 + t
 *   d, m     16 rows x 8 blocks, halves          scmn  16 rows x (8 sub-scales, 8 sub-minimums), u8
 *   sc       16 rows x 16 sub-scales, i8         dd    16 rows x (d, dmin) halves        d1  16 rows x d half
 *
 *   q4_0 nibbles d            2304    q4_1 nibbles d m          2560    q5_0 nibbles fifth d   2816    q5_1 nibbles fifth d m  3072
 *   q8_0 bytes d              4352    q4_k nibbles scmn dd      2368    q5_k nibbles fifth scmn dd  2880
 *   q6_k nibbles sixth sc d1  3360    f32 256 x 16 floats      16384    f16, bf16 256 x 16 u16  8192
 *
 * Activations ("act"). One row of n_in elements, filled up with zeros to a multiple of 256 (n_pad), by rule 1, is n_pad bytes of integers,
 * n_pad / 32 float scales, n_pad / 32 i32 sums of the integers. The integers of blocks 2i and 2i + 1 lie in 16 words: for t = 0..3: word t
 * of block 2i, word 4 + t of block 2i, word t of block 2i + 1, word 4 + t of block 2i + 1.
 *
 * Keys and values. arena + slot * slot_bytes + layer * layer_bytes + head * head_bytes: keys; values n_kv * head_bytes further on.
 *   f16   keys: panels of 32 positions, (d_pad / 8)[32 positions][8] halves, d_pad = d_head up to a multiple of 8, filled with zeros;
 *         values: (position, d_pad) halves
 *   q8_0  keys: panels of 32 positions, for each block of 32 dimensions d[32] halves, then [2][32 positions][16] int8: dimensions 16h..16h+15;
 *         values: panels of 32 positions: [32 positions][d_head / 32] halves d, then [32 positions][d_head] int8 */
#ifndef PS_GPU_LAYOUT_H
#define PS_GPU_LAYOUT_H

/* Types as the GGUF format numbers them (base/dtype.h has them for the host). */
enum gpu_type {
    GT_F32 = 0,
    GT_F16 = 1,
    GT_Q4_0 = 2,
    GT_Q4_1 = 3,
    GT_Q5_0 = 6,
    GT_Q5_1 = 7,
    GT_Q8_0 = 8,
    GT_Q4_K = 12,
    GT_Q5_K = 13,
    GT_Q6_K = 14,
    GT_BF16 = 30
};

enum {
    GPU_PANEL = 16,
    GPU_SEG = 256,
    GPU_CHUNK = 256,  /* positions attended in one piece (rule 7) */
    GPU_KV_PANEL = 32
};

/* Bytes of one tile; 0 for a type that is not here. */
#define GPU_TILE_BYTES(type)                                                                                     \
    ((type) == GT_Q4_0   ? 2304u                                                                                 \
     : (type) == GT_Q4_1 ? 2560u                                                                                 \
     : (type) == GT_Q5_0 ? 2816u                                                                                 \
     : (type) == GT_Q5_1 ? 3072u                                                                                 \
     : (type) == GT_Q8_0 ? 4352u                                                                                 \
     : (type) == GT_Q4_K ? 2368u                                                                                 \
     : (type) == GT_Q5_K ? 2880u                                                                                 \
     : (type) == GT_Q6_K ? 3360u                                                                                 \
     : (type) == GT_F32  ? 16384u                                                                                \
     : (type) == GT_F16  ? 8192u                                                                                 \
     : (type) == GT_BF16 ? 8192u                                                                                 \
                         : 0u)

#define GPU_PAD(n_in) (((n_in) + 255u) & ~255u)        /* elements */
#define GPU_ACT_BYTES(n_in) (GPU_PAD(n_in) / 4u * 5u)  /* of one act row */
#define GPU_STRIDE(width) (((width) + 31u) & ~31u)     /* floats between rows of a buffer */

/* 32 positions of one head's keys, or of its values. */
#define GPU_KV_PANEL_BYTES(d_head, q8) ((q8) ? (d_head) / 32u * 1088u : (((d_head) + 7u) & ~7u) * 64u)

/* Shared memory of a launch, bytes; groups start with it undefined. */
#define GPU_SHM_NONE 0u
#define GPU_NORM_WHOLE(n) (((n) + 511u) / 512u * 512u)
#define GPU_SHM_NORM(n) (4u * (GPU_NORM_WHOLE(n) + 4u)) /* k_rows.h: norm, embed_norm, combine_norm: of each row that a group has at once */
#define GPU_NORM_MORE (PS_METAL ? 0u : 3u)              /* of them, besides one */
#define GPU_NORM_HERE(n) (!PS_METAL || (n) <= 7680u)    /* norm's row is in shared memory; else it needs none */
#define GPU_SHM_ROUTE(n_experts) (32u * ((n_experts) > 128u ? (n_experts) : 128u) + 128u) /* k_route.h */
#define GPU_SHM_PICK_JOIN 3472u                             /* k_pick.h */
/* Products (k_stage.h): the ring, n columns of staged rows with scales and sums, and sums of tiles. n: 8, 16 for product_1, _2. */
#define GPU_SHM_RING (4u * RING_WORDS)
#define GPU_SHM_STAGE(n, n_in) (4u * (n) * (GPU_PAD(n_in) / 4u + 16u + GPU_PAD(n_in) / 16u))
#define GPU_SHM_SUMS(n, n_in) (GPU_PAD(n_in) / 256u >= 8u ? GPU_PAD(n_in) / 256u * (n) * 64u : 0u) /* shorter rows need none */
/* PS_METAL: act rows in place. Sums of a round of 8 tiles, twice; experts: the totals of 2 panels of 2 matrices besides. */
#define GPU_SHM_ROUNDS(n, n_in) (GPU_PAD(n_in) / 256u >= 8u ? 1024u * (n) : 0u)
#define GPU_SHM_TOTALS(n, n_in) (GPU_PAD(n_in) / 256u >= 8u ? 256u * (n) : 0u)
#define GPU_SHM_PRODUCT(n, n_in)                                                                                 \
    (PS_METAL ? GPU_SHM_ROUNDS(n, n_in) : GPU_SHM_RING + GPU_SHM_STAGE(n, n_in) + 2u * GPU_SHM_SUMS(n, n_in))
#define GPU_SHM_PRODUCT_FLOATS(n, n_in) /* rows that the product quantises itself */                             \
    (PS_METAL ? GPU_SHM_STAGE(1u, n_in) + GPU_SHM_ROUNDS(8u, n_in) : GPU_SHM_PRODUCT(n, n_in))
#define GPU_SHM_EXPERTS_IN(n, n_in)                                                                              \
    (PS_METAL ? GPU_SHM_ROUNDS(n, n_in) + GPU_SHM_TOTALS(n, n_in)                                                \
              : GPU_SHM_RING + GPU_SHM_STAGE(n, n_in) + ((n) == 8u ? 8u : 4u) * GPU_SHM_SUMS(n, n_in))
#define GPU_SHM_CHOSEN (4u * (64u + 8u * 96u + 32u)) /* k_chosen.h: experts_in_1 that chooses, besides */
#define GPU_SHM_EXPERTS_OUT(n, n_in)                                                                             \
    (PS_METAL ? GPU_SHM_ROUNDS(n, n_in) + GPU_SHM_TOTALS(n, n_in)                                                \
              : GPU_SHM_RING + GPU_SHM_STAGE(n, n_in) + 2u * GPU_SHM_SUMS(n, n_in))
#define GPU_SHM_EXPERTS_FUSED(n_pairs, n_in) (GPU_SHM_RING + GPU_SHM_STAGE(n_pairs, n_in) + 2u * (n_pairs) * 64u)
#define GPU_SHM_EXPERTS_FUSED_ACT(n_pairs, n_in) (PS_METAL ? 2u * (n_pairs) * 64u : GPU_SHM_EXPERTS_FUSED(n_pairs, n_in))
/* k_twin.h: types that it has; columns that are staged; the ring besides. */
#define GPU_TWIN_TYPE(type) ((type) == GT_Q4_0 || (type) == GT_Q4_K || (type) == GT_Q6_K || (type) == GT_Q8_0)
#define GPU_TWIN_COLS(type) (PS_METAL ? 8u : (type) == GT_Q4_K ? 15u : 16u) /* with 16 of q4_k there would be one group an SM */
#define GPU_SHM_TWIN(type, n_in) (GPU_SHM_STAGE(GPU_TWIN_COLS(type), n_in) + (PS_METAL ? 0u : 32u * GPU_TILE_BYTES(type)))
/* k_few.h: weight tiles that a SIMD group has in registers at once, columns of a matrix tile for each of them; words of the sums of a round. */
#ifndef GPU_FEW_TILES
#define GPU_FEW_TILES 4u
#endif
enum { GPU_FEW_ZEROS = 16, GPU_FEW_STAGE = 96 }; /* words of shared memory: 64 zeros, 16 banks away from the staged rows that begin at the second */
#define GPU_FEW_LEAST(rows) ((rows) == 1u ? 2u : (rows))
#define GPU_FEW_COLS(rows) (GPU_FEW_LEAST(rows) > 8u / GPU_FEW_TILES ? GPU_FEW_LEAST(rows) : 8u / GPU_FEW_TILES)
#define GPU_FEW_SUMS(rows, tiles) ((64u / GPU_FEW_COLS(rows) > (tiles) ? 64u / GPU_FEW_COLS(rows) : (tiles)) * (rows) * 16u)
#define GPU_FEW_REGION(n_in) (GPU_PAD(n_in) / 16u * 5u + 16u)
#define GPU_SHM_FEW(rows, n_in, floats)                                                                           \
    (4u * (GPU_FEW_STAGE + (rows) * GPU_FEW_REGION(n_in) + ((floats) ? ((rows) + 1u) * GPU_PAD(n_in) + 16u : 0u) + 2u * GPU_FEW_SUMS(rows, GPU_PAD(n_in) / 256u)))
#define GPU_SHM_FEW_IN(rows, n_in) (4u * (GPU_FEW_STAGE + (rows) * GPU_FEW_REGION(n_in) + 2u * GPU_FEW_SUMS(1u, GPU_PAD(n_in) / 64u)))
#define GPU_SHM_FEW_CHOOSE(rows, n_in) (GPU_SHM_FEW_IN(rows, n_in) + 4u * (64u + 8u * 96u)) /* ids of pairs; of each SIMD group's row the ranks (k_route.h) */
#define GPU_SHM_FEW_OUT(rows, n_used, n_in)                                                                      \
    (4u * (GPU_FEW_STAGE + (rows) * (n_used) * GPU_FEW_REGION(n_in) + (((rows) * (n_used) + 15u) & ~15u) +       \
           2u * GPU_FEW_SUMS(1u, (n_used) * (GPU_PAD(n_in) / 256u))))
#define GPU_SHM_FEW_OUT_CHOOSE(rows, n_used, n_in) (GPU_SHM_FEW_OUT(rows, n_used, n_in) + 4u * (64u + 8u * 96u))
/* k_dense.h: tiles of weights on their way to a SIMD group, panels of a batch; n columns' scales and sums of a SIMD group each, and a batch's sums.
 */
#define GPU_DENSE_SEGS(n_in) (GPU_PAD(n_in) / 256u)
#define GPU_DENSE_SLOTS(n, bytes) ((n) == 32u || (bytes) > 3400u ? 2u : 3u) /* deeper: the rows come later */
#define GPU_DENSE_PANELS(n_in) (GPU_DENSE_SEGS(n_in) <= 8u ? 4u : GPU_DENSE_SEGS(n_in) <= 16u ? 2u : 1u)
#define GPU_SHM_DENSE(n, n_in, bytes)                                                                            \
    ((PS_METAL ? 0u : 8u * (32u + GPU_DENSE_SLOTS(n, bytes) * (bytes))) + 512u * (n) +                           \
     80u * GPU_DENSE_PANELS(n_in) * GPU_DENSE_SEGS(n_in) * (n))
/* k_many.h: columns of a unit; bytes of a SIMD group's ring; words of a stage. */
#define GPU_MANY_COLS (PS_METAL ? 32 : 64)
#define GPU_MANY_RING 7104 /* three tiles of q4_0 or q4_k */
#define GPU_MANY_RING_IN 13824 /* experts_in's, one group an SM: three of q4_0 of both matrices */
#define GPU_MANY_STAGE (GPU_MANY_COLS * 80 + 8 * (2 * GPU_MANY_COLS + 8))
#define GPU_MANY_LIST (PS_METAL ? 256u : 512u) /* tiles of pairs that are put into order */
#define GPU_SHM_MANY_OF(ring) ((PS_METAL ? 0u : 8u * (32u + (ring))) + 4u * (2u * GPU_MANY_STAGE + GPU_MANY_COLS + 2u * GPU_MANY_LIST + 8u))
#define GPU_SHM_MANY GPU_SHM_MANY_OF(GPU_MANY_RING)
#define GPU_SHM_MANY_IN GPU_SHM_MANY_OF(GPU_MANY_RING_IN)

/* k_float.h: rows of a tile (rows: the most there are, 1 with pairs) and outputs of a unit (n_out: of all matrices), norm weights, parts. */
#define GPU_FLOAT_SEGS (PS_METAL ? 2u : 8u) /* segments of 256 in a phase */
#define GPU_FLOAT_ROWS(rows) ((rows) == 1u ? 1u : (rows) == 2u ? 2u : (rows) == 3u || (rows) == 4u ? 4u : 8u)
#define GPU_FLOAT_OUTS(rows, n_out) (GPU_FLOAT_ROWS(rows) < 8u && (n_out) >= 1024u ? 8u : 4u)
#define GPU_SHM_FLOAT(rows, n_out)                                                                               \
    (4u * ((GPU_FLOAT_ROWS(rows) + 1u + GPU_FLOAT_OUTS(rows, n_out)) * GPU_FLOAT_SEGS * 260u +                   \
           GPU_FLOAT_ROWS(rows) * GPU_FLOAT_OUTS(rows, n_out) * 9u))
/* k_router.h: rows of a tile (rows: the most there are), and 16 outputs. */
#define GPU_ROUTER_ROWS(rows) (PS_METAL || (rows) <= 8u ? 8u : (rows) <= 16u ? 16u : (rows) <= 64u ? 32u : 64u)
#define GPU_SHM_ROUTER(rows) ((GPU_ROUTER_ROWS(rows) + 16u) * 1040u)
#define GPU_SHM_STORE 8192u                            /* k_store.h */
/* k_attend.h: n query heads in an item (the most: GPU_SHM_ATTEND(8, d_head)). 4,096: 8 heads of 128 floats. */
#define GPU_ATTEND_STAGE (PS_METAL ? 4096u : 16384u)   /* bytes of values in one of two stages */
#define GPU_ATTEND_KEYS(d_head, q8) (PS_METAL ? 0u : GPU_CHUNK / GPU_KV_PANEL * GPU_KV_PANEL_BYTES(d_head, q8))
#define GPU_SHM_ATTEND_F16(n, d_head)                                                                            \
    (GPU_ATTEND_KEYS(d_head, 0) + 2u * GPU_ATTEND_STAGE + (((d_head) + 7u) & ~7u) * 4u + 4096u +                 \
     (n) * ((((d_head) + 7u) & ~7u) * 4u + 1040u + 40u))
#define GPU_SHM_ATTEND_Q8(n, d_head)                                                                             \
    (GPU_ATTEND_KEYS(d_head, 1) + 2u * GPU_ATTEND_STAGE + (n) * ((d_head) * 4u + 5200u + 40u))
#define GPU_SHM_ATTEND(n, d_head)                                                                                \
    (GPU_SHM_ATTEND_F16(n, d_head) > GPU_SHM_ATTEND_Q8(n, d_head) ? GPU_SHM_ATTEND_F16(n, d_head) : GPU_SHM_ATTEND_Q8(n, d_head))

/* k_prompt.h: n: the heads that share a key/value head, at most GPU_PROMPT_HEADS, rounded up to a power of two. */
#define GPU_PROMPT_HEADS (PS_METAL ? 4u : 8u)
#define GPU_PROMPT_WIDE(d_head) (!PS_METAL && (d_head) > 128u)
#define GPU_SHM_PROMPT_F16(n, d_head)                                                                            \
    (PS_METAL ? 16384u + (n) * 1280u : 32768u + (n) * ((GPU_PROMPT_WIDE(d_head) ? 8192u : 4096u) + (((d_head) + 15u) & ~15u) * 32u))
#define GPU_SHM_PROMPT_Q8(n, d_head) (18432u + (n) * ((PS_METAL ? 1024u : 8192u) + (d_head) * 9u))

#endif
