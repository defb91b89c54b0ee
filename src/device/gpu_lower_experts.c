/* The experts' operations as launches: choosing them, the two products, joining them (gpu_lower.c has the table of what is done where). */
#include "device/gpu_lower.h"

static const struct plan_op *next_of(const struct lower *l, enum plan_kind kind)
{
    const struct plan *p = l->g->dev.plan;
    for (u32 i = l->index + 1; i < p->n_ops; i++)
        if (p->ops[i].kind == kind)
            return &p->ops[i];
    return NULL;
}

static bool per_row(const struct lower *l)
{
    return (l->fused_out && l->rows <= FUSED_OUT) || l->g->dev.opts.experts_per_row;
}

/* Height of the tiles of pairs, and with it which kernels: 8, 16 or GPU_MANY_COLS, which rows of any length have room for. */
static u32 tile_rows(const struct lower *l)
{
    const struct hparams *hp = &l->g->dev.plan->hp;
    union gpu_args in = {.experts_in_ = {.n_in = hp->d_model}}, out = {.experts_out_ = {.source = SRC_ACT, .n_in = hp->d_ff_exp}};
    if (l->fused_out || ((per_row(l) || l->rows <= 64 || l->twins) && lower_fits(l, GK_experts_in_1, &in) && lower_fits(l, GK_experts_out_1, &out)))
        return 8;
    return l->rows <= (PS_METAL ? 256 : 128) && lower_fits(l, GK_experts_in_2, &in) && lower_fits(l, GK_experts_out_2, &out) ? 16 : GPU_MANY_COLS;
}

static enum gpu_kernel by_height(const struct lower *l, enum gpu_kernel low, enum gpu_kernel middle, enum gpu_kernel high)
{
    return tile_rows(l) == 8 ? low : tile_rows(l) == 16 ? middle : high;
}

/* What the route that is being lowered does, and of what. */
static void fill_route(struct lower *l)
{
    const struct hparams *hp = &l->g->dev.plan->hp;
    struct gpu_buf in = lower_buf(l, BUF_ROUTER);
    u32 parts = lower_router_parts(l, &l->op[-1]);
    l->route = (struct route_args){.which = l->table, .n_experts = hp->n_experts, .n_used = hp->n_used,
                                   .stride = parts ? parts * hp->n_experts : in.stride, .n_parts = parts, .parts_stride = hp->n_experts,
                                   .used_norm = hp->used_norm, .used_scale = hp->used_scale,
                                   .ids_at = l->g->ids_at, .w_at = l->g->w_at, .pairs_at = l->g->pairs_at, .tiles_at = l->g->tiles_at,
                                   .tile_rows = tile_rows(l), .per_row = per_row(l), .hits = 1, .hits_at = (u32)l->op->layer};
    l->route_from = parts ? l->g->route_parts : in.x;
}

static void route_launch(struct lower *l, enum gpu_kernel kernel)
{
    struct gpu_launch *k = lower_launch(l, kernel);
    k->args.route_ = l->route;
    k->bufs[1] = l->route_from;
    k->bufs[2] = l->g->lists;
    k->bufs[3] = l->g->hits;
    k->n_groups = kernel == GK_route ? lower_at_most(l, l->rows) : 1; /* a row on each SM, if there are so many, since one SM's share of the cache is little */
    lower_ready(l, k);
}

/* Whether few_in and few_out take the experts. */
static bool few_experts(const struct lower *l)
{
    const struct hparams *hp = &l->g->dev.plan->hp;
    const struct plan_op *in = next_of(l, OP_EXPERTS_IN), *out = next_of(l, OP_EXPERTS_OUT);
    u32 gate = lower_of_plan(l, in->mats[0].weight)->tensor->type, up = lower_of_plan(l, in->mats[1].weight)->tensor->type;
    u32 down = lower_of_plan(l, out->mats[0].weight)->tensor->type;
    union gpu_args a = {.few_in_ = {.in = {.n_in = hp->d_model, .few = l->rows}}},
                   b = {.experts_out_ = {.n_in = hp->d_ff_exp, .n_used = hp->n_used, .fused = l->rows}};
    return lower_few_rows(l) && !next_of(l, OP_COMBINE)->shared && gate == up && GPU_FEW_TYPE(gate) && GPU_FEW_TYPE(down) &&
           hp->d_ff_exp % 32 == 0 && gpu_shm_bytes(GK_few_in, &a) <= l->g->info.shm_bytes &&
           gpu_shm_bytes(GK_few_out, &b) <= l->g->info.shm_bytes;
}

