/* Scenes: how they are drawn and how they are run. See verify_scene.h. One thread reads all streams
 * in turn, so that they advance together on the clock. */
#include "cli/verify_scene.h"

#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEVER = UINT32_MAX };

/* ---- drawing ---- */

static struct verify_part *add(struct verify_scene *s, u32 text, u32 tokens, u32 join)
{
    struct verify_part *p = &s->parts[s->n < VERIFY_PARTS ? s->n++ : VERIFY_PARTS - 1];
    *p = (struct verify_part){
        .text = text, .tokens = tokens, .join = join, .cancel = NEVER, .enough = NEVER};
    return p;
}

/* One stream in twelve, and of the small scenes one in three, has a long prompt. */
static void draw_fused(struct verify_scene *s, u32 n, u64 *state, const struct verify_texts *t)
{
    u32 n_long = t->n - t->n_short, from = verify_text_below(state, t->n_short);
    u32 long_at = n < 12 ? verify_text_below(state, n * 3) : verify_text_below(state, 12);
    for (u32 i = 0; i < n; i++) {
        bool is_long = n_long && i % 12 == long_at % 12 && long_at < 36;
        u32 text =
            is_long ? t->n_short + verify_text_below(state, n_long) : (from + i) % t->n_short;
        add(s, text, t->list[text].n_out, 0);
    }
}

/* One in eight is a neighbour of one token, one in eight ends anywhere. Cancelled or left: one in
 * eight while its long prompt is read, one in four while it generates, one in ten as soon as it is
 * there. */
static void draw_ragged(struct verify_scene *s, u32 n, u32 gen, u64 *state,
                        const struct verify_texts *t)
{
    u32 join = 0, n_long = t->n - t->n_short;
    for (u32 i = 0; i < n; i++) {
        u32 kind = verify_text_below(state, 8), chance = verify_text_below(state, 10);
        bool in_prompt = n_long && i % 8 == 5, is_long = n_long && (chance == 0 || in_prompt);
        u32 text = is_long ? t->n_short + verify_text_below(state, n_long)
                           : verify_text_below(state, t->n_short);
        u32 out = t->list[text].n_out, tokens = kind == 1 ? 1 + verify_text_below(state, out) : out;
        if (kind == 0) {
            text = i % 2 ? text : 0; /* text 0 is a prompt of one token */
            tokens = 1;
        }
        struct verify_part *p = add(s, text, tokens, join);
        if (in_prompt)
            p->cancel = join + 3;
        else if (i % 4 == 2)
            p->enough = 1 + verify_text_below(state, tokens / 2 + 1);
        else if (verify_text_below(state, 10) == 0)
            p->cancel = join;
        p->leave = verify_text_below(state, 2);
        join += verify_text_below(state, 3) ? verify_text_below(state, gen / 2 + 2) : 0;
    }
}

/* A, A again, others, A again, twice A at once, then what extends A. n: the others. */
static void draw_kept(struct verify_scene *s, u32 n, u64 *state, const struct verify_texts *t)
{
    u32 clock = 0, a = verify_text_below(state, 2), tokens = t->list[a].n_out;
    u32 x = t->n > t->n_short ? t->n_short + verify_text_below(state, t->n - t->n_short) : a;
    for (u32 i = 0; i < 2; i++, clock += tokens)
        add(s, a, tokens, clock);
    for (u32 i = 0; i < n; i++) {
        u32 text = 2 + verify_text_below(state, t->n_short - 2);
        add(s, text, t->list[text].n_out, clock);
    }
    for (u32 i = s->n - n; i < s->n; i++)
        clock += s->parts[i].tokens;
    add(s, x, t->list[x].n_out, clock);
    clock += t->list[x].n_out;
    for (u32 k = 0; k < 2; k++) { /* the second finds its prefix in the slot of the first */
        u32 text = k ? a : x;
        for (u32 i = 0; i < 2; i++)
            add(s, text, t->list[text].n_out, clock);
        clock += 2 * t->list[text].n_out;
    }
    for (u32 i = 0; i < t->n_short; i++)
        if (t->list[i].extends == (i32)a)
            add(s, i, t->list[i].n_out, clock);
}

