/* As much of cmocka as the programs of run.sh use, for a machine that no cmocka is installed for: one failure ends its case.
 * Prints TAP. Included by one test program each. */
#ifndef PS_ARM_CMOCKA_H
#define PS_ARM_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

static jmp_buf cmocka_failed;

#define cmocka_unit_test(f) {#f, f}
#define print_message(...) fprintf(stderr, __VA_ARGS__)
#define print_error(...) fprintf(stderr, __VA_ARGS__)
#define fail_msg(...) (fprintf(stderr, __VA_ARGS__), cmocka_fail(__FILE__, __LINE__, "failed"))
#define assert_true(x) ((x) ? (void)0 : cmocka_fail(__FILE__, __LINE__, #x))
#define assert_int_equal(a, b) ((long long)(a) == (long long)(b) ? (void)0 : cmocka_fail(__FILE__, __LINE__, #a " == " #b))
#define assert_memory_equal(a, b, n) (!memcmp(a, b, n) ? (void)0 : cmocka_fail(__FILE__, __LINE__, #a " equals " #b))

_Noreturn static inline void cmocka_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "\n%s:%d: %s\n", file, line, what);
    longjmp(cmocka_failed, 1);
}

static inline int cmocka_run(const struct CMUnitTest *tests, int n, int (*setup)(void **), int (*teardown)(void **))
{
    void *state = NULL;
    volatile int failed = 0;
    printf("1..%d\n", n);
    if (setup && setup(&state)) {
        printf("not ok 1 - setup\n");
        return 1;
    }
    for (volatile int i = 0; i < n; i++) {
        volatile int broken = 1;
        if (setjmp(cmocka_failed) == 0) {
            tests[i].run(&state);
            broken = 0;
        }
        failed += broken;
        printf("%sok %d - %s\n", broken ? "not " : "", i + 1, tests[i].name);
        fflush(stdout);
    }
    return (teardown && teardown(&state)) || failed;
}

#define cmocka_run_group_tests(tests, setup, teardown) cmocka_run(tests, (int)(sizeof(tests) / sizeof *(tests)), setup, teardown)

#endif
