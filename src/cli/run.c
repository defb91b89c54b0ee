/* plainsong run: one prompt, one answer, the answer alone on stdout. Greedy unless told otherwise:
 * the same command gives the same bytes, on every machine. */
#include "cli/cli.h"
#include "cli/speaker.h"
#include "cli/text.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    const char *prompt, *file, *system;
    u32 n_tokens;
    bool raw, json;
    struct opts_engine engine;
    struct opts_sampling sampling;
};

static const struct opt_usage usage = {
    "run",
    "plainsong run [-m MODEL] -p TEXT | -f FILE [options]",
    "Answers one prompt and ends. The answer goes to stdout as it comes, all else to stderr; a "
    "newline is added when the answer "
    "does not end in one. It ends at the model's end token, at -n, when the context is full, or at "
    "Ctrl-C (exit status 130). "
    "Greedy by default: the same command gives the same bytes.",
    0,
};

#define AT(field) offsetof(struct run, field)

static const struct opt table[] = {
    {'p', "prompt", OPT_TEXT, AT(prompt), -1, 0, "TEXT", "what to say to the model"},
    {'f', "file", OPT_TEXT, AT(file), 0, 0, "FILE",
     "the prompt is this file, -: standard input; not a byte is trimmed"},
    {'n', "tokens", OPT_U32, AT(n_tokens), 1, 1 << 24, "N",
     "tokens at most; until the end when not given"},
    {0, "system", OPT_TEXT, AT(system), -1, 0, "TEXT", "a system message before the prompt"},
    {0, "raw", OPT_FLAG, AT(raw), 0, 0, NULL,
     "continue the text itself: no chat template. Control tokens that the text spells stay text "
     "all the same"},
    {0, "json", OPT_FLAG, AT(json), 0, 0, NULL,
     "one JSON object at the end instead of text: text, ids, counts, timings, hash of the last "
     "logits"},
};

/* ---- the prompt ---- */

static int chat_ids(struct speaker *s, const struct run *o, const struct text *prompt,
                    struct token_ids *ids, struct err *err)
{
    json_t *messages = json_array();
    if (o->system)
        json_array_append_new(messages,
                              json_pack("{s:s, s:s}", "role", "system", "content", o->system));
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content",
                                              json_stringn(prompt->at, prompt->len)));
    char *text = json_dumps(messages, JSON_COMPACT);
    json_decref(messages);
    int rc = text ? prompt_build(s->prompt, text, NULL, NULL, true, ids, err)
                  : err_set(err, "out of memory");
    free(text);
    return rc;
}

static int raw_ids(struct speaker *s, const struct text *prompt, struct token_ids *ids,
                   struct err *err)
{
    struct ps_error why;
    if (ps_encode(s->model, prompt->at, prompt->len, false, true, &ids->ids, &ids->n, &why))
        return err_set(err, "%s", why.text);
    ids->cap = ids->n;
    return 0;
}

static int read_prompt(const struct run *o, struct text *out, struct err *err)
{
    if (o->file) {
        if (text_read(out, o->file, err))
            return -1;
    } else {
        out->at = strdup(o->prompt);
        out->len = strlen(o->prompt);
        if (!out->at)
            return err_set(err, "out of memory");
    }
    return text_check(o->file ? o->file : "--prompt", out->at, out->len, err);
}

/* ---- the result ---- */

static const char *end_name(enum ps_end end)
{
    switch (end) {
    case PS_END_STOP:
        return "stop";
    case PS_END_LENGTH:
        return "length";
    case PS_END_CANCEL:
        return "cancel";
    case PS_END_DEADLINE:
        return "deadline";
    case PS_END_NONE:
    case PS_END_ERROR:
        break;
    }
    return "error";
}

