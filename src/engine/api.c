/* The public API's model and engine: opens the parts in order and hands them on. See plainsong.h. */
#include "engine/model.h"

#include "base/sysmem.h"
#include "base/thread.h"
#include "engine/budget.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef PS_VERSION
#define PS_VERSION "0.0.0"
#endif

static struct err *as_err(struct ps_error *e)
{
    return (struct err *)e;
}

const char *ps_version(void)
{
    return PS_VERSION;
}

/* ---- model ---- */

static char *copy_text(const char *at, size_t len)
{
    char *s = malloc(len + 1);
    if (s) {
        memcpy(s, at, len);
        s[len] = 0;
    }
    return s;
}

static char *token_text(const struct ps_model *m, i32 id)
{
    size_t len = 0;
    const char *at = id >= 0 ? token_bytes(m->token, (u32)id, true, &len) : "";
    return copy_text(at, len);
}

void ps_model_close(struct ps_model *m)
{
    if (!m)
        return;
    token_close(m->token);
    weights_close(&m->weights);
    gguf_close(&m->file);
    free(m->bos);
    free(m->eos);
    free(m);
}

struct ps_model *ps_model_open(const char *path, struct ps_error *error)
{
    struct err *err = as_err(error);
    struct ps_model *m = mem_array(1, sizeof *m);
    if (!m) {
        err_set(err, "out of memory");
        return NULL;
    }
    if (gguf_open(&m->file, path, err) || weights_open(&m->weights, &m->file, err) ||
        token_open(&m->token, &m->file, m->weights.hp.n_vocab, err))
        goto fail;
    if (gguf_string(&m->file, "tokenizer.chat_template", &m->chat_template, err) < 0)
        goto fail;
    m->bos = token_text(m, token_special(m->token)->bos);
    m->eos = token_text(m, token_special(m->token)->eos);
    if (!m->bos || !m->eos) {
        err_set(err, "out of memory");
        goto fail;
    }
    return m;
fail:
    ps_model_close(m);
    return NULL;
}

void ps_model_info(const struct ps_model *m, struct ps_model_info *info)
{
    const struct hparams *hp = &m->weights.hp;
    *info = (struct ps_model_info){
        .name = hp->name,
        .arch = hparams_arch_name(hp->arch),
        .n_vocab = hp->n_vocab,
        .n_ctx = hp->n_ctx,
        .n_layers = hp->n_layers,
        .n_experts = hp->n_experts,
        .n_used = hp->n_used,
        .n_params = hp->n_params,
        .chat_template = m->chat_template.at,
        .chat_template_len = m->chat_template.len,
        .bos = m->bos,
        .eos = m->eos,
    };
    for (u32 i = 0; i < m->file.n_files; i++)
        info->file_bytes += m->file.files[i].bytes;
}

int ps_encode(const struct ps_model *m, const char *text, size_t len, bool parse_special, bool add_bos, uint32_t **ids,
              size_t *n, struct ps_error *error)
{
    struct token_ids out = {0};
    unsigned flags = (parse_special ? TOKEN_PARSE_SPECIAL : 0) | (add_bos ? TOKEN_ADD_BOS : 0);
    if (token_encode(m->token, text, len, flags, &out, as_err(error))) {
        token_ids_free(&out);
        return -1;
    }
    *ids = out.ids;
    *n = out.n;
    return 0;
}

bool ps_is_end(const struct ps_model *m, uint32_t id)
{
    return token_is_end(m->token, id);
}

/* ---- decoder ---- */

struct ps_decoder {
    const struct ps_model *model;
    struct token_stream stream;
    size_t cap;
    char buf[];
};

struct ps_decoder *ps_decoder_open(const struct ps_model *m, bool keep_special)
{
    size_t cap = 3 * (token_max_bytes(m->token) + 4) + 16;
    struct ps_decoder *d = mem_array(1, sizeof *d + cap);
    if (d) {
        d->model = m;
        d->stream.keep_special = keep_special;
        d->cap = cap;
    }
    return d;
}

const char *ps_decoder_push(struct ps_decoder *d, uint32_t id, size_t *len)
{
    *len = token_stream_push(d->model->token, &d->stream, id, d->buf, d->cap);
    return d->buf;
}

const char *ps_decoder_end(struct ps_decoder *d, size_t *len)
{
    *len = token_stream_end(&d->stream, d->buf, d->cap);
    return d->buf;
}

void ps_decoder_close(struct ps_decoder *d)
{
    free(d);
}

/* ---- engine ---- */

enum {
    DEFAULT_SLOTS = 4,
    DEFAULT_QUEUE = 64,
    MAX_SLOTS = 1024
};

