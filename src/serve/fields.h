/* Reading a JSON object's fields with a 400 that names the field: what the parsers of the three APIs share. Private to
 * request*.c. */
#ifndef PS_FIELDS_H
#define PS_FIELDS_H

#include <jansson.h>

#include "serve/request.h"

/* A place in the body, for messages: "messages[3].content". */
struct place {
    char text[64];
};
/* parent may be NULL. key or index; a key of the client's is cut to what is printable. */
struct place place_key(const struct place *parent, const char *key);
struct place place_index(const struct place *parent, size_t index);

const char *field_type(const json_t *value); /* "a string", for messages */

/* A 400: "PLACE must be WISH, not a string". Returns -1. */
int field_wrong(const struct place *at, const char *wish, const json_t *value, struct api_error *e);

/* The field, or NULL when absent or null. */
json_t *field(const json_t *object, const char *key);

/* Each reads a field into *out and leaves that alone when the field is absent. 0 or -1. */
int field_bool(const json_t *object, const struct place *parent, const char *key, bool *out, struct api_error *e);
int field_f32(const json_t *object, const struct place *parent, const char *key, double lo, double hi, float *out,
              struct api_error *e);
int field_i64(const json_t *object, const struct place *parent, const char *key, i64 lo, i64 hi, i64 *out,
              struct api_error *e);
/* *out: the value (borrowed), or unchanged. */
int field_string(const json_t *object, const struct place *parent, const char *key, const char **out,
                 struct api_error *e);
int field_object(const json_t *object, const struct place *parent, const char *key, json_t **out, struct api_error *e);
int field_array(const json_t *object, const struct place *parent, const char *key, json_t **out, struct api_error *e);

/* value as an integer in lo..hi, written 1 or 1.0. */
int value_i64(const json_t *value, const struct place *at, i64 lo, i64 hi, i64 *out, struct api_error *e);

/* value's text: a string, or an array of parts whose type is "text" or one of two others. Joined with line ends. The
 * result is a new reference. NULL with *e filled on failure. */
json_t *field_text(const json_t *value, const struct place *at, const char *type, const char *other,
                   struct api_error *e);

/* Compact JSON, malloc'd; NULL with *e filled when memory ran out. */
char *field_dump(const json_t *value, struct api_error *e);
int field_copy(char **out, const char *text, struct api_error *e);

/* The arguments of an earlier call: the object that the text spells, or the text itself. A new reference. */
json_t *field_arguments(const char *text);

/* Appends {"type":"function","function":{...}} to tools, after checks. parameters may be NULL. */
int field_tool(json_t *tools, const struct place *at, const char *name, const char *description,
               const json_t *parameters, bool strict, struct api_error *e);

/* Parts of the parsers, one for each API. */
int request_chat(struct request *r, const json_t *body, struct api_error *e);
int request_responses(struct request *r, const json_t *body, struct api_error *e);
int request_messages(struct request *r, const json_t *body, struct api_error *e);

/* Shared: stop strings from a field; the schema of a format; the template's variables with the reasoning switch. */
int request_stops(struct request *r, const json_t *body, const char *key, struct api_error *e);
int request_schema(struct request *r, const json_t *schema, const struct place *at, const char *param,
                   struct api_error *e);
/* thinking: 1 on, 0 off, -1 not said; effort may be NULL. What chat_template_kwargs says itself stands. */
int request_kwargs(struct request *r, const json_t *body, int thinking, const char *effort, struct api_error *e);
/* Tools and tool_choice are read: drops tools when the choice is none, checks that a choice has its tool. */
int request_tools(struct request *r, const json_t *tools, const char *name, struct api_error *e);

#endif
