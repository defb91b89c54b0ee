/* The tokenizer as a whole: reads and checks tokenizer.ggml.*, finds added tokens in a text, hands
 * the rest to token_level.c or token_spm.c, and gives the bytes of tokens back. Refuses a file
 * whose arrays disagree, before anything depends on them. */
#include "model/token_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- reading the vocabulary ---- */

static const struct gguf_kv *array_of(const struct gguf *g, const char *key, bool strings,
                                      struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    const char *wish = strings ? "strings" : "integers";
    if (!kv) {
        err_set(err, "%.200s: %s is missing; it should be an array of %s", g->path, key, wish);
        return NULL;
    }
    bool integer = kv->item <= GGUF_I32 || kv->item == GGUF_U64 || kv->item == GGUF_I64;
    if (kv->type != GGUF_ARRAY || (strings ? kv->item != GGUF_STRING : !integer)) {
        err_set(err, "%.200s: %s is of another type; it should be an array of %s", g->path, key,
                wish);
        return NULL;
    }
    return kv;
}

static int byte_literal(struct gguf_str s) /* <0xNN> -> NN, or -1 */
{
    int v = 0;
    if (s.len != 6 || memcmp(s.at, "<0x", 3) || s.at[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        char c = s.at[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0)
            return -1;
        v = v * 16 + digit;
    }
    return v;
}

static int read_literals(struct gguf_str *literals, u32 n, const struct gguf_kv *kv,
                         const char *path, struct err *err)
{
    const u8 *at = kv->at;
    for (u32 i = 0; i < n; i++) {
        literals[i] = gguf_item_str(&at);
        char quoted[160];
        size_t bad = utf8_check(literals[i].at, literals[i].len);
        if (bad < literals[i].len)
            return err_set(
                err, "%.200s: tokenizer.ggml.tokens[%u] is \"%s\", which is not UTF-8 at byte %zu",
                path, i, err_quote(quoted, sizeof quoted, literals[i].at, literals[i].len), bad);
        if (literals[i].len > TOKEN_TEXT_MAX)
            return err_set(err,
                           "%.200s: tokenizer.ggml.tokens[%u] is %llu bytes long; the longest this "
                           "program takes is %d",
                           path, i, (unsigned long long)literals[i].len, TOKEN_TEXT_MAX);
    }
    return 0;
}

/* Without token_type all are normal, but for SentencePiece's bytes and what read_special marks
 * later. */
static int read_types(struct token_model *t, const struct gguf *g, const struct gguf_str *literals,
                      struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, "tokenizer.ggml.token_type");
    char quoted[160];
    if (kv && !(kv = array_of(g, "tokenizer.ggml.token_type", false, err)))
        return -1;
    if (kv && kv->count != t->n)
        return err_set(
            err, "%.200s: tokenizer.ggml.token_type has %llu items; tokenizer.ggml.tokens has %u",
            g->path, (unsigned long long)kv->count, t->n);
    for (u32 i = 0; i < t->n; i++) {
        bool byte = byte_literal(literals[i]) >= 0;
        i64 type = kv ? gguf_item_int(kv, i) : byte && t->spm ? TYPE_BYTE : TYPE_NORMAL;
        if (type == 0)
            type = TYPE_UNUSED; /* llama.cpp's "undefined" */
        if (type < TYPE_NORMAL || type > TYPE_BYTE)
            return err_set(err,
                           "%.200s: tokenizer.ggml.token_type[%u] is %lld; it should be 1 to 6",
                           g->path, i, (long long)type);
        if (type == TYPE_BYTE && !byte)
            return err_set(err,
                           "%.200s: tokenizer.ggml.tokens[%u] is \"%s\", marked as a byte; it "
                           "should be <0xNN>",
                           g->path, i,
                           err_quote(quoted, sizeof quoted, literals[i].at, literals[i].len));
        t->types[i] = literals[i].len ? (u8)type : TYPE_UNUSED;
    }
    return 0;
}

