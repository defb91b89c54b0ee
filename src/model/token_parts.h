/* What the token_*.c files share; nobody else includes this. A token has its spelling in the file
 * ("literal": byte-level letters, or U+2581 for a space) and its bytes ("text": what it stands
 * for). Literals live in the GGUF and are needed while opening only; texts belong to the model. */
#ifndef PS_TOKEN_PARTS_H
#define PS_TOKEN_PARTS_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "model/token.h"

/* tokenizer.ggml.token_type */
enum token_type { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

enum {
    TOKEN_TEXT_MAX = 1024,    /* of a literal; real vocabularies end near 260 */
    TOKEN_INPUT_MAX = 1 << 30 /* bytes of one text: positions are u32 with room to spare */
};

/* ---- token_utf8.c ---- */

/* Looks at the character at s[0..n), n > 0. Returns its length and its value; 0 when all n bytes
 * begin one that is not whole; -k when the first k bytes are a maximal ill-formed part
 * (Unicode 3.9, table 3-8). */
int utf8_scan(const u8 *s, size_t n, u32 *cp);
/* Offset of the first ill-formed part; n when there is none. */
size_t utf8_check(const char *s, size_t n);
/* Writes cp (a scalar value); returns 1..4. */
size_t utf8_put(char *out, u32 cp);

/* ---- token_map.c: ids by text ---- */

struct token_map { /* open addressing; a slot holds id + 1, 0 is free */
    u32 *slots;
    u32 mask;
    const struct gguf_str *texts; /* by id; borrowed */
};

int map_init(struct token_map *m, const struct gguf_str *texts, u32 n, struct err *err);
void map_free(struct token_map *m);
/* Adds id; returns the id that has this text already, or TOKEN_NONE. */
i32 map_add(struct token_map *m, u32 id);
i32 map_find(const struct token_map *m, const char *text, size_t len);

/* ---- token_pre.c: where a text is cut before merging ---- */

enum { PRE_STAGES = 4 };

struct token_pre {
    pcre2_code *stages[PRE_STAGES]; /* each cuts the pieces of the one before */
    u32 n_stages;
    bool nfc;           /* the text is put in Normalization Form C first */
    bool ignore_merges; /* a piece that is a token is taken whole */
    bool add_bos;       /* where the file does not say */
};

/* name: tokenizer.ggml.pre. The error names it and all known ones. */
int pre_open(struct token_pre *p, const char *path, struct gguf_str name, struct err *err);
void pre_close(struct token_pre *p);

struct pre_sink { /* takes the pieces in order; -1 stops the cut */
    int (*piece)(void *ctx, const char *text, size_t len, struct err *err);
    void *ctx;
};
/* text is well-formed UTF-8. */
int pre_cut(const struct token_pre *p, const char *text, size_t len, struct pre_sink sink,
            struct err *err);

/* ---- token_nfc.c ---- */

/* *out is text itself where that is ASCII, else a new block for free(); *out_len its length. O(n
 * log n). */
int nfc_text(const char *text, size_t len, char **out, size_t *out_len, struct err *err);

/* ---- token_bpe.c: merges ---- */

struct bpe_merge {
    u32 left, right; /* left == UINT32_MAX: a free slot */
    u32 rank, id;
};

struct bpe_merges {
    struct bpe_merge *slots;
    u32 mask;
};

struct bpe_symbol {
    u32 id; /* UINT32_MAX: swallowed by its left neighbour */
    u32 prev, next;
};

struct bpe_work { /* one encode's scratch; zero-initialise */
    struct bpe_symbol *symbols;
    size_t n, cap;
    u64 *heap; /* rank << 32 | position */
    size_t n_heap, cap_heap;
};

int bpe_init(struct bpe_merges *m, u64 n, struct err *err);
void bpe_free(struct bpe_merges *m);
/* A pair that comes twice has its last rank, as in Hugging Face's table. Never more than n pairs.
 */
void bpe_add(struct bpe_merges *m, struct bpe_merge merge);

void bpe_work_free(struct bpe_work *w);
int bpe_push(struct bpe_work *w, u32 id, struct err *err);
/* Merges the symbols pushed, lowest rank first, leftmost first among equals; appends the ids that
 * remain to out and empties w. */
int bpe_run(const struct bpe_merges *m, struct bpe_work *w, struct token_ids *out, struct err *err);
int ids_push(struct token_ids *ids, u32 id, struct err *err);

/* ---- token.c ---- */

struct token_added { /* ids sorted by text: tokens found in a text before all else */
    u32 *ids;
    u32 n;
    bool first[256]; /* bytes that one of them starts with */
};

struct token_model {
    bool spm; /* SentencePiece; else byte-level */
    bool space_prefix;
    u32 n;
    struct gguf_str *texts; /* by id, in blob */
    char *blob;
    u8 *types;            /* enum token_type by id */
    bool *ends;           /* by id */
    struct token_map map; /* of normal tokens by text */
    struct bpe_merges merges;
    i32 bytes[256];            /* the token that is this byte */
    struct token_pre pre;      /* byte-level */
    struct token_added added;  /* with TOKEN_PARSE_SPECIAL */
    struct token_added spaces; /* always */
    struct token_special special;
    size_t max_bytes;
};

/* ---- token_level.c: byte-level letters; token_spm.c: SentencePiece. Literals become texts, merges
 * a table, a text without added tokens ids. ---- */

size_t level_text(struct gguf_str literal, char *out);
int level_init(struct token_model *t, const struct gguf *g, const struct token_map *literals,
               struct err *err);
int level_encode(const struct token_model *t, const char *text, size_t len, struct bpe_work *w,
                 struct token_ids *out, struct err *err);

size_t spm_text(struct gguf_str literal, char *out);
int spm_init(struct token_model *t, const struct gguf *g, const struct gguf_str *literals,
             struct err *err);
int spm_encode(const struct token_model *t, const char *text, size_t len, struct bpe_work *w,
               struct token_ids *out, struct err *err);

#endif
