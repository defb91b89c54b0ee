/* Counters and histograms. See metrics.h. */
#include "serve/metrics.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Bounds in seconds: a token takes milliseconds to a second, a request up to minutes. */
static const double BOUNDS[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75,
                                1, 2, 5, 10, 30, 60, 120, 300};

struct histogram {
    u64 n[COUNT(BOUNDS) + 1];
    double sum;
};

enum { MAX_ANSWERS = 128 };

struct answers {
    const char *endpoint;
    int status;
    u64 n;
};

struct metrics {
    pthread_mutex_t lock;
    struct histogram times[METRIC_TIMES];
    u64 counts[METRIC_COUNTS];
    struct answers answers[MAX_ANSWERS];
    u32 n_answers;
};

int metrics_open(struct metrics **out, struct err *err)
{
    struct metrics *m = *out = mem_array(1, sizeof *m);
    if (!m)
        return err_set(err, "out of memory");
    pthread_mutex_init(&m->lock, NULL);
    return 0;
}

void metrics_close(struct metrics *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

void metrics_time(struct metrics *m, enum metric_time which, double seconds)
{
    struct histogram *h = &m->times[which];
    u32 i = 0;
    while (i < COUNT(BOUNDS) && seconds > BOUNDS[i])
        i++;
    pthread_mutex_lock(&m->lock);
    h->n[i]++;
    h->sum += seconds;
    pthread_mutex_unlock(&m->lock);
}

void metrics_count(struct metrics *m, enum metric_count which, u64 n)
{
    pthread_mutex_lock(&m->lock);
    m->counts[which] += n;
    pthread_mutex_unlock(&m->lock);
}

void metrics_answer(struct metrics *m, const char *endpoint, int status)
{
    pthread_mutex_lock(&m->lock);
    u32 i = 0;
    while (i < m->n_answers && (m->answers[i].status != status || strcmp(m->answers[i].endpoint, endpoint) != 0))
        i++;
    if (i == m->n_answers && i < MAX_ANSWERS)
        m->answers[m->n_answers++] = (struct answers){endpoint, status, 0};
    if (i < MAX_ANSWERS)
        m->answers[i].n++;
    pthread_mutex_unlock(&m->lock);
}

static void head(struct bytes *out, const char *name, const char *type, const char *help)
{
    bytes_str(out, "# HELP plainsong_");
    bytes_str(out, name);
    bytes_str(out, " ");
    bytes_str(out, help);
    bytes_str(out, "\n# TYPE plainsong_");
    bytes_str(out, name);
    bytes_str(out, " ");
    bytes_str(out, type);
    bytes_str(out, "\n");
}

static void sample(struct bytes *out, const char *name, const char *labels, double value)
{
    bytes_str(out, "plainsong_");
    bytes_str(out, name);
    bytes_str(out, labels);
    bytes_str(out, " ");
    bytes_f64(out, value);
    bytes_str(out, "\n");
}

static void one(struct bytes *out, const char *name, const char *type, const char *help, double value)
{
    head(out, name, type, help);
    sample(out, name, "", value);
}

static void histogram(struct bytes *out, const char *name, const char *help, const struct histogram *h)
{
    u64 all = 0;
    head(out, name, "histogram", help);
    for (u32 i = 0; i <= COUNT(BOUNDS); i++) {
        all += h->n[i];
        bytes_str(out, "plainsong_");
        bytes_str(out, name);
        bytes_str(out, "_bucket{le=\"");
        if (i < COUNT(BOUNDS))
            bytes_f64(out, BOUNDS[i]);
        else
            bytes_str(out, "+Inf");
        bytes_str(out, "\"} ");
        bytes_u64(out, all);
        bytes_str(out, "\n");
    }
    bytes_str(out, "plainsong_");
    bytes_str(out, name);
    bytes_str(out, "_sum ");
    bytes_f64(out, h->sum);
    bytes_str(out, "\nplainsong_");
    bytes_str(out, name);
    bytes_str(out, "_count ");
    bytes_u64(out, all);
    bytes_str(out, "\n");
}

static void write_answers(struct metrics *m, struct bytes *out)
{
    head(out, "http_responses_total", "counter", "Answers by path and status.");
    for (u32 i = 0; i < m->n_answers; i++) {
        bytes_str(out, "plainsong_http_responses_total{path=\"");
        bytes_str(out, m->answers[i].endpoint);
        bytes_str(out, "\",status=\"");
        bytes_i64(out, m->answers[i].status);
        bytes_str(out, "\"} ");
        bytes_u64(out, m->answers[i].n);
        bytes_str(out, "\n");
    }
}

static void write_engine(const struct ps_stats *s, struct bytes *out)
{
    one(out, "slots", "gauge", "Streams that can run at once.", s->n_slots);
    one(out, "slots_active", "gauge", "Streams that run.", s->n_active);
    one(out, "queued", "gauge", "Streams that wait for a slot.", s->n_queued);
    one(out, "context_tokens", "gauge", "Positions of a slot.", s->n_ctx);
    one(out, "device_broken", "gauge", "1: the device failed and stays so.", s->broken != NULL);
    one(out, "device_exact", "gauge", "0: by the device's self-test its results are not the promised bits.", !s->warning);
    one(out, "steps_total", "counter", "Fused steps.", (double)s->steps);
    one(out, "submissions_total", "counter", "Hand-overs to the device.", (double)s->submissions);
    one(out, "rows_total", "counter", "Rows of all steps.", (double)s->rows);
    one(out, "prompt_rows_total", "counter", "Rows that read prompts.", (double)s->prompt_rows);
    one(out, "bytes_read_total", "counter", "Weights and keys that the steps had to read, as the plan counts them.",
        (double)s->bytes_read);
    head(out, "step_seconds_total", "counter", "Wall time of the steps, by phase.");
    sample(out, "step_seconds_total", "{phase=\"setup\"}", s->setup_s);
    sample(out, "step_seconds_total", "{phase=\"submit\"}", s->submit_s);
    sample(out, "step_seconds_total", "{phase=\"wait\"}", s->wait_s);
    sample(out, "step_seconds_total", "{phase=\"tail\"}", s->tail_s);
    head(out, "memory_bytes", "gauge", "The standing cost.");
    sample(out, "memory_bytes", "{of=\"weights\"}", (double)s->weight_bytes);
    sample(out, "memory_bytes", "{of=\"kv\"}", (double)s->kv_bytes);
    sample(out, "memory_bytes", "{of=\"setup\"}", (double)s->setup_bytes);
    sample(out, "memory_bytes", "{of=\"scratch\"}", (double)s->scratch_bytes);
}

void metrics_write(struct metrics *m, const struct metrics_now *now, struct bytes *out)
{
    write_engine(&now->engine, out);
    one(out, "requests", "gauge", "Requests for tokens in work.", now->n_requests);
    one(out, "connections", "gauge", "Open connections.", now->n_connections);
    one(out, "resident_bytes", "gauge", "Resident memory of the process.", (double)now->resident_bytes);
    one(out, "draining", "gauge", "1 while no new requests are taken.", now->draining);
    pthread_mutex_lock(&m->lock);
    one(out, "prompt_tokens_total", "counter", "Tokens of prompts.", (double)m->counts[METRIC_PROMPT_TOKENS]);
    one(out, "cached_tokens_total", "counter", "Of those, found in a slot.", (double)m->counts[METRIC_CACHED_TOKENS]);
    one(out, "generated_tokens_total", "counter", "Tokens made.", (double)m->counts[METRIC_GENERATED_TOKENS]);
    one(out, "cancelled_total", "counter", "Requests whose client went away.", (double)m->counts[METRIC_CANCELLED]);
    write_answers(m, out);
    histogram(out, "queue_seconds", "From headers to a slot.", &m->times[METRIC_QUEUE]);
    histogram(out, "time_to_first_token_seconds", "From headers to the first token.", &m->times[METRIC_FIRST_TOKEN]);
    histogram(out, "inter_token_seconds", "Between two tokens of a stream.", &m->times[METRIC_BETWEEN]);
    histogram(out, "request_seconds", "From headers to the last byte of an answer with tokens.", &m->times[METRIC_REQUEST]);
    histogram(out, "refusal_seconds", "From headers to the last byte of a 429 or 503.", &m->times[METRIC_REFUSAL]);
    pthread_mutex_unlock(&m->lock);
}
