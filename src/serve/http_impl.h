/* What http.c and http_watch.c share. */
#ifndef PS_HTTP_IMPL_H
#define PS_HTTP_IMPL_H

#include "serve/http.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

/* A connection: lives from its first to its last byte, in http's list. */
struct http_conn {
    struct http_conn *next;
    int fd;
    bool asked;   /* a whole request has come and is not answered yet */
    double since; /* time_now of its opening or its last answer's end */
};

struct http_exchange {
    struct http *http;
    struct http_exchange *next;        /* under http->lock, while libmicrohttpd knows it */
    struct http_conn *conn;
    u64 id;
    int fd;
    double began;
    char method[16], peer[64];
    char *path;
    atomic_uint mark;
    atomic_uint refs;                  /* libmicrohttpd's, and the handler's */
    bool asked, discard;               /* HTTP thread: body complete; body not wanted */
    struct bytes body;                 /* HTTP thread until asked, fixed after */
    pthread_mutex_t lock;              /* of what follows */
    struct MHD_Connection *connection; /* NULL after its end */
    bool suspended, begun, ended, gone, whole_sent;
    int status;
    struct bytes headers, out;
    size_t out_at;                     /* read so far */
    u64 sent;
    void (*on_gone)(void *arg);
    void *gone_arg;
};

struct http {
    struct http_opts o;
    struct MHD_Daemon *daemon;
    int listener;
    u32 port;
    atomic_bool quiet;
    atomic_ullong bodies_bytes;
    pthread_t watcher;
    bool watcher_runs;
    pthread_mutex_t lock;
    pthread_cond_t stop;
    bool stopping;
    u64 last_id;
    struct http_exchange *exchanges;
    struct http_conn *conns;
};

/* The client has gone, or is treated so. Any thread. */
void exchange_gone(struct http_exchange *x);
void exchange_unref(struct http_exchange *x);

/* http_watch.c */
void watch_connection(void *http, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what);
void *watch_main(void *http);
void watch_stop(struct http *h);

#endif
