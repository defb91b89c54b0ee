/* What verify's streams are given to say, and what each says alone: prompts of seeded random token
 * ids (greedy on random weights would collapse) and some real sentences, half of them greedy, half
 * sampled, with the full logits of every token of the solo run. Everything here depends on the
 * model, the seed and the two sizes in the wish only, so the hash over it is one number on every
 * machine. */
#ifndef PS_VERIFY_TEXT_H
#define PS_VERIFY_TEXT_H

#include "base/base.h"
#include "plainsong.h"

struct verify_hash { /* of a row of logits, two independent ones */
    u64 a, b;
};

struct verify_text {
    char name[96];
    u32 *ids; /* [n_ids] the prompt */
    u32 n_ids, n_out;
    i32 extends; /* the prompt begins with that text's prompt and answer, or -1 */
    struct ps_sampling sampling;
    u32 choice;
    /* alone: */
    u32 *out;                   /* [n_out] ids */
    struct verify_hash *hashes; /* [n_out] */
    float *rows;                /* (n_out, n_vocab), or NULL: only the hashes are kept */
    char *said;                 /* the answer's text; token i's piece ends at said_end[i] */
    size_t *said_end, said_cap;
};

struct verify_wish {
    u64 seed;
    u32 n_short, n_long; /* prompts of 1 to 95 tokens; of 192 to 513 */
    u32 gen;             /* tokens of an answer; some are half as long again */
    u32 n_ctx;           /* prompt and answer fit in it */
};

struct verify_texts {
    struct verify_text *list;
    u32 n, n_short; /* the short ones come first */
    u32 n_vocab, longest;
    bool
        rows; /* kept whole, so that memcmp decides; else hashes: they would take too much memory */
    u64 hash; /* over all logits of all solo runs, in order */
};

/* splitmix64 (Steele, Lea and Flood, OOPSLA 2014). */
u64 verify_text_draw(u64 *state);
/* A number in [0, n), n >= 1. */
u32 verify_text_below(u64 *state, u32 n);

/* Makes the prompts. m must outlive t. On failure nothing is left behind. */
int verify_text_open(struct verify_texts *t, const struct ps_model *m,
                     const struct verify_wish *wish, struct err *err);
void verify_text_close(struct verify_texts *t);

/* Runs text i alone on an engine of one slot that nobody else uses, none of it kept from before. */
int verify_text_sing(struct verify_texts *t, u32 i, const struct ps_model *m, struct ps_engine *e,
                     struct err *err);

struct ps_request verify_text_request(const struct verify_text *text, u32 tokens);
struct verify_hash verify_text_hash(const float *row, u32 n);

#endif