/* Whether the few_in that takes them chooses them, and few_out does too. */
static bool few_chooses(const struct lower *l)
{
    const struct hparams *hp = &l->g->dev.plan->hp;
    union gpu_args a = {.few_in_ = {.in = {.n_in = hp->d_model, .few = l->rows}, .choose = 1}},
                   b = {.few_out_ = {.out = {.n_in = hp->d_ff_exp, .n_used = hp->n_used, .fused = l->rows}, .choose = 1}};
    return l->few && GPU_FEW_CHOOSES(hp->n_experts, hp->n_used) && gpu_shm_bytes(GK_few_in, &a) <= l->g->info.shm_bytes &&
           gpu_shm_bytes(GK_few_out, &b) <= l->g->info.shm_bytes;
}

/* Whether experts_in_1 chooses them: Apple's shape. */
static bool here_chooses(const struct lower *l)
{
    const struct hparams *hp = &l->g->dev.plan->hp;
    const struct plan_op *in = &l->op[1];
    union gpu_args a = {.few_in_ = {.in = {.n_in = hp->d_model}, .choose = 1}};
    return PS_METAL && !l->few && l->rows <= FEW && !l->c->plain && in->kind == OP_EXPERTS_IN &&
           GPU_FEW_CHOOSES(hp->n_experts, hp->n_used) && lower_quantised(l, in->mats[0].weight) &&
           lower_quantised(l, in->mats[1].weight) && tile_rows(l) == 8 && lower_fits(l, GK_experts_in_1, &a);
}

/* Whether experts_out joins the experts: few rows, and shared memory for all their pairs. */
static bool fuses(const struct lower *l)
{
    const struct hparams *hp = &l->g->dev.plan->hp;
    const struct plan_op *in = next_of(l, OP_EXPERTS_IN), *out = next_of(l, OP_EXPERTS_OUT), *join = next_of(l, OP_COMBINE);
    union gpu_args a = {.experts_out_ = {.source = l->fused_act ? SRC_ACT : SRC_FLOAT, .n_in = hp->d_ff_exp, .n_used = hp->n_used, .fused = l->rows}};
    return l->rows <= FUSED_OUT && !l->c->plain && !join->shared && lower_quantised(l, in->mats[0].weight) &&
           lower_quantised(l, in->mats[1].weight) && lower_quantised(l, out->mats[0].weight) &&
           lower_fits(l, GK_experts_out_1, &a);
}

/* Whether the experts_*_twin kernels could take an operation's experts: gate and up of one type, shared memory for their columns. */
static bool may_twin(const struct lower *l, const struct plan_op *op)
{
    const struct plan_weight *w = lower_of_plan(l, op->mats[0].weight);
    u32 type = w->tensor->type;
    for (u32 m = 0; m < op->n_mats; m++)
        if (!lower_quantised(l, op->mats[m].weight) || lower_of_plan(l, op->mats[m].weight)->tensor->type != type)
            return false;
    return l->rows >= TWIN_FROM && l->rows <= TWIN_TO && !l->c->plain && !per_row(l) && GPU_TWIN_TYPE(type) &&
           !PS_METAL && GPU_SHM_TWIN(type, w->n_in) <= l->g->info.shm_bytes; /* PS_METAL: act rows in place need none */
}

/* Whether they do: where others take tiles of 8 pairs too; from 65 rows on, where they take both operations. */
static bool twin(const struct lower *l, const struct plan_op *op) { return may_twin(l, op) && tile_rows(l) == 8; }

void lower_route(struct lower *l)
{
    const struct plan_weight *gate = lower_of_plan(l, next_of(l, OP_EXPERTS_IN)->mats[0].weight);
    l->fused_act = PS_METAL && GPU_EXPERTS_IN_ACT(gate->n_in, gate->n_out); /* there they need no shared memory */
    l->few = l->fused_out = false;
    l->twins = may_twin(l, next_of(l, OP_EXPERTS_IN)) && may_twin(l, next_of(l, OP_EXPERTS_OUT));
    bool twins = l->twins && tile_rows(l) == 8;
    l->few = !twins && few_experts(l);
    l->fused_out = l->few || (!twins && fuses(l));
    l->choose = few_chooses(l) || here_chooses(l);
    fill_route(l);
    if (l->choose)
        return;
    if (l->rows <= ONE_GROUP_ROUTES) {
        route_launch(l, GK_route_group);
        return;
    }
    route_launch(l, GK_route);
    route_launch(l, GK_group);
}

