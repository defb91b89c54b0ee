/* Normalization Form C with utf8proc's tables. The order of combining marks is ours: utf8proc sorts them by
 * exchanging neighbours, which is quadratic in a text of nothing but marks. */
#include "model/token_parts.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { N_CLASSES = 256, DECOMPOSED_MAX = 8 /* code points of one character; Unicode's canonical ones reach 4 */ };

/* Appends the canonical decomposition of every character; returns the number of code points, -1 without memory. */
static ptrdiff_t decompose(const char *text, size_t len, i32 **out)
{
    size_t cap = len + DECOMPOSED_MAX, n = 0; /* most texts have more bytes than that */
    i32 *cps = malloc(cap * sizeof *cps);
    for (size_t i = 0; cps && i < len;) {
        if (n + DECOMPOSED_MAX > cap) {
            cap *= 2;
            i32 *more = realloc(cps, cap * sizeof *cps);
            if (!more)
                free(cps);
            cps = more;
            if (!cps)
                break;
        }
        u32 cp;
        int k = utf8_scan((const u8 *)text + i, len - i, &cp); /* checked before: k > 0 */
        i += (size_t)k;
        ptrdiff_t m = utf8proc_decompose_char((i32)cp, cps + n, DECOMPOSED_MAX, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, NULL);
        n += m > 0 ? (size_t)m : 0;
    }
    *out = cps;
    return cps ? (ptrdiff_t)n : -1;
}

static u32 class_of(i32 cp)
{
    return cp < 0x300 ? 0 : (u32)utf8proc_get_property(cp)->combining_class & 0xFF;
}

/* A stable counting sort of a run of marks by class. spare has room for n. */
static void order_run(i32 *run, size_t n, i32 *spare)
{
    size_t start[N_CLASSES + 1] = {0};
    for (size_t i = 0; i < n; i++)
        start[class_of(run[i]) + 1]++;
    for (size_t c = 0; c < N_CLASSES; c++)
        start[c + 1] += start[c];
    memcpy(spare, run, n * sizeof *run);
    for (size_t i = 0; i < n; i++)
        run[start[class_of(spare[i])]++] = spare[i];
}

/* The canonical ordering: within each run of characters of class other than 0, by class. */
static int order_marks(i32 *cps, size_t n)
{
    i32 *spare = NULL;
    size_t room = 0;
    for (size_t i = 0; i < n;) {
        size_t run = i;
        bool sorted = true;
        for (u32 last = 0, c; i < n && (c = class_of(cps[i])) != 0; i++, last = c)
            sorted = sorted && c >= last;
        if (!sorted) {
            if (i - run > room) { /* to the next power of two, so that growing stays linear */
                free(spare);
                for (room = room ? room : 16; room < i - run;)
                    room *= 2;
                if (!(spare = malloc(room * sizeof *spare)))
                    return -1;
            }
            order_run(cps + run, i - run, spare);
        }
        i += i == run;
    }
    free(spare);
    return 0;
}

int nfc_text(const char *text, size_t len, char **out, size_t *out_len, struct err *err)
{
    size_t ascii = 0;
    while (ascii < len && !((u8)text[ascii] & 0x80))
        ascii++;
    *out = (char *)text;
    *out_len = len;
    if (ascii == len)
        return 0;
    i32 *cps;
    char *made = NULL;
    ptrdiff_t n = decompose(text, len, &cps);
    if (n >= 0 && order_marks(cps, (size_t)n) == 0) {
        n = utf8proc_normalize_utf32(cps, n, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        made = n >= 0 ? malloc((size_t)n * 4 + 1) : NULL;
    }
    size_t w = 0;
    for (ptrdiff_t i = 0; made && i < n; i++)
        w += utf8_put(made + w, (u32)cps[i]);
    free(cps);
    if (!made)
        return err_set(err, "no memory to normalise a text of %zu bytes", len);
    *out = made;
    *out_len = w;
    return 0;
}
