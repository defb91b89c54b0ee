/* The vocabulary, built once: which tokens are plain, two tries, and what each subtree holds. */
#include "serve/vocab_trie.h"

#include <stdlib.h>
#include <string.h>

u32 trie_char(const u8 *s, u32 n, u32 *cp)
{
    if (!n)
        return 0;
    if (s[0] < 0x80)
        return *cp = s[0], 1;
    u32 len = s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
    if (!len || len > n)
        return 0;
    u32 v = s[0] & (0x7Fu >> len);
    for (u32 i = 1; i < len; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        v = v << 6 | (s[i] & 0x3F);
    }
    if ((len == 3 && (v < 0x800 || (v >= 0xD800 && v < 0xE000))) || (len == 4 && (v < 0x10000 || v > 0x10FFFF)))
        return 0;
    return *cp = v, len;
}

/* ---- sorting: by bytes, bottom-up, because qsort has no argument for the texts ---- */

static int order(const struct vocab *v, u32 a, u32 b)
{
    int d = memcmp(v->texts[a], v->texts[b], min_u32(v->lengths[a], v->lengths[b]));
    return d ? d : v->lengths[a] < v->lengths[b] ? -1 : v->lengths[a] > v->lengths[b];
}

static int sort_ids(u32 *ids, u32 n, const struct vocab *v, struct err *err)
{
    u32 *spare = mem_array((u64)n + 1, sizeof *spare), *from = ids, *to = spare;
    if (!spare)
        return err_set(err, "no memory for %u tokens", n);
    for (u64 width = 1; width < n; width *= 2) {
        for (u64 lo = 0; lo < n; lo += 2 * width) {
            u64 mid = min_u64(lo + width, n), hi = min_u64(mid + width, n);
            for (u64 a = lo, b = mid, w = lo; w < hi; w++)
                to[w] = b == hi || (a < mid && order(v, from[a], from[b]) <= 0) ? from[a++] : from[b++];
        }
        u32 *swap = from;
        from = to;
        to = swap;
    }
    if (from != ids)
        memcpy(ids, from, n * sizeof *ids);
    free(spare);
    return 0;
}

/* ---- nodes ---- */

static u32 shared(const struct vocab *v, u32 a, u32 b)
{
    u32 n = min_u32(v->lengths[a], v->lengths[b]), i = 0;
    while (i < n && v->texts[a][i] == v->texts[b][i])
        i++;
    return i;
}

/* What token id adds to the nodes on its way, path[0..len]. */
static void mark_path(struct trie *t, const u32 *path, const struct vocab *v, u32 id)
{
    const u8 *text = (const u8 *)v->texts[id];
    u32 len = v->lengths[id], cp = 0, chars = 0;
    bool begins[TOKEN_BYTES_MAX + 1] = {false};
    u8 class[TOKEN_BYTES_MAX];
    for (u32 i = 0; i < len;) {
        u32 n = trie_char(text + i, len - i, &cp);
        begins[i] = true;
        class[i] = (u8)(n ? char_class(cp) : CLASS_BROKEN);
        i += n ? n : 1;
    }
    struct char_set holds = {{0, 0}};
    begins[len] = true;
    for (u32 i = len + 1; i-- > 0;) {
        struct trie_node *node = &t->nodes[path[i]];
        if (!begins[i]) {
            node->holds = (struct char_set){{~0ull, ~0ull}};
            continue;
        }
        if (i < len) {
            char_set_add(&holds, class[i]);
            chars = min_u32(chars + 1, 255);
        }
        node->holds.w[0] |= holds.w[0];
        node->holds.w[1] |= holds.w[1];
        node->chars = (u8)(chars > node->chars ? chars : node->chars);
    }
}

int trie_open(struct trie *t, u32 *ids, u32 n, const struct vocab *v, struct err *err)
{
    u32 path[TOKEN_BYTES_MAX + 1] = {0}, deep = 0;
    u64 count = 2;
    *t = (struct trie){.ids = ids, .n_ids = n};
    if (sort_ids(ids, n, v, err))
        return -1;
    for (u32 i = 0; i < n; i++)
        count += v->lengths[ids[i]] - (i ? shared(v, ids[i - 1], ids[i]) : 0);
    if (count > UINT32_MAX || !(t->nodes = mem_array(count, sizeof *t->nodes)))
        return err_set(err, "no memory for a trie of %llu nodes", (unsigned long long)count);
    t->n = 1;
    for (u32 i = 0; i < n; i++) {
        u32 id = ids[i], keep = i ? shared(v, ids[i - 1], id) : 0;
        for (u32 d = deep; d > keep; d--)
            t->nodes[path[d]].skip = t->n;
        for (deep = keep; deep < v->lengths[id]; deep++) {
            path[deep + 1] = t->n;
            t->nodes[t->n++] = (struct trie_node){.first = i, .depth = (u16)(deep + 1), .byte = (u8)v->texts[id][deep]};
        }
        mark_path(t, path, v, id);
    }
    for (u32 d = deep + 1; d-- > 0;)
        t->nodes[path[d]].skip = t->n;
    t->nodes[t->n].first = n;
    return 0;
}

