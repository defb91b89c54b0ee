/* The plan as launches of GPU kernels, for one class of steps. What is fused, and which kernel does an operation, depends on the class
 * alone, and never shows in a result:
 *
 *   rows      products      norm                         experts
 *   1         few_1         in the product that reads    a pair by itself; the output
 *                           h, when all who read it can  joins them
 *   2         few_2         "                            "
 *   3, 4      few_4         "                            two weight tiles at a time; where _twin does not do as above
 *   5-8       dense_1       "                            "; or tiles of 8 pairs
 *   9-16      dense_1, _2   "                            "
 *   17-32     dense_2, _4   "                            "
 *   33-64     dense_4       "                            "
 *   65-128    dense_4       "                            "; where _twin does not do tiles of 16 pairs
 *   129-256   product_many  "                            "; where _twin does not do _many, of 64; PS_METAL: of 16
 *   more      product_many  "                            _many, of 64; PS_METAL: of 32
 *
 * Up to 128 rows, each alone in its slot: attention's launch does what store would. Rule 1 of attention's result is in attention's launches, where single rows are all there is and heads are whole blocks; else in the product at
 * one row, in a launch at more.
 * Where experts are joined by a launch of its own the norm that follows is in it (combine_norm); so is the first layer's in the embedding's, up to a row
 * a group (embed_norm).
 *
 * Up to FEW_ROWS rows (or a backend's few_rows), where types and shared memory allow: few_1, _2, _4 for products of at most FEW_PRODUCT rows (but for those
 * of many outputs, the head), few_in and few_out for experts, which write act rows and join the experts, where _twin does not do (from 3 rows on).
 *
 * dense_1, _2, _4 are for types q4_0, q8_0, q4_k and q6_k; products with others have product_1 up to 8 rows, product_2 up to 64 and then product_many; all with
 * PS_METAL too, product_2 up to 128.
 *
 * Matrices of float types have one kernel, product_float, whatever the rows; a router in f32 has router, whose sums route adds up.
 * Up to 8 rows the router does its norm itself, with PS_METAL up to 64. There the experts joined by the output read act
 * rows, where experts_in writes them, and experts_in chooses the experts of up to 8 rows. */
#include "device/gpu_lower.h"

#include <math.h>
#include <string.h>

/* ---- launches ---- */

/* The next launch: zeros, the inputs its first buffer. Buffers are counted as they are set. */
struct gpu_launch *lower_launch(struct lower *l, enum gpu_kernel kernel)
{
    struct gpu_list *list = &l->g->list;
    struct gpu_launch *n = &list->at[list->n];
    list->op[list->n++] = l->index;
    *n = (struct gpu_launch){.kernel = kernel, .n_groups = l->g->info.n_groups};
    n->bufs[0] = l->g->inputs;
    return n;
}

struct gpu_ref lower_weight(const struct lower *l, i32 index)
{
    return index == PLAN_NONE ? (struct gpu_ref){0} : l->g->weights[index].at;
}

const struct plan_weight *lower_of_plan(const struct lower *l, i32 index)
{
    return &l->g->dev.plan->weights[index];
}

bool lower_quantised(const struct lower *l, i32 index)
{
    return dtype_info(lower_of_plan(l, index)->tensor->type)->quantised;
}

struct gpu_buf lower_buf(const struct lower *l, enum plan_buf b)
{
    return gpu_buf_of(l->g, l->c, l->op, b);
}

/* Done: its arguments are what they will be. */
void lower_ready(struct lower *l, struct gpu_launch *n)
{
    n->n_bufs = GPU_BUFS;
    while (n->n_bufs && !n->bufs[n->n_bufs - 1].base)
        n->n_bufs--;
    n->shm_bytes = gpu_shm_bytes(n->kernel, &n->args);
    if (n->shm_bytes > l->g->info.shm_bytes && !l->failed) {
        l->failed = true;
        err_set(l->err, "--device %s: this model needs %u bytes of shared memory in kernel %s (operation %u); the GPU has %u",
                l->g->dev.ops->name, n->shm_bytes, gpu_kernel_name(n->kernel), l->index, l->g->info.shm_bytes);
    }
}

