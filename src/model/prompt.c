/* Chat messages to token ids: see prompt.h for the markers. The control spellings are kept sorted,
 * so that the words that begin with a given text are a range and a match is a walk that narrows it
 * byte by byte. */
#include "model/prompt.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLANE = 0xF0000,               /* markers are made of U+F0000 + n */
    PLANE_SIZE = 0xFFFE,           /* the plane's last two code points are no characters */
    CHAR_BYTES = 4,                /* of every one of them in UTF-8 */
    MARKER_BYTES = 3 * CHAR_BYTES, /* sign, word, length */
};

struct word { /* one control token's spelling, owned by the token model */
    const char *text;
    size_t len;
};

struct prompt {
    const struct token_model *tokens;
    struct template *tmpl;
    struct word *words; /* sorted bytewise, shorter first */
    u32 n_words;
    size_t longest;
    bool first[256]; /* bytes that a word begins with: most of a text is passed over by this */
};

struct text { /* grows */
    char *at;
    size_t len, cap;
};

struct rendered {
    struct text text;
    struct token_guard *guards; /* in order, disjoint */
    size_t n, cap;
};

static int put(struct text *t, const void *bytes, size_t len, struct err *err)
{
    if (t->cap - t->len < len) {
        size_t cap = t->cap + t->cap / 2 + len + 64;
        char *at = realloc(t->at, cap);
        if (!at)
            return err_set(err, "out of memory for a prompt of %zu bytes", t->len + len);
        t->at = at;
        t->cap = cap;
    }
    if (len)
        memcpy(t->at + t->len, bytes, len);
    t->len += len;
    return 0;
}

/* ---- the words ---- */

static int by_bytes(const void *a, const void *b)
{
    const struct word *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->len < y->len ? x->len : y->len);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* Narrows [*from, *to), words that share their first `depth` bytes, to those whose next byte is c.
 */
static void narrow(const struct prompt *p, u32 *from, u32 *to, size_t depth, u8 c)
{
    u32 edge[2];
    for (int e = 0; e < 2;
         e++) { /* the first word whose byte is >= c, then > c; a word that ends here sorts first */
        u32 lo = e ? edge[0] : *from, hi = *to;
        while (lo < hi) {
            u32 mid = lo + (hi - lo) / 2;
            const struct word *w = &p->words[mid];
            if (w->len <= depth || (u8)w->text[depth] < c + e)
                lo = mid + 1;
            else
                hi = mid;
        }
        edge[e] = lo;
    }
    *from = edge[0];
    *to = edge[1];
}

/* The longest word that text begins with: its index, or n_words. *some: whether all of text begins
 * a word (any word of the range left when text ran out, in *beginner). */
static u32 match(const struct prompt *p, const char *text, size_t len, bool *some, u32 *beginner)
{
    u32 from = 0, to = len && p->first[(u8)text[0]] ? p->n_words : 0, best = p->n_words;
    size_t i = 0;
    for (; i < len; i++) {
        narrow(p, &from, &to, i, (u8)text[i]);
        if (from == to)
            break;
        if (p->words[from].len == i + 1)
            best = from;
    }
    *some = i == len && i > 0 && from < to;
    *beginner = *some ? from : p->n_words;
    return best;
}

int prompt_open(struct prompt **out, const struct token_model *tokens, struct template *tmpl,
                struct err *err)
{
    struct prompt *p = calloc(1, sizeof *p);
    u32 n_vocab = token_count(tokens), n = 0;
    size_t len;
    if (!p)
        return err_set(err, "out of memory");
    p->tokens = tokens;
    p->tmpl = tmpl;
    for (u32 id = 0; id < n_vocab; id++) {
        token_bytes(tokens, id, false, &len);
        if (len == 0)
            n++;
    }
    p->words = mem_array(n ? n : 1, sizeof *p->words);
    if (!p->words) {
        prompt_close(p);
        return err_set(err, "out of memory for %u control tokens", n);
    }
    for (u32 id = 0; id < n_vocab && p->n_words < n; id++) {
        token_bytes(tokens, id, false, &len);
        if (len)
            continue;
        const char *text = token_bytes(tokens, id, true, &len);
        if (len == 0)
            continue;
        p->words[p->n_words++] = (struct word){text, len};
        p->first[(u8)text[0]] = true;
        if (len > p->longest)
            p->longest = len;
    }
    if (p->n_words > PLANE_SIZE || p->longest > PLANE_SIZE) {
        u32 found = p->n_words;
        size_t longest = p->longest;
        prompt_close(p);
        return err_set(err, "%u control tokens, the longest of %zu bytes: expected at most %d",
                       found, longest, PLANE_SIZE);
    }
    qsort(p->words, p->n_words, sizeof *p->words, by_bytes);
    *out = p;
    return 0;
}

void prompt_close(struct prompt *p)
{
    if (!p)
        return;
    free(p->words);
    free(p);
}

/* ---- markers into the JSON ---- */

