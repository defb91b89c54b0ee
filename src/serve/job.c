/* A request for tokens in work. See job.h. */
#include "serve/job.h"
#include "serve/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- places ---- */

static u32 places(const struct server *s)
{
    return s->n_slots + s->o.queue;
}

bool job_may_enter(struct server *s)
{
    return atomic_load(&s->n_jobs) < places(s);
}

bool job_enter(struct server *s)
{
    if (atomic_fetch_add(&s->n_jobs, 1) < places(s))
        return true;
    atomic_fetch_sub(&s->n_jobs, 1);
    return false;
}

void job_leave(struct server *s)
{
    atomic_fetch_sub(&s->n_jobs, 1);
}

void job_give_back(struct job *j)
{
    struct server *s = j->server;
    if (j->given)
        return;
    j->given = true;
    atomic_fetch_add(&s->n_ending, 1); /* before job_leave: who drains sees the one or the other */
    atomic_fetch_sub(&s->job_tokens, j->tokens);
    j->tokens = 0;
    if (j->key)
        keys_stop(s->keys, j->key);
    job_leave(s);
}

/* ---- making one ---- */

static int too_long(const struct server *s, struct api_error *e, const char *param, const char *fmt, u64 a, u64 b)
{
    char line[160];
    snprintf(line, sizeof line, fmt, (unsigned long long)a, (unsigned long long)b);
    return api_error_set(e, 400, "invalid_request_error", "context_length_exceeded", param,
                         "this model's context holds %u tokens: %s", s->n_ctx, line);
}

/* What is too long by its length alone is refused before it is read into tokens. A JSON escape is at most 6 bytes a character,
 * so a sixth of the text is there at least. */
static int check_length(const struct server *s, const struct request *r, struct api_error *e)
{
    size_t longest = token_max_bytes(s->model->token);
    if (r->max_tokens >= s->n_ctx)
        return too_long(s, e, "max_tokens", "%llu to generate leave no room for a prompt", r->max_tokens, 0);
    if (r->messages_json && strlen(r->messages_json) / 6 / longest > s->n_ctx)
        return too_long(s, e, "messages", "the conversation's %llu bytes are more than that", strlen(r->messages_json), 0);
    for (u32 i = 0; i < r->n_prompts; i++) {
        const struct request_prompt *p = &r->prompts[i];
        if (p->ids ? p->n_ids >= s->n_ctx : p->len / longest > s->n_ctx)
            return too_long(s, e, "prompt", p->ids ? "the prompt has %llu tokens" : "the prompt's %llu bytes are more than that",
                            p->ids ? p->n_ids : p->len, 0);
    }
    return 0;
}

static int add_ids(const struct server *s, const struct request_prompt *p, struct token_ids *out, struct api_error *e)
{
    struct err err;
    u32 n_vocab = token_count(s->model->token);
    if (!p->ids)
        return token_encode(s->model->token, p->text, p->len, TOKEN_ADD_BOS | TOKEN_PARSE_SPECIAL, out, &err)
                   ? api_error_bad(e, "prompt", "%s", err.text) : 0;
    for (size_t i = 0; i < p->n_ids; i++)
        if (p->ids[i] >= n_vocab)
            return api_error_bad(e, "prompt", "token %zu is %u: this model has tokens 0 to %u", i, p->ids[i], n_vocab - 1);
    out->ids = mem_array(p->n_ids, sizeof *out->ids);
    if (!out->ids)
        return api_error_memory(e);
    memcpy(out->ids, p->ids, p->n_ids * sizeof *out->ids);
    out->n = out->cap = p->n_ids;
    return 0;
}

