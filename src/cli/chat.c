/* plainsong chat: a conversation, line by line. It is kept here as messages and rendered anew each
 * turn; what the turns share is found again in the engine's slot, so only what is new is read.
 * Ctrl-C stops the answer. */
#include "cli/cli.h"
#include "cli/speaker.h"
#include "cli/text.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct lines { /* of standard input, which is polled together with Ctrl-C: stdio would hide what it
                  holds */
    char *at;
    size_t start, end, cap; /* unread bytes are [start, end) */
    size_t looked;          /* no newline before this */
    bool ended;
};

struct chat {
    const char *system;
    u32 n_tokens;
    struct opts_engine engine;
    struct opts_sampling sampling;
    struct speaker speaker;
    struct lines lines;
    json_t *messages; /* without the system message */
    char *system_now; /* malloc'd, or NULL */
    bool terminal;    /* someone sits at standard input */
};

static const struct opt_usage usage = {
    "chat",
    "plainsong chat [-m MODEL] [options]",
    "Talks with the model, a line for each turn. Answers go to stdout, all else to stderr. "
    "Ctrl-C stops an answer; twice at the prompt, like Ctrl-D or /exit, it ends the program.\n"
    "/reset  a new conversation; /system TEXT  a system message from now on; /help",
    0,
};

#define AT(field) offsetof(struct chat, field)

static const struct opt table[] = {
    {0, "system", OPT_TEXT, AT(system), -1, 0, "TEXT", "a system message"},
    {'n', "tokens", OPT_U32, AT(n_tokens), 1, 1 << 24, "N", "tokens of an answer at most"},
};

/* ---- lines ---- */

enum { LINE_ENDED, LINE_READ, LINE_INTERRUPTED, LINE_FAILED };

static int read_more(struct lines *l, struct err *err)
{
    if (l->start) {
        memmove(l->at, l->at + l->start, l->end - l->start);
        l->end -= l->start;
        l->looked -= l->start;
        l->start = 0;
    }
    if (l->end > TEXT_MAX_BYTES)
        return err_set(err, "standard input: a line of more than %d MiB", TEXT_MAX_BYTES >> 20);
    if (l->cap - l->end < 4096) {
        size_t cap = l->cap * 2 + 8192;
        char *at = realloc(l->at, cap);
        if (!at)
            return err_set(err, "out of memory for a line");
        l->at = at;
        l->cap = cap;
    }
    ssize_t n = read(STDIN_FILENO, l->at + l->end, l->cap - l->end);
    if (n < 0 && errno != EINTR)
        return err_set(err, "standard input: %s", strerror(errno));
    l->ended = n == 0;
    l->end += n > 0 ? (size_t)n : 0;
    return 0;
}

/* The next line without its newline, in l's buffer until the next call. */
static int read_line(struct lines *l, int interrupt_fd, struct text *line, struct err *err)
{
    for (;;) {
        char *newline =
            l->end > l->looked ? memchr(l->at + l->looked, '\n', l->end - l->looked) : NULL;
        if (newline || (l->ended && l->end > l->start)) {
            size_t stop = newline ? (size_t)(newline - l->at) : l->end;
            *line = (struct text){l->at + l->start, stop - l->start};
            l->start = l->looked = stop + (newline != NULL);
            return LINE_READ;
        }
        l->looked = l->end;
        if (l->ended)
            return LINE_ENDED;
        struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                {.fd = interrupt_fd, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR) {
            err_set(err, "standard input: %s", strerror(errno));
            return LINE_FAILED;
        }
        if (fds[1].revents)
            return LINE_INTERRUPTED;
        if (fds[0].revents && read_more(l, err))
            return LINE_FAILED;
    }
}

/* ---- a turn ---- */

static int render(struct chat *c, struct token_ids *ids, struct err *err)
{
    json_t *all = json_array();
    if (c->system_now)
        json_array_append_new(all,
                              json_pack("{s:s, s:s}", "role", "system", "content", c->system_now));
    json_array_extend(all, c->messages);
    char *text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    int rc = text ? prompt_build(c->speaker.prompt, text, NULL, NULL, true, ids, err)
                  : err_set(err, "out of memory");
    free(text);
    return rc;
}

