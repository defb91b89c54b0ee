/* The server's log: a line an event to stderr, as text or as one JSON object. It has no way to take a prompt, an answer or a
 * key: numbers, and texts that are constants or were checked, are all that its calls accept; a client's path and a
 * message of our own are escaped. Any thread. */
#ifndef PS_LOG_H
#define PS_LOG_H

#include "base/base.h"

struct log;

int log_open(struct log **out, bool json, struct err *err);
void log_close(struct log *l);

/* what: a constant, "listening", "draining"; text: a sentence of ours. */
void log_event(struct log *l, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

struct log_request {
    u64 id;
    const char *method, *path, *peer;
    int status;
    bool gone;           /* the client went before the answer was whole */
    const char *refusal; /* a constant: why it was refused, or NULL */
    double wall_s, queue_s, prompt_s, decode_s;
    u32 n_prompt, n_cached, n_generated, n_choices; /* n_choices 0: no tokens were asked for */
};
void log_request(struct log *l, const struct log_request *r);

#endif
