/* plainsong bench: how fast this model runs here. Ids are random but seeded and every stream is
 * made to say what was drawn for it, since greedy answers of random weights fall into loops that
 * keep choosing the same experts. Widths take turns and then again, so that what else this machine
 * does falls on all of them; medians are printed with least and most. */
#include "cli/bench.h"

#include "cli/bench_server.h"
#include "cli/cli.h"
#include "cli/cost.h"
#include "cli/outfile.h"
#include "cli/profile.h"
#include "cli/progress.h"
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

struct bench {
    const char *streams, *path, *plot, *http, *key_file;
    u32 prompt, gen, runs;
    bool mixed, json;
    struct opts_engine engine;
};

/* Of a server's streams the first is at work when the last one's prompt is read: short prompts leave a steady state. */
enum { PROMPT = 128, MIXED_PROMPT = 4096, HTTP_PROMPT = 16, GEN = 64, HTTP_GEN = 128 };
enum { RUNS = 5, SEED = 1, CTX_STEP = 256 };

static const struct opt_usage usage = {
    "bench",
    "plainsong bench [-m MODEL] [options]",
    "Measures decoding and prompts at several numbers of streams and prints a table: medians with "
    "least and most, "
    "tok/s after the first token and with it, the phases of a step, what it reads against what "
    "the memory "
    "gives. Two paths: the engine as its users have it, and the device alone, stepped in a loop.\n"
    "Every stream reads and says seeded random tokens. Times differ from run to run; the hash of "
    "the last logits does "
    "not, or the command fails.",
    0,
};

#define AT(field) offsetof(struct bench, field)

static const struct opt table[] = {
    {0, "streams", OPT_TEXT, AT(streams), 0, 0, "LIST",
     "numbers of streams: 1,2,4,8; with --mixed: 4"},
    {0, "prompt", OPT_U32, AT(prompt), 1, 1 << 20, "N",
     "tokens a stream reads: 128, with --http 16; of the joining prompt with --mixed: 4096"},
    {0, "gen", OPT_U32, AT(gen), 4, 1 << 20, "N", "tokens a stream makes, 4 at least: 64, with --http 128"},
    {0, "runs", OPT_U32, AT(runs), 1, BENCH_MAX_RUNS, "R", "runs at each number: 5"},
    {0, "path", OPT_CHOICE, AT(path), 0, 0, "engine|device",
     "one of the two alone: half of the time where prompts are long"},
    {0, "mixed", OPT_FLAG, AT(mixed), 0, 0, NULL,
     "how running streams keep their pace while a long prompt is read"},
    {0, "http", OPT_TEXT, AT(http), 0, 0, "URL",
     "measure a running plainsong serve, 8 streams; with -m by turns with an engine of this "
     "process, and the ratio"},
    {0, "api-key-file", OPT_TEXT, AT(key_file), 0, 0, "FILE", "whose first key the server takes"},
    {0, "json", OPT_FLAG, AT(json), 0, 0, NULL, "one JSON object instead of the table"},
    {0, "plot", OPT_TEXT, AT(plot), 0, 0, "FILE.svg",
     "tok/s over streams as a picture, beside the table"},
};

/* "1,2,4": whole numbers, rising or not. */
static int read_widths(const char *text, struct bench_setup *s, struct err *err)
{
    char number[16], quoted[80];
    const char *at = text;
    for (;;) {
        size_t len = strcspn(at, ",");
        u64 n = 0;
        snprintf(number, sizeof number, "%.*s", (int)(len < 15 ? len : 15), at);
        if (!opts_u64(number, &n) || n < 1 || n > BENCH_MAX_STREAMS ||
            s->n_widths == BENCH_MAX_WIDTHS)
            return err_set(err,
                           "--streams \"%s\": expected up to %d whole numbers from 1 to %d, with "
                           "commas between",
                           err_quote(quoted, sizeof quoted, text, strlen(text)), BENCH_MAX_WIDTHS,
                           BENCH_MAX_STREAMS);
        s->widths[s->n_widths++] = (u32)n;
        if (!at[len])
            return 0;
        at += len + 1;
    }
}

static u32 most_streams(const struct bench_setup *s)
{
    u32 n = 0;
    for (u32 i = 0; i < s->n_widths; i++)
        n = s->widths[i] > n ? s->widths[i] : n;
    return n;
}

