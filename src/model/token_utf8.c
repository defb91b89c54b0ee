/* UTF-8 one character at a time, and streams of tokens made whole. Ill-formed bytes are cut into maximal parts
 * as the Unicode Standard (3.9, "U+FFFD Substitution of Maximal Subparts"), Python and the web do. */
#include "model/token_parts.h"

#include <assert.h>
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

static const char replacement[3] = {'\xEF', '\xBF', '\xBD'};

/* Emits what the held bytes make up; at_end: nothing more will come. */
static size_t stream_drain(struct token_stream *s, bool at_end, char *buf)
{
    size_t w = 0;
    while (s->n_held) {
        u32 cp;
        int k = utf8_scan(s->held, s->n_held, &cp);
        if (k == 0 && !at_end)
            break;
        size_t used = k > 0 ? (size_t)k : k < 0 ? (size_t)-k : s->n_held;
        if (k > 0)
            memcpy(buf + w, s->held, used);
        else
            memcpy(buf + w, replacement, sizeof replacement);
        w += k > 0 ? used : sizeof replacement;
        s->n_held -= (u8)used;
        memmove(s->held, s->held + used, s->n_held);
    }
    return w;
}

size_t token_stream_push(const struct token_model *t, struct token_stream *s, u32 id, char *buf, size_t buf_bytes)
{
    size_t n, w = 0;
    const u8 *bytes = (const u8 *)token_bytes(t, id, s->keep_special, &n);
    assert(buf_bytes >= 3 * (n + 4));
    (void)buf_bytes;
    if (n && !s->begun) {
        s->begun = true;
        if (t->spm && t->space_prefix && bytes[0] == ' ')
            bytes++, n--;
    }
    for (size_t i = 0; i < n; i++) {
        s->held[s->n_held++] = bytes[i]; /* what is held never is a whole character, so there is room */
        w += stream_drain(s, false, buf + w);
    }
    return w;
}

size_t token_stream_end(struct token_stream *s, char *buf, size_t buf_bytes)
{
    assert(buf_bytes >= 12);
    (void)buf_bytes;
    return stream_drain(s, true, buf);
}
