/* See bench_server.h. Each run has prompts of its own, seeded random ids, so that no path finds a prefix it has
 * read before; answers are drawn at temperature 1 with a seed for each, end tokens ignored, so that both paths do
 * the same work and must come to the same texts. The times are those of tokens that have text: a server sends
 * nothing for others. The engine's are its own clock's, the server's those at which an event was whole here, so
 * they hold the client's work too. */
#include "cli/bench_server.h"

#include "cli/cli.h"
#include "engine/engine.h"
#include "engine/model.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum path { HTTP, ENGINE, BOTH };
static const char *const PATH_NAMES[BOTH] = {"http", "engine"};

enum figure {
    TOK_S,     /* of all streams, between the last one's first token and the first one's last */
    ALL_TOK_S, /* of all streams, from the first request to the last byte */
    BYTE_MS,   /* median: until an answer's first byte */
    FIRST_P50_MS,
    FIRST_P95_MS,
    GAP_P50_MS, /* between two tokens of a stream */
    GAP_P95_MS,
    N_FIGURES
};
static const char *const FIGURE_NAMES[N_FIGURES] = {"aggregate_tok_s", "with_first_tok_s",   "first_byte_ms",
                                                    "first_token_ms",  "first_token_p95_ms", "between_ms",
                                                    "between_p95_ms"};

struct series {
    u32 streams, n_runs;
    double runs[BOTH][N_FIGURES][BENCH_MAX_RUNS];
};

struct heard {     /* an answer */
    double *times; /* (n) of tokens that have text */
    u32 n;
    double asked, first_byte, over;
    struct bytes text;
};

static void forget(struct heard *h, u32 n)
{
    for (u32 i = 0; h && i < n; i++) {
        free(h[i].times);
        bytes_free(&h[i].text);
    }
    free(h);
}

/* ---- figures of a run ---- */

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const double *sorted, u32 n, u32 percent)
{
    return n ? sorted[(u64)(n - 1) * percent / 100] : 0;
}

/* Tokens a second of one stream within [from, to]; 0: so few that they came at once. */
static double rate(const struct heard *h, u32 gen, double from, double to)
{
    u32 a = 0, b = h->n - 1;
    while (a < b && h->times[a] < from)
        a++;
    while (b > a && h->times[b] > to)
        b--;
    double seconds = h->times[b] - h->times[a];
    return b > a && seconds > 0 ? (double)(b - a) / seconds * gen / h->n : 0;
}

static int fill(double (*f)[BENCH_MAX_RUNS], u32 run, const struct heard *h, u32 n, u32 gen, struct err *err)
{
    double from = 0, to = INFINITY, begin = INFINITY, end = 0, sum = 0;
    double *x = mem_array((u64)n * gen, sizeof *x);
    u32 k = 0;
    if (!x)
        return err_set(err, "out of memory");
    for (u32 i = 0; i < n; i++) {
        from = fmax(from, h[i].times[0]);
        to = fmin(to, h[i].times[h[i].n - 1]);
        begin = fmin(begin, h[i].asked);
        end = fmax(end, h[i].over);
    }
    for (u32 i = 0; i < n; i++)
        sum += rate(&h[i], gen, from, to);
    f[TOK_S][run] = sum;
    f[ALL_TOK_S][run] = (double)n * gen / (end - begin);
    for (u32 i = 0; i < n; i++)
        x[i] = 1e3 * (h[i].first_byte - h[i].asked);
    qsort(x, n, sizeof *x, order);
    f[BYTE_MS][run] = percentile(x, n, 50);
    for (u32 i = 0; i < n; i++)
        x[i] = 1e3 * (h[i].times[0] - h[i].asked);
    qsort(x, n, sizeof *x, order);
    f[FIRST_P50_MS][run] = percentile(x, n, 50);
    f[FIRST_P95_MS][run] = percentile(x, n, 95);
    for (u32 i = 0; i < n; i++)
        for (u32 t = 1; t < h[i].n; t++)
            x[k++] = 1e3 * (h[i].times[t] - h[i].times[t - 1]);
    qsort(x, k, sizeof *x, order);
    f[GAP_P50_MS][run] = percentile(x, k, 50);
    f[GAP_P95_MS][run] = percentile(x, k, 95);
    free(x);
    return 0;
}

/* ---- the server ---- */