static int check(const struct bench *o, struct bench_setup *s, struct err *err)
{
    *s = (struct bench_setup){
        .prompt = o->prompt  ? o->prompt
                  : o->mixed ? MIXED_PROMPT
                  : o->http  ? HTTP_PROMPT
                             : PROMPT,
        .gen = o->gen ? o->gen : o->http ? HTTP_GEN : GEN,
        .runs = o->runs ? o->runs : RUNS,
        .mixed = o->mixed,
        .serialize = o->engine.serialize,
        .profile = o->engine.profile,
        .seed = SEED,
        .first = o->path && strcmp(o->path, "device") == 0 ? PATH_DEVICE : PATH_ENGINE,
        .n_paths = o->path ? 1 : PATHS,
    };
    if (read_widths(o->streams ? o->streams : o->mixed ? "4" : o->http ? "8" : "1,2,4,8", s, err))
        return -1;
    if (o->http && (o->mixed || o->plot))
        return err_set(err, "--http with --%s: expected one of them", o->mixed ? "mixed" : "plot");
    if (o->path && (o->http || o->mixed || o->plot))
        return err_set(err, "--path with --%s: expected one of them",
                       o->http    ? "http"
                       : o->mixed ? "mixed"
                                  : "plot");
    if (o->key_file && !o->http)
        return err_set(err, "--api-key-file: expected --http URL with it");
    u32 slots = most_streams(s) + s->mixed;
    if (slots > BENCH_MAX_STREAMS)
        return err_set(err, "--streams %u with --mixed: expected less", slots - 1);
    if (o->engine.slots && o->engine.slots < slots)
        return err_set(err, "--slots %u: these streams need %u", o->engine.slots, slots);
    if (o->mixed && o->plot)
        return err_set(err, "--plot with --mixed: expected one of them");
    return 0;
}

/* ---- the rig ---- */

static void close_rig(struct bench_rig *r)
{
    ps_engine_close(r->engine);
    ps_model_close(r->model);
    free(r->ids);
}

static int draw_ids(struct bench_rig *r, struct err *err)
{
    u32 len = r->setup->prompt + r->setup->gen;
    r->ids = mem_array((u64)r->n_slots * len, sizeof *r->ids);
    if (!r->ids)
        return err_set(err, "out of memory");
    for (u32 i = 0; i < r->n_slots; i++)
        for (u32 k = 0; k < len; k++)
            r->ids[(u64)i * len + k] = bench_id(r, i, k);
    return 0;
}

/* Positions a slot needs; without a wish a long prompt of --mixed becomes what the model can hold.
 */
static u32 need_ctx(const struct bench *o, struct bench_setup *s, u32 n_ctx)
{
    if (!s->mixed)
        return s->prompt + s->gen;
    u32 over = bench_mixed_ctx(s) - s->prompt;
    if (!o->prompt && s->prompt + over > n_ctx && n_ctx > over)
        s->prompt = n_ctx - over;
    return s->prompt + over;
}

static int open_rig(struct bench_rig *r, const struct bench *o, struct bench_setup *s,
                    struct err *err)
{
    struct ps_error why;
    struct ps_model_info info;
    struct ps_engine_options eo = {0};
    struct progress bar;
    *r = (struct bench_rig){.setup = s, .domain = 1};
    char *path = opts_model(o->engine.model, err);
    if (!path)
        return -1;
    r->model = ps_model_open(path, &why);
    free(path);
    if (!r->model)
        return err_set(err, "%s", why.text);
    ps_model_info(r->model, &info);
    u32 need = need_ctx(o, s, info.n_ctx);
    opts_engine_fill(&o->engine, &eo);
    eo.n_slots = eo.n_slots ? eo.n_slots : most_streams(s) + s->mixed;
    if (!eo.n_ctx)
        eo.n_ctx = min_u32((u32)round_up_u64(need, CTX_STEP), info.n_ctx);
    if (need > eo.n_ctx)
        return err_set(
            err, "--prompt %u and --gen %u need a context of %u, there is one of %u: try less",
            s->prompt, s->gen, need, eo.n_ctx);
    eo.progress = progress_open(&bar);
    r->engine = ps_engine_open(r->model, &eo, &why);
    progress_close(&bar);
    if (!r->engine)
        return err_set(err, "%s", why.text);
    cost_greet(r->engine, true);
    r->n_vocab = info.n_vocab;
    r->n_slots = eo.n_slots;
    r->chunk = r->engine->chunk;
    return draw_ids(r, err);
}

/* ---- runs ---- */

/* One short run at the largest width, not counted: pages, clocks and caches come to rest. */
static int warm_up(struct bench_rig *r, struct err *err)
{
    struct bench_setup brief = *r->setup;
    struct bench_series *s = mem_array(1, sizeof *s);
    if (!s)
        return err_set(err, "out of memory");
    s->streams = most_streams(&brief);
    brief.prompt = min_u32(brief.prompt, 16);
    brief.gen = 4;
    const struct bench_setup *whole = r->setup;
    r->setup = &brief;
    int rc = bench_run(r, s, err);
    r->setup = whole;
    free(s);
    return rc;
}

static int run_widths(struct bench_rig *r, struct bench_machine *m, struct bench_series *series,
                      struct err *err)
{
    const struct bench_setup *s = r->setup;
    for (u32 run = 0; run < s->runs; run++) {
        bench_machine_measure(m);
        for (u32 i = 0; i < s->n_widths * s->n_paths; i++) {
            series[i].streams = s->widths[i / s->n_paths];
            series[i].path = (enum bench_path)(s->first + i % s->n_paths);
            if (bench_run(r, &series[i], err))
                return -1;
            if (i % s->n_paths && series[i].hash != series[i - 1].hash)
                return err_set(err, "%u streams: the paths' logits differ, see plainsong verify",
                               series[i].streams);
        }
    }
    bench_machine_measure(m);
    return 0;
}

