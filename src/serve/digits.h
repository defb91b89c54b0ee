/* An automaton over the spelling of JSON numbers between two bounds. It spells a subset of JSON's numbers in which each
 * value has a spelling: no exponent where there is a bound, one of at most two digits elsewhere. Every state can reach
 * an end. Immutable once built. */
#ifndef PS_SERVE_DIGITS_H
#define PS_SERVE_DIGITS_H

#include <jansson.h>

#include "base/base.h"

enum { DIGITS_SYMBOLS = 15 }; /* 0..9 - . e E + */

struct digits_state {
    u16 next[DIGITS_SYMBOLS]; /* state + 1; 0: none */
    bool ends;
};

struct digits {
    u32 n; /* state 0 begins; n = 0: no number at all */
    struct digits_state *states;
};

struct digits_bounds { /* each a number of the schema or NULL */
    const json_t *min, *max, *above, *below; /* inclusive, inclusive, exclusive, exclusive */
};

void digits_free(struct digits *d);
/* Symbol of a byte, or -1. */
int digits_symbol(u8 byte);

/* Integers, exactly. */
int digits_integers(struct digits *out, const struct digits_bounds *b, struct err *err);
/* Numbers as doubles: whoever reads the text to the nearest double finds the bounds kept, the exclusive ones too.
 * *integers: the bounds are so large that integers between them, which some read exactly, want digits_integers too. */
int digits_numbers(struct digits *out, const struct digits_bounds *b, bool *integers, struct err *err);

#endif
