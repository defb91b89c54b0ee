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

/* ---- GGUF files made in memory ---- */

struct bytes {
    u8 *at;
    size_t n, cap;
};

static void put(struct bytes *b, const void *p, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n);
        b->at = realloc(b->at, b->cap);
    }
    if (n)
        memcpy(b->at + b->n, p, n);
    b->n += n;
}

static void put_u32(struct bytes *b, u32 v)
{
    put(b, &v, sizeof v);
}

static void put_u64(struct bytes *b, u64 v)
{
    put(b, &v, sizeof v);
}

static void put_str(struct bytes *b, const char *s, size_t n)
{
    put_u64(b, n);
    put(b, s, n);
}

static void put_key(struct bytes *b, const char *key, u32 type)
{
    put_str(b, key, strlen(key));
    put_u32(b, type);
}

/* The metadata as JSON: {"field": value}, each field below tokenizer.ggml. unless it has a dot. Integers become u32
 * (i32 when negative), arrays are of strings, integers (i32) or reals (f32); null leaves the field out. */
static struct bytes gguf_of(const json_t *meta)
{
    struct bytes b = {0};
    u64 n_kv = 0;
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)meta, name, v) n_kv += !json_is_null(v);
    put(&b, "GGUF", 4);
    put_u32(&b, 3);
    put_u64(&b, 0);
    put_u64(&b, n_kv);
    json_object_foreach((json_t *)meta, name, v)
    {
        char key[100];
        snprintf(key, sizeof key, strchr(name, '.') ? "%s" : "tokenizer.ggml.%s", name);
        if (json_is_string(v)) {
            put_key(&b, key, GGUF_STRING);
            put_str(&b, json_string_value(v), json_string_length(v));
        } else if (json_is_integer(v)) {
            put_key(&b, key, json_integer_value(v) < 0 ? GGUF_I32 : GGUF_U32);
            put_u32(&b, (u32)json_integer_value(v));
        } else if (json_is_boolean(v)) {
            put_key(&b, key, GGUF_BOOL);
            put(&b, json_is_true(v) ? "\1" : "\0", 1);
        } else if (json_is_array(v)) {
            json_t *first = json_array_get(v, 0), *item;
            size_t i;
            put_key(&b, key, GGUF_ARRAY);
            put_u32(&b, !first || json_is_string(first) ? GGUF_STRING : json_is_integer(first) ? GGUF_I32 : GGUF_F32);
            put_u64(&b, json_array_size(v));
            json_array_foreach(v, i, item)
            {
                float f = (float)json_number_value(item);
                if (json_is_string(item))
                    put_str(&b, json_string_value(item), json_string_length(item));
                else if (json_is_integer(item))
                    put_u32(&b, (u32)json_integer_value(item));
                else
                    put(&b, &f, sizeof f);
            }
        }
    }
    return b;
}

struct made { /* a tokenizer over a file in memory */
    struct bytes bytes;
    struct gguf gguf;
    struct token_model *t;
    struct err err;
};

static bool make(struct made *m, const json_t *meta, u32 n_vocab)
{
    memset(m, 0, sizeof *m);
    m->bytes = gguf_of(meta);
    return !gguf_parse(&m->gguf, "test.gguf", m->bytes.at, m->bytes.n, &m->err) &&
           !token_open(&m->t, &m->gguf, n_vocab, &m->err);
}

static void unmake(struct made *m)
{
    token_close(m->t);
    gguf_close(&m->gguf);
    free(m->bytes.at);
}

/* ---- fixtures ---- */

/* Reads a fixture, prints "PRE: n strings, d differ"; -1 when it cannot. */
static int compare_file(const char *path, size_t *n_cases)
{
    json_error_t where;
    json_t *file = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!file) {
        fprintf(stderr, "%s:%d: %s\n", path, where.line, where.text);
        return -1;
    }
    json_t *meta = json_object(), *cases = json_object_get(file, "cases"), *line;
    json_object_set(meta, "model", json_object_get(file, "model"));
    json_object_set(meta, "pre", json_object_get(file, "pre"));
    json_object_set(meta, "tokens", json_object_get(file, "tokens"));
    json_object_set(meta, "token_type", json_object_get(file, "types"));
    if (json_object_get(file, "merges"))
        json_object_set(meta, "merges", json_object_get(file, "merges"));
    json_t *score, *scores = json_array();
    size_t i;
    json_array_foreach(json_object_get(file, "scores"), i, score)
        json_array_append_new(scores, json_real(json_number_value(score)));
    if (json_array_size(scores))
        json_object_set(meta, "scores", scores);
    struct made m;
    int differ = -1;
    if (make(&m, meta, (u32)json_array_size(json_object_get(file, "tokens")))) {
        differ = 0;
        json_array_foreach(cases, i, line)
            differ += !same_as(m.t, line, path, i + 1);
        printf("%s: %zu strings, %d differ\n", json_string_value(json_object_get(file, "pre")), json_array_size(cases), differ);
    } else {
        fprintf(stderr, "%s\n", m.err.text);
    }
    *n_cases = json_array_size(cases);
    unmake(&m);
    json_decref(scores);
    json_decref(meta);
    json_decref(file);
    return differ;
}

static void fixtures(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2", "llama-bpe", "gpt-4o", "olmo", "gpt-2", "default", "spm"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[100];
        size_t n;
        snprintf(path, sizeof path, "tests/oracle/pre/%s.json", names[i]);
        assert_int_equal(compare_file(path, &n), 0);
        assert_int_equal(n, 300);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_300),
        cmocka_unit_test(fixtures),
    };
    int failed = 0;
    for (int i = 1; i < argc; i++) { /* fixtures by name: compare only */
        size_t n;
        failed |= compare_file(argv[i], &n) != 0;
    }
    return argc > 1 ? failed : cmocka_run_group_tests_name("token", tests, open_tiny, close_tiny);
}
