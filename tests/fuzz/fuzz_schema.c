/* Any bytes as a schema, any bytes as a text. An input is a schema's JSON, a byte 0, and a text; without the 0 the text
 * is made by walking: each byte of the input chooses among the bytes that the grammar allows, so that every place of the
 * automaton is reached. A text that has come so far must be one that can go on or end (no dead end), a whole one must be
 * JSON, and its mask over a vocabulary of bytes and pairs must say what the automaton says.
 *
 *   sh tests/fuzz/run.sh 20000 schema
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/schema.h"
#include "serve/vocab_mask.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

enum { TEXT_MAX = 64, N_TOKENS = 256 + 24 + 1 };

static struct vocab *vocabulary(void)
{
    static char texts[256];
    static const char *const LONGER[] = {"\"}", "\",\"", "{\"", "\":", "\":\"", "\\u", "00", "\\n", "12", "-1", ".5", "e1",
                                         "ab", "tru", "null", "[]", "{}", "\xC3\xA9", "\xE2\x82", "\xAC\"", "],", "abcdefgh",
                                         "  ", "a b c"};
    struct vocab_token tokens[N_TOKENS];
    struct vocab *v;
    struct err err;
    for (u32 i = 0; i < 256; i++) {
        texts[i] = (char)i;
        tokens[i] = (struct vocab_token){&texts[i], 1, false};
    }
    for (u32 i = 0; i < COUNT(LONGER); i++)
        tokens[256 + i] = (struct vocab_token){LONGER[i], (u32)strlen(LONGER[i]), false};
    tokens[256 + COUNT(LONGER)] = (struct vocab_token){"<end>", 5, true};
    if (vocab_open_tokens(&v, tokens, 257 + COUNT(LONGER), &err))
        abort();
    return v;
}

static void must_be_json(const char *text, size_t len)
{
    json_error_t e;
    char *copy = malloc(len + 1); /* to its last byte and not beyond */
    memcpy(copy, text, len);
    json_t *v = json_loadb(copy, len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    /* Numbers beyond what jansson holds and names with U+0000 are JSON all the same. */
    if (!v && json_error_code(&e) != json_error_numeric_overflow && json_error_code(&e) != json_error_null_byte_in_key)
        abort();
    json_decref(v);
    free(copy);
}

static void walk(struct masks *m, const uint8_t *choice, size_t n)
{
    struct mask *k;
    struct err err;
    char text[TEXT_MAX];
    size_t w = 0;
    if (mask_open(&k, m, &err))
        abort();
    for (size_t i = 0; i < n && w < TEXT_MAX; i++) {
        const u32 *bits = mask_allowed(k);
        u32 id = choice[i];
        for (u32 tried = 0; !(bits[id >> 5] >> (id & 31) & 1); id = (id + 1) % 256)
            if (++tried > 256) {
                if (!mask_can_end(k)) /* only the end is left, or the grammar is stuck */
                    abort();
                id = UINT32_MAX;
                break;
            }
        if (mask_can_end(k))
            must_be_json(text, w);
        if (id == UINT32_MAX)
            break;
        text[w++] = (char)id;
        mask_took(k, id);
        if (mask_broken(k))
            abort();
    }
    mask_close(k);
}

static void read_text(const struct grammar *g, const uint8_t *text, size_t n)
{
    static struct automaton_state s;
    struct automaton a;
    struct err err;
    if (automaton_open(&a, g, &err))
        abort();
    automaton_begin(&a, &s);
    size_t i = 0;
    while (i < n && automaton_step(&a, &s, text[i]))
        i++;
    if (i == n && automaton_can_end(g, &s))
        must_be_json((const char *)text, n);
    automaton_close(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct vocab *v; /* one thread: the fuzzer's */
    struct grammar g;
    struct masks *m;
    struct err err;
    const uint8_t *zero = len ? memchr(bytes, 0, len) : NULL;
    size_t n = zero ? (size_t)(zero - bytes) : len;
    json_t *schema = schema_parse((const char *)bytes, n, &err);
    if (!v)
        v = vocabulary();
    if (!schema)
        return 0;
    if (!schema_open(&g, schema, false, &err)) {
        if (zero)
            read_text(&g, zero + 1, len - n - 1);
        if (masks_open(&m, v, &g, 1 << 16, &err))
            abort();
        walk(m, bytes + len / 2, len - len / 2);
        masks_close(m);
    }
    json_decref(schema);
    return 0;
}