static int read_id(const struct token_model *t, const struct gguf *g, const char *key, i32 *id,
                   struct err *err)
{
    u32 v;
    int rc = gguf_u32(g, key, &v, err);
    *id = TOKEN_NONE;
    if (rc <= 0)
        return rc;
    if (v >= t->n)
        return err_set(err, "%.200s: %s is %u; the vocabulary has %u tokens", g->path, key, v,
                       t->n);
    *id = (i32)v;
    return 0;
}

static int read_special(struct token_model *t, const struct gguf *g, struct err *err)
{
    struct token_special *s = &t->special;
    if (read_id(t, g, "tokenizer.ggml.bos_token_id", &s->bos, err) ||
        read_id(t, g, "tokenizer.ggml.eos_token_id", &s->eos, err) ||
        read_id(t, g, "tokenizer.ggml.eot_token_id", &s->eot, err) ||
        read_id(t, g, "tokenizer.ggml.padding_token_id", &s->pad, err) ||
        read_id(t, g, "tokenizer.ggml.unknown_token_id", &s->unk, err))
        return -1;
    if (!gguf_find(g, "tokenizer.ggml.token_type")) {
        const i32 marked[] = {s->bos, s->eos, s->eot, s->pad};
        for (size_t i = 0; i < COUNT(marked); i++)
            if (marked[i] >= 0)
                t->types[marked[i]] = TYPE_CONTROL;
        if (s->unk >= 0)
            t->types[s->unk] = TYPE_UNKNOWN;
    }
    for (u32 i = 0; i < t->n && s->unk < 0; i++)
        if (t->types[i] == TYPE_UNKNOWN)
            s->unk = (i32)i;
    s->add_bos = (t->spm || t->pre.add_bos) && s->bos >= 0;
    t->space_prefix = t->spm;
    if (gguf_bool(g, "tokenizer.ggml.add_bos_token", &s->add_bos, err) < 0 ||
        gguf_bool(g, "tokenizer.ggml.add_eos_token", &s->add_eos, err) < 0 ||
        (t->spm && gguf_bool(g, "tokenizer.ggml.add_space_prefix", &t->space_prefix, err) < 0))
        return -1;
    if ((s->add_bos && s->bos < 0) || (s->add_eos && s->eos < 0))
        return err_set(err,
                       "%.200s: tokenizer.ggml.add_%s_token is true, but "
                       "tokenizer.ggml.%s_token_id is missing",
                       g->path, s->add_bos && s->bos < 0 ? "bos" : "eos",
                       s->add_bos && s->bos < 0 ? "bos" : "eos");
    return 0;
}

static int make_texts(struct token_model *t, const struct gguf_str *literals, struct err *err)
{
    u64 bytes = 0;
    for (u32 i = 0; i < t->n; i++)
        bytes += literals[i].len; /* a text is never longer than its literal */
    t->blob = mem_array(bytes, 1);
    if (!t->blob)
        return err_set(err, "no memory for %llu bytes of tokens", (unsigned long long)bytes);
    char *w = t->blob;
    for (u32 i = 0; i < t->n; i++) {
        size_t len;
        if (t->types[i] == TYPE_BYTE)
            *w = (char)byte_literal(literals[i]), len = 1;
        else if (t->types[i] != TYPE_NORMAL)
            memcpy(w, literals[i].at, len = literals[i].len);
        else
            len = t->spm ? spm_text(literals[i], w) : level_text(literals[i], w);
        t->texts[i] = (struct gguf_str){w, len};
        t->max_bytes = len > t->max_bytes ? len : t->max_bytes;
        w += len;
    }
    return 0;
}

/* All literals by text; an empty one (already TYPE_UNUSED) is nobody's. */
static int index_literals(struct token_map *map, const struct gguf_str *literals, u32 n,
                          const char *path, struct err *err)
{
    char quoted[160];
    if (map_init(map, literals, n, err))
        return -1;
    for (u32 i = 0; i < n; i++) {
        i32 first = literals[i].len ? map_add(map, i) : TOKEN_NONE;
        if (first >= 0)
            return err_set(
                err, "%.200s: tokenizer.ggml.tokens[%u] is \"%s\", which token %d is already", path,
                i, err_quote(quoted, sizeof quoted, literals[i].at, literals[i].len), first);
    }
    return 0;
}

