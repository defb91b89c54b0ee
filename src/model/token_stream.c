/* Streams of tokens made whole: bytes are held back until they are a character or can never be one.
 * Ill-formed bytes become U+FFFD by maximal parts, as the Unicode Standard (3.9), Python and the
 * web do it. */
#include "model/token_parts.h"

#include <assert.h>
#include <string.h>

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

size_t token_stream_push(const struct token_model *t, struct token_stream *s, u32 id, char *buf,
                         size_t buf_bytes)
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
        s->held[s->n_held++] =
            bytes[i]; /* what is held never is a whole character, so there is room */
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
