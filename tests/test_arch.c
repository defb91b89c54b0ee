/* Tiny random models of every architecture against transformers in float32
 * (tests/oracle/README.md): logits at all positions and greedy ids, through GGUF files that
 * tests/arch/make_gguf.py writes with the field's own names and layouts. Weights and activations
 * are floats here, so what is left against the reference is the order of sums and keys and values
 * in f16. Between our own runs (instruction sets, threads, chunks of the prompt, streams in
 * company, grouped experts or not) nothing is left: memcmp. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "device/device.h"
#include "kernel/kernel.h"
#include "model/quantize.h"

enum {
    N_VOCAB = 256,
    N_SEQ = 3,
    N_GREEDY = 24,
    MAX_TOKENS = 40,
    N_ROWS = 5 + 17 + MAX_TOKENS,
    N_CTX = MAX_TOKENS + N_GREEDY
};

#define COSINE 0.999999
#define MARGIN 0.001 /* a lead of the reference's that another order of sums may turn around */

static const char *const MODELS[] = {"qwen2",         "qwen3",   "qwen3_tied", "qwen3_moe", "llama",
                                     "llama3_scaled", "mixtral", "olmoe",      "qwen2_moe"};

static char folder[] = "/tmp/plainsong-arch-XXXXXX";

struct seq { /* one sequence of the oracle */
    u32 tokens[MAX_TOKENS], n;
    u32 greedy[N_GREEDY];
    double margin[N_GREEDY];
};

struct model {
    const char *name, *type;
    char path[128];
    struct gguf g;
    struct weights w;
    struct plan p;
    struct seq seqs[N_SEQ];
    float *want; /* (N_ROWS, N_VOCAB): all sequences one after another */
};

struct run { /* how the same numbers are computed */
    const char *device; /* NULL: the CPU */
    const char *isa;
    u32 n_threads, chunk;   /* rows of a sequence in a step; 0: all */
    bool per_row, together; /* together: each step takes rows of every sequence */
};

/* ---- the model and its oracle ---- */

static void read_oracle(struct model *m)
{
    char path[128];
    json_error_t e;
    snprintf(path, sizeof path, "tests/oracle/arch/%s/oracle.json", m->name);
    json_t *root = json_load_file(path, 0, &e), *list = json_object_get(root, "sequences");
    if (!root)
        fail_msg("%s: %s", path, e.text);
    assert_int_equal(json_array_size(list), N_SEQ);
    json_int_t at = 0;
    for (u32 i = 0; i < N_SEQ; i++) {
        struct seq *s = &m->seqs[i];
        json_t *o = json_array_get(list, i), *tokens = json_object_get(o, "tokens");
        s->n = (u32)json_array_size(tokens);
        assert_true(s->n <= MAX_TOKENS);
        assert_int_equal(json_integer_value(json_object_get(o, "logits_offset")), at);
        at += (json_int_t)(s->n * N_VOCAB * sizeof(float));
        for (u32 k = 0; k < s->n; k++)
            s->tokens[k] = (u32)json_integer_value(json_array_get(tokens, k));
        assert_int_equal(json_array_size(json_object_get(o, "greedy")), N_GREEDY);
        for (u32 k = 0; k < N_GREEDY; k++) {
            s->greedy[k] = (u32)json_integer_value(json_array_get(json_object_get(o, "greedy"), k));
            s->margin[k] =
                json_number_value(json_array_get(json_object_get(o, "greedy_margin"), k));
        }
    }
    assert_int_equal(at, N_ROWS * N_VOCAB * sizeof(float));
    json_decref(root);
}

static float *rows_alloc(void)
{
    float *x = calloc(N_ROWS * N_VOCAB, sizeof *x);
    assert_non_null(x);
    return x;
}

