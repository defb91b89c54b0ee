/* A client for measuring: sockets, poll, and as much of HTTP/1.1 as plainsong's server speaks. While answers come
 * in it only copies bytes and reads the clock at the end of each event, since it shares the machine with what it
 * measures; events are looked into afterwards. What a server sends is not trusted: heads and bodies are bounded,
 * chunks checked. */
#include "cli/bench_http.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECT_MS = 10000, HEAD_MAX = 64 << 10, TEXT_MAX = 256 << 20, PIECE = 64 << 10 };

enum state { SENDING, HEAD, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, LENGTH, TO_CLOSE, WHOLE };

struct wire { /* a call's connection */
    int fd;
    enum state state;
    struct bytes out;
    size_t out_at;
    u64 left;      /* CHUNK, LENGTH: bytes to come */
    char line[64]; /* CHUNK_SIZE, CHUNK_END, TRAILER: the line so far */
    u32 n_line;
    size_t scanned; /* of text, for ends of events */
};

/* ---- the address ---- */

int bench_http_url(struct bench_http_url *u, const char *text, struct err *err)
{
    char quoted[120];
    const char *wish = "expected http://HOST[:PORT], as plainsong serve prints it";
    err_quote(quoted, sizeof quoted, text, strlen(text));
    *u = (struct bench_http_url){.port = "80"};
    if (strncmp(text, "http://", 7) != 0)
        return err_set(err, "--http \"%s\": %s%s", quoted, wish,
                       strncmp(text, "https://", 8) ? "" : " (TLS is not measured)");
    const char *at = text + 7;
    bool bracket = *at == '[';
    size_t all = strcspn(at, "/?#"), host = bracket ? strcspn(at, "]") + 1 : strcspn(at, ":/?#");
    size_t port = host < all && at[host] == ':' ? all - host - 1 : 0, path = strlen(at + all);
    while (path && at[all + path - 1] == '/')
        path--;
    bool good = host > (bracket ? 2u : 0u) && host < sizeof u->host && port < sizeof u->port &&
                path < sizeof u->path && (host == all || (host < all && at[host] == ':')) &&
                strspn(at + all - port, "0123456789") >= port && !strpbrk(at, "?#@ \r\n\t");
    if (!good)
        return err_set(err, "--http \"%s\": %s", quoted, wish);
    memcpy(u->authority, at, all);
    memcpy(u->host, at + bracket, host - 2 * bracket);
    memcpy(u->path, at + all, path);
    if (port) {
        memset(u->port, 0, sizeof u->port);
        memcpy(u->port, at + all - port, port);
    }
    return 0;
}

/* ---- connecting ---- */

/* 0 or errno. */
static int connect_to(int fd, const struct addrinfo *a)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int why = 0;
    socklen_t len = sizeof why;
    if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
        return errno;
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return errno;
    int rc = poll(&p, 1, CONNECT_MS);
    if (rc <= 0)
        return rc ? errno : ETIMEDOUT;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len) ? errno : why;
}

static int reach(const struct bench_http_url *u, int *out, struct err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list;
    char quoted[80];
    err_quote(quoted, sizeof quoted, u->host, strlen(u->host));
    int rc = getaddrinfo(u->host, u->port, &hints, &list), why = 0, fd = -1;
    if (rc)
        return err_set(err, "--http: %s: %s", quoted, gai_strerror(rc));
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        why = fd < 0 ? errno : connect_to(fd, a);
        if (fd >= 0 && why) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0)
        return err_set(err, "cannot reach %s port %s: %s; is plainsong serve running there?", quoted, u->port,
                       strerror(why));
    *out = fd;
    return 0;
}

static int write_request(struct wire *w, const struct bench_http_url *u, const char *key,
                         const struct bench_http_call *c, struct err *err)
{
    struct bytes *out = &w->out;
    const char *parts[] = {c->body ? "POST " : "GET ", u->path,      c->path,
                           " HTTP/1.1\r\nHost: ",      u->authority, "\r\nConnection: close\r\n"};
    for (size_t i = 0; i < COUNT(parts); i++)
        bytes_str(out, parts[i]);
    if (key) {
        bytes_str(out, "Authorization: Bearer ");
        bytes_str(out, key);
        bytes_str(out, "\r\n");
    }
    if (c->body) {
        bytes_str(out, "Content-Type: application/json\r\nContent-Length: ");
        bytes_u64(out, strlen(c->body));
        bytes_str(out, "\r\n");
    }
    bytes_str(out, "\r\n");
    bytes_str(out, c->body ? c->body : "");
    return out->failed ? err_set(err, "out of memory") : 0;
}

