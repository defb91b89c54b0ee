/* Two threads between HTTP and the pump: they read bodies, render templates, make tokens, and answer the endpoints that
 * need nothing more. What waits here is bounded: by the places of requests in work, and by INTAKE_MOST. */
#include "base/thread.h"
#include "serve/server.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__GLIBC__)
#include <malloc.h>
#elif defined(__APPLE__)
#include <malloc/malloc.h>
#endif

enum { INTAKE_MOST = 1024, N_THREADS = 2 };

struct asked {
    struct asked *next;
    struct http_exchange *x;
    struct key *key;
    enum endpoint endpoint;
};

struct intake {
    struct server *server;
    pthread_t threads[N_THREADS];
    u32 n_threads;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct asked *first, **end; /* under lock */
    u32 n;
    bool quit;
};

static bool makes_tokens(enum endpoint endpoint)
{
    return endpoint <= ENDPOINT_MESSAGES;
}

static void leave(struct server *s, struct asked *a)
{
    if (makes_tokens(a->endpoint)) {
        if (a->key)
            keys_stop(s->keys, a->key);
        job_leave(s);
    }
}

static void give_back(struct server *s, struct asked *a)
{
    keys_give(s->keys, a->key);
    http_release(a->x);
}

/* ---- endpoints without a job ---- */

static void put_ids(struct bytes *out, const struct token_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++) {
        bytes_str(out, i ? "," : "");
        bytes_u64(out, ids->ids[i]);
    }
}

static bool is_utf8(const char *text, size_t len)
{
    json_t *t = json_stringn(text, len);
    json_decref(t);
    return t != NULL;
}

/* llama-server's form: a piece that is no text by itself is the list of its bytes. */
static void put_pieces(struct server *s, struct bytes *out, const struct token_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++) {
        size_t len;
        const char *at = token_bytes(s->model->token, ids->ids[i], true, &len);
        bytes_str(out, i ? ",{\"id\":" : "{\"id\":");
        bytes_u64(out, ids->ids[i]);
        bytes_str(out, ",\"piece\":");
        if (is_utf8(at, len)) {
            bytes_json(out, at, len);
        } else {
            for (size_t b = 0; b < len; b++) {
                bytes_str(out, b ? "," : "[");
                bytes_u64(out, (u8)at[b]);
            }
            bytes_str(out, "]");
        }
        bytes_str(out, "}");
    }
}

static int tokenize(struct server *s, const struct request *r, struct bytes *out, struct api_error *e)
{
    struct token_ids ids = {0};
    struct err err;
    unsigned flags = (r->parse_special ? TOKEN_PARSE_SPECIAL : 0) | (r->add_special ? TOKEN_ADD_BOS : 0);
    if (token_encode(s->model->token, r->prompts[0].text, r->prompts[0].len, flags, &ids, &err))
        return api_error_bad(e, "content", "%s", err.text);
    bytes_str(out, "{\"tokens\":[");
    if (r->with_pieces)
        put_pieces(s, out, &ids);
    else
        put_ids(out, &ids);
    bytes_str(out, "]}");
    token_ids_free(&ids);
    return 0;
}

static int detokenize(struct server *s, const struct request *r, struct bytes *out, struct api_error *e)
{
    struct token_stream stream = {.keep_special = true};
    size_t room = 3 * (token_max_bytes(s->model->token) + 4), n;
    u32 n_vocab = token_count(s->model->token);
    char *buf = malloc(room);
    struct bytes text = {0};
    if (!buf)
        return api_error_memory(e);
    for (size_t i = 0; i < r->prompts[0].n_ids; i++) {
        if (r->prompts[0].ids[i] >= n_vocab) {
            free(buf);
            bytes_free(&text);
            return api_error_bad(e, "tokens", "token %zu is %u: this model has tokens 0 to %u", i, r->prompts[0].ids[i], n_vocab - 1);
        }
        n = token_stream_push(s->model->token, &stream, r->prompts[0].ids[i], buf, room);
        bytes_put(&text, buf, n);
    }
    n = token_stream_end(&stream, buf, room);
    bytes_put(&text, buf, n);
    bytes_str(out, "{\"content\":");
    bytes_json(out, text.at ? text.at : "", text.len);
    bytes_str(out, "}");
    free(buf);
    bytes_free(&text);
    return 0;
}

static int render(struct server *s, const struct request *r, struct bytes *out, struct api_error *e)
{
    struct err err;
    if (!s->prompt)
        return api_error_bad(e, NULL, "this model has no chat template");
    if (r->endpoint == ENDPOINT_COUNT_TOKENS) {
        struct token_ids ids = {0};
        if (prompt_build(s->prompt, r->messages_json, r->tools_json, r->kwargs_json, r->add_generation_prompt, &ids, &err))
            return api_error_bad(e, "messages", "%.200s", err.text);
        bytes_str(out, "{\"input_tokens\":");
        bytes_u64(out, ids.n);
        bytes_str(out, "}");
        token_ids_free(&ids);
        return 0;
    }
    struct template_text text;
    if (template_render(s->tmpl, r->messages_json, r->tools_json, r->kwargs_json, r->add_generation_prompt, &text, &err))
        return api_error_bad(e, "messages", "%.200s", err.text);
    bytes_str(out, "{\"prompt\":");
    bytes_json(out, text.text, text.len);
    bytes_str(out, "}");
    free(text.text);
    return 0;
}

