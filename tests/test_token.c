/* The tokenizer against Hugging Face's: the shipped model's 300 strings, and (tests/oracle/pre/) small vocabularies
 * with random strings for each pre-tokenizer. tests/diff-tokenizers/run.sh made the latter and compares many more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/token.h"

static struct gguf tiny_file;
static struct token_model *tiny;

static int open_tiny(void **state)
{
    (void)state;
    struct err err = {""};
    u32 n_vocab = 4096;
    if (gguf_open(&tiny_file, "models/plainsong-tiny-q4_0.gguf", &err) || token_open(&tiny, &tiny_file, n_vocab, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    return 0;
}

static int close_tiny(void **state)
{
    (void)state;
    token_close(tiny);
    gguf_close(&tiny_file);
    return 0;
}

/* The whole text of ids; released with free(). */
static char *decode(const struct token_model *t, const u32 *ids, size_t n, bool keep_special, size_t *len)
{
    size_t room = 3 * (token_max_bytes(t) + 4), cap = room * (n + 1), w = 0;
    char *text = malloc(cap);
    struct token_stream s = {.keep_special = keep_special};
    for (size_t i = 0; i < n; i++)
        w += token_stream_push(t, &s, ids[i], text + w, cap - w);
    w += token_stream_end(&s, text + w, cap - w);
    *len = w;
    return text;
}

/* One line of an oracle file; false when it differs. */
static bool same_as(const struct token_model *t, json_t *line, const char *what, size_t nth)
{
    json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids"),
           *decoded = json_object_get(line, "decoded");
    struct token_ids got = {0};
    struct err err = {""};
    bool same = !token_encode(t, json_string_value(text), json_string_length(text), TOKEN_PARSE_SPECIAL, &got, &err) &&
                got.n == json_array_size(ids);
    for (size_t i = 0; same && i < got.n; i++)
        same = got.ids[i] == (u32)json_integer_value(json_array_get(ids, i));
    size_t len = 0;
    char *back = decode(t, got.ids, got.n, true, &len);
    if (same && decoded)
        same = len == json_string_length(decoded) && !memcmp(back, json_string_value(decoded), len);
    if (!same) {
        char *dump = json_dumps(line, JSON_ENSURE_ASCII);
        fprintf(stderr, "%s line %zu: %s\n got %s [", what, nth, dump, err.text);
        for (size_t i = 0; i < got.n; i++)
            fprintf(stderr, "%u ", got.ids[i]);
        fprintf(stderr, "] \"%.*s\"\n", (int)len, back);
        free(dump);
    }
    free(back);
    token_ids_free(&got);
    return same;
}

static void oracle_300(void **state)
{
    (void)state;
    FILE *f = fopen("tests/oracle/tokenizer.jsonl", "r");
    assert_non_null(f);
    size_t n = 0, differ = 0;
    for (json_t *line; (line = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL)); json_decref(line))
        differ += !same_as(tiny, line, "tokenizer.jsonl", ++n);
    fclose(f);
    assert_int_equal(n, 300);
    assert_int_equal(differ, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_300),
    };
    return cmocka_run_group_tests_name("token", tests, open_tiny, close_tiny);
}
