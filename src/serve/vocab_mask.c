/* Masks. A token may come when any thread of the state survives its bytes, so each thread has a mask of its own and the
 * state's is their union; the cache keeps threads' masks, by the bytes of automaton_key. */
#include "serve/vocab_mask.h"
#include "serve/vocab_trie.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct entry *same_slot, *newer, *older;
    u64 hash;
    u8 *key;
    u32 key_bytes;
    u32 bits[];
};

enum { SLOTS = 1024 };

struct masks {
    struct grammar g;
    const struct vocab *v;
    pthread_mutex_t lock; /* over all below */
    u32 n_owners, n, most;
    struct entry *slots[SLOTS], *newest, *oldest;
};

struct level { /* threads [from, end) of the room, made with so many cells */
    u32 from, end, cells;
};

struct mask {
    struct masks *m;
    struct automaton room;
    struct automaton_state state;
    bool broken;
    struct mask_counts counts;
    u32 *bits, *one; /* of the state; of a thread */
    struct char_set plain;
    u8 key[AUTOMATON_KEY];
    struct level levels[TOKEN_BYTES_MAX + 1];
};

/* ---- one thread's mask ---- */

/* Whether a thread goes on whatever of the subtree comes. */
static bool safe_below(const struct mask *k, const struct trie_node *node, const struct automaton_thread *t)
{
    const struct grammar_node *n = &k->m->g.nodes[t->node];
    if (t->at == AT_FREE) {
        unsigned first = char_class((u8)n->text[0]);
        return !t->a && !(node->holds.w[first >> 6] >> (first & 63) & 1);
    }
    if (t->lex || (t->at != AT_STRING && t->at != AT_OTHER_NAME))
        return false;
    if (t->at == AT_OTHER_NAME || (!n->chars.n && n->max == GRAMMAR_ENDLESS))
        return char_set_within(&node->holds, &k->plain);
    if (!n->chars.n)
        return node->chars < 255 && n->max - t->a >= node->chars && char_set_within(&node->holds, &k->plain);
    for (u32 i = 0; i < CHARS_SAFE; i++)
        if (node->chars <= 2u << i)
            return char_set_within(&node->holds, &n->chars.states[t->a].safe[i]);
    return false;
}

static bool all_below(const struct mask *k, const struct trie_node *node, const struct level *l)
{
    for (u32 i = l->from; i < l->end; i++)
        if (safe_below(k, node, &k->room.threads[i]))
            return true;
    return false;
}

static void set_ids(const struct trie *t, u32 from, u32 end, u32 *bits)
{
    for (u32 i = from; i < end; i++)
        bits_set(bits, t->ids[i]);
}

static void walk(struct mask *k, const struct trie *t, u32 *bits)
{
    struct automaton *a = &k->room;
    for (u32 i = 1; i < t->n;) {
        const struct trie_node *node = &t->nodes[i];
        const struct level *up = &k->levels[node->depth - 1];
        struct level *here = &k->levels[node->depth];
        a->n_cells = up->cells;
        automaton_feed(a, up->from, up->end, node->byte);
        *here = (struct level){up->end, a->n_threads, a->n_cells};
        if (here->from == here->end) {
            i = node->skip;
        } else if (all_below(k, node, here)) {
            set_ids(t, node->first, t->nodes[node->skip].first, bits);
            i = node->skip;
        } else {
            set_ids(t, node->first, t->nodes[i + 1].first, bits);
            i++;
        }
    }
}

/* The bits of all plain tokens that thread t may take, where no walk is needed to know; NULL otherwise. */
static const u32 *plain_bits(const struct mask *k, const struct automaton_thread *t)
{
    const struct vocab *v = k->m->v;
    const struct grammar_node *n = &k->m->g.nodes[t->node];
    if (safe_below(k, &v->plain.nodes[0], t))
        return v->shorter[PLAIN_LENGTHS - 1];
    bool counted = t->at == AT_STRING && !t->lex && !n->chars.n && n->max != GRAMMAR_ENDLESS;
    return counted && n->max - t->a < PLAIN_LENGTHS - 1 ? v->shorter[n->max - t->a] : NULL;
}

