/* A request for tokens in work: what was asked, its streams, its answer on the way. Made by the intake, then the pump's
 * alone; notes reach it by pump_note. */
#ifndef PS_JOB_H
#define PS_JOB_H

#include "plainsong.h"
#include "serve/answer.h"
#include "serve/request.h"
#include "serve/shape.h"
#include "serve/vocab_mask.h"

#include <stdatomic.h>

struct server;
struct http_exchange;
struct key;
struct pump;

struct choice {
    struct job *job;
    struct ps_stream *stream;    /* NULL: not opened yet, or over */
    struct answer *answer;
    struct mask *mask;           /* NULL: all tokens may come, or the stream has it */
    u32 index;
    bool over;
    double last;                 /* when its last token was made; 0: none yet */
    struct ps_stream_info info;  /* once over */
};

struct job {
    struct server *server;
    struct http_exchange *x;     /* held */
    struct key *key;             /* held, or NULL: no keys are needed */
    enum endpoint endpoint;
    char id[40];
    struct request r;
    u64 seed;
    struct token_ids *prompts;   /* [n_prompts] */
    u32 n_prompts, n_choices, n_over, n_open;
    u64 tokens;                  /* counted in server->job_tokens */
    struct calls_tools *tools;
    struct masks *masks;
    struct choice *choices;      /* choice i answers prompt i / r.n */
    struct shape *shape;
    struct bytes out;            /* made and not yet handed to http */
    double sent;                 /* when something last went out */
    u64 batch_rows, n_tokens, n_decoded;    /* sums for the mean width */
    bool failed;
    bool given;                  /* job_give_back was called */
    /* the pump's list; note */
    struct job *next, *next_noted;
    bool noted;                  /* under the pump's lock */
    atomic_bool gone;            /* the client left */
};

/* Asks for a place among the requests in work; job_leave gives it back. */
bool job_may_enter(struct server *s);
bool job_enter(struct server *s);
void job_leave(struct server *s);
/* The place, the key's share and the tokens: before the last of an answer, so that who has it finds them free. Pump thread. */
void job_give_back(struct job *j);

/* Frees all but what was entered: streams are closed, holds given back. */
void job_free(struct job *j);

/* Everything from a parsed request (moved into the job) to streams that can be opened. x and key are taken over on
 * success only. */
int job_make(struct job **out, struct server *s, struct http_exchange *x, struct key *key, struct request *r,
             struct api_error *e);
/* Opens choice i's stream. Pump thread. */
int job_open_stream(struct job *j, u32 i, struct api_error *e);
/* Turns tokens into the answer until there is none left; opens what may be opened; true when all is said. Pump thread. */
bool job_turn(struct job *j);
/* The server ends before the job: says so to the client. */
void job_stop(struct job *j);
void job_ping(struct job *j, double now);

#endif
