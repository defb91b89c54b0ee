/* plainsong verify: the promise, checked on this machine. Every text runs alone once; then the same
 * texts run in company, in every setting there is, and each token's full logits must be the same
 * bytes. Results go to stdout, a line for each setting; the last line counts. */
#include "base/pool.h"
#include "base/sysmem.h"
#include "cli/cli.h"
#include "cli/cost.h"
#include "cli/opts.h"
#include "cli/outfile.h"
#include "cli/progress.h"
#include "cli/verify_golden.h"
#include "cli/verify_report.h"
#include "cli/verify_setting.h"
#include "cli/verify_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_STREAMS = 32, /* numbers in --streams */
    GEN = 64,
    QUICK_GEN = 8,
    COMPARISONS = 2000,
    REDO = 3 /* times a failing setting is run again to find the operation */
};

struct wishes { /* the command line */
    const char *streams, *report, *only;
    u32 gen, minutes, comparisons;
    u64 seed;
    bool golden, quick, stop;
    struct opts_engine engine;
};

struct verify {
    const struct wishes *o;
    struct ps_model *model;
    struct ps_model_info info;
    u32 streams[MAX_STREAMS], n_streams, n_cores, n_ctx, gen, comparisons;
    struct verify_bounds bounds;
    struct verify_texts texts;
    struct verify_settings settings;
    struct ps_engine *engine; /* of settings [first, now] */
    struct ps_engine_options open_as;
    u32 first, most_slots; /* most_slots: what fits into memory */
    bool quick, slow;      /* slow: an emulated device, which is quick always */
    bool by_rows;          /* how logits were compared */
    struct verify_tally total;
    bool warned, headed; /* the heading has been said */
    bool told; /* the first difference has been told */
    u64 hash;  /* over all solo logits */
    double start, drawn;
    bool terminal;
    const char *now; /* the setting that runs */
    char device[16], isa[96], golden[160], self_test[320];
    u32 n_threads;
    u64 told_bytes; /* of the engine whose cost was printed last */
    FILE *log; /* the lines for the report */
    struct outfile report;
};

static const struct opt_usage usage = {
    "verify",
    "plainsong verify [-m MODEL] [options]",
    "Checks that every stream's bytes are its solo bytes: each text runs alone, then in company in "
    "every setting "
    "(streams, ragged joins and ends, prompt chunks, kept prefixes, threads, instruction sets, "
    "expert modes, setup "
    "cache), and the full logits of every token are compared. The last line counts comparisons and "
    "differences; exit "
    "status 1 when there is one, and the first is named down to the operation. An option of the "
    "engine that is given "
    "is not varied.",
    0,
};

#define AT(field) offsetof(struct wishes, field)

static const struct opt table[] = {
    {0, "streams", OPT_TEXT, AT(streams), 0, 0, "LIST",
     "numbers of streams to run together: 1,2,3,4,5,8,16,32,64 as far as they fit"},
    {0, "gen", OPT_U32, AT(gen), 1, 1 << 16, "N",
     "tokens of an answer: 64; some are half as long again"},
    {0, "comparisons", OPT_U32, AT(comparisons), 0, 1 << 30, "N",
     "go on with drawn settings until N whole answers were compared: 2000; with --streams, --gen "
     "or --quick 0"},
    {0, "minutes", OPT_U32, AT(minutes), 1, 1 << 16, "N",
     "go on with new texts and drawn settings until so much time has passed"},
    {0, "quick", OPT_FLAG, AT(quick), 0, 0, NULL,
     "few short answers, one setting of each kind: seconds; with --device emu always"},
    {0, "golden", OPT_FLAG, AT(golden), 0, 0, NULL,
     "only compare this model's frozen hash, on every instruction set of a CPU"},
    {0, "stop", OPT_FLAG, AT(stop), 0, 0, NULL, "end with the first setting that differs"},
    {0, "only", OPT_TEXT, AT(only), 0, 0, "TEXT", "only settings whose line begins with TEXT"},
    {0, "seed", OPT_U64, AT(seed), 0, 0, "S", "of texts and settings: 1"},
    {0, "report", OPT_TEXT, AT(report), 0, 0, "FILE",
     "write a summary to be put into a bug report"},
};

