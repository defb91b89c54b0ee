/* The tokenizer against Hugging Face's: the shipped model's 300 strings, and (tests/oracle/pre/)
 * small vocabularies with random strings for each pre-tokenizer. tests/diff-tokenizers/run.sh made
 * the latter and compares many more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/token.h"

static struct gguf tiny_file;
static struct token_model *tiny;

static int open_tiny(void **state)
{
    (void)state;
    struct err err = {.text = ""};
    u32 n_vocab = 4096;
    if (gguf_open(&tiny_file, "models/plainsong-tiny-q4_0.gguf", &err) ||
        token_open(&tiny, &tiny_file, n_vocab, &err)) {
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
static char *decode(const struct token_model *t, const u32 *ids, size_t n, bool keep_special,
                    size_t *len)
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
    struct err err = {.text = ""};
    bool same = !token_encode(t, json_string_value(text), json_string_length(text),
                              TOKEN_PARSE_SPECIAL, &got, &err) &&
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
    for (json_t *line; (line = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL));
         json_decref(line))
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

/* The metadata as JSON: {"field": value}, each field below tokenizer.ggml. unless it has a dot.
 * Integers become u32 (i32 when negative), arrays are of strings, integers (i32) or reals (f32);
 * null leaves the field out. */
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
            put_u32(&b, !first || json_is_string(first) ? GGUF_STRING
                        : json_is_integer(first)        ? GGUF_I32
                                                        : GGUF_F32);
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

/* A fixture as *file and its metadata for gguf_of; NULL when it cannot be read. Scores become f32
 * all. */
static json_t *fixture_load(const char *path, json_t **file)
{
    json_error_t where;
    *file = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!*file) {
        fprintf(stderr, "%s:%d: %s\n", path, where.line, where.text);
        return NULL;
    }
    json_t *meta = json_object(), *score, *scores = json_array();
    size_t i;
    json_array_foreach(json_object_get(*file, "scores"), i, score)
        json_array_append_new(scores, json_real(json_number_value(score)));
    json_object_set(meta, "model", json_object_get(*file, "model"));
    json_object_set(meta, "pre", json_object_get(*file, "pre"));
    json_object_set(meta, "tokens", json_object_get(*file, "tokens"));
    json_object_set(meta, "token_type", json_object_get(*file, "types"));
    if (json_object_get(*file, "merges"))
        json_object_set(meta, "merges", json_object_get(*file, "merges"));
    if (json_array_size(scores))
        json_object_set(meta, "scores", scores);
    json_decref(scores);
    return meta;
}

static json_t *fixture_meta(const char *name, json_t **file)
{
    char path[100];
    snprintf(path, sizeof path, "tests/oracle/pre/%s.json", name);
    json_t *meta = fixture_load(path, file);
    assert_non_null(meta);
    return meta;
}

/* Reads a fixture, prints "PRE: n strings, d differ"; -1 when it cannot. */
static int compare_file(const char *path, size_t *n_cases)
{
    json_t *file, *meta = fixture_load(path, &file), *cases, *line;
    if (!meta)
        return -1;
    struct made m;
    size_t i;
    int differ = -1;
    cases = json_object_get(file, "cases");
    if (make(&m, meta, (u32)json_array_size(json_object_get(file, "tokens")))) {
        differ = 0;
        json_array_foreach(cases, i, line) differ += !same_as(m.t, line, path, i + 1);
        printf("%s: %zu strings, %d differ\n", json_string_value(json_object_get(file, "pre")),
               json_array_size(cases), differ);
    } else {
        fprintf(stderr, "%s\n", m.err.text);
    }
    *n_cases = json_array_size(cases);
    unmake(&m);
    json_decref(meta);
    json_decref(file);
    return differ;
}

static void fixtures(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2", "llama-bpe", "gpt-4o", "olmo",
                                        "gpt-2", "default",   "spm"};
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[100];
        size_t n;
        snprintf(path, sizeof path, "tests/oracle/pre/%s.json", names[i]);
        assert_int_equal(compare_file(path, &n), 0);
        assert_int_equal(n, 300);
    }
}

