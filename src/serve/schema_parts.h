/* What schema.c and schema_leaves.c share; nobody else includes this. */
#ifndef PS_SERVE_SCHEMA_PARTS_H
#define PS_SERVE_SCHEMA_PARTS_H

#include <stdio.h>

#include "serve/pattern.h"
#include "serve/schema.h"
#include "serve/spelling.h"

enum { SOURCES = 8, SLOTS = 65536 /* > 2 * GRAMMAR_NODES */ };

struct source { /* a subschema, less its $ref or anyOf when those are done */
    const json_t *json;
    u32 place;
    bool ref_done, any_done;
};

struct conjunction {
    u32 n; /* 0: anything */
    struct source of[SOURCES];
};

struct job {
    struct conjunction of;
    u32 node;
};

struct place { /* a way from the root; 0 is the root itself */
    u32 up;
    const char *key; /* NULL: index */
    size_t index;
};

struct builder {
    struct grammar *g;
    const json_t *root;
    struct job *jobs; /* each node's conjunction, in the order of asking; those from done on wait */
    u32 n_jobs, cap_jobs, done;
    u32 *slots; /* SLOTS, job + 1 */
    struct place *places;
    u32 n_places, cap_places;
    u32 n_states, n_edges; /* of patterns */
    u64 work, pattern_work;
    u32 plain_numbers[2];  /* node + 1: numbers, integers */
    u32 **flat, *n_flat;
    struct err *err;
};

u32 schema_place(struct builder *b, u32 up, const char *key, size_t index);
/* -1, with "KEYWORD" at POINTER: why. */
int schema_refuse(struct builder *b, u32 place, const char *keyword, const char *why);
/* The node that stands for it, old or new; -1. json NULL: anything. */
i32 schema_node(struct builder *b, const struct conjunction *c);
i32 schema_node_of(struct builder *b, const json_t *json, u32 place);
/* Gives node a list of n zeros. */
int schema_node_list(struct builder *b, u32 node, u32 n);
/* Makes node the union of what the sources, without $ref and anyOf, allow of each type. */
int schema_build_leaves(struct builder *b, u32 node, const struct conjunction *c);

#endif
