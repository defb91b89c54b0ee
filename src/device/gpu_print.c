/* What a GPU is handed for a step, for people: the plan lowered without a GPU. */
#include "device/gpu_host.h"

#include <stdlib.h>
#include <string.h>

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
    case GK_few_1:
    case GK_few_2:
    case GK_few_4:
    case GK_dense_1:
    case GK_dense_2:
    case GK_dense_4:
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
    case GK_embed_norm:
        return k->args.embed_norm_.norm.write_act ? "norm, rule 1" : "norm";
    case GK_combine_norm:
        return k->args.combine_norm_.norm.write_act ? "norm, rule 1" : "norm";
    case GK_experts_out_twin:
        return k->args.experts_out_.source == SRC_FLOAT ? "rule 1 within" : "";
    case GK_experts_out_1:
        if (!k->args.experts_out_.fused)
            return "";
        return k->args.experts_out_.source == SRC_FLOAT ? "rule 1 within, experts joined" : "experts joined";
    case GK_experts_in_1:
        if (k->args.few_in_.choose)
            return k->args.experts_in_.write_act ? "experts chosen, rule 1 of the result" : "experts chosen";
        return k->args.experts_in_.write_act ? "rule 1 of the result" : "";
    case GK_few_in:
        return k->args.few_in_.choose ? "experts chosen, a pair by itself, rule 1 of the output" : "a pair by itself, rule 1 of the output";
    case GK_few_out:
        return "experts joined";
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
    fprintf(out, "%4u %3s %-11s %c %-16s %7u %s\n", g->list.op[i], layer, pick ? "picks" : plan_kind_name(op->kind),
            k->barrier ? '*' : ' ', gpu_kernel_name(k->kernel), k->shm_bytes, source(k));
}

/* ---- totals ---- */

struct tally {
    u32 launches, barriers;
};

struct tallies { /* of a list: of its layers the least and the most, and what stands outside them */
    struct tally least, most, outside, all;
};

static void tally_layer(struct tallies *t, struct tally layer)
{
    bool first = t->most.launches == 0;
    if (first || layer.launches < t->least.launches)
        t->least.launches = layer.launches;
    if (first || layer.barriers < t->least.barriers)
        t->least.barriers = layer.barriers;
    if (layer.launches > t->most.launches)
        t->most.launches = layer.launches;
    if (layer.barriers > t->most.barriers)
        t->most.barriers = layer.barriers;
}

/* A layer's operations follow each other. */
static void tally(const struct gpu *g, struct tallies *t)
{
    const struct plan_op *ops = g->dev.plan->ops;
    struct tally layer = {0};
    *t = (struct tallies){.all = {0}};
    for (u32 i = 0; i < g->list.n; i++) {
        i32 index = ops[g->list.op[i]].layer;
        struct tally *to = index < 0 ? &t->outside : &layer;
        to->launches++;
        to->barriers += g->list.at[i].barrier;
        t->all.launches++;
        t->all.barriers += g->list.at[i].barrier;
        if (index >= 0 && (i + 1 == g->list.n || ops[g->list.op[i + 1]].layer != index)) {
            tally_layer(t, layer);
            layer = (struct tally){0};
        }
    }
}

static const char *range(char text[24], u32 least, u32 most)
{
    snprintf(text, 24, least == most ? "%u" : "%u-%u", least, most);
    return text;
}

/* ---- lists of no device ---- */

struct chip {
    const char *device, *name;
    u32 n_groups, shm_bytes;
};

static const struct chip CHIPS[] = {
    {"cuda", "an H200", 132, 227 << 10}, {"metal", "an M1 Ultra", 128, 32 << 10}, {"emu", "the emulator", EMU_GROUPS, EMU_SHM}};

