/* plainsong inspect: what is in a model file, checked as every other command checks it before it
 * computes. */
#include "cli/cli.h"
#include "cli/opts.h"
#include "device/dev_gpu.h"
#include "model/token.h"
#include "plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct inspect {
    bool tensors, plan;
    u32 launches;
    const char *device;
};

static const struct opt_usage usage = {
    "inspect",
    "plainsong inspect MODEL [--tensors] [--plan] [--launches ROWS]\n"
    "                         [--device cuda|metal|emu]",
    "Prints what is in a GGUF file: name, shape, types, tokenizer. A file that this program would "
    "refuse to run is refused here, "
    "with the same line.",
    1,
};

#define AT(field) offsetof(struct inspect, field)

static const struct opt table[] = {
    {0, "tensors", OPT_FLAG, AT(tensors), 0, 0, NULL, "and every tensor: type, bytes, shape, name"},
    {0, "plan", OPT_FLAG, AT(plan), 0, 0, NULL,
     "and the operations of a step with the bytes each reads"},
    {0, "launches", OPT_U32, AT(launches), 1, 65535, "ROWS",
     "and the kernels that a GPU runs for a step of so many rows, * where one waits for those before"},
    {0, "device", OPT_CHOICE, AT(device), 0, 0, "cuda|metal|emu",
     "the GPU --launches is for; with --plan its launches and barriers a layer"},
};

struct opened {
    struct gguf gguf;
    struct weights weights;
    struct token_model *tokens;
};

/* ---- text of the file, escaped ---- */

/* Up to a page's width of it. */
static const char *quoted(char buf[64], struct gguf_str s)
{
    return err_quote(buf, 64, s.at, s.len);
}

static const char *metadata(const struct gguf *g, const char *key, char buf[64])
{
    struct gguf_str s;
    struct err ignored;
    return gguf_string(g, key, &s, &ignored) == 1 ? quoted(buf, s) : "-";
}

static void print_token(const char *label, const struct token_model *t, i32 id)
{
    char buf[64];
    size_t len;
    if (id == TOKEN_NONE)
        return;
    const char *bytes = token_bytes(t, (u32)id, true, &len);
    printf("%-12s %d \"%s\"\n", label, id, err_quote(buf, sizeof buf, bytes, len));
}

/* ---- parts ---- */

static void print_shape(const struct hparams *hp)
{
    printf("layers       %u of width %u\n", hp->n_layers, hp->d_model);
    printf("attention    %u heads, %u for keys and values, of size %u\n", hp->n_heads, hp->n_kv,
           hp->d_head);
    if (hp->n_experts)
        printf("experts      %u of width %u, %u for a token%s\n", hp->n_experts, hp->d_ff_exp,
               hp->n_used, hp->used_norm ? ", weights normalised" : "");
    if (hp->d_ff_shared)
        printf("shared       expert of width %u\n", hp->d_ff_shared);
    if (hp->d_ff)
        printf("dense        width %u\n", hp->d_ff);
    printf("positions    %u%s; rope base %g%s on %u of %u\n", hp->n_ctx,
           hp->window_cut ? " (the sliding window)" : "", (double)hp->rope_base,
           hp->rope_neox ? "" : ", pairs of neighbours", hp->d_rope, hp->d_head);
}

static void print_tokenizer(const struct gguf *g, const struct token_model *t)
{
    char model[64], pre[64];
    const struct token_special *s = token_special(t);
    struct gguf_str text;
    struct err ignored;
    printf("tokenizer    %s, cut as %s, %u tokens%s\n", metadata(g, "tokenizer.ggml.model", model),
           metadata(g, "tokenizer.ggml.pre", pre), token_count(t),
           s->add_bos ? ", begins with bos" : "");
    print_token("  bos", t, s->bos);
    print_token("  eos", t, s->eos);
    print_token("  eot", t, s->eot);
    if (gguf_string(g, "tokenizer.chat_template", &text, &ignored) == 1)
        printf("template     %llu bytes\n", (unsigned long long)text.len);
    else
        puts("template     none: run --raw only");
}