static void append(struct chat *c, const char *role, const char *text, size_t len)
{
    json_array_append_new(
        c->messages, json_pack("{s:s, s:o}", "role", role, "content", json_stringn(text, len)));
}

static void tell_end(const struct chat *c, const struct answer *a, u32 n_ctx)
{
    if (a->interrupted)
        fputs("(stopped)\n", stderr);
    else if (a->info.end == PS_END_LENGTH && a->info.n_prompt + a->info.n_generated >= n_ctx)
        fprintf(stderr,
                "(the context of %u tokens is full: this answer is cut. /reset starts a new "
                "conversation,\n"
                " a larger --ctx holds more)\n",
                n_ctx);
    else if (a->info.end == PS_END_LENGTH)
        fprintf(stderr, "(cut at -n %u)\n", c->n_tokens);
}

/* Asks for the answer to the messages and appends it. *gone: nobody reads stdout any more. */
static int answer(struct chat *c, bool *gone, struct err *err)
{
    struct token_ids ids = {0};
    struct answer a = {0};
    struct ps_stats now;
    interrupt_begin(c->speaker.interrupt);
    ps_engine_stats(c->speaker.engine, &now);
    int rc = render(c, &ids, err);
    if (rc == 0 && ids.n >= now.n_ctx)
        rc = err_set(
            err,
            "the conversation takes %zu tokens, the context holds %u: your line was not added. "
            "/reset starts a new one, a larger --ctx holds more",
            ids.n, now.n_ctx);
    if (rc == 0) {
        u32 room = now.n_ctx - (u32)ids.n;
        struct ps_request r = {
            .ids = ids.ids, .n_ids = ids.n, .sampling = opts_sampling_fill(&c->sampling)};
        r.max_tokens = c->n_tokens && c->n_tokens < room ? c->n_tokens : 0;
        rc = speaker_answer(&c->speaker, &r, 0, &a, err);
        if (a.len && a.text[a.len - 1] != '\n')
            putchar('\n');
        fflush(stdout);
    }
    if (rc == 0) {
        append(c, "assistant", a.text ? a.text : "", a.len);
        tell_end(c, &a, now.n_ctx);
        speaker_report(&c->speaker, &a);
        *gone = a.write_error == EPIPE;
        if (a.write_error && !*gone)
            rc = err_set(err, "cannot write to standard output: %s", strerror(a.write_error));
    }
    interrupt_rest(c->speaker.interrupt);
    token_ids_free(&ids);
    answer_free(&a);
    return rc;
}

/* ---- commands ---- */

static void help(void)
{
    fputs("/reset        forget the conversation (the system message stays)\n"
          "/system TEXT  a system message from now on; without TEXT: none\n"
          "/exit         end, as Ctrl-D does and Ctrl-C twice\n"
          "Ctrl-C        stop the answer\n"
          "//...         a line that begins with a slash\n",
          stderr);
}

static bool is_command(const struct text *line, const char *name)
{
    size_t n = strlen(name);
    return line->len >= n && memcmp(line->at, name, n) == 0 &&
           (line->len == n || line->at[n] == ' ');
}

static int set_system(struct chat *c, const char *text, size_t len, struct err *err)
{
    char *copy = NULL;
    if (len && !(copy = strndup(text, len)))
        return err_set(err, "out of memory");
    free(c->system_now);
    c->system_now = copy;
    return 0;
}

enum turn { TURN_NEXT, TURN_END, TURN_FAILED };

static enum turn take_command(struct chat *c, const struct text *line, struct err *err)
{
    char quoted[48];
    if (is_command(line, "/exit") || is_command(line, "/quit"))
        return TURN_END;
    if (is_command(line, "/help")) {
        help();
    } else if (is_command(line, "/reset")) {
        json_array_clear(c->messages);
        fputs("(a new conversation)\n", stderr);
    } else if (is_command(line, "/system")) {
        size_t skip = line->len > 8 ? 8 : line->len;
        if (set_system(c, line->at + skip, line->len - skip, err))
            return TURN_FAILED;
        fputs(c->system_now ? "(system message set)\n" : "(no system message)\n", stderr);
    } else {
        fprintf(stderr, "(no command %s: /help lists them, // begins a line with a slash)\n",
                err_quote(quoted, sizeof quoted, line->at, line->len));
    }
    return TURN_NEXT;
}

