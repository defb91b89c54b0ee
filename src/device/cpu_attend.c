/* The operations that touch keys and values: norm and rotation, storing, and attention. A key or value is written once
 * in its stored form and always read back from there, also inside the step that wrote it (rule 7). */
#include "device/dev_cpu.h"

#include "base/exact.h"

#include <string.h>

enum { KEY_PART = 128 /* dimensions of a key turned into halves at a time */ };

/* Norm (each head, or the whole row) and rotation of n heads. */
static void rotate(const struct cpu *c, float *x, const struct cpu_weight *norm, u32 n, const float *cs)
{
    const struct hparams *hp = &c->dev.plan->hp;
    if (norm && c->op->whole_norm)
        c->k->rmsnorm(x, x, norm->floats, n * hp->d_head, hp->eps);
    for (u32 h = 0; h < n; h++) {
        float *head = x + h * hp->d_head;
        if (norm && !c->op->whole_norm)
            c->k->rmsnorm(head, head, norm->floats, hp->d_head, hp->eps);
        c->k->rope(head, cs, hp->d_head, hp->d_rope, hp->rope_neox);
    }
}

/* ---- storing ---- */

/* A position's key lies across the panel, a half in each line of 32 positions. */
static void store_f16(const struct cpu *c, u8 *k_head, u8 *v_head, u32 pos, const float *k, const float *v)
{
    u32 d_head = c->dev.plan->hp.d_head;
    u16 *to_k = (u16 *)(k_head + (u64)(pos / KV_PANEL) * c->panel_bytes) + pos % KV_PANEL;
    c->k->halves((u16 *)v_head + (u64)pos * d_head, v, d_head);
    for (u32 d = 0; d < d_head; d += KEY_PART) {
        u16 h[KEY_PART];
        u32 n = min_u32(KEY_PART, d_head - d);
        c->k->halves(h, k + d, n);
        for (u32 i = 0; i < n; i++)
            to_k[(u64)(d + i) * KV_PANEL] = h[i];
    }
}

static void put_half(u8 *at, float d)
{
    u16 h = (u16)ex_to_half(d);
    memcpy(at, &h, 2);
}

/* Blocks of 32 by rule 1, their scale as a half; layouts in kernel.h (attend_q8). */
static void store_q8(const struct cpu *c, u8 *k_head, u8 *v_head, u32 pos, const float *k, const float *v)
{
    u32 n_blocks = c->dev.plan->hp.d_head / ACT_BLOCK, lane = pos % KV_PANEL;
    u8 *to_k = k_head + (u64)(pos / KV_PANEL) * c->panel_bytes;
    u8 *to_v = v_head + (u64)pos * n_blocks * 34;
    for (u32 b = 0; b < n_blocks; b++, to_k += KV_Q8_BLOCK) {
        i8 q[ACT_BLOCK];
        float d;
        i16 sum;
        c->k->quantise(k + b * ACT_BLOCK, ACT_BLOCK, q, &d, &sum);
        put_half(to_k + 2 * lane, d);
        for (u32 i = 0; i < ACT_BLOCK; i += 4)
            memcpy(to_k + 2 * KV_PANEL + i * KV_PANEL + lane * 4, q + i, 4);
        c->k->quantise(v + b * ACT_BLOCK, ACT_BLOCK, q, &d, &sum);
        put_half(to_v + 2 * b, d);
        memcpy(to_v + 2 * n_blocks + b * ACT_BLOCK, q, ACT_BLOCK);
    }
}

void cpu_rope_store_task(void *arg, u32 r, u32 thread)
{
    (void)thread;
    struct cpu *c = arg;
    const struct hparams *hp = &c->dev.plan->hp;
    const struct row *row = &c->rows[r];
    const float *cs = c->rope + (u64)row->pos * hp->d_rope;
    bool q8 = c->dev.opts.kv == KV_Q8_0;
    rotate(c, c->bufs[BUF_Q].y[r], c->cut->norm[0], hp->n_heads, cs);
    rotate(c, c->bufs[BUF_K].y[r], c->cut->norm[1], hp->n_kv, cs);
    for (u32 h = 0; h < hp->n_kv; h++) {
        u8 *k = cpu_k(c, row->slot, (u32)c->op->layer, h), *v = cpu_v(c, row->slot, (u32)c->op->layer, h);
        const float *x = c->bufs[BUF_K].y[r] + h * hp->d_head, *y = c->bufs[BUF_V].y[r] + h * hp->d_head;
        (q8 ? store_q8 : store_f16)(c, k, v, row->pos, x, y);
    }
    if (q8)
        cpu_quantise_part(c, BUF_Q, r, 0, hp->n_heads * hp->d_head);
}