/* Normal tokens by text. SentencePiece never sees a space in a text, so a literal with one is not
 * found. */
static int index_texts(struct token_model *t, const struct gguf_str *literals, struct err *err)
{
    if (map_init(&t->map, t->texts, t->n, err))
        return -1;
    for (u32 i = 0; i < t->n; i++)
        if (t->types[i] == TYPE_NORMAL && !(t->spm && memchr(literals[i].at, ' ', literals[i].len)))
            map_add(&t->map, i);
    return 0;
}

static int read_ends(struct token_model *t, struct err *err)
{
    static const char *const spelled[] = {"<|im_end|>",      "<|endoftext|>", "<|eot_id|>",
                                          "<|end_of_text|>", "<|end|>",       "</s>"};
    if (!(t->ends = mem_array(t->n, sizeof *t->ends)))
        return err_set(err, "no memory for %u tokens", t->n);
    if (t->special.eos >= 0)
        t->ends[t->special.eos] = true;
    if (t->special.eot >= 0)
        t->ends[t->special.eot] = true;
    for (u32 i = 0; i < t->n; i++)
        for (size_t k = 0; t->types[i] == TYPE_CONTROL && k < COUNT(spelled); k++)
            if (t->texts[i].len == strlen(spelled[k]) &&
                !memcmp(t->texts[i].at, spelled[k], t->texts[i].len))
                t->ends[i] = true;
    return 0;
}

/* ---- added tokens ---- */

static int text_order(struct gguf_str a, struct gguf_str b)
{
    int d = memcmp(a.at, b.at, a.len < b.len ? a.len : b.len);
    return d ? d : a.len < b.len ? -1 : a.len > b.len;
}

/* Sorts ids by text; bottom-up, because qsort has no argument for the texts. */
static void sort_ids(u32 *ids, u32 *spare, u32 n, const struct gguf_str *texts)
{
    for (u64 width = 1; width < n; width *= 2) {
        for (u64 lo = 0; lo < n; lo += 2 * width) {
            u64 mid = min_u64(lo + width, n), hi = min_u64(mid + width, n);
            for (u64 a = lo, b = mid, w = lo; w < hi; w++)
                spare[w] = b == hi || (a < mid && text_order(texts[ids[a]], texts[ids[b]]) <= 0)
                               ? ids[a++]
                               : ids[b++];
        }
        memcpy(ids, spare, n * sizeof *ids);
    }
}

static bool only_space(struct gguf_str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (s.at[i] != ' ' && (s.at[i] < '\t' || s.at[i] > '\r'))
            return false;
    return true;
}

static int added_init(struct token_added *a, const struct token_model *t, bool spaces,
                      struct err *err)
{
    for (int pass = 0; pass < 2; pass++) { /* count, then fill */
        a->n = 0;
        for (u32 i = 0; i < t->n; i++) {
            bool user = t->types[i] == TYPE_USER,
                 control = t->types[i] == TYPE_CONTROL || t->types[i] == TYPE_UNKNOWN;
            if (spaces ? !(user && only_space(t->texts[i])) : !(user || control))
                continue;
            if (pass)
                a->ids[a->n] = i, a->first[(u8)t->texts[i].at[0]] = true;
            a->n++;
        }
        if (!pass && !(a->ids = mem_array(2 * (u64)a->n, sizeof *a->ids)))
            return err_set(err, "no memory for %u added tokens", a->n);
    }
    sort_ids(a->ids, a->ids + a->n, a->n, t->texts);
    return 0;
}

/* First index in ids[lo..hi), all of which share their first d bytes and are longer, whose byte d
 * is >= byte. */
