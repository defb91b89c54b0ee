/* Ctrl-C: see interrupt.h. The pipe holds at most one byte per press and is never blocked on. */
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum state { ENDS, WATCHES, RESTS };

struct interrupt {
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    enum state state;
    struct ps_stream *stream;
    bool pressed;
    bool closing;
    bool ignored; /* as for a job in the background of a script: then there is no thread */
    int pipe[2];
    sigset_t old;
};

/* As if nobody had blocked it: the shell sees a death by SIGINT. */
static void end_process(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    signal(SIGINT, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(SIGINT);
}

static void *wait_for_it(void *arg)
{
    struct interrupt *in = arg;
    sigset_t set;
    int got;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    for (bool closing = false; !closing;) {
        if (sigwait(&set, &got))
            continue;
        pthread_mutex_lock(&in->lock);
        closing = in->closing;
        if (closing) {
            /* woken by interrupt_close */
        } else if (in->state == ENDS) {
            end_process();
        } else if (in->state == WATCHES) {
            in->pressed = true;
            if (in->stream)
                ps_stream_cancel(in->stream);
        } else if (write(in->pipe[1], "", 1) < 0) {
            /* full: it was told often enough */
        }
        pthread_mutex_unlock(&in->lock);
    }
    return NULL;
}

int interrupt_open(struct interrupt **out, struct err *err)
{
    struct interrupt *in = calloc(1, sizeof *in);
    sigset_t set;
    if (!in)
        return err_set(err, "out of memory");
    if (pipe(in->pipe)) {
        free(in);
        return err_set(err, "cannot make a pipe: %s", strerror(errno));
    }
    for (int i = 0; i < 2; i++) {
        fcntl(in->pipe[i], F_SETFL, O_NONBLOCK);
        fcntl(in->pipe[i], F_SETFD, FD_CLOEXEC);
    }
    pthread_mutex_init(&in->lock, NULL);
    struct sigaction now;
    in->ignored = sigaction(SIGINT, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, &in->old);
    int rc = in->ignored ? 0 : pthread_create(&in->thread, NULL, wait_for_it, in);
    if (rc) {
        pthread_sigmask(SIG_SETMASK, &in->old, NULL);
        close(in->pipe[0]);
        close(in->pipe[1]);
        pthread_mutex_destroy(&in->lock);
        free(in);
        return err_set(err, "cannot start a thread: %s", strerror(rc));
    }
    *out = in;
    return 0;
}

void interrupt_close(struct interrupt *in)
{
    if (!in)
        return;
    if (!in->ignored) {
        pthread_mutex_lock(&in->lock);
        in->closing = true;
        pthread_mutex_unlock(&in->lock);
        pthread_kill(in->thread, SIGINT);
        pthread_join(in->thread, NULL);
    }
    pthread_sigmask(SIG_SETMASK, &in->old, NULL);
    close(in->pipe[0]);
    close(in->pipe[1]);
    pthread_mutex_destroy(&in->lock);
    free(in);
}

/* Returns whether it was pressed in the state that ends; keep: the next one knows of it too. */
static bool set_state(struct interrupt *in, enum state state, struct ps_stream *s, bool keep)
{
    pthread_mutex_lock(&in->lock);
    bool pressed = in->pressed;
    in->state = state;
    in->stream = s;
    in->pressed = keep && pressed;
    if (s && in->pressed)
        ps_stream_cancel(s);
    pthread_mutex_unlock(&in->lock);
    return pressed;
}

void interrupt_begin(struct interrupt *in)
{
    set_state(in, WATCHES, NULL, false);
}

void interrupt_watch(struct interrupt *in, struct ps_stream *s)
{
    set_state(in, WATCHES, s, true);
}

bool interrupt_rest(struct interrupt *in)
{
    return set_state(in, RESTS, NULL, false);
}

int interrupt_fd(const struct interrupt *in)
{
    return in->pipe[0];
}

void interrupt_taken(struct interrupt *in)
{
    char bytes[64];
    while (read(in->pipe[0], bytes, sizeof bytes) > 0)
        ;
}
