/* Errors, memory and the clock. See base.h. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
    HUGE_PAGE = 2 << 20,
    PAGE = 64 << 10 /* a multiple of every system's: 4 KiB on x86-64, 16 on Macs, 4, 16 or 64 on Linux for Arm */
};

int err_set(struct err *err, const char *fmt, ...)
{
    if (!err)
        return -1;
    va_list args;
    va_start(args, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    err->kind = 0;
    for (char *c = err->text; *c; c++)
        if ((u8)*c < 0x20 || *c == 0x7F)
            *c = '?';
    return -1;
}

const char *err_quote(char *buf, size_t n, const void *text, size_t len)
{
    const u8 *s = text;
    size_t w = 0;
    for (size_t i = 0; i < len; i++) {
        bool plain = s[i] >= 0x20 && s[i] < 0x7F && s[i] != '\\' && s[i] != '"';
        size_t need = plain ? 1 : 4;
        if (w + need + 4 > n) { /* room for "..." and the NUL */
            memcpy(buf + w, "...", 3);
            w += 3;
            break;
        }
        if (plain)
            buf[w] = (char)s[i];
        else
            snprintf(buf + w, 5, "\\x%02x", s[i]);
        w += need;
    }
    buf[w] = 0;
    return buf;
}

void *mem_alloc(u64 bytes)
{
    if (bytes == 0)
        bytes = 1;
    if (bytes < HUGE_PAGE) {
        void *p = aligned_alloc(64, round_up_u64(bytes, 64));
        if (p)
            memset(p, 0, bytes);
        return p;
    }
    if (bytes > SIZE_MAX - HUGE_PAGE)
        return NULL;
    /* Map one huge page more and give back both ends, so that the region starts on a huge page. */
    u64 size = round_up_u64(bytes, PAGE);
    u8 *p = mmap(NULL, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    u64 head = round_up_u64((u64)(uintptr_t)p, HUGE_PAGE) - (u64)(uintptr_t)p;
    if (head)
        munmap(p, head);
    munmap(p + head + size, HUGE_PAGE - head);
    p += head;
#ifdef MADV_HUGEPAGE
    madvise(p, size, MADV_HUGEPAGE); /* advice: a refusal costs speed only */
#endif
    return p;
}

void mem_free(void *p, u64 bytes)
{
    if (!p)
        return;
    if (bytes < HUGE_PAGE)
        free(p);
    else
        munmap(p, round_up_u64(bytes, PAGE));
}

void *mem_array(u64 n, u64 item_bytes)
{
    u64 bytes;
    if (!mul_u64(n ? n : 1, item_bytes ? item_bytes : 1, &bytes) || bytes > SIZE_MAX)
        return NULL;
    return calloc(1, bytes);
}

double time_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