static u32 added_from(const struct token_added *a, const struct gguf_str *texts, u32 lo, u32 hi,
                      size_t d, unsigned byte)
{
    while (lo < hi) {
        u32 mid = lo + (hi - lo) / 2;
        if ((u8)texts[a->ids[mid]].at[d] < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The longest added token that s begins with, or TOKEN_NONE. The sorted ids are walked like a trie.
 */
static i32 added_at(const struct token_added *a, const struct gguf_str *texts, const char *s,
                    size_t len)
{
    i32 best = TOKEN_NONE;
    u32 lo = 0, hi = len && a->first[(u8)s[0]] ? a->n : 0;
    for (size_t d = 0; lo < hi; d++) {
        if (texts[a->ids[lo]].len == d)
            best = (i32)a->ids[lo++];
        if (d == len)
            break;
        lo = added_from(a, texts, lo, hi, d, (u8)s[d]);
        hi = added_from(a, texts, lo, hi, d, (u8)s[d] + 1u);
    }
    return best;
}

/* ---- the interface ---- */

static int open_all(struct token_model *t, const struct gguf *g, struct gguf_str *literals,
                    struct token_map *map, struct err *err)
{
    struct gguf_str model = {"", 0}, pre = {"default", 7};
    char quoted[64];
    int rc = gguf_string(g, "tokenizer.ggml.model", &model, err);
    if (rc < 0)
        return -1;
    t->spm = model.len == 5 && !memcmp(model.at, "llama", 5);
    if (!t->spm && (model.len != 4 || memcmp(model.at, "gpt2", 4)))
        return err_set(err, "%.200s: tokenizer.ggml.model is %s%s%s; known are: gpt2 llama",
                       g->path, rc ? "\"" : "missing",
                       err_quote(quoted, sizeof quoted, model.at, model.len), rc ? "\"" : "");
    if (!t->spm && (gguf_string(g, "tokenizer.ggml.pre", &pre, err) < 0 ||
                    pre_open(&t->pre, g->path, pre, err)))
        return -1;
    if (read_literals(literals, t->n, gguf_find(g, "tokenizer.ggml.tokens"), g->path, err) ||
        index_literals(map, literals, t->n, g->path, err) || read_types(t, g, literals, err) ||
        read_special(t, g, err) || make_texts(t, literals, err) || index_texts(t, literals, err) ||
        read_ends(t, err) || added_init(&t->added, t, false, err) ||
        added_init(&t->spaces, t, true, err))
        return -1;
    return t->spm ? spm_init(t, g, literals, err) : level_init(t, g, map, err);
}

int token_open(struct token_model **out, const struct gguf *g, u32 n_vocab, struct err *err)
{
    *out = NULL;
    const struct gguf_kv *kv = array_of(g, "tokenizer.ggml.tokens", true, err);
    if (!kv)
        return -1;
    if (kv->count != n_vocab || n_vocab == 0 || n_vocab > INT32_MAX)
        return err_set(err,
                       "%.200s: tokenizer.ggml.tokens has %llu items; the embedding has %u rows",
                       g->path, (unsigned long long)kv->count, n_vocab);
    struct token_model *t = mem_array(1, sizeof *t);
    struct gguf_str *literals = mem_array(n_vocab, sizeof *literals);
    struct token_map map = {0};
    int rc = -1;
    if (t && literals && (t->texts = mem_array(n_vocab, sizeof *t->texts)) &&
        (t->types = mem_array(n_vocab, 1))) {
        t->n = n_vocab;
        rc = open_all(t, g, literals, &map, err);
    } else {
        err_set(err, "no memory for %u tokens", n_vocab);
    }
    map_free(&map);
    free(literals);
    if (rc)
        token_close(t);
    else
        *out = t;
    return rc;
}

void token_close(struct token_model *t)
{
    if (!t)
        return;
    pre_close(&t->pre);
    bpe_free(&t->merges);
    map_free(&t->map);
    free(t->added.ids);
    free(t->spaces.ids);
    free(t->ends);
    free(t->types);
    free(t->texts);
    free(t->blob);
    free(t);
}

u32 token_count(const struct token_model *t)
{
    return t->n;
}

const struct token_special *token_special(const struct token_model *t)
{
    return &t->special;
}

bool token_is_end(const struct token_model *t, u32 id)
{
    return id < t->n && t->ends[id];
}

size_t token_max_bytes(const struct token_model *t)
{
    return t->max_bytes;
}

i32 token_find(const struct token_model *t, const char *text, size_t len)
{
    i32 id = added_at(&t->added, t->texts, text, len);
    return id >= 0 && t->texts[id].len == len ? id : map_find(&t->map, text, len);
}

const char *token_bytes(const struct token_model *t, u32 id, bool keep_special, size_t *len)
{
    *len = 0;
    if (id >= t->n)
        return "";
    u8 type = t->types[id];
    if (keep_special || type == TYPE_NORMAL || type == TYPE_USER || type == TYPE_BYTE)
        *len = t->texts[id].len;
    return t->texts[id].at;
}

static int encode_plain(const struct token_model *t, const char *text, size_t len,
                        struct bpe_work *w, struct token_ids *out, struct err *err)
{
    if (len == 0)
        return 0;
    return t->spm ? spm_encode(t, text, len, w, out, err) : level_encode(t, text, len, w, out, err);
}

/* Added tokens are cut out first, leftmost and longest, from the text as it came; what lies between
 * them is normalised, cut and merged by itself. A guard is out of their reach, but for white space.
 */
static int encode_parts(const struct token_model *t, const char *text, size_t len,
                        const struct token_guard *guards, size_t n_guards,
                        const struct token_added *added, struct bpe_work *w, struct token_ids *out,
                        struct err *err)
{
    size_t done = 0, g = 0;
    for (size_t i = 0; i < len;) {
        while (g < n_guards && guards[g].to <= i)
            g++;
        size_t room = g == n_guards ? len - i : guards[g].from > i ? guards[g].from - i : 0;
        i32 id = added_at(added, t->texts, text + i, room);
        if (room < len - i) {
            i32 space = added_at(&t->spaces, t->texts, text + i, len - i);
            if (space >= 0 && (id < 0 || t->texts[space].len > t->texts[id].len))
                id = space;
        }
        if (id < 0) {
            i++;
            continue;
        }
        if (encode_plain(t, text + done, i - done, w, out, err) || ids_push(out, (u32)id, err))
            return -1;
        done = i += t->texts[id].len;
    }
    return encode_plain(t, text + done, len - done, w, out, err);
}

int token_encode_guarded(const struct token_model *t, const char *text, size_t len,
                         const struct token_guard *guards, size_t n_guards, unsigned flags,
                         struct token_ids *out, struct err *err)
{
    if (len > TOKEN_INPUT_MAX)
        return err_set(err, "a text of %zu bytes cannot become tokens; the most is %d", len,
                       TOKEN_INPUT_MAX);
    size_t bad = utf8_check(text, len), n = out->n;
    if (bad < len)
        return err_set(err, "the text is not UTF-8 at byte %zu (0x%02x)", bad, (u8)text[bad]);
    bool fresh = flags & TOKEN_ADD_BOS;
    const struct token_added *added = flags & TOKEN_PARSE_SPECIAL ? &t->added : &t->spaces;
    struct bpe_work w = {0};
    int rc = -1;
    if ((fresh && t->special.add_bos && ids_push(out, (u32)t->special.bos, err)) ||
        encode_parts(t, text, len, guards, n_guards, added, &w, out, err) ||
        (fresh && t->special.add_eos && ids_push(out, (u32)t->special.eos, err)))
        out->n = n;
    else
        rc = 0;
    bpe_work_free(&w);
    return rc;
}

int token_encode(const struct token_model *t, const char *text, size_t len, unsigned flags,
                 struct token_ids *out, struct err *err)
{
    return token_encode_guarded(t, text, len, NULL, 0, flags, out, err);
}
