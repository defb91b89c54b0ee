/* Streams as their owners see them: open, next, cancel, close. See plainsong.h and engine.h. */
#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

void stream_free(struct ps_stream *s)
{
    if (!s)
        return;
    if (s->mask.done)
        s->mask.done(s->mask.arg);
    sampler_close(s->sampler);
    pthread_cond_destroy(&s->changed);
    free(s->ids);
    free(s->made);
    free(s->logits);
    free(s->logprobs);
    free(s->top);
    free(s);
}

static struct err *as_err(struct ps_error *e)
{
    _Static_assert(sizeof(struct err) == sizeof(struct ps_error), "one is the other under a public name");
    return (struct err *)e;
}

/* Says of the failure that was just described what kind it is. */
static int of_kind(enum ps_kind kind, struct err *err)
{
    if (err)
        err->kind = kind;
    return -1;
}

/* What can never fit is refused before any work; *max_tokens becomes the tokens the stream may make. */
static int fits(const struct ps_engine *e, const struct ps_request *r, u32 *max_tokens, struct err *err)
{
    if (r->n_ids >= e->n_ctx)
        return err_set(err, "the prompt has %zu tokens, the context holds %u: shorten it or raise --ctx", r->n_ids,
                       e->n_ctx);
    u32 room = e->n_ctx - (u32)r->n_ids;
    *max_tokens = r->max_tokens ? r->max_tokens : room;
    if (*max_tokens > room)
        return err_set(err, "prompt of %zu tokens and %u to generate do not fit the context of %u: at most %u to generate",
                       r->n_ids, r->max_tokens, e->n_ctx, room);
    return 0;
}

static int check(const struct ps_engine *e, const struct ps_request *r, struct err *err)
{
    if (r->n_ids == 0)
        return err_set(err, "the prompt is empty: expected at least one token");
    for (size_t i = 0; i < r->n_ids; i++)
        if (r->ids[i] >= e->plan.hp.n_vocab)
            return err_set(err, "prompt token %zu is %u: expected less than %u", i, r->ids[i], e->plan.hp.n_vocab);
    if (!(r->deadline_s >= 0)) /* NaN too */
        return err_set(err, "deadline_s is %g: expected 0 (none) or more", r->deadline_s);
    if (r->n_top > LOGPROB_MAX_TOP)
        return err_set(err, "n_top is %u: expected at most %d", r->n_top, LOGPROB_MAX_TOP);
    if (r->forced && !r->max_tokens)
        return err_set(err, "forced tokens without a number: expected max_tokens of them");
    for (u32 i = 0; r->forced && i < r->max_tokens; i++)
        if (r->forced[i] >= e->plan.hp.n_vocab)
            return err_set(err, "forced token %u is %u: expected less than %u", i, r->forced[i], e->plan.hp.n_vocab);
    return 0;
}

static int fill(struct ps_stream *s, const struct ps_request *r, u32 max_tokens, struct err *err)
{
    const struct ps_engine *e = s->engine;
    u32 n_vocab = e->plan.hp.n_vocab;
    s->n_prompt = (u32)r->n_ids;
    s->max_tokens = max_tokens;
    s->forced = r->forced != NULL;
    s->ignore_end = r->ignore_end || s->forced;
    s->opened = time_now();
    s->deadline = r->deadline_s > 0 ? s->opened + r->deadline_s : 0;
    s->slot = s->copy_from = -1;
    s->domain = r->domain;
    s->tag = r->tag;
    s->mask = r->mask;
    s->notify = r->notify;
    s->notify_arg = r->notify_arg;
    s->ids = mem_array((u64)s->n_prompt + max_tokens, sizeof *s->ids);
    s->made = mem_array(max_tokens, sizeof *s->made);
    s->logits = r->want_logits ? mem_array((u64)max_tokens * n_vocab, sizeof *s->logits) : NULL;
    s->n_top = r->want_logprobs ? min_u32(r->n_top, n_vocab) : 0;
    s->logprobs = r->want_logprobs ? mem_array(max_tokens, sizeof *s->logprobs) : NULL;
    s->top = s->n_top ? mem_array((u64)max_tokens * s->n_top, sizeof *s->top) : NULL;
    if (!s->ids || !s->made || (r->want_logits && !s->logits) || (r->want_logprobs && !s->logprobs) || (s->n_top && !s->top))
        return err_set(err, "out of memory: a stream of %u + %u tokens", s->n_prompt, max_tokens);
    memcpy(s->ids, r->ids, r->n_ids * sizeof *r->ids);
    if (r->forced)
        memcpy(s->ids + s->n_prompt, r->forced, max_tokens * sizeof *r->forced);
    if (sampler_open(&s->sampler, &r->sampling, r->choice, n_vocab, err))
        return of_kind(PS_INVALID, err);
    for (u32 i = 0; i < s->n_prompt; i++)
        sampler_see(s->sampler, s->ids[i]);
    return 0;
}