static int make_prompts(struct job *j, u64 *tokens, struct api_error *e)
{
    struct server *s = j->server;
    struct err err;
    j->n_prompts = j->r.messages_json ? 1 : j->r.n_prompts;
    j->prompts = mem_array(j->n_prompts, sizeof *j->prompts);
    if (!j->prompts)
        return api_error_memory(e);
    if (j->r.messages_json) {
        if (!s->prompt)
            return api_error_bad(e, NULL, "this model has no chat template: use /v1/completions");
        if (prompt_build(s->prompt, j->r.messages_json, j->r.tools_json, j->r.kwargs_json, j->r.add_generation_prompt,
                         &j->prompts[0], &err))
            return api_error_bad(e, "messages", "%.200s", err.text);
    }
    for (u32 i = 0; !j->r.messages_json && i < j->n_prompts; i++)
        if (add_ids(s, &j->r.prompts[i], &j->prompts[i], e))
            return -1;
    for (u32 i = 0; i < j->n_prompts; i++) {
        const char *param = j->r.messages_json ? "messages" : "prompt";
        u64 n = j->prompts[i].n;
        if (n == 0)
            return api_error_bad(e, param, "the prompt is empty: expected at least one token");
        if (n + (j->r.max_tokens ? j->r.max_tokens : 1) > s->n_ctx)
            return too_long(s, e, param, "the prompt has %llu and the answer may have %llu", n, j->r.max_tokens);
        *tokens += (n + (j->r.max_tokens ? j->r.max_tokens : s->n_ctx - n)) * j->r.n;
    }
    return 0;
}

static int check_bias(struct job *j, struct api_error *e)
{
    u32 n_vocab = token_count(j->server->model->token);
    for (u32 i = 0; i < j->r.n_bias; i++)
        if (j->r.bias[i].id >= n_vocab)
            return api_error_bad(e, "logit_bias", "token %u: this model has tokens 0 to %u", j->r.bias[i].id, n_vocab - 1);
    return 0;
}

/* Requests in work may hold so many tokens; one alone always may. j->tokens is what was taken here and nothing else: job_free
 * gives it back. */
static int count_tokens(struct job *j, u64 tokens, struct api_error *e)
{
    struct server *s = j->server;
    u64 before = atomic_fetch_add(&s->job_tokens, tokens);
    if (before == 0 || before + tokens <= s->queue_tokens) {
        j->tokens = tokens;
        return 0;
    }
    atomic_fetch_sub(&s->job_tokens, tokens);
    return api_error_set(e, 429, "rate_limit_error", "queue_tokens_full", NULL,
                         "%llu tokens are in work and this request may need %llu more, of %llu: try again later",
                         (unsigned long long)before, (unsigned long long)tokens, (unsigned long long)s->queue_tokens);
}

static enum shape_api api_of(enum endpoint endpoint)
{
    return endpoint == ENDPOINT_COMPLETIONS ? SHAPE_COMPLETIONS
           : endpoint == ENDPOINT_RESPONSES ? SHAPE_RESPONSES
           : endpoint == ENDPOINT_MESSAGES  ? SHAPE_MESSAGES
                                            : SHAPE_CHAT;
}

static void tell(void *arg, const struct answer_event *event)
{
    struct choice *c = arg;
    shape_event(c->job->shape, c->index, event, &c->job->out);
}

static int make_choice(struct job *j, u32 i, bool in_reasoning, struct api_error *e)
{
    struct server *s = j->server;
    struct choice *c = &j->choices[i];
    struct err err;
    bool chat = j->endpoint != ENDPOINT_COMPLETIONS;
    *c = (struct choice){.job = j, .index = i};
    struct answer_options o = {.tokens = s->model->token, .stops = j->r.stops, .tools = j->tools, .request_id = j->id,
                               .split_reasoning = chat && !j->r.keep_reasoning, .in_reasoning = in_reasoning,
                               .parse_calls = chat && j->r.tools_json, .one_call = j->r.one_call, .choice = i, .tell = tell,
                               .arg = c};
    if (answer_open(&c->answer, &o))
        return api_error_memory(e);
    return j->masks && mask_open(&c->mask, j->masks, &err) ? api_error_memory(e) : 0;
}

static int make_shape(struct job *j, struct api_error *e)
{
    struct server *s = j->server;
    u32 n_prompt = 0;
    for (u32 i = 0; i < j->n_prompts; i++)
        n_prompt += (u32)j->prompts[i].n;
    struct shape_head head = {.api = api_of(j->endpoint), .stream = j->r.stream, .include_usage = j->r.include_usage,
                              .logprobs = j->r.logprobs, .id = j->id, .model = j->r.model ? j->r.model : s->name,
                              .fingerprint = s->fingerprint, .created = (u64)time(NULL), .seed = j->seed,
                              .n_choices = j->n_choices, .n_prompt = n_prompt, .echo_json = j->r.echo_json,
                              .tokens = s->model->token};
    return shape_open(&j->shape, &head) ? api_error_memory(e) : 0;
}