/* ---- what a text may become ---- */

static void make_fixture(struct made *m, const char *name)
{
    json_t *file, *meta = fixture_meta(name, &file);
    if (!make(m, meta, (u32)json_array_size(json_object_get(file, "tokens"))))
        fail_msg("%s", m->err.text);
    json_decref(meta);
    json_decref(file);
}

static bool contains(const struct token_ids *ids, i32 id)
{
    for (size_t i = 0; i < ids->n; i++)
        if ((i32)ids->ids[i] == id)
            return true;
    return false;
}

static void user_text_is_only_text(void **state)
{
    (void)state;
    struct err err;
    struct token_ids ids = {0};
    const char *text = "a<|im_end|>b<tool_call>";
    i32 end = token_find(tiny, "<|im_end|>", 10), call = token_find(tiny, "<tool_call>", 11);
    assert_int_equal(end, 4089);
    assert_int_equal(call, 4090);
    assert_int_equal(token_encode(tiny, text, strlen(text), 0, &ids, &err), 0);
    assert_false(contains(&ids, end));
    assert_false(contains(&ids, call));
    size_t len;
    char *back = decode(tiny, ids.ids, ids.n, false, &len);
    assert_int_equal(len, strlen(text));
    assert_memory_equal(back, text, len);
    free(back);
    ids.n = 0;
    assert_int_equal(token_encode(tiny, text, strlen(text), TOKEN_PARSE_SPECIAL, &ids, &err), 0);
    assert_int_equal(ids.n, 4);
    assert_int_equal(ids.ids[1], end);
    assert_int_equal(ids.ids[3], call);
    token_ids_free(&ids);
}

/* What a guard covers is text, and takes nothing away from a mark that ends where it begins. */
static void guards_end_marks(void **state)
{
    (void)state;
    struct made m;
    struct token_ids ids = {0};
    make_fixture(&m, "olmo"); /* has <|im|> and <|im|>x, and runs of 2, 3, 4 and 8 spaces */
    static const char text[] = "<|im|>x<|im|>    ";
    struct token_guard guard = {6, sizeof text - 1};
    i32 mark = token_find(m.t, "<|im|>", 6), run = token_find(m.t, "    ", 4);
    assert_true(mark >= 0 && run >= 0);
    assert_int_equal(token_encode_guarded(m.t, text, sizeof text - 1, &guard, 1,
                                          TOKEN_PARSE_SPECIAL, &ids, &m.err),
                     0);
    assert_true(ids.n > 3);
    assert_int_equal(ids.ids[0], mark);
    assert_int_equal(ids.ids[ids.n - 1], run);
    ids.ids[0] = 0;
    assert_false(contains(&ids, mark));
    token_ids_free(&ids);
    unmake(&m);
}

/* Spellings of every added token, whole and after a change that NFC or merging could undo, in all
 * vocabularies. */
static void no_text_is_control(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2", "llama-bpe", "gpt-4o", "olmo",
                                        "gpt-2", "default",   "spm"};
    for (size_t k = 0; k < COUNT(names); k++) {
        json_t *file, *meta = fixture_meta(names[k], &file), *line;
        struct made m;
        size_t i;
        assert_true(make(&m, meta, (u32)json_array_size(json_object_get(file, "tokens"))));
        json_array_foreach(json_object_get(file, "cases"), i, line)
        {
            struct token_ids ids = {0};
            json_t *text = json_object_get(line, "text");
            assert_int_equal(token_encode(m.t, json_string_value(text), json_string_length(text), 0,
                                          &ids, &m.err),
                             0);
            for (size_t j = 0; j < ids.n; j++) {
                i64 type =
                    json_integer_value(json_array_get(json_object_get(file, "types"), ids.ids[j]));
                const char *spelled =
                    json_string_value(json_array_get(json_object_get(file, "tokens"), ids.ids[j]));
                assert_true(type == 1 || type == 6 ||
                            (type == 4 && strspn(spelled, " ") == strlen(spelled)));
            }
            token_ids_free(&ids);
        }
        unmake(&m);
        json_decref(meta);
        json_decref(file);
    }
}