/* ---- answers ---- */

static int broken(const char *what, struct err *err)
{
    return err_set(err, "the server's answer is no HTTP that is understood here: %s", what);
}

/* A header's value, behind its name and white space, or NULL. */
static const char *header(const char *head, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = strchr(head, '\n'); line && line[1]; line = strchr(line + 1, '\n'))
        if (strncasecmp(line + 1, name, n) == 0 && line[1 + n] == ':')
            return line + 2 + n + strspn(line + 2 + n, " \t");
    return NULL;
}

/* The head is whole, and a NUL is behind it. */
static int read_head(struct wire *w, struct bench_http_call *c, struct err *err)
{
    unsigned status;
    if (sscanf(c->head.at, "HTTP/1.%*1[01] %3u", &status) != 1 || status < 200)
        return broken("no status", err);
    const char *coding = header(c->head.at, "Transfer-Encoding"), *length = header(c->head.at, "Content-Length");
    c->status = (int)status;
    if (coding && strncasecmp(coding, "chunked", 7) != 0)
        return broken("a transfer coding that is not \"chunked\"", err);
    w->left = length ? strtoull(length, NULL, 10) : 0;
    w->state = coding ? CHUNK_SIZE : !length ? TO_CLOSE : w->left ? LENGTH : WHOLE;
    return 0;
}

static int note_event(struct bench_http_call *c, size_t end, double now, struct err *err)
{
    if (c->n_events == c->cap_events) {
        u32 cap = c->cap_events ? 2 * c->cap_events : 256;
        double *times = realloc(c->times, cap * sizeof *times);
        c->times = times ? times : c->times;
        size_t *ends = realloc(c->ends, cap * sizeof *ends);
        c->ends = ends ? ends : c->ends;
        if (!times || !ends)
            return err_set(err, "out of memory");
        c->cap_events = cap;
    }
    c->times[c->n_events] = now;
    c->ends[c->n_events++] = end;
    return 0;
}

static int take_text(struct wire *w, struct bench_http_call *c, const char *at, size_t n, double now, struct err *err)
{
    if (!c->text.len)
        c->first = now;
    if (c->text.len + n > TEXT_MAX)
        return broken("too long", err);
    bytes_put(&c->text, at, n);
    if (c->text.failed)
        return err_set(err, "out of memory");
    for (; w->scanned + 1 < c->text.len; w->scanned++)
        if (c->text.at[w->scanned] == '\n' && c->text.at[w->scanned + 1] == '\n' &&
            note_event(c, w->scanned + 2, now, err))
            return -1;
    return 0;
}

/* A whole line of the chunked form, without its end. */
static int take_line(struct wire *w, struct err *err)
{
    char *end;
    w->line[w->n_line] = 0;
    if (w->state == CHUNK_SIZE) {
        w->left = strtoull(w->line, &end, 16);
        if (end == w->line || w->left > TEXT_MAX)
            return broken("a chunk without a size", err);
        w->state = w->left ? CHUNK : TRAILER;
    } else if (w->state == CHUNK_END) {
        if (w->n_line)
            return broken("a chunk longer than its size", err);
        w->state = CHUNK_SIZE;
    } else if (!w->n_line) {
        w->state = WHOLE;
    }
    w->n_line = 0;
    return 0;
}

/* One byte of the head or of a line between chunks. */
static int take_byte(struct wire *w, struct bench_http_call *c, char byte, struct err *err)
{
    if (w->state == HEAD) {
        bytes_put(&c->head, &byte, 1);
        if (c->head.failed || c->head.len > HEAD_MAX)
            return broken("its headers do not end", err);
        if (c->head.len < 4 || memcmp(c->head.at + c->head.len - 4, "\r\n\r\n", 4) != 0)
            return 0;
        bytes_put(&c->head, "", 1);
        return c->head.failed ? err_set(err, "out of memory") : read_head(w, c, err);
    }
    if (byte == '\n')
        return take_line(w, err);
    if (byte != '\r' && w->n_line + 1 < sizeof w->line)
        w->line[w->n_line++] = byte;
    return 0;
}