u32 lower_at_most(const struct lower *l, u64 units)
{
    return (u32)min_u64(units ? units : 1, l->g->info.n_groups);
}

u32 lower_alone(const struct lower *l, u64 units)
{
    return (u32)min_u64(units ? units : 1, (l->g->info.n_groups + 1) / 2); /* the grid is for two an SM */
}

/* Rows of n floats, of so many, that a group of a norm's launch has at once besides one: two groups an SM have room for them. */
u32 lower_norm_more(const struct lower *l, u64 rows, u32 n)
{
    u32 more = (u32)min_u64((rows ? rows - 1 : 0) / l->g->info.n_groups, GPU_NORM_MORE);
    while (more && (1 + more) * GPU_SHM_NORM(n) > l->g->info.shm_bytes / 2)
        more--;
    return more;
}

/* Rule 1 of a buffer's rows of n floats (and the norm before it). */
void lower_norm_launch(struct lower *l, const struct gpu_buf *from, u32 n, i32 norm, bool write_h, bool write_act, const struct gpu_buf *to)
{
    struct gpu_launch *k = lower_launch(l, GK_norm);
    k->args.norm_ = (struct norm_args){.which = l->table, .n = n, .x_stride = from->stride, .h_stride = to->stride,
                                       .has_norm = norm != PLAN_NONE, .write_h = write_h, .write_act = write_act, .ranks = from->ranks,
                                       .eps = l->g->dev.plan->hp.eps};
    u64 rows = (u64)l->rows * from->ranks; /* with a norm a group takes whole rows, else a SIMD group 128 elements */
    k->args.norm_.more = norm != PLAN_NONE ? lower_norm_more(l, rows, n) : 0;
    k->n_groups = lower_at_most(l, norm != PLAN_NONE ? rows : (rows * ((n + 127) / 128) + GPU_SIMDS - 1) / GPU_SIMDS);
    k->bufs[1] = from->x;
    k->bufs[2] = lower_weight(l, norm);
    if (write_h)
        k->bufs[3] = to->x;
    if (write_act)
        k->bufs[4] = to->act;
    lower_ready(l, k);
}

/* ---- products ---- */

struct readers lower_readers(const struct lower *l, enum plan_buf b)
{
    const struct plan *p = l->g->dev.plan;
    struct readers r = {0};
    for (u32 i = l->index + 1; i < p->n_ops && p->ops[i].kind != OP_NORM; i++) {
        const struct plan_op *op = &p->ops[i];
        if (op->in != b)
            continue;
        r.n++;
        for (u32 m = 0; m < op->n_mats; m++) {
            bool quant = lower_quantised(l, op->mats[m].weight);
            r.acts |= quant;
            r.floats |= !quant;
            r.later_floats |= !quant && i > l->index + 1;
        }
    }
    return r;
}

/* All matrices of an operation quantised (or all not): one launch does them. */
static bool one_launch(const struct lower *l, const struct plan_op *op)
{
    for (u32 m = 1; m < op->n_mats; m++)
        if (lower_quantised(l, op->mats[m].weight) != lower_quantised(l, op->mats[0].weight))
            return false;
    return true;
}

bool lower_fits(const struct lower *l, enum gpu_kernel kernel, const union gpu_args *args)
{
    return gpu_shm_bytes(kernel, args) <= l->g->info.shm_bytes;
}

/* One row, of n_in elements, that the product before which it stands may prepare for itself. */
static bool prepares(const struct lower *l, u32 source, u32 n_in)
{
    union gpu_args a = {.product_ = {.source = source, .n_in = n_in}};
    return l->rows <= ALONE && !l->c->plain && lower_fits(l, GK_product_1, &a);
}

