/* Chat templates: messages in, prompt text out, rendered by Python's jinja2 in one confined worker
 * process (memory and time limits, no network, no files). The worker is started by template_open
 * and ends with template_close; a template that loops or blows up kills the worker, not us: the
 * next render starts a new one. Calls are serialised inside; any thread. */
#ifndef PS_TEMPLATE_H
#define PS_TEMPLATE_H

#include "base/base.h"

struct template;

struct template_text { /* out: malloc'd, the caller frees; a NUL follows text[len - 1] */
    char *text;
    size_t len;
};

/* Wall clock of a render, in which a new worker may have to start. */
enum { TEMPLATE_TIMEOUT_MS = 2000 };

/* Of the text. Messages, tools and kwargs together may have four times that. */
enum { TEMPLATE_MAX_BYTES = 16 << 20 };

/* source: the template's text (tokenizer.chat_template); bos, eos: texts of those tokens, may be
 * "". All copied. Starts the worker and compiles the template. Fails, with *out NULL, when no
 * python3 has jinja2 (the message says which package to install), when the template has a syntax
 * error or takes more than 2 s to compile. Python is $PLAINSONG_PYTHON and no other when that is
 * set; else each python3 on PATH, /usr/bin/python3, and the venv that run.sh makes: the first that
 * has jinja2. */
int template_open(struct template **out, const char *source, size_t len, const char *bos,
                  const char *eos, struct err *err);
void template_close(struct template *t); /* NULL is fine; no other call may be under way */

/* messages_json: a JSON array of objects; tools_json: a JSON array or NULL; kwargs_json: an object
 * of further template variables or NULL. Renders as transformers' apply_chat_template does
 * (trim_blocks, lstrip_blocks, its tojson, raise_exception, strftime_now, loop controls, generation
 * tag, sandbox). Errors, one line each: the template's own raise_exception text, a limit that was
 * hit, invalid JSON. Waiting for other threads' renders has no limit of its own. */
int template_render(struct template *t, const char *messages_json, const char *tools_json,
                    const char *kwargs_json, bool add_generation_prompt, struct template_text *out,
                    struct err *err);

/* Whether the worker's system calls are filtered (Linux on x86-64 and aarch64). Without that it
 * still has jinja2's sandbox, no descriptor but its socket, and what limits on memory and files the
 * system knows. */
bool template_confined(struct template *t);

#endif
