/* See stops.h. A node is a beginning of a stop string; it knows the string and its length, so the held bytes need no
 * buffer. Children are a list: at most STOPS_MAX of them anywhere, which keeps a node at 20 bytes and a hostile request
 * at 8,193 nodes. */
#include "serve/stops.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct node {
    u32 child, next; /* first child, next sibling; 0: none (the root is nobody's child) */
    u32 fail;        /* the longest proper suffix that is a node */
    u16 depth;       /* bytes of this beginning */
    i16 found;       /* the longest stop string that ends here, or -1 */
    u8 byte, of;     /* its last byte; a stop string that begins with it */
};

struct stops {
    u32 n, n_nodes;
    size_t lens[STOPS_MAX];
    char *texts[STOPS_MAX]; /* all in one allocation */
    struct node *nodes;
};

static u32 child(const struct stops *s, u32 node, u8 byte)
{
    u32 at = s->nodes[node].child;
    while (at && s->nodes[at].byte != byte)
        at = s->nodes[at].next;
    return at;
}

/* A step to the right falls back at most as often as steps were taken: linear over a stream. */
static u32 step(const struct stops *s, u32 node, u8 byte)
{
    u32 to;
    while (!(to = child(s, node, byte)) && node)
        node = s->nodes[node].fail;
    return to;
}

static void add(struct stops *s, u32 which)
{
    u32 node = 0;
    for (size_t i = 0; i < s->lens[which]; i++) {
        u8 byte = (u8)s->texts[which][i];
        u32 to = child(s, node, byte);
        if (!to) {
            to = s->n_nodes++;
            s->nodes[to] = (struct node){
                .next = s->nodes[node].child, .depth = (u16)(i + 1), .found = -1, .byte = byte, .of = (u8)which};
            s->nodes[node].child = to;
        }
        node = to;
    }
    if (s->nodes[node].found < 0)
        s->nodes[node].found = (i16)which;
}

/* Breadth first: the failure of a node is known when that of its parent is. queue: n_nodes long. */
static void link_failures(struct stops *s, u32 *queue)
{
    u32 head = 0, tail = 0;
    queue[tail++] = 0;
    while (head < tail) {
        u32 node = queue[head++];
        for (u32 at = s->nodes[node].child; at; at = s->nodes[at].next) {
            struct node *c = &s->nodes[at];
            c->fail = node ? step(s, s->nodes[node].fail, c->byte) : 0;
            if (c->found < 0)
                c->found = s->nodes[c->fail].found; /* shorter than this node: the longest is its own */
            queue[tail++] = at;
        }
    }
}

int stops_open(struct stops **out, const char *const *texts, const size_t *lens, u32 n)
{
    size_t sum = 0;
    *out = NULL;
    assert(n <= STOPS_MAX);
    struct stops *s = calloc(1, sizeof *s);
    for (u32 i = 0; i < n; i++) {
        assert(lens[i] > 0 && lens[i] <= STOPS_MAX_BYTES);
        sum += lens[i];
    }
    u32 *queue = calloc(sum + 1, sizeof *queue);
    char *all = malloc(sum + n + 1);
    if (s)
        s->nodes = calloc(sum + 1, sizeof *s->nodes);
    if (!s || !queue || !all || !s->nodes) {
        free(all);
        free(queue);
        if (s)
            free(s->nodes);
        free(s);
        return -1;
    }
    s->texts[0] = all;
    s->n = n;
    s->n_nodes = 1;
    s->nodes[0].found = -1;
    for (u32 i = 0; i < n; i++) {
        s->texts[i] = all;
        s->lens[i] = lens[i];
        memcpy(all, texts[i], lens[i]);
        all[lens[i]] = 0;
        all += lens[i] + 1;
        add(s, i);
    }
    link_failures(s, queue);
    free(queue);
    *out = s;
    return 0;
}

void stops_close(struct stops *s)
{
    if (!s)
        return;
    free(s->texts[0]);
    free(s->nodes);
    free(s);
}

const char *stops_text(const struct stops *s, u32 i, size_t *len)
{
    *len = s->lens[i];
    return s->texts[i];
}

/* The first `out` bytes of what was held (h of them) and of text. */
static struct stops_cut cut(const struct stops *s, u32 held_by, size_t h, const char *text, size_t out)
{
    size_t n_head = out < h ? out : h;
    return (struct stops_cut){.head = n_head ? s->texts[s->nodes[held_by].of] : "",
                              .n_head = n_head,
                              .tail = text,
                              .n_tail = out - n_head,
                              .found = -1};
}

struct stops_cut stops_push(const struct stops *s, struct stops_at *at, const char *text, size_t len)
{
    u32 before = at->node, node = before;
    size_t h = s->nodes[before].depth;
    for (size_t i = 0; i < len && s->n; i++) {
        node = step(s, node, (u8)text[i]);
        i32 found = s->nodes[node].found;
        if (found < 0)
            continue;
        struct stops_cut c = cut(s, before, h, text, h + i + 1 - s->lens[found]);
        c.found = found;
        c.n_taken = i + 1;
        at->node = 0;
        return c;
    }
    at->node = node;
    struct stops_cut c = cut(s, before, h, text, h + len - s->nodes[node].depth);
    c.n_taken = len;
    return c;
}

struct stops_cut stops_end(const struct stops *s, struct stops_at *at)
{
    struct stops_cut c = cut(s, at->node, s->nodes[at->node].depth, "", s->nodes[at->node].depth);
    at->node = 0;
    return c;
}