static int find_ends(struct ps_engine *e, struct err *err)
{
    u32 n = 0;
    for (u32 i = 0; i < e->plan.hp.n_vocab; i++)
        n += token_is_end(e->model->token, i);
    e->end_ids = mem_array(n, sizeof *e->end_ids);
    if (!e->end_ids)
        return err_set(err, "out of memory");
    for (u32 i = 0; i < e->plan.hp.n_vocab; i++)
        if (token_is_end(e->model->token, i))
            e->end_ids[e->n_end_ids++] = i;
    return 0;
}

/* Where the device's memory is: *own, of its own. *bytes: free there, 0: not known. */
static int free_memory(const char *device, u64 *bytes, bool *own, struct err *err)
{
    if (device_memory(device, bytes, err))
        return -1;
    *own = *bytes > 0;
    if (!*own)
        *bytes = sysmem_available();
    return 0;
}

static int read_options(struct ps_engine *e, const struct ps_engine_options *o, struct device_opts *d, struct err *err)
{
    bool own;
    e->n_slots = o->n_slots ? o->n_slots : DEFAULT_SLOTS;
    e->n_queue = o->n_queue ? o->n_queue : DEFAULT_QUEUE;
    e->serialize = o->serialize;
    if (device_chunk(o->device, &e->chunk, err) || free_memory(o->device, &e->opened_bytes, &own, err))
        return -1;
    snprintf(e->device_name, sizeof e->device_name, "%s", o->device ? o->device : "cpu");
    e->chunk = o->chunk ? o->chunk : e->chunk;
    if (o->isa && strcmp(e->device_name, "cpu"))
        return err_set(err, "--isa is for the cpu: --device %s has its own", e->device_name);
    if (e->n_slots > MAX_SLOTS)
        return err_set(err, "--slots %u: expected at most %d", e->n_slots, MAX_SLOTS);
    if (e->chunk > 65536)
        return err_set(err, "chunk %u: expected at most 65536", e->chunk);
    bool q8 = o->kv && !strcmp(o->kv, "q8_0");
    if (o->kv && !q8 && strcmp(o->kv, "f16"))
        return err_set(err, "--kv: expected f16 or q8_0");
    strcpy(e->kv_name, q8 ? "q8_0" : "f16");
    struct budget budget = {.plan = &e->plan, .kv = q8 ? KV_Q8_0 : KV_F16, .n_slots = e->n_slots,
                            .chunk = e->chunk, .available = e->opened_bytes, .own = own, .device = o->device};
    e->n_ctx = budget_ctx(&budget, o->n_ctx, err);
    if (!e->n_ctx)
        return -1;
    *d = (struct device_opts){
        .name = o->device,
        .isa = o->isa,
        .n_threads = o->n_threads,
        .n_slots = e->n_slots,
        .n_ctx = e->n_ctx,
        .kv = budget.kv,
        .max_rows = e->n_slots + e->chunk,
        .max_logits = e->n_slots,
        .no_setup_cache = o->no_setup_cache,
        .experts_per_row = o->experts_per_row,
        .tell = o->progress.tell,
        .tell_arg = o->progress.arg,
    };
    return 0;
}

struct ps_engine *ps_engine_open(const struct ps_model *m, const struct ps_engine_options *o, struct ps_error *error)
{
    static const struct ps_engine_options defaults;
    struct err *err = as_err(error);
    struct device_opts d;
    struct ps_engine *e = mem_array(1, sizeof *e);
    if (!e) {
        err_set(err, "out of memory");
        return NULL;
    }
    e->model = m;
    e->queue_end = &e->queue;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    if (plan_build(&e->plan, &m->weights, err) || read_options(e, o ? o : &defaults, &d, err) || find_ends(e, err) ||
        kv_open(&e->kv, e->n_slots, e->n_ctx, err) || pace_open(&e->pace, e->n_slots, e->chunk, err))
        goto fail;
    e->rows = mem_array(d.max_rows, sizeof *e->rows);
    e->step = mem_array(e->n_slots, sizeof *e->step);
    e->choosing = mem_array(e->n_slots, sizeof *e->choosing);
    e->slot_tag = mem_array(e->n_slots, sizeof *e->slot_tag);
    if (!e->rows || !e->step || !e->choosing || !e->slot_tag) {
        err_set(err, "out of memory");
        goto fail;
    }
    if (device_open(&e->device, &e->plan, &d, err))
        goto fail;
    device_stats(e->device, &e->stats);
    if (thread_start(&e->thread, sched_main, e)) {
        err_set(err, "cannot start the engine's thread");
        goto fail;
    }
    e->thread_runs = true;
    return e;
fail:
    ps_engine_close(e);
    return NULL;
}

