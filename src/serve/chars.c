/* The automaton over code points: trimming, the product with a length, and what is safe to skip over. */
#include "serve/chars.h"

#include <stdlib.h>
#include <string.h>

/* First code points of the classes from 95 (DEL) on; the last block ends at U+10FFFF. Chosen so that what tokens are
 * made of together is together; any choice is right. */
static const u32 BLOCKS[] = {0x7F,   0x80,   0xC0,   0x100,  0x250,  0x370,  0x400,   0x530,   0x590,   0x600,  0x700,
                             0x900,  0xB80,  0xE00,  0x1000, 0x10A0, 0x1100, 0x1E00,  0x2000,  0x2028,  0x202A, 0x2070,
                             0x2500, 0x3000, 0x3040, 0x3100, 0x3400, 0xAC00, 0xE000,  0xF900,  0x10000};
enum { ASCII = 95, LAST = ASCII + (int)COUNT(BLOCKS) - 1 };
_Static_assert((int)LAST < (int)CLASS_CONTROL, "classes fit 128 bits");

unsigned char_class(u32 cp)
{
    if (cp < 0x20)
        return CLASS_CONTROL;
    if (cp < 0x7F)
        return cp - 0x20;
    unsigned k = (unsigned)COUNT(BLOCKS) - 1;
    while (cp < BLOCKS[k])
        k--;
    return ASCII + k;
}

static void class_range(unsigned class, u32 *lo, u32 *hi)
{
    if (class < ASCII) {
        *lo = *hi = class + 0x20;
    } else {
        *lo = BLOCKS[class - ASCII];
        *hi = class == LAST ? 0x10FFFF : BLOCKS[class - ASCII + 1] - 1;
    }
}

struct char_set char_set_plain(void)
{
    struct char_set s = {{0, 0}};
    for (unsigned c = 0; c <= LAST; c++)
        if (c != '"' - 0x20 && c != '\\' - 0x20)
            char_set_add(&s, c);
    return s;
}

void chars_free(struct chars *c)
{
    free(c->states);
    free(c->edges);
    *c = (struct chars){0};
}