struct ps_stream *ps_stream_open(struct ps_engine *e, const struct ps_request *r, struct ps_error *error)
{
    struct err *err = as_err(error);
    u32 max_tokens = 0;
    if (check(e, r, err)) {
        of_kind(PS_INVALID, err);
        return NULL;
    }
    if (fits(e, r, &max_tokens, err)) {
        of_kind(PS_TOO_LONG, err);
        return NULL;
    }
    struct ps_stream *s = mem_array(1, sizeof *s);
    if (!s) {
        err_set(err, "out of memory");
        return NULL;
    }
    s->engine = e;
    pthread_cond_init(&s->changed, NULL);
    if (fill(s, r, max_tokens, err)) {
        s->mask.done = NULL;
        stream_free(s);
        return NULL;
    }
    pthread_mutex_lock(&e->lock);
    u64 free_slots = e->n_slots - e->n_active; /* streams that wait only until the scheduler looks do not count */
    bool full = e->n_queued >= e->n_queue + free_slots, broken = e->stats.broken;
    if (!full && !broken) {
        *e->queue_end = s;
        e->queue_end = &s->next;
        e->n_queued++;
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->lock);
    if (full || broken) {
        if (broken)
            err_set(err, "%s", e->stats.broken); /* once there it stays */
        else
            err_set(err, "the queue is full: %u streams run and %u wait; try again later", e->n_slots, e->n_queue);
        of_kind(broken ? PS_BROKEN : PS_BUSY, err);
        s->mask.done = NULL;
        stream_free(s);
        return NULL;
    }
    return s;
}

/* The next token, the end or the failure of a stream, or 2. Under the lock. */
static int take(struct ps_stream *s, struct ps_token *t, struct err *err)
{
    const struct ps_engine *e = s->engine;
    if (s->n_read < s->n_generated) {
        u32 i = s->n_read++;
        *t = (struct ps_token){.id = s->ids[s->n_prompt + i], .batch_rows = s->made[i].batch_rows,
                               .logits = s->logits ? s->logits + (u64)i * e->plan.hp.n_vocab : NULL,
                               .time = s->made[i].time,
                               .logprob = s->logprobs ? s->logprobs[i] : 0,
                               .top = s->top ? s->top + (u64)i * s->n_top : NULL};
        return 1;
    }
    if (s->phase != PHASE_DONE)
        return 2;
    if (s->end != PS_END_ERROR)
        return 0;
    if (err)
        *err = s->error;
    return -1;
}

int ps_stream_poll(struct ps_stream *s, struct ps_token *t, struct ps_error *error)
{
    pthread_mutex_lock(&s->engine->lock);
    int result = take(s, t, as_err(error));
    pthread_mutex_unlock(&s->engine->lock);
    return result;
}

int ps_stream_next(struct ps_stream *s, struct ps_token *t, struct ps_error *error)
{
    pthread_mutex_lock(&s->engine->lock);
    int result;
    while ((result = take(s, t, as_err(error))) == 2)
        pthread_cond_wait(&s->changed, &s->engine->lock);
    pthread_mutex_unlock(&s->engine->lock);
    return result;
}

void ps_stream_cancel(struct ps_stream *s)
{
    atomic_store(&s->cancel, true);
}

void ps_stream_info(struct ps_stream *s, struct ps_stream_info *info)
{
    struct ps_engine *e = s->engine;
    pthread_mutex_lock(&e->lock);
    double now = s->phase == PHASE_DONE ? s->last : time_now();
    double started = s->started > 0 ? s->started : now, first = s->first > 0 ? s->first : now;
    *info = (struct ps_stream_info){
        .end = s->end,
        .n_prompt = s->n_prompt,
        .n_cached = s->n_cached,
        .n_generated = s->n_generated,
        .slot = s->slot,
        .end_id = s->end_id,
        .queue_s = started - s->opened,
        .prompt_s = first - started,
        .decode_s = now - first,
        .logits_hash = s->logits_hash,
    };
    pthread_mutex_unlock(&e->lock);
}

void ps_stream_first(struct ps_stream *s, struct ps_stats *stats)
{
    struct ps_engine *e = s->engine;
    pthread_mutex_lock(&e->lock);
    if (s->first > 0)
        *stats = s->at_first;
    else
        engine_stats(e, stats);
    pthread_mutex_unlock(&e->lock);
}

void ps_stream_close(struct ps_stream *s)
{
    if (!s)
        return;
    struct ps_engine *e = s->engine;
    atomic_store(&s->cancel, true);
    pthread_mutex_lock(&e->lock);
    s->notify = NULL;
    bool done = s->phase == PHASE_DONE;
    bool listed = false; /* a finished stream stays on the list until the scheduler sweeps */
    for (struct ps_stream *a = e->active; a; a = a->next)
        listed |= a == s;
    if (!done || listed)
        s->abandoned = true;
    pthread_mutex_unlock(&e->lock);
    if (done && !listed)
        stream_free(s);
}