static void read_logits(struct model *m)
{
    char path[128];
    snprintf(path, sizeof path, "tests/oracle/arch/%s/logits.f32", m->name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    m->want = rows_alloc();
    assert_int_equal(fread(m->want, sizeof *m->want, N_ROWS * N_VOCAB, f), N_ROWS * N_VOCAB);
    fclose(f);
}

static void model_open(struct model *m, const char *name, const char *type)
{
    char command[512], floats[128];
    struct err err;
    bool quant = type[0] == 'q';
    *m = (struct model){.name = name, .type = type};
    snprintf(m->path, sizeof m->path, "%s/%s-%s.gguf", folder, name, type);
    snprintf(floats, sizeof floats, "%s/%s.gguf", folder, name);
    /* A few weights below the normal halves round in an f16 file; make_gguf.py tells, which is no
     * news here. */
    snprintf(command, sizeof command,
             "python3 tests/arch/make_gguf.py tests/oracle/arch/%s %s --type %s 2>%s/stderr", name,
             quant ? floats : m->path, quant ? "f32" : type, folder);
    if (system(command))
        fail_msg("failed: %s", command);
    struct quantize_job job = {.in = floats, .out = m->path, .type = (enum dtype)dtype_parse(type)};
    struct quantize_result done;
    if (quant && quantize_file(&job, &done, &err))
        fail_msg("%s", err.text);
    unlink(floats);
    if (gguf_open(&m->g, m->path, &err) || weights_open(&m->w, &m->g, &err) ||
        plan_build(&m->p, &m->w, &err))
        fail_msg("%s", err.text);
    read_oracle(m);
    read_logits(m);
}

static void model_close(struct model *m)
{
    free(m->want);
    plan_close(&m->p);
    weights_close(&m->w);
    gguf_close(&m->g);
    unlink(m->path);
}

/* ---- runs ---- */

static struct device *start(const struct model *m, const struct run *r)
{
    struct err err;
    struct device *d;
    struct device_opts o = {.name = r->device ? r->device : "cpu",
                            .isa = r->isa,
                            .n_threads = r->n_threads,
                            .n_slots = N_SEQ,
                            .n_ctx = N_CTX,
                            .max_rows = N_ROWS,
                            .max_logits = N_ROWS,
                            .experts_per_row = r->per_row};
    if (device_open(&d, &m->p, &o, &err))
        fail_msg("%s", err.text);
    return d;
}

static void step(struct device *d, const struct row *rows, u32 n)
{
    struct err err;
    if (n && device_step(d, rows, n, &err))
        fail_msg("%s", err.text);
}

/* Logits at every position of every sequence: (N_ROWS, N_VOCAB). Sequence i lives in slot i. */
static void run_prompts(const struct model *m, struct device *d, const struct run *r, float *logits)
{
    struct row rows[N_ROWS];
    u32 n = 0, places[N_ROWS], chunk = r->chunk ? r->chunk : MAX_TOKENS;
    for (u32 first = 0; first < (r->together ? 1 : N_SEQ); first++)
        for (u32 from = 0; from < MAX_TOKENS; from += chunk) {
            u32 base = 0;
            for (u32 i = 0; i < N_SEQ; base += m->seqs[i++].n)
                for (u32 k = from;
                     (r->together || i == first) && k < min_u32(from + chunk, m->seqs[i].n); k++) {
                    rows[n] = (struct row){
                        .slot = i, .pos = k, .token = m->seqs[i].tokens[k], .wants_logits = true};
                    places[n++] = base + k;
                }
            step(d, rows, n);
            for (u32 i = 0; i < n; i++)
                memcpy(logits + places[i] * N_VOCAB, device_logits(d, i), N_VOCAB * sizeof *logits);
            n = 0;
        }
}

static u32 greatest(const float *x)
{
    u32 best = 0;
    for (u32 i = 1; i < N_VOCAB; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* N_GREEDY ids of each sequence after run_prompts, all streams in each step. A stream's reference
 * ends where its lead is within MARGIN and ours differs. Returns the ids compared. */
static u32 run_greedy(const struct model *m, struct device *d, const float *logits)
{
    struct row rows[N_SEQ];
    u32 base = 0, compared = 0;
    bool parted[N_SEQ] = {false};
    for (u32 i = 0; i < N_SEQ; i++) {
        base += m->seqs[i].n;
        rows[i] = (struct row){.slot = i, .token = greatest(logits + (base - 1) * N_VOCAB)};
    }
    for (u32 k = 0; k < N_GREEDY; k++) {
        for (u32 i = 0; i < N_SEQ; i++) {
            const struct seq *s = &m->seqs[i];
            if (!parted[i] && rows[i].token != s->greedy[k] && s->margin[k] > MARGIN)
                fail_msg("%s-%s: sequence %u, greedy id %u is %u, expected %u (margin %g)", m->name,
                         m->type, i, k, rows[i].token, s->greedy[k], s->margin[k]);
            parted[i] |= rows[i].token != s->greedy[k];
            compared += !parted[i];
            rows[i] = (struct row){
                .slot = i, .pos = s->n + k, .token = rows[i].token, .wants_logits = true};
        }
        if (k + 1 == N_GREEDY)
            break;
        step(d, rows, N_SEQ);
        for (u32 i = 0; i < N_SEQ; i++)
            rows[i].token = greatest(device_logits(d, i));
    }
    return compared;
}

/* ---- comparisons ---- */

static double cosine(const float *a, const float *b)
{
    double ab = 0, aa = 0, bb = 0;
    for (u32 i = 0; i < N_VOCAB; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return ab / sqrt(aa * bb);
}

static void check_cosine(const struct model *m, const float *logits, u32 n_ids)
{
    double least = 2, widest = 0;
    for (u32 r = 0; r < N_ROWS; r++) {
        double c = cosine(logits + r * N_VOCAB, m->want + r * N_VOCAB);
        if (!(c >= COSINE))
            fail_msg("%s-%s: row %u has cosine %.9f, expected at least %g", m->name, m->type, r, c,
                     COSINE);
        least = c < least ? c : least;
    }
    for (u32 i = 0; i < N_ROWS * N_VOCAB; i++)
        widest = fmax(widest, fabs((double)logits[i] - m->want[i]));
    print_message(
        "%-13s %-4s least cosine 1 - %.1e, widest logit difference %.1e, %u of %u greedy ids\n",
        m->name, m->type, 1 - least, widest, n_ids, N_SEQ * N_GREEDY);
}

static void check_same(const struct model *m, const struct run *r, const float *a, const float *b)
{
    if (!memcmp(a, b, N_ROWS * N_VOCAB * sizeof *a))
        return;
    u32 i = 0, x, y;
    while (!memcmp(a + i, b + i, sizeof *a))
        i++;
    memcpy(&x, a + i, sizeof x);
    memcpy(&y, b + i, sizeof y);
    fail_msg("%s-%s on %s %s, %u threads, chunk %u%s%s: row %u, logit %u is 0x%08x, expected 0x%08x",
             m->name, m->type, r->device ? r->device : "", r->isa ? r->isa : "", r->n_threads, r->chunk,
             r->per_row ? ", experts per row" : "", r->together ? ", together" : "", i / N_VOCAB,
             i % N_VOCAB, x, y);
}

static const struct run PLAIN = {.isa = "scalar", .n_threads = 1};

/* Logits of one run, with a device of its own. */
static void fresh(const struct model *m, const struct run *r, float *logits)
{
    struct device *d = start(m, r);
    run_prompts(m, d, r, logits);
    device_close(d);
}

/* ---- tests ---- */

static void agrees_with_transformers(const char *name, const char *type, float *logits)
{
    struct model m;
    model_open(&m, name, type);
    struct device *d = start(&m, &PLAIN);
    run_prompts(&m, d, &PLAIN, logits);
    check_cosine(&m, logits, run_greedy(&m, d, logits));
    device_close(d);
    model_close(&m);
}

static void all_agree_with_transformers(void **state)
{
    (void)state;
    float *logits = rows_alloc();
    for (u32 i = 0; i < COUNT(MODELS); i++)
        agrees_with_transformers(MODELS[i], "f32", logits);
    free(logits);
}

/* A bf16 file holds the same values as the f32 file: the same bits must come out. Halves lose a few
 * tiny ones. */
static void types_agree(void **state)
{
    (void)state;
    static const char *const NAMES[] = {"llama", "qwen3_moe"};
    float *f32 = rows_alloc(), *bf16 = rows_alloc(), *f16 = rows_alloc();
    for (u32 i = 0; i < COUNT(NAMES); i++) {
        agrees_with_transformers(NAMES[i], "f32", f32);
        agrees_with_transformers(NAMES[i], "bf16", bf16);
        agrees_with_transformers(NAMES[i], "f16", f16);
        check_same(&(struct model){.name = NAMES[i], .type = "bf16"}, &PLAIN, bf16, f32);
    }
    free(f32);
    free(bf16);
    free(f16);
}

static void every_run_gives_the_same_bytes(void **state)
{
    (void)state;
    static const u32 CHUNKS[] = {0, 1, 7};
    const char *isas[8];
    u32 n_isas = kernels_list(isas, COUNT(isas)), n_runs = 0;
    float *want = rows_alloc(), *logits = rows_alloc();
    struct model m;
    for (u32 i = 0; i < COUNT(MODELS); i++) {
        model_open(&m, MODELS[i], "f32");
        fresh(&m, &PLAIN, want);
        for (u32 k = 0; k < n_isas * COUNT(CHUNKS) * 4; k++) {
            u32 isa = k / 12, chunk = k / 4 % 3;
            struct run r = {.isa = isas[isa],
                            .n_threads =
                                1 + (isa + chunk + k % 4) % 3, /* each with each of the others */
                            .chunk = CHUNKS[chunk],
                            .per_row = k & 1,
                            .together = k & 2};
            if (r.per_row && !m.p.hp.n_experts)
                continue;
            memset(logits, 0xFF, N_ROWS * N_VOCAB * sizeof *logits);
            fresh(&m, &r, logits);
            check_same(&m, &r, logits, want);
            n_runs++;
        }
        model_close(&m);
    }
    print_message("%u runs on %u instruction sets give the bytes of %u plain ones\n", n_runs,
                  n_isas, (u32)COUNT(MODELS));
    free(want);
    free(logits);
}

/* The emulated GPU has the CPU's bits, with weights of every float type and of two others. */
static void the_gpu_gives_the_same_bytes(void **state)
{
    (void)state;
    static const struct run RUNS[] = {{.device = "emu", .together = true},
                                      {.device = "emu", .chunk = 7, .together = true, .per_row = true}};
    static const char *const TYPES[] = {"f32", "bf16", "f16", "q4_0", "q8_0"};
    float *want = rows_alloc(), *logits = rows_alloc();
    struct model m;
    for (u32 i = 0; i < 2 * COUNT(MODELS); i++) {
        model_open(&m, MODELS[i / 2], i % 2 ? TYPES[3 + i / 2 % 2] : TYPES[i / 2 % 3]);
        fresh(&m, &PLAIN, want);
        for (u32 k = 0; k < COUNT(RUNS); k++) {
            memset(logits, 0xFF, N_ROWS * N_VOCAB * sizeof *logits);
            fresh(&m, &RUNS[k], logits);
            check_same(&m, &RUNS[k], logits, want);
        }
        model_close(&m);
    }
    free(want);
    free(logits);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/stderr", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_agree_with_transformers),
        cmocka_unit_test(types_agree),
        cmocka_unit_test(every_run_gives_the_same_bytes),
        cmocka_unit_test(the_gpu_gives_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
