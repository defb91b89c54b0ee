/* The server's life: it listens at once and says that it loads, loads the model on a thread, serves, and drains. The calling
 * thread waits for signals: SIGTERM and SIGINT end it (a second one at once), SIGHUP reads the keys again. */
#include "base/thread.h"
#include "serve/serve.h"
#include "serve/server.h"
#include "serve/notify.h"
#include "serve/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    TEXT_MAX = 1 << 20,
    LAST_STEP_S = 5 /* once no request is left: a step takes milliseconds on a GPU, a second or two on a slow CPU */
};

static char *read_text(const char *path, struct err *err)
{
    FILE *f = fopen(path, "r");
    if (!f) {
        err_set(err, "%s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = mem_array(TEXT_MAX + 1, 1);
    size_t n = text ? fread(text, 1, TEXT_MAX + 1, f) : 0;
    bool bad = ferror(f) != 0;
    fclose(f);
    if (!text || bad || n == 0 || n > TEXT_MAX) {
        err_set(err, "%s: %s", path, !text ? "out of memory" : bad ? "cannot be read" : n ? "too large for a PEM text" : "is empty");
        free(text);
        return NULL;
    }
    return text;
}

static void fill_defaults(struct serve_opts *o)
{
    o->host = o->host ? o->host : "127.0.0.1";
    o->queue = o->queue ? o->queue : 32;
    o->drain_s = o->drain_s ? o->drain_s : 30;
    o->ping_s = o->ping_s ? o->ping_s : 10;
    o->stuck_s = o->stuck_s ? o->stuck_s : 60;
    o->max_connections = o->max_connections ? o->max_connections : 4096;
}

/* A connection needs a descriptor. */
static void raise_descriptors(u32 connections)
{
    struct rlimit l;
    rlim_t want = connections + 64;
    if (getrlimit(RLIMIT_NOFILE, &l) || l.rlim_cur >= want)
        return;
    l.rlim_cur = l.rlim_max < want ? l.rlim_max : want;
    setrlimit(RLIMIT_NOFILE, &l);
}

/* ---- loading ---- */

/* The file's name without folder and .gguf. */
static void name_model(struct server *s)
{
    const char *slash = strrchr(s->o.model, '/');
    snprintf(s->name, sizeof s->name, "%s", s->o.name ? s->o.name : slash ? slash + 1 : s->o.model);
    size_t n = strlen(s->name);
    if (!s->o.name && n > 5 && strcmp(s->name + n - 5, ".gguf") == 0)
        s->name[n - 5] = '\0';
}

/* Of the file's beginning (fields, tensors' names and places) and its size: what tells two files apart without reading
 * gigabytes. FNV-1a. */
static u64 hash_file(const char *path, u64 bytes)
{
    u64 h = 0xCBF29CE484222325ull ^ bytes;
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(TEXT_MAX) : NULL;
    size_t n = text ? fread(text, 1, TEXT_MAX, f) : 0;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (u8)text[i]) * 0x100000001B3ull;
    free(text);
    if (f)
        fclose(f);
    return h;
}

static int open_template(struct server *s, const struct ps_model_info *info, struct err *err)
{
    if (!info->chat_template)
        return 0;
    return template_open(&s->tmpl, info->chat_template, info->chat_template_len, info->bos, info->eos, err) ||
                   prompt_open(&s->prompt, s->model->token, s->tmpl, err)
               ? -1 : 0;
}

/* What can change the text of an answer. A device that does not give the promised bits makes no claim to a contract. */
static void name_fingerprint(struct server *s, u64 file, const struct ps_stats *stats)
{
    char contract[16];
    snprintf(contract, sizeof contract, "c%d", PS_CONTRACT);
    snprintf(s->fingerprint, sizeof s->fingerprint, "plainsong-%016llx-%s-%s", (unsigned long long)file,
             stats->warning ? "inexact" : contract, stats->device);
}

static int load(struct server *s, struct err *err)
{
    struct ps_error why;
    struct ps_model_info info;
    struct ps_stats stats;
    struct err none;
    s->model = ps_model_open(s->o.model, &why);
    if (!s->model)
        return err_set(err, "%s", why.text);
    ps_model_info(s->model, &info);
    if (open_template(s, &info, err))
        return -1;
    if (vocab_open(&s->vocab, s->model->token, &none))
        s->vocab = NULL; /* requests that need it say so */
    s->engine = ps_engine_open(s->model, &s->o.engine, &why);
    if (!s->engine)
        return err_set(err, "%s", why.text);
    if (s->o.loaded)
        s->o.loaded(s->engine);
    ps_engine_stats(s->engine, &stats);
    s->n_slots = stats.n_slots;
    s->n_ctx = stats.n_ctx;
    s->queue_tokens = s->o.queue_tokens ? s->o.queue_tokens : (u64)(s->n_slots + s->o.queue) * s->n_ctx;
    name_fingerprint(s, hash_file(s->o.model, info.file_bytes), &stats);
    if (grammars_open(&s->grammars, s->vocab, err) || pump_open(&s->pump, s, err) || intake_open(&s->intake, s, err))
        return -1;
    char threads[24] = "";
    if (stats.n_threads)
        snprintf(threads, sizeof threads, ", %u thread%s", stats.n_threads, stats.n_threads == 1 ? "" : "s");
    log_event(s->log, "ready", "model %s, device %s (%s), %u slots of %u positions, %s keys%s; weights %.2f GB, "
              "keys and values %.2f GB, loaded in %.1f s", s->name, stats.device, stats.isa, s->n_slots, s->n_ctx, stats.kv, threads,
              (double)stats.weight_bytes * 1e-9, (double)stats.kv_bytes * 1e-9, stats.load_s);
    if (stats.warning)
        log_event(s->log, "warning", "%s: answers may differ from those of other devices", stats.warning);
    return 0;
}

struct loader { /* on the heap: its thread may outlive serve_run */
    struct server *server;
    struct signals *signals;
    pthread_t thread;
    atomic_int done; /* 1: ready; -1: failed, see err */
    struct err err;
};

static void *loader_main(void *arg)
{
    struct loader *l = arg;
    int rc = load(l->server, &l->err);
    if (rc == 0)
        atomic_store(&l->server->state, SERVER_READY);
    atomic_store(&l->done, rc == 0 ? 1 : -1);
    signals_wake(l->signals);
    return NULL;
}

/* ---- the end ---- */

/* Requests that were cut off are told so: that takes a moment. */
static void flush(struct server *s)
{
    for (double until = time_now() + 1; s->http && !http_all_sent(s->http) && time_now() < until;)
        nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL);
}

