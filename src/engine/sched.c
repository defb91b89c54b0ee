/* The scheduler: one loop on one thread. Each turn admits streams to free slots, makes one step of at most one row
 * for each stream that decodes plus prompt rows up to the budget, runs it as one submission, and hands out the
 * tokens. A stream is cancelled, timed out or failed between two steps, and only that stream. */
#include "engine/engine.h"

#include "base/pool.h"

#include <stdlib.h>
#include <string.h>

/* ---- ends ---- */

/* Under the lock: there is a token, or the end. */
static void tell(struct ps_stream *s)
{
    pthread_cond_broadcast(&s->changed);
    if (s->notify)
        s->notify(s->notify_arg);
}

/* Under the lock. The slot's tokens stay for reuse. */
static void finish(struct ps_engine *e, struct ps_stream *s, enum ps_end end)
{
    if (s->slot >= 0) {
        kv_release(e->kv, (u32)s->slot);
        s->slot = -1;
    }
    s->last = time_now();
    s->end = end;
    s->phase = PHASE_DONE;
    tell(s);
}

/* Takes finished streams off the active list. Under the lock. */
static void sweep(struct ps_engine *e)
{
    struct ps_stream **at = &e->active;
    while (*at) {
        struct ps_stream *s = *at;
        if (s->phase != PHASE_DONE) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        e->n_active--;
        if (s->abandoned)
            stream_free(s);
    }
}

static enum ps_end due(const struct ps_stream *s, double now)
{
    if (atomic_load_explicit(&s->cancel, memory_order_relaxed))
        return PS_END_CANCEL;
    return s->deadline > 0 && now >= s->deadline ? PS_END_DEADLINE : PS_END_NONE;
}

/* Ends what was cancelled or is out of time, queued or active. Under the lock. */
static void expire(struct ps_engine *e)
{
    double now = time_now();
    for (struct ps_stream *s = e->active; s; s = s->next)
        if (due(s, now) != PS_END_NONE)
            finish(e, s, due(s, now));
    sweep(e);
    struct ps_stream **at = &e->queue;
    while (*at) {
        struct ps_stream *s = *at;
        enum ps_end end = due(s, now);
        if (end == PS_END_NONE) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        e->n_queued--;
        finish(e, s, end);
        if (s->abandoned)
            stream_free(s);
    }
    e->queue_end = at;
}

/* The broken device's line becomes the stream's. Under the lock. */
static void blame(const struct ps_engine *e, struct ps_stream *s)
{
    err_set(&s->error, "%s", e->stats.broken);
    s->error.kind = PS_BROKEN;
}

/* With a broken device nothing that waits or runs will come to anything: all end now, and ps_stream_open takes nothing more.
 * Under the lock. */
static void give_up(struct ps_engine *e)
{
    for (struct ps_stream *s = e->active; s; s = s->next) {
        if (s->phase == PHASE_DONE)
            continue;
        blame(e, s);
        finish(e, s, PS_END_ERROR);
    }
    sweep(e);
    while (e->queue) {
        struct ps_stream *s = e->queue;
        e->queue = s->next;
        e->n_queued--;
        blame(e, s);
        finish(e, s, PS_END_ERROR);
        if (s->abandoned)
            stream_free(s);
    }
    e->queue_end = &e->queue;
}

/* ---- joining ---- */

/* Gives slots to the queue's first streams. Under the lock. */
static void admit(struct ps_engine *e)
{
    while (e->queue && !e->held) {
        struct ps_stream *s = e->queue;
        u32 kept;
        int slot = kv_claim(e->kv, s->domain, s->ids, s->n_prompt, &kept, &s->copy_from);
        if (slot < 0)
            return;
        e->queue = s->next;
        if (!e->queue)
            e->queue_end = &e->queue;
        e->n_queued--;
        s->slot = slot;
        s->n_run = s->n_cached = kept;
        s->started = time_now();
        s->phase = PHASE_PROMPT;
        e->slot_tag[slot] = s->tag;
        struct ps_stream **at = &e->active; /* at the end: the list's order is the order of arrival */
        while (*at)
            at = &(*at)->next;
        s->next = NULL;
        *at = s;
        e->n_active++;
    }
}