static u64 mix(u64 x) /* splitmix64's last step (Steele, Lea, Flood 2014) */
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

static void name_job(struct job *j)
{
    struct server *s = j->server;
    u64 n = atomic_fetch_add(&s->n_named, 1) + 1;
    snprintf(j->id, sizeof j->id, "%016llx%08llx", (unsigned long long)mix(s->id_key + n), (unsigned long long)(n & 0xFFFFFFFF));
    j->seed = j->r.has_seed ? j->r.seed : mix(s->id_key ^ mix(n)) >> 11; /* below 2^53: JavaScript can say it again */
}

int job_make(struct job **out, struct server *s, struct http_exchange *x, struct key *key, struct request *r,
             struct api_error *e)
{
    struct job *j = mem_array(1, sizeof *j);
    if (!j)
        return api_error_memory(e);
    u64 tokens = 0;
    j->server = s;
    j->endpoint = r->endpoint;
    j->r = *r;
    *r = (struct request){0};
    name_job(j);
    if (check_length(s, &j->r, e) || check_bias(j, e) || make_prompts(j, &tokens, e) || count_tokens(j, tokens, e))
        goto fail;
    j->n_choices = j->n_prompts * j->r.n;
    j->choices = mem_array(j->n_choices, sizeof *j->choices);
    if (!j->choices || (j->r.tools_json && calls_tools_open(&j->tools, j->r.tools_json))) {
        api_error_memory(e);
        goto fail;
    }
    bool in_reasoning = j->r.messages_json && answer_in_reasoning(s->model->token, j->prompts[0].ids, j->prompts[0].n);
    if (grammars_get(s->grammars, &j->r, in_reasoning, &j->masks, e) || make_shape(j, e))
        goto fail;
    for (u32 i = 0; i < j->n_choices; i++)
        if (make_choice(j, i, in_reasoning, e))
            goto fail;
    j->x = x;
    j->key = key;
    *out = j;
    return 0;
fail:
    job_free(j);
    return -1;
}

void job_free(struct job *j)
{
    if (!j)
        return;
    for (u32 i = 0; j->choices && i < j->n_choices; i++) {
        ps_stream_close(j->choices[i].stream);
        answer_close(j->choices[i].answer);
        mask_close(j->choices[i].mask);
    }
    for (u32 i = 0; j->prompts && i < j->n_prompts; i++)
        token_ids_free(&j->prompts[i]);
    atomic_fetch_sub(&j->server->job_tokens, j->tokens);
    shape_close(j->shape);
    masks_close(j->masks);
    calls_tools_close(j->tools);
    bytes_free(&j->out);
    free(j->choices);
    free(j->prompts);
    request_free(&j->r);
    free(j);
}

/* ---- running ---- */

static void note(void *job)
{
    struct job *j = job;
    pump_note(j->server->pump, j);
}

static void mask_done(void *mask)
{
    mask_close(mask);
}

/* A broken device answers 503: another server, or this one started anew, may do it. */
static int stream_failed(struct api_error *e, const struct ps_error *err)
{
    bool broken = err->kind == PS_BROKEN;
    return api_error_set(e, broken ? 503 : 500, "server_error", broken ? "device_broken" : NULL, NULL, "%.200s", err->text);
}

