/* Scenes that `plainsong bench` has no option for: who joins whom, what slots keep, what streams
 * say. Public API only. streams SCENE MODEL RUNS    SCENE: ragged, reuse, sampling or same A line
 * for each figure: name, then median, least and most of RUNS runs. Built and run by the scripts
 * beside it. */
#include "plainsong.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PROMPT = 64,
    SHORT = 4,
    GEN = 48,
    WHOLE = 5 * GEN,
    LONG = 512,
    MAX_RUNS = 50,
    MAX_NAMES = 16,
    MAX_IDS = 4096
};

static struct {
    const char *name, *unit;
    double x[MAX_RUNS];
    int n;
} figures[MAX_NAMES];
static int n_figures;
static uint32_t n_vocab;

static void die(const char *what)
{
    fprintf(stderr, "streams: %s\n", what);
    exit(1);
}

static void note(const char *name, const char *unit, double x)
{
    int i = 0;
    while (i < n_figures && strcmp(figures[i].name, name))
        i++;
    if (i == n_figures)
        figures[n_figures++].name = name;
    figures[i].unit = unit;
    if (figures[i].n < MAX_RUNS)
        figures[i].x[figures[i].n++] = x;
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(void)
{
    for (int i = 0; i < n_figures; i++) {
        double *x = figures[i].x;
        int n = figures[i].n;
        qsort(x, (size_t)n, sizeof *x, order);
        printf("| %s | %.2f | %.2f | %.2f | %s |\n", figures[i].name, (x[(n - 1) / 2] + x[n / 2]) / 2,
               x[0], x[n - 1], figures[i].unit);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint32_t id(uint64_t voice, uint64_t i)
{
    uint64_t z = (voice * 65536 + i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (uint32_t)((z ^ (z >> 31)) % n_vocab);
}

/* A stream of n prompt and gen forced tokens (sampling: its own) that only `voice` has. */
static struct ps_stream *start(struct ps_engine *e, uint64_t voice, uint64_t domain, uint32_t n,
                               uint32_t gen, const struct ps_sampling *sampling)
{
    struct ps_error err;
    uint32_t ids[MAX_IDS];
    for (uint32_t i = 0; i < n + gen; i++)
        ids[i] = id(voice, i);
    struct ps_request r = {.ids = ids,
                           .n_ids = n,
                           .max_tokens = gen,
                           .domain = domain,
                           .ignore_end = true,
                           .forced = ids + n};
    if (sampling)
        r.sampling = *sampling;
    struct ps_stream *s = ps_stream_open(e, &r, &err);
    if (!s)
        die(err.text);
    return s;
}

/* Reads n tokens (or to the end); the time of the last one, and its logits' hash when done. */
static double hear(struct ps_stream *s, uint32_t n)
{
    struct ps_token t = {0};
    struct ps_error err;
    for (uint32_t i = 0; i < n; i++)
        if (ps_stream_next(s, &t, &err) != 1)
            die("a stream ended early");
    return t.time;
}

static uint64_t end(struct ps_stream *s)
{
    struct ps_token t;
    struct ps_error err;
    struct ps_stream_info info;
    while (ps_stream_next(s, &t, &err) == 1)
        ;
    ps_stream_info(s, &info);
    ps_stream_close(s);
    return info.logits_hash;
}

/* A stream decodes alone, is joined by three others of few words, is alone again: its rate in each
 * part, and its bytes. Later tokens look back further, so the last part is compared with the same
 * tokens of the stream that was always alone. */
static void ragged(struct ps_engine *e, uint64_t domain)
{
    double always[WHOLE];
    struct ps_stream *first = start(e, 1, domain, PROMPT, WHOLE, NULL);
    for (int i = 0; i < WHOLE; i++)
        always[i] = hear(first, 1);
    uint64_t alone = end(first);
    struct ps_stream *s = start(e, 1, domain + 1, PROMPT, WHOLE, NULL), *other[3];
    double times[WHOLE], begun = 0, ended = 0;
    times[0] = hear(s, 1);
    for (int i = 1; i <= GEN; i++)
        times[i] = hear(s, 1);
    for (int i = 0; i < 3; i++)
        other[i] = start(e, 10 + (uint64_t)i, domain + 2, SHORT, GEN, NULL);
    for (int i = 0; i < 3; i++) {
        double came = hear(other[i], 1), left = hear(other[i], GEN - 1);
        begun = came > begun ? came : begun;
        ended = ended == 0 || left < ended ? left : ended; /* the first to go */
        end(other[i]);
    }
    for (int i = GEN + 1; i < WHOLE; i++)
        times[i] = hear(s, 1);
    int from = 0, to = 0, last = 0;
    for (int i = 1; i < WHOLE; i++) {
        from = times[i] <= begun ? i + 1 : from;
        to = times[i] <= ended ? i : to;
        last = times[i] <= ended + 0.05
                   ? i + 1
                   : last; /* the others end within a few steps of each other */
    }
    note("alone, before the others come", "tok/s", GEN / (times[GEN] - times[0]));
    if (to > from)
        note("one of four", "tok/s", (to - from) / (times[to] - times[from]));
    if (last < WHOLE - 1)
        note("alone again", "tok/s", (WHOLE - 1 - last) / (times[WHOLE - 1] - times[last]));
    if (last < WHOLE - 1)
        note("always alone, the same tokens", "tok/s",
             (WHOLE - 1 - last) / (always[WHOLE - 1] - always[last]));
    note("always alone, the first part's tokens", "tok/s", GEN / (always[GEN] - always[0]));
    note("logits as when always alone (1: yes)", "", end(s) == alone);
}

/* The same prompt twice in one domain, then in another: read, found again, not to be found. */
static void reuse(struct ps_engine *e, uint64_t domain)
{
    double t0 = now(), cold = hear(start(e, 1, domain, LONG, 1, NULL), 1) - t0;
    t0 = now();
    double kept = hear(start(e, 1, domain, LONG, 1, NULL), 1) - t0;
    t0 = now();
    double other = hear(start(e, 1, domain + 1, LONG, 1, NULL), 1) - t0;
    note("first token, 512 tokens read", "ms", 1e3 * cold);
    note("first token, 511 of them kept in a slot", "ms", 1e3 * kept);
    note("first token, kept but of another domain", "ms", 1e3 * other);
}

static double rate(struct ps_engine *e, uint64_t domain, int same,
                   const struct ps_sampling *sampling, double *groups, double *tail)
{
    struct ps_stream *s[4];
    struct ps_stats a, b;
    for (uint64_t i = 0; i < 4; i++)
        s[i] = start(e, same ? 1 : i, domain + i, 1, 2 * GEN, sampling);
    for (int i = 0; i < 4; i++)
        hear(s[i], 1);
    ps_engine_stats(e, &a);
    hear(s[0], 2 * GEN - 1);
    ps_engine_stats(e, &b);
    double steps = (double)(b.steps - a.steps),
           wall = (b.setup_s - a.setup_s) + (b.submit_s - a.submit_s) + (b.wait_s - a.wait_s) +
                  (b.tail_s - a.tail_s);
    for (int i = 0; i < 4; i++)
        end(s[i]);
    *groups = steps > 0 ? (double)(b.expert_groups - a.expert_groups) / steps : 0;
    *tail = steps > 0 ? 1e3 * (b.tail_s - a.tail_s) / steps : 0;
    return wall > 0 ? (double)(b.rows - a.rows) / wall : 0;
}

/* Four streams that say four texts, and four that say one. */
static void same(struct ps_engine *e, uint64_t domain, uint32_t n_layers)
{
    double groups, tail, x = rate(e, domain, 0, NULL, &groups, &tail);
    note("four texts: all streams", "tok/s", x);
    note("four texts: distinct experts in a layer", "", groups / 2 / n_layers);
    x = rate(e, domain + 4, 1, NULL, &groups, &tail);
    note("one text four times: all streams", "tok/s", x);
    note("one text four times: distinct experts in a layer", "", groups / 2 / n_layers);
}

static void sampling(struct ps_engine *e, uint64_t domain)
{
    struct ps_sampling seeded = {.temperature = 1, .top_k = 40, .top_p = 0.95f, .seed = 7};
    struct ps_sampling whole = {.temperature = 1, .seed = 7};
    double groups, tail;
    note("greedy: all streams", "tok/s", rate(e, domain, 0, NULL, &groups, &tail));
    note("greedy: tail of a step", "ms", tail);
    note("seeded, top-k 40, top-p 0.95: all streams", "tok/s",
         rate(e, domain + 4, 0, &seeded, &groups, &tail));
    note("seeded, top-k 40, top-p 0.95: tail of a step", "ms", tail);
    note("seeded, whole vocabulary: all streams", "tok/s",
         rate(e, domain + 8, 0, &whole, &groups, &tail));
    note("seeded, whole vocabulary: tail of a step", "ms", tail);
}

int main(int argc, char **argv)
{
    struct ps_error err;
    struct ps_model_info info;
    struct ps_engine_options o = {.n_slots = 4, .n_ctx = 768};
    int runs = argc == 4 ? atoi(argv[3]) : 0;
    if (runs < 1 || runs > MAX_RUNS)
        die("expected SCENE MODEL RUNS");
    struct ps_model *m = ps_model_open(argv[2], &err);
    struct ps_engine *e = m ? ps_engine_open(m, &o, &err) : NULL;
    if (!e)
        die(err.text);
    ps_model_info(m, &info);
    n_vocab = info.n_vocab;
    for (int i = 0; i < runs; i++) {
        uint64_t domain = 100 * (uint64_t)(i + 1);
        if (!strcmp(argv[1], "ragged"))
            ragged(e, domain);
        else if (!strcmp(argv[1], "reuse"))
            reuse(e, domain);
        else if (!strcmp(argv[1], "same"))
            same(e, domain, info.n_layers);
        else if (!strcmp(argv[1], "sampling"))
            sampling(e, domain);
        else
            die("no such scene");
    }
    printf("\n| | median | least | most | |\n|---|---|---|---|---|\n");
    print();
    ps_engine_close(e);
    ps_model_close(m);
    return 0;
}
