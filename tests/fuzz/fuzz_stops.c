/* Any bytes as an answer: put together to whole characters, searched for stop strings, split into reasoning, text and
 * calls. The events must be the same byte by byte, tag by tag and in one piece; and where nothing is taken out, the
 * text must be what was pushed, up to the first stop string. Stop strings are well-formed, as those of requests are.
 *
 * An input: what to do (bits), the number of stop strings, each as a length and its bytes, the answer.
 *
 *   sh tests/fuzz/run.sh 20000 stops
 *
 * Or, without libFuzzer, -DFUZZ_MAIN makes a program that runs the files it is given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

enum { SPLIT = 1, IN = 2, CALLS = 4, ONE = 8, TYPES = 16, N_TAGS = 4, TEXT_MAX = 4096 };

/* The first two are control tokens, which have no text of their own, the others user-defined, which have. */
static const char *const tags[N_TAGS] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};

struct file {
    u8 bytes[16384];
    size_t len;
};

static void put(struct file *f, const void *p, size_t n)
{
    if (f->len + n > sizeof f->bytes)
        abort();
    memcpy(f->bytes + f->len, p, n);
    f->len += n;
}

static void put_u32(struct file *f, u32 v)
{
    put(f, &v, 4);
}

static void put_str(struct file *f, const char *s)
{
    u64 n = strlen(s);
    put(f, &n, 8);
    put(f, s, n);
}

static void put_array(struct file *f, const char *key, u32 item, u64 count)
{
    put_str(f, key);
    put_u32(f, GGUF_ARRAY);
    put_u32(f, item);
    put(f, &count, 8);
}

/* A byte-level vocabulary: 256 bytes, in the order of the letters that stand for them, and the tags. */
static void write_file(struct file *f)
{
    u64 n_kv = 5, none = 0;
    put(f, "GGUF\3\0\0\0", 8);
    put(f, &none, 8);
    put(f, &n_kv, 8);
    put_str(f, "tokenizer.ggml.model");
    put_u32(f, GGUF_STRING);
    put_str(f, "gpt2");
    put_str(f, "tokenizer.ggml.pre");
    put_u32(f, GGUF_STRING);
    put_str(f, "qwen2");
    put_array(f, "tokenizer.ggml.tokens", GGUF_STRING, 256 + N_TAGS);
    for (u32 cp = 33; cp < 324; cp++) {
        char s[3] = {(char)cp, 0, 0};
        if ((cp > 126 && cp < 161) || cp == 173)
            continue;
        if (cp >= 0x80)
            s[0] = (char)(0xC0 | cp >> 6), s[1] = (char)(0x80 | (cp & 63));
        put_str(f, s);
    }
    for (u32 i = 0; i < N_TAGS; i++)
        put_str(f, tags[i]);
    put_array(f, "tokenizer.ggml.token_type", GGUF_I32, 256 + N_TAGS);
    for (u32 i = 0; i < 256 + N_TAGS; i++)
        put_u32(f, i < 256 ? 1 : i < 258 ? 3 : 4);
    put_array(f, "tokenizer.ggml.merges", GGUF_STRING, 0);
}

struct kit { /* made once */
    struct token_model *tokens;
    struct calls_tools *tools;
    u32 ids[256];
};

