/* Opens in the order in which things fail cheaply: the file's form, the template, and only then the
 * weights. */
#include "cli/speaker.h"

#include "cli/cost.h"
#include "cli/profile.h"
#include "cli/progress.h"
#include "engine/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The public API's error and ours are the same line. */
static int pass(struct err *err, const struct ps_error *from)
{
    return err_set(err, "%s", from->text);
}

static int open_template(struct speaker *s, const char *path, struct err *err)
{
    struct ps_model_info info;
    struct err why;
    ps_model_info(s->model, &info);
    if (!info.chat_template)
        return err_set(err, "%.200s has no chat template: `plainsong run --raw` works without",
                       path);
    if (template_open(&s->tmpl, info.chat_template, info.chat_template_len, info.bos, info.eos,
                      &why))
        return err_set(err, "%s; see plainsong run --raw", why.text);
    return prompt_open(&s->prompt, s->model->token, s->tmpl, err);
}

int speaker_open(struct speaker *s, const char *command, const struct opts_engine *o, bool raw,
                 struct err *err)
{
    struct ps_error why;
    struct ps_engine_options eo = {.n_slots = 1};
    struct progress bar;
    s->command = command;
    s->opts = o;
    char *path = opts_model(o->model, err);
    if (!path || interrupt_open(&s->interrupt, err)) {
        free(path);
        return -1;
    }
    s->model = ps_model_open(path, &why);
    int rc = s->model ? 0 : pass(err, &why);
    if (rc == 0 && !raw)
        rc = open_template(s, path, err);
    free(path);
    if (rc)
        return -1;
    opts_engine_fill(o, &eo);
    eo.n_slots = eo.n_slots ? eo.n_slots : 1;
    eo.progress = progress_open(&bar);
    s->engine = ps_engine_open(s->model, &eo, &why);
    progress_close(&bar);
    if (!s->engine)
        return pass(err, &why);
    cost_greet(s->engine, o->verbose);
    return 0;
}

void speaker_close(struct speaker *s)
{
    ps_engine_close(s->engine);
    prompt_close(s->prompt);
    template_close(s->tmpl);
    ps_model_close(s->model);
    interrupt_close(s->interrupt);
}

/* ---- one answer ---- */

static int keep(struct answer *a, u32 id, struct err *err)
{
    if (a->n == a->cap) {
        size_t cap = a->cap * 2 + 256;
        u32 *ids = realloc(a->ids, cap * sizeof *ids);
        if (!ids)
            return err_set(err, "out of memory for an answer of %zu tokens", a->n);
        a->ids = ids;
        a->cap = cap;
    }
    a->ids[a->n++] = id;
    return 0;
}

static int say(struct answer *a, unsigned flags, const char *text, size_t len, struct err *err)
{
    if (a->text_cap - a->len < len + 1) {
        size_t cap = a->text_cap * 2 + len + 1024;
        char *at = realloc(a->text, cap);
        if (!at)
            return err_set(err, "out of memory for an answer of %zu bytes", a->len);
        a->text = at;
        a->text_cap = cap;
    }
    memcpy(a->text + a->len, text, len);
    a->len += len;
    a->text[a->len] = 0;
    if (len && !(flags & SPEAK_QUIET) && !a->write_error) {
        errno = 0;
        if (fwrite(text, 1, len, stdout) != len || fflush(stdout))
            a->write_error = errno ? errno : EIO;
    }
    return 0;
}

static int follow(struct ps_stream *stream, struct ps_decoder *d, unsigned flags, struct answer *a, struct err *err)
{
    struct ps_token t;
    struct ps_error why;
    const char *text;
    size_t len;
    int rc;
    while ((rc = ps_stream_next(stream, &t, &why)) == 1) {
        text = ps_decoder_push(d, t.id, &len);
        if (keep(a, t.id, err) || say(a, flags, text, len, err))
            return -1;
        if (a->write_error)
            ps_stream_cancel(stream);
    }
    text = ps_decoder_end(d, &len);
    return say(a, flags, text, len, err) || rc < 0 ? (rc < 0 ? pass(err, &why) : -1) : 0;
}