/* In the order that leaves no thread a dangling pointer: no more bodies taken, no jobs, no connections. */
static void close_clients(struct server *s)
{
    if (s->intake)
        intake_stop(s->intake);
    pump_close(s->pump);
    flush(s);
    http_close(s->http);
    intake_close(s->intake);
}

/* Whether the step in work, which no one waits for any more, ends within LAST_STEP_S: on a device that hangs it never does. */
static bool step_ends(const struct server *s)
{
    struct ps_stats stats = {0};
    for (double until = time_now() + LAST_STEP_S; s->engine && time_now() < until; nanosleep(&(struct timespec){.tv_nsec = 5 * 1000 * 1000}, NULL)) {
        ps_engine_stats(s->engine, &stats);
        if (stats.turn_s == 0)
            return true;
    }
    if (s->engine)
        log_event(s->log, "stopped", "a step has lasted %.0f s: the device is left as it is", stats.turn_s);
    return !s->engine;
}

/* What close_clients leaves. */
static void close_server(struct server *s)
{
    ps_engine_close(s->engine);
    grammars_close(s->grammars);
    vocab_close(s->vocab);
    prompt_close(s->prompt);
    template_close(s->tmpl);
    ps_model_close(s->model);
    keys_close(s->keys);
    metrics_close(s->metrics);
    log_close(s->log);
    free(s->path);
    free(s);
}

/* Waits for running requests, and until clients have their answers; a signal that ends, ends the wait. */
static void drain(struct server *s, struct signals *signals)
{
    double until = time_now() + s->o.drain_s;
    atomic_store(&s->state, SERVER_DRAINING);
    notify_send("STOPPING=1");
    log_event(s->log, "draining", "no new requests; %u in work may go on for %u s", atomic_load(&s->n_jobs), s->o.drain_s);
    while ((atomic_load(&s->n_jobs) || atomic_load(&s->n_ending) || !http_all_sent(s->http)) && time_now() < until) {
        int sig = signals_wait(signals, 50);
        if (sig == SIGTERM || sig == SIGINT) {
            log_event(s->log, "stopping", "asked again: %u requests end here", atomic_load(&s->n_jobs));
            return;
        }
    }
    if (atomic_load(&s->n_jobs))
        log_event(s->log, "stopping", "%u requests did not end in time", atomic_load(&s->n_jobs));
}

static void reload_keys(struct server *s)
{
    struct err err;
    if (!keys_needed(s->keys))
        return;
    if (keys_reload(s->keys, &err))
        log_event(s->log, "keys", "kept as they were: %s", err.text);
    else
        log_event(s->log, "keys", "read again: %u", keys_count(s->keys));
}

