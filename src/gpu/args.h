/* Arguments and buffers of every kernel: structs of 4-byte fields, the same bytes for host and device. What changes from step to
 * step is not here but in the step's inputs, so that one setup serves every step of its class (docs/gpu.md).
 *
 * Inputs: u32 words, uploaded once a step.
 *   [IN_ROWS + w]   rows of table w: 0 all rows of the step, 1 those that want logits (after OP_KEEP)
 *   [IN_ITEMS + w]  items of k_attend for table w        [IN_TILES + w]  tiles of k_prompt for table w
 *   [IN_HEADS + w]  query heads in an item: 1, 2, 4 or 8, dividing the heads that share a key/value head
 *   tables, items and tiles at the word offsets that arguments name:
 *   row r of a table: 4 words: token (table 1: the row's number in table 0), slot, position, first of its items in k_attend's order
 *                     (for rows in a prompt tile: 0xFFFFFFFF)
 *   item i: row | chunk << 16. A row's items follow each other, chunks rising from 0.
 *   tile i: first row | rows << 24 (1..GPU_TILE_ROWS), rows of one slot at positions that follow each other; late positions, long work, come first */
#ifndef PS_GPU_ARGS_H
#define PS_GPU_ARGS_H

#include "gpu/gpu.h"

enum { IN_ROWS = 0, IN_ITEMS = 2, IN_TILES = 4, IN_HEADS = 6, IN_HEADER = 16 };
enum { GPU_TILE_ROWS = 8 };

/* Where a product's activations come from. */
enum {
    SRC_ACT,   /* act rows */
    SRC_NORM,  /* float rows: RMSNorm with buffer 2's weights, then rule 1, by every group for itself; at most 8 rows */
    SRC_FLOAT  /* float rows: rule 1, by every group for itself */
};

/* 0 inputs, 1 table: packed weights of `type`, 2 x out: float rows */
struct embed_args {
    u32 which, rows_at; /* table of rows, its word offset in the inputs */
    u32 type, n_in, x_stride;
};

/* RMSNorm and rule 1 of whole rows.
 * 0 inputs, 1 x: float rows, 2 weights (n), 3 h out: float rows, 4 act out. has_norm 0: h is x, only rule 1. */
struct norm_args {
    u32 which;
    u32 n, x_stride, h_stride;
    u32 has_norm, write_h, write_act;
    u32 ranks;         /* rows of the buffer for each row of the table */
    u32 more;          /* with a norm: rows that a group has at once, besides one: at most GPU_NORM_MORE */
    float eps;
};

/* Rotation, and keys and values into the arena (layer's part).
 * 0 inputs, 1 q, 2 k: rows, in place (k for a trace), 3 v: rows, 4 q norm or none, 5 k norm or none, 6 rotation (position, d_rope): pairs (cos, sin),
 * 7 arena of the layer */
struct store_args {
    u32 rows_at;       /* table 0 */
    u32 n_heads, n_kv, d_head, d_rope, neox;
    u32 q_stride, kv_stride;
    u32 has_norm, whole_norm;
    u32 kv_q8;
    u32 head_bytes, slot_lo, slot_hi; /* slot_bytes = slot_hi << 32 | slot_lo */
    float eps;
};

/* Attention of items: one row, some query heads of one key/value head, one chunk. Then k_join over rows.
 * 0 inputs, 1 q: rows (rotated), 2 arena of the layer, 3 parts: (item, n_heads, d_head + 2): o, m, l; 4 att out: rows
 * A row of one chunk is finished by k_attend itself; k_join does the others. 5 act out of the finished rows, with write_act (not k_prompt): n_heads * d_head is
 * then a multiple of 256, d_head of 32. */
struct attend_args {
    u32 which, rows_at, items_at, tiles_at;
    u32 n_heads, n_kv, d_head;
    u32 q_stride, att_stride;
    u32 kv_q8, write_act;
    u32 head_bytes, slot_lo, slot_hi;
    float scale;       /* 1 / sqrt(d_head) */
};

/* k_store and k_attend at once: the queries are as their product left them, and stay so, and the rows' own keys and values are not in the arena yet: every group
 * does for itself what k_store would (those of one key/value head write the same bytes). No two rows are of one slot, no norm is over a whole row, d_head is at most GPU_APART_DIMS.
 * Buffers as attend_args, and 6 k: rows, 7 v: rows, 8 q norm or none, 9 k norm or none, 10 rotation. */