/* ---- output ---- */

static void clear_line(struct verify *v)
{
    if (v->drawn > 0)
        fputs("\r\033[K", stderr);
    v->drawn = 0;
}

static void tell(void *arg, const struct verify_tally *so_far)
{
    struct verify *v = arg;
    double now = time_now();
    if (!v->terminal || now - v->drawn < 0.1)
        return;
    fprintf(stderr, "\r%.44s: %llu tokens, %.0f s\033[K", v->now,
            (unsigned long long)so_far->tokens, now - v->start);
    fflush(stderr);
    v->drawn = now;
}

/* A line to stdout, and kept for the report. */
static void say(struct verify *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct verify *v, const char *fmt, ...)
{
    va_list args;
    clear_line(v);
    for (u32 i = 0; i < 2; i++) {
        FILE *to = i ? v->log : stdout;
        va_start(args, fmt);
        vfprintf(to, fmt, args);
        va_end(args);
    }
    fflush(stdout);
}

/* ---- engines ---- */

/* Settings open many engines: the first one's cost is printed, and then where it has doubled. */
static void tell_cost(struct verify *v)
{
    struct ps_cost c;
    ps_engine_cost(v->engine, &c);
    if (v->told_bytes && c.total < 2 * v->told_bytes)
        return;
    if (v->told_bytes)
        c.n_others = 0; /* told once */
    v->told_bytes = c.total;
    cost_print(stderr, &c);
}

static int open_engine(struct verify *v, const struct ps_engine_options *wish, struct err *err)
{
    struct ps_error why;
    struct progress bar;
    struct ps_engine_options o = *wish;
    ps_engine_close(v->engine);
    clear_line(v);
    o.progress = progress_open(&bar);
    v->engine = ps_engine_open(v->model, &o, &why);
    progress_close(&bar);
    v->open_as = *wish;
    if (!v->engine)
        return err_set(err, "%s", why.text);
    if (!v->headed) /* a device that is refused leaves its one line only */
        say(v, "%-52s %7s %8s %6s %7s %7s\n", "setting", "streams", "tokens", "differ", "seconds",
            "tok/s");
    v->headed = true;
    tell_cost(v);
    return 0;
}

/* The engine of setting i: the open one where it fits. Fewer slots when memory does not hold them;
 * 1: even so the setting does not fit. */
static int engine_for(struct verify *v, u32 i, struct err *err)
{
    struct verify_setting *s = &v->settings.list[i];
    u64 rows = (u64)s->n * (v->gen + v->gen / 2) * v->info.n_vocab * sizeof(float),
        avail = sysmem_available();
    if (avail && rows > avail / 2)
        return 1;
    s->o.n_slots = min_u32(s->o.n_slots, v->most_slots);
    if (v->engine && verify_setting_same_engine(&s->o, &v->open_as))
        return s->kind == VERIFY_FUSED && s->n > s->o.n_slots;
    v->first = i;
    while (open_engine(v, &s->o, err)) {
        if (s->o.n_slots == 1 || v->o->engine.slots)
            return -1;
        v->most_slots = s->o.n_slots /= 2;
    }
    return s->kind == VERIFY_FUSED && s->n > s->o.n_slots;
}

static void solo_options(const struct verify *v, struct ps_engine_options *o)
{
    *o = (struct ps_engine_options){
        .n_slots = 1, .n_ctx = v->n_ctx, .device = v->bounds.set.device, .kv = v->bounds.set.kv};
}

/* ---- alone ---- */