static void bos_and_ends(void **state)
{
    (void)state;
    struct err err;
    struct token_ids ids = {0};
    assert_int_equal(token_special(tiny)->eos, 4089);
    assert_int_equal(token_special(tiny)->bos, 4087);
    assert_int_equal(token_special(tiny)->eot, TOKEN_NONE);
    assert_true(token_is_end(tiny, 4089));
    assert_true(token_is_end(tiny, 4087));
    assert_false(token_is_end(tiny, 4088));
    assert_false(token_is_end(tiny, 1u << 31));
    assert_int_equal(token_encode(tiny, "a", 1, TOKEN_ADD_BOS, &ids, &err), 0);
    assert_int_equal(ids.n, 1); /* the file says add_bos_token false */
    token_ids_free(&ids);

    json_t *file, *meta = fixture_meta("spm", &file);
    json_object_set_new(meta, "bos_token_id", json_integer(1));
    json_object_set_new(meta, "eos_token_id", json_integer(2));
    json_object_set_new(meta, "add_eos_token", json_true());
    struct made m;
    assert_true(make(&m, meta, (u32)json_array_size(json_object_get(file, "tokens"))));
    assert_int_equal(token_encode(m.t, "", 0, TOKEN_ADD_BOS, &ids, &err), 0);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[0], 1);
    assert_int_equal(ids.ids[1], 2);
    token_ids_free(&ids);
    unmake(&m);
    json_object_set_new(meta, "add_space_prefix", json_false());
    assert_true(make(&m, meta, (u32)json_array_size(json_object_get(file, "tokens"))));
    assert_int_equal(token_encode(m.t, "ka", 2, 0, &ids, &err), 0);
    size_t len;
    char *back = decode(m.t, ids.ids, ids.n, false, &len);
    assert_int_equal(ids.n, 1);
    assert_int_equal(len, 2);
    assert_memory_equal(back, "ka", 2);
    free(back);
    token_ids_free(&ids);
    unmake(&m);
    json_decref(meta);
    json_decref(file);
}

static void ill_formed_text(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "a\x80", "\xC0\x80", "\xE0\x9F\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
        "\xC3",  "\xE2\x82", "\xF0\x9F\x98", "\xFF"};
    u32 seven = 7;
    struct token_ids ids = {&seven, 1, 1};
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct err err;
        assert_int_equal(token_encode(tiny, bad[i], strlen(bad[i]), 0, &ids, &err), -1);
        assert_int_equal(ids.n, 1);
        assert_non_null(strstr(err.text, "not UTF-8"));
    }
}

/* ---- streams ---- */

/* bytes.decode("utf-8", "replace"), written the other way round: from the Unicode Standard's table
 * of well-formed sequences, taking the longest prefix of any of them. */
