/* The thread that looks at connections while libmicrohttpd does not: those that wait for an answer, whether the client is still
 * there; those that send, whether they take too long. While an answer is awaited it looks every 10 ms, so that a client that
 * leaves costs no more than a step of a large model. A client that ends its sending side counts as one that left: from here
 * the two look alike. */
#include "serve/http_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

enum { LOOK_MS = 10, IDLE_MS = 500 };

#ifdef POLLRDHUP
enum { LEFT = POLLRDHUP };
static bool has_left(int fd)
{
    (void)fd;
    return true;
}
#else /* a Mac: the end of input shows as readable with nothing to read */
enum { LEFT = POLLIN };
static bool has_left(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}
#endif

void watch_connection(void *http, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what)
{
    struct http *h = http;
    pthread_mutex_lock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        struct http_conn *conn = mem_array(1, sizeof *conn);
        if (conn) {
            *conn = (struct http_conn){.next = h->conns, .fd = info ? info->connect_fd : -1, .since = time_now()};
            h->conns = conn;
        }
        *context = conn;
    } else {
        for (struct http_conn **at = &h->conns; *at; at = &(*at)->next)
            if (*at == *context) {
                struct http_conn *conn = *at;
                *at = conn->next;
                free(conn);
                break;
            }
        *context = NULL;
    }
    pthread_mutex_unlock(&h->lock);
}

struct looked {
    struct pollfd *fds;
    struct http_exchange **exchanges; /* beside fds; good while http->lock is held */
    u32 n, cap;
};

static void add(struct looked *l, struct http_exchange *x)
{
    if (l->n == l->cap) {
        u32 cap = l->cap ? 2 * l->cap : 64;
        struct pollfd *fds = realloc(l->fds, cap * sizeof *fds);
        if (fds)
            l->fds = fds;
        struct http_exchange **exchanges = realloc(l->exchanges, cap * sizeof *exchanges);
        if (exchanges)
            l->exchanges = exchanges;
        if (!fds || !exchanges)
            return; /* looked at next time */
        l->cap = cap;
    }
    l->fds[l->n] = (struct pollfd){.fd = x->fd, .events = LEFT};
    l->exchanges[l->n++] = x;
}

/* Under h->lock, which keeps every exchange on the list, and with it its descriptor, from ending. */
static void look(struct http *h, struct looked *l)
{
    double now = time_now();
    for (struct http_conn *c = h->conns; c; c = c->next)
        if (!c->asked && now - c->since > h->o.request_s) {
            shutdown(c->fd, SHUT_RDWR);
            c->since = now;
        }
    l->n = 0;
    for (struct http_exchange *x = h->exchanges; x; x = x->next)
        if (x->conn->asked)
            add(l, x);
    if (!l->n || poll(l->fds, l->n, 0) <= 0)
        return;
    for (u32 i = 0; i < l->n; i++) {
        short seen = l->fds[i].revents;
        if (seen & (POLLHUP | POLLERR) || (seen & LEFT && has_left(l->fds[i].fd)))
            exchange_gone(l->exchanges[i]);
    }
}

void *watch_main(void *http)
{
    struct http *h = http;
    struct looked l = {0};
    pthread_mutex_lock(&h->lock);
    while (!h->stopping) {
        look(h, &l);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (l.n ? LOOK_MS : IDLE_MS) * 1000000l;
        until.tv_sec += until.tv_nsec / 1000000000l;
        until.tv_nsec %= 1000000000l;
        pthread_cond_timedwait(&h->stop, &h->lock, &until);
    }
    pthread_mutex_unlock(&h->lock);
    free(l.fds);
    free(l.exchanges);
    return NULL;
}

void watch_stop(struct http *h)
{
    pthread_mutex_lock(&h->lock);
    h->stopping = true;
    pthread_cond_signal(&h->stop);
    for (struct http_exchange *x = h->exchanges; x; x = x->next)
        exchange_gone(x);
    pthread_mutex_unlock(&h->lock);
    if (h->watcher_runs)
        pthread_join(h->watcher, NULL);
    h->watcher_runs = false;
}
