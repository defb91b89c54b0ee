/* What the shapes of the four APIs share. Private to shape*.c. */
#ifndef PS_SHAPE_PARTS_H
#define PS_SHAPE_PARTS_H

#include "serve/shape.h"

struct shape_choice {
    struct bytes text, reasoning;
    struct bytes calls;    /* what calls look like as members of an array; the API's form */
    struct bytes args;     /* of the open call */
    struct bytes logprobs; /* entries, with commas: of the whole answer, or in a stream since the last event */
    struct bytes tokens, token_logprobs, tops, offsets; /* completions: the four lists */
    u64 n_chars;                                        /* of all tokens' texts so far: completions' text_offset */
    u32 n_calls;
    bool finished;
    enum answer_finish finish;
    const char *stop; /* borrowed from the request's stops */
};

struct shape {
    struct shape_head head;
    const struct shape_kind *kind;
    struct shape_choice *choices; /* head.n_choices */
    struct bytes prefix;          /* of each chunk, made once */
    bool failed;

    /* responses and messages: one answer made of items */
    i32 open;           /* the kind of item that is open, an enum answer_kind, or -1 */
    u32 n_items;        /* begun */
    u64 sequence;       /* sequence_number of the next event */
    struct bytes items; /* finished items, with commas */
    struct bytes item;  /* text of the open one */
    struct bytes item_logprobs;
    char call_id[17];
    struct bytes name; /* of the open call */
};

struct shape_kind {
    void (*begin)(struct shape *s, struct bytes *out);
    void (*event)(struct shape *s, u32 choice, const struct answer_event *e, struct bytes *out);
    void (*done)(struct shape *s, const struct shape_usage *u, struct bytes *out);
    void (*fail)(struct shape *s, const struct api_error *e, struct bytes *out);
};

extern const struct shape_kind shape_chat, shape_completions, shape_responses, shape_messages;

/* ,"KEY":"text" : most members are this. First members are written with their brace. */
void shape_member(struct bytes *out, const char *key, const char *text);
/* The list's comma, if it needs one. */
void shape_comma(struct bytes *list);
/* {"token":..,"logprob":..,"bytes":[..],"top_logprobs":[..]} */
void shape_logprob(const struct shape *s, const struct shape_token *t, struct bytes *out);
/* The text of a token for the lists of completions; bytes that are no characters as "bytes:\xNN". */
void shape_token_text(const struct shape *s, u32 id, struct bytes *out);
/* "usage":{...} in OpenAI's form, ,"timings":{...} */
void shape_usage(const struct shape_usage *u, struct bytes *out);
void shape_timings(const struct shape_usage *u, struct bytes *out);
const char *shape_finish(enum answer_finish f);
/* The log probabilities that wait, as chat's "logprobs" value; they wait no longer. */
void shape_take_logprobs(struct shape *s, struct shape_choice *c, struct bytes *out);
/* Valid JSON of an object? Else what may stand where one must. */
void shape_object(const struct bytes *json, struct bytes *out);

#endif
