/* A long prompt joins streams that decode. What those streams notice is the gap between two of
 * their tokens; what the newcomer notices is how long its prompt takes. The streams' tokens are
 * forced, so that the long prompt's reader has ordinary company; they are stopped once the prompt
 * has its first token. */
#include "cli/bench.h"
#include "engine/engine.h"

#include <stdlib.h>

enum {
    START = 32, /* a running stream's own prompt */
    SPARE = 64 /* steps beside one for each row of the long prompt, of which a step carries at least
                  one */
};

u32 bench_mixed_ctx(const struct bench_setup *s)
{
    return START + s->gen + s->prompt + SPARE;
}

struct gaps {
    double *ms;
    u32 n;
};

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(struct gaps *g, double share)
{
    if (g->n == 0)
        return 0;
    qsort(g->ms, g->n, sizeof *g->ms, order);
    return g->ms[(u32)(share * (g->n - 1) + 0.5)];
}

/* Reads what a stream made until it ended: gaps that end before the joiner came, gaps that end
 * while it was read. */
static int collect(struct ps_stream *s, double from, double join, double until, struct gaps *idle,
                   struct gaps *busy, struct err *err)
{
    struct ps_token t;
    struct ps_error why;
    double last = 0;
    int rc;
    while ((rc = ps_stream_next(s, &t, &why)) == 1) {
        double gap = 1e3 * (t.time - last);
        if (last > 0 && last >= from && t.time <= join)
            idle->ms[idle->n++] = gap;
        else if (last > 0 && t.time > join && t.time <= until)
            busy->ms[busy->n++] = gap;
        last = t.time;
    }
    return rc ? err_set(err, "%s", why.text) : 0;
}

static struct ps_stream *start(struct bench_rig *r, u32 which, u32 *ids, u32 n, u32 max,
                               struct err *err)
{
    struct ps_error why;
    for (u32 i = 0; i < n + max; i++)
        ids[i] = bench_id(r, which, i);
    struct ps_request q = {
        .ids = ids, .n_ids = n, .max_tokens = max, .forced = ids + n, .domain = r->domain++};
    struct ps_stream *s = ps_stream_open(r->engine, &q, &why);
    if (!s)
        err_set(err, "%s", why.text);
    return s;
}

/* The n-th token of a stream; its time. */
static int await(struct ps_stream *s, u32 n, double *time, struct err *err)
{
    struct ps_token t = {0};
    struct ps_error why = {.text = ""};
    for (u32 i = 0; i < n; i++)
        if (ps_stream_next(s, &t, &why) != 1)
            return err_set(err, "a stream ended early: %s", why.text);
    *time = t.time;
    return 0;
}

static void fill(struct bench_mixed *m, const struct bench_setup *s, struct gaps *idle,
                 struct gaps *busy, double seconds)
{
    u32 i = m->n_runs++;
    double p50 = percentile(idle, 0.5), p95 = percentile(idle, 0.95);
    m->runs[MIX_IDLE_P50_MS][i] = p50;
    m->runs[MIX_IDLE_P95_MS][i] = p95;
    m->runs[MIX_BUSY_P50_MS][i] = percentile(busy, 0.5);
    m->runs[MIX_BUSY_P95_MS][i] = percentile(busy, 0.95);
    m->runs[MIX_RATIO_P50][i] = p50 > 0 ? m->runs[MIX_BUSY_P50_MS][i] / p50 : 0;
    m->runs[MIX_RATIO_P95][i] = p95 > 0 ? m->runs[MIX_BUSY_P95_MS][i] / p95 : 0;
    m->runs[MIX_PROMPT_TOK_S][i] = s->prompt / seconds;
    m->runs[MIX_FIRST_MS][i] = 1e3 * seconds;
}

/* Streams run for gen tokens each, then the prompt joins. s: room for streams + 1. What was read to
 * wait for a time is not seen again by collect; that is one token of each stream and stream 0's
 * idle ones. */
static int play(struct bench_rig *r, struct bench_mixed *m, struct ps_stream **s, u32 *ids,
                struct gaps *idle, struct gaps *busy, struct err *err)
{
    const struct bench_setup *o = r->setup;
    u32 max = bench_mixed_ctx(o) - START - 1;
    double from = 0, join, until, t;
    int rc = 0;
    engine_hold(r->engine, true);
    for (u32 i = 0; i < m->streams && rc == 0; i++)
        rc = (s[i] = start(r, i, ids, START, max, err)) ? 0 : -1;
    engine_hold(r->engine, false);
    if (rc)
        return -1;
    for (u32 i = 0; i < m->streams; i++) {
        if (await(s[i], 1, &t, err))
            return -1;
        from = t > from ? t : from;
    }
    if (await(s[0], o->gen, &t, err))
        return -1;
    join = time_now();
    s[m->streams] = start(r, m->streams, ids, o->prompt, 1, err);
    if (!s[m->streams] || await(s[m->streams], 1, &until, err))
        return -1;
    for (u32 i = 0; i < m->streams; i++)
        ps_stream_cancel(s[i]);
    for (u32 i = 0; i < m->streams; i++)
        if (collect(s[i], from, join, until, idle, busy, err))
            return -1;
    fill(m, o, idle, busy, until - join);
    return 0;
}

int bench_mixed(struct bench_rig *r, struct bench_mixed *m, struct err *err)
{
    u64 most = bench_mixed_ctx(r->setup) + r->setup->prompt;
    struct gaps idle = {mem_array(most * m->streams, sizeof(double)), 0};
    struct gaps busy = {mem_array(most * m->streams, sizeof(double)), 0};
    struct ps_stream **s = mem_array(m->streams + 1, sizeof(struct ps_stream *));
    u32 *ids = mem_array(most, sizeof *ids);
    int rc = idle.ms && busy.ms && s && ids ? play(r, m, s, ids, &idle, &busy, err)
                                            : err_set(err, "out of memory");
    for (u32 i = 0; s && i <= m->streams; i++)
        ps_stream_close(s[i]);
    free(idle.ms);
    free(busy.ms);
    free(s);
    free(ids);
    return rc;
}