/* What a refusal says, on one line. */
static int refused(const struct bench_server *b, const struct bench_http_call *c, struct err *err)
{
    json_t *answer = c->text.len ? json_loadb(c->text.at, c->text.len, 0, NULL) : NULL;
    const char *why = json_string_value(json_object_get(json_object_get(answer, "error"), "message"));
    err_set(err, "%s answers %d: %s%s", b->shown, c->status, why ? why : "that is no plainsong serve",
            c->status == 401 ? " (here: --api-key-file)" : "");
    json_decref(answer);
    return -1;
}

static int ask_json(const struct bench_server *b, const char *path, json_t **out, struct err *err)
{
    struct bench_http_call c = {.path = path};
    int rc = bench_http_ask(&b->url, *b->key ? b->key : NULL, &c, 1, err);
    *out = NULL;
    if (!rc && c.status != 200)
        rc = refused(b, &c, err);
    if (!rc && (!c.text.len || !(*out = json_loadb(c.text.at, c.text.len, 0, NULL))))
        rc = err_set(err, "%s answers %s with something that is no JSON: that is no plainsong serve", b->shown, path);
    bench_http_free(&c, 1);
    return rc;
}

/* The first key of a key file: its form is that of `serve --api-key-file`. */
static int read_key(struct bench_server *b, const char *path, struct err *err)
{
    FILE *f = path ? fopen(path, "r") : NULL;
    if (path && !f)
        return err_set(err, "--api-key-file %s: %s", path, strerror(errno));
    while (f && !*b->key && fgets(b->key, sizeof b->key, f)) {
        size_t from = strspn(b->key, " \t"), n = strcspn(b->key + from, " \t\r\n#");
        memmove(b->key, b->key + from, n);
        b->key[n] = 0;
    }
    if (f)
        fclose(f);
    return path && !*b->key ? err_set(err, "--api-key-file %s: holds no key", path) : 0;
}

int bench_server_open(struct bench_server *b, const char *url, const char *key_file, const struct bench_setup *s,
                      struct err *err)
{
    json_t *models = NULL, *slots = NULL;
    *b = (struct bench_server){.shown = url};
    u32 need = s->prompt + s->gen, most = 0;
    for (u32 i = 0; i < s->n_widths; i++)
        most = s->widths[i] > most ? s->widths[i] : most;
    int rc = bench_http_url(&b->url, url, err) || read_key(b, key_file, err) ||
                     ask_json(b, "/v1/models", &models, err) || ask_json(b, "/slots", &slots, err)
                 ? -1
                 : 0;
    const json_t *model = json_array_get(json_object_get(models, "data"), 0);
    const char *name = json_string_value(json_object_get(model, "id"));
    snprintf(b->model, sizeof b->model, "%s", name ? name : "");
    b->n_ctx = (u32)json_number_value(json_object_get(model, "context_length"));
    b->n_vocab = (u32)json_number_value(json_object_get(json_object_get(model, "meta"), "n_vocab"));
    b->n_slots = (u32)json_array_size(json_object_get(slots, "slots"));
    if (!rc && (!b->n_ctx || !b->n_vocab || !b->n_slots))
        rc = err_set(err, "%s does not say its model's context, vocabulary and slots: that is no plainsong serve",
                     url);
    if (!rc && b->n_slots < most)
        rc = err_set(err, "%s has %u slots and --streams asks for %u: start it with --slots %u", url, b->n_slots,
                     most, most);
    if (!rc && need > b->n_ctx)
        rc = err_set(err, "--prompt %u and --gen %u need a context of %u, that of %s is %u: try less", s->prompt,
                     s->gen, need, url, b->n_ctx);
    json_decref(models);
    json_decref(slots);
    return rc;
}

static u64 seed_of(u32 run, u32 stream)
{
    return 1 + (u64)run * BENCH_MAX_STREAMS + stream;
}

/* No two streams of any runs read the same. */
static u32 id_of(const struct bench_rig *r, u32 run, u32 stream, u32 i)
{
    return bench_id(r, run * BENCH_MAX_STREAMS + stream, i);
}

static char *request(const struct bench_rig *r, u32 run, u32 stream)
{
    struct bytes out = {0};
    bytes_str(&out, "{\"prompt\":[");
    for (u32 i = 0; i < r->setup->prompt; i++) {
        bytes_str(&out, i ? "," : "");
        bytes_u64(&out, id_of(r, run, stream, i));
    }
    bytes_str(&out, "],\"temperature\":1,\"ignore_eos\":true,\"stream\":true,\"stream_options\":{\"include_usage\":"
                    "true},\"max_tokens\":");
    bytes_u64(&out, r->setup->gen);
    bytes_str(&out, ",\"seed\":");
    bytes_u64(&out, seed_of(run, stream));
    bytes_str(&out, "}");
    return bytes_take(&out);
}

