/* A step with each operation by itself, so that what it wrote can be hashed: the launches of the plain class, submitted and waited for
 * operation by operation. The hashes are those of the CPU (account.h). */
#include "device/account.h"
#include "device/gpu_host.h"

#include <stdlib.h>

/* Launches [n0, n1) of the list. */
static int run(struct gpu *g, u32 n0, u32 n1, struct err *err)
{
    void *program;
    const struct gpu_backend *b = g->backend;
    if (n0 == n1)
        return 0;
    if (b->prepare(g->self, g->list.at + n0, n1 - n0, true, &program, err))
        return -1;
    int rc = b->submit(g->self, program, g->inputs, g->words, g->n_words * sizeof *g->words, g->out, g->hits, gpu_out_bytes(g), err);
    rc = b->wait(g->self, err) || rc ? -1 : 0;
    b->discard(g->self, program);
    return rc;
}

static int fetch(struct gpu *g, const struct gpu_buf *b, u32 rows, struct err *err)
{
    u64 bytes = (u64)rows * b->ranks * b->stride * sizeof *g->traced;
    if (bytes > g->traced_bytes) {
        mem_free(g->traced, g->traced_bytes);
        g->traced_bytes = 0;
        g->traced = mem_alloc(bytes);
        if (!g->traced)
            return err_set(err, "out of memory: %llu bytes of traced rows", (unsigned long long)bytes);
        g->traced_bytes = bytes;
    }
    return g->backend->download(g->self, g->traced, b->x, bytes, err);
}

/* Everything the operation wrote, as dev_cpu.c has it: each product's output, and what joins the residual stream. hashes: of all rows. */
static int hash_op(struct gpu *g, const struct plan_op *op, u32 rows, u64 *hashes, struct err *err)
{
    enum plan_buf wrote[PLAN_MAX_MATS + 2];
    u32 n = 0;
    wrote[n++] = op->add ? BUF_X : op->out;
    for (u32 m = 0; op->kind == OP_MAT && m < op->n_mats; m++)
        wrote[n++] = op->mats[m].out;
    if (op->kind == OP_ROPE_STORE)
        wrote[n++] = BUF_K;
    for (u32 r = 0; r < rows; r++)
        hashes[r] = 0;
    for (u32 i = 0; i < n; i++) {
        struct gpu_buf b = gpu_buf_of(g, &g->class, op, wrote[i]);
        if (fetch(g, &b, rows, err))
            return -1;
        for (u32 r = 0; r < rows; r++)
            hashes[r] = account_hash(hashes[r], g->traced + (u64)r * b.ranks * b.stride, b.ranks, b.stride, account_width(g->dev.plan, op, wrote[i]));
    }
    return 0;
}

static int trace_op(struct gpu *g, const struct plan_op *op, u64 *hashes, struct err *err)
{
    u32 rows = op->last ? g->n_logits : g->n_rows;
    if (!rows)
        return 0;
    if (hash_op(g, op, rows, hashes, err))
        return -1;
    for (u32 r = 0; r < rows; r++)
        g->dev.trace(g->dev.trace_arg, op, op->last ? g->logit_rows[r] : r, hashes[r]);
    return 0;
}

int gpu_trace_step(struct gpu *g, struct err *err)
{
    const struct plan *p = g->dev.plan;
    u64 *hashes = mem_array(g->n_rows, sizeof *hashes);
    int rc = hashes ? gpu_lower(g, &g->class, err) : err_set(err, "out of memory: a trace of %u rows", g->n_rows);
    for (u32 i = 0, n0 = 0, n1 = 0; !rc && i < p->n_ops; i++, n0 = n1) {
        while (n1 < g->list.n && g->list.op[n1] == i)
            n1++;
        rc = run(g, n0, n1, err) || trace_op(g, &p->ops[i], hashes, err) ? -1 : 0;
    }
    free(hashes);
    g->dev.stats.submissions++;
    g->dev.stats.waits++;
    g->dev.stats.rows += g->n_rows;
    g->dev.stats.logit_rows += g->n_logits;
    return rc;
}