enum { GPU_APART_DIMS = 128 }; /* d_head at most */
struct attend_store_args {
    struct attend_args attend;
    struct store_args store;
};

/* One to three products of the same rows.
 * 0 inputs, 1 source rows, 2 norm weights, 3-5 weights, 6-8 biases, 9-11 y out: float rows, 12 residual x: rows, in place,
 * 13 act out of the normalised rows (SRC_NORM), or none */
struct product_args {
    u32 which;
    u32 source;        /* SRC_... */
    u32 n_in;
    u32 x_stride;      /* floats, of SRC_NORM and SRC_FLOAT */
    float eps;
    u32 n_mats;
    u32 type[3], n_out[3], y_stride[3], has_bias[3];
    u32 add;           /* residual x = x + y, of matrix 0; y is written too */
    u32 res_stride;
    u32 write_act;
    u32 rows;          /* dense_*: of the table, the most there are */
};
/* Types that k_few.h and k_dense.h take. */
#define GPU_FEW_TYPE(t) ((t) == GT_Q4_0 || (t) == GT_Q8_0 || (t) == GT_Q4_K || (t) == GT_Q6_K)

/* Products with float weights (rule 5): rows of floats. With pairs: row i of y takes row i / n_used of x (per_pair 1) or row i of x
 * (per_pair 2), and the matrix of expert ids[i]. Buffers as product_args; 14 route lists. SRC_NORM or float rows as they are. */
struct float_args {
    struct product_args p;
    u32 per_pair, n_used, ids_at;
    u32 rows;          /* of the table: the most there are; 0: not known */
};

/* A router with F32 weights, n_out a multiple of 16: its segments (rule 5), for k_route to add up.
 * 0 inputs, 1 source rows: floats (SRC_NORM, SRC_FLOAT), 2 norm weights, 3 weights, 4 parts out: (row, segment, n_out) floats,
 * 5 act out of the normalised rows (SRC_NORM), or none. Where `rows` is at most 64, so many rows of buffer 1 are read, whatever the inputs say. */
struct router_args {
    u32 which;
    u32 source;
    u32 n_in, n_out;
    u32 x_stride;
    float eps;
    u32 write_act;
    u32 rows;          /* of the table: the most there are; SRC_NORM: at most 8, PS_METAL: 64 */
};

/* Top-k experts of each row (rule 8), then the lists that grouped products walk.
 * 0 inputs, 1 logits: rows (n_experts), or n_parts sums in each row, parts_stride floats apart, that k_router left: added from 0 left to
 * right. 2 route lists out: words
 *   ids_at:   (rows, n_used) expert; w_at: (rows, n_used) float weight
 *   pairs_at: row * n_used + rank, sorted by expert, stable
 *   tiles_at: [0] number of tiles, then 2 words a tile: expert, first pair | pairs << 24
 * 3 hits out (where `hits`): word hits_at gets the number of different experts; per_row and more than 32 pairs: of pairs
 * A tile has at most tile_rows pairs of one expert; per_row: each pair is a tile of its own, in order of pairs. */
struct route_args {
    u32 which;
    u32 n_experts, n_used, stride, used_norm;
    float used_scale;
    u32 ids_at, w_at, pairs_at, tiles_at, tile_rows, per_row;
    u32 hits, hits_at;
    u32 n_parts, parts_stride; /* n_parts 0: logits */
};

/* Chosen experts of all rows: act = silu(gate . h) * (up . h).
 * 0 inputs, 1 h: act rows, 2 gate, 3 up: n_experts matrices one after another, 4 y out: float rows (pair), 5 route lists, 6 act out (pair), with
 * write_act: only where GPU_EXPERTS_IN_ACT says so, and not by experts_in_many; few_in: where n_out is a multiple of 32. few_in: both of one type */
struct experts_in_args {
    u32 which;
    u32 n_in, n_out, y_stride;
    u32 type_gate, type_up;
    u32 n_used, pairs_at, tiles_at;
    u32 write_act;
    u32 few, rows, ids_at; /* few_in: the most rows there are (1..8), how many there are or 0: as the inputs say; ids in the route lists */
};
#define GPU_EXPERTS_IN_ACT(n_in, n_out) ((n_in) > 1792u && (n_out) % 32u == 0u)

