/* Walks a grammar byte by byte. Where the grammar has alternatives that the bytes so far do not tell apart, several
 * threads go on side by side; each holds its place in a node and, by a list of cells that are never changed, the
 * containers around it. Every thread can be completed: nothing leads to a dead end. When more than AUTOMATON_THREADS
 * would go on, the last are given up: fewer texts are possible then, never others.
 *
 * An automaton is working room with an owner; threads and cells are appended, so that going back after trying bytes is
 * setting two numbers. A state is a copy of one set of threads with the cells it needs. */
#ifndef PS_SERVE_AUTOMATON_H
#define PS_SERVE_AUTOMATON_H

#include "serve/grammar.h"

enum {
    AUTOMATON_THREADS = 256, /* in a state */
    AUTOMATON_CELLS = 1024,  /* in a state; one thread has at most GRAMMAR_DEPTH + AUTOMATON_NAMES */
    AUTOMATON_NAMES = 256    /* names outside properties that all open objects remember, so that none occurs twice */
};

enum automaton_at {
    AT_VALUE,      /* before a value of node */
    AT_WORD,       /* in a spelling: words (a, b, depth c) */
    AT_NUMBER,     /* digits' state a */
    AT_STRING,     /* chars' state a, or a code points so far */
    AT_ARRAY_OPEN, AT_ARRAY_NEXT,
    AT_OBJECT_OPEN, AT_OBJECT_NEXT, AT_OBJECT_NAME,
    AT_NAME,       /* in a property's name: words (a, b, depth c) */
    AT_OTHER_NAME, /* in another name; the same words are what it must not be, hash is of its bytes */
    AT_COLON,      /* before the colon of a value of node */
    AT_TEXT,       /* in a call's text at a; owner b is the node it was entered by */
    AT_AFTER_CALL, /* after a call of node */
    AT_FREE,       /* in free text, a bytes of node's text matched */
    AT_DONE
};

struct automaton_thread { /* compared by memcmp: no padding */
    u64 hash;
    u32 node;
    i32 cell; /* the innermost container; -1: none */
    u32 a, b, c;
    u32 part;  /* bits of a character not yet whole */
    u8 at, lex;
    bool space; /* one space may come */
    u8 zero[5];
};

struct automaton_cell { /* a container, or with depth 0 a name used in one: hash in node, pos */
    u32 node;
    u32 pos;   /* array: items so far; object: the next property; call: the node it was entered by */
    i32 names; /* names used, innermost first */
    i32 up;
    u16 depth, n_names; /* containers up to this one; names that it and those around it remember */
};

struct automaton_state {
    u32 n_threads, n_cells;
    struct automaton_thread threads[AUTOMATON_THREADS];
    struct automaton_cell cells[AUTOMATON_CELLS];
};

struct automaton {
    const struct grammar *g;
    struct automaton_thread *threads;
    struct automaton_cell *cells;
    u32 n_threads, n_cells, cap_threads, cap_cells;
    u32 from; /* threads of the level being made begin here */
};

int automaton_open(struct automaton *a, const struct grammar *g, struct err *err);
void automaton_close(struct automaton *a);

/* The state before the first byte. */
void automaton_begin(struct automaton *a, struct automaton_state *s);
/* One byte: false, with s->n_threads 0, when the text may not go on so. */
bool automaton_step(struct automaton *a, struct automaton_state *s, u8 byte);
bool automaton_can_end(const struct grammar *g, const struct automaton_state *s);

/* For trying many bytes: puts a state (or one thread of it) in the room, and feeds threads [from, end) a byte. The
 * new level is [end, a->n_threads), maybe empty. To go back, set n_threads and n_cells to what they were. */
void automaton_put(struct automaton *a, const struct automaton_state *s, u32 first, u32 n);
void automaton_feed(struct automaton *a, u32 from, u32 end, u8 byte);

/* Copies thread k with the cells it needs, numbered from the innermost on: equal for equal futures. room: at least
 * AUTOMATON_KEY bytes; returns those used. */
enum { AUTOMATON_KEY = 40 + (GRAMMAR_DEPTH + AUTOMATON_NAMES + 2) * 20 };
u32 automaton_key(const struct automaton_state *s, u32 k, u8 *room);

#endif
