/* HTTP. See http.h. libmicrohttpd's calls stand in this file and http_watch.c only.
 *
 * An exchange's answer is made under x->lock by any thread and read under it by libmicrohttpd's. Where there is nothing to
 * read the connection is suspended, under the lock too, so that whoever adds something sees that it must be resumed. Order of
 * locks: http->lock before x->lock. */
#include "serve/http_impl.h"

#include "base/thread.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ---- life of an exchange ---- */

void exchange_unref(struct http_exchange *x)
{
    if (atomic_fetch_sub(&x->refs, 1) != 1)
        return;
    struct http *h = x->http;
    atomic_fetch_sub(&h->bodies_bytes, x->body.cap);
    bytes_free(&x->body);
    bytes_free(&x->out);
    bytes_free(&x->headers);
    pthread_mutex_destroy(&x->lock);
    free(x->path);
    free(x);
}

static void name_peer(struct http_exchange *x, const struct sockaddr *at)
{
    socklen_t len = at && at->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (!at || getnameinfo(at, len, x->peer, sizeof x->peer, NULL, 0, NI_NUMERICHOST))
        snprintf(x->peer, sizeof x->peer, "?");
}

static struct http_exchange *exchange_new(struct http *h, struct MHD_Connection *c, const char *method, const char *path)
{
    const union MHD_ConnectionInfo *at = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *context = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_exchange *x = mem_array(1, sizeof *x);
    char *copy = strdup(path);
    if (!x || !copy || !fd || !context || !context->socket_context) {
        free(x);
        free(copy);
        return NULL;
    }
    pthread_mutex_init(&x->lock, NULL);
    x->http = h;
    x->connection = c;
    x->began = time_now();
    x->path = copy;
    x->fd = fd->connect_fd;
    x->conn = context->socket_context;
    snprintf(x->method, sizeof x->method, "%s", method);
    name_peer(x, at ? at->client_addr : NULL);
    atomic_init(&x->refs, 1);
    pthread_mutex_lock(&h->lock);
    x->id = ++h->last_id;
    x->next = h->exchanges;
    h->exchanges = x;
    pthread_mutex_unlock(&h->lock);
    return x;
}