/* experts_in of few rows (few_in, experts_in_1); choose: and their route besides (GPU_FEW_CHOOSES; experts_in_1:
 * PS_METAL, at most 8 rows). Each group chooses for itself the experts of the rows that it has work for, and the
 * last, which few_in's grid has besides those that the units need, writes the lists: of few_in what few_out reads,
 * ids and weights, not pairs and tiles. Buffers as experts_in_args; choose: 5 route lists out, 7 logits or parts,
 * as 1 of route_args, 8 hits out. */
struct few_in_args {
    struct experts_in_args in;
    u32 choose;
    struct route_args route;
};
#define GPU_FEW_CHOOSES(n_experts, n_used) ((n_experts) <= 128u && (n_experts) % 4u == 0u && (n_used) <= 8u)

/* down . act of all pairs. fused: at most 8 rows; the row's experts joined in rank order and the residual stream besides.
 * 0 inputs, 1 act: float rows (pair), 2 act rows (pair) or none: SRC_ACT, 3 down: n_experts matrices, 4 y out: float rows (pair),
 * 5 route lists, 6 residual x */
struct experts_out_args {
    u32 which;
    u32 source;        /* SRC_ACT or SRC_FLOAT (PS_METAL: only fused) */
    u32 n_in, n_out, x_stride, y_stride, res_stride;
    u32 type;
    u32 n_used, ids_at, w_at, pairs_at, tiles_at;
    u32 per;           /* pairs that share a row of buffers 1 and 2: 1, or n_used where the rows are the table's */
    u32 fused;         /* 0, or the most rows there are */
    u32 rows;          /* few_out: how many rows there are, or 0: as the inputs say */
};

/* experts_out of few rows, joined; choose: each group finds once more the ids that few_in chose, so that its weights are on the way before few_in has ended.
 * Buffers as experts_out_args; choose: 7 logits or parts, as few_in's. */
struct few_out_args {
    struct experts_out_args out;
    u32 choose;
    struct route_args route;
};

/* x = x + sum over ranks of w * y (rule 8), a shared expert last: sigmoid(shared_w) * shared.
 * 0 inputs, 1 y: float rows (pair), 2 route lists, 3 shared: rows, 4 shared_w: rows of one, 5 x: rows, in place */
struct combine_args {
    u32 which;
    u32 n, n_used, w_at, y_stride, x_stride;
    u32 shared, shared_stride, shared_w_stride;
};

/* Both, of whole rows: the norm of the x that comes out. 0-5 as combine_args, 6 norm weights, 7 h out, 8 act out. Of `norm` n, h_stride, eps, more, write_h
 * and write_act are read. */
struct combine_norm_args {
    struct combine_args combine;
    struct norm_args norm;
};

/* A table's rows, and the norm of each, a group a row: 0-2 as embed_args, 3 h out, 4 act out, 5 norm weights. Of `norm` n, h_stride, eps, write_h and
 * write_act are read. */
struct embed_norm_args {
    struct embed_args embed;
    struct norm_args norm;
};

/* gate = silu(gate) * up, and rule 1 of it. 0 inputs, 1 gate: rows, in place, 2 up, 3 act out */
struct swiglu_args {
    u32 which;
    u32 n, stride, ranks, write_act; /* ranks as norm_args */
};

/* Rows of table 1 out of table 0. 0 inputs, 1 x, 2 q, 3 x out, 4 q out */
struct keep_args {
    u32 rows_at;       /* table 1 */
    u32 n_x, n_q, x_stride, q_stride;
};

/* What sampling needs of each row of logits, so that the row itself stays on the device.
 * 0 inputs, 1 logits: rows, 2 picks out: (row) PICK_WORDS words, 3 scratch: (row, PICK_BLOCKS) words
 *   [0] 1 when every logit is finite   [1] tokens in the list, at most PICK_TOP   then (id, logit bits) by (logit down, id up)
 * k_pick: the best of each block of logits; k_pick_join: the best blocks' best. */
struct pick_args {
    u32 which;
    u32 n_vocab, stride;
};
enum { PICK_TOP = 64, PICK_WORDS = 2 + 2 * PICK_TOP, PICK_BLOCKS = 2048, PICK_ALONE = 256 }; /* blocks of a row, at most; so few logits need no k_pick */
/* Logits in a block: 128 and their multiples, or so few that there are more than 64 blocks. */
#define GPU_PICK_BLOCK(n_vocab) ((n_vocab) < 8192u ? 4u : ((n_vocab) + 128u * PICK_BLOCKS - 1u) / (128u * PICK_BLOCKS) * 128u)

