/* What a server says when its device fails or is not exact: a real server in a child process, asked over a socket. The
 * hook that is called when the model is loaded does to the device what a GPU's backend would. */
#include "check.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "engine/engine.h"
#include "serve/serve.h"

static const char WHY[] = "cuda: an \"illegal\" address was met";
static const char FOUND[] = "self-test: division differs";

struct server_child {
    pid_t pid;
    int log, tell, told; /* its stderr; a byte here breaks its device; a byte comes back when it is broken */
    u16 port;
    char text[65536];    /* of the log */
    size_t n;
};

/* ---- in the child ---- */

static bool warns;
static int told_fd, done_fd;
static struct ps_engine *loaded_engine;

static void *break_when_told(void *arg)
{
    char c;
    (void)arg;
    if (read(told_fd, &c, 1) != 1)
        return NULL;
    device_break(engine_borrow(loaded_engine), WHY);
    engine_give_back(loaded_engine);
    return write(done_fd, "x", 1) == 1 ? NULL : NULL;
}

static void loaded(struct ps_engine *e)
{
    pthread_t thread;
    loaded_engine = e;
    if (warns) {
        device_warn(engine_borrow(e), FOUND);
        engine_give_back(e);
    }
    if (pthread_create(&thread, NULL, break_when_told, NULL) == 0)
        pthread_detach(thread);
}

/* ---- the client ---- */

static void read_log(struct server_child *c, const char *until)
{
    while (!until || !strstr(c->text, until)) {
        ssize_t n = read(c->log, c->text + c->n, sizeof c->text - 1 - c->n);
        if (n <= 0)
            break;
        c->n += (size_t)n;
        c->text[c->n] = 0;
    }
    if (until && !strstr(c->text, until))
        fail_msg("the log has no \"%s\": %s", until, c->text);
}

/* The answer's status; headers and body in `answer`. */
static int ask(const struct server_child *c, const char *method, const char *path, const char *body, char *answer, size_t room)
{
    char request[1024];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(c->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), len;
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    len = snprintf(request, sizeof request, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
                   method, path, strlen(body), body);
    assert_int_equal(write(fd, request, (size_t)len), len);
    size_t n = 0;
    for (ssize_t got; n < room - 1 && (got = read(fd, answer + n, room - 1 - n)) > 0;)
        n += (size_t)got;
    answer[n] = 0;
    close(fd);
    assert_true(n > 12);
    return atoi(answer + 9);
}

static void start_server(struct server_child *c)
{
    int log[2], tell[2], told[2];
    char answer[4096];
    memset(c, 0, sizeof *c);
    assert_int_equal(pipe(log) | pipe(tell) | pipe(told), 0);
    c->pid = fork();
    assert_true(c->pid >= 0);
    if (c->pid == 0) {
        struct err err;
        struct serve_opts o = {.model = "models/plainsong-tiny-q4_0.gguf", .loaded = loaded,
                               .engine = {.n_slots = 1, .n_ctx = 256}};
        dup2(log[1], STDERR_FILENO);
        close(log[1]); /* nobody else writes: the log ends with this process */
        close(tell[1]);
        told_fd = tell[0];
        done_fd = told[1];
        int rc = serve_run(&o, &err);
        if (rc)
            fprintf(stderr, "%s\n", err.text);
        _exit(rc != 0);
    }
    close(log[1]);
    close(tell[0]);
    close(told[1]);
    c->log = log[0];
    c->tell = tell[1];
    c->told = told[0];
    read_log(c, " ready ");
    c->port = (u16)atoi(strstr(c->text, "127.0.0.1:") + 10);
    do /* the line is written a moment before requests are taken */
        ask(c, "GET", "/health", "", answer, sizeof answer);
    while (strstr(answer, "\"loading\""));
}

/* Ends it and reads the rest of its log. */
static void stop_server(struct server_child *c)
{
    int status;
    kill(c->pid, SIGTERM);
    read_log(c, NULL);
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    close(c->log);
    close(c->tell);
    close(c->told);
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("no %s in: %s", part, text);
}

static const char *const CHAT = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":4,\"seed\":1}";

/* ---- tests ---- */

static void a_broken_device_is_said_everywhere(void **state)
{
    (void)state;
    struct server_child c;
    char a[65536], x;
    warns = false;
    start_server(&c);
    assert_int_equal(ask(&c, "GET", "/health", "", a, sizeof a), 200);
    has(a, "{\"status\":\"ok\"}");
    assert_int_equal(ask(&c, "POST", "/v1/chat/completions", CHAT, a, sizeof a), 200);
    has(a, "-c1-cpu\"");
    assert_int_equal(ask(&c, "GET", "/metrics", "", a, sizeof a), 200);
    has(a, "\nplainsong_device_broken 0\n");
    has(a, "\nplainsong_device_exact 1\n");

    assert_int_equal(write(c.tell, "x", 1), 1);
    assert_int_equal(read(c.told, &x, 1), 1);
    assert_int_equal(ask(&c, "GET", "/health", "", a, sizeof a), 503);
    has(a, "{\"status\":\"broken\",\"message\":\"cuda: an \\\"illegal\\\" address was met\"}");
    static const char *const PATHS[] = {"/v1/chat/completions", "/v1/messages"};
    for (u32 i = 0; i < COUNT(PATHS); i++) {
        assert_int_equal(ask(&c, "POST", PATHS[i], CHAT, a, sizeof a), 503);
        has(a, "an \\\"illegal\\\" address was met");
        has(a, "Retry-After:");
    }
    assert_int_equal(ask(&c, "GET", "/metrics", "", a, sizeof a), 200);
    has(a, "\nplainsong_device_broken 1\n");
    stop_server(&c);
    const char *said = strstr(c.text, " broken ");
    assert_non_null(said);
    has(said, "address was met");
    assert_null(strstr(said + 1, " broken ")); /* once */
}

static void a_device_that_is_not_exact_makes_no_claim(void **state)
{
    (void)state;
    struct server_child c;
    char a[65536];
    warns = true;
    start_server(&c);
    assert_int_equal(ask(&c, "GET", "/health", "", a, sizeof a), 200);
    has(a, "{\"status\":\"ok\",\"warning\":\"self-test: division differs\"}");
    assert_int_equal(ask(&c, "POST", "/v1/chat/completions", CHAT, a, sizeof a), 200);
    has(a, "-inexact-cpu\"");
    assert_null(strstr(a, "-c1-"));
    assert_int_equal(ask(&c, "GET", "/metrics", "", a, sizeof a), 200);
    has(a, "\nplainsong_device_exact 0\n");
    stop_server(&c);
    const char *said = strstr(c.text, " warning ");
    assert_non_null(said);
    has(said, FOUND);
    assert_null(strstr(said + 1, " warning "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_device_is_said_everywhere),
        cmocka_unit_test(a_device_that_is_not_exact_makes_no_claim),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