/* Segments that k_router leaves for the route that follows, where it does this operation: a router and nothing else. 0: it does not. */
u32 lower_router_parts(const struct lower *l, const struct plan_op *op)
{
    const struct plan_mat *m = &op->mats[0];
    const struct plan_weight *w = lower_of_plan(l, m->weight);
    bool routes = op->kind == OP_MAT && op->n_mats == 1 && m->out == BUF_ROUTER && op[1].kind == OP_ROUTE && m->bias == PLAN_NONE && !op->add;
    if (!routes || l->c->plain || w->tensor->type != DT_F32 || w->n_out % GPU_PANEL || w->n_out > ROUTER_OUTS)
        return 0;
    return GPU_PAD(w->n_in) / GPU_SEG;
}

static enum gpu_kernel few_product(const struct lower *l, const union gpu_args *args);

/* Whether k_few.h takes an operation's matrices, and does the norm of so many rows before. */
static bool few_norms(const struct lower *l, const struct plan_op *op)
{
    union gpu_args a = {.product_ = {.source = SRC_NORM, .n_mats = op->n_mats}};
    if (l->rows > FEW_NORM || op->kind != OP_MAT || op->n_mats > 3)
        return false;
    for (u32 m = 0; m < op->n_mats; m++) {
        const struct plan_weight *w = lower_of_plan(l, op->mats[m].weight);
        a.product_.n_in = w->n_in;
        a.product_.type[m] = w->tensor->type;
        a.product_.n_out[m] = w->n_out;
    }
    return few_product(l, &a) != GK_COUNT;
}

/* Few rows: the norm is repeated by every group of the product that comes next, unless later products need the floats.
 * Whether a norm is left to the product that reads its rows: that one's launch then does it. */
bool lower_left_to_product(const struct lower *l, struct readers *r)
{
    const struct plan_op *next = &l->op[1];
    bool router = l->rows <= ROUTER_NORM && lower_router_parts(l, next); /* whose groups take a row a SIMD group */
    bool within = router || few_norms(l, next) || prepares(l, SRC_NORM, l->g->dev.plan->bufs[l->op->in].width);
    *r = lower_readers(l, l->op->out);
    return within && next->kind == OP_MAT && next->in == l->op->out && one_launch(l, next) && !r->later_floats;
}

bool lower_norm_after(struct lower *l, u32 n, u32 x_stride, struct norm_after *norm)
{
    struct lower next = *l;
    struct readers r;
    next.op = &l->op[1];
    next.index++;
    if (l->c->plain || next.op->kind != OP_NORM || next.op->in != BUF_X || next.op->last != l->op->last || GPU_SHM_NORM(n) > l->g->info.shm_bytes ||
        lower_left_to_product(&next, &r))
        return false;
    struct gpu_buf h = lower_buf(&next, next.op->out);
    r = lower_readers(&next, next.op->out);
    *norm = (struct norm_after){
        .args = {.which = l->table, .n = n, .x_stride = x_stride, .h_stride = h.stride, .has_norm = 1, .write_h = r.floats, .write_act = r.acts,
                 .ranks = 1, .eps = l->g->dev.plan->hp.eps},
        .weights = lower_weight(l, next.op->norm)};
    if (r.floats)
        norm->h = h.x;
    if (r.acts)
        norm->act = h.act;
    l->done = next.op;
    return true;
}

static void lower_norm(struct lower *l)
{
    struct readers r;
    if (l->done == l->op)
        return;
    if (lower_left_to_product(l, &r)) {
        l->norm = l->op;
        l->norm_act = r.n > 1;
        return;
    }
    struct gpu_buf x = lower_buf(l, l->op->in), h = lower_buf(l, l->op->out);
    lower_norm_launch(l, &x, l->g->dev.plan->bufs[l->op->in].width, l->op->norm, r.floats || l->c->plain, r.acts, &h);
}

