/* What the server's parts share. Threads: HTTP (http.c), intake (two), pump (one), the caller of serve_run (signals), one that
 * loads the model. Fields of the first group are fixed once `state` is no longer SERVER_LOADING. */
#ifndef PS_SERVER_H
#define PS_SERVER_H

#include "engine/model.h"
#include "model/prompt.h"
#include "serve/http.h"
#include "serve/job.h"
#include "serve/keys.h"
#include "serve/log.h"
#include "serve/metrics.h"
#include "serve/serve.h"
#include "serve/vocab_mask.h"

#include <stdatomic.h>

enum server_state { SERVER_LOADING, SERVER_READY, SERVER_DRAINING };

struct server {
    struct serve_opts o;
    char *path;                  /* of the model's file: o.model */
    struct ps_model *model;
    struct ps_engine *engine;
    struct template *tmpl;       /* NULL: the model has no chat template */
    struct prompt *prompt;
    struct vocab *vocab;         /* NULL: this vocabulary cannot be masked */
    char name[128];              /* of the model, as clients see it */
    char fingerprint[96];
    u32 n_slots, n_ctx;
    u64 queue_tokens;
    u64 started;                 /* Unix seconds */

    atomic_int state;            /* enum server_state */
    atomic_uint n_ending;        /* those that gave their place back and hand over the last of their answer */
    atomic_uint n_jobs;          /* requests for tokens in work */
    atomic_ullong job_tokens;    /* theirs, prompt and answer */
    atomic_ullong n_named;       /* ids given to jobs */
    u64 id_key;                  /* makes ids of different runs differ */
    struct keys *keys;
    struct metrics *metrics;
    struct log *log;
    struct http *http;
    struct intake *intake;
    struct pump *pump;
    struct grammars *grammars;
};

/* routes.c: http's callbacks; arg is the server. */
int routes_headers(void *server, struct http_exchange *x);
void routes_request(void *server, struct http_exchange *x);
void routes_done(void *server, struct http_exchange *x, bool gone);
/* An error in the form of the API that was spoken. Takes no hold. */
void routes_refuse(struct server *s, struct http_exchange *x, enum endpoint endpoint, const struct api_error *e);
/* 429: not now. reason is the machine-readable code. */
void routes_busy(struct server *s, struct http_exchange *x, enum endpoint endpoint, const char *reason, const char *message);

/* intake.c: bodies become jobs, or answers of those endpoints that make no tokens. Two threads. */
int intake_open(struct intake **out, struct server *s, struct err *err);
void intake_stop(struct intake *in); /* works off what it has and takes nothing more */
void intake_close(struct intake *in);
/* Takes x's hold and key's. False: the intake is full; nothing was taken. */
bool intake_push(struct intake *in, struct http_exchange *x, struct key *key, enum endpoint endpoint);

/* pump.c: one thread moves tokens from streams to clients. */
int pump_open(struct pump **out, struct server *s, struct err *err);
void pump_close(struct pump *p); /* ends jobs still there */
void pump_start(struct pump *p, struct job *j); /* takes the job over */
void pump_note(struct pump *p, struct job *j);  /* something happened to it; any thread */

/* grammars.c: compiled grammars, the last few kept, with the masks made for them. */
int grammars_open(struct grammars **out, const struct vocab *v, struct err *err);
void grammars_close(struct grammars *g);
/* The grammar a request asks for, held (masks_close lets go); *out NULL: none. Fails closed: e is a 400 naming the keyword. */
int grammars_get(struct grammars *g, const struct request *r, bool in_reasoning, struct masks **out, struct api_error *e);

/* pages.c: answers that are made at once on the HTTP thread. */
void pages_health(struct server *s, struct http_exchange *x);
void pages_metrics(struct server *s, struct http_exchange *x);
void pages_slots(struct server *s, struct http_exchange *x);
void pages_models(struct server *s, struct http_exchange *x);
void pages_web(struct server *s, struct http_exchange *x);

struct health {
    bool ok;
    const char *status;  /* a word: ok, loading, draining, stuck, broken */
    const char *message; /* NULL, or the broken device's line */
    const char *warning; /* NULL, or what the device's self-test found: it serves, but not with the promised bits */
};
void pages_look(struct server *s, struct health *h);

#endif