static int sing_alone(struct verify *v, const struct verify_wish *wish, struct err *err)
{
    struct ps_engine_options o;
    struct ps_stats stats;
    double t0 = time_now();
    u64 tokens = 0;
    solo_options(v, &o);
    if (open_engine(v, &o, err) || verify_text_open(&v->texts, v->model, wish, err))
        return -1;
    v->now = "alone";
    v->by_rows = v->texts.rows;
    for (u32 i = 0; i < v->texts.n; i++) {
        if (verify_text_sing(&v->texts, i, v->model, v->engine, err))
            return -1;
        tokens += v->texts.list[i].n_out;
        tell(v, &(struct verify_tally){.tokens = tokens});
    }
    ps_engine_stats(v->engine, &stats);
    snprintf(v->device, sizeof v->device, "%s", stats.device);
    snprintf(v->isa, sizeof v->isa, "%s", stats.isa);
    if (strcmp(stats.device, "cpu") != 0)
        snprintf(v->self_test, sizeof v->self_test, "%s", stats.warning ? stats.warning : "passed");
    v->n_threads = stats.n_threads;
    v->bounds.isas = strcmp(stats.device, "cpu") == 0;
    v->bounds.threads = stats.n_threads > 0;
    if (stats.warning && !v->warned)
        say(v, "warning: %s\n", stats.warning);
    v->warned = true;
    say(v, "%-52s %7u %8llu %6s %7.1f %7.0f\n", "alone", v->texts.n, (unsigned long long)tokens, "",
        time_now() - t0, (double)tokens / (time_now() - t0));
    return 0;
}

/* ---- the first difference ---- */

/* Runs setting i and those before it on its engine again; the rows of the trace's text are compared
 * in the last. */
static int redo(struct verify *v, u32 i, struct verify_trace *trace, bool *again, struct err *err)
{
    struct verify_tally tally = {0};
    struct verify_diff diff = {0};
    struct verify_scene scene;
    if (open_engine(v, &v->settings.list[i].o, err))
        return -1;
    for (u32 k = v->first; k <= i; k++) {
        const struct verify_setting *s = &v->settings.list[k];
        verify_scene_make(&scene, s->kind, s->n, v->gen, s->seed, &v->texts);
        diff.found = false;
        if (k == i)
            verify_trace_compare(trace, v->engine);
        if (verify_scene_run(&scene, &v->texts, v->gen, v->model, v->engine, &tally, &diff, tell, v,
                             err))
            return -1;
    }
    *again = diff.found;
    return 0;
}

/* The text alone on a fresh engine, its rows recorded. *changed: it is not what it was after other
 * texts. */
static int record(struct verify *v, const struct verify_diff *d, struct verify_trace **trace,
                  bool *changed, struct err *err)
{
    struct verify_text *x = &v->texts.list[d->text];
    struct ps_engine_options o;
    u64 hash = v->texts.hash, bytes = x->n_out * sizeof *x->hashes;
    struct verify_hash *before = mem_array(x->n_out, sizeof *before);
    if (!before)
        return err_set(err, "out of memory");
    memcpy(before, x->hashes, bytes);
    solo_options(v, &o);
    int rc = open_engine(v, &o, err);
    if (rc == 0)
        rc = verify_trace_open(trace, x, d->position + 1, v->engine, err);
    if (rc == 0) {
        verify_trace_record(*trace, v->engine);
        rc = verify_text_sing(&v->texts, d->text, v->model, v->engine, err);
    }
    *changed = memcmp(before, x->hashes, bytes) != 0;
    v->texts.hash = hash;
    free(before);
    return rc;
}

/* All texts alone again, in order, the last one compared with what it was on a fresh engine. */
static int sing_again(struct verify *v, u32 text, struct verify_trace *trace, struct err *err)
{
    struct ps_engine_options o;
    u64 hash = v->texts.hash;
    solo_options(v, &o);
    int rc = open_engine(v, &o, err);
    for (u32 i = 0; rc == 0 && i <= text; i++) {
        if (i == text)
            verify_trace_compare(trace, v->engine);
        rc = verify_text_sing(&v->texts, i, v->model, v->engine, err);
    }
    v->texts.hash = hash;
    return rc;
}

