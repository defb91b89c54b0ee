/* Any text for any tokenizer, and any damage to a tokenizer's metadata. The first byte of an input
 * chooses: 0..6 a tokenizer that encodes the rest (ids must be real, give the text back, and hold
 * no control token unless asked for); from 7 on the rest is patches to a small file, (offset,
 * value) three bytes each, and opening must answer.
 *
 *   sh tests/fuzz/run.sh 20000 token
 *
 * Or, without libFuzzer, -DFUZZ_MAIN makes a program that runs the files it is given. */
#include "model/token.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

enum { N_MODELS = 7, FILE_MAX = 16384 };

static const char *const pres[N_MODELS] = {"qwen2", "llama-bpe", "gpt-4o", "olmo",
                                           "gpt-2", "default",   NULL};
static const char *const merged[] = {
    "a b", "\xC4\xA0 a",        "a a", "aa aa", "ab ab", "\xC4\xA0 \xC4\xA0", "\xC4\x8A \xC4\x8A",
    "1 2", "\xC3\x8C \xC4\xA3", "' s"};
static const char *const whole[] = {"\xE2\x96\x81",
                                    "a",
                                    "b",
                                    "\xC3\xA9",
                                    ("\xE2\x96\x81"
                                     "a"),
                                    "ab",
                                    "aba",
                                    "ba",
                                    "aa",
                                    "aaaa",
                                    "\xE2\x96\x81\xE2\x96\x81",
                                    "\n",
                                    "s"};
static const char *const added[] = {"<|a|>", "<|a|>b", "<|a", "  ", "<e\xCC\x81>"};

struct file {
    u8 bytes[FILE_MAX];
    size_t len;
    u32 n;
};

