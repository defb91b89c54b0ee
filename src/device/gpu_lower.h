/* What gpu_lower.c and gpu_lower_experts.c share: the state of a lowering, and the parts of a launch. See gpu_lower.c. Names are the two files' own; one
 * thread, that of the device. */
#ifndef PS_GPU_LOWER_H
#define PS_GPU_LOWER_H

#include "device/gpu_host.h"

struct lower {
    struct gpu *g;
    const struct gpu_class *c;
    struct gpu_offsets at;
    const struct plan_op *op;   /* being lowered */
    u32 index;                  /* its number */
    u32 table, rows;            /* it works on, and the most rows there */
    const struct plan_op *norm; /* left to the next product, or NULL */
    bool norm_act;              /* which then writes the act rows too */
    const struct plan_op *store; /* left to attention's launch, or NULL */
    const struct plan_op *done; /* a norm that the launches before it did, or NULL */
    bool fused_out;             /* experts: a pair by itself, joined by experts_out */
    bool few;                   /* and by k_few.h's kernels */
    bool twins;                 /* the experts_*_twin kernels could take both of their products */
    bool choose;                /* few_in then chooses them: by this, of that */
    struct route_args route;
    struct gpu_ref route_from;
    bool fused_act;             /* which then reads the act rows of experts_in, instead of quantising for itself */
    struct err *err;
    bool failed;
};

#ifndef FEW_ROWS
#define FEW_ROWS (PS_METAL ? 0 : 8) /* measured on an H200 (docs/performance.md); not measured without a ring */
#endif

enum { ALONE = 1, FEW_NORM = 2, FEW = 8, FEW_PRODUCT = 4, FEW_OUTS = 16384, FUSED_OUT = 4,
       ONE_GROUP_ROUTES = PS_METAL ? 64 : 32, TWIN_FROM = 3, TWIN_TO = 256, MANY = PS_METAL ? 128 : 64, ROUTER_OUTS = 512 };
enum { DENSE_FROM = 5, DENSE_TO = 128, DENSE_PANELS = 1024 };
enum { ROUTER_NORM = PS_METAL ? 64 : 8 };

struct readers { /* of a normalised row, until it is written anew */
    u32 n;
    bool floats, acts;  /* read with float weights; with quantised ones */
    bool later_floats;  /* by another than the next operation */
};

/* The next launch, zeros, and its end: arguments are what they will be. A weight's place; its entry in the plan; whether its type is quantised; a buffer's place. */
struct gpu_launch *lower_launch(struct lower *l, enum gpu_kernel kernel);
void lower_ready(struct lower *l, struct gpu_launch *n);
/* Groups for so many units of work: as many as run at once, at most. */
u32 lower_at_most(const struct lower *l, u64 units);
/* The same for kernels of one group an SM (GPU_ALONE). */
u32 lower_alone(const struct lower *l, u64 units);
struct gpu_ref lower_weight(const struct lower *l, i32 index);
const struct plan_weight *lower_of_plan(const struct lower *l, i32 index);
bool lower_quantised(const struct lower *l, i32 index);
struct gpu_buf lower_buf(const struct lower *l, enum plan_buf b);
/* Whether shared memory holds a kernel with these arguments. */
u32 lower_norm_more(const struct lower *l, u64 rows, u32 n);
bool lower_fits(const struct lower *l, enum gpu_kernel kernel, const union gpu_args *args);
/* Rule 1 of a buffer's rows of n floats (and the norm before it). */
void lower_norm_launch(struct lower *l, const struct gpu_buf *from, u32 n, i32 norm, bool write_h, bool write_act, const struct gpu_buf *to);
/* Who reads a row that was normalised, until it is written anew. */
struct readers lower_readers(const struct lower *l, enum plan_buf b);
/* Whether a norm is left to the product that reads its rows. */
bool lower_left_to_product(const struct lower *l, struct readers *r);
/* The norm of x that follows an operation which writes x, of rows of n floats, where it needs a launch that the operation's own can spare: then that is to do it
 * (l->done), and these are its arguments (but for `more`) and buffers. */
struct norm_after {
    struct norm_args args;
    struct gpu_ref weights, h, act;
};
bool lower_norm_after(struct lower *l, u32 n, u32 x_stride, struct norm_after *norm);
/* Segments that k_router leaves for the choice of experts, where it does this operation; 0: it does not. */
u32 lower_router_parts(const struct lower *l, const struct plan_op *op);
/* Whether k_few.h's kernels are for so many rows. */
bool lower_few_rows(const struct lower *l);

/* The operations of the experts (gpu_lower_experts.c). */
void lower_route(struct lower *l);
void lower_experts_in(struct lower *l);
void lower_experts_out(struct lower *l);
void lower_combine(struct lower *l);

#endif
