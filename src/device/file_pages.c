/* See file_pages.h. */
#include "device/file_pages.h"

#include "base/sysmem.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ASK_BYTES = 128 << 10 /* Linux cuts a longer request short to the device's read-ahead window, of this size by default */ };

/* What the whole pages within, or those touched by, bytes [from, to) of a tensor are to do. */
static void advise(const struct gguf_tensor *t, u64 from, u64 to, bool touched, int advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)t->data + from, end = (uintptr_t)t->data + to;
    begin = (touched ? begin : begin + page - 1) / page * page;
    end = (touched ? end + page - 1 : end) / page * page;
    if (end > begin)
        madvise((void *)begin, end - begin, advice); /* a refusal costs speed only */
}

void pages_ask(const struct gguf_tensor *t, u64 from, u64 to)
{
    for (; from < to; from += ASK_BYTES)
        advise(t, from, min_u64(from + ASK_BYTES, to), true, MADV_WILLNEED);
}

void pages_forget(const struct gguf_tensor *t, u64 from, u64 to, bool scarce)
{
    advise(t, from, to, false, MADV_DONTNEED); /* a private read-only mapping: it can be read again */
#if defined(__APPLE__) /* there MADV_DONTNEED only puts pages first in line, and posix_fadvise is missing */
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = ((uintptr_t)t->data + from + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)t->data + to) / page * page;
    if (scarce && t->fd >= 0 && end > begin)
        msync((void *)begin, end - begin, MS_INVALIDATE);
#elif defined(POSIX_FADV_DONTNEED)
    if (scarce && t->fd >= 0)
        posix_fadvise(t->fd, (off_t)(t->offset + from), (off_t)(to - from), POSIX_FADV_DONTNEED);
#else
    (void)scarce;
#endif
}

/* In the order in which they lie in memory, which is the files'. */
static int by_place(const void *a, const void *b)
{
    const struct plan_weight *x = *(const struct plan_weight *const *)a, *y = *(const struct plan_weight *const *)b;
    return (x->tensor->data > y->tensor->data) - (x->tensor->data < y->tensor->data);
}

const struct plan_weight **pages_order(const struct plan *p, u64 *total, bool *scarce)
{
    const struct plan_weight **order = mem_array(p->n_weights, sizeof *order);
    *total = 0;
    for (u32 i = 0; order && i < p->n_weights; i++) {
        order[i] = &p->weights[i];
        *total += p->weights[i].file_bytes;
    }
    if (order)
        qsort(order, p->n_weights, sizeof *order, by_place);
    *scarce = sysmem_available() / 2 < *total; /* 0: not known */
    return order;
}

int pages_refuse(const struct plan_weight *w, u64 bad, struct err *err)
{
    char name[96];
    err_quote(name, sizeof name, w->tensor->name.at, w->tensor->name.len);
    return err_set(err, "tensor \"%s\": matrix %u, row %u holds a value that is not finite; the file is damaged or badly converted",
                   name, (u32)(bad / w->n_out), (u32)(bad % w->n_out));
}
