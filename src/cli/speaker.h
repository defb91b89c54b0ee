/* A model that is open and answers on stdout: what `run` and `chat` share. */
#ifndef PS_SPEAKER_H
#define PS_SPEAKER_H

#include "cli/interrupt.h"
#include "cli/opts.h"
#include "model/prompt.h"

struct speaker { /* zero-initialise; main thread */
    const char *command;
    const struct opts_engine *opts;
    struct interrupt *interrupt;
    struct ps_model *model;
    struct ps_engine *engine;
    struct template *tmpl;
    struct prompt *prompt;
};

/* Opens the model, the chat template unless raw, then the engine, with a progress bar on a
 * terminal, and says what it costs to a terminal or with --verbose. One stream is all there is, so
 * one slot is the default. */
int speaker_open(struct speaker *s, const char *command, const struct opts_engine *o, bool raw,
                 struct err *err);
void speaker_close(struct speaker *s); /* half-open is fine */

struct answer { /* released by answer_free */
    struct ps_stream_info info;
    u32 *ids;
    size_t n, cap;
    char *text; /* NUL-terminated, without the end token */
    size_t len, text_cap;
    bool interrupted; /* Ctrl-C */
    int write_error;  /* errno of stdout, 0 when all was written */
    struct ps_stats before, first,
        after; /* at the start, once the first token was there, at the end */
};

enum { SPEAK_QUIET = 1 /* nothing to stdout */ };

/* Runs the request to its end, each token's text to stdout as it comes, whole characters, flushed.
 * Ctrl-C and a failing stdout end it early: not an error, see answer. */
int speaker_answer(struct speaker *s, const struct ps_request *r, unsigned flags,
                   struct answer *out, struct err *err);
void answer_free(struct answer *a);

/* Model and device, to stderr. */
void speaker_describe(const struct speaker *s);

/* What --verbose and --profile ask for about an answer, to stderr. */
void speaker_report(const struct speaker *s, const struct answer *a);

double answer_prompt_tok_s(const struct answer *a); /* 0 when not known */
double answer_tok_s(const struct answer *a);        /* generation, the first token aside */

#endif
