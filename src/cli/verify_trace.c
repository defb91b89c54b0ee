/* See verify_trace.h. The device calls `on_row` on the engine's thread, which owns its rows and
 * streams: they are read there without a lock, and what is recorded is read by others only when the
 * engine rests. */
#include "cli/verify_trace.h"

#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct verify_trace {
    const struct verify_text *text;
    const struct ps_engine *engine; /* whose rows come in */
    bool compare;
    u32 positions, n_ops;
    bool found;
    u32 at_position, at_op;
    struct plan_op op; /* a copy: the engine may be gone when it is asked for */
    u64 *hashes;       /* (positions, n_ops), 0: not recorded */
};

int verify_trace_open(struct verify_trace **out, const struct verify_text *text, u32 positions,
                      const struct ps_engine *e, struct err *err)
{
    struct verify_trace *t = mem_array(1, sizeof *t);
    if (t) {
        *t = (struct verify_trace){.text = text, .positions = positions, .n_ops = e->plan.n_ops};
        t->hashes = mem_array((u64)positions * t->n_ops, sizeof *t->hashes);
    }
    if (!t || !t->hashes) {
        verify_trace_close(t);
        return err_set(err, "out of memory for the hashes of %u positions", positions);
    }
    *out = t;
    return 0;
}

void verify_trace_close(struct verify_trace *t)
{
    if (!t)
        return;
    free(t->hashes);
    free(t);
}

/* Whether the row belongs to a stream of this text: by its prompt, since the stream's own address
 * is not known before its first step. */
static bool ours(const struct verify_trace *t, const struct row *row)
{
    const struct verify_text *x = t->text;
    for (const struct ps_stream *s = t->engine->active; s; s = s->next)
        if (s->slot == (i32)row->slot)
            return s->n_prompt == x->n_ids &&
                   memcmp(s->ids, x->ids, x->n_ids * sizeof *x->ids) == 0;
    return false;
}

static void on_row(void *arg, const struct plan_op *op, u32 row, u64 hash)
{
    struct verify_trace *t = arg;
    const struct row *r = &t->engine->rows[row];
    u32 index = (u32)(op - t->engine->plan.ops);
    if (r->pos >= t->positions || !ours(t, r))
        return;
    u64 *at = &t->hashes[(u64)r->pos * t->n_ops + index];
    if (!t->compare) {
        *at = hash ? hash : 1;
        return;
    }
    if (*at == 0 || *at == (hash ? hash : 1))
        return;
    if (t->found && (t->at_position < r->pos || (t->at_position == r->pos && t->at_op <= index)))
        return;
    t->found = true;
    t->at_position = r->pos;
    t->at_op = index;
    t->op = *op;
}

static void listen(struct verify_trace *t, struct ps_engine *e, bool compare)
{
    if (t) {
        t->engine = e;
        t->compare = compare;
    }
    device_set_trace(e->device, t ? on_row : NULL, t);
}

void verify_trace_record(struct verify_trace *t, struct ps_engine *e)
{
    listen(t, e, false);
}

void verify_trace_compare(struct verify_trace *t, struct ps_engine *e)
{
    listen(t, e, true);
}

bool verify_trace_found(const struct verify_trace *t, char *buf, size_t n)
{
    char layer[24] = "outside the layers";
    if (!t->found)
        return false;
    if (t->op.layer >= 0)
        snprintf(layer, sizeof layer, "layer %d", t->op.layer);
    snprintf(buf, n, "%s, %s (%s -> %s), position %u", layer, plan_kind_name(t->op.kind),
             plan_buf_name(t->op.in), plan_buf_name(t->op.add ? BUF_X : t->op.out), t->at_position);
    return true;
}
