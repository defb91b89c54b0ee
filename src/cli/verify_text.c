/* Prompts and their solo runs. See verify_text.h.
 *
 * Lengths stand around the borders at which something changes: 32 positions (a panel of keys), 256
 * and 512 (chunks of attention), 128 (a step's prompt rows); answers then cross them. */
#include "cli/verify_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const u32 SHORT[] = {1,  5,  33, 2,  31, 12, 3, 64, 32, 9,  17, 1,
                            60, 24, 8,  95, 4,  30, 1, 40, 6,  20, 11, 70};
static const u32 LONG[] = {255, 513, 200, 450, 256, 192, 257, 240};

static const char *const SENTENCES[] = {
    "Once, in the village of Crow Hill, there lived",
    "The fox put the lantern down and said to the owl:",
    "def count(words):\n    \"\"\"How often each word occurs.\"\"\"\n",
    "Stra\xc3\x9f\x65, \xe6\x9d\xb1\xe4\xba\xac, 3.14159, 12:30.",
};

enum {
    EXTENDED = 2,       /* short texts, the last ones, that go on where another ended */
    EXTENDED_OUT = 16,  /* tokens of its answer */
    EXTENDED_MORE = 9,  /* new ones after that */
    ROWS_MAX_MB = 1024, /* of logits kept; beyond that hashes */
};