void exchange_gone(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (!x->gone && !x->whole_sent) {
        x->gone = true;
        if (x->on_gone)
            x->on_gone(x->gone_arg);
        x->on_gone = NULL;
    }
    if (x->suspended) {
        x->suspended = false;
        MHD_resume_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
}

/* libmicrohttpd is done with the request, one way or the other. */
static void completed(void *arg, struct MHD_Connection *c, void **at, enum MHD_RequestTerminationCode why)
{
    (void)c;
    struct http *h = arg;
    struct http_exchange *x = *at;
    if (!x)
        return;
    *at = NULL;
    pthread_mutex_lock(&h->lock);
    for (struct http_exchange **p = &h->exchanges; *p; p = &(*p)->next)
        if (*p == x) {
            *p = x->next;
            break;
        }
    x->conn->since = time_now();
    x->conn->asked = false;
    pthread_mutex_unlock(&h->lock);
    pthread_mutex_lock(&x->lock);
    x->whole_sent = why == MHD_REQUEST_TERMINATED_COMPLETED_OK && !x->gone;
    x->suspended = false;
    pthread_mutex_unlock(&x->lock);
    exchange_gone(x);
    pthread_mutex_lock(&x->lock);
    x->connection = NULL;
    pthread_mutex_unlock(&x->lock);
    if (h->o.done)
        h->o.done(h->o.arg, x, x->gone);
    exchange_unref(x);
}

/* ---- answers ---- */

/* Under x->lock. */
static void wake(struct http_exchange *x)
{
    if (!x->suspended)
        return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

static ssize_t next_piece(void *arg, uint64_t pos, char *buf, size_t max)
{
    (void)pos;
    struct http_exchange *x = arg;
    ssize_t n;
    pthread_mutex_lock(&x->lock);
    size_t left = x->out.len - x->out_at;
    if (x->gone || x->out.failed) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (left) {
        n = (ssize_t)(left < max ? left : max);
        memcpy(buf, x->out.at + x->out_at, (size_t)n);
        x->out_at += (size_t)n;
        if (x->out_at == x->out.len) {
            bytes_clear(&x->out);
            x->out_at = 0;
        }
    } else if (x->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
        n = 0;
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

/* "name\0value\0" one after another. */
static void put_headers(struct MHD_Response *r, const struct bytes *headers)
{
    for (const char *at = headers->at, *end = at + headers->len; at && at < end;) {
        const char *value = at + strlen(at) + 1;
        MHD_add_response_header(r, at, value);
        at = value + strlen(value) + 1;
    }
}

/* Hands the answer to libmicrohttpd, or suspends until there is one. HTTP thread. */
static enum MHD_Result send_answer(struct http_exchange *x)
{
    struct MHD_Response *r = NULL;
    pthread_mutex_lock(&x->lock);
    bool waits = !x->gone && x->status == 0;
    unsigned status = (unsigned)x->status;
    if (waits) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    } else if (!x->gone) {
        if (x->begun) {
            r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16 << 10, next_piece, x, NULL);
        } else {
            size_t len = x->out.len;
            char *text = bytes_take(&x->out);
            r = text ? MHD_create_response_from_buffer(len, text, MHD_RESPMEM_MUST_FREE) : NULL;
        }
        if (r) {
            put_headers(r, &x->headers);
            if (atomic_load(&x->http->quiet))
                MHD_add_response_header(r, "Connection", "close");
        }
    }
    pthread_mutex_unlock(&x->lock);
    if (!r)
        return waits ? MHD_YES : MHD_NO;
    /* Without the lock: libmicrohttpd holds the response's own when it calls next_piece, which takes x's. */
    enum MHD_Result result = MHD_queue_response(x->connection, status, r);
    MHD_destroy_response(r);
    return result;
}

void http_add_header(struct http_exchange *x, const char *name, const char *value)
{
    pthread_mutex_lock(&x->lock);
    bytes_put(&x->headers, name, strlen(name) + 1);
    bytes_put(&x->headers, value, strlen(value) + 1);
    pthread_mutex_unlock(&x->lock);
}

/* Under x->lock. */
static void set_status(struct http_exchange *x, int status, const char *content_type)
{
    x->status = status;
    bytes_put(&x->headers, "Content-Type", sizeof "Content-Type");
    bytes_put(&x->headers, content_type, strlen(content_type) + 1);
}

void http_reply(struct http_exchange *x, int status, const char *content_type, struct bytes *body)
{
    pthread_mutex_lock(&x->lock);
    if (!x->status) {
        set_status(x, body->failed ? 500 : status, content_type);
        x->sent = body->len;
        x->out = *body;
        *body = (struct bytes){0};
        x->ended = true;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
    bytes_free(body);
}

void http_begin(struct http_exchange *x, int status, const char *content_type)
{
    pthread_mutex_lock(&x->lock);
    if (!x->status) {
        set_status(x, status, content_type);
        x->begun = true;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
}

void http_write(struct http_exchange *x, const void *text, size_t len)
{
    pthread_mutex_lock(&x->lock);
    if (!x->gone && x->begun && !x->ended) {
        bytes_put(&x->out, text, len);
        x->sent += len;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
}

void http_end(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    x->ended = true;
    wake(x);
    pthread_mutex_unlock(&x->lock);
}

void http_release(struct http_exchange *x)
{
    struct bytes none = {0};
    if (!http_status(x))
        http_reply(x, 500, "text/plain", &none);
    http_end(x);
    http_on_gone(x, NULL, NULL);
    exchange_unref(x);
}

void http_on_gone(struct http_exchange *x, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&x->lock);
    x->on_gone = fn;
    x->gone_arg = arg;
    if (x->gone && fn) {
        x->on_gone = NULL;
        fn(arg);
    }
    pthread_mutex_unlock(&x->lock);
}

bool http_gone(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool gone = x->gone;
    pthread_mutex_unlock(&x->lock);
    return gone;
}

/* ---- requests ---- */

static void refuse(struct http_exchange *x, int status, const char *text)
{
    struct bytes body = {0};
    bytes_str(&body, "{\"error\":{\"message\":");
    bytes_json(&body, text, strlen(text));
    bytes_str(&body, ",\"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}\n");
    http_reply(x, status, "application/json", &body);
    x->discard = true;
}

static void take_body(struct http_exchange *x, const char *text, size_t n)
{
    struct http *h = x->http;
    if (x->discard)
        return;
    if (x->body.len + n > h->o.max_body_bytes) {
        char line[96];
        snprintf(line, sizeof line, "the body is too large: at most %llu bytes", (unsigned long long)h->o.max_body_bytes);
        refuse(x, 413, line);
        return;
    }
    size_t before = x->body.cap;
    bytes_put(&x->body, text, n);
    u64 all = atomic_fetch_add(&h->bodies_bytes, x->body.cap - before) + (x->body.cap - before);
    if (x->body.failed || all > h->o.max_bodies_bytes) {
        http_add_header(x, "Retry-After", "5");
        refuse(x, 503, "too many large requests at once: try again later");
    }
}

struct framing {
    u32 hosts, lengths, encodings;
    bool strange; /* an encoding other than chunked */
};

static enum MHD_Result count_framing(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind;
    struct framing *f = arg;
    f->hosts += strcasecmp(name, "Host") == 0;
    f->lengths += strcasecmp(name, "Content-Length") == 0;
    if (strcasecmp(name, "Transfer-Encoding") == 0) {
        f->encodings++;
        f->strange = f->strange || !value || strcasecmp(value, "chunked") != 0;
    }
    return MHD_YES;
}

/* Whether nobody can read another end of the body, or another host, out of the headers: a proxy that did would let one
 * request hide in another (RFC 9112, 3.2 and 6.3). */
static bool framing_clear(struct http_exchange *x)
{
    struct framing f = {0};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, count_framing, &f);
    return f.hosts <= 1 && f.lengths + f.encodings <= 1 && !f.strange;
}

/* The headers are there. A refusal of a body that is not too long is sent after it was read (and forgotten): a client that
 * is still sending might not see it otherwise. */
static enum MHD_Result begin(struct http_exchange *x)
{
    struct http *h = x->http;
    const char *length = http_header(x, "Content-Length");
    if (!framing_clear(x)) {
        refuse(x, 400, "the headers must say once where the body ends, by Content-Length or Transfer-Encoding: chunked, and one Host");
        return send_answer(x); /* before the body: libmicrohttpd then ends the connection, and with it what else it may hold */
    }
    if (length && strtoull(length, NULL, 10) > h->o.max_body_bytes)
        take_body(x, length, (size_t)h->o.max_body_bytes + 1);
    if (!x->discard && h->o.headers && h->o.headers(h->o.arg, x))
        x->discard = true;
    bool waits = http_header(x, "Expect") != NULL;
    bool huge = length && strtoull(length, NULL, 10) / 4 > h->o.max_body_bytes;
    return x->discard && (waits || huge) ? send_answer(x) : MHD_YES;
}

static enum MHD_Result access_connection(void *arg, struct MHD_Connection *c, const char *path, const char *method,
                                         const char *version, const char *upload, size_t *n, void **at)
{
    (void)version;
    struct http *h = arg;
    struct http_exchange *x = *at;
    if (!x) {
        *at = x = exchange_new(h, c, method, path);
        return x ? begin(x) : MHD_NO;
    }
    if (*n) {
        take_body(x, upload, *n);
        *n = 0;
        return MHD_YES;
    }
    if (!x->asked) {
        x->asked = true;
        pthread_mutex_lock(&h->lock);
        x->conn->asked = true;
        pthread_cond_signal(&h->stop); /* one more to look at */
        pthread_mutex_unlock(&h->lock);
        if (!x->discard) {
            atomic_fetch_add(&x->refs, 1);
            h->o.request(h->o.arg, x);
        }
    }
    return send_answer(x);
}

const char *http_method(const struct http_exchange *x)
{
    return x->method;
}

const char *http_path(const struct http_exchange *x)
{
    return x->path;
}

const char *http_header(const struct http_exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

const char *http_body(const struct http_exchange *x, size_t *len)
{
    *len = x->body.len;
    return x->body.at ? x->body.at : "";
}

const char *http_peer(const struct http_exchange *x)
{
    return x->peer;
}

u64 http_id(const struct http_exchange *x)
{
    return x->id;
}

double http_began(const struct http_exchange *x)
{
    return x->began;
}

int http_status(const struct http_exchange *x)
{
    struct http_exchange *y = (struct http_exchange *)x; /* the lock is no part of what it shows */
    pthread_mutex_lock(&y->lock);
    int status = y->status;
    pthread_mutex_unlock(&y->lock);
    return status;
}

u64 http_sent(const struct http_exchange *x)
{
    struct http_exchange *y = (struct http_exchange *)x;
    pthread_mutex_lock(&y->lock);
    u64 sent = y->sent;
    pthread_mutex_unlock(&y->lock);
    return sent;
}

void http_mark(struct http_exchange *x, u32 mark)
{
    atomic_store(&x->mark, mark);
}

u32 http_marked(const struct http_exchange *x)
{
    return atomic_load(&x->mark);
}

/* ---- the server ---- */

static int listen_on(const char *host, u32 port, u32 *bound, struct err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list;
    char service[16], quoted[80];
    snprintf(service, sizeof service, "%u", port);
    err_quote(quoted, sizeof quoted, host, strlen(host));
    int rc = getaddrinfo(host, service, &hints, &list);
    if (rc)
        return err_set(err, "--host %s: %s", quoted, gai_strerror(rc));
    int fd = -1, why = 0;
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        int on = 1;
        if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || bind(fd, a->ai_addr, a->ai_addrlen) ||
                        listen(fd, 1024))) {
            why = errno;
            close(fd);
            fd = -1;
        } else if (fd < 0) {
            why = errno;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        return err_set(err, "cannot listen on %s port %u: %s%s", quoted, port, strerror(why),
                       why == EADDRINUSE ? "; another server is there: try another --port" : "");
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &len) == 0)
        *bound = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
    return fd;
}

static void fill_defaults(struct http_opts *o)
{
    o->host = o->host ? o->host : "127.0.0.1";
    o->max_body_bytes = o->max_body_bytes ? o->max_body_bytes : 16 << 20;
    o->max_bodies_bytes = o->max_bodies_bytes ? o->max_bodies_bytes : 256 << 20;
    o->max_header_bytes = o->max_header_bytes ? o->max_header_bytes : 32 << 10;
    o->max_connections = o->max_connections ? o->max_connections : 4096;
    o->idle_s = o->idle_s ? o->idle_s : 120;
    o->request_s = o->request_s ? o->request_s : 60;
}

int http_open(struct http **out, const struct http_opts *o, struct err *err)
{
    *out = NULL;
    struct http *h = mem_array(1, sizeof *h);
    if (!h)
        return err_set(err, "out of memory");
    h->o = *o;
    fill_defaults(&h->o);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->stop, NULL);
    h->listener = listen_on(h->o.host, h->o.port, &h->port, err);
    if (h->listener < 0)
        goto fail;
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)h->o.tls_cert},
                                   {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)h->o.tls_key},
                                   {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                     (h->o.tls_cert ? MHD_USE_TLS : 0);
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, access_connection, h,
                                 MHD_OPTION_LISTEN_SOCKET, h->listener,
                                 MHD_OPTION_NOTIFY_COMPLETED, completed, h,
                                 MHD_OPTION_NOTIFY_CONNECTION, watch_connection, h,
                                 MHD_OPTION_CONNECTION_LIMIT, h->o.max_connections,
                                 MHD_OPTION_PER_IP_CONNECTION_LIMIT, h->o.max_per_address,
                                 MHD_OPTION_CONNECTION_TIMEOUT, h->o.idle_s,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)h->o.max_header_bytes + (16 << 10),
                                 MHD_OPTION_STRICT_FOR_CLIENT, 1,
                                 MHD_OPTION_ARRAY, h->o.tls_cert ? tls : none,
                                 MHD_OPTION_END);
    if (!h->daemon) {
        err_set(err, h->o.tls_cert ? "cannot start the server: certificate and key are not a pair of PEM texts, or no descriptors are left"
                                   : "cannot start the server: no descriptors or memory left");
        goto fail;
    }
    if (thread_start(&h->watcher, watch_main, h)) {
        err_set(err, "cannot start the server's second thread");
        goto fail;
    }
    h->watcher_runs = true;
    *out = h;
    return 0;
fail:
    http_close(h);
    return -1;
}

u32 http_port(const struct http *h)
{
    return h->port;
}

void http_quiesce(struct http *h)
{
    if (atomic_exchange(&h->quiet, true))
        return;
    MHD_quiesce_daemon(h->daemon);
    close(h->listener);
    h->listener = -1;
}

bool http_all_sent(struct http *h)
{
    bool all = true;
    pthread_mutex_lock(&h->lock);
    for (struct http_exchange *x = h->exchanges; x && all; x = x->next) {
        pthread_mutex_lock(&x->lock);
        all = x->gone || !x->status;
        pthread_mutex_unlock(&x->lock);
    }
    pthread_mutex_unlock(&h->lock);
    return all;
}

u32 http_connections(struct http *h)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info ? info->num_connections : 0;
}

void http_close(struct http *h)
{
    if (!h)
        return;
    if (h->daemon) {
        http_quiesce(h);
        watch_stop(h); /* also makes every waiting exchange one whose client has gone: none may be suspended now */
        MHD_stop_daemon(h->daemon);
    } else if (h->listener >= 0) {
        close(h->listener);
    }
    pthread_cond_destroy(&h->stop);
    pthread_mutex_destroy(&h->lock);
    free(h);
}
