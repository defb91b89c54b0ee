/* JSON schemas, and what the server builds from them: the grammar of an answer or of tool calls. What a grammar cannot
 * hold to is refused, never ignored: err names the keyword and where it stands ("#/properties/x"). */
#ifndef PS_SERVE_SCHEMA_H
#define PS_SERVE_SCHEMA_H

#include <jansson.h>

#include "serve/grammar.h"

enum {
    SCHEMA_BYTES = 1 << 20,   /* of a schema's text */
    SCHEMA_STATES = 20000,    /* of all patterns of a schema together */
    SCHEMA_WORK = 1000000,    /* properties and enum values looked at */
    SCHEMA_BRANCHES = 200     /* alternatives of a value, enum values not counted */
};

struct schema_tool {
    const char *name;
    const json_t *parameters; /* the schema of the arguments; NULL: any object */
};

enum schema_calls {
    SCHEMA_CALL_FREE,  /* free text; where it begins a call, the call is one of the tools' */
    SCHEMA_CALL_MUST   /* nothing but calls, at least one */
};

/* Each makes *g, which grammar_free releases; after a failure there is nothing to release. The JSON is not needed
 * afterwards. think: text that ends at its first </think> and two line breaks comes before. */
int schema_open(struct grammar *g, const json_t *schema, bool think, struct err *err);
int schema_open_object(struct grammar *g, bool think, struct err *err); /* any JSON object */
/* Calls as Qwen spells them: <tool_call>\n{"name": "NAME", "arguments": VALUE}\n</tool_call>. parallel: more than one
 * may follow each other. */
int schema_open_calls(struct grammar *g, const struct schema_tool *tools, u32 n_tools, enum schema_calls calls,
                      bool parallel, bool think, struct err *err);
/* A schema's text: strict JSON of at most SCHEMA_BYTES, without a name twice in one object. NULL with err. */
json_t *schema_parse(const char *text, size_t len, struct err *err);

#endif