/* Pairs times one matrix of their experts, m, to `to`. per: pairs that share a row of `from`. */
static void float_pairs(struct lower *l, u32 m, const struct gpu_buf *from, const struct gpu_buf *to, u32 per)
{
    const struct plan_mat *mat = &l->op->mats[m];
    const struct plan_weight *w = lower_of_plan(l, mat->weight);
    struct gpu_launch *k = lower_launch(l, GK_product_float);
    k->args.float_ = (struct float_args){.p = {.which = l->table, .source = SRC_FLOAT, .n_in = w->n_in, .x_stride = from->stride, .n_mats = 1,
                                               .type = {w->tensor->type}, .n_out = {w->n_out}, .y_stride = {to->stride}},
                                         .per_pair = per > 1 ? 1 : 2, .n_used = l->g->dev.plan->hp.n_used, .ids_at = l->g->ids_at,
                                         .rows = l->rows};
    k->bufs[1] = from->x;
    k->bufs[3] = lower_weight(l, mat->weight);
    k->bufs[9] = to->x;
    k->bufs[14] = l->g->lists;
    lower_ready(l, k);
}

/* Rows of a class where it has one number of them, else 0. */
static u32 exact_rows(const struct lower *l)
{
    return l->rows <= 2 ? l->rows : 0;
}

static void quantised_pairs(struct lower *l, u32 m, const struct gpu_buf *from, const struct gpu_buf *to, u32 per)
{
    const struct plan_mat *mat = &l->op->mats[m];
    const struct plan_weight *w = lower_of_plan(l, mat->weight);
    struct gpu_buf x = lower_buf(l, BUF_X);
    bool two = l->op->kind == OP_EXPERTS_OUT && twin(l, l->op);
    struct gpu_launch *k = lower_launch(l, l->few ? GK_few_out : two ? GK_experts_out_twin : by_height(l, GK_experts_out_1, GK_experts_out_2, GK_experts_out_many));
    bool floats = !l->few && ((l->fused_out && !l->fused_act) || two);
    k->args.experts_out_ = (struct experts_out_args){.which = l->table, .source = floats ? SRC_FLOAT : SRC_ACT,
                                                     .n_in = w->n_in, .n_out = w->n_out, .x_stride = from->stride, .y_stride = to->stride,
                                                     .res_stride = x.stride, .type = w->tensor->type, .n_used = l->g->dev.plan->hp.n_used,
                                                     .ids_at = l->g->ids_at, .w_at = l->g->w_at, .pairs_at = l->g->pairs_at,
                                                     .tiles_at = l->g->tiles_at, .per = per, .fused = l->fused_out ? l->rows : 0,
                                                     .rows = exact_rows(l)};
    k->bufs[1] = from->x;
    k->bufs[2] = from->act;
    k->bufs[3] = lower_weight(l, mat->weight);
    k->bufs[4] = to->x;
    k->bufs[5] = l->g->lists;
    k->bufs[6] = x.x;
    if (k->kernel == GK_few_out) {
        k->n_groups = lower_at_most(l, (u64)l->rows * ((w->n_out + GPU_PANEL - 1) / GPU_PANEL));
        if (l->choose) { /* few_out's arguments begin with experts_out's */
            k->args.few_out_.choose = 1;
            k->args.few_out_.route = l->route;
            k->bufs[7] = l->route_from;
        }
    }
    lower_ready(l, k);
}

static void pairs_product(struct lower *l, u32 m, const struct gpu_buf *from, const struct gpu_buf *to, u32 per)
{
    (lower_quantised(l, l->op->mats[m].weight) ? quantised_pairs : float_pairs)(l, m, from, to, per);
}

/* gate and up not both of quantised types: one product after the other, then silu(gate) * up. */
static void apart_experts_in(struct lower *l, bool act_wanted)
{
    struct gpu_buf h = lower_buf(l, BUF_H), act = lower_buf(l, BUF_EXP_ACT);
    pairs_product(l, 0, &h, &act, l->g->dev.plan->hp.n_used);
    pairs_product(l, 1, &h, &l->g->exp_up, l->g->dev.plan->hp.n_used);
    struct gpu_launch *k = lower_launch(l, GK_swiglu);
    k->args.swiglu_ = (struct swiglu_args){.which = l->table, .n = lower_of_plan(l, l->op->mats[0].weight)->n_out, .stride = act.stride,
                                           .ranks = act.ranks, .write_act = act_wanted};
    k->bufs[1] = act.x;
    k->bufs[2] = l->g->exp_up.x;
    if (act_wanted)
        k->bufs[3] = act.act;
    lower_ready(l, k);
}