static int take(struct wire *w, struct bench_http_call *c, const char *at, size_t n, struct err *err)
{
    double now = time_now();
    while (n && w->state != WHOLE) {
        if (w->state != CHUNK && w->state != LENGTH && w->state != TO_CLOSE) {
            if (take_byte(w, c, *at, err))
                return -1;
            at++, n--;
            continue;
        }
        size_t some = w->state == TO_CLOSE ? n : (size_t)min_u64(n, w->left);
        if (take_text(w, c, at, some, now, err))
            return -1;
        at += some, n -= some;
        w->left -= w->state == TO_CLOSE ? 0 : some;
        if (w->state != TO_CLOSE && !w->left)
            w->state = w->state == CHUNK ? CHUNK_END : WHOLE;
    }
    return 0;
}

/* ---- all at once ---- */

/* The socket is ready: sends or reads what it can. */
static int turn(struct wire *w, struct bench_http_call *c, struct err *err)
{
    static const char ENDED[] = "the server ended the connection in the middle of an answer";
    char piece[PIECE];
    if (w->state == SENDING) {
        if (!c->sent)
            c->sent = time_now();
        ssize_t n = send(w->fd, w->out.at + w->out_at, w->out.len - w->out_at, 0);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return err_set(err, "the server does not take the request: %s", strerror(errno));
        w->out_at += n > 0 ? (size_t)n : 0;
        w->state = w->out_at == w->out.len ? HEAD : SENDING;
        return 0;
    }
    ssize_t n = recv(w->fd, piece, sizeof piece, 0);
    if (n > 0)
        return take(w, c, piece, (size_t)n, err);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : err_set(err, "%s: %s", ENDED, strerror(errno));
    if (w->state != TO_CLOSE)
        return err_set(err, "%s", ENDED);
    w->state = WHOLE;
    return 0;
}

static int run_all(struct wire *w, struct pollfd *fds, struct bench_http_call *calls, u32 n, struct err *err)
{
    for (;;) {
        u32 open = 0;
        for (u32 i = 0; i < n; i++) {
            open += w[i].state != WHOLE;
            fds[i] = (struct pollfd){.fd = w[i].state == WHOLE ? -1 : w[i].fd,
                                     .events = w[i].state == SENDING ? POLLOUT : POLLIN};
        }
        if (!open)
            return 0;
        int rc = poll(fds, n, BENCH_HTTP_SILENCE_S * 1000);
        if (rc < 0 && errno != EINTR)
            return err_set(err, "poll: %s", strerror(errno));
        if (rc == 0)
            return err_set(err, "the server has said nothing for %d s", BENCH_HTTP_SILENCE_S);
        for (u32 i = 0; i < n && rc > 0; i++)
            if (fds[i].revents && w[i].state != WHOLE && turn(&w[i], &calls[i], err))
                return -1;
    }
}

int bench_http_ask(const struct bench_http_url *u, const char *key, struct bench_http_call *calls, u32 n,
                   struct err *err)
{
    struct wire *w = mem_array(n, sizeof *w);
    struct pollfd *fds = mem_array(n, sizeof *fds);
    int rc = w && fds ? 0 : err_set(err, "out of memory");
    u32 made = 0;
    for (; !rc && made < n; made++) {
        w[made] = (struct wire){.fd = -1};
        rc = write_request(&w[made], u, key, &calls[made], err) || reach(u, &w[made].fd, err) ? -1 : 0;
    }
    if (!rc)
        rc = run_all(w, fds, calls, n, err);
    for (u32 i = 0; i < made; i++) {
        if (w[i].fd >= 0)
            close(w[i].fd);
        bytes_free(&w[i].out);
    }
    free(w);
    free(fds);
    return rc;
}

void bench_http_free(struct bench_http_call *calls, u32 n)
{
    for (u32 i = 0; calls && i < n; i++) {
        bytes_free(&calls[i].head);
        bytes_free(&calls[i].text);
        free(calls[i].times);
        free(calls[i].ends);
        calls[i] = (struct bench_http_call){0};
    }
}