static const struct kit *kit(void)
{
    static struct kit k;
    static struct file f;
    static struct gguf g; /* one thread: the fuzzer's */
    struct err err;
    if (k.tokens)
        return &k;
    write_file(&f);
    if (gguf_parse(&g, "fuzz", f.bytes, f.len, &err) || token_open(&k.tokens, &g, 256 + N_TAGS, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    for (u32 id = 0; id < 256; id++) {
        size_t n;
        const char *at = token_bytes(k.tokens, id, false, &n);
        if (n != 1)
            abort();
        k.ids[(u8)*at] = id;
    }
    if (calls_tools_open(&k.tools,
                         "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"i\":{"
                         "\"type\":\"integer\"},\"s\":{\"type\":\"string\"}}}}}]"))
        abort();
    return &k;
}

struct story {
    struct bytes text;    /* kinds and texts, neighbours joined */
    struct bytes content; /* text alone */
    int last;
    bool finished;
};

static void on_event(void *arg, const struct answer_event *e)
{
    struct story *s = arg;
    if (s->finished)
        abort();
    if ((int)e->kind != s->last || e->kind == ANSWER_CALL || e->kind == ANSWER_CALL_END) {
        char mark[2] = {1, (char)('0' + (int)e->kind)};
        bytes_put(&s->text, mark, 2);
    }
    s->last = (int)e->kind;
    bytes_put(&s->text, e->text, e->len);
    if (e->kind == ANSWER_CONTENT)
        bytes_put(&s->content, e->text, e->len);
    if (e->kind == ANSWER_FINISH) {
        s->finished = true;
        bytes_u64(&s->text, (u64)e->finish);
        bytes_str(&s->text, e->stop ? e->stop : "");
    }
}

static size_t whole(const u8 *text, size_t len, char *out)
{
    struct token_stream s = {0};
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += token_stream_push(kit()->tokens, &s, kit()->ids[text[i]], out + n,
                               3 * (token_max_bytes(kit()->tokens) + 4));
    return n + token_stream_end(&s, out + n, 12);
}

/* as: 0 a byte a token, 1 tags as their tokens, 2 all at once. */
static void tell(unsigned how, const struct stops *stops, const u8 *text, size_t len, const char *chars, size_t n_chars,
                 int as, struct story *s)
{
    struct answer *a;
    *s = (struct story){.last = -1};
    if (answer_open(&a, &(struct answer_options){.tokens = kit()->tokens,
                                                 .stops = stops,
                                                 .split_reasoning = how & SPLIT,
                                                 .in_reasoning = how & IN,
                                                 .parse_calls = how & CALLS,
                                                 .one_call = how & ONE,
                                                 .tools = how & TYPES ? kit()->tools : NULL,
                                                 .request_id = "r",
                                                 .tell = on_event,
                                                 .arg = s}))
        abort();
    bool more = true;
    if (as == 2)
        answer_text(a, chars, n_chars);
    for (size_t i = 0; i < len && more && as < 2;) {
        u32 id = kit()->ids[text[i]];
        size_t n = 1;
        for (u32 t = 0; t < N_TAGS && as == 1; t++)
            if (len - i >= strlen(tags[t]) && !memcmp(text + i, tags[t], strlen(tags[t]))) {
                id = 256 + t;
                n = strlen(tags[t]);
            }
        more = answer_push(a, id);
        i += n;
    }
    answer_end(a, false);
    if (answer_failed(a) || !s->finished)
        abort();
    answer_close(a);
}

/* Where the first stop string to be complete begins, or len. */
static size_t stop_at(const char *text, size_t len, const char *const *stops, const size_t *lens, u32 n)
{
    for (size_t end = 1; end <= len; end++) {
        size_t best = 0;
        for (u32 i = 0; i < n; i++)
            if (lens[i] <= end && lens[i] > best && !memcmp(text + end - lens[i], stops[i], lens[i]))
                best = lens[i];
        if (best)
            return end - best;
    }
    return len;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static char chars[3 * TEXT_MAX + 256];
    const char *texts[STOPS_MAX];
    size_t lens[STOPS_MAX], i = 2;
    u32 n = 0;
    struct stops *stops;
    struct story first, other;
    if (len < 2)
        return 0;
    for (u32 k = bytes[1] % 5; k > 0 && i < len && bytes[i] && i + bytes[i] < len; k--) {
        if (whole(bytes + i + 1, bytes[i], chars) != bytes[i] || memcmp(chars, bytes + i + 1, bytes[i]) != 0)
            return 0;
        texts[n] = (const char *)bytes + i + 1;
        lens[n++] = bytes[i];
        i += 1 + bytes[i];
    }
    const u8 *text = bytes + i;
    size_t n_text = len - i < TEXT_MAX ? len - i : TEXT_MAX;
    if (stops_open(&stops, texts, lens, n))
        abort();
    size_t n_chars = whole(text, n_text, chars);
    tell(bytes[0], stops, text, n_text, chars, n_chars, 0, &first);
    for (int as = 1; as < 3; as++) {
        tell(bytes[0], stops, text, n_text, chars, n_chars, as, &other);
        if (first.text.len != other.text.len || memcmp(first.text.at, other.text.at, first.text.len) != 0)
            abort();
        bytes_free(&other.text);
        bytes_free(&other.content);
    }
    size_t want = stop_at(chars, n_chars, texts, lens, n);
    if (!(bytes[0] & (SPLIT | CALLS)) &&
        (first.content.len != want || (want && memcmp(first.content.at, chars, want) != 0)))
        abort();
    bytes_free(&first.text);
    bytes_free(&first.content);
    stops_close(stops);
    return 0;
}

#ifdef FUZZ_MAIN
int main(int argc, char **argv)
{
    static uint8_t bytes[1 << 20];
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        size_t len = file ? fread(bytes, 1, sizeof bytes, file) : 0;
        if (file)
            fclose(file);
        LLVMFuzzerTestOneInput(bytes, len);
    }
    return 0;
}
#endif