static size_t python_decode(const u8 *s, size_t n, u8 *out)
{
    static const u8 rows[][8] = {/* lo, hi of each byte */
                                 {0x00, 0x7F},
                                 {0xC2, 0xDF, 0x80, 0xBF},
                                 {0xE0, 0xE0, 0xA0, 0xBF, 0x80, 0xBF},
                                 {0xE1, 0xEC, 0x80, 0xBF, 0x80, 0xBF},
                                 {0xED, 0xED, 0x80, 0x9F, 0x80, 0xBF},
                                 {0xEE, 0xEF, 0x80, 0xBF, 0x80, 0xBF},
                                 {0xF0, 0xF0, 0x90, 0xBF, 0x80, 0xBF, 0x80, 0xBF},
                                 {0xF1, 0xF3, 0x80, 0xBF, 0x80, 0xBF, 0x80, 0xBF},
                                 {0xF4, 0xF4, 0x80, 0x8F, 0x80, 0xBF, 0x80, 0xBF}};
    static const u8 lengths[] = {1, 2, 3, 3, 3, 3, 4, 4, 4};
    size_t w = 0;
    for (size_t i = 0; i < n;) {
        size_t best = 1;
        bool whole = false;
        for (size_t r = 0; r < COUNT(rows) && !whole; r++) {
            size_t k = 0;
            while (k < lengths[r] && i + k < n && s[i + k] >= rows[r][2 * k] &&
                   s[i + k] <= rows[r][2 * k + 1])
                k++;
            whole = k == lengths[r];
            best = k > best ? k : best;
        }
        if (whole)
            memcpy(out + w, s + i, best);
        else
            memcpy(out + w, "\xEF\xBF\xBD", 3);
        w += whole ? best : 3;
        i += best;
    }
    return w;
}

static u64 seed = 0x9E3779B97F4A7C15u;
static u32 below(u32 n)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (u32)(seed >> 33) % n;
}

static void streams_are_whole(void **state)
{
    (void)state;
    struct made m[2];
    make_fixture(&m[0], "gpt-2");
    make_fixture(&m[1], "spm");
    for (int round = 0; round < 20000; round++) {
        const struct token_model *t = round % 3 == 2 ? tiny : m[round % 3].t;
        size_t room = 3 * (token_max_bytes(t) + 4), n_raw = 0, n_out = 0;
        u32 n = below(24);
        u8 *raw = malloc(room * 25), *want = malloc(3 * room * 25), *out = malloc(room * 25);
        struct token_stream s = {.keep_special = round & 8};
        for (u32 i = 0; i < n; i++) {
            /* Three of four are single bytes: that is where characters break. */
            u32 id = below(token_count(t) + 2), byte = round % 3 == 1 ? 3 + below(256) : below(256);
            id = below(4) ? byte : id;
            size_t len, before = n_out;
            const char *bytes = token_bytes(t, id, s.keep_special, &len);
            memcpy(raw + n_raw, bytes, len);
            n_raw += len;
            n_out += token_stream_push(t, &s, id, (char *)out + n_out, room);
            /* Each push alone is well-formed. */
            assert_int_equal(python_decode(out + before, n_out - before, want), n_out - before);
            assert_memory_equal(want, out + before, n_out - before);
        }
        n_out += token_stream_end(&s, (char *)out + n_out, 12);
        assert_int_equal(s.n_held, 0);
        size_t skip = round % 3 == 1 && n_raw && raw[0] == ' ';
        size_t n_want = python_decode(raw + skip, n_raw - skip, want);
        if (n_want != n_out || memcmp(want, out, n_out))
            fail_msg("round %d differs", round);
        free(raw);
        free(want);
        free(out);
    }
    unmake(&m[0]);
    unmake(&m[1]);
}

/* Of this process: other work on the machine does not fail a test. */
static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* ---- files that are wrong ---- */

/* The first n items; or all with item at replaced. */
static json_t *first_items(const json_t *array, size_t n)
{
    json_t *made = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(made, json_array_get(array, i));
    return made;
}

static json_t *with_item(const json_t *array, size_t at, json_t *item)
{
    json_t *made = json_copy((json_t *)array);
    json_array_set_new(made, at, item);
    return made;
}

/* Opens the fixture with one field changed (NULL: left out) and wants an error that has all the
 * words. */
static void refused(const char *name, const char *field, json_t *value, const char *const words[3])
{
    json_t *file, *meta = fixture_meta(name, &file);
    u32 n = (u32)json_array_size(json_object_get(file, "tokens"));
    if (value)
        json_object_set_new(meta, field, value);
    else
        json_object_del(meta, field);
    struct made m;
    if (make(&m, meta, n))
        fail_msg("%s: opened with another %s", name, field);
    for (size_t i = 0; i < 3 && words[i]; i++)
        if (!strstr(m.err.text, words[i]))
            fail_msg("\"%s\" is not in: %s", words[i], m.err.text);
    assert_null(m.t);
    unmake(&m);
    json_decref(meta);
    json_decref(file);
}

