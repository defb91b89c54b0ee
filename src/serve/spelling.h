/* The one spelling of a JSON value that grammars speak: compact, strings with the fewest escapes, numbers in the fewest
 * digits. */
#ifndef PS_SERVE_SPELLING_H
#define PS_SERVE_SPELLING_H

#include <jansson.h>

#include "base/base.h"

struct spelling { /* grows; zero-initialise */
    char *at;
    size_t n, cap;
};

void spelling_free(struct spelling *s);
/* What stands between the quotes. */
int spelling_string(struct spelling *s, const char *text, size_t len, struct err *err);
/* Any value; containers up to 64 deep. */
int spelling_value(struct spelling *s, const json_t *v, struct err *err);

#endif
