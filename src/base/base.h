/* The ground everything stands on: integer names, checked sizes, one error type, aligned memory.
 * Nothing here knows of models or machines. */
#ifndef PS_BASE_H
#define PS_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* One line for a person: what, where, what was found, what was wished. No newline. Set once, where the
 * cause is known; callers pass it on unchanged. Owned by the caller, valid until the next err_set. */
struct err {
    char text[512];
    int kind; /* 0, unless the layer that fails has kinds of its own (plainsong.h) */
};

/* Writes the line (truncated to fit; control bytes become '?'), kind 0, and returns -1, so that a failure is one
 * statement: `return err_set(err, "...")`. err may be NULL. */
int err_set(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Bytes that came from outside, made safe for a message: printable ASCII as it is, '\\' and '"' and the rest
 * as \xNN, cut with "..." when buf is full. Returns buf, NUL-terminated. n >= 8. */
const char *err_quote(char *buf, size_t n, const void *text, size_t len);

/* *out = a * b (a + b); false, with *out untouched, when the result does not fit. */
static inline bool mul_u64(u64 a, u64 b, u64 *out)
{
    u64 r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline bool add_u64(u64 a, u64 b, u64 *out)
{
    u64 r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

static inline u32 min_u32(u32 a, u32 b)
{
    return a < b ? a : b;
}

static inline u64 min_u64(u64 a, u64 b)
{
    return a < b ? a : b;
}

static inline u64 round_up_u64(u64 n, u64 to) /* to > 0; n + to must not wrap */
{
    return (n + to - 1) / to * to;
}

/* Zeroed memory aligned to 64 bytes (2 MiB and advised to huge pages when it is that large). Returns NULL
 * when there is none. mem_free takes the same size; NULL is fine. */
void *mem_alloc(u64 bytes);
void mem_free(void *p, u64 bytes);

/* calloc with a checked product; NULL on overflow or exhaustion. Released with free(). */
void *mem_array(u64 n, u64 item_bytes);

/* Seconds on a clock that never jumps. */
double time_now(void);

#endif
