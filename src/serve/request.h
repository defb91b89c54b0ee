/* What a client asks for: the JSON body of each endpoint, checked and brought into one form. Whatever API was spoken,
 * the conversation leaves here as a chat template wants it (transformers' convention: arguments of earlier calls as
 * objects, reasoning as reasoning_content, content one string) and the tools in OpenAI's function form.
 *
 * Rules for every body: an object of at most 64 levels; a key twice is refused; null is as if absent; fields we do
 * not know are ignored; a known field of the wrong type or range is a 400 that names it. Integers may be written 1.0.
 * Numbers beyond a double's or (without fraction) an int64's range, ill-formed UTF-8 and \u0000 are refused by the
 * parser. Content is a string or an array of text parts, which are joined with a line end; other parts are a 400 that
 * names the type.
 *
 * No HTTP, no engine, no URL is followed. Any thread. */
#ifndef PS_REQUEST_H
#define PS_REQUEST_H

#include "serve/api_error.h"
#include "serve/stops.h"

enum endpoint {
    ENDPOINT_CHAT,           /* /v1/chat/completions */
    ENDPOINT_COMPLETIONS,    /* /v1/completions */
    ENDPOINT_RESPONSES,      /* /v1/responses */
    ENDPOINT_MESSAGES,       /* /v1/messages */
    ENDPOINT_COUNT_TOKENS,   /* /v1/messages/count_tokens */
    ENDPOINT_TOKENIZE,       /* {"content", "add_special", "parse_special", "with_pieces"} */
    ENDPOINT_DETOKENIZE,     /* {"tokens"} */
    ENDPOINT_APPLY_TEMPLATE, /* as chat; {"add_generation_prompt"} too */
};

enum {
    REQUEST_MAX_DEPTH = 64,
    REQUEST_MAX_CHOICES = 16, /* n, and n times the prompts of a completion */
    REQUEST_MAX_TOOLS = 256,
    REQUEST_MAX_BIAS = 1024,
    REQUEST_MAX_TOP_LOGPROBS = 20,
    REQUEST_MAX_SCHEMA_BYTES = 256 << 10,
};

enum tool_choice { TOOLS_NONE, TOOLS_AUTO, TOOLS_REQUIRED, TOOLS_NAMED };
enum response_format { FORMAT_TEXT, FORMAT_JSON, FORMAT_SCHEMA };

struct request_prompt { /* of a completion: text or ids */
    char *text;
    size_t len;
    u32 *ids; /* NULL: text. Not checked against a vocabulary */
    size_t n_ids;
};

struct request_bias {
    u32 id; /* not checked against a vocabulary */
    float add;
};

struct request { /* released by request_free; strings are NUL-terminated UTF-8 without other NULs */
    enum endpoint endpoint;
    char *model; /* as the client wrote it, or NULL */

    char *messages_json; /* for prompt_build; NULL where there are prompts */
    char *tools_json;    /* for prompt_build; NULL: none, or tool_choice none */
    char *kwargs_json;   /* for prompt_build; NULL: none */
    bool add_generation_prompt;
    struct request_prompt *prompts; /* completions: n_prompts; tokenize, detokenize: one */
    u32 n_prompts;

    /* Sampling, in ps_sampling's terms. Absent fields: temperature 1, top_p 1 (OpenAI's), everything else off. */
    float temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    u32 top_k;
    u32 repeat_last_n; /* 0: the whole text, which is the default; a client's 0 turns the penalties off */
    bool has_seed;     /* absent or -1: the server chooses */
    u64 seed;          /* an int64, taken modulo 2^64 */
    struct request_bias *bias;
    u32 n_bias;

    u32 max_tokens;      /* 0: as many as the context holds */
    u32 n;               /* choices of each prompt */
    struct stops *stops; /* NULL: none */
    bool ignore_end;     /* ignore_eos: go on past end tokens */
    bool logprobs;
    u32 top_logprobs;
    bool stream, include_usage;

    enum tool_choice tool_choice;
    char *tool_name; /* TOOLS_NAMED */
    bool one_call;   /* parallel_tool_calls false */
    enum response_format format;
    char *schema_json;        /* FORMAT_SCHEMA */
    const char *schema_param; /* where it stood, for errors about it: "response_format", "text.format", ... */
    bool keep_reasoning;      /* reasoning_format "none": <think> stays in the text */

    bool add_special, parse_special, with_pieces; /* tokenize */
    char *echo_json; /* responses: members the answer repeats, `"tools":[],...`, without braces */
};

/* body need not be NUL-terminated. 0, or -1 with *e filled (400, or 500 when memory ran out); r is released then. */
int request_parse(struct request *r, enum endpoint endpoint, const char *body, size_t len, struct api_error *e);
void request_free(struct request *r); /* a zeroed one is fine */

#endif