struct marking {
    const struct prompt *p;
    u8 *used;   /* one bit for each character of the plane that occurs in the JSON */
    u32 sign;   /* one that does not */
    bool found; /* something was marked */
    struct err *err;
};

static void encode_plane(u32 n, char out[CHAR_BYTES])
{
    u32 c = PLANE + n;
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63));
    out[3] = (char)(0x80 | (c & 63));
}

/* The n of U+F0000 + n at text, or -1. */
static i32 decode_plane(const char *text, size_t len)
{
    const u8 *t = (const u8 *)text;
    if (len < CHAR_BYTES || t[0] != 0xF3 || t[1] < 0xB0 || t[1] > 0xBF || (t[2] & 0xC0) != 0x80 ||
        (t[3] & 0xC0) != 0x80)
        return -1;
    return (i32)((u32)(t[1] & 63) << 12 | (u32)(t[2] & 63) << 6 | (t[3] & 63)) - 0x30000;
}

static void note_used(struct marking *m, const char *text, size_t len)
{
    for (size_t i = 0; i + CHAR_BYTES <= len; i++) {
        const char *at = memchr(text + i, 0xF3, len - i);
        if (!at)
            return;
        i = (size_t)(at - text);
        i32 n = decode_plane(at, len - i);
        if (n >= 0)
            m->used[n / 8] |= (u8)(1 << n % 8);
    }
}

