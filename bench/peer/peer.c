/* llama.cpp as a contestant: its prebuilt libllama, driven from C so that no JavaScript time is
 * charged to it. rounds.py starts one, keeps it, and writes a line for each measurement, so that
 * loading, repacking and prompts are paid once and its turns alternate with ours.
 *
 *     peer MODEL.gguf BACKENDS_DIR THREADS         then on standard input, an answer for each:
 *     choose B PROMPT STEPS [SETTING...]           tries settings, keeps the fastest for this B
 *     decode B PROMPT STEPS                        tok/s of all streams
 *     prompt N                                     tok/s; both attentions tried at first
 *
 * What is done for it: the thread pool of its own benchmark tool attached (else each step starts
 * threads), its repacking left on, every context as large as needed and no larger, separate and
 * unified KV, flash attention on and off, steps of warm-up before each turn, and no sampling. The
 * ids are those that `plainsong bench` feeds, so that routing meets the same rows. */
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <link.h>
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SEED = 1, /* of plainsong bench */
    CTX_STEP = 256,
    BATCH = 512,
    WARM = 2,         /* steps before a turn is timed */
    WARM_PROMPT = 64, /* tokens of a prompt, likewise */
    TRIALS = 3,       /* of each setting; the best counts, since others can only make it slower */
    TRIAL_STEPS = 6,
    MOST_B = 64,
    SETTINGS = 4
};

static const char *const setting_names[SETTINGS] = {"separate", "separate+fa", "unified",
                                                    "unified+fa"};

