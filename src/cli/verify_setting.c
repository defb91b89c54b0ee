/* See verify_setting.h. What varies: streams, submissions, prompt chunks, slots, expert mode, setup
 * cache, threads, instruction sets; each alone against the defaults, then drawn all at once. */
#include "cli/verify_setting.h"

#include "kernel/kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUEUE = 2 * VERIFY_PARTS, /* no stream of a scene is ever refused */
    ISAS = 16
};

static u32 most(const struct verify_bounds *b)
{
    return b->streams[b->n_streams - 1];
}

/* The largest wish that is at most n, at least the smallest. */
static u32 near(const struct verify_bounds *b, u32 n)
{
    u32 best = b->streams[0];
    for (u32 i = 0; i < b->n_streams; i++)
        best = b->streams[i] <= n ? b->streams[i] : best;
    return best;
}

static void name(struct verify_setting *s, const struct verify_bounds *b)
{
    static const char *const KINDS[] = {"fused", "ragged", "kept", "each"};
    const struct ps_engine_options *o = &s->o;
    char *at = s->name, *end = at + sizeof s->name;
    at += snprintf(at, (size_t)(end - at), "%s %u", KINDS[s->kind], s->n);
    if (o->kv && strcmp(o->kv, "f16") != 0)
        at += snprintf(at, (size_t)(end - at), ", %s", o->kv);
    if (o->serialize)
        at += snprintf(at, (size_t)(end - at), ", serialize");
    if (o->experts_per_row)
        at += snprintf(at, (size_t)(end - at), ", per-row");
    if (o->no_setup_cache)
        at += snprintf(at, (size_t)(end - at), ", no cache");
    if (o->chunk)
        at += snprintf(at, (size_t)(end - at),
                       o->chunk == b->whole ? ", whole prompts" : ", chunk %u", o->chunk);
    if (o->n_slots != most(b))
        at += snprintf(at, (size_t)(end - at), ", slots %u", o->n_slots);
    if (o->n_threads)
        at += snprintf(at, (size_t)(end - at), ", threads %u", o->n_threads);
    if (o->isa)
        snprintf(at, (size_t)(end - at), ", %s", o->isa);
}

static int add(struct verify_settings *out, const struct verify_bounds *b,
               const struct ps_engine_options *o, enum verify_kind kind, u32 n, struct err *err)
{
    if (out->n == out->cap) {
        u32 cap = out->cap * 2 + 64;
        struct verify_setting *more = realloc(out->list, cap * sizeof *more);
        if (!more)
            return err_set(err, "out of memory");
        out->list = more;
        out->cap = cap;
    }
    struct verify_setting *s = &out->list[out->n++];
    *s = (struct verify_setting){.o = *o, .kind = kind, .n = n, .seed = b->seed * 7919 + out->n};
    name(s, b);
    return 0;
}

/* The defaults as far as the user left them. */
static struct ps_engine_options plain(const struct verify_bounds *b)
{
    struct ps_engine_options o = b->set;
    o.n_slots = o.n_slots ? o.n_slots : most(b);
    o.n_queue = QUEUE;
    return o;
}

/* Every number of streams, from `least` on and up to `top`. */
static int fused(struct verify_settings *out, const struct verify_bounds *b,
                 const struct ps_engine_options *o, u32 least, u32 top, struct err *err)
{
    for (u32 i = 0; i < b->n_streams; i++)
        if (b->streams[i] >= least && b->streams[i] <= top && b->streams[i] <= o->n_slots &&
            add(out, b, o, VERIFY_FUSED, b->streams[i], err))
            return -1;
    return 0;
}

static int ragged(struct verify_settings *out, const struct verify_bounds *b,
                  const struct ps_engine_options *o, u32 times, u32 n, struct err *err)
{
    for (u32 i = 0; i < times; i++)
        if (add(out, b, o, VERIFY_RAGGED, n, err))
            return -1;
    return 0;
}

/* Modes that are on or off: one submission a stream, experts of each row alone, steps prepared
 * anew. */
static int modes(struct verify_settings *out, const struct verify_bounds *b, struct err *err)
{
    struct ps_engine_options o = plain(b);
    u32 top = b->quick ? near(b, 4) : UINT32_MAX, few = b->quick ? near(b, 4) : 2;
    if (!b->set.serialize) {
        o.serialize = true;
        if (fused(out, b, &o, few, near(b, 8), err) ||
            ragged(out, b, &o, b->quick ? 0 : 2, 16, err))
            return -1;
    }
    o = plain(b);
    if (!b->set.experts_per_row) {
        o.experts_per_row = true;
        if (fused(out, b, &o, few, top, err) || ragged(out, b, &o, b->quick ? 0 : 2, 24, err))
            return -1;
    }
    o = plain(b);
    if (!b->set.no_setup_cache) {
        o.no_setup_cache = true;
        if (fused(out, b, &o, few, top, err) ||
            ragged(out, b, &o, b->quick ? 1 : 2, b->quick ? 8 : 24, err))
            return -1;
    }
    return 0;
}

static int chunks(struct verify_settings *out, const struct verify_bounds *b, struct err *err)
{
    const u32 sizes[] = {b->slow ? 5 : 1, 7, 64, b->whole};
    for (u32 i = 0; i < COUNT(sizes); i++) {
        struct ps_engine_options o = plain(b);
        if (b->slow && sizes[i] == 7)
            continue;
        o.chunk = sizes[i];
        if (b->quick
                ? add(out, b, &o, VERIFY_FUSED, near(b, 4), err)
                : fused(out, b, &o, near(b, 4), near(b, 16), err) || ragged(out, b, &o, 1, 16, err))
            return -1;
    }
    return 0;
}

