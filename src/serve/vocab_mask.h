/* Which tokens may come next: a grammar's state against a whole vocabulary, one bit a token. The vocabulary's bytes are
 * two tries built once per model; a mask walks them with the automaton, takes subtrees whole where a string goes on
 * whatever they hold, and is kept for the next time the same place is reached.
 *
 *     vocab (one per model, immutable) <- masks (one per grammar; any thread) <- mask (one per answer; one thread)
 */
#ifndef PS_SERVE_VOCAB_MASK_H
#define PS_SERVE_VOCAB_MASK_H

#include "model/token.h"
#include "serve/automaton.h"

struct vocab;

/* The token model must outlive it. Fails for a vocabulary in which some byte of a text or an end token is missing: a
 * mask could be empty. */
int vocab_open(struct vocab **out, const struct token_model *t, struct err *err);
void vocab_close(struct vocab *v);
/* Tokens and their bytes, not NUL-terminated, for vocabularies that are no model's (tests, measuring): n tokens; those
 * without bytes are never allowed, but for ends. */
struct vocab_token {
    const char *at;
    u32 len;
    bool end; /* ends an answer */
};
int vocab_open_tokens(struct vocab **out, const struct vocab_token *tokens, u32 n, struct err *err);
u32 vocab_count(const struct vocab *v);

struct masks; /* a grammar with the masks made so far: at most cache_bytes of them, the least recently used go */
enum { MASKS_CACHE_BYTES = 8 << 20 };

/* Takes g over, whatever the result. Shared by all answers with that grammar: masks_hold adds an owner and returns m,
 * masks_close lets one go. Any thread. */
int masks_open(struct masks **out, const struct vocab *v, struct grammar *g, u64 cache_bytes, struct err *err);
struct masks *masks_hold(struct masks *m);
void masks_close(struct masks *m);

struct mask;

int mask_open(struct mask **out, struct masks *m, struct err *err); /* holds m */
void mask_close(struct mask *k);
/* Bits of the tokens that may come next (the engine's form: 32 to a word, low bit first), valid until the next call;
 * never all 0. End tokens are allowed exactly where the text may end; other control tokens never. struct mask as void:
 * ps_request.mask's functions. */
const u32 *mask_allowed(void *k);
/* The token that was chosen. After one that was not allowed only end tokens are. */
void mask_took(void *k, u32 id);
/* Whether the text so far is whole; whether it has broken the grammar. */
bool mask_can_end(const struct mask *k);
bool mask_broken(const struct mask *k);

struct mask_counts {
    u64 masks, found; /* threads looked up, and found in the cache */
};
void mask_counts(const struct mask *k, struct mask_counts *c);

#endif
