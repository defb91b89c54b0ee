/* One run at one width. Two paths: the engine as its users have it, scheduler and sampling
 * included, and the device alone, stepped in a loop by this thread. Both read the same ids and are
 * made to say the same, so both must come to the same logits: a run that does not is an error, not
 * a figure. */
#include "cli/bench.h"
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const bench_path_names[PATHS] = {"engine", "device"};

/* ---- ids ---- */

/* splitmix64: each (seed, stream, i) its own number. */
u32 bench_id(const struct bench_rig *r, u32 stream, u32 i)
{
    u64 z = r->setup->seed * 0xD1B54A32D192ED03ull +
            (((u64)stream << 32) + i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return (u32)((z ^ (z >> 31)) % r->n_vocab);
}

static u64 join_hash(u64 all, u64 one)
{
    return (all ^ one) * 0x100000001B3ull;
}

/* ---- counting ---- */

/* Multiply-adds of a step of so many rows, all of which want logits, at a mean position. */
static double count_macs(const struct plan *p, double rows, double positions)
{
    double n = 0;
    for (u32 i = 0; i < p->n_ops; i++) {
        const struct plan_op *op = &p->ops[i];
        if (op->kind == OP_ATTEND)
            n += 2 * positions * p->hp.n_heads * p->hp.d_head;
        if (op->kind != OP_MAT && op->kind != OP_EXPERTS_IN && op->kind != OP_EXPERTS_OUT)
            continue;
        for (u32 m = 0; m < op->n_mats; m++) {
            const struct plan_weight *w = &p->weights[op->mats[m].weight];
            n += (double)w->n_in * w->n_out * (op->kind == OP_MAT ? 1 : p->hp.n_used);
        }
    }
    return n * rows;
}

static u32 count_expert_ops(const struct plan *p)
{
    u32 n = 0;
    for (u32 i = 0; i < p->n_ops; i++)
        n += p->ops[i].kind == OP_EXPERTS_IN || p->ops[i].kind == OP_EXPERTS_OUT;
    return n;
}

struct counts { /* of the steady state */
    u64 steps, submissions, rows, expert_groups, bytes;
    double phase_s[4];
};

/* The phases of a step add up to its wall time. */
static void fill_steps(const struct bench_rig *r, double *f, const struct counts *c)
{
    const struct plan *p = &r->engine->plan;
    double steps = (double)c->steps, seconds = 0;
    u32 expert_ops = count_expert_ops(p);
    if (!c->steps)
        return;
    for (u32 i = 0; i < 4; i++)
        f[FIG_SETUP_MS + i] = 1e3 * c->phase_s[i] / steps, seconds += c->phase_s[i];
    f[FIG_STEP_MS] = 1e3 * seconds / steps;
    f[FIG_SUBMISSIONS] = (double)c->submissions / steps;
    f[FIG_ROWS] = (double)c->rows / steps;
    f[FIG_EXPERTS] = expert_ops ? (double)c->expert_groups / steps / expert_ops : 0;
    f[FIG_BYTES] = (double)c->bytes / steps;
    f[FIG_MACS] = count_macs(p, f[FIG_ROWS], r->setup->prompt + r->setup->gen / 2.0);
    f[FIG_GB_S] = seconds > 0 ? 1e-9 * (double)c->bytes / seconds : 0;
}

/* ---- the engine ---- */

struct voice {
    struct ps_stream *stream;
    double *times; /* [gen] of its tokens */
    u32 n;
};

static void close_all(struct voice *v, u32 n)
{
    for (u32 i = 0; v && i < n; i++)
        ps_stream_close(v[i].stream);
    if (v)
        free(v[0].times);
    free(v);
}

static struct voice *make_voices(u32 n, u32 gen)
{
    struct voice *v = mem_array(n, sizeof *v);
    double *times = v ? mem_array((u64)n * gen, sizeof *times) : NULL;
    for (u32 i = 0; times && i < n; i++)
        v[i].times = times + (u64)i * gen;
    if (v && !times) {
        free(v);
        v = NULL;
    }
    return v;
}

static int open_all(struct bench_rig *r, struct voice *v, u32 n, struct err *err)
{
    const struct bench_setup *s = r->setup;
    struct ps_error why;
    for (u32 i = 0; i < n; i++) {
        const u32 *ids = r->ids + (u64)i * (s->prompt + s->gen);
        struct ps_request q = {.ids = ids,
                               .n_ids = s->prompt,
                               .max_tokens = s->gen,
                               .forced = ids + s->prompt,
                               .domain = r->domain + i};
        v[i].stream = ps_stream_open(r->engine, &q, &why);
        if (!v[i].stream)
            return err_set(err, "%s", why.text);
    }
    r->domain += n;
    return 0;
}

/* Reads up to n tokens in all of one stream. */
static int listen(struct voice *v, u32 n, struct err *err)
{
    struct ps_token t;
    struct ps_error why;
    while (v->n < n) {
        if (ps_stream_next(v->stream, &t, &why) != 1)
            return err_set(err, "a stream ended after %u tokens: %s", v->n, why.text);
        v->times[v->n++] = t.time;
    }
    return 0;
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct counts between(const struct ps_stats *a, const struct ps_stats *b)
{
    return (struct counts){.steps = b->steps - a->steps,
                           .submissions = b->submissions - a->submissions,
                           .rows = b->rows - a->rows,
                           .expert_groups = b->expert_groups - a->expert_groups,
                           .bytes = b->bytes_read - a->bytes_read,
                           .phase_s = {b->setup_s - a->setup_s, b->submit_s - a->submit_s,
                                       b->wait_s - a->wait_s, b->tail_s - a->tail_s}};
}

/* Tokens a second of one stream between two times, which need not be its own tokens'. */
static double rate_between(const struct voice *v, double from, double to)
{
    u32 a = 0, b = v->n - 1;
    while (a < b && v->times[a] < from)
        a++;
    while (b > a && v->times[b] > to)
        b--;
    return b > a ? (b - a) / (v->times[b] - v->times[a]) : 0;
}

/* The steady state lies between the last stream's first token and the first stream's last one. */
static void fill_rates(const struct bench_rig *r, double *f, const struct voice *v, u32 n,
                       double begin)
{
    const struct bench_setup *s = r->setup;
    double from = 0, to = INFINITY, end = 0, rates[BENCH_MAX_STREAMS];
    for (u32 i = 0; i < n; i++) {
        double last = v[i].times[s->gen - 1];
        from = v[i].times[0] > from ? v[i].times[0] : from;
        to = last < to ? last : to;
        end = last > end ? last : end;
    }
    for (u32 i = 0; i < n; i++) {
        rates[i] = rate_between(&v[i], from, to);
        f[FIG_TOK_S] += rates[i];
    }
    qsort(rates, n, sizeof *rates, order);
    f[FIG_STREAM_TOK_S] = rates[n / 2];
    f[FIG_ALL_TOK_S] = (double)n * s->gen / (end - begin);
    f[FIG_PROMPT_TOK_S] = (double)n * s->prompt / (from - begin);
    f[FIG_FIRST_MS] = 1e3 * (from - begin);
}

static int run_engine(struct bench_rig *r, u32 n, double *f, u64 *hash, struct ps_stats stats[3],
                      struct err *err)
{
    struct ps_stream_info info;
    struct voice *v = make_voices(n, r->setup->gen);
    if (!v)
        return err_set(err, "out of memory");
    ps_engine_stats(r->engine, &stats[0]);
    engine_hold(r->engine, true);
    int rc = open_all(r, v, n, err);
    double begin = time_now();
    engine_hold(r->engine, false);
    if (rc)
        goto out;
    rc = -1;
    for (u32 i = 0; i < n; i++)
        if (listen(&v[i], 1, err))
            goto out;
    ps_engine_stats(r->engine, &stats[1]);
    if (listen(&v[0], r->setup->gen, err))
        goto out;
    ps_engine_stats(r->engine, &stats[2]);
    for (u32 i = 0; i < n; i++) {
        if (listen(&v[i], r->setup->gen, err))
            goto out;
        ps_stream_info(v[i].stream, &info);
        *hash = join_hash(*hash, info.logits_hash);
    }
    struct counts c = between(&stats[1], &stats[2]);
    fill_rates(r, f, v, n, begin);
    fill_steps(r, f, &c);
    rc = 0;
out:
    close_all(v, n);
    return rc;
}

/* ---- the device ---- */

/* What choosing a token needs is here after each step; a device that keeps rows of logits to itself gives
 * its list of likely ones. The ids that are fed are settled before. */
static int take_picks(struct device *d, u32 n, struct err *err)
{
    for (u32 i = 0; i < n; i++) {
        const u32 *picks = device_picks(d, i);
        if (picks && !picks[0])
            return err_set(err, "row %u of a step has a logit that is not finite", i);
    }
    return 0;
}

static int step(struct bench_rig *r, struct device *d, const struct row *rows, u32 n,
                struct err *err)
{
    u32 at_once = r->setup->serialize ? 1 : n;
    for (u32 i = 0; i < n; i += at_once)
        if (device_step(d, rows + i, at_once, err) || take_picks(d, at_once, err))
            return -1;
    return 0;
}

/* The prompts of n streams, one after another, in steps of `chunk` rows. */
static int read_prompts(struct bench_rig *r, struct device *d, u32 n, struct row *rows,
                        struct err *err)
{
    u32 each = r->setup->prompt, total = n * each, len = each + r->setup->gen;
    for (u32 at = 0; at < total;) {
        u32 k = min_u32(r->chunk, total - at);
        for (u32 i = 0; i < k; i++) {
            u32 slot = (at + i) / each, pos = (at + i) % each;
            rows[i] = (struct row){slot, pos, r->ids[(u64)slot * len + pos], pos == each - 1};
        }
        if (device_step(d, rows, k, err))
            return -1;
        at += k;
    }
    return 0;
}

static int run_device(struct bench_rig *r, u32 n, double *f, u64 *hash, struct err *err)
{
    const struct bench_setup *s = r->setup;
    struct device_stats a, b;
    u32 len = s->prompt + s->gen;
    struct row *rows = mem_array(n + r->chunk, sizeof *rows);
    if (!rows)
        return err_set(err, "out of memory");
    struct device *d = engine_borrow(r->engine);
    double t0 = time_now();
    int rc = read_prompts(r, d, n, rows, err);
    double t1 = time_now();
    device_stats(d, &a);
    for (u32 pos = s->prompt; rc == 0 && pos < len - 1; pos++) {
        for (u32 i = 0; i < n; i++)
            rows[i] = (struct row){i, pos, r->ids[(u64)i * len + pos], true};
        rc = step(r, d, rows, n, err);
    }
    double t2 = time_now();
    device_stats(d, &b);
    for (u32 i = 0; rc == 0 && i < n; i++) {
        /* Serialized, the last row's logits alone are there: each row goes once more. */
        if (s->serialize && device_step(d, rows + i, 1, err)) {
            rc = -1;
            break;
        }
        const float *logits = device_logits(d, s->serialize ? 0 : i);
        if (logits)
            *hash = join_hash(*hash, engine_hash(logits, r->n_vocab));
        else
            rc = err_set(err, "the device gave no logits");
    }
    engine_give_back(r->engine);
    free(rows);
    if (rc)
        return -1;
    struct counts c = {b.steps - a.steps,
                       b.submissions - a.submissions,
                       b.rows - a.rows,
                       b.expert_groups - a.expert_groups,
                       b.bytes_read - a.bytes_read,
                       {b.setup_s - a.setup_s, b.submit_s - a.submit_s, b.wait_s - a.wait_s, 0}};
    f[FIG_TOK_S] = (double)n * (s->gen - 1) / (t2 - t1);
    f[FIG_STREAM_TOK_S] = (s->gen - 1) / (t2 - t1);
    f[FIG_ALL_TOK_S] = (double)n * s->gen / (t2 - t0);
    f[FIG_PROMPT_TOK_S] = (double)n * s->prompt / (t1 - t0);
    f[FIG_FIRST_MS] = 1e3 * (t1 - t0);
    fill_steps(r, f, &c);
    return 0;
}

int bench_run(struct bench_rig *r, struct bench_series *s, struct err *err)
{
    double f[FIGURES] = {0};
    u64 hash = 0xCBF29CE484222325ull;
    int rc = s->path == PATH_ENGINE ? run_engine(r, s->streams, f, &hash, s->stats, err)
                                    : run_device(r, s->streams, f, &hash, err);
    if (rc)
        return -1;
    if (s->n_runs && hash != s->hash)
        return err_set(err,
                       "%u streams, %s path: the logits' hash is %016llx, it was %016llx in an "
                       "earlier run: see plainsong verify",
                       s->streams, bench_path_names[s->path], (unsigned long long)hash,
                       (unsigned long long)s->hash);
    s->hash = hash;
    for (u32 i = 0; i < FIGURES; i++)
        s->runs[i][s->n_runs] = f[i];
    s->n_runs++;
    return 0;
}

/* ---- spreads ---- */

struct bench_spread bench_spread(const double *x, u32 n)
{
    double sorted[BENCH_MAX_RUNS];
    if (n == 0)
        return (struct bench_spread){0, 0, 0};
    memcpy(sorted, x, n * sizeof *x);
    qsort(sorted, n, sizeof *sorted, order);
    return (struct bench_spread){(sorted[(n - 1) / 2] + sorted[n / 2]) / 2, sorted[0],
                                 sorted[n - 1]};
}

struct bench_spread bench_figure(const struct bench_series *s, enum bench_figure f)
{
    return bench_spread(s->runs[f], s->n_runs);
}

double bench_roofline(const struct bench_result *r, const struct bench_series *s)
{
    double bytes = bench_figure(s, FIG_BYTES).median;
    return bytes > 0 ? 1e9 * r->machine->peak_gb_s / bytes * bench_figure(s, FIG_ROWS).median : 0;
}