static int print_json(const struct answer *a, struct err *err)
{
    char hash[17];
    json_t *ids = json_array();
    for (size_t i = 0; i < a->n; i++)
        json_array_append_new(ids, json_integer(a->ids[i]));
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)a->info.logits_hash);
    json_t *timings =
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "load_s", a->after.load_s, "queue_s",
                  a->info.queue_s, "prompt_s", a->info.prompt_s, "decode_s", a->info.decode_s,
                  "prompt_tok_s", answer_prompt_tok_s(a), "tok_s", answer_tok_s(a));
    json_t *j =
        json_pack("{s:s%, s:o, s:i, s:i, s:i, s:s, s:o, s:s}", "text", a->text ? a->text : "",
                  a->len, "ids", ids, "prompt_tokens", (int)a->info.n_prompt, "cached_tokens",
                  (int)a->info.n_cached, "tokens", (int)a->n, "finish_reason",
                  end_name(a->info.end), "timings", timings, "logits_hash", hash);
    char *text = j ? json_dumps(j, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(j);
    if (!text)
        return err_set(err, "cannot write the answer as JSON");
    puts(text);
    free(text);
    return 0;
}

/* 0 or -1; *status: what a done answer comes to. */
static int answer(struct speaker *s, const struct run *o, const struct token_ids *ids, int *status,
                  struct err *err)
{
    struct answer a;
    struct ps_request r = {.ids = ids->ids,
                           .n_ids = ids->n,
                           .max_tokens = o->n_tokens,
                           .sampling = opts_sampling_fill(&o->sampling)};
    int rc = speaker_answer(s, &r, o->json ? SPEAK_QUIET : 0, &a, err);
    if (!o->json && a.len && a.text[a.len - 1] != '\n')
        putchar('\n');
    if (rc == 0 && o->json)
        rc = print_json(&a, err);
    if (rc == 0) {
        if (o->engine.verbose)
            speaker_describe(s);
        speaker_report(s, &a);
        *status = a.interrupted ? EXIT_INTERRUPTED : EXIT_DONE;
    }
    if (rc == 0 && a.write_error && a.write_error != EPIPE)
        rc = err_set(err, "cannot write to standard output: %s", strerror(a.write_error));
    answer_free(&a);
    return rc;
}

static int run(const struct run *o)
{
    struct speaker s = {0};
    struct text prompt = {0};
    struct token_ids ids = {0};
    struct err err;
    int status = EXIT_WORLD;
    int rc = read_prompt(o, &prompt, &err);
    if (rc == 0)
        rc = speaker_open(&s, usage.command, &o->engine, o->raw, &err);
    if (rc == 0)
        rc = o->raw ? raw_ids(&s, &prompt, &ids, &err) : chat_ids(&s, o, &prompt, &ids, &err);
    if (rc == 0 && ids.n == 0)
        rc = err_set(&err, "the prompt is empty: expected at least one token");
    if (rc == 0)
        rc = answer(&s, o, &ids, &status, &err);
    if (rc)
        status = cli_fail(usage.command, EXIT_WORLD, "%s", err.text);
    token_ids_free(&ids);
    free(prompt.at);
    speaker_close(&s);
    return status;
}

int cli_run(int argc, char **argv)
{
    struct run o = {0};
    struct err err;
    u32 n_args;
    const struct opt_group groups[] = {
        {"Options", table, COUNT(table), &o},
        {"Sampling", opts_sampling_table, opts_sampling_count, &o.sampling},
        {"Engine", opts_engine_table, opts_engine_count, &o.engine},
    };
    int rc = opts_parse(&usage, argc, argv, groups, COUNT(groups), NULL, &n_args);
    if (rc)
        return rc == OPTS_HELPED ? EXIT_DONE : EXIT_USAGE;
    if (!o.prompt == !o.file)
        return cli_fail(usage.command, EXIT_USAGE,
                        "%s: expected either -p TEXT or -f FILE (-f -: standard input)",
                        o.prompt ? "both -p and -f" : "no prompt");
    if (o.raw && o.system)
        return cli_fail(usage.command, EXIT_USAGE, "--system with --raw: expected one of them");
    if ((o.system && text_check("--system", o.system, strlen(o.system), &err)) ||
        (o.prompt && text_check("--prompt", o.prompt, strlen(o.prompt), &err)))
        return cli_fail(usage.command, EXIT_USAGE, "%s", err.text);
    return run(&o);
}
