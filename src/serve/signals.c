/* See signals.h. The pipe never blocks: when it is full, the reader has thousands of signals yet to look at. */
#include "serve/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int NUMBERS[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGPIPE};

struct signals {
    pthread_t thread;
    sigset_t set, old;
    int pipe[2];
    atomic_bool closing;
};

/* 0: a wake. */
static void tell(struct signals *s, int number)
{
    u8 byte = (u8)number; /* the five are below 32 everywhere */
    if (write(s->pipe[1], &byte, 1) < 0) {
        /* full: there is enough to be woken by */
    }
}

static void *take_signals(void *arg)
{
    struct signals *s = arg;
    int number;
    for (;;) {
        if (sigwait(&s->set, &number))
            continue;
        if (atomic_load(&s->closing))
            return NULL;
        if (number != SIGPIPE) /* a log nobody reads any more: writes fail, serving goes on; macOS tells the process */
            tell(s, number);
    }
}

static int make_pipe(int fds[2], struct err *err)
{
    if (pipe(fds))
        return err_set(err, "cannot make a pipe: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        fcntl(fds[i], F_SETFL, O_NONBLOCK);
        fcntl(fds[i], F_SETFD, FD_CLOEXEC);
    }
    return 0;
}

int signals_open(struct signals **out, struct err *err)
{
    struct signals *s = mem_array(1, sizeof *s);
    *out = NULL;
    if (!s)
        return err_set(err, "out of memory");
    if (make_pipe(s->pipe, err)) {
        free(s);
        return -1;
    }
    sigemptyset(&s->set);
    for (u32 i = 0; i < COUNT(NUMBERS); i++)
        sigaddset(&s->set, NUMBERS[i]);
    pthread_sigmask(SIG_BLOCK, &s->set, &s->old);
    int rc = pthread_create(&s->thread, NULL, take_signals, s);
    if (rc) {
        pthread_sigmask(SIG_SETMASK, &s->old, NULL);
        close(s->pipe[0]);
        close(s->pipe[1]);
        free(s);
        return err_set(err, "cannot start a thread: %s", strerror(rc));
    }
    *out = s;
    return 0;
}

int signals_wait(struct signals *s, u32 ms)
{
    struct pollfd p = {.fd = s->pipe[0], .events = POLLIN};
    u8 number;
    if (poll(&p, 1, (int)ms) <= 0 || read(s->pipe[0], &number, 1) != 1)
        return 0;
    return number;
}

void signals_wake(struct signals *s)
{
    tell(s, 0);
}

/* What came and was not taken would end the process once it is let through: a second SIGTERM, or this thread's SIGPIPE (it
 * goes to the thread that wrote). */
static void drop_pending(const struct signals *s)
{
    sigset_t pending;
    int number;
    for (bool any = true; any;) {
        any = false;
        if (sigpending(&pending))
            return;
        for (u32 i = 0; i < COUNT(NUMBERS); i++)
            any |= sigismember(&pending, NUMBERS[i]) == 1;
        if (any && sigwait(&s->set, &number))
            return;
    }
}

void signals_close(struct signals *s)
{
    if (!s)
        return;
    atomic_store(&s->closing, true);
    pthread_kill(s->thread, SIGUSR1);
    pthread_join(s->thread, NULL);
    drop_pending(s);
    pthread_sigmask(SIG_SETMASK, &s->old, NULL);
    close(s->pipe[0]);
    close(s->pipe[1]);
    free(s);
}