/* What both kinds of products have. mats: which of the operation's matrices, n of them. */
static void fill_product(const struct lower *l, struct gpu_launch *k, struct product_args *a, const u32 *mats, u32 n)
{
    const struct plan_op *op = l->op;
    struct gpu_buf x = lower_buf(l, BUF_X);
    *a = (struct product_args){.which = l->table, .n_in = lower_of_plan(l, op->mats[mats[0]].weight)->n_in, .n_mats = n,
                               .eps = l->g->dev.plan->hp.eps};
    for (u32 i = 0; i < n; i++) {
        const struct plan_mat *m = &op->mats[mats[i]];
        struct gpu_buf y = lower_buf(l, m->out);
        a->type[i] = lower_of_plan(l, m->weight)->tensor->type;
        a->n_out[i] = lower_of_plan(l, m->weight)->n_out;
        a->y_stride[i] = y.stride;
        a->has_bias[i] = m->bias != PLAN_NONE;
        k->bufs[3 + i] = lower_weight(l, m->weight);
        k->bufs[6 + i] = lower_weight(l, m->bias);
        k->bufs[9 + i] = y.x;
    }
    if (op->add && mats[0] == 0) {
        a->add = 1;
        a->res_stride = x.stride;
        k->bufs[12] = x.x;
    }
    if (l->norm) {
        struct gpu_buf h = lower_buf(l, l->norm->out);
        a->source = SRC_NORM;
        a->x_stride = x.stride;
        a->write_act = l->norm_act;
        k->bufs[1] = x.x;
        k->bufs[2] = lower_weight(l, l->norm->norm);
        if (l->norm_act)
            k->bufs[13] = h.act;
    }
}

/* Whether k_few.h's kernels are for so many rows. */
bool lower_few_rows(const struct lower *l)
{
    u32 set = l->g->info.few_rows, most = set == DEVICE_NO_FEW ? 0 : set ? set : FEW_ROWS;
    return !l->c->plain && l->rows <= FEW && l->rows <= most;
}

/* That of them which takes this product. GK_COUNT: none does. */
static enum gpu_kernel few_product(const struct lower *l, const union gpu_args *args)
{
    const struct product_args *a = &args->product_;
    enum gpu_kernel k = l->rows <= 1 ? GK_few_1 : l->rows <= 2 ? GK_few_2 : GK_few_4;
    bool takes = lower_few_rows(l) && l->rows <= FEW_PRODUCT && gpu_shm_bytes(k, args) <= l->g->info.shm_bytes;
    for (u32 m = 0; m < a->n_mats; m++)
        takes &= GPU_FEW_TYPE(a->type[m]) && a->n_out[m] < FEW_OUTS; /* of many outputs a ring reads more at once */
    return takes ? k : GK_COUNT;
}

static u32 panels_of_all(const struct product_args *a)
{
    u32 panels = 0;
    for (u32 m = 0; m < a->n_mats; m++)
        panels += (a->n_out[m] + GPU_PANEL - 1) / GPU_PANEL;
    return panels;
}

/* That of k_dense.h's which takes this product. GK_COUNT: none does. */
static enum gpu_kernel dense_product(const struct lower *l, const union gpu_args *args)
{
    const struct product_args *a = &args->product_;
    bool takes = !PS_METAL && !l->c->plain && a->source == SRC_ACT && l->rows >= DENSE_FROM && l->rows <= DENSE_TO;
    for (u32 m = 0; m < a->n_mats; m++)
        takes &= GPU_FEW_TYPE(a->type[m]);
    u32 panels = panels_of_all(a);
    bool low = l->rows <= 8 || (l->rows <= 16 && panels <= l->g->info.n_groups); /* few panels: more units of fewer rows */
    bool two = l->rows <= 16 || (l->rows <= 32 && panels <= DENSE_PANELS); /* and room for the next launch's groups */
    enum gpu_kernel k = low ? GK_dense_1 : two ? GK_dense_2 : GK_dense_4;
    while (takes && k != GK_dense_1 && !lower_fits(l, k, args))
        k--;
    return takes && lower_fits(l, k, args) ? k : GK_COUNT;
}