u64 verify_text_draw(u64 *state)
{
    u64 z = *state += 0x9E3779B97F4A7C15ull;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

u32 verify_text_below(u64 *state, u32 n)
{
    return (u32)((verify_text_draw(state) >> 32) * n >> 32);
}

/* ---- hashes ---- */

static u64 fold(u64 h, u64 word)
{
    h = (h ^ word) * 0x9FB21C651E98DF25ull;
    return h ^ h >> 29;
}

/* Four lanes, so that no multiplication waits for the one before. */
struct verify_hash verify_text_hash(const float *row, u32 n)
{
    u64 a[4] = {1, 2, 3, 4}, b[4] = {5, 6, 7, 8};
    struct verify_hash h = {n, ~(u64)n};
    for (u32 i = 0; i < n; i++) {
        u32 u;
        memcpy(&u, row + i, 4);
        a[i % 4] = (a[i % 4] ^ u) * 0x100000001B3ull;
        b[i % 4] = (b[i % 4] + u) * 0xD6E8FEB86659FD93ull;
        b[i % 4] ^= b[i % 4] >> 32;
    }
    for (u32 i = 0; i < 4; i++) {
        h.a = fold(h.a, a[i]);
        h.b = fold(h.b, b[i]);
    }
    return h;
}

/* ---- prompts ---- */

static int room(struct verify_text *x, u32 n_vocab, bool rows, struct err *err)
{
    x->out = mem_array(x->n_out, sizeof *x->out);
    x->hashes = mem_array(x->n_out, sizeof *x->hashes);
    x->said_end = mem_array(x->n_out, sizeof *x->said_end);
    x->rows = rows ? mem_array((u64)x->n_out * n_vocab, sizeof *x->rows) : NULL;
    if (!x->out || !x->hashes || !x->said_end || (rows && !x->rows))
        return err_set(err, "out of memory for the logits of %u tokens", x->n_out);
    return 0;
}

/* One in two is greedy; one greedy text in four has a penalty, which also keeps it from going round
 * in circles. */
static void choose_sampling(struct verify_text *x, u32 i, u64 *state)
{
    x->sampling = (struct ps_sampling){0};
    x->choice = 0;
    if (i % 2) {
        x->sampling = (struct ps_sampling){
            .temperature = 1, .top_k = 40, .top_p = 0.95f, .seed = verify_text_draw(state)};
        x->choice = i % 3;
    } else if (i % 8 == 2) {
        x->sampling = (struct ps_sampling){.repeat_penalty = 1.1f, .repeat_last_n = 24};
    }
}

static int draw_ids(struct verify_text *x, u32 n, u32 n_vocab, u64 *state, struct err *err)
{
    x->n_ids = n;
    x->ids = mem_array(n, sizeof *x->ids);
    if (!x->ids)
        return err_set(err, "out of memory for a prompt of %u tokens", n);
    for (u32 i = 0; i < n; i++)
        x->ids[i] = verify_text_below(state, n_vocab);
    return 0;
}

/* False where the tokenizer makes nothing of it, as that of a synthetic file. */
static bool spell(struct verify_text *x, const struct ps_model *m, const char *sentence)
{
    struct ps_error why;
    size_t n;
    if (ps_encode(m, sentence, strlen(sentence), false, true, &x->ids, &n, &why))
        return false;
    x->n_ids = (u32)n;
    if (n == 0) {
        free(x->ids);
        x->ids = NULL;
    }
    return n > 0;
}

/* Text i of the wish; its ids are drawn from a state of its own, so that one text does not move the
 * next. */
static int make(struct verify_texts *t, u32 i, const struct ps_model *m,
                const struct verify_wish *w, struct err *err)
{
    struct verify_text *x = &t->list[i];
    u64 state = w->seed * 1000003 + i;
    bool is_long = i >= t->n_short, real = !is_long && i % 6 == 4 && i / 6 < COUNT(SENTENCES);
    const char *kind = "random ids";
    verify_text_draw(&state);
    x->n_out = w->gen + (i % 4 == 0 ? w->gen / 2 : 0);
    x->extends = -1;
    choose_sampling(x, i, &state);
    u32 most = w->n_ctx - x->n_out,
        n = is_long ? LONG[(i - t->n_short) % COUNT(LONG)] : SHORT[i % COUNT(SHORT)];
    if (real && spell(x, m, SENTENCES[i / 6])) {
        x->n_ids = min_u32(x->n_ids, most);
        kind = "tokens of a sentence";
    } else if (i + EXTENDED >= t->n_short && !is_long) {
        x->extends = (i32)(t->n_short - 1 - i); /* 0 or 1 */
        const struct verify_text *base = &t->list[x->extends];
        n = base->n_ids + min_u32(base->n_out, EXTENDED_OUT) + EXTENDED_MORE;
        kind = "ids that extend another text";
    }
    if (!x->ids && draw_ids(x, min_u32(n, most), t->n_vocab, &state, err))
        return -1;
    t->longest = x->n_ids + x->n_out > t->longest ? x->n_ids + x->n_out : t->longest;
    snprintf(x->name, sizeof x->name, "text %u: %u %s, %s", i, x->n_ids, kind,
             x->sampling.temperature > 0      ? "sampled"
             : x->sampling.repeat_penalty > 0 ? "greedy, penalty"
                                              : "greedy");
    return room(x, t->n_vocab, t->rows, err);
}

int verify_text_open(struct verify_texts *t, const struct ps_model *m, const struct verify_wish *w,
                     struct err *err)
{
    struct ps_model_info info;
    ps_model_info(m, &info);
    u32 n = w->n_short + w->n_long;
    u64 row_bytes = (u64)info.n_vocab * sizeof(float);
    *t = (struct verify_texts){.n_short = w->n_short, .n_vocab = info.n_vocab};
    t->rows = (u64)n * (w->gen + w->gen / 8 + 1) * row_bytes <= (u64)ROWS_MAX_MB << 20;
    t->list = mem_array(n, sizeof *t->list);
    if (!t->list)
        return err_set(err, "out of memory");
    t->n = n;
    for (u32 i = 0; i < n; i++)
        if (make(t, i, m, w, err)) {
            verify_text_close(t);
            return -1;
        }
    return 0;
}

void verify_text_close(struct verify_texts *t)
{
    for (u32 i = 0; i < t->n; i++) {
        struct verify_text *x = &t->list[i];
        free(x->ids);
        free(x->out);
        free(x->hashes);
        free(x->rows);
        free(x->said);
        free(x->said_end);
    }
    free(t->list);
    *t = (struct verify_texts){0};
}

/* ---- alone ---- */

struct ps_request verify_text_request(const struct verify_text *x, u32 tokens)
{
    return (struct ps_request){.ids = x->ids,
                               .n_ids = x->n_ids,
                               .max_tokens = tokens,
                               .sampling = x->sampling,
                               .choice = x->choice,
                               .ignore_end = true,
                               .want_logits = true};
}

static int say(struct verify_text *x, u32 token, const char *piece, size_t len, struct err *err)
{
    size_t at = token ? x->said_end[token - 1] : 0;
    if (x->said_cap - at < len + 1) {
        size_t cap = x->said_cap * 2 + len + 256;
        char *more = realloc(x->said, cap);
        if (!more)
            return err_set(err, "out of memory for an answer of %zu bytes", at);
        x->said = more;
        x->said_cap = cap;
    }
    memcpy(x->said + at, piece, len);
    x->said_end[token] = at + len;
    return 0;
}

static int follow(struct verify_texts *t, struct verify_text *x, struct ps_stream *s,
                  struct ps_decoder *d, struct err *err)
{
    struct ps_token token;
    struct ps_error why;
    u32 n = 0;
    int rc;
    while ((rc = ps_stream_next(s, &token, &why)) == 1) {
        size_t len;
        const char *piece = ps_decoder_push(d, token.id, &len);
        x->out[n] = token.id;
        x->hashes[n] = verify_text_hash(token.logits, t->n_vocab);
        if (x->rows)
            memcpy(x->rows + (u64)n * t->n_vocab, token.logits, t->n_vocab * sizeof *token.logits);
        if (say(x, n, piece, len, err))
            return -1;
        t->hash = fold(t->hash, x->hashes[n++].a);
    }
    if (rc < 0)
        return err_set(err, "%s alone: %s", x->name, why.text);
    if (n != x->n_out)
        return err_set(err, "%s alone: made %u tokens of %u", x->name, n, x->n_out);
    return 0;
}

/* Puts one other token into the only slot, so that nothing of the text is found there. */
static int clear(struct ps_engine *e, u32 not_id, u32 n_vocab, struct err *err)
{
    struct ps_error why;
    struct ps_token token;
    u32 id = (not_id + 1) % n_vocab;
    struct ps_request r = {.ids = &id, .n_ids = 1, .max_tokens = 1, .ignore_end = true};
    struct ps_stream *s = ps_stream_open(e, &r, &why);
    if (!s)
        return err_set(err, "%s", why.text);
    while (ps_stream_next(s, &token, &why) == 1) {
    }
    ps_stream_close(s);
    return 0;
}

static void extend(struct verify_texts *t, struct verify_text *x)
{
    const struct verify_text *base = &t->list[x->extends];
    u32 n = min_u32(base->n_ids, x->n_ids),
        more = min_u32(min_u32(base->n_out, EXTENDED_OUT), x->n_ids - n);
    memcpy(x->ids, base->ids, n * sizeof *x->ids);
    memcpy(x->ids + n, base->out, more * sizeof *x->ids);
}

int verify_text_sing(struct verify_texts *t, u32 i, const struct ps_model *m, struct ps_engine *e,
                     struct err *err)
{
    struct verify_text *x = &t->list[i];
    struct ps_error why;
    if (x->extends >= 0)
        extend(t, x);
    if (clear(e, x->ids[0], t->n_vocab, err))
        return -1;
    struct ps_request r = verify_text_request(x, x->n_out);
    struct ps_stream *s = ps_stream_open(e, &r, &why);
    if (!s)
        return err_set(err, "%s", why.text);
    struct ps_decoder *d = ps_decoder_open(m, true);
    int rc = d ? follow(t, x, s, d, err) : err_set(err, "out of memory");
    struct ps_stream_info info;
    ps_stream_info(s, &info);
    if (rc == 0 && info.n_cached)
        rc =
            err_set(err, "%s alone: %u tokens were kept from another text", x->name, info.n_cached);
    ps_decoder_close(d);
    ps_stream_close(s);
    return rc;
}
