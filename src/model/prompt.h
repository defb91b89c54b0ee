/* Chat messages to token ids. The template's own marks become control tokens; the same spellings
 * inside a message, a tool's description or a template variable stay plain text, so that no one can
 * end another's turn by writing "<|im_end|>".
 *
 * Control spellings in the JSON's strings are swapped for markers before rendering and put back
 * after it, as text that token_encode must not read as special. A marker is three characters of
 * plane 15 (private use), the first of which occurs nowhere in the JSON: templates that trim,
 * compare or quote their input see a word of no consequence. Neighbours are tokenised with the text
 * put back, not cut at the marker. A string that ends in the beginning of a spelling is marked too:
 * a template may join two strings. Not covered: what a template cuts out of the middle of a string
 * and joins.
 *
 * User-defined tokens (<think>, <tool_call>) are words like others, in messages as well: templates
 * look for them, earlier answers consist of them, and they end nobody's turn. */
#ifndef PS_PROMPT_H
#define PS_PROMPT_H

#include "model/template.h"
#include "model/token.h"

struct prompt;

/* Both are borrowed and must outlive *out. Reads the vocabulary once. */
int prompt_open(struct prompt **out, const struct token_model *tokens, struct template *tmpl,
                struct err *err);
void prompt_close(struct prompt *p);

/* Renders (arguments as template_render's) and appends the ids to *out; nothing is appended on
 * failure. No bos is added: that is the template's to write, as in transformers. Any thread. */
int prompt_build(const struct prompt *p, const char *messages_json, const char *tools_json,
                 const char *kwargs_json, bool add_generation_prompt, struct token_ids *out,
                 struct err *err);

#endif