/* The kernel for so many rows, or a lower tile where shared memory does not hold the higher one; rows too long for either go as many do. */
static enum gpu_kernel product_kernel(const struct lower *l, const union gpu_args *args)
{
    if (few_product(l, args) != GK_COUNT)
        return few_product(l, args);
    if (dense_product(l, args) != GK_COUNT)
        return dense_product(l, args);
    if (l->rows > MANY && lower_fits(l, GK_product_many, args))
        return GK_product_many;
    if (l->rows > FEW && lower_fits(l, GK_product_2, args)) /* tiles of 32 rows were slower: such a group fills an SM alone */
        return GK_product_2;
    return lower_fits(l, GK_product_1, args) || args->product_.source != SRC_ACT ? GK_product_1 : GK_product_many;
}

/* Whether attention's launches write act rows of their result: single rows only, whose heads are whole blocks. */
static bool attend_acts(const struct lower *l)
{
    const struct hparams *hp = &l->g->dev.plan->hp;
    return !l->c->plain && !l->c->tiles[l->table] && hp->d_head % 32 == 0 && hp->n_heads * hp->d_head % GPU_SEG == 0;
}

static void quantised_product(struct lower *l, const u32 *mats, u32 n)
{
    struct gpu_buf in = lower_buf(l, l->op->in);
    u32 n_in = lower_of_plan(l, l->op->mats[mats[0]].weight)->n_in;
    bool done = attend_acts(l), here = l->op->in == BUF_ATT && !done && prepares(l, SRC_FLOAT, n_in); /* rule 1 by the product itself */
    if (l->op->in == BUF_ATT && !here && !done)
        lower_norm_launch(l, &in, n_in, PLAN_NONE, false, true, &in);
    struct gpu_launch *k = lower_launch(l, GK_product_1);
    struct product_args *a = &k->args.product_;
    fill_product(l, k, a, mats, n);
    if (!l->norm) {
        a->source = here ? SRC_FLOAT : SRC_ACT;
        a->x_stride = in.stride;
        k->bufs[1] = here ? in.x : in.act;
    }
    k->kernel = product_kernel(l, &k->args);
    a->rows = l->rows;
    if (GPU_ALONE(k->kernel))
        k->n_groups = lower_alone(l, k->kernel < GK_dense_1 ? panels_of_all(a) : ~(u64)0);
    lower_ready(l, k);
}

static void float_product(struct lower *l, const u32 *mats, u32 n)
{
    struct gpu_launch *k = lower_launch(l, GK_product_float);
    struct gpu_buf in = lower_buf(l, l->op->in);
    fill_product(l, k, &k->args.float_.p, mats, n);
    k->args.float_.rows = l->rows;
    if (!l->norm) {
        k->args.float_.p.source = SRC_FLOAT;
        k->args.float_.p.x_stride = in.stride;
        k->bufs[1] = in.x;
    }
    lower_ready(l, k);
}

static void router_product(struct lower *l)
{
    const struct plan_mat *m = &l->op->mats[0];
    const struct plan_weight *w = lower_of_plan(l, m->weight);
    struct gpu_launch *k = lower_launch(l, GK_router);
    struct gpu_buf in = lower_buf(l, l->norm ? BUF_X : l->op->in);
    k->args.router_ = (struct router_args){.which = l->table, .source = l->norm ? SRC_NORM : SRC_FLOAT, .n_in = w->n_in, .n_out = w->n_out,
                                           .x_stride = in.stride, .eps = l->g->dev.plan->hp.eps, .write_act = l->norm && l->norm_act,
                                           .rows = l->rows};
    k->n_groups = lower_at_most(l, (u64)w->n_out / GPU_PANEL * lower_router_parts(l, l->op) * ((l->rows + 7) / 8));
    k->bufs[1] = in.x;
    k->bufs[2] = l->norm ? lower_weight(l, l->norm->norm) : (struct gpu_ref){0};
    k->bufs[3] = lower_weight(l, m->weight);
    k->bufs[4] = l->g->route_parts;
    if (k->args.router_.write_act)
        k->bufs[5] = lower_buf(l, l->norm->out).act;
    lower_ready(l, k);
}