/* The self-test's (k_probe.h). 0 in, 1 out */
struct probe_args {
    u32 count;         /* of inputs for each probe; a multiple of 32 */
};

/* What a launch carries beside its buffers. */
union gpu_args {
    struct embed_args embed_;
    struct norm_args norm_;
    struct store_args store_;
    struct attend_args attend_;
    struct attend_store_args attend_store_;
    struct product_args product_;
    struct float_args float_;
    struct router_args router_;
    struct route_args route_;
    struct experts_in_args experts_in_;
    struct few_in_args few_in_;
    struct experts_out_args experts_out_;
    struct few_out_args few_out_;
    struct combine_args combine_;
    struct combine_norm_args combine_norm_;
    struct embed_norm_args embed_norm_;
    struct swiglu_args swiglu_;
    struct keep_args keep_;
    struct pick_args pick_;
    struct probe_args probe_;
    u32 words[32];
};

/* Kernels by name: X(name, args): void k_<name>(struct at at, CON const struct <args>_args *a, struct bufs b, SHM u32 *shm); its
 * member of gpu_args is <args>_. Its text is in the file named behind it. _1, _2: rows of activations in a tile / 8. */
#define GPU_KERNELS(X)                                                                                           \
    X(embed, embed)             /* k_rows.h */                                                                   \
    X(embed_norm, embed_norm)                                                                                    \
    X(norm, norm)                                                                                                \
    X(swiglu, swiglu)                                                                                            \
    X(combine, combine)                                                                                          \
    X(combine_norm, combine_norm)                                                                                \
    X(keep, keep)                                                                                                \
    X(route, route)             /* k_route.h: top-k; a row a SIMD group */                                       \
    X(group, route)             /* the lists; one group works */                                                 \
    X(route_group, route)       /* both, at most 64 rows; one group works */                                     \
    X(store, store)             /* k_store.h */                                                                  \
    X(attend, attend)           /* k_attend.h */                                                                 \
    X(attend_store, attend_store)                                                                                \
    X(join, attend)             /* k_join.h */                                                                   \
    X(prompt, attend)           /* k_prompt.h */                                                                 \
    X(product_1, product)       /* k_product.h: a panel's segments over the SIMD groups */                       \
    X(product_2, product)                                                                                        \
    X(product_many, product)    /* k_many.h: a panel a SIMD group */                                             \
    X(product_float, float)    /* k_float.h */                                                                  \
    X(router, router)           /* k_router.h */                                                                 \
    X(experts_in_1, few_in)     /* k_experts.h */                                                                \
    X(experts_in_2, experts_in)                                                                                  \
    X(experts_out_1, experts_out)                                                                                \
    X(experts_out_2, experts_out)                                                                                \
    X(experts_in_twin, experts_in) /* k_twin.h */                                                                \
    X(experts_out_twin, experts_out)                                                                             \
    X(experts_in_many, experts_in) /* k_many.h */                                                                \
    X(experts_out_many, experts_out)                                                                             \
    X(few_1, product)           /* k_few.h: at most 1, 2, 4 rows */                                           \
    X(few_2, product)                                                                                            \
    X(few_4, product)                                                                                            \
    X(few_in, few_in)           /* k_few_experts.h: every pair by itself; few_out joins */                       \
    X(few_out, few_out)                                                                                          \
    X(dense_1, product)         /* k_dense.h: act rows; a segment a SIMD group */                                \
    X(dense_2, product)                                                                                          \
    X(dense_4, product)                                                                                          \
    X(pick, pick)               /* k_pick.h */                                                                   \
    X(pick_join, pick)                                                                                           \
    X(probe, probe)             /* k_probe.h */

enum gpu_kernel {
#define X(name, args) GK_##name,
    GPU_KERNELS(X)
#undef X
    GK_COUNT
};

/* What a kernel does with its buffers, X(name, a letter for each buffer from 0): r reads, x reads and writes, w writes without having read what
 * stood there before (maybe only parts of it), o the same in rows that no other kernel with an o for that buffer has (a row's attention is done by
 * items or by a tile, its chunks joined or not), - neither, although a launch may name one. A launch without a buffer leaves it
 * alone. In GPU_KERNELS' order. */