#define WORDS(...) ((const char *const[3]){__VA_ARGS__})

static void wrong_files(void **state)
{
    (void)state;
    json_t *file, *meta = fixture_meta("gpt-2", &file), *spm_file,
                  *spm = fixture_meta("spm", &spm_file);
    json_t *tokens = json_object_get(meta, "tokens"), *types = json_object_get(meta, "token_type"),
           *merges = json_object_get(meta, "merges"), *scores = json_object_get(spm, "scores"),
           *spm_types = json_object_get(spm, "token_type");
    size_t n = json_array_size(tokens);
    char long_token[1100];
    memset(long_token, 'x', sizeof long_token);

    refused("gpt-2", "model", NULL, WORDS("tokenizer.ggml.model", "missing", "gpt2 llama"));
    refused("gpt-2", "model", json_string("bert\n"),
            WORDS("tokenizer.ggml.model", "bert\\x0a", "gpt2 llama"));
    refused("gpt-2", "pre", json_string("tekken"),
            WORDS("tokenizer.ggml.pre", "tekken", "qwen2 deepseek-r1-qwen llama-bpe"));
    refused("gpt-2", "pre", json_string(""), WORDS("tokenizer.ggml.pre", "known are"));
    refused("gpt-2", "pre", json_string("qwen2 "), WORDS("tokenizer.ggml.pre", "known are"));
    refused("gpt-2", "tokens", NULL, WORDS("tokenizer.ggml.tokens", "missing"));
    refused("gpt-2", "tokens", json_integer(1), WORDS("tokenizer.ggml.tokens", "array of strings"));
    refused("gpt-2", "tokens", first_items(tokens, n - 1),
            WORDS("tokenizer.ggml.tokens", "items", "rows"));
    refused("gpt-2", "tokens", with_item(tokens, 300, json_string("!")),
            WORDS("tokenizer.ggml.tokens[300]", "\"!\"", "already"));
    refused("gpt-2", "tokens", with_item(tokens, 0, json_string("odd one")),
            WORDS("tokenizer.ggml.tokens", "byte 0x21"));
    refused("gpt-2", "tokens", with_item(tokens, 5, json_stringn(long_token, sizeof long_token)),
            WORDS("tokenizer.ggml.tokens[5]", "1100", "1024"));
    refused("gpt-2", "token_type", first_items(types, n - 1),
            WORDS("tokenizer.ggml.token_type", "items"));
    refused("gpt-2", "token_type", with_item(types, 9, json_integer(7)),
            WORDS("tokenizer.ggml.token_type[9]", "7", "1 to 6"));
    refused("gpt-2", "token_type", with_item(types, 9, json_integer(-1)),
            WORDS("tokenizer.ggml.token_type[9]", "-1", "1 to 6"));
    refused("gpt-2", "token_type", with_item(types, 9, json_integer(6)),
            WORDS("tokenizer.ggml.tokens[9]", "byte"));
    refused("gpt-2", "token_type", with_item(types, 9, json_integer(3)),
            WORDS("tokenizer.ggml.tokens", "byte 0x"));
    refused("gpt-2", "merges", NULL, WORDS("tokenizer.ggml.merges", "missing"));
    refused("gpt-2", "merges", with_item(merges, 4, json_string("ab")),
            WORDS("tokenizer.ggml.merges[4]", "\"ab\"", "one space"));
    refused("gpt-2", "merges", with_item(merges, 4, json_string("a b c")),
            WORDS("tokenizer.ggml.merges[4]", "one space"));
    refused("gpt-2", "merges", with_item(merges, 4, json_string(" b")),
            WORDS("tokenizer.ggml.merges[4]", "one space"));
    refused("gpt-2", "merges", with_item(merges, 4, json_string("")),
            WORDS("tokenizer.ggml.merges[4]", "one space"));
    refused("gpt-2", "merges", with_item(merges, 4, json_string("a zq")),
            WORDS("tokenizer.ggml.merges[4]", "second part"));
    refused("gpt-2", "merges", with_item(merges, 4, json_string("zq a")),
            WORDS("tokenizer.ggml.merges[4]", "first part"));
    static const char *const ids[] = {"bos_token_id", "eos_token_id", "eot_token_id",
                                      "padding_token_id", "unknown_token_id"};
    for (size_t i = 0; i < COUNT(ids); i++) {
        refused("gpt-2", ids[i], json_integer((json_int_t)n),
                WORDS("tokenizer.ggml.", ids[i], "the vocabulary has"));
        refused("gpt-2", ids[i], json_string("x"), WORDS("tokenizer.ggml.", ids[i]));
    }
    refused("gpt-2", "add_bos_token", json_true(),
            WORDS("add_bos_token", "bos_token_id is missing"));
    refused("gpt-2", "add_eos_token", json_true(),
            WORDS("add_eos_token", "eos_token_id is missing"));
    refused("gpt-2", "add_bos_token", json_string("yes"), WORDS("add_bos_token"));
    refused("spm", "scores", NULL, WORDS("tokenizer.ggml.scores", "missing"));
    refused("spm", "scores", first_items(scores, 5), WORDS("tokenizer.ggml.scores", "5 items"));
    refused("spm", "scores", json_copy(spm_types), WORDS("tokenizer.ggml.scores", "f32"));
    refused("spm", "token_type", with_item(spm_types, 5, json_integer(1)),
            WORDS("255 byte tokens"));

    /* A merge whose result is no token is skipped; an empty token is nobody's. */
    struct made m;
    json_object_set_new(meta, "merges", with_item(merges, 4, json_string("z q")));
    json_object_set_new(meta, "tokens",
                        with_item(json_object_get(meta, "tokens"), n - 1, json_string("")));
    assert_true(make(&m, meta, (u32)n));
    unmake(&m);
    json_decref(meta);
    json_decref(file);
    json_decref(spm);
    json_decref(spm_file);
}

