/* Byte-level BPE: tokens are spelled in 256 letters, one for each byte (GPT-2's bytes_to_unicode);
 * merges come from tokenizer.ggml.merges. A merge whose result is no token can never be taken and
 * is skipped; so is one that would make a control token of plain text. */
#include "model/token_parts.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that print in Latin-1 stand for themselves; the others, in order, are the letters from
 * U+0100 on. */
static u32 letter_of(u32 byte)
{
    if (byte <= 32)
        return 0x100 + byte;
    if (byte <= 126)
        return byte;
    if (byte <= 160)
        return 0x100 + 33 + (byte - 127);
    return byte == 173 ? 0x100 + 67 : byte;
}

static i32 byte_of(u32 letter) /* -1: not one of the 256 */
{
    if (letter >= 0x100 && letter < 0x100 + 68) {
        u32 k = letter - 0x100;
        return (i32)(k <= 32 ? k : k < 67 ? k - 33 + 127 : 173);
    }
    return letter < 0x100 && letter_of(letter) == letter ? (i32)letter : -1;
}

size_t level_text(struct gguf_str literal, char *out)
{
    size_t w = 0;
    for (size_t i = 0; i < literal.len;) {
        u32 cp;
        int k = utf8_scan((const u8 *)literal.at + i, literal.len - i, &cp);
        i32 byte = k > 0 ? byte_of(cp) : -1;
        if (byte <
            0) { /* not in the letters at all: stands for itself, as in ByteLevel's decoder */
            memcpy(out, literal.at, literal.len);
            return literal.len;
        }
        out[w++] = (char)byte;
        i += (size_t)k;
    }
    return w;
}

static bool mergeable(const struct token_model *t, i32 id)
{
    return t->types[id] == TYPE_NORMAL || t->types[id] == TYPE_USER;
}

static int merge_add(struct token_model *t, const char *path, const struct token_map *literals,
                     u64 rank, struct gguf_str s, struct err *err)
{
    char quoted[200], joined[2 * TOKEN_TEXT_MAX];
    const char *gap = memchr(s.at, ' ', s.len);
    size_t left_len = gap ? (size_t)(gap - s.at) : 0, right_len = gap ? s.len - left_len - 1 : 0;
    if (!left_len || !right_len || memchr(gap + 1, ' ', right_len))
        return err_set(err,
                       "%.200s: tokenizer.ggml.merges[%llu] is \"%s\"; it should be two tokens "
                       "with one space between",
                       path, (unsigned long long)rank,
                       err_quote(quoted, sizeof quoted, s.at, s.len));
    i32 left = map_find(literals, s.at, left_len), right = map_find(literals, gap + 1, right_len);
    if (left < 0 || right < 0)
        return err_set(err,
                       "%.200s: tokenizer.ggml.merges[%llu] is \"%s\", but its %s part is not in "
                       "tokenizer.ggml.tokens",
                       path, (unsigned long long)rank,
                       err_quote(quoted, sizeof quoted, s.at, s.len),
                       left < 0 ? "first" : "second");
    memcpy(joined, s.at, left_len); /* both are tokens, so neither is longer than TOKEN_TEXT_MAX */
    memcpy(joined + left_len, gap + 1, right_len);
    i32 id = map_find(literals, joined, left_len + right_len);
    if (id >= 0 && mergeable(t, left) && mergeable(t, right) && mergeable(t, id))
        bpe_add(&t->merges, (struct bpe_merge){(u32)left, (u32)right, (u32)rank, (u32)id});
    return 0;
}

int level_init(struct token_model *t, const struct gguf *g, const struct token_map *literals,
               struct err *err)
{
    for (u32 byte = 0; byte < 256; byte++) {
        char letter[4];
        i32 id = map_find(literals, letter, utf8_put(letter, letter_of(byte)));
        if (id < 0 || !mergeable(t, id))
            return err_set(
                err, "%.200s: tokenizer.ggml.tokens has no normal token for byte 0x%02x (U+%04X)",
                g->path, byte, letter_of(byte));
        t->bytes[byte] = id;
    }
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.merges");
    if (!kv || kv->type != GGUF_ARRAY || kv->item != GGUF_STRING)
        return err_set(err, "%.200s: tokenizer.ggml.merges is %s; it should be an array of strings",
                       g->path, kv ? "of another type" : "missing");
    if (bpe_init(&t->merges, kv->count, err))
        return -1;
    const u8 *at = kv->at;
    for (u64 i = 0; i < kv->count; i++)
        if (merge_add(t, g->path, literals, i, gguf_item_str(&at), err))
            return -1;
    return 0;
}

struct level_sink {
    const struct token_model *t;
    struct bpe_work *w;
    struct token_ids *out;
};

static int level_piece(void *ctx, const char *text, size_t len, struct err *err)
{
    struct level_sink *s = ctx;
    i32 whole = s->t->pre.ignore_merges ? map_find(&s->t->map, text, len) : TOKEN_NONE;
    if (whole >= 0)
        return ids_push(s->out, (u32)whole, err);
    for (size_t i = 0; i < len; i++)
        if (bpe_push(s->w, (u32)s->t->bytes[(u8)text[i]], err))
            return -1;
    return bpe_run(&s->t->merges, s->w, s->out, err);
}

int level_encode(const struct token_model *t, const char *text, size_t len, struct bpe_work *w,
                 struct token_ids *out, struct err *err)
{
    char *form = (char *)text;
    size_t form_len = len;
    if (t->pre.nfc && nfc_text(text, len, &form, &form_len, err))
        return -1;
    struct level_sink sink = {t, w, out};
    int rc = pre_cut(&t->pre, form, form_len, (struct pre_sink){level_piece, &sink}, err);
    if (form != text)
        free(form);
    return rc;
}