void verify_scene_make(struct verify_scene *s, enum verify_kind kind, u32 n, u32 gen, u64 seed,
                       const struct verify_texts *t)
{
    u64 state = seed;
    s->n = 0;
    if (kind == VERIFY_FUSED)
        draw_fused(s, n, &state, t);
    else if (kind == VERIFY_RAGGED)
        draw_ragged(s, n, gen, &state, t);
    else if (kind == VERIFY_KEPT)
        draw_kept(s, n, &state, t);
    else
        for (u32 i = 0; i < t->n; i++)
            add(s, i, t->list[i].n_out, 0);
}

/* ---- comparing ---- */

struct voice { /* a stream of the scene that runs */
    const struct verify_part *part;
    struct ps_stream *stream;
    struct ps_decoder *decoder;
    u32 n; /* tokens read */
    bool differs, cancelled;
};

struct stage {
    const struct verify_scene *scene;
    const struct verify_texts *texts;
    const struct ps_model *model;
    struct ps_engine *engine;
    struct verify_tally *tally;
    struct verify_diff *diff;
    u32 gen, clock, next, n_open;
    struct voice voices[VERIFY_PARTS]; /* by part; stream NULL: not open */
};

static void differ(struct stage *g, struct voice *v, bool sampled, const char *what)
{
    struct verify_diff *d = g->diff;
    v->differs = true;
    if (d->found)
        return;
    const struct verify_text *x = &g->texts->list[v->part->text];
    *d = (struct verify_diff){.found = true,
                              .sampled = sampled,
                              .text = v->part->text,
                              .part = (u32)(v->part - g->scene->parts),
                              .token = v->n,
                              .position = x->n_ids + v->n - 1};
    snprintf(d->what, sizeof d->what, "%s", what);
}

/* Which logit, and both values in hex. */
static void differ_row(struct stage *g, struct voice *v, const float *row)
{
    const struct verify_text *x = &g->texts->list[v->part->text];
    char what[160] = "the hash of the logits";
    for (u32 i = 0; x->rows && i < g->texts->n_vocab; i++) {
        const float *want = x->rows + (u64)v->n * g->texts->n_vocab;
        u32 a, b;
        memcpy(&a, row + i, 4);
        memcpy(&b, want + i, 4);
        if (a == b)
            continue;
        snprintf(what, sizeof what, "logit %u is 0x%08x (%.7g), alone 0x%08x (%.7g)", i, a,
                 (double)row[i], b, (double)want[i]);
        break;
    }
    differ(g, v, false, what);
}

static bool same_row(const struct verify_texts *t, const struct verify_text *x, u32 token,
                     const float *row)
{
    if (x->rows)
        return memcmp(row, x->rows + (u64)token * t->n_vocab, t->n_vocab * sizeof *row) == 0;
    struct verify_hash h = verify_text_hash(row, t->n_vocab);
    return h.a == x->hashes[token].a && h.b == x->hashes[token].b;
}

static void compare(struct stage *g, struct voice *v, const struct ps_token *token)
{
    const struct verify_text *x = &g->texts->list[v->part->text];
    char what[96];
    size_t len;
    const char *piece = ps_decoder_push(v->decoder, token->id, &len);
    size_t from = v->n ? x->said_end[v->n - 1] : 0;
    g->tally->tokens++;
    g->tally->rows = token->batch_rows > g->tally->rows ? token->batch_rows : g->tally->rows;
    if (v->differs)
        return;
    if (!same_row(g->texts, x, v->n, token->logits)) {
        differ_row(g, v, token->logits);
    } else if (token->id != x->out[v->n]) {
        snprintf(what, sizeof what, "the logits are equal, the token chosen is %u, alone %u",
                 token->id, x->out[v->n]);
        differ(g, v, true, what);
    } else if (len != x->said_end[v->n] - from || memcmp(piece, x->said + from, len)) {
        differ(g, v, true, "logits and token are equal, the text is not");
    }
}

/* ---- running ---- */

static int join(struct stage *g, u32 i, struct err *err)
{
    struct ps_error why;
    struct voice *v = &g->voices[i];
    const struct verify_part *p = &g->scene->parts[i];
    struct ps_request r = verify_text_request(&g->texts->list[p->text], p->tokens);
    *v = (struct voice){.part = p, .decoder = ps_decoder_open(g->model, true)};
    if (!v->decoder)
        return err_set(err, "out of memory");
    v->stream = ps_stream_open(g->engine, &r, &why);
    if (!v->stream)
        return err_set(err, "%s: %s", g->texts->list[p->text].name, why.text);
    g->n_open++;
    return 0;
}

