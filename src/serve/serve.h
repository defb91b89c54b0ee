/* The server as the command line starts it: listens, loads the model, serves until it is told to stop. */
#ifndef PS_SERVE_H
#define PS_SERVE_H

#include "base/base.h"
#include "plainsong.h"

struct serve_opts {                 /* zero: the default in brackets */
    const char *model;              /* path */
    struct ps_engine_options engine; /* n_queue is the server's to set */
    const char *host;               /* [127.0.0.1] */
    u32 port;                       /* as given; 0: any free one */
    const char *const *allow_hosts; /* names beside localhost and IP addresses that Host may carry */
    u32 n_allow_hosts;
    const char *const *cors;        /* origins that may read answers, "*" for all */
    u32 n_cors;
    const char *api_key_file, *tls_cert, *tls_key; /* paths or NULL */
    bool log_json, strict_model;
    u32 queue;                      /* requests that may wait beside those that run [32] */
    u64 queue_tokens;               /* prompt and answer tokens of all requests in work [(slots + queue) x context] */
    u32 per_key;                    /* requests of one key in work; 0: no limit */
    u64 max_body_bytes;             /* [16 MiB] */
    u32 max_header_bytes;           /* request line and headers, about [32 KiB] */
    u32 max_connections;            /* [4096] */
    u32 idle_s;                     /* a connection without a byte either way [120] */
    u32 request_s;                  /* to send a request [60] */
    u32 drain_s;                    /* for running requests after SIGTERM [30] */
    u32 ping_s;                     /* between comments in a silent event stream [10] */
    u32 stuck_s;                    /* a step that lasts longer makes /health 503 [60] */
    void (*loaded)(struct ps_engine *e); /* NULL, or told once when the engine is open, on another thread */
    const char *name;               /* the model's id for clients; NULL: the file's name without .gguf */
};

/* Blocks until SIGTERM or SIGINT (twice: at once). Signals are taken on the calling thread: call it from main with no other
 * thread started. Returns 0 after an orderly end, 1 when asked to end while the model is loaded or a step does not end: a thread goes on
 * with that, so the caller ends the process at once; -1 with err when the server could not start or the model not be loaded. */
int serve_run(const struct serve_opts *o, struct err *err);

#endif