static void lower_mat(struct lower *l)
{
    u32 quant[PLAN_MAX_MATS], plain[PLAN_MAX_MATS], n_quant = 0, n_plain = 0;
    for (u32 m = 0; m < l->op->n_mats; m++)
        if (lower_quantised(l, l->op->mats[m].weight))
            quant[n_quant++] = m;
        else
            plain[n_plain++] = m;
    if (n_quant)
        quantised_product(l, quant, n_quant);
    if (n_plain && lower_router_parts(l, l->op))
        router_product(l);
    else if (n_plain)
        float_product(l, plain, n_plain);
    l->norm = NULL;
}

static void lower_embed(struct lower *l)
{
    const struct plan_weight *w = lower_of_plan(l, l->op->mats[0].weight);
    struct gpu_launch *k = lower_launch(l, GK_embed);
    struct gpu_buf x = lower_buf(l, BUF_X);
    k->args.embed_ = (struct embed_args){.which = l->table, .rows_at = l->at.rows[l->table], .type = w->tensor->type, .n_in = w->n_in,
                                         .x_stride = x.stride};
    k->bufs[1] = lower_weight(l, l->op->mats[0].weight);
    k->bufs[2] = x.x;
    struct norm_after norm; /* of more rows than groups a launch of its own is quicker: it has some of a group's at once */
    if (l->rows <= l->g->info.n_groups && lower_norm_after(l, w->n_in, x.stride, &norm)) {
        k->kernel = GK_embed_norm; /* whose arguments begin with embed's */
        k->args.embed_norm_.norm = norm.args;
        k->n_groups = lower_at_most(l, l->rows);
        k->bufs[3] = norm.h;
        k->bufs[4] = norm.act;
        k->bufs[5] = norm.weights;
    }
    lower_ready(l, k);
}

static void lower_swiglu(struct lower *l)
{
    const struct plan_op *before = &l->op[-1], *after = &l->op[1]; /* the product that wrote gate and up, and the one that reads */
    struct gpu_launch *k = lower_launch(l, GK_swiglu);
    struct gpu_buf gate = lower_buf(l, BUF_GATE), up = lower_buf(l, BUF_UP);
    bool act = lower_quantised(l, after->mats[0].weight);
    k->args.swiglu_ = (struct swiglu_args){.which = l->table, .n = lower_of_plan(l, before->mats[0].weight)->n_out, .stride = gate.stride,
                                           .ranks = 1, .write_act = act};
    k->bufs[1] = gate.x;
    k->bufs[2] = up.x;
    if (act)
        k->bufs[3] = gate.act;
    lower_ready(l, k);
}

/* ---- attention ---- */

static struct gpu_ref arena_of(const struct lower *l)
{
    return gpu_at(l->g->arena, (u64)l->op->layer * l->g->layer_bytes);
}

static struct store_args store_args(const struct lower *l, const struct plan_op *op)
{
    const struct hparams *hp = &l->g->dev.plan->hp;
    return (struct store_args){.rows_at = l->at.rows[0],
                               .n_heads = hp->n_heads, .n_kv = hp->n_kv, .d_head = hp->d_head, .d_rope = hp->d_rope,
                               .neox = hp->rope_neox,
                               .q_stride = lower_buf(l, BUF_Q).stride, .kv_stride = lower_buf(l, BUF_K).stride,
                               .has_norm = op->norm != PLAN_NONE, .whole_norm = op->whole_norm,
                               .kv_q8 = l->g->dev.opts.kv == KV_Q8_0,
                               .head_bytes = l->g->head_bytes,
                               .slot_lo = (u32)l->g->slot_bytes, .slot_hi = (u32)(l->g->slot_bytes >> 32),
                               .eps = hp->eps};
}