static void compute(struct mask *k, u32 thread, u32 *bits)
{
    const struct vocab *v = k->m->v;
    automaton_put(&k->room, &k->state, thread, 1);
    k->levels[0] = (struct level){0, 1, k->room.n_cells};
    const u32 *plain = plain_bits(k, &k->room.threads[0]);
    if (plain)
        memcpy(bits, plain, v->n_words * sizeof *bits);
    else
        memset(bits, 0, v->n_words * sizeof *bits);
    if (!plain)
        walk(k, &v->plain, bits);
    walk(k, &v->rest, bits);
}

/* ---- the cache ---- */

static u64 hash_of(const u8 *key, u32 n)
{
    u64 h = n;
    for (; n >= 4; n -= 4, key += 4) {
        u32 w;
        memcpy(&w, key, 4);
        h = (h ^ w) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 32;
    }
    return h;
}

static void take_out(struct masks *m, struct entry *e)
{
    *(e->newer ? &e->newer->older : &m->newest) = e->older;
    *(e->older ? &e->older->newer : &m->oldest) = e->newer;
}

static void put_first(struct masks *m, struct entry *e)
{
    e->newer = NULL;
    e->older = m->newest;
    *(m->newest ? &m->newest->newer : &m->oldest) = e;
    m->newest = e;
}

static struct entry *find(struct masks *m, const u8 *key, u32 n, u64 hash)
{
    for (struct entry *e = m->slots[hash % SLOTS]; e; e = e->same_slot)
        if (e->hash == hash && e->key_bytes == n && !memcmp(e->key, key, n))
            return e;
    return NULL;
}

static void drop_oldest(struct masks *m)
{
    struct entry *e = m->oldest, **at = &m->slots[e->hash % SLOTS];
    while (*at != e)
        at = &(*at)->same_slot;
    *at = e->same_slot;
    take_out(m, e);
    free(e->key);
    free(e);
    m->n--;
}

/* Keeps a copy; without memory nothing is kept. */
static void keep(struct masks *m, const u8 *key, u32 n, u64 hash, const u32 *bits)
{
    struct entry *e = malloc(sizeof *e + m->v->n_words * sizeof *e->bits);
    u8 *copy = malloc(n);
    if (!e || !copy) {
        free(e);
        free(copy);
        return;
    }
    e->hash = hash;
    e->key_bytes = n;
    e->key = memcpy(copy, key, n);
    memcpy(e->bits, bits, m->v->n_words * sizeof *bits);
    pthread_mutex_lock(&m->lock);
    if (find(m, key, n, hash)) { /* another answer was here first */
        free(e->key);
        free(e);
    } else {
        if (m->n == m->most)
            drop_oldest(m);
        e->same_slot = m->slots[hash % SLOTS];
        m->slots[hash % SLOTS] = e;
        put_first(m, e);
        m->n++;
    }
    pthread_mutex_unlock(&m->lock);
}

static void join(u32 *bits, const u32 *with, u32 n_words)
{
    for (u32 i = 0; i < n_words; i++)
        bits[i] |= with[i];
}

/* Lengths that no token can tell apart are one: far from both bounds a count does not matter. */
static void blur(const struct mask *k, struct automaton_thread *t)
{
    const struct grammar_node *n = &k->m->g.nodes[t->node];
    u32 longest = k->m->v->longest;
    if (t->at != AT_STRING || n->chars.n || (n->max != GRAMMAR_ENDLESS && n->max - t->a <= longest))
        return;
    if (t->a >= n->min)
        t->a = n->min;
    else if (n->min - t->a > longest)
        t->a = 0;
}