static int put_marker(struct marking *m, struct text *t, u32 word, size_t len)
{
    char marker[MARKER_BYTES];
    encode_plane(m->sign, marker);
    encode_plane(word, marker + CHAR_BYTES);
    encode_plane((u32)len - 1, marker + 2 * CHAR_BYTES);
    m->found = true;
    return put(t, marker, sizeof marker, m->err);
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Where the longest beginning of a word starts that text ends in (blanks aside, templates trim),
 * not before `from`; its length in *len, 0 when there is none. */
static size_t open_end(const struct prompt *p, const char *text, size_t n, size_t from, size_t *len,
                       u32 *word)
{
    bool some;
    while (n > from && is_space(text[n - 1]))
        n--;
    *len = 0;
    for (size_t i = n - from > p->longest ? n - p->longest : from; i < n; i++) {
        match(p, text + i, n - i, &some, word);
        if (some) {
            *len = n - i;
            return i;
        }
    }
    return n;
}

/* A copy of text with its control spellings marked; nothing is put when there are none. */
static int mark_text(struct marking *m, const char *text, size_t len, struct text *out)
{
    const struct prompt *p = m->p;
    size_t done = 0, tail;
    bool some;
    u32 word;
    for (size_t i = 0; i < len;) {
        u32 w = match(p, text + i, len - i, &some, &word);
        if (w == p->n_words) {
            i++;
            continue;
        }
        if (put(out, text + done, i - done, m->err) || put_marker(m, out, w, p->words[w].len))
            return -1;
        i += p->words[w].len;
        done = i;
    }
    size_t at = open_end(p, text, len, done, &tail, &word);
    if (tail) {
        if (put(out, text + done, at - done, m->err) || put_marker(m, out, word, tail))
            return -1;
        done = at + tail;
    }
    return done ? put(out, text + done, len - done, m->err) : 0;
}

/* First walk: which characters of the plane occur. */
static void survey(struct marking *m, json_t *j)
{
    const char *key;
    size_t i, key_len;
    json_t *item;
    if (json_is_string(j)) {
        note_used(m, json_string_value(j), json_string_length(j));
    } else if (json_is_array(j)) {
        json_array_foreach(j, i, item) survey(m, item);
    } else if (json_is_object(j)) {
        json_object_keylen_foreach(j, key, key_len, item)
        {
            note_used(m, key, key_len);
            survey(m, item);
        }
    }
}

static json_t *mark(struct marking *m, json_t *j);

static json_t *mark_object(struct marking *m, json_t *j)
{
    json_t *out = json_object(), *item;
    const char *key;
    size_t key_len;
    json_object_keylen_foreach(j, key, key_len, item)
    {
        struct text t = {0};
        json_t *value = mark(m, item);
        bool ok = value && mark_text(m, key, key_len, &t) == 0 &&
                  json_object_setn(out, t.len ? t.at : key, t.len ? t.len : key_len, value) == 0;
        json_decref(value);
        free(t.at);
        if (!ok) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* Second walk: a copy with markers, NULL when memory ends. */
static json_t *mark(struct marking *m, json_t *j)
{
    if (json_is_string(j)) {
        struct text t = {0};
        json_t *out = NULL;
        if (mark_text(m, json_string_value(j), json_string_length(j), &t) == 0)
            out = t.len ? json_stringn(t.at, t.len) : json_incref(j);
        free(t.at);
        return out;
    }
    if (json_is_array(j)) {
        json_t *out = json_array(), *item;
        size_t i;
        json_array_foreach(j, i, item)
        {
            if (json_array_append_new(out, mark(m, item))) {
                json_decref(out);
                return NULL;
            }
        }
        return out;
    }
    return json_is_object(j) ? mark_object(m, j) : json_incref(j);
}

enum { N_INPUTS = 3 };
static const char *const input_names[N_INPUTS] = {"messages", "tools", "template variables"};

static int load_inputs(const char *const in[N_INPUTS], json_t *out[N_INPUTS], struct err *err)
{
    for (int i = 0; i < N_INPUTS; i++) {
        json_error_t where;
        if (!in[i])
            continue;
        out[i] = json_loads(in[i], JSON_ALLOW_NUL, &where);
        if (!out[i])
            return err_set(err, "%s: %s at byte %d: expected JSON", input_names[i], where.text,
                           where.position);
    }
    return 0;
}

/* in: JSON texts or NULL; out: malloc'd copies with markers, or NULL where the text itself can be
 * used. */
static int mark_inputs(struct marking *m, const char *const in[N_INPUTS], char *out[N_INPUTS])
{
    json_t *json[N_INPUTS] = {NULL};
    int rc = load_inputs(in, json, m->err);
    for (int i = 0; rc == 0 && i < N_INPUTS; i++)
        if (json[i])
            survey(m, json[i]);
    while (rc == 0 && m->used[m->sign / 8] >> m->sign % 8 & 1)
        if (++m->sign == PLANE_SIZE)
            rc = err_set(
                m->err,
                "the messages use every private character of plane 15: expected one to be free");
    for (int i = 0; rc == 0 && i < N_INPUTS; i++) {
        if (!json[i])
            continue;
        m->found = false;
        json_t *marked = mark(m, json[i]);
        if (!marked || (m->found && !(out[i] = json_dumps(marked, JSON_COMPACT))))
            rc = err_set(m->err, "out of memory for the %s", input_names[i]);
        json_decref(marked);
    }
    for (int i = 0; i < N_INPUTS; i++)
        json_decref(json[i]);
    return rc;
}

/* ---- markers out of the text ---- */

static int put_guarded(struct rendered *r, const char *text, size_t len, struct err *err)
{
    if (r->n == r->cap) {
        size_t cap = r->cap * 2 + 16;
        struct token_guard *g = realloc(r->guards, cap * sizeof *g);
        if (!g)
            return err_set(err, "out of memory for a prompt");
        r->guards = g;
        r->cap = cap;
    }
    r->guards[r->n++] = (struct token_guard){r->text.len, r->text.len + len};
    return put(&r->text, text, len, err);
}

static int unmark(const struct prompt *p, u32 sign, const char *text, size_t len,
                  struct rendered *r, struct err *err)
{
    char wanted[CHAR_BYTES];
    size_t done = 0;
    encode_plane(sign, wanted);
    for (size_t i = 0; i < len;) {
        const char *at = memchr(text + i, wanted[0], len - i);
        if (!at)
            break;
        i = (size_t)(at - text);
        i32 word = -1, n = -1;
        if (len - i >= MARKER_BYTES && memcmp(at, wanted, CHAR_BYTES) == 0) {
            word = decode_plane(at + CHAR_BYTES, CHAR_BYTES);
            n = decode_plane(at + 2 * CHAR_BYTES, CHAR_BYTES) + 1;
        }
        if (word < 0 || (u32)word >= p->n_words || n < 1 || (size_t)n > p->words[word].len) {
            i++; /* a character of the text, or a marker that the template cut */
            continue;
        }
        if (put(&r->text, text + done, i - done, err) ||
            put_guarded(r, p->words[word].text, (size_t)n, err))
            return -1;
        i += MARKER_BYTES;
        done = i;
    }
    return put(&r->text, text + done, len - done, err);
}

int prompt_build(const struct prompt *p, const char *messages_json, const char *tools_json,
                 const char *kwargs_json, bool add_generation_prompt, struct token_ids *out,
                 struct err *err)
{
    const char *in[N_INPUTS] = {messages_json, tools_json, kwargs_json};
    char *marked[N_INPUTS] = {NULL};
    u8 used[(PLANE_SIZE + 2) / 8] = {0};
    struct marking m = {.p = p, .used = used, .err = err};
    struct template_text text = {0};
    struct rendered r = {0};
    int rc = mark_inputs(&m, in, marked);
    for (int i = 0; i < N_INPUTS; i++)
        in[i] = marked[i] ? marked[i] : in[i];
    if (rc == 0)
        rc = template_render(p->tmpl, in[0], in[1], in[2], add_generation_prompt, &text, err);
    if (rc == 0)
        rc = unmark(p, m.sign, text.text, text.len, &r, err);
    if (rc == 0)
        rc = token_encode_guarded(p->tokens, r.text.at, r.text.len, r.guards, r.n,
                                  TOKEN_PARSE_SPECIAL, out, err);
    free(r.text.at);
    free(r.guards);
    free(text.text);
    for (int i = 0; i < N_INPUTS; i++)
        free(marked[i]);
    return rc;
}