/* Whether attention's launch stores besides: rows alone in their slots, all of which that launch reads. */
static bool attend_stores(const struct lower *l)
{
    const struct gpu_class *c = l->c;
    const struct plan_op *next = &l->op[l->op[1].kind == OP_KEEP ? 2 : 1];
    bool all = !next->last || (c->logits && !c->keep); /* the last layer's attention has the rows that want logits, or none and no launch */
    return c->apart && !c->plain && !c->tiles[0] && next->kind == OP_ATTEND && all && !l->op->whole_norm &&
           l->g->dev.plan->hp.d_head <= GPU_APART_DIMS;
}

static void lower_store(struct lower *l)
{
    if (attend_stores(l)) {
        l->store = l->op;
        return;
    }
    struct gpu_launch *k = lower_launch(l, GK_store);
    k->args.store_ = store_args(l, l->op);
    k->bufs[1] = lower_buf(l, BUF_Q).x;
    k->bufs[2] = lower_buf(l, BUF_K).x;
    k->bufs[3] = lower_buf(l, BUF_V).x;
    k->bufs[4] = lower_weight(l, l->op->norm);
    k->bufs[5] = lower_weight(l, l->op->norm2);
    k->bufs[6] = l->g->rope;
    k->bufs[7] = arena_of(l);
    lower_ready(l, k);
}

static void attend_launch(struct lower *l, enum gpu_kernel kernel)
{
    const struct hparams *hp = &l->g->dev.plan->hp;
    struct gpu_launch *k = lower_launch(l, kernel);
    struct gpu_buf q = lower_buf(l, BUF_Q), att = lower_buf(l, BUF_ATT);
    u32 t = l->table;
    struct attend_args a = {.which = t, .rows_at = l->at.rows[t], .items_at = l->at.items[t], .tiles_at = l->at.tiles[t],
                            .n_heads = hp->n_heads, .n_kv = hp->n_kv, .d_head = hp->d_head,
                            .q_stride = q.stride, .att_stride = att.stride,
                            .kv_q8 = l->g->dev.opts.kv == KV_Q8_0,
                            .head_bytes = l->g->head_bytes,
                            .slot_lo = (u32)l->g->slot_bytes, .slot_hi = (u32)(l->g->slot_bytes >> 32),
                            .scale = 1.0f / sqrtf((float)hp->d_head),
                            .write_act = att.act.base && attend_acts(l)};
    k->bufs[1] = q.x;
    k->bufs[2] = arena_of(l);
    k->bufs[3] = l->g->parts;
    k->bufs[4] = att.x;
    if (a.write_act)
        k->bufs[5] = att.act;
    k->args.attend_ = a;
    if (kernel == GK_attend)
        k->n_groups = gpu_attend_groups(l->g, l->c, t);
    if (kernel == GK_prompt) /* groups without a tile cost time too */
        k->n_groups = lower_at_most(l, (u64)(l->rows + GPU_TILE_ROWS - 1) / GPU_TILE_ROWS * hp->n_kv *
                                           ((hp->n_heads / hp->n_kv + GPU_PROMPT_HEADS - 1) / GPU_PROMPT_HEADS));
    if (l->store && kernel == GK_attend) {
        k->kernel = GK_attend_store;
        k->args.attend_store_ = (struct attend_store_args){.attend = a, .store = store_args(l, l->store)};
        k->bufs[6] = lower_buf(l, BUF_K).x;
        k->bufs[7] = lower_buf(l, BUF_V).x;
        k->bufs[8] = lower_weight(l, l->store->norm);
        k->bufs[9] = lower_weight(l, l->store->norm2);
        k->bufs[10] = l->g->rope;
        l->store = NULL;
    }
    lower_ready(l, k);
}