int job_open_stream(struct job *j, u32 i, struct api_error *e)
{
    struct choice *c = &j->choices[i];
    const struct token_ids *ids = &j->prompts[i / j->r.n];
    struct ps_error err;
    struct ps_bias bias[REQUEST_MAX_BIAS];
    for (u32 b = 0; b < j->r.n_bias; b++)
        bias[b] = (struct ps_bias){j->r.bias[b].id, j->r.bias[b].add};
    struct ps_request r = {
        .ids = ids->ids, .n_ids = ids->n, .max_tokens = j->r.max_tokens, .choice = i % j->r.n,
        .sampling = {.temperature = j->r.temperature, .top_k = j->r.top_k, .top_p = j->r.top_p, .min_p = j->r.min_p,
                     .repeat_penalty = j->r.repeat_penalty, .repeat_last_n = j->r.repeat_last_n,
                     .presence_penalty = j->r.presence_penalty, .frequency_penalty = j->r.frequency_penalty,
                     .seed = j->seed, .bias = bias, .n_bias = j->r.n_bias},
        .ignore_end = j->r.ignore_end, .want_logprobs = j->r.logprobs, .n_top = j->r.top_logprobs,
        .domain = j->key ? keys_domain(j->key) : 0, .notify = note, .notify_arg = j, .tag = http_id(j->x)};
    if (c->mask)
        r.mask = (struct ps_mask){c->mask, mask_allowed, mask_took, mask_done};
    c->stream = ps_stream_open(j->server->engine, &r, &err);
    if (c->stream) {
        c->mask = NULL; /* the engine's now: a step in progress may ask it after the stream is closed */
        return 0;
    }
    if (err.kind == PS_BUSY)
        return api_error_set(e, 429, "rate_limit_error", "queue_full", NULL, "%.200s", err.text);
    if (err.kind == PS_TOO_LONG)
        return api_error_set(e, 400, "invalid_request_error", "context_length_exceeded", NULL, "%.200s", err.text);
    if (err.kind == PS_INVALID)
        return api_error_bad(e, NULL, "%.200s", err.text);
    return stream_failed(e, &err);
}

static void fail(struct job *j, const struct api_error *e)
{
    if (j->failed)
        return;
    j->failed = true;
    if (j->r.stream && j->n_open)
        shape_fail(j->shape, e, &j->out);
    else
        routes_refuse(j->server, j->x, j->endpoint, e);
}

/* The choice has all it will have. */
static void finish(struct choice *c, bool length)
{
    struct metrics *m = c->job->server->metrics;
    ps_stream_info(c->stream, &c->info);
    ps_stream_close(c->stream);
    c->stream = NULL;
    c->over = true;
    c->job->n_over++;
    answer_end(c->answer, length);
    metrics_count(m, METRIC_GENERATED_TOKENS, c->info.n_generated);
    metrics_count(m, METRIC_CACHED_TOKENS, c->info.n_cached);
    metrics_count(m, METRIC_PROMPT_TOKENS, c->info.n_prompt);
}

static void take(struct choice *c, const struct ps_token *t)
{
    struct job *j = c->job;
    struct server *s = j->server;
    j->n_tokens++;
    if (c->last > 0) {
        j->batch_rows += t->batch_rows; /* of decode steps: the first token's was one that read a prompt */
        j->n_decoded++;
        metrics_time(s->metrics, METRIC_BETWEEN, t->time - c->last);
    } else if (j->n_tokens == 1) {
        struct ps_stream_info info;
        ps_stream_info(c->stream, &info);
        metrics_time(s->metrics, METRIC_FIRST_TOKEN, t->time - http_began(j->x));
        metrics_time(s->metrics, METRIC_QUEUE, info.queue_s);
    }
    c->last = t->time;
    if (j->r.logprobs) {
        struct shape_top top[REQUEST_MAX_TOP_LOGPROBS];
        u32 n = t->top ? j->r.top_logprobs : 0;
        for (u32 i = 0; i < n; i++)
            top[i] = (struct shape_top){t->top[i].id, t->top[i].logprob};
        shape_token(j->shape, c->index, &(struct shape_token){t->id, t->logprob, top, n});
    }
}

/* Reads what the choice's stream has. */
static void read_choice(struct choice *c)
{
    struct ps_token t;
    struct ps_error err = {.text = ""};
    int rc;
    while ((rc = ps_stream_poll(c->stream, &t, &err)) == 1) {
        take(c, &t);
        if (!answer_push(c->answer, t.id)) {
            finish(c, false);
            return;
        }
    }
    if (rc == 2)
        return;
    if (rc == 0) {
        struct ps_stream_info info;
        ps_stream_info(c->stream, &info);
        if (info.end == PS_END_STOP || info.end == PS_END_LENGTH) {
            finish(c, info.end == PS_END_LENGTH);
            return;
        }
        snprintf(err.text, sizeof err.text, info.end == PS_END_DEADLINE ? "the request took too long" : "the server is stopping");
    }
    struct api_error e;
    if (rc)
        stream_failed(&e, &err);
    else
        api_error_set(&e, 503, "server_error", NULL, NULL, "%.200s", err.text);
    fail(c->job, &e);
}

