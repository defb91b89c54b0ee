/* UTF-8, one character at a time. Ill-formed bytes are told by maximal parts (the Unicode
 * Standard, 3.9). */
#include "model/token_parts.h"

#include <string.h>

int utf8_scan(const u8 *s, size_t n, u32 *cp)
{
    u8 a = s[0];
    if (a < 0x80) {
        *cp = a;
        return 1;
    }
    if (a < 0xC2 || a > 0xF4)
        return -1;
    int len = a < 0xE0 ? 2 : a < 0xF0 ? 3 : 4;
    /* The second byte also shuts out overlong forms, surrogates and what lies past U+10FFFF. */
    u8 lo = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
    u8 hi = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
    u32 v = a & (0x7Fu >> len);
    for (int i = 1; i < len; i++, lo = 0x80, hi = 0xBF) {
        if ((size_t)i == n)
            return 0;
        if (s[i] < lo || s[i] > hi)
            return -i;
        v = v << 6 | (s[i] & 0x3F);
    }
    *cp = v;
    return len;
}

size_t utf8_check(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        u64 word;
        if (n - i >= 8 && (memcpy(&word, s + i, 8), !(word & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        u32 cp;
        int len = utf8_scan((const u8 *)s + i, n - i, &cp);
        if (len <= 0)
            return i;
        i += (size_t)len;
    }
    return n;
}

size_t utf8_put(char *out, u32 cp)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)((0xF00u >> len & 0xFF) | cp);
    return len;
}