/* A device that broke is told once. */
static void watch_device(struct server *s, bool *told)
{
    struct health h;
    pages_look(s, &h);
    if (*told || !h.message)
        return;
    *told = true;
    log_event(s->log, "broken", "%s: every request fails until the server is started anew", h.message);
}

/* Until the server shall end, or cannot start. 0 or -1. */
static int wait_for_end(struct server *s, struct loader *l, struct err *err)
{
    u32 watchdog_ms = notify_watchdog_ms();
    bool told = false, told_broken = false;
    struct health h;
    for (;;) {
        int sig = signals_wait(l->signals, watchdog_ms ? watchdog_ms / 2 : 1000);
        watch_device(s, &told_broken);
        if (sig == SIGTERM || sig == SIGINT)
            return 0;
        if (sig == SIGHUP)
            reload_keys(s);
        int done = atomic_load(&l->done);
        if (done < 0) {
            *err = l->err;
            return -1;
        }
        if (done > 0 && !told) {
            told = true;
            notify_send("READY=1");
        }
        pages_look(s, &h);
        if (watchdog_ms && (!told || h.ok)) /* a long load is no fault */
            notify_send("WATCHDOG=1");
    }
}

static int listen_now(struct server *s, struct err *err)
{
    struct http_opts h = {.host = s->o.host, .port = s->o.port, .max_body_bytes = s->o.max_body_bytes,
                          .max_header_bytes = s->o.max_header_bytes,
                          .max_connections = s->o.max_connections, .idle_s = s->o.idle_s, .request_s = s->o.request_s, .arg = s,
                          .headers = routes_headers, .request = routes_request, .done = routes_done};
    char *cert = NULL, *key = NULL;
    int rc = -1;
    if ((s->o.tls_cert && !(cert = read_text(s->o.tls_cert, err))) || (s->o.tls_key && !(key = read_text(s->o.tls_key, err))))
        goto done;
    h.tls_cert = cert;
    h.tls_key = key;
    rc = http_open(&s->http, &h, err);
done:
    free(cert);
    if (key)
        memset(key, 0, strlen(key));
    free(key);
    return rc;
}

int serve_run(const struct serve_opts *o, struct err *err)
{
    struct server *s = mem_array(1, sizeof *s);
    struct loader *l = mem_array(1, sizeof *l);
    if (!s || !l || !(s->path = strdup(o->model))) { /* a copy: the loader may outlive this function's caller */
        free(s);
        free(l);
        return err_set(err, "out of memory");
    }
    l->server = s;
    if (signals_open(&l->signals, err)) { /* first: threads started from here on inherit the mask */
        free(s->path);
        free(s);
        free(l);
        return -1;
    }
    s->o = *o;
    s->o.model = s->path;
    fill_defaults(&s->o);
    s->o.engine.n_queue = 16 * (s->o.queue + 1024); /* the server bounds what waits */
    s->started = (u64)time(NULL);
    FILE *random = fopen("/dev/urandom", "rb");
    if (!random || fread(&s->id_key, sizeof s->id_key, 1, random) != 1)
        s->id_key = s->started ^ (u64)getpid() << 32;
    if (random)
        fclose(random);
    raise_descriptors(s->o.max_connections);
    name_model(s);
    if (log_open(&s->log, s->o.log_json, err) || metrics_open(&s->metrics, err) || keys_open(&s->keys, s->o.api_key_file, err) ||
        listen_now(s, err)) {
        close_clients(s);
        close_server(s);
        signals_close(l->signals);
        free(l);
        return -1;
    }
    log_event(s->log, "listening", "%s://%s%s%s:%u", s->o.tls_cert ? "https" : "http", strchr(s->o.host, ':') ? "[" : "", s->o.host,
              strchr(s->o.host, ':') ? "]" : "", http_port(s->http));
    int rc = -1;
    if (thread_start(&l->thread, loader_main, l)) {
        err_set(err, "cannot start a thread");
    } else {
        rc = wait_for_end(s, l, err);
        if (atomic_load(&l->done) == 0) {
            log_event(s->log, "stopped", "while loading"); /* nothing is in work */
            return 1;
        }
        pthread_join(l->thread, NULL);
        if (rc == 0)
            drain(s, l->signals);
    }
    u32 n = http_connections(s->http);
    close_clients(s);
    if (!step_ends(s))
        return 1; /* its thread uses all that would be closed */
    if (rc == 0)
        log_event(s->log, "stopped", "%u connections end", n);
    close_server(s);
    signals_close(l->signals);
    free(l);
    return rc;
}
