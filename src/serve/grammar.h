/* What a text may be, as data: nodes that automaton.c walks byte by byte. A value node is a leaf (a list of spellings, a
 * number, a string), a container, or a union of those; tool calls and free text stand around values. schema.c and
 * grammar.c fill it; afterwards it is immutable and any number of threads may walk it.
 *
 * Texts are a canonical subset of JSON: one optional space after ':' and ',', no other white space; in strings only
 * what must be escaped is, as \" \\ \b \f \n \r \t or \u00xx in small letters; properties in the schema's order,
 * others after them. */
#ifndef PS_SERVE_GRAMMAR_H
#define PS_SERVE_GRAMMAR_H

#include "base/base.h"
#include "serve/chars.h"
#include "serve/digits.h"

enum { GRAMMAR_DEPTH = 64 /* containers within each other */, GRAMMAR_NONE = -1 };
#define GRAMMAR_ENDLESS UINT32_MAX /* no upper bound; as a height: no finite text */

struct words { /* ascending by bytes, distinct; a state within is (first, end, depth): those that share depth bytes */
    u32 n;
    struct word {
        const char *at;
        u32 len;
    } *at;
};

enum grammar_kind {
    GRAMMAR_UNION,  /* any of the nodes list[0..n): flat, no union among them */
    GRAMMAR_WORDS,  /* one of these spellings */
    GRAMMAR_NUMBER,
    GRAMMAR_STRING, /* chars when it has states, else min..max code points */
    GRAMMAR_ARRAY,  /* min..max items: list[i] at i < n, rest beyond */
    GRAMMAR_OBJECT, /* properties list[0..n), in this order; others have rest */
    GRAMMAR_CALL,   /* text[0..n_lead), a value rest, text[n_lead..n_text) */
    GRAMMAR_CALLS,  /* one of the calls list[0..n); with again, a line break and another */
    GRAMMAR_FREE    /* any text; where it has spelled text[0..n_text), one of the calls list[0..n), of which those bytes
                     * are the beginning; with again, free text after it */
};

struct grammar_node {
    enum grammar_kind kind;
    u32 height; /* containers that its smallest text needs; GRAMMAR_ENDLESS: it has none */
    u32 n;
    u32 *list;
    i32 rest;
    u32 min, max;
    bool again, may_end; /* may_end: free text may end before the call */
    struct words words;  /* spellings; an object's names as they are spelled between quotes */
    u32 *order;          /* object: the property of each name */
    u32 *next_required;  /* object: (n + 1) the first required property at or after this one; n: none */
    struct digits digits;
    struct chars chars;
    const char *text;
    u32 n_lead, n_text;
    u16 *back;           /* free: (n_text) where to go on after a mismatch (Knuth, Morris, Pratt) */
};

struct grammar {
    struct grammar_node *nodes;
    u32 n_nodes, cap_nodes;
    u32 root;
    struct grammar_block *blocks; /* what lists and texts live in */
    u64 bytes;
};

enum { GRAMMAR_NODES = 20000, GRAMMAR_BYTES = 64 << 20 };

void grammar_free(struct grammar *g);
/* A node without anything, or -1: more than GRAMMAR_NODES, or no memory. */
i32 grammar_node(struct grammar *g, enum grammar_kind kind, struct err *err);
/* Zeroed memory that lives as long as g; NULL with err beyond GRAMMAR_BYTES. */
void *grammar_memory(struct grammar *g, u64 n, u64 item_bytes, struct err *err);
const char *grammar_text(struct grammar *g, const char *text, size_t len, struct err *err);
/* Sorts, and drops what occurs twice; order[i], when not NULL, follows. */
void words_sort(struct words *w, u32 *order);
/* Those of [*first, *end) that share depth bytes and go on with byte. */
void words_narrow(const struct words *w, u32 *first, u32 *end, u32 depth, u8 byte);
/* Fills in all heights: the least fixed point. */
void grammar_heights(struct grammar *g);

#endif