/* Copies the prefixes that newcomers share with other slots, in the order in which they were admitted: a slot may be
 * the source of one and the target of the next. Called and returns with the lock held, lets go of it for each copy. */
static void seed(struct ps_engine *e)
{
    for (struct ps_stream *s = e->active; s; s = s->next) {
        if (s->copy_from < 0)
            continue;
        u32 from = (u32)s->copy_from, to = (u32)s->slot, n = s->n_run;
        s->copy_from = -1;
        pthread_mutex_unlock(&e->lock);
        device_copy(e->device, from, to, n);
        pthread_mutex_lock(&e->lock);
    }
}

/* ---- a step ---- */

static u32 known(const struct ps_stream *s) /* tokens there are: prompt and generated */
{
    return s->n_prompt + s->n_generated;
}

enum { MAX_PROMPTS = 1024 }; /* as many as there can be slots */

struct step {
    u32 n_streams, n_decode, n_prompt; /* e->step's entries; rows of either kind */
};

/* Adds the stream's next n tokens as rows; the last known token wants logits. */
static u32 add_rows(struct ps_engine *e, struct ps_stream *s, u32 n, u32 at, u32 *n_logits)
{
    s->step_rows = n;
    s->step_row = *n_logits;
    for (u32 i = 0; i < n; i++) {
        u32 pos = s->n_run + i;
        bool last = pos + 1 == known(s);
        e->rows[at + i] = (struct row){(u32)s->slot, pos, s->ids[pos], last};
        *n_logits += last;
    }
    return at + n;
}

/* Rows for a step: every decoding stream one; then prompts share the budget equally, what one leaves going to the next, a
 * different prompt first each step: a short prompt never waits for a long one. Under the lock. */
static u32 make_step(struct ps_engine *e, struct ps_stream *only, struct step *t)
{
    struct ps_stream *prompts[MAX_PROMPTS];
    u32 n_rows = 0, n_logits = 0, n_prompts = 0;
    *t = (struct step){0};
    for (struct ps_stream *s = e->active; s; s = s->next) {
        s->step_rows = 0;
        if (s->phase == PHASE_DONE || (only && s != only))
            continue;
        if (s->phase == PHASE_DECODE) {
            n_rows = add_rows(e, s, 1, n_rows, &n_logits);
            e->step[t->n_streams++] = s;
            t->n_decode++;
        } else if (n_prompts < MAX_PROMPTS) {
            prompts[n_prompts++] = s;
        }
    }
    u32 budget = n_prompts ? pace_budget(&e->pace, t->n_decode) : 0;
    e->turn++;
    for (u32 i = 0; i < n_prompts && budget; i++) {
        struct ps_stream *s = prompts[(e->turn + i) % n_prompts];
        u32 share = (budget + n_prompts - i - 1) / (n_prompts - i);
        u32 rows = min_u32(share, s->n_prompt - s->n_run);
        n_rows = add_rows(e, s, rows, n_rows, &n_logits);
        e->step[t->n_streams++] = s;
        t->n_prompt += rows;
        budget -= rows;
    }
    e->prompt_rows += t->n_prompt;
    return n_rows;
}

/* Eight sums side by side, since one multiply would wait for the other: word i joins sum i mod 8. */
u64 engine_hash(const float *x, u32 n)
{
    const u64 PRIME = 0x100000001B3ull, BASIS = 0xCBF29CE484222325ull;
    u64 h[8], all = BASIS;
    u32 u[8] = {0};
    for (u32 k = 0; k < 8; k++)
        h[k] = BASIS + k;
    for (u32 i = 0; i + 8 <= n; i += 8) {
        memcpy(u, x + i, sizeof u);
        for (u32 k = 0; k < 8; k++)
            h[k] = (h[k] ^ u[k]) * PRIME;
    }
    memcpy(u, x + n / 8 * 8, n % 8 * sizeof *u);
    for (u32 k = 0; k < n % 8; k++)
        h[k] = (h[k] ^ u[k]) * PRIME;
    for (u32 k = 0; k < 8; k++)
        all = (all ^ h[k]) * PRIME;
    return all;
}

