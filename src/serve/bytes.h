/* A buffer that grows: where answers are written. JSON strings are escaped here and nowhere else, so that no text of a
 * user or a model reaches a client through printf. Appending costs amortised constant time a byte. */
#ifndef PS_BYTES_H
#define PS_BYTES_H

#include "base/base.h"

struct bytes { /* zero-initialise; one owner at a time */
    char *at;
    size_t len, cap;
    bool failed; /* memory ran out once: what was written since is missing, and nothing more is taken */
};

void bytes_free(struct bytes *b);  /* back to zero; free to use again */
void bytes_clear(struct bytes *b); /* empty; the memory and `failed` stay */
/* Hands the text over, with a NUL behind it, to be freed with free(); b is zero then. NULL when memory ran out. */
char *bytes_take(struct bytes *b);

void bytes_put(struct bytes *b, const void *text, size_t len);
void bytes_str(struct bytes *b, const char *text); /* up to its NUL */
void bytes_u64(struct bytes *b, u64 n);
void bytes_i64(struct bytes *b, i64 n);
/* A JSON number that reads back as the same float or double; what is no number becomes null. */
void bytes_f32(struct bytes *b, float x);
void bytes_f64(struct bytes *b, double x);
/* Escaped as inside a JSON string (RFC 8259, 7), without the quotes. text is well-formed UTF-8; what is not comes out
 * as U+FFFD for each byte, so that the JSON always is. */
void bytes_escaped(struct bytes *b, const char *text, size_t len);
void bytes_json(struct bytes *b, const char *text, size_t len); /* with the quotes */

#endif