void lower_experts_in(struct lower *l)
{
    const struct plan_mat *gate = &l->op->mats[0], *up = &l->op->mats[1];
    const struct plan_op *out = next_of(l, OP_EXPERTS_OUT);
    bool act_wanted = lower_quantised(l, out->mats[0].weight) && (!l->fused_out || l->few || l->fused_act) && !twin(l, out);
    if (!lower_quantised(l, gate->weight) || !lower_quantised(l, up->weight)) {
        apart_experts_in(l, act_wanted);
        return;
    }
    const struct plan_weight *w = lower_of_plan(l, gate->weight);
    struct gpu_launch *k = lower_launch(l, l->few ? GK_few_in : twin(l, l->op) ? GK_experts_in_twin : by_height(l, GK_experts_in_1, GK_experts_in_2, GK_experts_in_many));
    struct gpu_buf h = lower_buf(l, BUF_H), act = lower_buf(l, BUF_EXP_ACT);
    bool can = k->kernel == GK_experts_in_1 || k->kernel == GK_experts_in_2;
    bool here = l->few || (act_wanted && !l->c->plain && can && GPU_EXPERTS_IN_ACT(w->n_in, w->n_out)); /* rule 1 by itself */
    k->args.experts_in_ = (struct experts_in_args){.which = l->table, .n_in = w->n_in, .n_out = w->n_out, .y_stride = act.stride,
                                                   .type_gate = w->tensor->type, .type_up = lower_of_plan(l, up->weight)->tensor->type,
                                                   .n_used = l->g->dev.plan->hp.n_used, .pairs_at = l->g->pairs_at,
                                                   .tiles_at = l->g->tiles_at, .write_act = here, .few = l->rows,
                                                   .rows = exact_rows(l), .ids_at = l->g->ids_at};
    k->bufs[1] = h.act;
    k->bufs[2] = lower_weight(l, gate->weight);
    k->bufs[3] = lower_weight(l, up->weight);
    k->bufs[4] = act.x;
    k->bufs[5] = l->g->lists;
    if (here)
        k->bufs[6] = act.act;
    if (l->few) /* by blocks of 32 outputs of a pair; one more group puts down what was chosen */
        k->n_groups = lower_at_most(l, (u64)l->rows * l->g->dev.plan->hp.n_used * ((w->n_out + 31) / 32) + l->choose);
    if (k->kernel == GK_experts_in_many)
        k->n_groups = lower_alone(l, ~(u64)0);
    if (l->choose) { /* few_in's arguments begin with experts_in's; experts_in_1's are few_in's */
        k->args.few_in_.choose = 1;
        k->args.few_in_.route = l->route;
        k->bufs[7] = l->route_from;
        k->bufs[8] = l->g->hits;
    }
    lower_ready(l, k);
    if (act_wanted && !here)
        lower_norm_launch(l, &act, w->n_out, PLAN_NONE, false, true, &act);
}

void lower_experts_out(struct lower *l)
{
    struct gpu_buf act = lower_buf(l, BUF_EXP_ACT), out = lower_buf(l, BUF_EXP_OUT);
    pairs_product(l, 0, &act, &out, 1);
}

/* Where a norm follows that needs a launch, one does both: its arguments besides. */
static void norm_besides(struct lower *l, struct gpu_launch *k)
{
    struct norm_after norm;
    u32 n = k->args.combine_.n;
    if (!lower_norm_after(l, n, k->args.combine_.x_stride, &norm))
        return;
    k->kernel = GK_combine_norm; /* whose arguments begin with combine's */
    k->args.combine_norm_.norm = norm.args;
    k->args.combine_norm_.norm.more = lower_norm_more(l, l->rows, n);
    k->n_groups = lower_at_most(l, l->rows);
    k->bufs[6] = norm.weights;
    k->bufs[7] = norm.h;
    k->bufs[8] = norm.act;
}

void lower_combine(struct lower *l)
{
    if (l->fused_out)
        return;
    struct gpu_launch *k = lower_launch(l, GK_combine);
    struct gpu_buf y = lower_buf(l, BUF_EXP_OUT), shared = lower_buf(l, BUF_SHARED), shared_w = lower_buf(l, BUF_SHARED_W), x = lower_buf(l, BUF_X);
    k->args.combine_ = (struct combine_args){.which = l->table, .n = l->g->dev.plan->hp.d_model, .n_used = l->g->dev.plan->hp.n_used,
                                             .w_at = l->g->w_at, .y_stride = y.stride, .x_stride = x.stride, .shared = l->op->shared,
                                             .shared_stride = shared.stride, .shared_w_stride = shared_w.stride};
    k->bufs[1] = y.x;
    k->bufs[2] = l->g->lists;
    if (l->op->shared) {
        k->bufs[3] = shared.x;
        k->bufs[4] = shared_w.x;
    }
    k->bufs[5] = x.x;
    norm_besides(l, k);
    lower_ready(l, k);
}
