/* A step's rows as the words that kernels read (gpu/args.h), and the class of the step. Rows of one stream that follow each other are a
 * prompt's: tiles, which read a chunk of keys once for all their rows. Others are items: a row alone and one chunk, so that long
 * contexts are spread over the whole chip. Which of the two a row is never shows in its result. */
#include "device/gpu_host.h"

#include <string.h>

enum {
    TILE_LEAST = 4,   /* rows that are worth a tile */
    ATTEND_ALONE = 8 /* rows, at most, whose attention has one group an SM */
};

/* The rows classes: where another kernel or tile height is taken (gpu_lower.c), and one for all that is longer. */
static const u32 CLASSES[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};

static u32 class_rows(u32 n, u32 most)
{
    for (u32 i = 0; i < COUNT(CLASSES) && CLASSES[i] < most; i++)
        if (n <= CLASSES[i])
            return CLASSES[i];
    return most;
}

struct gpu_offsets gpu_offsets(const struct gpu *g, const struct gpu_class *c)
{
    u32 kept = c->keep ? c->logits : 0;
    struct gpu_offsets at;
    at.rows[0] = IN_HEADER;
    at.rows[1] = at.rows[0] + 4 * c->rows;
    at.tiles[0] = at.rows[1] + 4 * kept;
    at.tiles[1] = at.tiles[0] + (c->tiles[0] ? c->rows : 0);
    at.items[1] = at.tiles[1] + (c->tiles[1] ? kept : 0); /* the longest part last: what follows its end is not sent */
    at.items[0] = at.items[1] + (c->items[1] ? (u32)min_u64((u64)kept * g->chunks, g->max_items) : 0);
    return at;
}

u32 gpu_inputs_words(const struct gpu *g)
{
    struct gpu_class all = {.rows = g->dev.opts.max_rows, .logits = g->dev.opts.max_logits, .keep = 1, .items = {1, 1}, .tiles = {1, 1}};
    return gpu_offsets(g, &all).items[0] + g->max_items;
}

/* Row i of a table. */
static const struct row *row_of(const struct gpu *g, u32 table, u32 i)
{
    return &g->rows[table ? g->logit_rows[i] : i];
}

/* Rows from i on that are of one slot at positions that follow each other. */
static u32 run_length(const struct gpu *g, u32 table, u32 i, u32 n)
{
    u32 len = 1;
    for (; i + len < n; len++) {
        const struct row *a = row_of(g, table, i + len - 1), *b = row_of(g, table, i + len);
        if (b->slot != a->slot || b->pos != a->pos + 1)
            break;
    }
    return len;
}

struct cut { /* of one table */
    u32 n_items, n_tiles;
    bool join;
};

static void cut_tiles(struct gpu *g, u32 table, struct cut *c, u32 first, u32 n)
{
    for (u32 i = 0; i < n; i += GPU_TILE_ROWS)
        g->tiles[table][c->n_tiles++] = (first + i) | min_u32(n - i, GPU_TILE_ROWS) << 24;
}

/* Returns false when the parts have no more room: the row is a tile then. */
static bool cut_items(struct gpu *g, u32 table, struct cut *c, u32 row)
{
    u32 chunks = row_of(g, table, row)->pos / GPU_CHUNK + 1;
    if (chunks > g->max_items - c->n_items)
        return false;
    c->join |= chunks > 1;
    for (u32 k = 0; k < chunks; k++)
        g->items[table][c->n_items++] = row | k << 16;
    return true;
}

static struct cut cut_rows(struct gpu *g, u32 table, u32 n)
{
    struct cut c = {0};
    for (u32 i = 0, len; i < n; i += len) {
        len = run_length(g, table, i, n);
        if (len >= TILE_LEAST)
            cut_tiles(g, table, &c, i, len);
        for (u32 k = 0; len < TILE_LEAST && k < len; k++)
            if (!cut_items(g, table, &c, i + k))
                cut_tiles(g, table, &c, i + k, 1);
    }
    return c;
}

/* Few rows of one chunk: a group an SM, beside which the next launch's groups begin; items are then cut so that they
 * suffice. More: two, whose waits overlap. */
u32 gpu_attend_groups(const struct gpu *g, const struct gpu_class *c, u32 table)
{
    u32 rows = table ? c->logits : c->rows;
    return PS_METAL || c->join[table] || rows > ATTEND_ALONE ? g->info.n_groups
                                                             : (g->info.n_groups + 1) / 2;
}