static void add_thread(struct mask *k, u32 thread)
{
    struct masks *m = k->m;
    struct automaton_thread own = k->state.threads[thread];
    blur(k, &k->state.threads[thread]);
    u32 n = automaton_key(&k->state, thread, k->key);
    k->state.threads[thread] = own;
    u64 hash = hash_of(k->key, n);
    pthread_mutex_lock(&m->lock);
    struct entry *e = find(m, k->key, n, hash);
    if (e) {
        take_out(m, e);
        put_first(m, e);
        join(k->bits, e->bits, m->v->n_words);
    }
    pthread_mutex_unlock(&m->lock);
    k->counts.masks++;
    k->counts.found += !!e;
    if (e)
        return;
    compute(k, thread, k->one);
    join(k->bits, k->one, m->v->n_words);
    keep(m, k->key, n, hash, k->one);
}

/* ---- masks of a grammar ---- */

int masks_open(struct masks **out, const struct vocab *v, struct grammar *g, u64 cache_bytes, struct err *err)
{
    struct masks *m = mem_array(1, sizeof *m);
    *out = NULL;
    if (!m || pthread_mutex_init(&m->lock, NULL)) {
        free(m);
        grammar_free(g);
        return err_set(err, "no memory for masks");
    }
    u64 each = sizeof(struct entry) + v->n_words * 4ull + 256;
    m->g = *g;
    *g = (struct grammar){0};
    m->v = v;
    m->n_owners = 1;
    m->most = (u32)min_u64(cache_bytes / each + 1, 1 << 20);
    *out = m;
    return 0;
}

struct masks *masks_hold(struct masks *m)
{
    pthread_mutex_lock(&m->lock);
    m->n_owners++;
    pthread_mutex_unlock(&m->lock);
    return m;
}

void masks_close(struct masks *m)
{
    if (!m)
        return;
    pthread_mutex_lock(&m->lock);
    bool last = !--m->n_owners;
    pthread_mutex_unlock(&m->lock);
    if (!last)
        return;
    while (m->oldest)
        drop_oldest(m);
    pthread_mutex_destroy(&m->lock);
    grammar_free(&m->g);
    free(m);
}

/* ---- one answer's mask ---- */

int mask_open(struct mask **out, struct masks *m, struct err *err)
{
    struct mask *k = mem_array(1, sizeof *k);
    *out = k;
    if (!k)
        return err_set(err, "no memory for a mask");
    k->m = masks_hold(m);
    k->plain = char_set_plain();
    k->bits = mem_array(m->v->n_words, sizeof *k->bits);
    k->one = mem_array(m->v->n_words, sizeof *k->one);
    if (!k->bits || !k->one || automaton_open(&k->room, &m->g, err)) {
        mask_close(k);
        *out = NULL;
        return err_set(err, "no memory for a mask");
    }
    automaton_begin(&k->room, &k->state);
    return 0;
}

void mask_close(struct mask *k)
{
    if (!k)
        return;
    automaton_close(&k->room);
    masks_close(k->m);
    free(k->bits);
    free(k->one);
    free(k);
}

const u32 *mask_allowed(void *of)
{
    struct mask *k = of;
    memset(k->bits, 0, k->m->v->n_words * sizeof *k->bits);
    for (u32 i = 0; i < k->state.n_threads; i++)
        add_thread(k, i);
    if (k->broken || mask_can_end(k))
        join(k->bits, k->m->v->ends, k->m->v->n_words);
    return k->bits;
}

void mask_took(void *of, u32 id)
{
    struct mask *k = of;
    const struct vocab *v = k->m->v;
    if (id < v->n && v->ends[id >> 5] >> (id & 31) & 1) {
        k->broken |= !mask_can_end(k);
        return;
    }
    bool alive = !k->broken && id < v->n && v->lengths[id];
    for (u32 i = 0; alive && i < v->lengths[id]; i++)
        alive = automaton_step(&k->room, &k->state, (u8)v->texts[id][i]);
    if (!alive) {
        k->broken = true;
        k->state.n_threads = 0;
    }
}

bool mask_can_end(const struct mask *k)
{
    return !k->broken && automaton_can_end(&k->m->g, &k->state);
}

bool mask_broken(const struct mask *k)
{
    return k->broken;
}

void mask_counts(const struct mask *k, struct mask_counts *c)
{
    *c = k->counts;
}