/* The first edge of state whose hi is at least cp, or the end. */
static u32 edge_from(const struct chars *c, u32 state, u32 cp)
{
    u32 lo = c->states[state].first, hi = lo + c->states[state].n;
    while (lo < hi) {
        u32 mid = lo + (hi - lo) / 2;
        if (c->edges[mid].hi < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

i64 chars_next(const struct chars *c, u32 state, u32 cp)
{
    u32 e = edge_from(c, state, cp);
    if (e == c->states[state].first + c->states[state].n || c->edges[e].lo > cp)
        return -1;
    return c->edges[e].to;
}

bool chars_any(const struct chars *c, u32 state, u32 lo, u32 hi)
{
    u32 e = edge_from(c, state, lo);
    return e < c->states[state].first + c->states[state].n && c->edges[e].lo <= hi;
}

int chars_push(struct chars *c, u32 *cap, struct chars_edge e, bool first_of_state, struct err *err)
{
    struct chars_edge *last = c->n_edges ? &c->edges[c->n_edges - 1] : NULL;
    if (last && !first_of_state && last->to == e.to && last->hi + 1 == e.lo) {
        last->hi = e.hi;
        return 0;
    }
    if (c->n_edges == *cap) {
        u32 grown = *cap ? *cap * 2 : 64;
        if (*cap >= CHARS_EDGES)
            return err_set(err, "more than %d edges", CHARS_EDGES);
        struct chars_edge *edges = realloc(c->edges, grown * sizeof *edges);
        if (!edges)
            return err_set(err, "no memory for %u edges of a pattern", grown);
        c->edges = edges;
        *cap = grown;
    }
    c->edges[c->n_edges++] = e;
    return 0;
}

/* keep[s]: s can end. Backwards over reversed edges, each once. */
static int mark_live(const struct chars *c, bool *keep, struct err *err)
{
    u32 *at = mem_array((u64)c->n + 1, sizeof *at), *from = mem_array((u64)c->n_edges + 1, sizeof *from),
        *queue = mem_array((u64)c->n + 1, sizeof *queue), n = 0;
    int rc = at && from && queue ? 0 : err_set(err, "no memory for %u states of a pattern", c->n);
    if (!rc) {
        for (u32 e = 0; e < c->n_edges; e++)
            at[c->edges[e].to]++;
        for (u32 s = 1; s <= c->n; s++)
            at[s] += at[s - 1];
        for (u32 s = 0; s < c->n; s++)
            for (u32 e = c->states[s].first; e < c->states[s].first + c->states[s].n; e++)
                from[--at[c->edges[e].to]] = s;
        for (u32 s = 0; s < c->n; s++)
            if (c->states[s].ends)
                keep[s] = true, queue[n++] = s;
        for (u32 i = 0; i < n; i++)
            for (u32 k = at[queue[i]]; k < at[queue[i] + 1]; k++)
                if (!keep[from[k]])
                    keep[from[k]] = true, queue[n++] = from[k];
    }
    free(at);
    free(from);
    free(queue);
    return rc;
}

int chars_trim(struct chars *c, struct err *err)
{
    bool *keep = mem_array((u64)c->n + 1, sizeof *keep);
    u32 *name = mem_array((u64)c->n + 1, sizeof *name), n = 0, w = 0, cap = c->n_edges;
    int rc = keep && name ? mark_live(c, keep, err) : err_set(err, "no memory for %u states of a pattern", c->n);
    if (!rc) {
        for (u32 s = 0; s < c->n; s++)
            if (keep[s])
                name[s] = n++;
        if (c->n && !keep[0])
            n = 0;
        struct chars out = {0, 0, c->states, c->edges};
        for (u32 s = 0; s < c->n && n; s++) {
            if (!keep[s])
                continue;
            struct chars_state old = c->states[s];
            u32 first = out.n_edges;
            for (u32 e = old.first; e < old.first + old.n; e++) {
                struct chars_edge edge = c->edges[e];
                if (keep[edge.to]) {
                    edge.to = name[edge.to];
                    chars_push(&out, &cap, edge, out.n_edges == first, err); /* never grows: it follows the reader */
                }
            }
            out.states[w++] = (struct chars_state){.first = first, .n = out.n_edges - first, .ends = old.ends};
        }
        c->n = n;
        c->n_edges = n ? out.n_edges : 0;
        struct chars_state *states = realloc(c->states, (n + 1) * sizeof *states);
        struct chars_edge *edges = realloc(c->edges, (c->n_edges + 1) * sizeof *edges);
        c->states = states ? states : c->states;
        c->edges = edges ? edges : c->edges;
    }
    free(keep);
    free(name);
    return rc;
}

/* ---- the product with a length ---- */

struct pairs { /* (state, length) -> number, in the order of finding */
    u64 *keys;
    u32 *slots; /* number + 1 */
    u32 n, most, mask;
};

static i64 pair_of(struct pairs *p, u32 state, u32 len)
{
    u64 key = (u64)state << 32 | len;
    u32 h = (u32)(key * 0x9E3779B97F4A7C15ull >> 32) & p->mask;
    for (; p->slots[h]; h = (h + 1) & p->mask)
        if (p->keys[p->slots[h] - 1] == key)
            return p->slots[h] - 1;
    if (p->n == p->most)
        return -1;
    p->keys[p->n] = key;
    p->slots[h] = ++p->n;
    return p->n - 1;
}

static int product(struct chars *out, const struct chars *c, struct pairs *p, u32 min, u32 max, struct err *err)
{
    u32 cap = 0;
    pair_of(p, 0, 0);
    for (u32 i = 0; i < p->n; i++) {
        u32 s = (u32)(p->keys[i] >> 32), len = (u32)p->keys[i], first = out->n_edges;
        const struct chars_state *old = &c->states[s];
        for (u32 e = old->first; e < old->first + old->n && len < max; e++) {
            struct chars_edge edge = c->edges[e];
            /* Without a max a length counts up to min only. */
            i64 to = pair_of(p, edge.to, max == UINT32_MAX && len == min ? len : len + 1);
            if (to < 0)
                return err_set(err, "with minLength or maxLength takes more than %u states", p->most);
            edge.to = (u32)to;
            if (chars_push(out, &cap, edge, out->n_edges == first, err))
                return -1;
        }
        out->states[i] = (struct chars_state){.first = first, .n = out->n_edges - first,
                                              .ends = old->ends && len >= min};
        out->n = i + 1;
    }
    return 0;
}

int chars_limit(struct chars *c, u32 min, u32 max, u32 most, struct err *err)
{
    if (!c->n || (min == 0 && max == UINT32_MAX))
        return 0;
    struct chars out = {0};
    struct pairs p = {.most = most, .mask = 1};
    while (p.mask < 2 * (u64)most)
        p.mask = p.mask * 2 + 1;
    p.keys = mem_array(most, sizeof *p.keys);
    p.slots = mem_array((u64)p.mask + 1, sizeof *p.slots);
    out.states = mem_array(most, sizeof *out.states);
    int rc = -1;
    if (!p.keys || !p.slots || !out.states)
        err_set(err, "no memory for %u states of a pattern", most);
    else
        rc = product(&out, c, &p, min, max, err);
    if (!rc)
        rc = chars_trim(&out, err);
    free(p.keys);
    free(p.slots);
    if (rc) {
        chars_free(&out);
        return -1;
    }
    chars_free(c);
    *c = out;
    return 0;
}

/* ---- what is safe to skip over ---- */

/* Classes all of whose code points have edges. */
static struct char_set covered(const struct chars *c, u32 state)
{
    struct char_set s = {{0, 0}};
    for (unsigned class = 0; class <= LAST; class++) {
        u32 lo, hi, e, end = c->states[state].first + c->states[state].n;
        class_range(class, &lo, &hi);
        for (e = edge_from(c, state, lo); e < end && c->edges[e].lo <= lo && c->edges[e].hi < hi; e++)
            lo = c->edges[e].hi + 1;
        if (e < end && c->edges[e].lo <= lo && c->edges[e].hi >= hi)
            char_set_add(&s, class);
    }
    struct char_set plain = char_set_plain();
    return (struct char_set){{s.w[0] & plain.w[0], s.w[1] & plain.w[1]}};
}

static struct char_set edge_classes(struct chars_edge e)
{
    struct char_set s = {{0, 0}};
    unsigned last = char_class(e.hi);
    for (unsigned class = char_class(e.lo < 0x20 ? 0x20 : e.lo); e.hi >= 0x20 && class <= last; class++)
        char_set_add(&s, class);
    return s;
}

static int size_of(struct char_set s)
{
    return __builtin_popcountll(s.w[0]) + __builtin_popcountll(s.w[1]);
}

/* A set that every state it leads to, by its classes, has too. Where an edge's target has less, either the edge's
 * classes go or what the target lacks, whichever leaves more: any choice is right. */
static struct char_set safe_from(const struct chars *c, u32 state, struct char_set s, const struct char_set *now)
{
    for (u32 e = c->states[state].first; e < c->states[state].first + c->states[state].n; e++) {
        struct char_set on = edge_classes(c->edges[e]), to = now[c->edges[e].to];
        if (!((on.w[0] & s.w[0]) | (on.w[1] & s.w[1])))
            continue;
        struct char_set with = {{s.w[0] & to.w[0], s.w[1] & to.w[1]}};
        struct char_set without = {{s.w[0] & ~on.w[0], s.w[1] & ~on.w[1]}};
        s = size_of(with) >= size_of(without) ? with : without;
    }
    return s;
}

/* safe(1) is what is covered; safe(k) is a part of it that leads only to states whose safe(k - 1) has all of it. */
void chars_mark_safe(struct chars *c)
{
    if (!c->n)
        return;
    struct char_set *own = mem_array(c->n, sizeof *own), *now = mem_array(c->n, sizeof *now),
                    *next = mem_array(c->n, sizeof *next);
    for (u32 s = 0; own && now && next && s < c->n; s++)
        own[s] = now[s] = covered(c, s);
    for (u32 k = 2; own && now && next && k <= 2u << (CHARS_SAFE - 1); k++) {
        for (u32 s = 0; s < c->n; s++) {
            next[s] = safe_from(c, s, own[s], now);
            for (u32 i = 0; i < CHARS_SAFE; i++)
                if (k == 2u << i)
                    c->states[s].safe[i] = next[s];
        }
        struct char_set *swap = now;
        now = next;
        next = swap;
    }
    free(own); /* without memory safe stays empty: slower, not wrong */
    free(now);
    free(next);
}