static void token_not_utf8(void **state)
{
    (void)state;
    json_t *file, *meta = fixture_meta("gpt-2", &file);
    struct made m;
    struct bytes b = gguf_of(meta);
    u8 *at = memmem(b.at, b.n, "plugh", 5);
    assert_non_null(at);
    at[2] = 0xFF;
    memset(&m, 0, sizeof m);
    m.bytes = b;
    assert_int_equal(gguf_parse(&m.gguf, "test.gguf", b.at, b.n, &m.err), 0);
    assert_int_equal(
        token_open(&m.t, &m.gguf, (u32)json_array_size(json_object_get(file, "tokens")), &m.err),
        -1);
    assert_non_null(strstr(m.err.text, "\"pl\\xffgh\", which is not UTF-8 at byte 2"));
    unmake(&m);
    json_decref(meta);
    json_decref(file);
}

/* The sizes of Qwen3: 151,936 tokens, 151,387 merges; tokens of two letters, then of three. */
static void opens_fast(void **state)
{
    (void)state;
    enum { N_VOCAB = 151936, N_MERGES = 151387 };
    json_t *file, *meta = fixture_meta("gpt-2", &file), *tokens = json_array(),
                  *types = json_array(), *merges = json_array();
    for (size_t i = 0; i < 256; i++)
        json_array_append(tokens, json_array_get(json_object_get(meta, "tokens"), i));
    for (u32 i = 256; i < N_VOCAB; i++) {
        u32 k = i - 256, a = k % 94, b = k / 94 % 94, c = k / 94 / 94;
        char text[8], merge[8];
        int len = c ? snprintf(text, sizeof text, "%c%c%c", 33 + a, 33 + b, 32 + c)
                    : snprintf(text, sizeof text, "%c%c", 33 + a, 33 + b);
        json_array_append_new(tokens, json_stringn(text, (size_t)len));
        if (i - 256 >= N_MERGES)
            continue;
        len = c ? snprintf(merge, sizeof merge, "%c%c %c", 33 + a, 33 + b, 32 + c)
                : snprintf(merge, sizeof merge, "%c %c", 33 + a, 33 + b);
        json_array_append_new(merges, json_stringn(merge, (size_t)len));
    }
    for (u32 i = 0; i < N_VOCAB; i++)
        json_array_append_new(types, json_integer(1));
    json_object_set_new(meta, "tokens", tokens);
    json_object_set_new(meta, "token_type", types);
    json_object_set_new(meta, "merges", merges);
    struct made m;
    double best = 9;
    memset(&m, 0, sizeof m);
    m.bytes = gguf_of(meta);
    assert_int_equal(gguf_parse(&m.gguf, "test.gguf", m.bytes.at, m.bytes.n, &m.err), 0);
    for (int i = 0; i < 3; i++) {
        double start = cpu_seconds();
        token_close(m.t);
        if (token_open(&m.t, &m.gguf, N_VOCAB, &m.err))
            fail_msg("%s", m.err.text);
        double took = cpu_seconds() - start;
        best = took < best ? took : best;
    }
    print_message("%d tokens and %d merges open in %.0f ms\n", N_VOCAB, N_MERGES, best * 1e3);
    assert_true(best < 2); /* a third under a sanitizer */
    unmake(&m);
    json_decref(meta);
    json_decref(file);
}