/* One event's JSON: its text and, in the last, the number of tokens. */
static int read_event(struct heard *h, const json_t *event, double time, u32 *n_tokens, struct err *err)
{
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0),
                 *text = json_object_get(choice, "text");
    const json_t *used = json_object_get(json_object_get(event, "usage"), "completion_tokens");
    const char *why = json_string_value(json_object_get(json_object_get(event, "error"), "message"));
    if (why)
        return err_set(err, "the server broke an answer off: %s", why);
    if (json_string_length(text)) {
        h->times[h->n++] = time;
        bytes_put(&h->text, json_string_value(text), json_string_length(text));
    }
    if (used)
        *n_tokens = (u32)json_integer_value(used);
    return 0;
}

static int read_answer(struct heard *h, const struct bench_http_call *c, u32 gen, struct err *err)
{
    u32 n_tokens = 0;
    bool done = false;
    h->times = mem_array(c->n_events + 1u, sizeof *h->times);
    if (!h->times)
        return err_set(err, "out of memory");
    for (u32 i = 0; i < c->n_events; i++) {
        size_t from = i ? c->ends[i - 1] : 0, len = c->ends[i] - from;
        if (len < 6 || memcmp(c->text.at + from, "data: ", 6) != 0)
            continue; /* a ping */
        done = len == 14 && memcmp(c->text.at + from, "data: [DONE]", 12) == 0;
        json_t *event = done ? NULL : json_loadb(c->text.at + from + 6, len - 6, 0, NULL);
        int rc = done    ? 0
                 : event ? read_event(h, event, c->times[i], &n_tokens, err)
                         : err_set(err, "the server sent an event that is no JSON");
        json_decref(event);
        if (rc)
            return -1;
    }
    h->asked = c->sent;
    h->first_byte = c->first;
    h->over = c->n_events ? c->times[c->n_events - 1] : 0;
    if (!done || n_tokens != gen || !h->n || h->text.failed)
        return err_set(err, "the server ended an answer after %u tokens of %u%s", n_tokens, gen,
                       done ? "" : ", without [DONE]");
    return 0;
}

static int hear_server(const struct bench_server *b, const struct bench_rig *r, u32 run, struct heard *h, u32 n,
                       struct err *err)
{
    struct bench_http_call *calls = mem_array(n, sizeof *calls);
    char **bodies = mem_array(n, sizeof *bodies);
    int rc = calls && bodies ? 0 : err_set(err, "out of memory");
    for (u32 i = 0; !rc && i < n; i++) {
        bodies[i] = request(r, run, i);
        calls[i] = (struct bench_http_call){.path = "/v1/completions", .body = bodies[i]};
        rc = bodies[i] ? 0 : err_set(err, "out of memory");
    }
    if (!rc)
        rc = bench_http_ask(&b->url, *b->key ? b->key : NULL, calls, n, err);
    for (u32 i = 0; !rc && i < n; i++)
        rc = calls[i].status == 200 ? read_answer(&h[i], &calls[i], r->setup->gen, err) : refused(b, &calls[i], err);
    bench_http_free(calls, n);
    for (u32 i = 0; bodies && i < n; i++)
        free(bodies[i]);
    free(bodies);
    free(calls);
    return rc;
}

/* ---- the engine ---- */

static int open_stream(const struct bench_rig *r, u32 run, u32 stream, u32 *ids, struct ps_stream **out,
                       struct err *err)
{
    struct ps_error why;
    for (u32 i = 0; i < r->setup->prompt; i++)
        ids[i] = id_of(r, run, stream, i);
    struct ps_request q = {
        .ids = ids,
        .n_ids = r->setup->prompt,
        .max_tokens = r->setup->gen,
        .ignore_end = true,
        .sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = seed_of(run, stream)}};
    *out = ps_stream_open(r->engine, &q, &why);
    return *out ? 0 : err_set(err, "%s", why.text);
}