static void put(struct file *f, const void *p, size_t n)
{
    if (f->len + n > FILE_MAX)
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

static void
put_letters(struct file *f) /* the byte-level letters, in the order of their code points */
{
    for (u32 cp = 33; cp < 324; cp++) {
        if ((cp > 126 && cp < 161) || cp == 173)
            continue;
        char s[3] = {(char)cp, 0, 0};
        if (cp >= 0x80)
            s[0] = (char)(0xC0 | cp >> 6), s[1] = (char)(0x80 | (cp & 63));
        put_str(f, s);
    }
}

static void write_file(struct file *f, const char *pre)
{
    u64 n_kv = 7, none = 0;
    u32 n_own = pre ? 256 + (u32)COUNT(merged) : 259 + (u32)COUNT(whole);
    f->len = 0;
    f->n = n_own + (u32)COUNT(added);
    put(f, "GGUF\3\0\0\0", 8);
    put(f, &none, 8);
    put(f, &n_kv, 8);
    put_str(f, "tokenizer.ggml.model");
    put_u32(f, GGUF_STRING);
    put_str(f, pre ? "gpt2" : "llama");
    put_str(f, "tokenizer.ggml.pre");
    put_u32(f, GGUF_STRING);
    put_str(f, pre ? pre : "default");
    put_array(f, "tokenizer.ggml.tokens", GGUF_STRING, f->n);
    if (pre) {
        put_letters(f);
        for (size_t i = 0; i < COUNT(merged); i++) {
            char joined[32];
            size_t left = strcspn(merged[i], " ");
            snprintf(joined, sizeof joined, "%.*s%s", (int)left, merged[i], merged[i] + left + 1);
            put_str(f, joined);
        }
    } else {
        put_str(f, "<unk>");
        put_str(f, "<s>");
        put_str(f, "</s>");
        for (u32 b = 0; b < 256; b++) {
            char s[8];
            snprintf(s, sizeof s, "<0x%02X>", b);
            put_str(f, s);
        }
        for (size_t i = 0; i < COUNT(whole); i++)
            put_str(f, whole[i]);
    }
    for (size_t i = 0; i < COUNT(added); i++)
        put_str(f, added[i]);
    put_array(f, "tokenizer.ggml.token_type", GGUF_I32, f->n);
    for (u32 i = 0; i < f->n; i++)
        put_u32(f, i >= n_own        ? 3 + (i - n_own) / 3
                   : pre || i >= 259 ? 1
                   : i == 0          ? 2
                   : i < 3           ? 3
                                     : 6);
    if (pre) {
        put_array(f, "tokenizer.ggml.merges", GGUF_STRING, COUNT(merged));
        for (size_t i = 0; i < COUNT(merged); i++)
            put_str(f, merged[i]);
    } else {
        put_array(f, "tokenizer.ggml.scores", GGUF_F32, f->n);
        for (u32 i = 0; i < f->n; i++) {
            float score = -(float)(i / 2);
            put(f, &score, 4);
        }
    }
    put_str(f, "tokenizer.ggml.bos_token_id");
    put_u32(f, GGUF_U32);
    put_u32(f, 1);
    put_str(f, "tokenizer.ggml.eos_token_id");
    put_u32(f, GGUF_U32);
    put_u32(f, 2);
}

static bool odd_for_spm(const char *text, size_t len)
{
    bool odd = memmem(text, len, "\xE2\x96\x81", 3);
    for (size_t i = 0; i < COUNT(added); i++)
        odd = odd || memmem(text, len, added[i], strlen(added[i]));
    return odd || memmem(text, len, "<unk>", 5) || memmem(text, len, "<s>", 3) ||
           memmem(text, len, "</s>", 4);
}

static void encode_checked(const struct token_model *t, bool nfc, bool spm, const char *text,
                           size_t len, unsigned flags)
{
    struct token_ids ids = {0};
    struct err err;
    struct token_stream s = {.keep_special = true};
    size_t room = 3 * (token_max_bytes(t) + 4), n = 0;
    char *back = NULL;
    if (!token_encode(t, text, len, flags, &ids, &err)) {
        back = malloc(ids.n * room + 12 + 1);
        for (size_t i = 0; i < ids.n; i++) {
            size_t bytes, plain;
            token_bytes(t, ids.ids[i], true, &bytes);
            token_bytes(t, ids.ids[i], false, &plain);
            if (ids.ids[i] >= token_count(t) || (!(flags & TOKEN_PARSE_SPECIAL) && bytes != plain))
                abort();
            n += token_stream_push(t, &s, ids.ids[i], back + n, room);
        }
        n += token_stream_end(&s, back + n, 12);
        /* NFC changes texts; SentencePiece gives U+2581 back as a space and puts one after each
         * added token. */
        if (!nfc && !(spm && odd_for_spm(text, len)) && (n != len || memcmp(back, text, n)))
            abort();
    }
    token_ids_free(&ids);
    free(back);
}

static void fuzz_file(const uint8_t *bytes, size_t len)
{
    static struct file f;
    struct gguf g;
    struct token_model *t;
    struct err err;
    write_file(&f, pres[bytes[0] % N_MODELS]);
    for (size_t i = 1; i + 3 <= len; i += 3)
        f.bytes[((size_t)bytes[i] << 8 | bytes[i + 1]) % f.len] = bytes[i + 2];
    if (gguf_parse(&g, "fuzz", f.bytes, f.len, &err))
        return;
    const struct gguf_kv *kv = gguf_find(&g, "tokenizer.ggml.tokens");
    if (!token_open(&t, &g, kv ? (u32)kv->count : 1, &err)) {
        struct token_ids ids = {0};
        static const char text[] = "ab aba  <|a|>b \xC3\xA9"
                                   "e\xCC\x81 12 it's\n\n<s>";
        token_encode(t, text, sizeof text - 1, TOKEN_PARSE_SPECIAL | TOKEN_ADD_BOS, &ids, &err);
        token_encode(t, text, sizeof text - 1, 0, &ids, &err);
        for (u32 i = 0; i < token_count(t); i++) {
            size_t n;
            const char *at = token_bytes(t, i, true, &n);
            token_find(t, at, n);
            token_is_end(t, i);
        }
        token_ids_free(&ids);
    } else if (t || !err.text[0]) {
        abort();
    }
    token_close(t);
    gguf_close(&g);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct token_model *models[N_MODELS]; /* one thread: the fuzzer's */
    static struct gguf files[N_MODELS];
    static struct file f[N_MODELS];
    if (len < 2)
        return 0;
    if (bytes[0] >= N_MODELS) {
        fuzz_file(bytes, len);
        return 0;
    }
    u32 k = bytes[0];
    if (!models[k]) {
        struct err err;
        write_file(&f[k], pres[k]);
        if (gguf_parse(&files[k], "fuzz", f[k].bytes, f[k].len, &err) ||
            token_open(&models[k], &files[k], f[k].n, &err)) {
            fprintf(stderr, "%s\n", err.text);
            abort();
        }
    }
    encode_checked(models[k], k == 0 || k == 3, k == 6, (const char *)bytes + 2, len - 2,
                   bytes[1] & TOKEN_PARSE_SPECIAL);
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
