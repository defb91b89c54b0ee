/* What llama.cpp makes of the files that make_gguf.py writes: logits and greedy ids against the
 * same oracle that tests/test_arch.c holds plainsong to. Run by hand, once; tests/oracle/README.md
 * tells how. Not part of the tests: it needs llama.cpp's library and headers, which this tree does
 * not have.
 *
 *     compare FILE.gguf ORACLE_DIR BACKENDS_DIR [f32]      f32: of keys and values, else f16 */
#include <jansson.h>
#include <llama.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_GREEDY = 24, N_CTX = 256, MAX_TOKENS = 128 };

struct tally {
    double least, widest; /* cosine; logit difference */
    int n_ids, n_equal;
};

static void quiet(enum ggml_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static void compare_row(struct tally *t, const float *a, const float *b, int n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < n; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
        t->widest = fmax(t->widest, fabs((double)a[i] - b[i]));
    }
    t->least = fmin(t->least, ab / sqrt(aa * bb));
}

static bool decode(struct llama_context *ctx, const llama_token *tokens, int n, int pos)
{
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = pos + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    int rc = llama_decode(ctx, batch);
    llama_batch_free(batch);
    return rc == 0;
}

static llama_token greatest(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* Ids are compared up to the first that differs. */
static bool compare_sequence(struct llama_context *ctx, json_t *o, const float *want, int n_vocab,
                             struct tally *t)
{
    llama_token tokens[MAX_TOKENS], id;
    int n = (int)json_array_size(json_object_get(o, "tokens"));
    for (int i = 0; i < n; i++)
        tokens[i] = (llama_token)json_integer_value(
            json_array_get(json_object_get(o, "tokens"), (size_t)i));
    llama_memory_clear(llama_get_memory(ctx), true);
    if (!decode(ctx, tokens, n, 0))
        return false;
    for (int i = 0; i < n; i++)
        compare_row(t, llama_get_logits_ith(ctx, i), want + (size_t)i * (size_t)n_vocab, n_vocab);
    id = greatest(llama_get_logits_ith(ctx, n - 1), n_vocab);
    t->n_ids += N_GREEDY;
    for (int k = 0; k < N_GREEDY; k++) {
        if (id != json_integer_value(json_array_get(json_object_get(o, "greedy"), (size_t)k)))
            break;
        t->n_equal++;
        if (!decode(ctx, &id, 1, n + k))
            return false;
        id = greatest(llama_get_logits_ith(ctx, 0), n_vocab);
    }
    return true;
}

static float *read_floats(const char *dir, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long bytes = ftell(f);
    rewind(f);
    float *x = malloc((size_t)bytes);
    bool whole = x && fread(x, 1, (size_t)bytes, f) == (size_t)bytes;
    fclose(f);
    return whole ? x : NULL;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    char path[512];
    json_error_t e;
    snprintf(path, sizeof path, "%s/oracle.json", argv[2]);
    json_t *root = json_load_file(path, 0, &e);
    float *want = read_floats(argv[2], "logits.f32");
    llama_log_set(quiet, NULL);
    ggml_backend_load_all_from_path(argv[3]);
    struct llama_model_params mp = llama_model_default_params();
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = N_CTX;
    cp.type_k = cp.type_v = argc > 4 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    cp.n_batch = cp.n_ubatch = MAX_TOKENS;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_model *model = llama_model_load_from_file(argv[1], mp);
    struct llama_context *ctx = model ? llama_init_from_model(model, cp) : NULL;
    if (!root || !want || !ctx) {
        printf("%s: not loaded\n", argv[1]);
        return 1;
    }
    struct tally t = {.least = 2};
    int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    json_t *list = json_object_get(root, "sequences"), *o;
    size_t i;
    json_array_foreach(list, i, o)
    {
        const float *at = want + json_integer_value(json_object_get(o, "logits_offset")) /
                                     (json_int_t)sizeof(float);
        if (!compare_sequence(ctx, o, at, n_vocab, &t)) {
            printf("%s: llama_decode failed\n", argv[1]);
            return 1;
        }
    }
    printf("%s: least cosine 1 - %.1e, widest logit difference %.1e, %d of %d greedy ids\n",
           argv[1], 1 - t.least, t.widest, t.n_equal, t.n_ids);
    llama_free(ctx);
    llama_model_free(model);
    json_decref(root);
    free(want);
    return 0;
}
