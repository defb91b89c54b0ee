/* Chat templates: messages in, prompt text out, rendered by Python's jinja2 in one confined worker process
 * (memory and time limits, no network, no files). The worker is started by template_open and ends with
 * template_close; a template that loops or blows up kills the worker, not us: the next render starts a new one.
 * Calls are serialised inside; any thread. */
#ifndef PS_TEMPLATE_H
#define PS_TEMPLATE_H

#include "base/base.h"

struct template;

struct template_text { /* out: malloc'd, the caller frees */
    char *text;
    size_t len;
};

enum { TEMPLATE_TIMEOUT_MS = 2000 };

/* source: the template's text (tokenizer.chat_template); bos, eos: texts of those tokens, may be "". Starts the worker and
 * compiles the template. Fails when python3 or jinja2 is missing (the message says which package to install)
 * or the template has a syntax error. */
int template_open(struct template **out, const char *source, size_t len, const char *bos, const char *eos,
                  struct err *err);
void template_close(struct template *t);

/* messages_json: a JSON array; tools_json: a JSON array or NULL; kwargs_json: an object of further template
 * variables or NULL. Renders as transformers' apply_chat_template does (trim_blocks, lstrip_blocks, its tojson,
 * raise_exception, strftime_now, loop controls, sandbox). Errors: the template's own raise_exception text, a limit
 * that was hit, invalid JSON. */
int template_render(struct template *t, const char *messages_json, const char *tools_json, const char *kwargs_json,
                    bool add_generation_prompt, struct template_text *out, struct err *err);

#endif
