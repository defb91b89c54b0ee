/* Part of vocab_mask: a vocabulary's tokens as a trie in preorder, so that a subtree is a run of nodes and its tokens a
 * run of ids. Nobody else includes this. */
#ifndef PS_SERVE_VOCAB_TRIE_H
#define PS_SERVE_VOCAB_TRIE_H

#include "serve/chars.h"
#include "serve/vocab_mask.h"

struct trie_node {
    struct char_set holds; /* classes of all characters below, counted from here; everything where a character is cut */
    u32 skip;              /* the node after the subtree */
    u32 first;             /* its tokens begin here in ids: those that end here come first */
    u16 depth;             /* bytes from the root */
    u8 byte;
    u8 chars;              /* the most characters below, counted from here; 255: or more */
};

struct trie {
    struct trie_node *nodes; /* node 0 is the root; node n ends it */
    u32 n, n_ids;
    u32 *ids;
};

enum { PLAIN_LENGTHS = 17, TOKEN_BYTES_MAX = 1024 /* longer tokens are never allowed; token.h has none */ };

struct vocab {
    u32 n, n_words;
    u32 longest; /* bytes of a token: it has no more characters */
    struct trie plain, rest;       /* tokens of whole characters that a JSON string holds as they are; all others */
    u32 *shorter[PLAIN_LENGTHS];   /* bits of plain tokens of at most that many characters; the last: of all */
    u32 *ends;                     /* bits of end tokens */
    const char **texts;            /* by id */
    u32 *lengths;
};

/* Sorts ids by their tokens' bytes and builds. */
int trie_open(struct trie *t, u32 *ids, u32 n, const struct vocab *v, struct err *err);
void trie_close(struct trie *t);
/* Length of the whole character at text[0..n), 0 when there is none, and its code point. */
u32 trie_char(const u8 *text, u32 n, u32 *cp);

static inline void bits_set(u32 *bits, u32 id)
{
    bits[id >> 5] |= 1u << (id & 31);
}

#endif