/* Choices of one prompt share it: the first reads it, the others start when it has a token and copy what it left. */
static void open_due(struct job *j)
{
    struct api_error e;
    for (u32 i = 0; i < j->n_choices && !j->failed; i++) {
        struct choice *c = &j->choices[i], *first = &j->choices[i / j->r.n * j->r.n];
        if (c->stream || c->over || (c != first && !(first->last > 0) && !first->over))
            continue;
        if (job_open_stream(j, i, &e)) {
            if (!j->n_open)
                job_give_back(j);
            if (j->n_open)
                fail(j, &e); /* after the first byte */
            else
                routes_refuse(j->server, j->x, j->endpoint, &e);
            j->failed = true;
            return;
        }
        if (j->n_open++ == 0 && j->r.stream) {
            http_begin(j->x, 200, "text/event-stream");
            shape_begin(j->shape, &j->out);
        } else if (j->n_open == 1) {
            shape_begin(j->shape, &j->out);
        }
    }
}

static void send_out(struct job *j, bool end)
{
    if (end && !j->failed) /* a failed one has streams yet: the pump closes them first */
        job_give_back(j);
    if (j->r.stream && j->n_open) {
        if (j->out.len) {
            http_write(j->x, j->out.at, j->out.len);
            bytes_clear(&j->out);
            j->sent = time_now();
        }
        if (end)
            http_end(j->x);
    } else if (end && !j->failed) {
        http_reply(j->x, 200, "application/json", &j->out);
    }
}

static void say_done(struct job *j)
{
    struct shape_usage u = {0};
    for (u32 i = 0; i < j->n_choices; i++) {
        const struct ps_stream_info *info = &j->choices[i].info;
        if (i % j->r.n == 0) { /* a prompt counts once, as clients expect */
            u.n_prompt += info->n_prompt;
            u.n_cached += info->n_cached;
        }
        u.n_generated += info->n_generated;
        u.n_reasoning += answer_reasoning_tokens(j->choices[i].answer);
        u.queue_ms = info->queue_s * 1e3 > u.queue_ms ? info->queue_s * 1e3 : u.queue_ms;
        u.prompt_ms = info->prompt_s * 1e3 > u.prompt_ms ? info->prompt_s * 1e3 : u.prompt_ms;
        u.decode_ms = info->decode_s * 1e3 > u.decode_ms ? info->decode_s * 1e3 : u.decode_ms;
    }
    u.batch_width = j->n_decoded ? (double)j->batch_rows / (double)j->n_decoded : 1;
    shape_done(j->shape, &u, &j->out);
}

bool job_turn(struct job *j)
{
    if (atomic_load(&j->gone)) {
        metrics_count(j->server->metrics, METRIC_CANCELLED, 1);
        return true; /* job_free cancels the streams */
    }
    open_due(j);
    for (u32 i = 0; i < j->n_choices && !j->failed; i++)
        if (j->choices[i].stream)
            read_choice(&j->choices[i]);
    open_due(j);
    bool over = j->failed || j->n_over == j->n_choices;
    if (over && !j->failed)
        say_done(j);
    if (!j->failed && (shape_failed(j->shape) || j->out.failed)) {
        struct api_error e;
        api_error_memory(&e);
        fail(j, &e);
        over = true;
    }
    send_out(j, over);
    return over;
}

void job_stop(struct job *j)
{
    struct api_error e;
    api_error_set(&e, 503, "server_error", "draining", NULL, "the server is stopping");
    fail(j, &e);
    send_out(j, true);
}

void job_ping(struct job *j, double now)
{
    if (!j->r.stream || !j->n_open || now - j->sent < j->server->o.ping_s)
        return;
    shape_ping(j->shape, &j->out);
    send_out(j, false);
    j->sent = now;
}