int speaker_answer(struct speaker *s, const struct ps_request *r, unsigned flags,
                   struct answer *out, struct err *err)
{
    struct ps_error why;
    *out = (struct answer){0};
    ps_engine_stats(s->engine, &out->before);
    struct ps_stream *stream = ps_stream_open(s->engine, r, &why);
    if (!stream)
        return pass(err, &why);
    interrupt_watch(s->interrupt, stream);
    struct ps_decoder *d = ps_decoder_open(s->model, false);
    int rc = d ? follow(stream, d, flags, out, err) : err_set(err, "out of memory");
    out->interrupted = interrupt_rest(s->interrupt);
    ps_stream_info(stream, &out->info);
    ps_stream_first(stream, &out->first);
    ps_engine_stats(s->engine, &out->after);
    ps_decoder_close(d);
    ps_stream_close(stream);
    return rc;
}

void answer_free(struct answer *a)
{
    free(a->ids);
    free(a->text);
}

/* ---- figures ---- */

double answer_prompt_tok_s(const struct answer *a)
{
    u32 n = a->info.n_prompt - a->info.n_cached;
    return a->info.prompt_s > 0 ? n / a->info.prompt_s : 0;
}

double answer_tok_s(const struct answer *a)
{
    /* The first token belongs to the prompt's last step; an end token took a step as well. */
    u32 n = a->info.n_generated + (a->info.end == PS_END_STOP);
    return n > 1 && a->info.decode_s > 0 ? (n - 1) / a->info.decode_s : 0;
}

static void report_speeds(const struct answer *a)
{
    const struct ps_stream_info *i = &a->info;
    /* Steps after the first token, all of this one stream: bytes a step are bytes a token. */
    u64 steps = a->after.steps - a->first.steps, bytes = a->after.bytes_read - a->first.bytes_read;
    fprintf(stderr, "prompt: %u tokens, %u of them kept, %.3f s, %.1f tok/s\n", i->n_prompt,
            i->n_cached, i->prompt_s, answer_prompt_tok_s(a));
    fprintf(stderr, "generation: %u tokens, %.3f s, %.1f tok/s\n", i->n_generated, i->decode_s,
            answer_tok_s(a));
    if (a->n && steps)
        fprintf(stderr, "read: %.2f MB a token, %.2f GB/s\n", 1e-6 * (double)bytes / (double)steps,
                1e-9 * (double)bytes / (double)steps * answer_tok_s(a));
    if (i->logits_hash)
        fprintf(stderr, "last logits: %016llx\n", (unsigned long long)i->logits_hash);
}

void speaker_describe(const struct speaker *s)
{
    struct ps_model_info m;
    struct ps_stats t;
    char device[160];
    ps_model_info(s->model, &m);
    ps_engine_stats(s->engine, &t);
    fprintf(stderr, "model: %s, %s, %.1f M parameters\n", m.name, m.arch,
            1e-6 * (double)m.n_params);
    fprintf(stderr, "device: %s, %u x %u tokens of %s; loaded in %.2f s, %.2f GB/s\n",
            cost_device(device, sizeof device, &t), t.n_slots, t.n_ctx, t.kv, t.load_s,
            t.load_s > 0 ? 1e-9 * (double)m.file_bytes / t.load_s : 0);
    if (t.warning)
        fprintf(stderr, "warning: %s\n", t.warning);
}

void speaker_report(const struct speaker *s, const struct answer *a)
{
    if (s->opts->verbose)
        report_speeds(a);
    if (s->opts->profile) {
        const struct ps_stats at[3] = {a->before, a->n ? a->first : a->after, a->after};
        profile_print(stderr, NULL, at);
    }
}
