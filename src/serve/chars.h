/* A deterministic automaton over Unicode code points: what a string's pattern and length allow. Every state can reach
 * an end (dead states are cut away), so that "there is an edge" means "the string can still be completed". Immutable
 * once built. */
#ifndef PS_SERVE_CHARS_H
#define PS_SERVE_CHARS_H

#include "base/base.h"

/* Code points sorted into 128 classes, so that what a piece of text is made of, and what a state can go on with, is a
 * set of 16 bytes: printable ASCII one by one, blocks beyond, control characters, and bytes that are no character. */
enum { CLASS_CONTROL = 126, CLASS_BROKEN = 127 };

struct char_set {
    u64 w[2];
};

static inline void char_set_add(struct char_set *s, unsigned class)
{
    s->w[class >> 6] |= 1ull << (class & 63);
}

static inline bool char_set_within(const struct char_set *a, const struct char_set *b) /* a is a subset of b */
{
    return !(a->w[0] & ~b->w[0]) && !(a->w[1] & ~b->w[1]);
}

unsigned char_class(u32 cp);
/* All classes but '"', '\\', control and broken: what stands in a JSON string as it is. */
struct char_set char_set_plain(void);

struct chars_edge {
    u32 lo, hi, to; /* code points lo..hi, inclusive */
};

enum { CHARS_SAFE = 4, CHARS_EDGES = 200000 /* at most */ };

struct chars_state {
    u32 first, n; /* its edges, ascending and disjoint */
    bool ends;
    /* safe[k]: classes of which any 2 << k (2, 4, 8, 16) code points in a row have edges from here on. A bound from
     * below: what is left out may be possible too. */
    struct char_set safe[CHARS_SAFE];
};

struct chars {
    u32 n, n_edges; /* state 0 begins; n = 0: no string at all */
    struct chars_state *states;
    struct chars_edge *edges;
};

void chars_free(struct chars *c);

/* The state after cp, or -1. */
i64 chars_next(const struct chars *c, u32 state, u32 cp);
/* Whether some code point of lo..hi has an edge. */
bool chars_any(const struct chars *c, u32 state, u32 lo, u32 hi);

/* Cuts away what cannot be reached or cannot end. */
int chars_trim(struct chars *c, struct err *err);
/* *c becomes the automaton of its strings that are min..max code points long (max UINT32_MAX: any). Fails when that
 * takes more than most states; err has the number. */
int chars_limit(struct chars *c, u32 min, u32 max, u32 most, struct err *err);
/* Fills safe. */
void chars_mark_safe(struct chars *c);

/* While building: one edge more, joined with the last when it goes on where that ended. *cap grows. */
int chars_push(struct chars *c, u32 *cap, struct chars_edge e, bool first_of_state, struct err *err);

#endif
