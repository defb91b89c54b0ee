/* Byte-pair merging: a table of pairs with ranks, symbols in a linked list, and a heap of candidate
 * pairs, so that n symbols take O(n log n) whatever they are. A heap entry is one number, rank
 * above position: the least one is the merge that Hugging Face's tokenizers takes next. Entries are
 * not removed when their pair changes: a popped one counts only if the pair at its position still
 * has its rank. */
#include "model/token_parts.h"

#include <stdlib.h>
#include <string.h>

enum { END = -1 }; /* as u32: no neighbour; no symbol any more */

int bpe_init(struct bpe_merges *m, u64 n, struct err *err)
{
    u64 size = 16;
    if (n > 1u << 30)
        return err_set(err, "%llu merges are more than the 2^30 this program takes",
                       (unsigned long long)n);
    while (size < n + n / 2)
        size *= 2;
    m->slots = malloc(size * sizeof *m->slots);
    if (!m->slots)
        return err_set(err, "no memory for a table of %llu merges", (unsigned long long)n);
    m->mask = (u32)(size - 1);
    memset(m->slots, 0xFF, size * sizeof *m->slots);
    return 0;
}

void bpe_free(struct bpe_merges *m)
{
    free(m->slots);
    m->slots = NULL;
}

/* The slot of this pair or the free one where it belongs. */
static struct bpe_merge *bpe_slot(const struct bpe_merges *m, u32 left, u32 right)
{
    u64 h = ((u64)left << 32 | right) * 0x9E3779B97F4A7C15u;
    for (u32 at = (u32)(h >> 32) & m->mask;; at = (at + 1) & m->mask) {
        struct bpe_merge *slot = &m->slots[at];
        if (slot->left == (u32)END || (slot->left == left && slot->right == right))
            return slot;
    }
}

void bpe_add(struct bpe_merges *m, struct bpe_merge merge)
{
    *bpe_slot(m, merge.left, merge.right) = merge;
}

/* The block with room for n items, *cap at least n; NULL, the old block still valid, when there is
 * no memory. */
static void *grow(void *block, size_t *cap, size_t n, size_t item, struct err *err)
{
    size_t to = *cap < 64 ? 64 : *cap;
    while (to < n)
        to *= 2;
    void *p = realloc(block, to * item);
    if (p)
        *cap = to;
    else
        err_set(err, "no memory for a text of %zu symbols", n);
    return p;
}

void bpe_work_free(struct bpe_work *w)
{
    free(w->symbols);
    free(w->heap);
    *w = (struct bpe_work){0};
}

int bpe_push(struct bpe_work *w, u32 id, struct err *err)
{
    if (w->n == w->cap) {
        void *p = grow(w->symbols, &w->cap, w->n + 1, sizeof *w->symbols, err);
        if (!p)
            return -1;
        w->symbols = p;
    }
    u32 i = (u32)w->n++;
    w->symbols[i] = (struct bpe_symbol){id, i - 1, i + 1}; /* 0 - 1 is END */
    return 0;
}

/* Puts the pair that starts at position at on the heap, if it is one that merges. */
static int heap_put(const struct bpe_merges *m, struct bpe_work *w, u32 at, struct err *err)
{
    const struct bpe_symbol *s = &w->symbols[at];
    const struct bpe_merge *merge = bpe_slot(m, s->id, w->symbols[s->next].id);
    if (merge->left == (u32)END)
        return 0;
    if (w->n_heap == w->cap_heap) {
        void *p = grow(w->heap, &w->cap_heap, w->n_heap + 1, sizeof *w->heap, err);
        if (!p)
            return -1;
        w->heap = p;
    }
    u64 key = (u64)merge->rank << 32 | at;
    size_t i = w->n_heap++;
    for (; i > 0 && w->heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = key;
    return 0;
}

static u64 heap_take(struct bpe_work *w)
{
    u64 least = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->n_heap; i = child) {
        if (child + 1 < w->n_heap && w->heap[child + 1] < w->heap[child])
            child++;
        if (w->heap[child] >= last)
            break;
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    return least;
}

int ids_push(struct token_ids *ids, u32 id, struct err *err)
{
    if (ids->n == ids->cap) {
        void *p = grow(ids->ids, &ids->cap, ids->n + 1, sizeof *ids->ids, err);
        if (!p)
            return -1;
        ids->ids = p;
    }
    ids->ids[ids->n++] = id;
    return 0;
}

void token_ids_free(struct token_ids *ids)
{
    free(ids->ids);
    *ids = (struct token_ids){0};
}

int bpe_run(const struct bpe_merges *m, struct bpe_work *w, struct token_ids *out, struct err *err)
{
    struct bpe_symbol *syms = w->symbols;
    w->n_heap = 0;
    if (w->n)
        syms[w->n - 1].next = (u32)END;
    for (u32 i = 0; i + 1 < w->n; i++)
        if (heap_put(m, w, i, err))
            return -1;
    while (w->n_heap) {
        u64 key = heap_take(w);
        u32 at = (u32)key;
        struct bpe_symbol *s = &syms[at];
        if (s->id == (u32)END || s->next == (u32)END)
            continue;
        struct bpe_symbol *right = &syms[s->next];
        const struct bpe_merge *merge = bpe_slot(m, s->id, right->id);
        if (merge->left == (u32)END || merge->rank != key >> 32)
            continue;
        s->id = merge->id;
        right->id = (u32)END;
        s->next = right->next;
        if (s->next != (u32)END) {
            syms[s->next].prev = at;
            if (heap_put(m, w, at, err))
                return -1;
        }
        if (s->prev != (u32)END && heap_put(m, w, s->prev, err))
            return -1;
    }
    for (u32 i = 0; w->n && i != (u32)END; i = syms[i].next)
        if (ids_push(out, syms[i].id, err))
            return -1;
    w->n = 0;
    return 0;
}
