/* HTTP to and from clients, over libmicrohttpd: connections, limits, bodies, answers whole or piece by piece, and who has
 * gone away. Knows no paths, no keys, no models.
 *
 * One thread (libmicrohttpd's) serves all sockets; a second watches those that wait for an answer, since a suspended
 * connection is not looked at, and those that take too long to send a request. An exchange is one request and its
 * answer. The handler gets it when the body is there, on the HTTP thread, and must not wait: it answers at once or keeps the
 * exchange and answers later from any thread. Whoever keeps it releases it; until then its memory stays, also when the
 * client has gone. A client that reads slowly costs the bytes it has not read. */
#ifndef PS_HTTP_H
#define PS_HTTP_H

#include "serve/bytes.h"

struct http;
struct http_exchange;

struct http_opts { /* zero: the default in brackets */
    const char *host;          /* address to listen on [127.0.0.1] */
    u32 port;                  /* 0: any free one */
    const char *tls_cert, *tls_key; /* PEM texts, or NULL: no TLS */
    u64 max_body_bytes;        /* of one request [16 MiB] */
    u64 max_bodies_bytes;      /* of all requests being received or answered [256 MiB] */
    u32 max_header_bytes;      /* request line and headers [32 KiB] */
    u32 max_connections;       /* [4096] */
    u32 max_per_address;       /* connections of one address, 0: no limit */
    u32 idle_s;                /* without a byte either way [120] */
    u32 request_s;             /* from a request's first byte to its last [60] */
    void *arg;                 /* of the callbacks */
    /* When the headers are there, before any body: 0 to go on, or it has replied. HTTP thread. */
    int (*headers)(void *arg, struct http_exchange *x);
    /* When the body is there. HTTP thread; owns a hold on x: see http_release. */
    void (*request)(void *arg, struct http_exchange *x);
    /* After the last byte of an answer, or when the client went away: for counters and the log. Any thread of http. */
    void (*done)(void *arg, struct http_exchange *x, bool gone);
};

int http_open(struct http **out, const struct http_opts *o, struct err *err);
u32 http_port(const struct http *h);
/* No new connections; those there are go on. */
void http_quiesce(struct http *h);
/* Whether no answer that was begun waits to be sent. */
bool http_all_sent(struct http *h);
/* Ends all connections. Exchanges still held stay valid until released. */
void http_close(struct http *h);
u32 http_connections(struct http *h);

/* ---- an exchange ---- */

const char *http_method(const struct http_exchange *x);
const char *http_path(const struct http_exchange *x); /* without the query */
const char *http_header(const struct http_exchange *x, const char *name); /* HTTP thread, before the reply; NULL: not there */
const char *http_body(const struct http_exchange *x, size_t *len);
const char *http_peer(const struct http_exchange *x); /* address as text, without the port */
u64 http_id(const struct http_exchange *x);
double http_began(const struct http_exchange *x); /* time_now when the headers were there */
int http_status(const struct http_exchange *x);   /* 0: no answer yet */
u64 http_sent(const struct http_exchange *x);     /* bytes of the answer's body made so far */

/* A word of the handler's own, for `done`: 0 until set. Any thread. */
void http_mark(struct http_exchange *x, u32 mark);
u32 http_marked(const struct http_exchange *x);

/* Adds a header to the answer, before it begins. Copied. */
void http_add_header(struct http_exchange *x, const char *name, const char *value);
/* The whole answer: takes the text out of body (a HEAD request gets its headers only). Any thread; once. */
void http_reply(struct http_exchange *x, int status, const char *content_type, struct bytes *body);
/* An answer in pieces: begin, then write until end. Any thread, one at a time. Writing to a client that has gone is fine. */
void http_begin(struct http_exchange *x, int status, const char *content_type);
void http_write(struct http_exchange *x, const void *text, size_t len);
void http_end(struct http_exchange *x);
/* Gives back the handler's hold. A released exchange that was neither replied to nor ended gets a 500. */
void http_release(struct http_exchange *x);

/* fn is called once when the client goes away before its answer is whole, also when it has gone already; NULL takes the
 * wish back, and fn is not running any more when this returns. fn must not call this module. */
void http_on_gone(struct http_exchange *x, void (*fn)(void *arg), void *arg);
bool http_gone(struct http_exchange *x);

#endif
