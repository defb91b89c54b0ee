/* Signals with a time limit (serve/signals.h): each is told once with its number, SIGPIPE is nobody's business, a wake ends a
 * wait, and what was before is there again after the end. Nothing here waits for a clock to be right: the limits are
 * either never reached or 0. */
#include "check.h"

#include "serve/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { LONG_MS = 60 * 1000 };

static bool blocked(int number)
{
    sigset_t now;
    assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &now), 0);
    return sigismember(&now, number) == 1;
}

static void each_is_told_once(void **state)
{
    (void)state;
    static const int numbers[] = {SIGHUP, SIGTERM, SIGINT, SIGUSR1};
    struct signals *s;
    struct err err;
    assert_int_equal(signals_open(&s, &err), 0);
    for (u32 i = 0; i < COUNT(numbers); i++) {
        assert_true(blocked(numbers[i]));
        kill(getpid(), numbers[i]);
        assert_int_equal(signals_wait(s, LONG_MS), numbers[i]);
        assert_int_equal(signals_wait(s, 0), 0);
    }
    signals_close(s);
    for (u32 i = 0; i < COUNT(numbers); i++)
        assert_false(blocked(numbers[i]));
    signals_close(NULL);
}

/* A reader that went away: the write fails, the process stays, and no one is told. */
static void a_broken_pipe_is_no_signal(void **state)
{
    (void)state;
    struct signals *s;
    struct err err;
    int fds[2];
    assert_int_equal(signals_open(&s, &err), 0);
    assert_int_equal(pipe(fds), 0);
    close(fds[0]);
    assert_int_equal(write(fds[1], "x", 1), -1);
    kill(getpid(), SIGPIPE);
    kill(getpid(), SIGHUP); /* pending signals are taken in an order of the system's own */
    assert_int_equal(signals_wait(s, LONG_MS), SIGHUP);
    assert_int_equal(signals_wait(s, 0), 0);
    close(fds[1]);
    signals_close(s);
}

static void *wake(void *s)
{
    signals_wake(s);
    return NULL;
}

static void a_wake_ends_a_wait(void **state)
{
    (void)state;
    struct signals *s;
    struct err err;
    pthread_t t;
    assert_int_equal(signals_open(&s, &err), 0);
    signals_wake(s); /* before: it is kept */
    assert_int_equal(signals_wait(s, LONG_MS), 0);
    assert_int_equal(pthread_create(&t, NULL, wake, s), 0);
    assert_int_equal(signals_wait(s, LONG_MS), 0);
    pthread_join(t, NULL);
    signals_close(s);
}

/* More than a pipe holds: neither the waker nor the end waits for a reader. */
static void nobody_reads(void **state)
{
    (void)state;
    struct signals *s;
    struct err err;
    assert_int_equal(signals_open(&s, &err), 0);
    for (u32 i = 0; i < 300000; i++)
        signals_wake(s);
    kill(getpid(), SIGTERM);
    signals_close(s);
    assert_false(blocked(SIGTERM));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_told_once),
        cmocka_unit_test(a_broken_pipe_is_no_signal),
        cmocka_unit_test(a_wake_ends_a_wait),
        cmocka_unit_test(nobody_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