/* ---- time ---- */

static void long_texts(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen2", "llama-bpe", "gpt-4o", "olmo",
                                        "gpt-2", "default",   "spm"};
    static const char *const parts[] = {
        " ", "a", "A", "\n", "1", "\xCC\xA3\xCC\x81", "\xE4\xB8\x80", "<|im", "'s"};
    enum { N = 1 << 20 };
    char *text = malloc(N + 8);
    for (size_t k = 0; k < COUNT(names); k++) {
        struct made m;
        make_fixture(&m, names[k]);
        for (size_t p = 0; p < COUNT(parts); p++) {
            size_t n = 0, len = strlen(parts[p]);
            for (; n + len <= N; n += len)
                memcpy(text + n, parts[p], len);
            struct token_ids ids = {0};
            double start = cpu_seconds();
            if (token_encode(m.t, text, n, TOKEN_PARSE_SPECIAL, &ids, &m.err))
                fail_msg("%s, %s: %s", names[k], parts[p], m.err.text);
            double took = cpu_seconds() - start;
            if (took > 2)
                print_message("%s, 1 MB of \"%s\": %.2f s\n", names[k], parts[p], took);
            assert_true(took < 10); /* under a sanitizer 2 s; a quadratic pass takes minutes */
            token_ids_free(&ids);
        }
        unmake(&m);
    }
    free(text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle_300),
        cmocka_unit_test(fixtures),
        cmocka_unit_test(user_text_is_only_text),
        cmocka_unit_test(guards_end_marks),
        cmocka_unit_test(no_text_is_control),
        cmocka_unit_test(bos_and_ends),
        cmocka_unit_test(ill_formed_text),
        cmocka_unit_test(streams_are_whole),
        cmocka_unit_test(wrong_files),
        cmocka_unit_test(token_not_utf8),
        cmocka_unit_test(opens_fast),
        cmocka_unit_test(long_texts),
    };
    int failed = 0;
    for (int i = 1; i < argc; i++) { /* fixtures by name: compare only */
        size_t n;
        failed |= compare_file(argv[i], &n) != 0;
    }
    return argc > 1 ? failed : cmocka_run_group_tests_name("token", tests, open_tiny, close_tiny);
}
