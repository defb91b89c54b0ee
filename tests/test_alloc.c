/* Nothing allocates from one token to the next: malloc and its kin are counted, in every thread, while eight streams
 * decode. This program replaces the C library's functions with counting ones, so it is not built with sanitizers. */
#include "check.h"

#include <stdatomic.h>

#include "plainsong.h"

static atomic_ulong calls;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#if !defined(SANITIZED) && defined(__GLIBC__)
#define COUNTS 1
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);
void *malloc(size_t n)
{
    atomic_fetch_add(&calls, 1);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&calls, 1);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&calls, 1);
    return __libc_realloc(p, n);
}
void *aligned_alloc(size_t align, size_t n)
{
    atomic_fetch_add(&calls, 1);
    return __libc_memalign(align, n);
}
#else
#define COUNTS 0
#endif

static void nothing_allocates_per_token(void **state)
{
    (void)state;
    enum { B = 8, N = 60 };
    struct ps_error err;
    struct ps_token t;
    struct ps_model *m = ps_model_open("models/plainsong-tiny-q4_0.gguf", &err);
    assert_non_null(m);
    struct ps_engine_options o = {.n_slots = B, .n_ctx = 256};
    struct ps_engine *e = ps_engine_open(m, &o, &err);
    assert_non_null(e);
    struct ps_stream *s[B];
    struct ps_decoder *d[B];
    for (u32 i = 0; i < B; i++) {
        u32 ids[20];
        for (u32 k = 0; k < 20; k++)
            ids[k] = 100 * i + k;
        struct ps_request r = {.ids = ids, .n_ids = 20, .max_tokens = N, .ignore_end = true,
                               .sampling = {.temperature = 1.0f, .top_p = 0.9f, .seed = i, .repeat_penalty = 1.1f,
                                            .repeat_last_n = 32}};
        s[i] = ps_stream_open(e, &r, &err);
        d[i] = ps_decoder_open(m, false);
        assert_non_null(s[i]);
    }
    unsigned long before = 0, after = 0;
    size_t len;
    for (u32 k = 0; k < N; k++)
        for (u32 i = 0; i < B; i++) {
            assert_int_equal(ps_stream_next(s[i], &t, &err), 1);
            ps_decoder_push(d[i], t.id, &len);
            if (k == 2 && i == 0)
                before = atomic_load(&calls);
            if (k == N - 1)
                after = atomic_load(&calls);
        }
    assert_int_equal(after - before, 0);
    assert_true(!COUNTS || before > 0); /* the counter counts */
    for (u32 i = 0; i < B; i++) {
        ps_stream_close(s[i]);
        ps_decoder_close(d[i]);
    }
    ps_engine_close(e);
    ps_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_allocates_per_token)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
