/* What the server counts, in Prometheus' text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats). Any
 * thread; one short lock. */
#ifndef PS_METRICS_H
#define PS_METRICS_H

#include "plainsong.h"
#include "serve/bytes.h"

struct metrics;

enum metric_time {
    METRIC_QUEUE,        /* from a request's headers to its slot */
    METRIC_FIRST_TOKEN,  /* from a request's headers to its first token */
    METRIC_BETWEEN,      /* from one token of a stream to its next */
    METRIC_REQUEST,      /* from headers to the last byte of an answer with tokens */
    METRIC_REFUSAL,      /* from headers to the last byte of a 429 or 503 */
    METRIC_TIMES
};

enum metric_count {
    METRIC_PROMPT_TOKENS, METRIC_CACHED_TOKENS, METRIC_GENERATED_TOKENS,
    METRIC_CANCELLED,    /* requests whose client went away */
    METRIC_COUNTS
};

int metrics_open(struct metrics **out, struct err *err);
void metrics_close(struct metrics *m);
void metrics_time(struct metrics *m, enum metric_time which, double seconds);
void metrics_count(struct metrics *m, enum metric_count which, u64 n);
/* endpoint: a path that exists, a constant; others are counted as "other". */
void metrics_answer(struct metrics *m, const char *endpoint, int status);

struct metrics_now { /* what others know */
    struct ps_stats engine;
    u32 n_requests;      /* in work: queued, reading, answering */
    u32 n_connections;
    u64 resident_bytes;
    bool draining;
};
void metrics_write(struct metrics *m, const struct metrics_now *now, struct bytes *out);

#endif