static int open_list(struct gpu *g, const struct plan *p, const char *device, u32 rows, struct err *err)
{
    const struct chip *chip = &CHIPS[0];
    for (u32 i = 0; i < COUNT(CHIPS); i++)
        if (!strcmp(CHIPS[i].device, device))
            chip = &CHIPS[i];
    *g = (struct gpu){
        .dev = {.ops = &device_cuda, .plan = p, .opts = {.n_slots = rows, .max_rows = rows, .max_logits = rows}},
        .info = {.n_groups = chip->n_groups, .shm_bytes = PS_METAL ? chip->shm_bytes : CHIPS[0].shm_bytes},
        .arena = {2, 0}};
    g->list.cap = p->n_ops * GPU_OP_LAUNCHES;
    g->list.at = mem_array(g->list.cap, sizeof *g->list.at);
    g->list.op = mem_array(g->list.cap, sizeof *g->list.op);
    if (!g->list.at || !g->list.op)
        return err_set(err, "out of memory");
    if (gpu_place_weights(g, err))
        return -1;
    gpu_lay_out(g, GPU_CHUNK, 1);
    return 0;
}

static void close_list(struct gpu *g)
{
    free(g->weights);
    free(g->list.at);
    free(g->list.op);
}

/* A build has kernels of one shape, whichever GPU is asked for. */
static void print_shape(const char *device, FILE *out)
{
    if (strcmp(device, "emu") && PS_METAL != !strcmp(device, "metal"))
        fprintf(out, "in the shape this build has, %s\n",
                PS_METAL ? "Apple's" : "CUDA's; `make METAL=fake B=build/metal` builds Apple's");
}

static int lower_rows(struct gpu *g, u32 rows, struct err *err)
{
    struct gpu_class c = {.rows = rows, .logits = rows, .items = {1}, .apart = rows <= GPU_APART};
    return gpu_lower(g, &c, err);
}

int gpu_print(const struct plan *p, const char *device, u32 rows, FILE *out, struct err *err)
{
    struct gpu g;
    struct tallies t;
    char launches[24], barriers[24];
    int rc = open_list(&g, p, device, rows, err) || lower_rows(&g, rows, err) ? -1 : 0;
    if (rc == 0) {
        tally(&g, &t);
        fprintf(out, "%4s %3s %-11s %c %-16s %7s\n", "op", "lay", "kind", '*', "kernel", "shared");
        for (u32 i = 0; i < g.list.n; i++)
            print_launch(&g, i, out);
        fprintf(out, "\n* waits for all before it (a barrier); others run beside those since the last\n"
                     "%u launches, %u barriers for a step of %u row%s in the first chunk of keys;\n",
                t.all.launches, t.all.barriers, rows, rows == 1 ? "" : "s");
        fprintf(out, "%s launches, %s barriers in a layer\n", range(launches, t.least.launches, t.most.launches),
                range(barriers, t.least.barriers, t.most.barriers));
        print_shape(device, out);
    }
    close_list(&g);
    return rc;
}

int gpu_print_totals(const struct plan *p, const char *device, FILE *out, struct err *err)
{
    static const u32 ROWS[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
    struct gpu g;
    struct tallies t;
    char launches[24], barriers[24];
    int rc = open_list(&g, p, device, ROWS[COUNT(ROWS) - 1], err);
    fprintf(out, "%-21s %18s %18s %14s\n", "a step of so many", "of a layer:", "outside layers:", "in all:");
    fprintf(out, "%-21s %9s %8s %9s %8s %14s\n", "rows, one a slot", "launches", "barriers", "launches", "barriers", "launches");
    for (u32 i = 0; !rc && i < COUNT(ROWS); i++) {
        rc = lower_rows(&g, ROWS[i], err);
        if (rc)
            break;
        tally(&g, &t);
        fprintf(out, "%-21u %9s %8s %9u %8u %14u\n", ROWS[i], range(launches, t.least.launches, t.most.launches),
                range(barriers, t.least.barriers, t.most.barriers), t.outside.launches, t.outside.barriers, t.all.launches);
    }
    print_shape(device, out);
    close_list(&g);
    return rc;
}