static bool is_end(const struct ps_engine *e, u32 id)
{
    for (u32 i = 0; i < e->n_end_ids; i++)
        if (e->end_ids[i] == id)
            return true;
    return false;
}

static bool is_last(const struct ps_engine *e, const struct ps_stream *s, u32 id)
{
    return s->n_generated + 1 == s->max_tokens || (!s->ignore_end && is_end(e, id));
}

/* Before the choices and on this thread alone, since it may ask the device: the token by the head of the row where that
 * proves it, and the row itself where it is needed. A stream that wants its logits is there to verify: it gets both, and
 * they are held against each other. The hash costs as much as a greedy choice, so it is made of a stream's last token only. */
static void fetch(const struct ps_engine *e, struct ps_stream *s)
{
    const u32 *picks = s->mask.allowed || s->logprobs ? NULL : device_picks(e->device, s->step_row);
    s->step_head = picks ? sampler_choose_head(s->sampler, picks, known(s)) : -1;
    bool enough = s->step_head >= 0 && !s->logits && !is_last(e, s, s->forced ? s->ids[known(s)] : (u32)s->step_head);
    s->step_row_at = enough ? NULL : device_logits(e->device, s->step_row);
}

/* Chooses from the row. */
static i32 choose_by_row(struct ps_stream *s, struct err *err)
{
    const u32 *mask = s->mask.allowed ? s->mask.allowed(s->mask.arg) : NULL;
    i32 id = sampler_choose(s->sampler, s->step_row_at, known(s), mask, err);
    if (s->step_head >= 0 && id >= 0 && s->step_head != id)
        return err_set(err, "position %u: the device's list of likely tokens says %d, its logits say %d", known(s), s->step_head,
                       id);
    return id;
}

/* Chooses the stream's next token, or takes the one that was given. Without the lock: only the scheduler, and in take_results
 * the thread that was given this stream, writes these. */
static i32 choose(const struct ps_engine *e, struct ps_stream *s, u64 *hash, struct err *err)
{
    const float *logits = s->step_row_at;
    u32 n_vocab = e->plan.hp.n_vocab;
    if (!logits && s->step_head < 0)
        return err_set(err, "the device gave no logits");
    i32 id = logits ? choose_by_row(s, err) : s->step_head;
    if (id < 0)
        return -1;
    if (s->forced)
        id = (i32)s->ids[known(s)];
    bool last = is_last(e, s, (u32)id);
    if (!logits && (last || s->logits))
        return err_set(err, "the device gave no logits");
    if (s->mask.allowed && s->mask.took)
        s->mask.took(s->mask.arg, (u32)id);
    if (s->logits)
        memcpy(s->logits + (u64)s->n_generated * n_vocab, logits, n_vocab * sizeof *logits);
    if (s->logprobs)
        s->logprobs[s->n_generated] =
            logprob_row(logits, n_vocab, (u32)id, s->top ? s->top + (u64)s->n_generated * s->n_top : NULL, s->n_top);
    *hash = last ? engine_hash(logits, n_vocab) : 0;
    sampler_see(s->sampler, (u32)id);
    return id;
}

/* One stream's choice: a task of device_each. It touches this stream only. */
static void choose_task(void *engine, u32 i, u32 thread)
{
    (void)thread;
    struct ps_engine *e = engine;
    struct ps_stream *s = e->choosing[i];
    s->step_id = choose(e, s, &s->step_hash, &s->error);
}

