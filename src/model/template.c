/* The parent of worker.py: finds a Python that has jinja2, starts it with posix_spawn (the process
 * has threads, so nothing of ours runs between fork and exec), asks over a socketpair with a
 * deadline, and kills and reaps it when the answer does not come. The worker is not trusted:
 * lengths are checked, its text is escaped before it enters a message. When one is gone the next is
 * begun at once and awaited by the next render, whose 2 s hold the rest of the start (0.1 s). */
#include "model/template.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"

static const u8 worker_py[] = {
#include "worker_py.h"
};

/* A first start may read Python from a cold disk, on a machine with other things to do; later starts have the 2 s of their render. */
enum { START_TIMEOUT_MS = 30000 };

/* As in worker.py. */
enum { DONE, FAILED, LIMIT, NO_JINJA2 };
enum { COMPILE = 1, RENDER = 2 };
enum { GENERATE = 1, TOOLS = 2, KWARGS = 4 };

struct part {
    const char *at;
    size_t len;
};

struct template
{
    pthread_mutex_t lock; /* over all below */
    char *python;         /* the interpreter that worked */
    char *source, *bos, *eos;
    size_t source_len;
    pid_t pid; /* 0: no worker */
    int fd;    /* -1 then */
    bool confined;
    bool starting; /* worker_begin done, worker_ready not yet */
    double begun;
};

    /* ---- Bytes with a deadline
     * ------------------------------------------------------------------------------- */

#ifndef MSG_NOSIGNAL /* macOS says it per socket, see socket_pair */
#define MSG_NOSIGNAL 0
#endif

enum io { IO_DONE, IO_LATE, IO_GONE };

static enum io await(int fd, short events, double deadline)
{
    for (;;) {
        double left = deadline - time_now();
        if (left <= 0)
            return IO_LATE;
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, (int)(left * 1e3) + 1);
        if (n > 0)
            return IO_DONE; /* a hang-up too: send and recv tell */
        if (n < 0 && errno != EINTR)
            return IO_GONE;
    }
}