static int run_mixed(struct bench_rig *r, struct bench_machine *m, struct bench_mixed *mixed,
                     struct err *err)
{
    const struct bench_setup *s = r->setup;
    for (u32 run = 0; run < s->runs; run++) {
        bench_machine_measure(m);
        for (u32 i = 0; i < s->n_widths; i++) {
            mixed[i].streams = s->widths[i];
            if (bench_mixed(r, &mixed[i], err))
                return -1;
        }
    }
    bench_machine_measure(m);
    return 0;
}

static void print_profile(const struct bench_result *r)
{
    char title[40];
    for (u32 i = 0; i < r->n_series; i++) {
        if (r->series[i].path != PATH_ENGINE)
            continue;
        snprintf(title, sizeof title, "%u streams, the last run:", r->series[i].streams);
        profile_print(stderr, title, r->series[i].stats);
    }
}

static int measure(struct bench_rig *r, const struct bench *o, struct bench_machine *m,
                   struct outfile *plot, struct err *err)
{
    const struct bench_setup *s = r->setup;
    struct bench_series *series = mem_array(s->n_widths * PATHS, sizeof *series);
    struct bench_mixed *mixed = mem_array(s->n_widths, sizeof *mixed);
    struct bench_result res = {
        .setup = s, .machine = m, .commit = version_commit(), .series = series, .mixed = mixed};
    int rc = series && mixed ? warm_up(r, err) : err_set(err, "out of memory");
    if (rc == 0)
        rc = s->mixed ? run_mixed(r, m, mixed, err) : run_widths(r, m, series, err);
    if (rc == 0) {
        res.n_series = s->mixed ? 0 : s->n_widths * s->n_paths;
        res.n_mixed = s->mixed ? s->n_widths : 0;
        ps_model_info(r->model, &res.model);
        ps_engine_stats(r->engine, &res.stats);
        if (o->json)
            rc = bench_json(&res, stdout, err);
        else
            bench_table(&res, stdout);
        if (s->profile)
            print_profile(&res);
    }
    if (rc == 0 && o->plot) {
        bench_plot(&res, plot->out);
        rc = outfile_commit(plot, err);
    }
    free(series);
    free(mixed);
    return rc;
}

/* Before the work, so that a name that cannot be written costs nothing. */
static int open_plot(struct outfile *plot, const struct bench *o, struct err *err)
{
    if (!o->plot)
        return 0;
    char *model = opts_model(o->engine.model, err);
    int rc = model ? outfile_open(plot, "--plot", o->plot, model, err) : -1;
    free(model);
    return rc;
}

/* The server is asked first: a model that nothing will be compared with is not loaded. */
static int measure_server(const struct bench *o, struct bench_setup *s, struct err *err)
{
    struct bench_server server;
    struct bench_rig rig = {.setup = s};
    int rc = bench_server_open(&server, o->http, o->key_file, s, err);
    if (rc == 0 && o->engine.model)
        rc = open_rig(&rig, o, s, err);
    if (rc == 0)
        rc = bench_server_run(&server, &rig, o->json, err);
    close_rig(&rig);
    return rc;
}

int cli_bench(int argc, char **argv)
{
    struct bench o = {0};
    struct bench_setup s;
    struct bench_rig rig = {0};
    struct bench_machine machine = {0};
    struct ps_stats stats;
    struct outfile plot = {0};
    struct err err;
    u32 n_args;
    const struct opt_group groups[] = {
        {"Options", table, COUNT(table), &o},
        {"Engine", opts_engine_table, opts_engine_count, &o.engine},
    };
    int rc = opts_parse(&usage, argc, argv, groups, COUNT(groups), NULL, &n_args);
    if (rc)
        return rc == OPTS_HELPED ? EXIT_DONE : EXIT_USAGE;
    if (check(&o, &s, &err))
        return cli_fail(usage.command, EXIT_USAGE, "%s", err.text);
    if (o.http) {
        rc = measure_server(&o, &s, &err);
        return rc ? cli_fail(usage.command, EXIT_WORLD, "%s", err.text) : EXIT_DONE;
    }
    rc = open_plot(&plot, &o, &err);
    if (rc == 0)
        rc = open_rig(&rig, &o, &s, &err);
    if (rc == 0) {
        ps_engine_stats(rig.engine, &stats);
        rc = bench_machine_open(&machine, o.engine.threads, &stats, &err);
    }
    if (rc == 0)
        rc = measure(&rig, &o, &machine, &plot, &err);
    outfile_close(&plot);
    bench_machine_close(&machine);
    close_rig(&rig);
    return rc ? cli_fail(usage.command, EXIT_WORLD, "%s", err.text) : EXIT_DONE;
}
