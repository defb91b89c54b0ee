/* Regular expressions of JSON schemas (ECMA-262 as with its u flag, less what no automaton can do) -> an automaton over
 * the code points of a whole string. A pattern matches anywhere in the string unless ^ or $ holds it fast. */
#ifndef PS_SERVE_PATTERN_H
#define PS_SERVE_PATTERN_H

#include "serve/chars.h"

enum {
    PATTERN_BYTES = 4096,    /* of a pattern */
    PATTERN_REPEAT = 1000,   /* the largest number in {m,n} */
    PATTERN_PARTS = 4096,    /* states before determinising, after {m,n} are written out */
    PATTERN_STATES = 4096,   /* after it */
    PATTERN_WORK = 20000000  /* steps of finding them */
};

/* text[0..len) is UTF-8. *out is trimmed (n = 0 when nothing matches) and has no safe sets yet. err says what of the
 * pattern is refused and where: \b, look-around, back references, \p, flags, a limit. *work counts up, PATTERN_WORK at most: several patterns can share it. */
int pattern_open(struct chars *out, const char *text, size_t len, u64 *work, struct err *err);

#endif