static int find_operation(struct verify *v, u32 i, const struct verify_diff *d, struct err *err)
{
    struct verify_trace *trace = NULL;
    char where[160];
    bool again = false, found = false, changed = false;
    u32 first = v->first;
    int rc = record(v, d, &trace, &changed, err);
    if (rc == 0 && changed) {
        rc = sing_again(v, d->text, trace, err);
        say(v, "  alone on a fresh engine it is not what it was alone after other texts\n");
        found = rc == 0 && verify_trace_found(trace, where, sizeof where);
    }
    v->first = first;
    for (u32 k = 0; rc == 0 && k < REDO && !found; k++) {
        rc = redo(v, i, trace, &again, err);
        found = rc == 0 && verify_trace_found(trace, where, sizeof where);
    }
    if (rc == 0 && found)
        say(v, "  first operation that differs: %s\n", where);
    else if (rc == 0 && again)
        say(v,
            "  no operation of this text differs: its results are mixed up after the last one\n");
    else if (rc == 0)
        say(v, "  not seen again in %d more runs: it depends on timing or on the hardware\n", REDO);
    ps_engine_close(v->engine); /* it still has the trace */
    v->engine = NULL;
    verify_trace_close(trace);
    return rc;
}

static int tell_difference(struct verify *v, u32 i, const struct verify_diff *d, struct err *err)
{
    const struct verify_text *x = &v->texts.list[d->text];
    v->told = true;
    say(v, "first difference: %s: stream %u (%s), token %u (made at position %u): %s\n",
        v->settings.list[i].name, d->part, x->name, d->token, d->position, d->what);
    if (d->sampled) {
        say(v, "  first operation that differs: sampling, after the last layer\n");
        return 0;
    }
    return find_operation(v, i, d, err);
}

/* ---- settings ---- */

static void add_tally(struct verify_tally *to, const struct verify_tally *t)
{
    to->comparisons += t->comparisons;
    to->full += t->full;
    to->differ += t->differ;
    to->tokens += t->tokens;
    to->kept += t->kept;
    for (u32 i = 0; i < COUNT(t->cancelled); i++)
        to->cancelled[i] += t->cancelled[i];
    to->rows = t->rows > to->rows ? t->rows : to->rows;
}

static int run_setting(struct verify *v, u32 i, struct err *err)
{
    struct verify_tally tally = {0};
    struct verify_diff diff = {0};
    struct verify_scene scene;
    const char *name = v->settings.list[i].name;
    if (v->o->only && strncmp(name, v->o->only, strlen(v->o->only)) != 0)
        return 0;
    double t0 = time_now();
    v->now = name;
    int rc = engine_for(v, i, err);
    if (rc == 1)
        say(v, "%-52s does not fit into memory\n", name);
    if (rc)
        return rc < 0 ? -1 : 0;
    const struct verify_setting *s = &v->settings.list[i];
    verify_scene_make(&scene, s->kind, s->n, v->gen, s->seed, &v->texts);
    if (verify_scene_run(&scene, &v->texts, v->gen, v->model, v->engine, &tally, &diff, tell, v,
                         err))
        return -1;
    double t = time_now() - t0;
    say(v, "%-52s %7llu %8llu %6llu %7.1f %7.0f\n", name, (unsigned long long)tally.comparisons,
        (unsigned long long)tally.tokens, (unsigned long long)tally.differ, t,
        (double)tally.tokens / t);
    add_tally(&v->total, &tally);
    return diff.found && !v->told ? tell_difference(v, i, &diff, err) : 0;
}

static int run_settings(struct verify *v, u32 from, struct err *err)
{
    for (u32 i = from; i < v->settings.n && !(v->o->stop && v->total.differ); i++)
        if (run_setting(v, i, err))
            return -1;
    return 0;
}