void trie_close(struct trie *t)
{
    free(t->nodes);
    free(t->ids);
    *t = (struct trie){0};
}

/* ---- the vocabulary ---- */

/* Characters of a token that a JSON string holds as it is; 0: it is another. */
static u32 plain_chars(const u8 *text, u32 len)
{
    u32 n = 0, cp = 0;
    for (u32 i = 0, k; i < len; i += k, n++) {
        k = trie_char(text + i, len - i, &cp);
        if (!k || cp < 0x20 || cp == '"' || cp == '\\')
            return 0;
    }
    return n;
}

static int check_bytes(const struct vocab *v, struct err *err)
{
    bool has[256] = {false};
    for (u32 i = 0; i < v->n; i++)
        if (v->lengths[i] == 1)
            has[(u8)v->texts[i][0]] = true;
    for (u32 b = 0; b < 0xF5; b++)
        if (!has[b] && (b == '\n' || b >= 0x20) && b != 0x7F && b != 0xC0 && b != 0xC1)
            return err_set(err, "the vocabulary has no token for the byte 0x%02x: no grammar can be held to", b);
    for (u32 w = 0; w < v->n_words; w++)
        if (v->ends[w])
            return 0;
    return err_set(err, "the vocabulary has no end token: no grammar can be held to");
}

static int fill(struct vocab *v, struct err *err)
{
    u32 *plain = mem_array((u64)v->n + 1, sizeof *plain), *rest = mem_array((u64)v->n + 1, sizeof *rest);
    u32 n_plain = 0, n_rest = 0;
    if (!plain || !rest) {
        free(plain);
        free(rest);
        return err_set(err, "no memory for %u tokens", v->n);
    }
    for (u32 i = 0; i < v->n; i++) {
        u32 chars = plain_chars((const u8 *)v->texts[i], v->lengths[i]);
        if (!v->lengths[i] || v->lengths[i] > TOKEN_BYTES_MAX)
            continue;
        v->longest = v->lengths[i] > v->longest ? v->lengths[i] : v->longest;
        if (!chars) {
            rest[n_rest++] = i;
            continue;
        }
        plain[n_plain++] = i;
        for (u32 k = min_u32(chars, PLAIN_LENGTHS - 1); k < PLAIN_LENGTHS; k++)
            if (k >= chars || k == PLAIN_LENGTHS - 1)
                bits_set(v->shorter[k], i);
    }
    int rc = trie_open(&v->plain, plain, n_plain, v, err); /* each owns its ids from here on */
    return trie_open(&v->rest, rest, n_rest, v, err) || rc ? -1 : check_bytes(v, err);
}

static struct vocab *vocab_new(u32 n)
{
    struct vocab *v = mem_array(1, sizeof *v);
    if (!v)
        return NULL;
    v->n = n;
    v->n_words = (n + 31) / 32;
    bool ok = (v->ends = mem_array(v->n_words, sizeof(u32))) && (v->texts = mem_array(n, sizeof *v->texts)) &&
              (v->lengths = mem_array(n, sizeof(u32)));
    for (u32 k = 0; k < PLAIN_LENGTHS; k++)
        ok = (v->shorter[k] = mem_array(v->n_words, sizeof(u32))) && ok;
    if (!ok) {
        vocab_close(v);
        return NULL;
    }
    return v;
}

void vocab_close(struct vocab *v)
{
    if (!v)
        return;
    trie_close(&v->plain);
    trie_close(&v->rest);
    for (u32 k = 0; k < PLAIN_LENGTHS; k++)
        free(v->shorter[k]);
    free(v->ends);
    free(v->texts);
    free(v->lengths);
    free(v);
}

int vocab_open_tokens(struct vocab **out, const struct vocab_token *tokens, u32 n, struct err *err)
{
    *out = NULL;
    struct vocab *v = n ? vocab_new(n) : NULL;
    if (!v)
        return err_set(err, n ? "no memory for %u tokens" : "a vocabulary of %u tokens", n);
    for (u32 i = 0; i < n; i++) {
        v->texts[i] = tokens[i].at;
        v->lengths[i] = tokens[i].end ? 0 : tokens[i].len;
        if (tokens[i].end)
            bits_set(v->ends, i);
    }
    if (fill(v, err)) {
        vocab_close(v);
        return -1;
    }
    *out = v;
    return 0;
}

int vocab_open(struct vocab **out, const struct token_model *t, struct err *err)
{
    u32 n = token_count(t);
    struct vocab_token *tokens = mem_array(n, sizeof *tokens);
    if (!tokens)
        return *out = NULL, err_set(err, "no memory for %u tokens", n);
    for (u32 i = 0; i < n; i++) {
        size_t len;
        tokens[i].at = token_bytes(t, i, false, &len);
        tokens[i].len = (u32)len;
        tokens[i].end = token_is_end(t, i);
    }
    int rc = vocab_open_tokens(out, tokens, n, err);
    free(tokens);
    return rc;
}

u32 vocab_count(const struct vocab *v)
{
    return v->n;
}