static enum turn take_line(struct chat *c, struct text line, struct err *err)
{
    struct err why;
    bool gone = false;
    if (text_check("this line", line.at, line.len, &why)) {
        cli_fail(usage.command, EXIT_WORLD, "%s", why.text);
        return TURN_NEXT;
    }
    if (line.len && line.at[line.len - 1] == '\r')
        line.len--;
    if (line.len == 0)
        return TURN_NEXT;
    if (line.at[0] == '/' && (line.len == 1 || line.at[1] != '/'))
        return take_command(c, &line, err);
    size_t slash = line.at[0] == '/';
    append(c, "user", line.at + slash, line.len - slash);
    if (answer(c, &gone, &why)) {
        /* Nothing is lost but this line. */
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
        cli_fail(usage.command, EXIT_WORLD, "%s", why.text);
        return ferror(stdout) ? (*err = why, TURN_FAILED) : TURN_NEXT;
    }
    return gone ? TURN_END : TURN_NEXT;
}

/* Ctrl-C at the prompt: the terminal has dropped what was typed. True when it was the second in a
 * row. */
static bool interrupted_twice(struct chat *c, u32 *presses)
{
    interrupt_taken(c->speaker.interrupt);
    if (++*presses == 2 || !c->terminal) {
        fputc('\n', stderr);
        return true;
    }
    fputs("\n(Ctrl-C again, Ctrl-D or /exit ends)\n", stderr);
    return false;
}

static int talk(struct chat *c, struct err *err)
{
    u32 presses = 0;
    struct text line;
    for (;;) {
        if (c->terminal)
            fputs("> ", stderr);
        switch (read_line(&c->lines, interrupt_fd(c->speaker.interrupt), &line, err)) {
        case LINE_INTERRUPTED:
            if (interrupted_twice(c, &presses))
                return EXIT_INTERRUPTED;
            break;
        case LINE_ENDED:
            if (c->terminal)
                fputc('\n', stderr);
            return EXIT_DONE;
        case LINE_FAILED:
            return cli_fail(usage.command, EXIT_WORLD, "%s", err->text);
        case LINE_READ:
            presses = 0;
            switch (take_line(c, line, err)) {
            case TURN_END:
                return EXIT_DONE;
            case TURN_FAILED:
                return EXIT_WORLD;
            case TURN_NEXT:
                break;
            }
            interrupt_taken(c->speaker.interrupt); /* a press too late to stop the answer */
        }
    }
}

static void greet(const struct chat *c)
{
    struct ps_model_info m;
    struct ps_stats s;
    if (c->engine.verbose)
        speaker_describe(&c->speaker);
    if (!c->terminal)
        return;
    ps_model_info(c->speaker.model, &m);
    ps_engine_stats(c->speaker.engine, &s);
    fprintf(stderr, "%s, %u tokens of context. /help says what else there is.\n", m.name, s.n_ctx);
}

int cli_chat(int argc, char **argv)
{
    struct chat c = {0};
    struct err err;
    u32 n_args;
    const struct opt_group groups[] = {
        {"Options", table, COUNT(table), &c},
        {"Sampling", opts_sampling_table, opts_sampling_count, &c.sampling},
        {"Engine", opts_engine_table, opts_engine_count, &c.engine},
    };
    int rc = opts_parse(&usage, argc, argv, groups, COUNT(groups), NULL, &n_args);
    if (rc)
        return rc == OPTS_HELPED ? EXIT_DONE : EXIT_USAGE;
    if (c.system && text_check("--system", c.system, strlen(c.system), &err))
        return cli_fail(usage.command, EXIT_USAGE, "%s", err.text);
    c.terminal = isatty(STDIN_FILENO);
    c.messages = json_array();
    int status = EXIT_WORLD;
    if (!c.messages || (c.system && set_system(&c, c.system, strlen(c.system), &err)) ||
        speaker_open(&c.speaker, usage.command, &c.engine, false, &err)) {
        cli_fail(usage.command, EXIT_WORLD, "%s", c.messages ? err.text : "out of memory");
    } else {
        interrupt_rest(c.speaker.interrupt);
        greet(&c);
        status = talk(&c, &err);
    }
    speaker_close(&c.speaker);
    json_decref(c.messages);
    free(c.system_now);
    free(c.lines.at);
    return status;
}