struct peer {
    struct llama_model *model;
    ggml_threadpool_t pool;
    int threads, n_vocab;
    struct llama_context *decode[MOST_B + 1]; /* of the chosen setting, prompts read */
    struct llama_context *prompt;             /* likewise, for n_prompt tokens */
    int n_prompt;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Says on standard error why and ends: rounds.py sees the closed pipe. */
static void give_up(const char *what)
{
    fprintf(stderr, "peer: %s\n", what);
    exit(1);
}

/* bench_id of src/cli/bench_run.c. */
static llama_token id_at(const struct peer *p, int stream, int i)
{
    uint64_t z = SEED * 0xD1B54A32D192ED03ull +
                 (((uint64_t)stream << 32) + (uint64_t)i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (llama_token)((z ^ (z >> 31)) % (uint64_t)p->n_vocab);
}

/* ---- what was loaded ---- */

/* Errors, and where the weights were put: CPU_REPACK shows that they were repacked. */
static void on_log(enum ggml_log_level level, const char *text, void *arg)
{
    (void)arg;
    const char *at = strstr(text, "model buffer size");
    char name[40];
    double mib;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
    if (!at)
        return;
    while (at > text && at[-1] != ':')
        at--;
    if (sscanf(at, " %39s model buffer size = %lf", name, &mib) == 2)
        printf("buffer %s %.0f MiB\n", name, mib);
}

static int on_library(struct dl_phdr_info *info, size_t size, void *arg)
{
    static const char stem[] = "libggml-cpu-";
    const char *at = strstr(info->dlpi_name, stem);
    (void)size;
    (void)arg;
    if (at)
        printf("variant %.*s\n", (int)strcspn(at + sizeof stem - 1, "."), at + sizeof stem - 1);
    return 0;
}

static ggml_threadpool_t make_pool(int threads)
{
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_reg_t reg = cpu ? ggml_backend_dev_backend_reg(cpu) : NULL;
    if (!reg)
        give_up("no CPU backend was found");
    union {
        void *data;
        ggml_threadpool_t (*call)(struct ggml_threadpool_params *);
    } make = {ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_new")};
    struct ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    ggml_threadpool_t pool = make.data ? make.call(&params) : NULL;
    if (!pool)
        give_up("no thread pool");
    return pool;
}

static void load(struct peer *p, const char *model, const char *backends, int threads)
{
    llama_log_set(on_log, NULL);
    ggml_backend_load_all_from_path(backends);
    dl_iterate_phdr(on_library, NULL);
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    double t0 = now();
    p->threads = threads;
    p->pool = make_pool(threads);
    p->model = llama_model_load_from_file(model, params);
    if (!p->model)
        give_up("the model was not loaded");
    p->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(p->model));
    printf("repacking %s\nsystem %s\nloaded %.2f\nready\n", params.use_extra_bufts ? "on" : "off",
           llama_print_system_info(), now() - t0);
}

/* ---- contexts ---- */

static struct llama_context *open_context(struct peer *p, int n_seqs, int positions, int setting)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(n_seqs * ((positions + CTX_STEP - 1) / CTX_STEP * CTX_STEP));
    params.n_batch = params.n_ubatch = BATCH;
    params.n_seq_max = (uint32_t)n_seqs;
    params.n_threads = params.n_threads_batch = p->threads;
    params.kv_unified = setting >= 2;
    params.flash_attn_type =
        setting % 2 ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *ctx = llama_init_from_model(p->model, params);
    if (!ctx)
        give_up("no context");
    llama_attach_threadpool(ctx, p->pool, p->pool);
    return ctx;
}

static void close_context(struct llama_context *ctx)
{
    if (ctx)
        llama_free(ctx);
}

static void decode(struct llama_context *ctx, struct llama_batch batch)
{
    if (llama_decode(ctx, batch))
        give_up("llama_decode failed");
    for (int i = 0; i < batch.n_tokens; i++)
        if (batch.logits[i] && !llama_get_logits_ith(ctx, i)) /* waits for them */
            give_up("no logits");
}

/* n tokens of one stream from position 0, logits of the last. */
static void read_prompt(struct peer *p, struct llama_context *ctx, int stream, int n)
{
    struct llama_batch batch = llama_batch_init(BATCH, 0, 1);
    for (int at = 0; at < n; at += batch.n_tokens) {
        batch.n_tokens = n - at < BATCH ? n - at : BATCH;
        for (int i = 0; i < batch.n_tokens; i++) {
            batch.token[i] = id_at(p, stream, at + i);
            batch.pos[i] = at + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = stream;
            batch.logits[i] = at + i == n - 1;
        }
        decode(ctx, batch);
    }
    llama_batch_free(batch);
}

/* Steps of one token a stream from position `prompt` on; seconds. The cache is left as it was. */
static double run_steps(struct peer *p, struct llama_context *ctx, int n_seqs, int prompt,
                        int steps)
{
    struct llama_batch batch = llama_batch_init(n_seqs, 0, 1);
    double t0 = now();
    batch.n_tokens = n_seqs;
    for (int pos = prompt; pos < prompt + steps; pos++) {
        for (int i = 0; i < n_seqs; i++) {
            batch.token[i] = id_at(p, i, pos);
            batch.pos[i] = pos;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = i;
            batch.logits[i] = 1;
        }
        decode(ctx, batch);
    }
    double seconds = now() - t0;
    for (int i = 0; i < n_seqs; i++)
        if (!llama_memory_seq_rm(llama_get_memory(ctx), i, prompt, -1))
            give_up("the cache keeps what was decoded");
    llama_batch_free(batch);
    return seconds;
}

/* ---- the commands ---- */

/* All settings named by the mask, in turn and again; the answer names what each reached. */
static void choose(struct peer *p, int n_seqs, int prompt, int steps, unsigned mask)
{
    struct llama_context *ctx[SETTINGS] = {NULL};
    double least[SETTINGS] = {0};
    int best = -1;
    for (int s = 0; s < SETTINGS; s++) {
        if (!(mask >> s & 1))
            continue;
        ctx[s] = open_context(p, n_seqs, prompt + steps, s);
        for (int i = 0; i < n_seqs; i++)
            read_prompt(p, ctx[s], i, prompt);
        run_steps(p, ctx[s], n_seqs, prompt, WARM);
    }
    for (int t = 0; t < TRIALS; t++)
        for (int s = 0; s < SETTINGS; s++) {
            double seconds = ctx[s] ? run_steps(p, ctx[s], n_seqs, prompt, TRIAL_STEPS) : 0;
            least[s] = t && least[s] < seconds ? least[s] : seconds;
        }
    for (int s = 0; s < SETTINGS; s++)
        if (ctx[s] && (best < 0 || least[s] < least[best]))
            best = s;
    if (best < 0)
        give_up("choose: no setting");
    close_context(p->decode[n_seqs]);
    p->decode[n_seqs] = ctx[best];
    printf("chosen %s", setting_names[best]);
    for (int s = 0; s < SETTINGS; s++) {
        if (ctx[s])
            printf(" %s=%.2f", setting_names[s], n_seqs * TRIAL_STEPS / least[s]);
        if (s != best)
            close_context(ctx[s]);
    }
    printf("\n");
}

static double time_prompt(struct peer *p, struct llama_context *ctx, int n)
{
    llama_memory_clear(llama_get_memory(ctx), false);
    double t0 = now();
    read_prompt(p, ctx, 0, n);
    return now() - t0;
}

/* The attention is chosen when a length comes for the first time, by the better of two each. */
static void time_prompts(struct peer *p, int n)
{
    if (p->n_prompt != n) {
        struct llama_context *ctx[2] = {open_context(p, 1, n, 0), open_context(p, 1, n, 1)};
        double least[2] = {1e9, 1e9};
        for (int t = 0; t < 2 * 3; t++) {
            double seconds = time_prompt(p, ctx[t % 2], n);
            if (t >= 2 && seconds < least[t % 2]) /* the first of each warms up */
                least[t % 2] = seconds;
        }
        int best = least[1] < least[0];
        close_context(p->prompt);
        close_context(ctx[!best]);
        p->prompt = ctx[best];
        p->n_prompt = n;
        printf("chosen %s %s=%.2f %s=%.2f\n", setting_names[best], setting_names[0], n / least[0],
               setting_names[1], n / least[1]);
        return;
    }
    time_prompt(p, p->prompt, n < WARM_PROMPT ? n : WARM_PROMPT);
    printf("tok_s %.4f\n", n / time_prompt(p, p->prompt, n));
}

static void obey(struct peer *p, const char *line)
{
    int b, prompt, steps;
    unsigned mask;
    if (sscanf(line, "choose %d %d %d %u", &b, &prompt, &steps, &mask) == 4 && b > 0 &&
        b <= MOST_B && steps >= TRIAL_STEPS) {
        choose(p, b, prompt, steps, mask);
    } else if (sscanf(line, "decode %d %d %d", &b, &prompt, &steps) == 3 && b > 0 && b <= MOST_B &&
               p->decode[b]) {
        run_steps(p, p->decode[b], b, prompt, WARM);
        printf("tok_s %.4f\n", b * steps / run_steps(p, p->decode[b], b, prompt, steps));
    } else if (sscanf(line, "prompt %d", &prompt) == 1 && prompt > 0) {
        time_prompts(p, prompt);
    } else {
        give_up("a command that it does not know");
    }
}

int main(int argc, char **argv)
{
    struct peer p = {0};
    char line[256];
    if (argc != 4 || atoi(argv[3]) < 1)
        give_up("usage: peer MODEL.gguf BACKENDS_DIR THREADS");
    setvbuf(stdout, NULL, _IOLBF, 0);
    load(&p, argv[1], argv[2], atoi(argv[3]));
    while (fgets(line, sizeof line, stdin))
        obey(&p, line);
    for (int b = 0; b <= MOST_B; b++)
        close_context(p.decode[b]);
    close_context(p.prompt);
    llama_model_free(p.model);
    return 0;
}
