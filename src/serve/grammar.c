/* The grammar's memory, its sorted lists, and the heights that keep the automaton out of dead ends: a value is begun
 * only where its smallest text still fits the depth. */
#include "serve/grammar.h"

#include <stdlib.h>
#include <string.h>

struct grammar_block {
    struct grammar_block *next;
    u64 used, room;
};

void grammar_free(struct grammar *g)
{
    for (u32 i = 0; i < g->n_nodes; i++) {
        digits_free(&g->nodes[i].digits);
        chars_free(&g->nodes[i].chars);
    }
    while (g->blocks) {
        struct grammar_block *next = g->blocks->next;
        free(g->blocks);
        g->blocks = next;
    }
    free(g->nodes);
    *g = (struct grammar){0};
}

i32 grammar_node(struct grammar *g, enum grammar_kind kind, struct err *err)
{
    if (g->n_nodes == GRAMMAR_NODES)
        return err_set(err, "needs more than %d nodes", GRAMMAR_NODES);
    if (g->n_nodes == g->cap_nodes) {
        u32 cap = g->cap_nodes ? g->cap_nodes * 2 : 32;
        struct grammar_node *nodes = realloc(g->nodes, cap * sizeof *nodes);
        if (!nodes)
            return err_set(err, "no memory for %u nodes", cap);
        g->nodes = nodes;
        g->cap_nodes = cap;
    }
    g->nodes[g->n_nodes] = (struct grammar_node){.kind = kind, .rest = GRAMMAR_NONE, .height = GRAMMAR_ENDLESS};
    return (i32)g->n_nodes++;
}

void *grammar_memory(struct grammar *g, u64 n, u64 item_bytes, struct err *err)
{
    u64 bytes;
    if (!mul_u64(n, item_bytes, &bytes) || bytes > GRAMMAR_BYTES || g->bytes + bytes > GRAMMAR_BYTES) {
        err_set(err, "needs more than %d MiB", GRAMMAR_BYTES >> 20);
        return NULL;
    }
    bytes = round_up_u64(bytes + !bytes, 8);
    if (!g->blocks || g->blocks->room - g->blocks->used < bytes) {
        u64 room = bytes > 65536 ? bytes : g->bytes > 65536 ? 65536 : 4096;
        room = room < bytes ? bytes : room;
        struct grammar_block *block = calloc(1, sizeof *block + room);
        if (!block) {
            err_set(err, "no memory");
            return NULL;
        }
        block->room = room;
        block->next = g->blocks;
        g->blocks = block;
    }
    void *p = (char *)(g->blocks + 1) + g->blocks->used;
    g->blocks->used += bytes;
    g->bytes += bytes;
    return p;
}

const char *grammar_text(struct grammar *g, const char *text, size_t len, struct err *err)
{
    char *copy = grammar_memory(g, len + 1, 1, err);
    if (copy)
        memcpy(copy, text, len);
    return copy;
}

/* ---- sorted words ---- */

struct numbered {
    struct word word;
    u32 number;
};

static int by_bytes(const void *a, const void *b)
{
    const struct numbered *x = a, *y = b;
    int d = memcmp(x->word.at, y->word.at, min_u32(x->word.len, y->word.len));
    return d ? d : x->word.len < y->word.len ? -1 : x->word.len > y->word.len;
}

void words_sort(struct words *w, u32 *order)
{
    struct numbered *all = mem_array((u64)w->n + 1, sizeof *all);
    u32 n = 0;
    if (!all) {
        w->n = 0; /* nothing is allowed then: closed, not open */
        return;
    }
    for (u32 i = 0; i < w->n; i++)
        all[i] = (struct numbered){w->at[i], order ? order[i] : 0};
    qsort(all, w->n, sizeof *all, by_bytes);
    for (u32 i = 0; i < w->n; i++) {
        if (n && !by_bytes(&all[i], &all[n - 1]))
            continue;
        all[n] = all[i];
        w->at[n] = all[n].word;
        if (order)
            order[n] = all[n].number;
        n++;
    }
    w->n = n;
    free(all);
}

/* The first of [first, end), all of which share depth bytes, whose next byte is at least `byte`; those that end here
 * come before all others. */
static u32 words_from(const struct words *w, u32 first, u32 end, u32 depth, u32 byte)
{
    while (first < end) {
        u32 mid = first + (end - first) / 2;
        if (w->at[mid].len <= depth || (u8)w->at[mid].at[depth] < byte)
            first = mid + 1;
        else
            end = mid;
    }
    return first;
}

void words_narrow(const struct words *w, u32 *first, u32 *end, u32 depth, u8 byte)
{
    *first = words_from(w, *first, *end, depth, byte);
    *end = words_from(w, *first, *end, depth, byte + 1u);
}

/* ---- heights ---- */

static u32 height_of(const struct grammar *g, i32 node)
{
    return node < 0 ? GRAMMAR_ENDLESS : g->nodes[node].height;
}

static u32 container(u32 inside) /* a container around it */
{
    return inside >= GRAMMAR_DEPTH ? GRAMMAR_ENDLESS : inside + 1;
}

static u32 height_of_array(const struct grammar *g, const struct grammar_node *n)
{
    u32 h = 0;
    if (n->min > n->max)
        return GRAMMAR_ENDLESS;
    for (u32 i = 0; i < n->n && i < n->min; i++)
        if (height_of(g, (i32)n->list[i]) > h)
            h = height_of(g, (i32)n->list[i]);
    if (n->min > n->n && height_of(g, n->rest) > h)
        h = height_of(g, n->rest);
    return container(h);
}

static u32 height_of_object(const struct grammar *g, const struct grammar_node *n)
{
    u32 h = 0;
    for (u32 i = n->next_required[0]; i < n->n; i = n->next_required[i + 1])
        if (height_of(g, (i32)n->list[i]) > h)
            h = height_of(g, (i32)n->list[i]);
    return container(h);
}

static u32 least_of_list(const struct grammar *g, const struct grammar_node *n)
{
    u32 h = GRAMMAR_ENDLESS;
    for (u32 i = 0; i < n->n; i++)
        h = min_u32(h, g->nodes[n->list[i]].height);
    return h;
}

static u32 height_now(const struct grammar *g, const struct grammar_node *n)
{
    switch (n->kind) {
    case GRAMMAR_UNION:
    case GRAMMAR_CALLS:
        return least_of_list(g, n);
    case GRAMMAR_FREE:
        return n->may_end ? 0 : least_of_list(g, n);
    case GRAMMAR_WORDS:
        return n->words.n ? 0 : GRAMMAR_ENDLESS;
    case GRAMMAR_NUMBER:
        return n->digits.n ? 0 : GRAMMAR_ENDLESS;
    case GRAMMAR_STRING: /* a pattern that allows nothing leaves min > max */
        return n->min <= n->max ? 0 : GRAMMAR_ENDLESS;
    case GRAMMAR_ARRAY:
        return height_of_array(g, n);
    case GRAMMAR_OBJECT:
        return height_of_object(g, n);
    case GRAMMAR_CALL:
        return container(height_of(g, n->rest));
    }
    return GRAMMAR_ENDLESS;
}

/* Heights only fall and each round settles at least the next smallest, so GRAMMAR_DEPTH + 1 rounds (twice that with a
 * union between containers) end it. */
void grammar_heights(struct grammar *g)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (u32 i = g->n_nodes; i-- > 0;) {
            u32 h = height_now(g, &g->nodes[i]);
            if (h < g->nodes[i].height)
                g->nodes[i].height = h, changed = true;
        }
    }
}
