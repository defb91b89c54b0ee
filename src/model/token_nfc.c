/* Normalization Form C with utf8proc's tables, as of Unicode 9, because Hugging Face's tokenizers
 * stays there: a character that later versions gave a combining class or a decomposition is inert.
 * The order of combining marks is ours: utf8proc sorts them by exchanging neighbours, which is
 * quadratic in a text of nothing but marks. */
#include "model/token_parts.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum {
    N_CLASSES = 256,
    DECOMPOSED_MAX = 8 /* code points of one character; Unicode's canonical ones reach 4 */
};

/* What Unicode 10 to 17 added to normalisation: marks with a class, composites, and the characters
 * those begin with. Ranges that hold inert starters too are no worse for it: by Unicode's stability
 * policy none of them takes part in anything older. */
static const u32 later[][2] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ADD},   {0x1AE0, 0x1AEB},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0x105C0, 0x105FF}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC},
    {0x10EFA, 0x10EFB}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11380, 0x113FF}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
    {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16100, 0x1613F}, {0x16D40, 0x16D7F}, {0x16FF0, 0x16FF1},
    {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6},
    {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5},
};

static bool is_later(u32 cp)
{
    size_t lo = 0, hi = COUNT(later);
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > later[mid][1])
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < COUNT(later) && cp >= later[lo][0];
}

/* Appends the canonical decomposition of every character; returns the number of code points, -1
 * without memory. */
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
        ptrdiff_t m = cp < 0xC0 || is_later(cp)
                          ? 0
                          : utf8proc_decompose_char((i32)cp, cps + n, DECOMPOSED_MAX,
                                                    UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, NULL);
        if (m <= 0)
            cps[n] = (i32)cp, m = 1;
        n += (size_t)m;
    }
    *out = cps;
    return cps ? (ptrdiff_t)n : -1;
}

static u32 class_of(i32 cp)
{
    return cp < 0x300 || is_later((u32)cp) ? 0
                                           : (u32)utf8proc_get_property(cp)->combining_class & 0xFF;
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

/* Composes what lies between inert characters; returns the new length. */
static size_t compose(i32 *cps, size_t n)
{
    size_t w = 0;
    for (size_t i = 0; i < n;) {
        size_t start = i;
        while (i < n && !is_later((u32)cps[i]))
            i++;
        ptrdiff_t m = utf8proc_normalize_utf32(cps + start, (ptrdiff_t)(i - start),
                                               UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        m = m < 0 ? (ptrdiff_t)(i - start) : m;
        memmove(cps + w, cps + start, (size_t)m * sizeof *cps);
        w += (size_t)m;
        if (i < n)
            cps[w++] = cps[i++];
    }
    return w;
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
        n = (ptrdiff_t)compose(cps, (size_t)n);
        made = malloc((size_t)n * 4 + 1);
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