void ps_engine_close(struct ps_engine *e)
{
    if (!e)
        return;
    if (e->thread_runs) {
        pthread_mutex_lock(&e->lock);
        e->quit = true;
        pthread_cond_signal(&e->work);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    device_close(e->device);
    kv_close(e->kv);
    pace_close(&e->pace);
    plan_close(&e->plan);
    free(e->end_ids);
    free(e->rows);
    free(e->step);
    free(e->choosing);
    free(e->slot_tag);
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

struct device *engine_borrow(struct ps_engine *e)
{
    pthread_mutex_lock(&e->lock);
    while (e->active || e->queue) {
        pthread_mutex_unlock(&e->lock);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pthread_mutex_lock(&e->lock);
    }
    for (u32 i = 0; i < e->n_slots; i++)
        kv_cut(e->kv, i, 0);
    return e->device; /* the lock stays held: the engine's thread waits for work without it */
}

void engine_hold(struct ps_engine *e, bool hold)
{
    pthread_mutex_lock(&e->lock);
    e->held = hold;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
}

void engine_give_back(struct ps_engine *e)
{
    device_stats(e->device, &e->stats);
    pthread_mutex_unlock(&e->lock);
}

void engine_stats(const struct ps_engine *e, struct ps_stats *s)
{
    const struct device_stats *d = &e->stats;
    *s = (struct ps_stats){
        .steps = e->steps,
        .submissions = d->submissions,
        .waits = d->waits,
        .rows = d->rows,
        .prompt_rows = e->prompt_rows,
        .logit_rows = d->logit_rows,
        .expert_groups = d->expert_groups,
        .bytes_read = d->bytes_read,
        .setups = d->setups,
        .copied = d->copied,
        .setup_bytes = d->setup_bytes,
        .n_active = e->n_active,
        .n_queued = e->n_queued,
        .turn_s = e->turn_began > 0 ? time_now() - e->turn_began : 0,
        .setup_s = d->setup_s,
        .submit_s = d->submit_s,
        .wait_s = d->wait_s,
        .tail_s = e->tail_s,
        .n_slots = e->n_slots,
        .n_ctx = e->n_ctx,
        .n_threads = d->n_threads,
        .weight_bytes = d->weight_bytes,
        .kv_bytes = d->kv_bytes,
        .scratch_bytes = d->scratch_bytes,
        .load_s = d->load_s,
        .peak_gb_s = d->peak_gb_s,
        .device = d->name,
        .isa = d->isa,
        .kv = e->kv_name,
        .warning = d->warning,
        .broken = d->broken,
    };
}

void ps_engine_stats(struct ps_engine *e, struct ps_stats *s)
{
    pthread_mutex_lock(&e->lock);
    engine_stats(e, s);
    pthread_mutex_unlock(&e->lock);
}

void ps_engine_cost(struct ps_engine *e, struct ps_cost *c)
{
    struct device_stats now, *d = &now;
    pthread_mutex_lock(&e->lock);
    now = e->stats;
    pthread_mutex_unlock(&e->lock);
    bool q8 = !strcmp(e->kv_name, "q8_0"), own;
    u64 left;
    if (free_memory(e->device_name, &left, &own, NULL))
        left = 0;
    *c = (struct ps_cost){
        .weights = d->weight_bytes,
        .kv = d->kv_bytes,
        .setup = d->setup_bytes,
        .scratch = d->scratch_bytes,
        .total = d->weight_bytes + d->kv_bytes + d->setup_bytes + d->scratch_bytes,
        .position_bytes = plan_kv_bytes(&e->plan, q8 ? KV_Q8_0 : KV_F16),
        .n_slots = e->n_slots,
        .n_ctx = e->n_ctx,
        .opened_bytes = e->opened_bytes,
        .free_bytes = left,
    };
    c->n_others = sysmem_others(&c->other_pid, &c->other_bytes, NULL);
}

u32 ps_engine_slots(struct ps_engine *e, struct ps_slot *slots, u32 n)
{
    pthread_mutex_lock(&e->lock);
    n = min_u32(n, e->n_slots);
    for (u32 i = 0; i < n; i++)
        slots[i] = (struct ps_slot){.state = PS_SLOT_FREE, .tag = e->slot_tag[i], .n_kept = kv_length(e->kv, i)};
    for (const struct ps_stream *s = e->active; s; s = s->next) {
        if (s->slot < 0 || (u32)s->slot >= n)
            continue;
        struct ps_slot *slot = &slots[s->slot];
        slot->state = s->phase == PHASE_DECODE ? PS_SLOT_DECODE : PS_SLOT_PROMPT;
        slot->n_prompt = s->n_prompt;
        slot->n_cached = s->n_cached;
        slot->n_generated = s->n_generated;
        slot->started_s = s->started;
        slot->first_s = s->first;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}