/* Query heads in an item: the more share one reading of the keys the better, while there are items for more than half of the groups. With one head k_attend
 * shares out an item's dimensions where items are few. */
static u32 item_heads(const struct gpu *g, u32 table, u32 n_items)
{
    u32 groups = gpu_attend_groups(g, &g->class, table);
    const struct hparams *hp = &g->dev.plan->hp;
    u32 heads = gpu_item_heads(hp->n_heads / hp->n_kv, hp->d_head, g->dev.opts.kv == KV_Q8_0);
    while (heads > 1 && (u64)n_items * (hp->n_heads / heads) * 2 <= groups)
        heads /= 2;
    return heads;
}

/* The longest tiles first, so that groups which get several end at about the same time. Runs of rows rise, so most of the work is the turning. */
static void order_tiles(struct gpu *g, u32 table, u32 n)
{
    u32 *tile = g->tiles[table];
    for (u32 i = 0; i < n / 2; i++) {
        u32 t = tile[i];
        tile[i] = tile[n - 1 - i];
        tile[n - 1 - i] = t;
    }
    for (u32 i = 1; i < n; i++) {
        u32 t = tile[i], k = i;
        for (; k && row_of(g, table, tile[k - 1] & 0xFFFFFF)->pos < row_of(g, table, t & 0xFFFFFF)->pos; k--)
            tile[k] = tile[k - 1];
        tile[k] = t;
    }
}

static void put_table(struct gpu *g, const struct gpu_offsets *at, u32 table, u32 n, const struct cut *c)
{
    u32 *w = g->words, *row = w + at->rows[table];
    w[IN_ROWS + table] = n;
    w[IN_ITEMS + table] = c->n_items;
    w[IN_TILES + table] = c->n_tiles;
    w[IN_HEADS + table] = item_heads(g, table, c->n_items);
    for (u32 i = 0; i < n; i++) {
        const struct row *r = row_of(g, table, i);
        u32 words[4] = {table ? g->logit_rows[i] : r->token, r->slot, r->pos, ~0u};
        memcpy(row + 4 * i, words, sizeof words);
    }
    for (u32 i = 0; i < c->n_items; i++)
        if (g->items[table][i] >> 16 == 0)
            row[4 * g->items[table][i] + 3] = i;
    memcpy(w + at->items[table], g->items[table], c->n_items * sizeof *w);
    memcpy(w + at->tiles[table], g->tiles[table], c->n_tiles * sizeof *w);
}

/* Whether attention's launch should store besides: rows of slots of their own, so that none reads what another stores, and few items for each group,
 * since every item rotates its queries anew. */
static bool apart(const struct gpu *g, const struct cut *c)
{
    u64 units = (u64)c->n_items * (g->dev.plan->hp.n_heads / item_heads(g, 0, c->n_items));
    if (g->n_rows > GPU_APART || units > 2 * (u64)g->info.n_groups)
        return false;
    for (u32 i = 0; i < g->n_rows; i++)
        for (u32 k = 0; k < i; k++)
            if (g->rows[i].slot == g->rows[k].slot)
                return false;
    return true;
}

void gpu_fill_inputs(struct gpu *g)
{
    const struct device_opts *o = &g->dev.opts;
    struct gpu_class *c = &g->class;
    bool keep = g->n_logits && g->n_logits < g->n_rows;
    u32 n[2] = {g->n_rows, keep ? g->n_logits : 0};
    struct cut cut[2];
    *c = (struct gpu_class){.rows = class_rows(g->n_rows, o->max_rows), .keep = keep, .plain = g->dev.trace != NULL};
    c->logits = g->n_logits ? class_rows(g->n_logits, o->max_logits) : 0;
    for (u32 t = 0; t < 2; t++) {
        cut[t] = cut_rows(g, t, n[t]);
        order_tiles(g, t, cut[t].n_tiles);
        c->items[t] = cut[t].n_items > 0;
        c->tiles[t] = cut[t].n_tiles > 0;
        c->join[t] = cut[t].join;
    }
    c->apart = apart(g, &cut[0]);
    struct gpu_offsets at = gpu_offsets(g, c);
    memset(g->words, 0, IN_HEADER * sizeof *g->words);
    for (u32 t = 0; t < 2; t++)
        put_table(g, &at, t, n[t], &cut[t]);
    g->n_words = at.items[0] + cut[0].n_items;
}
