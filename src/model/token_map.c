/* Ids by text: open addressing with linear probing, at most half full. */
#include "model/token_parts.h"

#include <stdlib.h>
#include <string.h>

static u64 map_hash(const char *s, size_t n)
{
    u64 h = n * 0x9E3779B97F4A7C15u;
    while (n >= 8) {
        u64 w;
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
        s += 8;
        n -= 8;
    }
    u64 w = 0;
    memcpy(&w, s, n);
    h = (h ^ w) * 0xC4CEB9FE1A85EC53u;
    return h ^ h >> 29;
}

int map_init(struct token_map *m, const struct gguf_str *texts, u32 n, struct err *err)
{
    u64 size = 16;
    while (size < 2 * (u64)n)
        size *= 2;
    m->texts = texts;
    m->mask = (u32)(size - 1);
    m->slots = mem_array(size, sizeof *m->slots);
    return m->slots ? 0 : err_set(err, "no memory for a table of %u tokens", n);
}

void map_free(struct token_map *m)
{
    free(m->slots);
    m->slots = NULL;
}

/* The slot that holds this text or the free one where it belongs. */
static u32 *map_slot(const struct token_map *m, const char *text, size_t len)
{
    u32 at = (u32)map_hash(text, len) & m->mask;
    for (;; at = (at + 1) & m->mask) {
        u32 *slot = &m->slots[at];
        if (!*slot)
            return slot;
        const struct gguf_str *have = &m->texts[*slot - 1];
        if (have->len == len && !memcmp(have->at, text, len))
            return slot;
    }
}

i32 map_add(struct token_map *m, u32 id)
{
    u32 *slot = map_slot(m, m->texts[id].at, m->texts[id].len);
    if (*slot)
        return (i32)(*slot - 1);
    *slot = id + 1;
    return TOKEN_NONE;
}

i32 map_find(const struct token_map *m, const char *text, size_t len)
{
    return (i32)*map_slot(m, text, len) - 1;
}
