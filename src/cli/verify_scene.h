/* A scene: streams that join, finish and are cancelled while others run, on one engine, each
 * compared token by token with its solo run. When a stream joins or is cancelled is counted on the
 * scene's clock: tokens read from all its streams so far; so a scene is the same again from the
 * same seed, as far as the engine's pace lets it. */
#ifndef PS_VERIFY_SCENE_H
#define PS_VERIFY_SCENE_H

#include "cli/verify_text.h"

enum verify_kind {
    VERIFY_FUSED,  /* n streams begin together, each to its end */
    VERIFY_RAGGED, /* very different lengths, joining, finishing, cancelled and left at seeded
                      moments */
    VERIFY_KEPT,   /* one text again, alone, after others, extended and in two streams at once */
    VERIFY_EACH,   /* every text once, in order */
};

struct verify_part {
    u32 text, tokens;
    u32 join, cancel; /* on the clock; cancel UINT32_MAX: never */
    u32 enough;       /* cancelled after so many tokens of its own; UINT32_MAX: never */
    bool leave;       /* cancelled by closing it at once */
};

enum { VERIFY_PARTS = 160 };

struct verify_scene {
    struct verify_part parts[VERIFY_PARTS]; /* in the order of join */
    u32 n;
};

struct verify_tally {
    u64 comparisons, full, differ; /* streams; those of at least `gen` tokens; those that differ */
    u64 tokens;
    u64 kept;         /* prompt tokens not run because a slot had them */
    u64 cancelled[3]; /* in the queue, in the prompt, while generating */
    u32 rows;         /* most rows of a step that a token came from */
};

/* The first difference of a run. */
struct verify_diff {
    bool found, sampled;             /* sampled: the logits are equal, the token chosen is not */
    u32 text, part, token, position; /* the position whose row made the token */
    char what[200];
};

/* n: streams. gen: tokens of a full answer. */
void verify_scene_make(struct verify_scene *s, enum verify_kind kind, u32 n, u32 gen, u64 seed,
                       const struct verify_texts *t);

/* Runs it; adds to *tally, fills *diff when it is empty and something differs. tell is called now
 * and then, or is NULL. -1: the engine refused a stream; differences are no failure. */
int verify_scene_run(const struct verify_scene *s, const struct verify_texts *t, u32 gen,
                     const struct ps_model *m, struct ps_engine *e, struct verify_tally *tally,
                     struct verify_diff *diff,
                     void (*tell)(void *arg, const struct verify_tally *so_far), void *arg,
                     struct err *err);

#endif