static int hear_stream(const struct bench_rig *r, struct ps_stream *s, struct heard *h, struct err *err)
{
    const struct token_model *tokens = r->model->token;
    struct token_stream text = {0};
    struct ps_token t;
    struct ps_error why = {.text = ""};
    size_t room = 3 * (token_max_bytes(tokens) + 4), n;
    char *buf = malloc(room);
    h->times = mem_array(r->setup->gen + 1u, sizeof *h->times);
    int rc = buf && h->times ? 1 : 0;
    while (rc == 1 && (rc = ps_stream_next(s, &t, &why)) == 1) {
        n = token_stream_push(tokens, &text, t.id, buf, room);
        bytes_put(&h->text, buf, n);
        if (n)
            h->times[h->n++] = t.time;
        h->over = t.time;
    }
    n = buf ? token_stream_end(&text, buf, room) : 0;
    bytes_put(&h->text, buf, n);
    if (n)
        h->times[h->n++] = h->over;
    free(buf);
    if (rc || !h->n || h->text.failed)
        return err_set(err, "a stream of the engine broke off: %s", why.text);
    h->first_byte = h->times[0];
    return 0;
}

static int hear_engine(const struct bench_rig *r, u32 run, struct heard *h, u32 n, struct err *err)
{
    struct ps_stream **streams = mem_array(n, sizeof *streams);
    u32 *ids = mem_array(r->setup->prompt, sizeof *ids);
    int rc = streams && ids ? 0 : err_set(err, "out of memory");
    for (u32 i = 0; !rc && i < n; i++) {
        h[i].asked = time_now();
        rc = open_stream(r, run, i, ids, &streams[i], err);
    }
    for (u32 i = 0; !rc && i < n; i++)
        rc = hear_stream(r, streams[i], &h[i], err);
    for (u32 i = 0; streams && i < n; i++)
        ps_stream_close(streams[i]);
    free(streams);
    free(ids);
    return rc;
}

/* ---- rounds ---- */

/* One run of one width on the paths there are, in turns as to which goes first. keep: its figures count. */
static int run_once(const struct bench_server *b, struct bench_rig *r, struct series *s, u32 run, bool keep,
                    struct err *err)
{
    struct heard *h[BOTH] = {mem_array(s->streams, sizeof **h), mem_array(s->streams, sizeof **h)};
    int rc = h[HTTP] && h[ENGINE] ? 0 : err_set(err, "out of memory");
    for (u32 k = 0; !rc && k < BOTH; k++) {
        enum path p = (enum path)((k + run) % BOTH);
        if (p == ENGINE && !r->engine)
            continue;
        rc = p == HTTP ? hear_server(b, r, run, h[p], s->streams, err) : hear_engine(r, run, h[p], s->streams, err);
        if (!rc && keep)
            rc = fill(s->runs[p], s->n_runs, h[p], s->streams, r->setup->gen, err);
    }
    for (u32 i = 0; !rc && r->engine && i < s->streams; i++)
        if (h[HTTP][i].text.len != h[ENGINE][i].text.len ||
            memcmp(h[HTTP][i].text.at, h[ENGINE][i].text.at, h[HTTP][i].text.len) != 0)
            rc = err_set(err,
                         "the server's text of stream %u of %u is not the engine's: does it serve this model, with "
                         "the same --kv?",
                         i, s->streams);
    forget(h[HTTP], s->streams);
    forget(h[ENGINE], s->streams);
    s->n_runs += !rc && keep;
    return rc;
}

/* Not counted: connections, pages and clocks come to rest. */
static int warm_up(const struct bench_server *b, struct bench_rig *r, struct series *all, struct err *err)
{
    const struct bench_setup *whole = r->setup;
    struct bench_setup brief = *whole;
    brief.prompt = min_u32(brief.prompt, 16);
    brief.gen = 4;
    r->setup = &brief;
    int rc = 0;
    for (u32 i = 0; !rc && i < brief.n_widths; i++)
        rc = run_once(b, r, &all[i], i, false, err);
    r->setup = whole;
    return rc;
}

static int run_rounds(const struct bench_server *b, struct bench_rig *r, struct series *all, struct err *err)
{
    const struct bench_setup *s = r->setup;
    u32 run = s->n_widths;
    for (u32 i = 0; i < s->n_widths; i++)
        all[i].streams = s->widths[i];
    if (warm_up(b, r, all, err))
        return -1;
    for (u32 round = 0; round < s->runs; round++)
        for (u32 i = 0; i < s->n_widths; i++)
            if (run_once(b, r, &all[i], run++, true, err))
                return -1;
    return 0;
}

/* ---- what is printed ---- */

static struct bench_spread ratio(const struct series *s, enum figure f)
{
    double x[BENCH_MAX_RUNS];
    for (u32 i = 0; i < s->n_runs; i++)
        x[i] = s->runs[ENGINE][f][i] > 0 ? s->runs[HTTP][f][i] / s->runs[ENGINE][f][i] : 0;
    return bench_spread(x, s->n_runs);
}

