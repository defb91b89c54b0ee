/* The forms of answers: events of answer.h in, bytes of each API out. With stream every call may append server-sent
 * events to out; without, all is gathered and the one JSON object is written by shape_done. Every call's bytes are
 * whole events: a client may be sent them as they are.
 *
 * Order: shape_begin; for each token shape_token, then the events it causes (shape_event); ANSWER_FINISH once for
 * each choice; shape_done. shape_fail may come instead of anything behind shape_begin and ends the stream. One thread
 * at a time. The forms are those that the clients `openai` 6 and `@anthropic-ai/sdk` declare. */
#ifndef PS_SHAPE_H
#define PS_SHAPE_H

#include "serve/answer.h"
#include "serve/api_error.h"

enum shape_api { SHAPE_CHAT, SHAPE_COMPLETIONS, SHAPE_RESPONSES, SHAPE_MESSAGES };

struct shape_head { /* strings are borrowed until shape_close */
    enum shape_api api;
    bool stream, include_usage;
    bool logprobs;
    const char *id; /* of the request, without the API's prefix; [A-Za-z0-9_-] */
    const char *model, *fingerprint;
    u64 created;                      /* Unix seconds */
    u64 seed;                         /* the one used, written as the int64 it was asked for as; below 2^53, or JavaScript rounds it */
    u32 n_choices;                    /* all answers; 1 for responses and messages */
    u32 n_prompt;                     /* tokens; message_start tells them */
    const char *echo_json;            /* responses: struct request's */
    const struct token_model *tokens; /* logprobs need it */
};

struct shape_top {
    u32 id;
    float logprob;
};

struct shape_token { /* a token with its log probability */
    u32 id;
    float logprob;
    const struct shape_top *top; /* n_top of them, the likeliest first */
    u32 n_top;
};

struct shape_usage { /* sums over the choices */
    u32 n_prompt, n_cached, n_generated, n_reasoning;
    double queue_ms, prompt_ms, decode_ms;
    double batch_width; /* rows of a decode step, mean */
};

struct shape; /* owned by the caller of shape_open */

int shape_open(struct shape **out, const struct shape_head *head); /* -1: out of memory */
void shape_close(struct shape *s);

void shape_begin(struct shape *s, struct bytes *out);
/* Log probabilities, if asked for; they go out with the next event of the choice. */
void shape_token(struct shape *s, u32 choice, const struct shape_token *t);
void shape_event(struct shape *s, u32 choice, const struct answer_event *e, struct bytes *out);
void shape_done(struct shape *s, const struct shape_usage *u, struct bytes *out);
/* In a stream: the error as an event, and the end. Without: the error's JSON alone. */
void shape_fail(struct shape *s, const struct api_error *e, struct bytes *out);
/* Something to send while nothing is to be said. Streams only. */
void shape_ping(const struct shape *s, struct bytes *out);
bool shape_failed(const struct shape *s); /* memory ran out: something is missing */

#endif