static void lower_attend(struct lower *l)
{
    if (l->c->items[l->table])
        attend_launch(l, GK_attend);
    if (l->c->tiles[l->table]) /* beside it */
        attend_launch(l, GK_prompt);
    if (l->c->join[l->table])
        attend_launch(l, GK_join);
}

static void lower_keep(struct lower *l)
{
    if (!l->c->keep)
        return;
    const struct gpu *g = l->g;
    const struct plan *p = g->dev.plan;
    struct gpu_launch *k = lower_launch(l, GK_keep);
    k->args.keep_ = (struct keep_args){.rows_at = l->at.rows[1], .n_x = p->bufs[BUF_X].width, .n_q = p->bufs[BUF_Q].width,
                                       .x_stride = g->bufs[BUF_X].stride, .q_stride = g->bufs[BUF_Q].stride};
    k->bufs[1] = g->bufs[BUF_X].x;
    k->bufs[2] = g->bufs[BUF_Q].x;
    k->bufs[3] = g->kept_x.x;
    k->bufs[4] = g->kept_q.x;
    lower_ready(l, k);
}

/* ---- the whole ---- */

/* After the last operation, whose rows are those with logits: what sampling needs of each. */
static void lower_picks(struct lower *l)
{
    static const enum gpu_kernel KERNELS[] = {GK_pick, GK_pick_join};
    struct gpu_buf logits = lower_buf(l, BUF_LOGITS);
    for (u32 i = l->g->dev.plan->hp.n_vocab <= PICK_ALONE ? 1 : 0; i < COUNT(KERNELS); i++) {
        struct gpu_launch *k = lower_launch(l, KERNELS[i]);
        k->args.pick_ = (struct pick_args){.which = l->table, .n_vocab = l->g->dev.plan->hp.n_vocab, .stride = logits.stride};
        k->bufs[1] = logits.x;
        k->bufs[2] = l->g->picks;
        k->bufs[3] = l->g->pick_keys;
        u64 fours = (l->g->dev.plan->hp.n_vocab / GPU_PICK_BLOCK(l->g->dev.plan->hp.n_vocab) + 4) / 4; /* of blocks: a SIMD group's */
        if (k->kernel == GK_pick) /* four groups an SM, where the grid has two: it does little but wait for memory */
            k->n_groups = (u32)min_u64(2 * k->n_groups, l->rows * fours);
        lower_ready(l, k);
    }
}

struct gpu_buf gpu_buf_of(const struct gpu *g, const struct gpu_class *c, const struct plan_op *op, enum plan_buf b)
{
    if (gpu_table(c, op) && b == BUF_X)
        return g->kept_x;
    if (gpu_table(c, op) && b == BUF_Q)
        return g->kept_q;
    return g->bufs[b];
}

int gpu_lower(struct gpu *g, const struct gpu_class *c, struct err *err)
{
    static void (*const LOWER[OP_KINDS])(struct lower *l) = {
        [OP_EMBED] = lower_embed,           [OP_NORM] = lower_norm,   [OP_MAT] = lower_mat,
        [OP_ROPE_STORE] = lower_store,      [OP_KEEP] = lower_keep,   [OP_ATTEND] = lower_attend, [OP_SWIGLU] = lower_swiglu,
        [OP_ROUTE] = lower_route,           [OP_EXPERTS_IN] = lower_experts_in,
        [OP_EXPERTS_OUT] = lower_experts_out, [OP_COMBINE] = lower_combine,
    };
    const struct plan *p = g->dev.plan;
    struct lower l = {.g = g, .c = c, .at = gpu_offsets(g, c), .err = err};
    g->list.n = 0;
    for (u32 i = 0; i < p->n_ops; i++) {
        l.op = &p->ops[i];
        l.index = i;
        l.table = gpu_table(c, l.op);
        l.rows = l.table ? c->logits : c->rows;
        if (l.op->last && !c->logits)
            continue;
        LOWER[l.op->kind](&l);
    }
    if (c->logits)
        lower_picks(&l);
    gpu_order(g);
    return l.failed ? -1 : 0;
}