static void close_round(struct verify *v)
{
    ps_engine_close(v->engine);
    v->engine = NULL;
    verify_text_close(&v->texts);
    verify_setting_free(&v->settings);
}

static bool stopped(const struct verify *v)
{
    return v->o->stop && v->total.differ;
}

static bool time_left(const struct verify *v)
{
    return v->o->minutes && !stopped(v) && time_now() - v->start < 60.0 * v->o->minutes;
}

/* All settings over one KV type, then drawn ones. */
static int campaign(struct verify *v, bool whole, struct err *err)
{
    bool few = v->quick || !whole;
    const struct verify_wish wish = {.seed = v->o->seed,
                                     .n_short = v->slow ? 5 : few ? 10 : 30,
                                     .n_long = v->slow ? whole : few ? 1 : 6,
                                     .gen = v->gen,
                                     .n_ctx = v->n_ctx};
    u64 state = v->o->seed;
    v->bounds.quick = few;
    if (sing_alone(v, &wish, err))
        return -1;
    v->hash = v->hash * 0x9FB21C651E98DF25ull + v->texts.hash;
    if (whole || !v->quick ? verify_setting_all(&v->settings, &v->bounds, err)
                              : verify_setting_few(&v->settings, &v->bounds, err))
        return -1;
    if (run_settings(v, 0, err))
        return -1;
    while (whole && v->total.full < v->comparisons && !stopped(v)) {
        u32 from = v->settings.n;
        u64 full = v->total.full;
        if (verify_setting_draw(&v->settings, &v->bounds, &state, err) ||
            run_settings(v, from, err))
            return -1;
        if (v->total.full == full && v->o->only)
            break;
    }
    close_round(v);
    return 0;
}

/* New texts, new settings: --minutes. */
static int go_on(struct verify *v, struct err *err)
{
    u64 state = v->o->seed + 77;
    v->bounds.quick = false;
    while (time_left(v)) {
        const struct verify_wish wish = {.seed = verify_text_draw(&state),
                                         .n_short = 20,
                                         .n_long = 4,
                                         .gen = v->gen,
                                         .n_ctx = v->n_ctx};
        if (sing_alone(v, &wish, err))
            return -1;
        for (u32 i = 0; i < 8 && time_left(v); i++) {
            u32 from = v->settings.n;
            if (verify_setting_draw(&v->settings, &v->bounds, &state, err) ||
                run_settings(v, from, err))
                return -1;
        }
        close_round(v);
    }
    return 0;
}

/* Whether this device keeps that KV type for this model. */
static bool keeps(struct verify *v, const char *kv)
{
    struct ps_engine_options o;
    struct ps_error why;
    solo_options(v, &o);
    o.kv = kv;
    struct ps_engine *e = ps_engine_open(v->model, &o, &why);
    ps_engine_close(e);
    return e;
}

/* ---- the frozen number ---- */

static int golden(struct verify *v, struct err *err)
{
    const char *kv = v->bounds.set.kv ? v->bounds.set.kv : "f16";
    u32 gen = v->gen, n_ctx = v->n_ctx;
    u64 known;
    v->gen = verify_golden_wish.gen;
    v->n_ctx = min_u32(v->info.n_ctx, verify_golden_wish.n_ctx);
    struct verify_wish wish = verify_golden_wish;
    wish.n_ctx = v->n_ctx;
    if (sing_alone(v, &wish, err))
        return -1;
    struct verify_bounds b = v->bounds;
    b.set.n_ctx = v->n_ctx;
    if (verify_setting_alone(&v->settings, &b, v->texts.n, err) ||
        run_settings(v, 0, err))
        return -1;
    unsigned long long now = v->texts.hash;
    if (!verify_golden_known(v->model, kv, &known)) {
        snprintf(v->golden, sizeof v->golden, "%016llx with %s; no number is known for this model",
                 now, kv);
    } else if (known == now) {
        snprintf(v->golden, sizeof v->golden, "%016llx with %s, as frozen", now, kv);
    } else {
        snprintf(v->golden, sizeof v->golden, "%016llx with %s, frozen is %016llx", now, kv,
                 (unsigned long long)known);
        v->total.differ++;
    }
    say(v, "golden: %s\n", v->golden);
    if (v->o->golden)
        v->hash = now;
    close_round(v);
    v->gen = gen;
    v->n_ctx = n_ctx;
    return 0;
}

