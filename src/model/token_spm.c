/* SentencePiece BPE (tokenizer.ggml.model = "llama"): a space is spelled U+2581, each token has a
 * score, and what is no token falls back to its bytes. The file has no merges: as transformers does
 * when it converts such a model for its fast tokenizers, we make one of each way to cut a normal
 * token into two normal tokens, the higher score first, then the longer left part. SentencePiece
 * itself has no second rule (it takes the leftmost); the two part only where one text can be joined
 * two overlapping ways, such as aba|ba and ab|aba over "ababa". Control, user-defined and byte
 * tokens never come out of a merge. */
#include "model/token_parts.h"

#include <stdlib.h>
#include <string.h>

static const char mark[3] = {'\xE2', '\x96', '\x81'}; /* U+2581 */

static bool at_mark(const char *s, size_t n)
{
    return n >= sizeof mark && !memcmp(s, mark, sizeof mark);
}

size_t spm_text(struct gguf_str literal, char *out)
{
    size_t w = 0;
    for (size_t i = 0; i < literal.len;) {
        bool space = at_mark(literal.at + i, literal.len - i);
        out[w++] = space ? ' ' : literal.at[i];
        i += space ? sizeof mark : 1;
    }
    return w;
}

struct split { /* one way to make a token of two */
    float score;
    u32 left_chars, right_chars;
    u32 id, left, right;
};

static int split_order(const void *pa, const void *pb)
{
    const struct split *a = pa, *b = pb;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->left_chars != b->left_chars)
        return a->left_chars > b->left_chars ? -1 : 1;
    if (a->right_chars != b->right_chars)
        return a->right_chars > b->right_chars ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

struct splits {
    struct split *at;
    size_t n, cap;
};

static int splits_of(const struct token_model *t, u32 id, float score, struct splits *s,
                     struct err *err)
{
    struct gguf_str text = t->texts[id];
    u32 chars = 0, left_chars = 0;
    for (size_t i = 0; i < text.len; i++)
        chars += ((u8)text.at[i] & 0xC0) != 0x80;
    for (size_t i = 1; i < text.len; i++) {
        if (((u8)text.at[i] & 0xC0) == 0x80)
            continue;
        left_chars++;
        i32 left = map_find(&t->map, text.at, i);
        i32 right = left < 0 ? left : map_find(&t->map, text.at + i, text.len - i);
        if (right < 0)
            continue;
        if (s->n == s->cap) {
            size_t cap = s->cap ? 2 * s->cap : 1024;
            struct split *p = realloc(s->at, cap * sizeof *p);
            if (!p)
                return err_set(err, "no memory for %zu merges", cap);
            s->at = p;
            s->cap = cap;
        }
        s->at[s->n++] =
            (struct split){score, left_chars, chars - left_chars, id, (u32)left, (u32)right};
    }
    return 0;
}

/* The 256 byte tokens are all there or none; without them the unknown token stands in. */
static int byte_tokens(struct token_model *t, const struct gguf *g, const struct gguf_str *literals,
                       struct err *err)
{
    u32 n = 0;
    for (u32 b = 0; b < 256; b++)
        t->bytes[b] = TOKEN_NONE;
    for (u32 id = 0; id < t->n; id++) {
        if (t->types[id] != TYPE_BYTE)
            continue;
        i32 *slot = &t->bytes[(u8)t->texts[id].at[0]];
        char quoted[64];
        if (*slot >= 0)
            return err_set(
                err, "%.200s: tokenizer.ggml.tokens[%u] is \"%s\", a byte that token %d is already",
                g->path, id, err_quote(quoted, sizeof quoted, literals[id].at, literals[id].len),
                *slot);
        *slot = (i32)id;
        n++;
    }
    if (n != 256 && n != 0)
        return err_set(
            err,
            "%.200s: tokenizer.ggml.tokens has %u byte tokens <0xNN>; it should have 256 or none",
            g->path, n);
    if (n == 0 && t->special.unk < 0)
        return err_set(
            err,
            "%.200s: tokenizer.ggml.tokens has neither byte tokens <0xNN> nor an unknown token",
            g->path);
    return 0;
}

int spm_init(struct token_model *t, const struct gguf *g, const struct gguf_str *literals,
             struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.scores");
    if (!kv || kv->type != GGUF_ARRAY || kv->item != GGUF_F32)
        return err_set(err, "%.200s: tokenizer.ggml.scores is %s; it should be an array of f32",
                       g->path, kv ? "of another type" : "missing");
    if (kv->count != t->n)
        return err_set(err,
                       "%.200s: tokenizer.ggml.scores has %llu items; tokenizer.ggml.tokens has %u",
                       g->path, (unsigned long long)kv->count, t->n);
    if (byte_tokens(t, g, literals, err))
        return -1;
    struct splits s = {0};
    int rc = -1;
    for (u32 id = 0; id < t->n; id++) {
        float score = gguf_item_f32(kv, id);
        if (score != score) {
            err_set(err, "%.200s: tokenizer.ggml.scores[%u] is not a number", g->path, id);
            goto done;
        }
        if (t->types[id] == TYPE_NORMAL && splits_of(t, id, score, &s, err))
            goto done;
    }
    if (bpe_init(&t->merges, s.n, err))
        goto done;
    if (s.n)
        qsort(s.at, s.n, sizeof *s.at, split_order);
    for (size_t i = 0; i < s.n; i++)
        bpe_add(&t->merges, (struct bpe_merge){s.at[i].left, s.at[i].right, (u32)i, s.at[i].id});
    rc = 0;
done:
    free(s.at);
    return rc;
}

int spm_encode(const struct token_model *t, const char *text, size_t len, struct bpe_work *w,
               struct token_ids *out, struct err *err)
{
    i32 space = map_find(&t->map, " ", 1);
    bool after_unknown = false;
    for (size_t i = 0, first = t->space_prefix; i < len;) {
        u32 cp;
        size_t k = first ? 0 : (size_t)utf8_scan((const u8 *)text + i, len - i, &cp);
        bool is_space = first || at_mark(text + i, len - i);
        i32 id = is_space ? space : map_find(&t->map, text + i, k);
        if (id >= 0) {
            if (bpe_push(w, (u32)id, err))
                return -1;
        } else if (t->bytes[0] >= 0) {
            /* A space counts as the mark that it is spelled with. */
            const char *bytes = is_space || (k == 1 && text[i] == ' ') ? mark : text + i;
            for (size_t b = 0; b < (bytes == mark ? sizeof mark : k); b++)
                if (bpe_push(w, (u32)t->bytes[(u8)bytes[b]], err))
                    return -1;
        } else if (!after_unknown &&
                   bpe_push(w, (u32)t->special.unk, err)) { /* neighbours share one */
            return -1;
        }
        after_unknown = id < 0;
        first = 0;
        i += k;
    }
    return bpe_run(&t->merges, w, out, err);
}
