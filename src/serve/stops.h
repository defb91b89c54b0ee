/* Stop strings over a stream of bytes. What can still become one is held back and not a byte more; what comes out
 * before a stop string is everything that stood before it, whatever the cuts of the stream.
 *
 * The first to be complete wins; of those that are complete at the same byte, the longest, so that no beginning of it
 * leaks. Linear time: an Aho-Corasick automaton (Aho and Corasick 1975). Nothing is copied: held bytes are the
 * beginning of a stop string and are handed out from there. */
#ifndef PS_STOPS_H
#define PS_STOPS_H

#include "base/base.h"

enum { STOPS_MAX = 16, STOPS_MAX_BYTES = 512 }; /* strings; bytes of each */

struct stops; /* immutable after open: any number of streams and threads may read it */

/* n texts of 1..STOPS_MAX_BYTES bytes, n <= STOPS_MAX; copied. n = 0 is fine: nothing is ever held back. -1 when memory
 * ran out, *out is NULL then. */
int stops_open(struct stops **out, const char *const *texts, const size_t *lens, u32 n);
void stops_close(struct stops *s);
const char *stops_text(const struct stops *s, u32 i, size_t *len); /* NUL-terminated too */

struct stops_at { /* zero-initialise at the start of each stream */
    u32 node;
};

struct stops_cut { /* what may go out: head, then tail; head lives as long as s, tail is part of the text pushed */
    const char *head, *tail;
    size_t n_head, n_tail;
    i32 found;      /* the stop string that was found, or -1 */
    size_t n_taken; /* bytes of text used up: all of it unless one was found */
};

/* After a stop string was found nothing more may be pushed. */
struct stops_cut stops_push(const struct stops *s, struct stops_at *at, const char *text, size_t len);
/* What is still held, in head: the stream ended without a stop string. */
struct stops_cut stops_end(const struct stops *s, struct stops_at *at);

#endif
