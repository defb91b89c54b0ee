/* One thread that moves tokens from streams into answers. The engine and clients that leave put notes on its list; it
 * looks at the jobs noted, and once a second at all, for pings. */
#include "base/thread.h"
#include "serve/server.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct pump {
    struct server *server;
    pthread_t thread;
    bool runs;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct job *noted, **noted_end; /* under lock */
    struct job *fresh;              /* under lock: given by pump_start */
    bool quit;
    struct job *jobs;               /* the thread's */
};

/* Under the lock. */
static void put_note(struct pump *p, struct job *j)
{
    if (j->noted)
        return;
    j->noted = true;
    j->next_noted = NULL;
    *p->noted_end = j;
    p->noted_end = &j->next_noted;
    pthread_cond_signal(&p->work);
}

void pump_note(struct pump *p, struct job *j)
{
    pthread_mutex_lock(&p->lock);
    put_note(p, j);
    pthread_mutex_unlock(&p->lock);
}

void pump_start(struct pump *p, struct job *j)
{
    pthread_mutex_lock(&p->lock);
    j->next = p->fresh;
    p->fresh = j;
    put_note(p, j);
    pthread_mutex_unlock(&p->lock);
}

static void gone(void *job)
{
    struct job *j = job;
    atomic_store(&j->gone, true);
    pump_note(j->server->pump, j);
}

static void log_job(struct server *s, struct job *j)
{
    struct log_request line = {.id = http_id(j->x), .method = http_method(j->x), .path = http_path(j->x),
                               .peer = http_peer(j->x), .status = http_status(j->x), .gone = atomic_load(&j->gone),
                               .refusal = j->failed ? "failed" : NULL, .wall_s = time_now() - http_began(j->x),
                               .n_choices = j->n_choices};
    for (u32 i = 0; i < j->n_choices; i++) {
        struct ps_stream_info info = j->choices[i].info;
        if (j->choices[i].stream)
            ps_stream_info(j->choices[i].stream, &info);
        line.n_prompt += i % j->r.n ? 0 : info.n_prompt;
        line.n_cached += i % j->r.n ? 0 : info.n_cached;
        line.n_generated += info.n_generated;
        line.queue_s = info.queue_s > line.queue_s ? info.queue_s : line.queue_s;
        line.prompt_s = info.prompt_s > line.prompt_s ? info.prompt_s : line.prompt_s;
        line.decode_s = info.decode_s > line.decode_s ? info.decode_s : line.decode_s;
    }
    log_request(s->log, &line);
}

/* Nobody notes a job any more once its streams are closed and its exchange's wish is taken back. */
static void end_job(struct pump *p, struct job *j)
{
    struct server *s = p->server;
    struct http_exchange *x = j->x;
    struct key *key = j->key;
    http_on_gone(x, NULL, NULL);
    log_job(s, j);
    for (u32 i = 0; i < j->n_choices; i++) {
        ps_stream_close(j->choices[i].stream);
        j->choices[i].stream = NULL;
    }
    pthread_mutex_lock(&p->lock);
    if (j->noted) {
        struct job **at = &p->noted;
        while (*at != j)
            at = &(*at)->next_noted;
        *at = j->next_noted;
        if (p->noted_end == &j->next_noted)
            p->noted_end = at;
    }
    pthread_mutex_unlock(&p->lock);
    for (struct job **at = &p->jobs; *at; at = &(*at)->next)
        if (*at == j) {
            *at = j->next;
            break;
        }
    job_give_back(j);
    job_free(j);
    if (key)
        keys_give(s->keys, key);
    http_release(x);
    atomic_fetch_sub(&s->n_ending, 1);
}

/* Under the lock: new jobs join the thread's list. */
static void adopt(struct pump *p)
{
    while (p->fresh) {
        struct job *j = p->fresh;
        p->fresh = j->next;
        j->next = p->jobs;
        p->jobs = j;
        pthread_mutex_unlock(&p->lock);
        j->sent = time_now();
        http_on_gone(j->x, gone, j);
        pthread_mutex_lock(&p->lock);
    }
}

static void ping_all(struct pump *p)
{
    double now = time_now();
    for (struct job *j = p->jobs; j; j = j->next)
        job_ping(j, now);
}

static void *pump_main(void *arg)
{
    struct pump *p = arg;
    double pinged = time_now();
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        adopt(p);
        struct job *j = p->noted;
        if (j) {
            p->noted = j->next_noted;
            if (!p->noted)
                p->noted_end = &p->noted;
            j->noted = false;
        } else {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec++;
            pthread_cond_timedwait(&p->work, &p->lock, &until);
        }
        pthread_mutex_unlock(&p->lock);
        if (j && job_turn(j))
            end_job(p, j);
        if (time_now() - pinged >= 1) {
            ping_all(p);
            pinged = time_now();
        }
        pthread_mutex_lock(&p->lock);
    }
    adopt(p);
    pthread_mutex_unlock(&p->lock);
    while (p->jobs) {
        job_stop(p->jobs);
        end_job(p, p->jobs);
    }
    return NULL;
}

int pump_open(struct pump **out, struct server *s, struct err *err)
{
    struct pump *p = *out = mem_array(1, sizeof *p);
    if (!p)
        return err_set(err, "out of memory");
    p->server = s;
    p->noted_end = &p->noted;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    if (thread_start(&p->thread, pump_main, p))
        return err_set(err, "cannot start a thread");
    p->runs = true;
    return 0;
}

void pump_close(struct pump *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    if (p->runs)
        pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