/* Hands the token out, and ends the stream where it ends. Under the lock. */
static void deliver(struct ps_engine *e, struct ps_stream *s, u32 id, u64 hash, u32 batch)
{
    double now = time_now();
    if (s->n_generated == 0) {
        s->first = now;
        engine_stats(e, &s->at_first);
    }
    s->logits_hash = hash;
    s->phase = PHASE_DECODE;
    if (!s->ignore_end && is_end(e, id)) {
        s->end_id = id;
        finish(e, s, PS_END_STOP);
        return;
    }
    s->ids[known(s)] = id;
    s->made[s->n_generated++] = (struct made){now, batch};
    if (s->n_generated == s->max_tokens)
        finish(e, s, PS_END_LENGTH);
    else
        tell(s);
}

/* After a step: logits become tokens, without the lock; what ran is kept and tokens are handed out, under it. Returns with
 * the lock held. */
static void take_results(struct ps_engine *e, u32 n_streams, u32 n_rows, bool ok, const struct err *step_err)
{
    u32 n_choosing = 0;
    for (u32 i = 0; i < n_streams; i++) {
        struct ps_stream *s = e->step[i];
        s->step_id = -1;
        s->step_logits = ok && s->n_run + s->step_rows == known(s);
        if (s->step_logits)
            e->choosing[n_choosing++] = s;
        else if (!ok)
            s->error = *step_err;
    }
    for (u32 i = 0; i < n_choosing; i++)
        fetch(e, e->choosing[i]);
    device_each(e->device, n_choosing, choose_task, e);
    pthread_mutex_lock(&e->lock);
    e->steps++; /* counted before any token can be read, so that who has a token finds its step counted */
    device_stats(e->device, &e->stats);
    for (u32 i = 0; i < n_streams; i++) {
        struct ps_stream *s = e->step[i];
        if (ok) {
            kv_append(e->kv, (u32)s->slot, s->ids + s->n_run, s->step_rows);
            s->n_run += s->step_rows;
        } else {
            kv_cut(e->kv, (u32)s->slot, s->n_run);
        }
        bool failed = !ok || (s->step_logits && s->step_id < 0);
        if (failed && e->stats.broken)
            blame(e, s);
        if (failed)
            finish(e, s, PS_END_ERROR);
        else if (s->step_logits)
            deliver(e, s, (u32)s->step_id, s->step_hash, n_rows);
    }
}

/* One submission for all active streams, or for one. *since: when what comes before it began; becomes its end. Called
 * and returns with the lock held. */
static void run_step(struct ps_engine *e, struct ps_stream *only, double *since)
{
    struct err err = {.text = ""};
    struct step t;
    u32 n_rows = make_step(e, only, &t);
    if (!n_rows)
        return;
    pthread_mutex_unlock(&e->lock);
    double t0 = time_now();
    bool ok = device_step(e->device, e->rows, n_rows, &err) == 0;
    double device_s = time_now() - t0;
    pace_note(&e->pace, t.n_decode, t.n_prompt, device_s);
    take_results(e, t.n_streams, n_rows, ok, &err);
    double now = time_now();
    e->tail_s += now - *since - device_s;
    *since = now;
}

void *sched_main(void *engine)
{
    struct ps_engine *e = engine;
    pool_hurry();
    pthread_mutex_lock(&e->lock);
    double since = time_now();
    while (!e->quit) {
        e->turn_began = time_now();
        expire(e);
        if (e->stats.broken)
            give_up(e);
        admit(e);
        seed(e);
        if (!e->active) {
            e->turn_began = 0;
            pthread_cond_wait(&e->work, &e->lock);
            since = time_now();
            continue;
        }
        if (e->serialize) {
            for (struct ps_stream *s = e->active; s; s = s->next)
                if (s->phase != PHASE_DONE)
                    run_step(e, s, &since);
        } else {
            run_step(e, NULL, &since);
        }
        sweep(e);
    }
    for (struct ps_stream *s = e->active; s; s = s->next)
        atomic_store(&s->cancel, true);
    for (struct ps_stream *s = e->queue; s; s = s->next)
        atomic_store(&s->cancel, true);
    expire(e);
    pthread_mutex_unlock(&e->lock);
    return NULL;
}