/* ---- attention ---- */

/* Queries of one slot and one key/value head over all chunks of their past: those that see nothing of a chunk sit it out. end[i]: positions
 * query i sees; all[i].q or .act, all[i].o are its vectors. parts: room for one chunk's o of each. */
static void attend_queries(const struct cpu *c, u32 slot, u32 kv, struct attend_query *all, const u32 *end, u32 n, float *parts)
{
    u32 d_head = c->dev.plan->hp.d_head, most = 0;
    float scale = 1.0f / sqrtf((float)d_head);
    const u8 *k = cpu_k(c, slot, (u32)c->op->layer, kv), *v = cpu_v(c, slot, (u32)c->op->layer, kv);
    for (u32 i = 0; i < n; i++)
        most = end[i] > most ? end[i] : most;
    for (u32 p0 = 0; p0 < most; p0 += KV_CHUNK) {
        struct attend_query a[ATTEND_QUERIES];
        u32 who[ATTEND_QUERIES], live = 0;
        u64 at = (u64)(p0 / KV_PANEL) * c->panel_bytes;
        for (u32 i = 0; i < n; i++)
            if (end[i] > p0) {
                who[live] = i;
                a[live] = all[i];
                a[live].o = p0 ? parts + live * d_head : all[i].o;
                a[live++].n_pos = min_u32(end[i] - p0, KV_CHUNK);
            }
        if (c->dev.opts.kv == KV_F16)
            c->k->attend_f16_many(a, live, (const u16 *)(k + at), (const u16 *)(v + at), d_head, scale);
        else
            c->k->attend_q8_many(a, live, k + at, v + at, d_head, scale);
        for (u32 i = 0; i < live; i++) {
            struct attend_query *to = &all[who[i]];
            if (p0) {
                c->k->attend_join(to->o, &to->m, &to->l, a[i].o, a[i].m, a[i].l, d_head);
            } else {
                to->m = a[i].m;
                to->l = a[i].l;
            }
        }
    }
    for (u32 i = 0; i < n; i++)
        c->k->attend_end(all[i].o, all[i].l, d_head);
}

/* Query head h of row r. */
static struct attend_query query_of(const struct cpu *c, u32 r, u32 h)
{
    u32 d_head = c->dev.plan->hp.d_head, at = h * d_head, b = at / ACT_BLOCK;
    const struct act *x = &c->bufs[BUF_Q].act[r];
    struct attend_query a = {.q = c->bufs[BUF_Q].y[r] + at, .o = c->bufs[BUF_ATT].y[r] + at};
    if (c->dev.opts.kv == KV_Q8_0)
        a.act = (struct act){.q = x->q + at, .d = x->d + b, .sum = x->sum + b};
    return a;
}

/* Rows in a task: as many as fill the kernel with their query heads. */
u32 cpu_attend_rows(const struct hparams *hp)
{
    u32 share = hp->n_heads / hp->n_kv;
    return share < ATTEND_QUERIES ? ATTEND_QUERIES / share : 1;
}

/* A task is one key/value head of a few rows: the query heads that share it, together where rows are of one stream. */
void cpu_attend_task(void *arg, u32 task, u32 thread)
{
    struct cpu *c = arg;
    const struct hparams *hp = &c->dev.plan->hp;
    u32 kv = task % hp->n_kv, share = hp->n_heads / hp->n_kv, rows = cpu_attend_rows(hp), d_head = hp->d_head;
    u32 r0 = task / hp->n_kv * rows, r1 = min_u32(r0 + rows, cpu_op_rows(c, c->op)), end[ATTEND_QUERIES], n = 0;
    float *parts = c->att_parts + (u64)thread * ATTEND_QUERIES * d_head;
    struct attend_query a[ATTEND_QUERIES];
    for (u32 r = r0; r < r1; r++) {
        const struct row *row = &c->rows[cpu_row(c, c->op, r)];
        for (u32 h = kv * share; h < (kv + 1) * share; h++) {
            end[n] = row->pos + 1;
            a[n++] = query_of(c, r, h);
            bool last = h + 1 == (kv + 1) * share;
            if (n == ATTEND_QUERIES || (last && (r + 1 == r1 || c->rows[cpu_row(c, c->op, r + 1)].slot != row->slot))) {
                attend_queries(c, row->slot, kv, a, end, n, parts);
                n = 0;
            }
        }
    }
    u32 c0 = kv * share * d_head, c1 = c0 + share * d_head;
    if (share * d_head % ACT_BLOCK == 0)
        for (u32 r = r0; r < r1; r++)
            cpu_quantise_part(c, BUF_ATT, r, c0, c1);
}