/* Its end is compared as well: all tokens asked for, unless it was cancelled. */
static void finish(struct stage *g, struct voice *v, int rc, const struct ps_error *why)
{
    struct ps_stream_info info;
    char what[160];
    ps_stream_info(v->stream, &info);
    g->tally->kept += info.n_cached;
    if (rc < 0 && !v->differs) {
        snprintf(what, sizeof what, "the stream failed: %.100s", why->text);
        differ(g, v, false, what);
    } else if (rc == 0 && !v->differs && !v->cancelled && v->n != v->part->tokens) {
        snprintf(what, sizeof what, "it ended after %u tokens of %u", v->n, v->part->tokens);
        differ(g, v, false, what);
    }
    if (v->n || v->differs) {
        g->tally->comparisons++;
        g->tally->full += v->n >= g->gen;
        g->tally->differ += v->differs;
    }
    ps_decoder_close(v->decoder);
    ps_stream_close(v->stream);
    v->decoder = NULL;
    v->stream = NULL;
    g->n_open--;
}

static void cancel(struct stage *g, struct voice *v)
{
    struct ps_stream_info info;
    ps_stream_info(v->stream, &info);
    if (info.end == PS_END_NONE)
        g->tally->cancelled[info.n_generated ? 2 : info.slot < 0 ? 0 : 1]++;
    v->cancelled = true;
    if (v->part->leave)
        finish(g, v, 0, NULL);
    else
        ps_stream_cancel(v->stream);
}

/* What the clock says is due. */
static int due(struct stage *g, struct err *err)
{
    const struct verify_scene *s = g->scene;
    while (g->next < s->n && (s->parts[g->next].join <= g->clock || g->n_open == 0))
        if (join(g, g->next++, err))
            return -1;
    for (u32 i = 0; i < g->next; i++) {
        struct voice *v = &g->voices[i];
        if (v->stream && !v->cancelled && (g->clock >= v->part->cancel || v->n >= v->part->enough))
            cancel(g, v);
    }
    return 0;
}

/* The stream to read next, after voice `last`: one with something to read, in turn; else the one
 * that will have it first: in its answer before in its prompt before in the queue. */
static struct voice *choose(struct stage *g, u32 last)
{
    struct voice *best = NULL;
    u32 best_phase = 0;
    for (u32 k = 1; k <= g->next; k++) {
        struct voice *v = &g->voices[(last + k) % g->next];
        struct ps_stream_info info;
        if (!v->stream)
            continue;
        ps_stream_info(v->stream, &info);
        if (info.end != PS_END_NONE || info.n_generated > v->n)
            return v;
        u32 phase = info.n_generated ? 3 : info.slot >= 0 ? 2 : 1;
        if (phase > best_phase) {
            best = v;
            best_phase = phase;
        }
    }
    return best;
}

/* A token of one stream. */
static void read_one(struct stage *g, struct voice *v)
{
    struct ps_token token;
    struct ps_error why;
    int rc = ps_stream_next(v->stream, &token, &why);
    if (rc != 1) {
        finish(g, v, rc, &why);
        return;
    }
    g->clock++;
    if (v->n < v->part->tokens)
        compare(g, v, &token);
    v->n++;
}

static void close_all(struct stage *g)
{
    for (u32 i = 0; i < g->next; i++) {
        ps_decoder_close(g->voices[i].decoder);
        ps_stream_close(g->voices[i].stream);
    }
}

int verify_scene_run(const struct verify_scene *s, const struct verify_texts *t, u32 gen,
                     const struct ps_model *m, struct ps_engine *e, struct verify_tally *tally,
                     struct verify_diff *diff,
                     void (*tell)(void *arg, const struct verify_tally *so_far), void *arg,
                     struct err *err)
{
    struct stage *g = mem_array(1, sizeof *g);
    if (!g)
        return err_set(err, "out of memory");
    g->scene = s;
    g->texts = t;
    g->model = m;
    g->engine = e;
    g->tally = tally;
    g->diff = diff;
    g->gen = gen;
    u32 last = 0;
    engine_hold(e, true); /* those that begin the scene begin in one step */
    int rc = due(g, err);
    engine_hold(e, false);
    while (rc == 0 && g->n_open) {
        struct voice *v = choose(g, last);
        last = (u32)(v - g->voices);
        read_one(g, v);
        rc = due(g, err);
        if (tell)
            tell(arg, tally);
    }
    close_all(g);
    free(g);
    return rc;
}
