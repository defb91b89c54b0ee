/* A row's chunks of attention (k_attend.h) joined, rule 7.
 *
 * A SIMD group has 32 dimensions of a (row, head). The factors of 32 chunks are found side by side, lane = chunk (the running maximum is
 * exact in any order); then one fma a chunk and dimension, left to right, with 8 chunks' values in flight. */

KFN void join_fetch(THR float *x, DEV const float *part, u64 step, u32 c, u32 n, u32 some)
{
    UNROLL
    for (u32 i = 0; i < 8; i++)
        x[i] = some && c + i < n ? part[(c + i) * step] : 0.0f;
}

KFN void join_add(struct at at, THR float *o, THR float *l, THR const float *x, float a, float b, float lb, u32 c, u32 n)
{
    UNROLL
    for (u32 i = 0; i < 8; i++) {
        u32 lane = (c + i) % 32;
        float fa = EX_FLOAT(shuffle_from(at, EX_BITS(a), lane)), fb = EX_FLOAT(shuffle_from(at, EX_BITS(b), lane));
        float fl = EX_FLOAT(shuffle_from(at, EX_BITS(lb), lane));
        if (c + i == 0) { /* the first is taken as it is: its lb is l */
            *o = x[0];
            *l = fl;
        } else if (c + i < n) {
            *o = EX_FMA(*o, fa, x[i] * fb);
            *l = EX_FMA(*l, fa, fl);
        }
    }
}

/* A dimension of a head, flushed; 0 past the last one. part: the head's part of the row's first item, step floats from item to item. */
KFN float join_head(struct at at, DEV const float *part, u64 step, u32 n, u32 d_head, u32 d)
{
    float o = 0.0f, l = 0.0f, before = 0.0f, a = 0.0f, b = 0.0f, lb = 0.0f, x[8], y[8];
    join_fetch(x, part + d, step, 0, n, d < d_head);
    for (u32 c = 0; c < n; c += 8) {
        join_fetch(y, part + d, step, c + 8, n, d < d_head);
        if (c % 32 == 0) {
            u32 mine = least_u32(c + at.lane, n - 1);
            float m = part[mine * step + d_head], l1 = part[mine * step + d_head + 1], top = m;
            UNROLL
            for (u32 k = 1; k < 32; k *= 2) {
                float left = EX_FLOAT(shuffle_from(at, EX_BITS(top), at.lane - (at.lane < k ? 0 : k)));
                top = left > top ? left : top;
            }
            top = c && before > top ? before : top;
            float left = EX_FLOAT(shuffle_from(at, EX_BITS(top), at.lane ? at.lane - 1 : 0));
            left = at.lane ? left : c ? before : top;
            a = ex_exp(left - top);
            b = ex_exp(m - top);
            lb = c + at.lane ? l1 * b : l1;
            before = EX_FLOAT(shuffle_from(at, EX_BITS(top), 31));
        }
        join_add(at, &o, &l, x, a, b, lb, c, n);
        UNROLL
        for (u32 i = 0; i < 8; i++)
            x[i] = y[i];
    }
    return d < d_head ? ex_flush(div_rn(o, l)) : 0.0f;
}

KFN void k_join(struct at at, CON const struct attend_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    u32 n_rows = in[IN_ROWS + a->which], pieces = (a->d_head + 31) / 32;
    struct walk w;
    (void)shm;
    walk_start(at, a->n_heads * pieces, &w);
    w4 row = load16(in + a->rows_at + 4 * (w.row < n_rows ? w.row : 0));
    IN_TURN(at); /* above it nothing is read that a launch of this step writes */
    for (u32 r = w.row; w.row < n_rows; walk_on(&w)) {
        if (w.row != r)
            row = load16(in + a->rows_at + 4 * w.row);
        r = w.row;
        if (row.z < GPU_CHUNK || row.w == 0xFFFFFFFFu)
            continue;
        u32 piece, h = split_u32(w.piece, pieces, &piece);
        DEV const float *part = (DEV const float *)b.p[3] + ((u64)row.w * a->n_heads + h) * (a->d_head + 2);
        u32 d = piece * 32 + at.lane;
        float v[2];
        v[0] = join_head(at, part, (u64)a->n_heads * (a->d_head + 2), row.z / GPU_CHUNK + 1, a->d_head, d);
        if (d < a->d_head)
            ((DEV float *)b.p[4])[(u64)w.row * a->att_stride + h * a->d_head + d] = v[0];
        if (a->write_act)
            attend_put_act(at, a, b, w.row, (h * a->d_head) / 32u + piece, 1u, v, 1u);
    }
}