static void print_types(const struct gguf *g)
{
    u64 count[DT_LIMIT] = {0}, bytes[DT_LIMIT] = {0};
    for (u64 i = 0; i < g->n_tensors; i++) {
        count[g->tensors[i].type]++;
        bytes[g->tensors[i].type] += g->tensors[i].bytes;
    }
    printf("\n%-8s %8s %16s %7s\n", "type", "tensors", "bytes", "share");
    for (u32 t = 0; t < DT_LIMIT; t++)
        if (count[t])
            printf("%-8s %8llu %16llu %5.1f %%\n", dtype_info(t)->name,
                   (unsigned long long)count[t], (unsigned long long)bytes[t],
                   100.0 * (double)bytes[t] / (double)g->data_bytes);
    printf("%-8s %8llu %16llu\n", "all", (unsigned long long)g->n_tensors,
           (unsigned long long)g->data_bytes);
}

static void print_tensors(const struct gguf *g)
{
    printf("\n%-6s %14s  %-24s %s\n", "type", "bytes", "shape, outermost first", "name");
    for (u64 i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        char shape[96] = "", name[64];
        for (u32 d = t->n_dims; d-- > 0;) {
            size_t n = strlen(shape);
            snprintf(shape + n, sizeof shape - n, "%llu%s", (unsigned long long)t->ne[d],
                     d ? " x " : "");
        }
        printf("%-6s %14llu  %-24s %s\n", dtype_info(t->type)->name, (unsigned long long)t->bytes,
               shape, quoted(name, t->name));
    }
}

static void print_file(const struct opened *o)
{
    const struct gguf *g = &o->gguf;
    const struct hparams *hp = &o->weights.hp;
    u64 bytes = 0;
    for (u32 i = 0; i < g->n_files; i++)
        bytes += g->files[i].bytes;
    printf("file         GGUF version %u, %llu bytes", g->version, (unsigned long long)bytes);
    if (g->n_files > 1)
        printf(" in %u files", g->n_files);
    printf("\nname         %s\n", hp->name[0] ? hp->name : "-");
    printf("architecture %s, %.1f M parameters\n", hparams_arch_name(hp->arch),
           1e-6 * (double)hp->n_params);
    print_shape(hp);
    print_tokenizer(g, o->tokens);
    print_types(g);
}

static int inspect(const struct inspect *o, const char *path, struct err *err)
{
    struct opened f = {0};
    struct plan plan;
    int rc = gguf_open(&f.gguf, path, err);
    if (rc == 0)
        rc = weights_open(&f.weights, &f.gguf, err);
    if (rc == 0)
        rc = token_open(&f.tokens, &f.gguf, f.weights.hp.n_vocab, err);
    if (rc == 0)
        rc = plan_build(&plan, &f.weights, err);
    if (rc == 0) {
        print_file(&f);
        if (o->tensors)
            print_tensors(&f.gguf);
        if (o->plan) {
            putchar('\n');
            plan_print(&plan, stdout);
        }
        if (o->plan && o->device) {
            putchar('\n');
            rc = gpu_print_totals(&plan, o->device, stdout, err);
        }
        if (rc == 0 && o->launches) {
            putchar('\n');
            rc = gpu_print(&plan, o->device ? o->device : "cuda", o->launches, stdout, err);
        }
        plan_close(&plan);
    }
    token_close(f.tokens);
    weights_close(&f.weights);
    gguf_close(&f.gguf);
    return rc;
}

int cli_inspect(int argc, char **argv)
{
    struct inspect o = {0};
    struct err err;
    const char *path;
    u32 n_args;
    const struct opt_group groups[] = {{"Options", table, COUNT(table), &o}};
    int rc = opts_parse(&usage, argc, argv, groups, COUNT(groups), &path, &n_args);
    if (rc)
        return rc == OPTS_HELPED ? EXIT_DONE : EXIT_USAGE;
    if (n_args == 0)
        return cli_fail(usage.command, EXIT_USAGE, "no file: expected MODEL, a GGUF file");
    if (o.device && !o.plan && !o.launches)
        return cli_fail(usage.command, EXIT_USAGE, "--device %s: expected --plan or --launches with it", o.device);
    return inspect(&o, path, &err) ? cli_fail(usage.command, EXIT_WORLD, "%s", err.text)
                                   : EXIT_DONE;
}
