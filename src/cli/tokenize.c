/* plainsong tokenize: text to ids and their pieces, ids to text. Needs the file's tokenizer only.
 */
#include "cli/cli.h"
#include "cli/opts.h"
#include "cli/text.h"
#include "model/hparams.h"
#include "model/token.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tokenize {
    const char *model;
    bool special, decode, ids;
    bool bos;
};

static const struct opt_usage usage = {
    "tokenize",
    "plainsong tokenize [-m MODEL] [options] TEXT|-",
    "Prints the token ids of a text, one a line, with the piece of text each stands for. -: the "
    "text is standard input, every "
    "byte of it. With --decode the text is ids (separated by blanks or commas) and their text is "
    "printed.",
    1,
};

#define AT(field) offsetof(struct tokenize, field)

static const struct opt table[] = {
    {'m', "model", OPT_TEXT, AT(model), 0, 0, "FILE", "GGUF file; plainsong-tiny when not given"},
    {0, "special", OPT_FLAG, AT(special), 0, 0, NULL,
     "control tokens spelled in the text become their ids; with --decode they are printed"},
    {0, "no-bos", OPT_OFF, AT(bos), 0, 0, NULL, "no begin token where the file asks for one"},
    {0, "decode", OPT_FLAG, AT(decode), 0, 0, NULL, "ids to text"},
    {0, "ids", OPT_FLAG, AT(ids), 0, 0, NULL, "ids only, on one line"},
};

static void print_ids(const struct token_model *t, const struct token_ids *ids, bool only_ids)
{
    char quoted[256];
    size_t len;
    for (size_t i = 0; i < ids->n; i++) {
        if (only_ids) {
            printf("%s%u", i ? " " : "", ids->ids[i]);
            continue;
        }
        const char *bytes = token_bytes(t, ids->ids[i], true, &len);
        printf("%8u  \"%s\"\n", ids->ids[i], err_quote(quoted, sizeof quoted, bytes, len));
    }
    if (only_ids)
        putchar('\n');
}

/* The next id of a list, or 0 at its end, or -1. *at moves past it. */
static int next_id(const struct text *list, size_t *at, u32 n_vocab, u32 *id, struct err *err)
{
    static const char blanks[] = " ,\t\r\n[]";
    char word[24], quoted[64];
    u64 n;
    size_t len = 0;
    while (*at < list->len && memchr(blanks, list->at[*at], sizeof blanks - 1))
        ++*at;
    while (*at + len < list->len && !memchr(blanks, list->at[*at + len], sizeof blanks - 1))
        len++;
    if (len == 0)
        return 0;
    const char *from = list->at + *at;
    if (len < sizeof word) {
        memcpy(word, from, len);
        word[len] = 0;
    }
    if (len >= sizeof word || strlen(word) != len || !opts_u64(word, &n) || n >= n_vocab)
        return err_set(err, "\"%s\": expected token ids from 0 to %u",
                       err_quote(quoted, sizeof quoted, from, len), n_vocab - 1);
    *at += len;
    *id = (u32)n;
    return 1;
}

static int decode(const struct token_model *t, const struct text *list, bool special,
                  struct err *err)
{
    struct token_stream stream = {.keep_special = special};
    size_t room = 3 * (token_max_bytes(t) + 4) + 16, at = 0;
    u32 id;
    int rc;
    while ((rc = next_id(list, &at, token_count(t), &id, err)) == 1)
        ; /* all of it first: a bad id prints nothing but its error */
    char *buf = rc == 0 ? malloc(room) : NULL;
    if (rc == 0 && !buf)
        rc = err_set(err, "out of memory");
    if (rc)
        return -1;
    for (at = 0; next_id(list, &at, token_count(t), &id, err) == 1;)
        fwrite(buf, 1, token_stream_push(t, &stream, id, buf, room), stdout);
    fwrite(buf, 1, token_stream_end(&stream, buf, room), stdout);
    putchar('\n');
    free(buf);
    return 0;
}

static int tokenize(const struct tokenize *o, const struct text *text, struct err *err)
{
    struct gguf g = {0};
    struct hparams hp;
    struct token_model *t = NULL;
    struct token_ids ids = {0};
    char *path = opts_model(o->model, err);
    int rc = path ? 0 : -1;
    if (rc == 0)
        rc = gguf_open(&g, path, err);
    if (rc == 0)
        rc = hparams_read(&hp, &g, err);
    if (rc == 0)
        rc = token_open(&t, &g, hp.n_vocab, err);
    if (rc == 0 && o->decode) {
        rc = decode(t, text, o->special, err);
    } else if (rc == 0) {
        unsigned flags = (o->special ? TOKEN_PARSE_SPECIAL : 0u) | (o->bos ? TOKEN_ADD_BOS : 0u);
        rc = token_encode(t, text->at, text->len, flags, &ids, err);
        if (rc == 0)
            print_ids(t, &ids, o->ids);
    }
    token_ids_free(&ids);
    token_close(t);
    gguf_close(&g);
    free(path);
    return rc;
}

int cli_tokenize(int argc, char **argv)
{
    struct tokenize o = {.bos = true};
    struct text text = {0}, from_stdin = {0};
    struct err err;
    const char *arg;
    u32 n_args;
    const struct opt_group groups[] = {{"Options", table, COUNT(table), &o}};
    int rc = opts_parse(&usage, argc, argv, groups, COUNT(groups), &arg, &n_args);
    if (rc)
        return rc == OPTS_HELPED ? EXIT_DONE : EXIT_USAGE;
    if (n_args == 0)
        return cli_fail(usage.command, EXIT_USAGE, "no text: expected TEXT or - (standard input)");
    if (o.decode && o.ids)
        return cli_fail(usage.command, EXIT_USAGE, "--decode with --ids: expected one of them");
    if (strcmp(arg, "-") == 0) {
        if (text_read(&from_stdin, "-", &err))
            return cli_fail(usage.command, EXIT_WORLD, "%s", err.text);
        text = from_stdin;
    } else {
        text = (struct text){(char *)arg, strlen(arg)};
    }
    rc = tokenize(&o, &text, &err);
    free(from_stdin.at);
    return rc ? cli_fail(usage.command, EXIT_WORLD, "%s", err.text) : EXIT_DONE;
}