#define GPU_ACCESS(X)                                                                                            \
    X(embed, "rrw")                                                                                              \
    X(embed_norm, "rrwwwr")                                                                                      \
    X(norm, "rrrww")                                                                                             \
    X(swiglu, "rxrw")                                                                                            \
    X(combine, "rrrrrx")                                                                                         \
    X(combine_norm, "rrrrrxrww")                                                                                 \
    X(keep, "rrrww")                                                                                             \
    X(route, "rrw-")                                                                                             \
    X(group, "r-xw")                                                                                             \
    X(route_group, "rrww")                                                                                       \
    X(store, "rxxrrrrw")                                                                                         \
    X(attend, "rrrwoo")                                                                                          \
    X(attend_store, "rrxwoorrrrr")                                                                               \
    X(join, "r--roo")                                                                                            \
    X(prompt, "rrr-o")                                                                                           \
    X(product_1, "rrrrrrrrrwwwxw")                                                                               \
    X(product_2, "rrrrrrrrrwwwxw")                                                                               \
    X(product_many, "rr-rrrrrrwwwx")                                                                             \
    X(product_float, "rrrrrrrrrwwwxwr")                                                                          \
    X(router, "rrrrww")                                                                                          \
    X(experts_in_1, "rrrrwxwrw")                                                                                 \
    X(experts_in_2, "rrrrwrw")                                                                                   \
    X(experts_out_1, "rrrrwrx")                                                                                  \
    X(experts_out_2, "rrrrwrx")                                                                                  \
    X(experts_in_twin, "-rrrwr")                                                                                 \
    X(experts_out_twin, "-rrrwr-")                                                                               \
    X(experts_in_many, "-rrrwr")                                                                                 \
    X(experts_out_many, "--rrwr-")                                                                               \
    X(few_1, "rrrrrrrrrwwwxw")                                                                                   \
    X(few_2, "rrrrrrrrrwwwxw")                                                                                   \
    X(few_4, "rrrrrrrrrwwwxw")                                                                                   \
    X(few_in, "rrrrwxwrw")                                                                                       \
    X(few_out, "rrrr-rxr")                                                                                       \
    X(dense_1, "rr-rrrrrrwwwx")                                                                                  \
    X(dense_2, "rr-rrrrrrwwwx")                                                                                  \
    X(dense_4, "rr-rrrrrrwwwx")                                                                                  \
    X(pick, "rr-w")                                                                                              \
    X(pick_join, "rrwr")                                                                                         \
    X(probe, "rw")

/* Kernels whose shared memory begins with a ring (gpu.h). */
#define GPU_HAS_RING(kernel)                                                                                     \
    ((kernel) == GK_product_1 || (kernel) == GK_product_2 ||                                                     \
     (kernel) == GK_experts_in_1 || (kernel) == GK_experts_in_2 || (kernel) == GK_experts_out_1 || (kernel) == GK_experts_out_2)

/* Kernels that have fetched what the launch before them does not write when they wait for it (IN_TURN, gpu.h). */
#define GPU_LOADS_FIRST(kernel)                                                                                  \
    ((kernel) == GK_few_1 || (kernel) == GK_few_2 || (kernel) == GK_few_4 || (kernel) == GK_few_in || (kernel) == GK_few_out || (kernel) == GK_product_1 || (kernel) == GK_product_2 || \
     (kernel) == GK_attend_store || (kernel) == GK_join || (kernel) == GK_router || (kernel) == GK_norm || (kernel) == GK_combine_norm || \
     (kernel) == GK_dense_1 || (kernel) == GK_dense_2 || (kernel) == GK_dense_4 || (kernel) == GK_experts_in_twin || (kernel) == GK_experts_out_twin)

/* Kernels whose grid is one group an SM at most, not two: dense_4 and experts_in_many fill its
 * registers; beside the others the next launch's groups begin, and have their weights on the
 * way long before their turn. */
#define GPU_ALONE(kernel)                                                                                        \
    ((kernel) == GK_few_1 || (kernel) == GK_few_2 || (kernel) == GK_few_4 || (kernel) == GK_dense_1 || \
     (kernel) == GK_dense_2 || (kernel) == GK_dense_4 || (kernel) == GK_experts_in_many)

#endif
