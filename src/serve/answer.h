/* One answer's tokens made into what clients are told: text, reasoning, tool calls, an end.
 *
 *   ids -> whole characters (token_stream) -> stop strings -> <think> split -> tool calls -> events
 *
 * Whatever the cuts between tokens, the events of one kind that follow each other join to the same bytes. Stop
 * strings are looked for in all that the model writes, its reasoning and calls too, as llama-server does. The
 * reasoning and what stands between it, the calls and the text lose white space at their edges; all else comes out as
 * it was written, and a call that is none comes out as text. One thread at a time. */
#ifndef PS_ANSWER_H
#define PS_ANSWER_H

#include "model/token.h"
#include "serve/calls.h"
#include "serve/stops.h"

enum answer_kind {
    ANSWER_REASONING, /* text */
    ANSWER_CONTENT,   /* text */
    ANSWER_CALL,      /* a call begins: call, id, text is the function's name */
    ANSWER_ARGUMENTS, /* call, text: the next bytes of its JSON */
    ANSWER_CALL_END,  /* call */
    ANSWER_FINISH,    /* finish, stop: the last event, exactly once */
};

enum answer_finish { FINISH_STOP, FINISH_LENGTH, FINISH_TOOL_CALLS };

struct answer_event {
    enum answer_kind kind;
    enum answer_finish finish;
    const char *text; /* whole characters, not NUL-terminated; valid while it is told */
    size_t len;
    u32 call;         /* 0, 1, ... in the answer */
    const char *id;   /* of the call: 16 hex digits that follow from request_id, choice and call */
    const char *stop; /* the stop string that was found (NUL-terminated), or NULL */
};

struct answer_options {               /* all borrowed until answer_close */
    const struct token_model *tokens; /* NULL: answer_text only */
    const struct stops *stops;        /* NULL: none */
    bool split_reasoning;             /* take <think>..</think> out of the text */
    bool in_reasoning;                /* the prompt ends inside <think>: see answer_in_reasoning */
    bool parse_calls;
    bool one_call;                   /* the answer is complete when its first call is */
    const struct calls_tools *tools; /* may be NULL */
    const char *request_id;
    u32 choice;
    void (*tell)(void *arg, const struct answer_event *e);
    void *arg;
};

struct answer;

int answer_open(struct answer **out, const struct answer_options *o); /* -1: out of memory */
void answer_close(struct answer *a);

/* The next token. False: the answer has all it will take (a stop string, its one call, or memory ran out): cancel the
 * stream and call answer_end. */
bool answer_push(struct answer *a, u32 id);
/* The same for text, whole characters: what answer_push comes down to. */
bool answer_text(struct answer *a, const char *text, size_t len);
/* Tells what was held back, and the end. length: the stream ended because max_tokens or the context was reached. */
void answer_end(struct answer *a, bool length);

bool answer_failed(const struct answer *a); /* memory ran out: text is missing */
u32 answer_reasoning_tokens(const struct answer *a);

/* Whether a rendered prompt ends inside <think>: its last word is the tag. */
bool answer_in_reasoning(const struct token_model *t, const u32 *ids, size_t n);

#endif
