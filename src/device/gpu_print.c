/* What a GPU is handed for a step, for people: the plan lowered without a GPU. */
#include "device/gpu_host.h"

#include <stdlib.h>

const char *gpu_kernel_name(enum gpu_kernel kernel)
{
    static const char *const NAMES[] = {
#define X(name, args) #name,
        GPU_KERNELS(X)
#undef X
    };
    return NAMES[kernel];
}

static const char *source(const struct gpu_launch *k)
{
    static const char *const NAMES[] = {[SRC_ACT] = "", [SRC_NORM] = "norm + rule 1 within", [SRC_FLOAT] = "rule 1 within"};
    switch (k->kernel) {
    case GK_product_1:
    case GK_product_2:
    case GK_product_many:
        return NAMES[k->args.product_.source];
    case GK_product_float:
        return k->args.float_.p.source == SRC_NORM ? "norm within" : "";
    case GK_router:
        return k->args.router_.source == SRC_NORM ? "norm within" : "";
    case GK_norm:
        return k->args.norm_.has_norm ? k->args.norm_.write_act ? "norm, rule 1" : "norm" : "rule 1";
    case GK_attend:
    case GK_attend_store:
    case GK_join:
        return k->args.attend_.write_act ? "rule 1" : "";
    case GK_combine_norm:
        return k->args.combine_norm_.norm.write_act ? "norm, rule 1" : "norm";
    case GK_experts_out_twin:
        return k->args.experts_out_.source == SRC_FLOAT ? "rule 1 within" : "";
    case GK_experts_out_1:
        return k->args.experts_out_.fused ? "rule 1 within, experts joined" : "";
    default:
        return "";
    }
}

static void print_launch(const struct gpu *g, u32 i, FILE *out)
{
    const struct gpu_launch *k = &g->list.at[i];
    const struct plan_op *op = &g->dev.plan->ops[g->list.op[i]];
    bool pick = k->kernel == GK_pick || k->kernel == GK_pick_join;
    char layer[12] = "-";
    if (op->layer >= 0)
        snprintf(layer, sizeof layer, "%d", op->layer);
    fprintf(out, "%4u %3s %-11s %-16s %7u %s\n", g->list.op[i], layer, pick ? "picks" : plan_kind_name(op->kind), gpu_kernel_name(k->kernel),
            k->shm_bytes, source(k));
}

int gpu_print(const struct plan *p, u32 rows, FILE *out, struct err *err)
{
    struct gpu g = {.dev = {.ops = &device_cuda, .plan = p, .opts = {.n_slots = rows, .max_rows = rows, .max_logits = rows}},
                    .info = {.n_groups = 132, .shm_bytes = 227 << 10}}; /* an H200 */
    struct gpu_class c = {.rows = rows, .logits = rows, .items = {1}, .apart = rows <= GPU_APART};
    g.list.cap = p->n_ops * GPU_OP_LAUNCHES;
    g.list.at = mem_array(g.list.cap, sizeof *g.list.at);
    g.list.op = mem_array(g.list.cap, sizeof *g.list.op);
    int rc = g.list.at && g.list.op ? gpu_place_weights(&g, err) : err_set(err, "out of memory");
    if (rc == 0) {
        gpu_lay_out(&g, GPU_CHUNK, 1);
        rc = gpu_lower(&g, &c, err);
    }
    if (rc == 0) {
        fprintf(out, "%4s %3s %-11s %-16s %7s\n", "op", "lay", "kind", "kernel", "shared");
        for (u32 i = 0; i < g.list.n; i++)
            print_launch(&g, i, out);
        fprintf(out, "\n%u launches for a step of %u rows in their first chunk of keys\n", g.list.n, rows);
    }
    free(g.weights);
    free(g.list.at);
    free(g.list.op);
    return rc;
}
