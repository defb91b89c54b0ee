/* One tool call in the text of an answer, from behind "<tool_call>" to "</tool_call>", in the two forms that Qwen's
 * chat templates teach:
 *
 *   {"name": "f", "arguments": {...}}                                       Qwen2.5, Qwen3
 *   <function=f>\n<parameter=a>\nvalue\n</parameter>\n</function>           Qwen3-Coder
 *
 * Arguments go out as they grow: the JSON form's byte by byte as the model wrote them (a raw control character in a
 * string, which JSON forbids, is escaped). In the other form a value's type is taken from the tool's schema: strings
 * grow too, other values come whole. Nothing is lost: what turns out to be no call, or stands where a call has
 * nothing, is left in `held`, to come out as text; arguments that go wrong after the call has begun go out as they
 * are, as any model's may. */
#ifndef PS_CALLS_H
#define PS_CALLS_H

#include "serve/bytes.h"

struct calls_tools; /* the parameters' types of a request's tools; immutable, any thread */

/* tools_json: OpenAI's form, an array of {"type":"function","function":{...}}, as struct request has it. -1 when memory
 * ran out or the text is not that. */
int calls_tools_open(struct calls_tools **out, const char *tools_json);
void calls_tools_close(struct calls_tools *t);

enum calls_part { CALLS_BEGIN /* text is the name */, CALLS_ARGUMENTS, CALLS_END };

struct calls {
    const struct calls_tools *tools; /* NULL: every parameter is a string */
    void (*tell)(void *arg, enum calls_part part, const char *text, size_t len);
    void *arg;
    bool begun;        /* CALLS_BEGIN was told */
    struct bytes held; /* read and not told of */

    /* the rest is calls.c's */
    u8 state, depth, matched;
    bool in_string, escape, has_early, ended, first;
    u64 kinds;                      /* open brackets, the innermost lowest: 1 is '[' */
    struct bytes name, word, early; /* word: a string, key or value being read; early: arguments before the name */
};

/* Ready for the next call; keeps the buffers. tools, tell and arg are the caller's to set. held starts with the tag. */
void calls_begin(struct calls *c);
/* Reads text and returns the bytes taken. *over: the call is at its end, or it is none; held then is text. */
size_t calls_push(struct calls *c, const char *text, size_t len, bool *over);
/* The answer ends here. held then is text. */
void calls_end(struct calls *c);
void calls_free(struct calls *c);
bool calls_failed(const struct calls *c); /* memory ran out */

/* Levels of arrays and objects in a JSON text: to refuse what is too deep before a parser recurses into it. Text that
 * is no JSON gives some number. */
u32 calls_depth(const char *json, size_t len);

#endif