/* ---- the command ---- */

static int read_streams(struct verify *v, const char *list, struct err *err)
{
    static const u32 ALL[] = {1, 2, 3, 4, 5, 8, 16, 32, 64}, QUICK[] = {1, 2, 4, 8};
    const u32 *from = v->quick ? QUICK : ALL;
    for (u32 i = 0; !list && i < (v->quick ? COUNT(QUICK) : COUNT(ALL)); i++)
        v->streams[v->n_streams++] = from[i];
    while (list && *list) {
        char number[16];
        size_t len = strcspn(list, ",");
        u64 n = 0;
        snprintf(number, sizeof number, "%.*s", (int)min_u64(len, 15), list);
        if (!opts_u64(number, &n) || n < 1 || n > VERIFY_PARTS || v->n_streams == MAX_STREAMS ||
            (v->n_streams && v->streams[v->n_streams - 1] >= n) || (list[len] && !list[len + 1]))
            return err_set(
                err, "--streams \"%.40s\": expected rising numbers from 1 to %d, as in 1,2,4,8",
                v->o->streams, VERIFY_PARTS);
        v->streams[v->n_streams++] = (u32)n;
        list += len + (list[len] == ',');
    }
    if (v->o->engine.slots)
        while (v->n_streams > 1 && v->streams[v->n_streams - 1] > v->o->engine.slots)
            v->n_streams--;
    return v->n_streams ? 0 : err_set(err, "--streams: expected numbers, as in 1,2,4,8");
}

static int read_bounds(struct verify *v, struct err *err)
{
    const struct wishes *o = v->o;
    u32 longest = v->quick ? 257 : 520, half;
    v->gen = o->gen ? o->gen : v->quick ? QUICK_GEN : GEN;
    half = v->gen + v->gen / 2;
    v->comparisons = o->comparisons;
    if (o->comparisons == UINT32_MAX)
        v->comparisons = v->quick || o->streams || o->gen ? 0 : COMPARISONS;
    v->n_ctx = (u32)round_up_u64(longest + half, 32);
    v->n_ctx = min_u32(v->n_ctx, o->engine.ctx ? o->engine.ctx : v->info.n_ctx);
    v->n_ctx = min_u32(v->n_ctx, v->info.n_ctx);
    if (v->n_ctx < half + 8)
        return err_set(err, "answers of up to %u tokens do not fit a context of %u", half,
                       v->n_ctx);
    v->most_slots = UINT32_MAX;
    v->n_cores = pool_cores();
    v->bounds = (struct verify_bounds){.streams = v->streams,
                                       .n_streams = v->n_streams,
                                       .gen = v->gen,
                                       .slow = v->slow,
                                       .whole = longest,
                                       .n_cores = v->n_cores,
                                       .seed = o->seed};
    opts_engine_fill(&o->engine, &v->bounds.set);
    v->bounds.set.n_ctx = v->n_ctx;
    return 0;
}

static int check_all(struct verify *v, struct err *err)
{
    if ((v->o->golden || v->o->report) && golden(v, err))
        return -1;
    if (v->o->golden)
        return 0;
    if (campaign(v, true, err))
        return -1;
    if (!v->bounds.set.kv && !stopped(v) && keeps(v, "q8_0")) {
        v->bounds.set.kv = "q8_0";
        if (campaign(v, false, err))
            return -1;
        v->bounds.set.kv = NULL;
    }
    return go_on(v, err);
}

