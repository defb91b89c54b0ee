/* What `plainsong bench --http` knows of HTTP: requests sent at once to one server, their answers with the time at
 * which each server-sent event came. HTTP/1.1 without TLS, one connection a request, all on the calling thread. */
#ifndef PS_BENCH_HTTP_H
#define PS_BENCH_HTTP_H

#include "serve/bytes.h"

enum { BENCH_HTTP_SILENCE_S = 120 /* without a byte from the server: it is given up */ };

struct bench_http_url {
    char host[256], port[8], path[256]; /* path: before /v1, without a slash at its end */
    char authority[272];                /* as the Host header has it */
};

/* http://HOST[:PORT][/PATH]; HOST may be [IPv6]. */
int bench_http_url(struct bench_http_url *u, const char *text, struct err *err);

struct bench_http_call { /* the caller sets path and body (NULL: GET); release with bench_http_free */
    const char *path;    /* behind the URL's */
    const char *body;
    int status;
    struct bytes head, text; /* the answer's headers, and its body with the chunks joined */
    double sent, first;      /* time_now when the request began to go out, and of the body's first byte */
    double *times;           /* (n_events) when the event, text up to ends[i], was whole */
    size_t *ends;
    u32 n_events, cap_events;
};

/* Sends all requests at once and reads until every answer is whole. key NULL: none is sent. -1 with err when the
 * server cannot be reached or breaks off; a status of 400 and more is no failure here. */
int bench_http_ask(const struct bench_http_url *u, const char *key, struct bench_http_call *calls, u32 n,
                   struct err *err);
void bench_http_free(struct bench_http_call *calls, u32 n);

#endif