/* Fewer slots than streams: they queue, and slots are used again. */
static int slots(struct verify_settings *out, const struct verify_bounds *b, struct err *err)
{
    const u32 sizes[] = {2, 1, 3, 6};
    for (u32 i = 0; i < (b->quick ? 1 : COUNT(sizes)) && !b->set.n_slots; i++) {
        struct ps_engine_options o = plain(b);
        o.n_slots = sizes[i];
        if (ragged(out, b, &o, b->quick ? 1 : 2, b->quick ? 8 : 16, err) ||
            add(out, b, &o, VERIFY_KEPT, 3, err))
            return -1;
    }
    return 0;
}

/* Thread counts and instruction sets, where the device has them; those that are not the best are
 * slow, so they get less to do. */
static int machines(struct verify_settings *out, const struct verify_bounds *b, struct err *err)
{
    const char *isas[ISAS];
    u32 n_isas = b->set.isa || !b->isas ? 0 : kernels_list(isas, ISAS);
    u32 n_threads = b->set.n_threads || !b->threads || b->slow ? 0 : b->n_cores + 1, n = n_threads + n_isas;
    for (u32 i = 0; i < n; i++) {
        struct ps_engine_options o = plain(b);
        bool slow = i >= n_threads && i + 1 < n;
        if (i < n_threads)
            o.n_threads = i + 1;
        else
            o.isa = isas[i - n_threads];
        if (b->quick || !b->isas /* the emulator: slow */
                ? add(out, b, &o, VERIFY_FUSED, near(b, 4), err)
                : add(out, b, &o, VERIFY_FUSED, near(b, 2), err) ||
                      add(out, b, &o, VERIFY_FUSED, near(b, slow ? 4 : 32), err) ||
                      ragged(out, b, &o, 1, slow ? 8 : 16, err))
            return -1;
    }
    return 0;
}

int verify_setting_few(struct verify_settings *out, const struct verify_bounds *b, struct err *err)
{
    struct ps_engine_options o = plain(b);
    if (fused(out, b, &o, 1, UINT32_MAX, err) ||
        ragged(out, b, &o, b->quick ? 1 : 4, b->quick ? 10 : 24, err))
        return -1;
    return add(out, b, &o, VERIFY_KEPT, b->quick ? 2 : 8, err);
}

int verify_setting_all(struct verify_settings *out, const struct verify_bounds *b, struct err *err)
{
    if (verify_setting_few(out, b, err) || modes(out, b, err) || chunks(out, b, err))
        return -1;
    return slots(out, b, err) || machines(out, b, err) ? -1 : 0;
}

int verify_setting_draw(struct verify_settings *out, const struct verify_bounds *b, u64 *state,
                        struct err *err)
{
    static const u32 SLOTS[] = {2, 3, 4, 5, 8, 16, 32, 64}, CHUNKS[] = {0, 0, 1, 3, 7, 16, 33, 100};
    const char *isas[ISAS];
    u32 n_isas = b->isas ? kernels_list(isas, ISAS) : 0;
    struct ps_engine_options o = plain(b);
    if (!b->set.n_slots)
        o.n_slots = min_u32(SLOTS[verify_text_below(state, COUNT(SLOTS))], most(b));
    if (!b->set.n_threads && b->threads)
        o.n_threads = verify_text_below(state, b->n_cores + 2);
    u32 isa = n_isas ? verify_text_below(state, 3 * n_isas) : 0;
    if (!b->set.isa && isa < n_isas) {
        o.isa = isas[isa];
        if (isa + 1 < n_isas && !b->set.n_slots) /* a slow one */
            o.n_slots = min_u32(o.n_slots, 4);
    }
    o.chunk = CHUNKS[verify_text_below(state, COUNT(CHUNKS))];
    o.serialize |= verify_text_below(state, 8) == 0;
    o.experts_per_row |= verify_text_below(state, 4) == 0;
    o.no_setup_cache |= verify_text_below(state, 4) == 0;
    u32 n = o.n_slots + verify_text_below(state, o.n_slots);
    if (add(out, b, &o, VERIFY_RAGGED, n, err) || add(out, b, &o, VERIFY_FUSED, o.n_slots, err) ||
        add(out, b, &o, verify_text_below(state, 3) ? VERIFY_RAGGED : VERIFY_KEPT, n, err))
        return -1;
    for (u32 i = 1; i <= 3; i++)
        out->list[out->n - i].seed = verify_text_draw(state);
    return 0;
}

int verify_setting_alone(struct verify_settings *out, const struct verify_bounds *b, u32 n,
                         struct err *err)
{
    const char *isas[ISAS];
    u32 n_isas = kernels_list(isas, ISAS);
    for (u32 i = 0; i < (b->isas ? n_isas : 1); i++) {
        struct ps_engine_options o = plain(b);
        o.n_slots = 1;
        o.isa = b->isas ? isas[i] : NULL;
        if (add(out, b, &o, VERIFY_EACH, n, err))
            return -1;
    }
    return 0;
}

void verify_setting_free(struct verify_settings *s)
{
    free(s->list);
    *s = (struct verify_settings){0};
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool verify_setting_same_engine(const struct ps_engine_options *a,
                                const struct ps_engine_options *b)
{
    return a->n_slots == b->n_slots && a->n_ctx == b->n_ctx && a->n_threads == b->n_threads &&
           a->chunk == b->chunk && a->serialize == b->serialize &&
           a->no_setup_cache == b->no_setup_cache && a->experts_per_row == b->experts_per_row &&
           same_text(a->isa, b->isa) && same_text(a->kv, b->kv) && same_text(a->device, b->device);
}