static int report(struct verify *v, const char *lines, const char *last, struct err *err)
{
    struct verify_report r = {
        .model = v->model,
        .file = verify_golden_file(v->model),
        .device = v->device,
        .isa = v->isa,
        .n_threads = v->n_threads,
        .n_cores = v->n_cores,
        .self_test = v->self_test[0] ? v->self_test : NULL,
        .golden = v->golden,
        .settings = lines,
        .last = last,
    };
    verify_report_print(&r, v->report.out);
    return outfile_commit(&v->report, err);
}

static int summary(struct verify *v, char **lines, struct err *err)
{
    const struct verify_tally *t = &v->total;
    char last[128];
    say(v,
        "%llu of %llu comparisons over a whole answer, %llu tokens; cancelled: %llu queued, %llu "
        "in the prompt, "
        "%llu generating; "
        "%llu prompt tokens kept; up to %u rows a step; %s; %.1f s\n",
        (unsigned long long)t->full, (unsigned long long)t->comparisons,
        (unsigned long long)t->tokens, (unsigned long long)t->cancelled[0],
        (unsigned long long)t->cancelled[1], (unsigned long long)t->cancelled[2],
        (unsigned long long)t->kept, t->rows,
        v->by_rows ? "logits by memcmp" : "logits by two hashes", time_now() - v->start);
    snprintf(last, sizeof last, "verify: %llu comparisons, %llu differ, hash %016llx\n",
             (unsigned long long)t->comparisons, (unsigned long long)t->differ,
             (unsigned long long)v->hash);
    fflush(v->log);
    int rc = v->o->report ? report(v, *lines, last, err) : 0;
    if (rc == 0)
        fputs(last, stdout);
    return rc;
}

static int verify(const struct wishes *o)
{
    struct verify v = {.o = o, .start = time_now()};
    struct err err;
    struct ps_error why;
    const char *term = getenv("TERM");
    char *lines = NULL;
    size_t n_lines = 0;
    v.slow = o->engine.device && strcmp(o->engine.device, "emu") == 0;
    v.quick = o->quick || v.slow;
    if (read_streams(&v, o->streams, &err))
        return cli_fail(usage.command, EXIT_USAGE, "%s", err.text);
    v.terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    v.log = open_memstream(&lines, &n_lines);
    char *path = opts_model(o->engine.model, &err);
    int rc = path && v.log ? 0 : -1;
    if (path && !v.log)
        err_set(&err, "out of memory");
    if (rc == 0 && o->report)
        rc = outfile_open(&v.report, "--report", o->report, path, &err);
    if (rc == 0 && !(v.model = ps_model_open(path, &why)))
        rc = err_set(&err, "%s", why.text);
    if (rc == 0) {
        ps_model_info(v.model, &v.info);
        rc = read_bounds(&v, &err);
    }
    if (rc == 0)
        rc = check_all(&v, &err);
    if (rc == 0)
        rc = summary(&v, &lines, &err);
    clear_line(&v);
    close_round(&v);
    ps_model_close(v.model);
    outfile_close(&v.report);
    if (v.log)
        fclose(v.log);
    free(lines);
    free(path);
    return rc               ? cli_fail(usage.command, EXIT_WORLD, "%s", err.text)
           : v.total.differ ? EXIT_WORLD
                            : EXIT_DONE;
}

int cli_verify(int argc, char **argv)
{
    struct wishes o = {.seed = 1, .comparisons = UINT32_MAX};
    u32 n_args;
    const struct opt_group groups[] = {
        {"Options", table, COUNT(table), &o},
        {"Engine", opts_engine_table, opts_engine_count, &o.engine},
    };
    int rc = opts_parse(&usage, argc, argv, groups, COUNT(groups), NULL, &n_args);
    if (rc)
        return rc == OPTS_HELPED ? EXIT_DONE : EXIT_USAGE;
    return verify(&o);
}