static void answer_now(struct server *s, struct asked *a, const struct request *r)
{
    struct bytes out = {0};
    struct api_error e;
    int rc = a->endpoint == ENDPOINT_TOKENIZE     ? tokenize(s, r, &out, &e)
             : a->endpoint == ENDPOINT_DETOKENIZE ? detokenize(s, r, &out, &e)
                                                  : render(s, r, &out, &e);
    if (rc) {
        bytes_free(&out);
        routes_refuse(s, a->x, a->endpoint, &e);
    } else {
        http_reply(a->x, 200, "application/json", &out);
    }
    give_back(s, a);
}

/* ---- requests for tokens ---- */

/* Here the pump never sees it: its line in the log is the HTTP thread's again. */
static void refuse(struct server *s, struct asked *a, const struct api_error *e)
{
    http_mark(a->x, 0);
    leave(s, a); /* before the answer: who has it may ask again at once */
    routes_refuse(s, a->x, a->endpoint, e);
    give_back(s, a);
}

static bool model_known(const struct server *s, const struct request *r)
{
    return !s->o.strict_model || !r->model || strcmp(r->model, s->name) == 0;
}

static void take_in(struct server *s, struct asked *a)
{
    struct request r = {0};
    struct api_error e;
    struct job *j;
    size_t len;
    const char *body = http_body(a->x, &len);
    if (http_gone(a->x)) {
        leave(s, a);
        give_back(s, a);
        return;
    }
    if (request_parse(&r, a->endpoint, body, len, &e)) {
        refuse(s, a, &e);
        return;
    }
    if (!model_known(s, &r)) {
        api_error_set(&e, 404, "invalid_request_error", "model_not_found", "model", "there is no such model here: this server has \"%.100s\"",
                      s->name);
        refuse(s, a, &e);
    } else if (!makes_tokens(a->endpoint)) {
        answer_now(s, a, &r);
    } else if (job_make(&j, s, a->x, a->key, &r, &e)) {
        refuse(s, a, &e);
    } else {
        pump_start(s->pump, j);
    }
    request_free(&r);
}

/* The JSON of a large body is tens of times its bytes in small pieces, which malloc would keep for good. */
static void give_memory_back(size_t body)
{
    if (body < 1 << 20)
        return;
#if defined(__GLIBC__)
    malloc_trim(0);
#elif defined(__APPLE__)
    malloc_zone_pressure_relief(NULL, 0); /* every zone, as much as it can */
#endif
}

static void *intake_main(void *arg)
{
    struct intake *in = arg;
    pthread_mutex_lock(&in->lock);
    for (;;) {
        struct asked *a = in->first;
        if (!a && in->quit)
            break;
        if (!a) {
            pthread_cond_wait(&in->work, &in->lock);
            continue;
        }
        in->first = a->next;
        if (!in->first)
            in->end = &in->first;
        in->n--;
        pthread_mutex_unlock(&in->lock);
        size_t len;
        http_body(a->x, &len);
        take_in(in->server, a);
        give_memory_back(len);
        free(a);
        pthread_mutex_lock(&in->lock);
    }
    pthread_mutex_unlock(&in->lock);
    return NULL;
}

bool intake_push(struct intake *in, struct http_exchange *x, struct key *key, enum endpoint endpoint)
{
    struct asked *a = mem_array(1, sizeof *a);
    if (!a)
        return false;
    *a = (struct asked){.x = x, .key = key, .endpoint = endpoint};
    pthread_mutex_lock(&in->lock);
    bool room = in->n < INTAKE_MOST && !in->quit;
    if (room) {
        *in->end = a;
        in->end = &a->next;
        in->n++;
        pthread_cond_signal(&in->work);
    }
    pthread_mutex_unlock(&in->lock);
    if (!room)
        free(a);
    return room;
}

/* A large body's own bytes go back to the system as they are freed, whoever frees them and when: without this malloc would take the next ones from
 * its heap after the first was freed, and keep them until somebody trims it. */
static void set_large_apart(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

int intake_open(struct intake **out, struct server *s, struct err *err)
{
    struct intake *in = *out = mem_array(1, sizeof *in);
    if (!in)
        return err_set(err, "out of memory");
    set_large_apart();
    in->server = s;
    in->end = &in->first;
    pthread_mutex_init(&in->lock, NULL);
    pthread_cond_init(&in->work, NULL);
    for (; in->n_threads < N_THREADS; in->n_threads++)
        if (thread_start(&in->threads[in->n_threads], intake_main, in))
            return err_set(err, "cannot start a thread");
    return 0;
}

void intake_stop(struct intake *in)
{
    pthread_mutex_lock(&in->lock);
    in->quit = true;
    pthread_cond_broadcast(&in->work);
    pthread_mutex_unlock(&in->lock);
    for (; in->n_threads; in->n_threads--)
        pthread_join(in->threads[in->n_threads - 1], NULL);
}

void intake_close(struct intake *in)
{
    if (!in)
        return;
    intake_stop(in);
    pthread_cond_destroy(&in->work);
    pthread_mutex_destroy(&in->lock);
    free(in);
}