static void print_table(const struct bench_server *b, const struct bench_rig *r, const struct series *all)
{
    const struct bench_setup *s = r->setup;
    printf("%.40s at %.36s, %u slots of %u\n", b->model, b->shown, b->n_slots, b->n_ctx);
    printf("%u prompt tokens a stream, %u generated, %u runs\n", s->prompt, s->gen, s->runs);
    puts("\n              tok/s of all streams            with    ms to first   between tokens\n"
         "  B path      median    least     most   first    p50     p95     p50     p95");
    for (u32 i = 0; i < s->n_widths; i++) {
        for (u32 p = 0; p < (r->engine ? BOTH : 1); p++) {
            double m[N_FIGURES];
            for (u32 f = 0; f < N_FIGURES; f++)
                m[f] = bench_spread(all[i].runs[p][f], all[i].n_runs).median;
            struct bench_spread t = bench_spread(all[i].runs[p][TOK_S], all[i].n_runs);
            printf("%3u %-6s %9.1f %8.1f %8.1f %7.1f %7.1f %7.1f %7.2f %7.2f\n", all[i].streams, PATH_NAMES[p],
                   t.median, t.min, t.max, m[ALL_TOK_S], m[FIRST_P50_MS], m[FIRST_P95_MS], m[GAP_P50_MS],
                   m[GAP_P95_MS]);
        }
        if (!r->engine)
            continue;
        struct bench_spread t = ratio(&all[i], TOK_S);
        printf("%3u ratio  %9.3f %8.3f %8.3f %7.3f   every text the same by both\n", all[i].streams, t.median, t.min,
               t.max, ratio(&all[i], ALL_TOK_S).median);
    }
}

static json_t *spread_json(struct bench_spread s)
{
    return json_pack("{s:f, s:f, s:f}", "median", s.median, "min", s.min, "max", s.max);
}

static int print_json(const struct bench_server *b, const struct bench_rig *r, const struct series *all,
                      struct err *err)
{
    const struct bench_setup *s = r->setup;
    json_t *runs = json_array(), *ratios = json_array();
    for (u32 i = 0; i < s->n_widths; i++) {
        for (u32 p = 0; p < (r->engine ? BOTH : 1); p++) {
            json_t *j = json_pack("{s:i, s:s}", "streams", (int)all[i].streams, "path", PATH_NAMES[p]);
            for (u32 f = 0; f < N_FIGURES; f++)
                json_object_set_new(j, FIGURE_NAMES[f], spread_json(bench_spread(all[i].runs[p][f], all[i].n_runs)));
            json_array_append_new(runs, j);
        }
        if (r->engine)
            json_array_append_new(ratios, json_pack("{s:i, s:o, s:o}", "streams", (int)all[i].streams,
                                                    "aggregate_tok_s", spread_json(ratio(&all[i], TOK_S)),
                                                    "with_first_tok_s", spread_json(ratio(&all[i], ALL_TOK_S))));
    }
    json_t *j = json_pack("{s:s, s:s, s:i, s:i, s:s, s:I, s:i, s:i, s:i, s:o, s:o}", "server", b->shown, "model",
                          b->model, "slots", (int)b->n_slots, "ctx", (int)b->n_ctx, "commit", version_commit(),
                          "seed", (json_int_t)s->seed, "prompt_tokens", (int)s->prompt, "generated_tokens",
                          (int)s->gen, "repeats", (int)s->runs, "runs", runs, "http_to_engine", ratios);
    char *text = j ? json_dumps(j, JSON_REAL_PRECISION(6)) : NULL;
    json_decref(j);
    if (!text)
        return err_set(err, "cannot write the figures as JSON");
    printf("%s\n", text);
    free(text);
    return 0;
}

int bench_server_run(const struct bench_server *b, struct bench_rig *r, bool json, struct err *err)
{
    struct series *all = mem_array(r->setup->n_widths, sizeof *all);
    if (!all)
        return err_set(err, "out of memory");
    if (r->engine && r->n_vocab != b->n_vocab) {
        free(all);
        return err_set(err, "%s serves a model of %u tokens, -m has %u: expected the same model", b->shown,
                       b->n_vocab, r->n_vocab);
    }
    r->n_vocab = b->n_vocab;
    signal(SIGPIPE, SIG_IGN); /* a server that goes away is a line, not an end */
    int rc = run_rounds(b, r, all, err);
    if (!rc && json)
        rc = print_json(b, r, all, err);
    else if (!rc)
        print_table(b, r, all);
    free(all);
    return rc;
}