static enum io send_all(int fd, const void *bytes, size_t len, double deadline)
{
    const u8 *at = bytes;
    while (len) {
        ssize_t n = send(fd, at, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0) {
            at += n;
            len -= (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS) {
            enum io io = await(fd, POLLOUT, deadline);
            if (io != IO_DONE)
                return io;
        } else if (errno != EINTR) {
            return IO_GONE;
        }
    }
    return IO_DONE;
}

static enum io recv_all(int fd, void *bytes, size_t len, double deadline)
{
    u8 *at = bytes;
    while (len) {
        ssize_t n = recv(fd, at, len, MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            len -= (size_t)n;
        } else if (n == 0) {
            return IO_GONE;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            enum io io = await(fd, POLLIN, deadline);
            if (io != IO_DONE)
                return io;
        } else if (errno != EINTR) {
            return IO_GONE;
        }
    }
    return IO_DONE;
}

static void put_u32(u8 *to, u32 v)
{
    for (int i = 0; i < 4; i++)
        to[i] = (u8)(v >> 8 * i);
}

static u32 get_u32(const u8 *at)
{
    return (u32)at[0] | (u32)at[1] << 8 | (u32)at[2] << 16 | (u32)at[3] << 24;
}

/* An answer: *status and a malloc'd text with a NUL after its end. A worker that breaks the form is
 * gone. */
static enum io recv_answer(int fd, double deadline, u32 *status, struct template_text *text)
{
    u8 head[8];
    enum io io = recv_all(fd, head, sizeof head, deadline);
    if (io != IO_DONE)
        return io;
    u32 len = get_u32(head + 4);
    if (len > TEMPLATE_MAX_BYTES || !(text->text = malloc((size_t)len + 1)))
        return IO_GONE;
    io = recv_all(fd, text->text, len, deadline);
    if (io != IO_DONE) {
        free(text->text);
        text->text = NULL;
        return io;
    }
    text->text[len] = 0;
    text->len = len;
    *status = get_u32(head);
    return IO_DONE;
}

/* ---- The process ---- */

/* Ends and reaps the worker. Returns its wait status, or -1 when somebody else reaped it. */
static int worker_stop(struct template *t)
{
    int status = -1;
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
    if (t->pid > 0) {
        kill(t->pid, SIGKILL);
        pid_t got;
        while ((got = waitpid(t->pid, &status, 0)) < 0 && errno == EINTR)
            ;
        if (got != t->pid)
            status = -1;
    }
    t->pid = 0;
    t->starting = false;
    return status;
}

/* One that died by itself between two calls is no error of the next. */
static bool worker_alive(struct template *t)
{
    if (t->pid <= 0)
        return false;
    pid_t got;
    while ((got = waitpid(t->pid, NULL, WNOHANG)) < 0 && errno == EINTR)
        ;
    if (got == 0)
        return true;
    t->pid = 0; /* reaped */
    worker_stop(t);
    return false;
}

/* Both ends close on exec; the child's copy on descriptor 0 does not. */
static int socket_pair(int fds[2])
{
#ifdef SOCK_CLOEXEC
    return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds);
#else /* macOS */
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
        return -1;
    int on = 1;
    fcntl(fds[0], F_SETFD, FD_CLOEXEC);
    fcntl(fds[1], F_SETFD, FD_CLOEXEC);
    return setsockopt(fds[0], SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
}

/* argv: ps shows a short line; the worker's text comes over the socket. -I: no PYTHON* variables,
 * no user's site-packages, no current folder on the path. The environment holds the time zone and
 * nothing else. */
static int worker_spawn(struct template *t, const char *python, struct err *err)
{
    int fds[2];
    if (socket_pair(fds) != 0)
        return err_set(err, "chat template: no socket for the renderer: %s", strerror(errno));
    char boot[160], zone[256];
    snprintf(boot, sizeof boot,
             "import socket; s = socket.socket(fileno=0); exec(compile(s.recv(%zu, "
             "socket.MSG_WAITALL), 'worker', 'exec'))",
             sizeof worker_py);
    const char *tz = getenv("TZ");
    snprintf(zone, sizeof zone, "TZ=%s", tz ? tz : "");
    char *argv[] = {(char *)(uintptr_t)python, "-I", "-c", boot, NULL};
    char *envp[] = {tz && strlen(tz) < sizeof zone - 4 ? zone : NULL, NULL};

    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    if (posix_spawn_file_actions_init(&files) != 0 || posix_spawnattr_init(&attr) != 0) {
        close(fds[0]);
        close(fds[1]);
        return err_set(err, "chat template: out of memory");
    }
    posix_spawn_file_actions_adddup2(&files, fds[1], 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    sigset_t set;
    sigfillset(&set);
    sigdelset(&set, SIGKILL);
    sigdelset(&set, SIGSTOP);
    posix_spawnattr_setsigdefault(&attr, &set);
    sigemptyset(&set);
    sigaddset(&set,
              SIGINT); /* Ctrl-C is for us; worker.py ignores it, this covers Python's start */
    posix_spawnattr_setsigmask(&attr, &set);
    short flags = POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK;
#ifdef POSIX_SPAWN_CLOEXEC_DEFAULT /* macOS: a socket made by another thread may not be marked yet */
    flags |= POSIX_SPAWN_CLOEXEC_DEFAULT;
#endif
    posix_spawnattr_setflags(&attr, flags);
    int rc = posix_spawn(&t->pid, python, &files, &attr, argv, envp);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    close(fds[1]);
    t->fd = fds[0];
    if (rc != 0) {
        t->pid = 0;
        worker_stop(t);
        return err_set(err, "chat template: %s does not start: %s", python, strerror(rc));
    }
    return 0;
}

/* Half a start: the worker loads Python while we do something else. */
static int worker_begin(struct template *t, const char *python, struct err *err)
{
    if (worker_spawn(t, python, err) != 0)
        return -1;
    t->starting = true;
    t->begun = time_now();
    if (send_all(t->fd, worker_py, sizeof worker_py, t->begun + START_TIMEOUT_MS * 1e-3) == IO_DONE)
        return 0;
    worker_stop(t);
    return err_set(err, "chat template: %s ended while starting", python);
}

/* The other half. One that is only late stays, for a later call to find it ready. */
static int worker_ready(struct template *t, const char *python, double deadline, struct err *err)
{
    u32 status = DONE;
    struct template_text text = {0};
    enum io io = recv_answer(t->fd, deadline, &status, &text);
    if (io == IO_LATE) {
        if (time_now() - t->begun > START_TIMEOUT_MS * 1e-3)
            worker_stop(t);
        return err_set(err, "chat template: %s does not start in time", python);
    }
    if (io == IO_GONE) {
        worker_stop(t);
        return err_set(err, "chat template: %s ended while starting", python);
    }
    t->starting = false;
    if (status != DONE) {
        char quoted[200];
        worker_stop(t);
        err_set(err, "chat template: %s: %s", python,
                err_quote(quoted, sizeof quoted, text.text, text.len));
        free(text.text);
        return -1;
    }
    const char *path = strchr(text.text, ' ');
    t->confined = strncmp(text.text, "confined ", 9) == 0;
    if (!t->python)
        t->python = strdup(path && path[1] == '/' ? path + 1 : python);
    free(text.text);
    if (!t->python) {
        worker_stop(t);
        return err_set(err, "chat template: out of memory");
    }
    return 0;
}

/* One question. On success *out holds the answer. On failure err is set; after anything but the
 * template's own refusal the worker is gone. */
static int worker_ask(struct template *t, u32 kind, u32 flags, const struct part part[3],
                      double deadline, struct template_text *out, struct err *err)
{
    u8 head[20];
    put_u32(head, kind);
    put_u32(head + 4, flags);
    for (int i = 0; i < 3; i++)
        put_u32(head + 8 + 4 * i, (u32)part[i].len);
    enum io io = send_all(t->fd, head, sizeof head, deadline);
    for (int i = 0; i < 3 && io == IO_DONE; i++)
        io = send_all(t->fd, part[i].at, part[i].len, deadline);
    u32 status = DONE;
    struct template_text text = {0};
    if (io == IO_DONE)
        io = recv_answer(t->fd, deadline, &status, &text);
    if (io == IO_LATE) {
        worker_stop(t);
        return err_set(
            err,
            "chat template: no %s within %d ms: a loop without end? (the renderer was stopped)",
            kind == COMPILE ? "compilation" : "text", TEMPLATE_TIMEOUT_MS);
    }
    if (io == IO_GONE) {
        int how = worker_stop(t);
        if (how >= 0 && WIFSIGNALED(how) && WTERMSIG(how) != SIGKILL)
            return err_set(err, "chat template: the renderer died of signal %d", WTERMSIG(how));
        return err_set(err, "chat template: the renderer died");
    }
    if (status == DONE) {
        *out = text;
        return 0;
    }
    if (status != FAILED)
        worker_stop(t);
    char quoted[400];
    err_set(err, "%s", err_quote(quoted, sizeof quoted, text.text, text.len));
    free(text.text);
    return -1;
}

static int worker_compile(struct template *t, double deadline, struct err *err)
{
    const struct part part[3] = {
        {t->source, t->source_len}, {t->bos, strlen(t->bos)}, {t->eos, strlen(t->eos)}};
    struct template_text none = {0};
    if (worker_ask(t, COMPILE, 0, part, deadline, &none, err) != 0)
        return -1;
    free(none.text);
    return 0;
}

/* ---- The search for Python ---- */

#define INSTALL                                                                             \
    "install the package python3-jinja2 (Debian, Ubuntu; on macOS sh run.sh does it); raw " \
    "completions work without"

/* Starts the worker with this interpreter if it has jinja2. *tried: whether there was one to start, whether it was too slow. */
enum { TRIED = 1, TOO_SLOW = 2 };
static bool python_try(struct template *t, const char *path, u32 *tried)
{
    if (path[0] != '/' || access(path, X_OK) != 0)
        return false;
    *tried |= TRIED;
    if (worker_begin(t, path, NULL) != 0)
        return false;
    int rc = worker_ready(t, path, t->begun + START_TIMEOUT_MS * 1e-3, NULL);
    if (rc != 0 && time_now() - t->begun > START_TIMEOUT_MS * 1e-3)
        *tried |= TOO_SLOW;
    if (rc != 0)
        worker_stop(t);
    return rc == 0;
}

static bool python_on_path(struct template *t, u32 *tried)
{
    char path[PATH_MAX];
    const char *at = getenv("PATH");
    while (at && *at) {
        size_t n = strcspn(at, ":");
        int len =
            snprintf(path, sizeof path, "%.*s/python3", (int)(n < PATH_MAX ? n : PATH_MAX), at);
        if (len < (int)sizeof path && python_try(t, path, tried))
            return true;
        at += n + (at[n] == ':');
    }
    return false;
}

static int python_find(struct template *t, struct err *err)
{
    u32 tried = 0;
    const char *only = getenv("PLAINSONG_PYTHON");
    if (only && *only) {
        if (python_try(t, only, &tried))
            return 0;
        char quoted[120];
        return err_set(
            err,
            "chat template: PLAINSONG_PYTHON=%s is %s; chat needs jinja2 3.1 or later: " INSTALL,
            err_quote(quoted, sizeof quoted, only, strlen(only)),
            tried & TOO_SLOW ? "too slow to start" : tried ? "no Python 3 that has jinja2" : "not the full path of a program");
    }
    if (python_on_path(t, &tried) || python_try(t, "/usr/bin/python3", &tried))
        return 0;
    char path[PATH_MAX];
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    bool xdg = data && data[0] == '/';
    if (!xdg)
        data = home ? home : "";
    int len = snprintf(path, sizeof path, "%s%s/plainsong/venv/bin/python3", data,
                       xdg ? "" : "/.local/share");
    if (len < (int)sizeof path && python_try(t, path, &tried))
        return 0;
    return err_set(err, "chat template: %s; chat needs Python 3 with jinja2 3.1 or later: " INSTALL,
                   tried & TOO_SLOW ? "python3 is too slow to start" : tried ? "no python3 here has jinja2" : "no python3 found");
}

/* ---- The contract ---- */

int template_open(struct template **out, const char *source, size_t len, const char *bos,
                  const char *eos, struct err *err)
{
    *out = NULL;
    if (len > TEMPLATE_MAX_BYTES)
        return err_set(err, "chat template: %zu bytes, expected at most %d", len,
                       TEMPLATE_MAX_BYTES);
    struct template *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(err, "chat template: out of memory");
    t->fd = -1;
    if (pthread_mutex_init(&t->lock, NULL) != 0) {
        free(t);
        return err_set(err, "chat template: out of memory");
    }
    t->source = malloc(len + 1);
    t->source_len = len;
    t->bos = strdup(bos);
    t->eos = strdup(eos);
    if (!t->source || !t->bos || !t->eos) {
        err_set(err, "chat template: out of memory");
        goto fail;
    }
    if (len)
        memcpy(t->source, source, len);
    if (python_find(t, err) != 0 ||
        worker_compile(t, time_now() + TEMPLATE_TIMEOUT_MS * 1e-3, err) != 0)
        goto fail;
    *out = t;
    return 0;
fail:
    template_close(t);
    return -1;
}

void template_close(struct template *t)
{
    if (!t)
        return;
    worker_stop(t);
    pthread_mutex_destroy(&t->lock);
    free(t->python);
    free(t->source);
    free(t->bos);
    free(t->eos);
    free(t);
}

int template_render(struct template *t, const char *messages_json, const char *tools_json,
                    const char *kwargs_json, bool add_generation_prompt, struct template_text *out,
                    struct err *err)
{
    const struct part part[3] = {{messages_json, strlen(messages_json)},
                                 {tools_json, tools_json ? strlen(tools_json) : 0},
                                 {kwargs_json, kwargs_json ? strlen(kwargs_json) : 0}};
    u32 flags = (add_generation_prompt ? GENERATE : 0) | (tools_json ? TOOLS : 0) |
                (kwargs_json ? KWARGS : 0);
    *out = (struct template_text){0};
    const size_t most = (size_t)4 * TEMPLATE_MAX_BYTES;
    for (size_t i = 0, sum = 0; i < COUNT(part); sum += part[i++].len)
        if (part[i].len > most - sum)
            return err_set(
                err, "chat template: messages, tools and variables have more than %zu bytes", most);

    pthread_mutex_lock(&t->lock);
    double deadline = time_now() + TEMPLATE_TIMEOUT_MS * 1e-3;
    int rc = worker_alive(t) ? 0 : worker_begin(t, t->python, err);
    if (rc == 0 && t->starting) {
        rc = worker_ready(t, t->python, deadline, err);
        if (rc == 0 && worker_compile(t, deadline, err) != 0) {
            worker_stop(t); /* without its template it is of no use */
            rc = -1;
        }
    }
    if (rc == 0)
        rc = worker_ask(t, RENDER, flags, part, deadline, out, err);
    if (t->pid == 0)
        worker_begin(t, t->python, NULL); /* if it fails, the next call says why */
    pthread_mutex_unlock(&t->lock);
    return rc;
}

bool template_confined(struct template *t)
{
    pthread_mutex_lock(&t->lock);
    bool confined = t->confined;
    pthread_mutex_unlock(&t->lock);
    return confined;
}
