/* store, attend, join and prompt on the emulator against the CPU's reference by memcmp: its kernels over its own layout of keys and
 * values, the same positions put into both arenas. */
#include "gpu_act.h"

#include "gpu/emu.h"
#include "gpu/layout.h"

enum { SLOTS = 3, CTX = 640, MAX_D = 256, MAX_KV = 2, MAX_HEADS = 32, MAX_ROWS = 16, POISON = 0xA5 };

struct shape {
    u32 d_head, n_kv, share, q8;
};

struct row_at {
    u32 slot, pos;
};

static struct emu *emu;
static u32 without[2]; /* file and line of a barrier that is left out; 0: none */
static bool differs;   /* then: something came out otherwise */

static void emulate(enum gpu_kernel kernel, const union gpu_args *args, const struct bufs *b, u32 n_groups, u32 shm_bytes, u64 seed)
{
    struct err err = {.text = ""};
    struct emu_opts o = {.n_threads = 2, .seed = seed, .poison = true, .no_file = without[0], .no_line = without[1]};
    if (!emu)
        emu = emu_open(&o);
    assert_non_null(emu);
    emu_set(emu, &o);
    int rc = emu_launch(emu, kernel, args, b, n_groups, shm_bytes, &err);
    if (without[0])
        differs |= rc != 0;
    else if (rc)
        fail_msg("%s", err.text);
}

/* ---- both arenas: one layer ---- */

struct arena {
    struct shape s;
    u64 head_bytes, cpu_k, cpu_v; /* bytes of a head */
    u8 *gpu, *cpu;          /* (slot, n_kv) keys then (slot, n_kv) values, of the CPU */
};

static u64 gpu_bytes(const struct arena *a)
{
    return SLOTS * 2 * a->s.n_kv * a->head_bytes;
}

static void open_arena(struct arena *a, const struct shape *s)
{
    u32 d = s->d_head, blocks = d / 32;
    a->s = *s;
    a->head_bytes = (u64)CTX / 32 * GPU_KV_PANEL_BYTES(d, s->q8);
    a->cpu_k = a->cpu_v = s->q8 ? (u64)CTX * blocks * 34 : (u64)CTX * d * 2;
    a->gpu = malloc(gpu_bytes(a));
    a->cpu = malloc(SLOTS * 2 * s->n_kv * a->cpu_k);
    assert_true(a->gpu && a->cpu);
    memset(a->gpu, POISON, gpu_bytes(a));
    memset(a->cpu, POISON, SLOTS * 2 * s->n_kv * a->cpu_k);
}

static void close_arena(struct arena *a)
{
    free(a->gpu);
    free(a->cpu);
}

static u8 *cpu_head(const struct arena *a, u32 slot, u32 head, bool value)
{
    return a->cpu + ((u64)(value ? SLOTS : 0) * a->s.n_kv + slot * a->s.n_kv + head) * a->cpu_k;
}

static u8 *gpu_panel(const struct arena *a, u32 slot, u32 head, bool value, u32 pos)
{
    u64 head_at = (u64)slot * 2 * a->s.n_kv + (value ? a->s.n_kv : 0) + head;
    return a->gpu + head_at * a->head_bytes + (u64)(pos / 32) * GPU_KV_PANEL_BYTES(a->s.d_head, a->s.q8);
}

/* One position's key or value into both, by the two headers' words. */
static void put_f16(const struct arena *a, u32 slot, u32 head, bool value, u32 pos, const float *x)
{
    u32 d_head = a->s.d_head, d_pad = (d_head + 7) / 8 * 8;
    u8 *cpu = cpu_head(a, slot, head, value), *gpu = gpu_panel(a, slot, head, value, pos);
    for (u32 d = 0; d < d_pad; d++) {
        u16 h = d < d_head ? (u16)ex_to_half(ex_flush(x[d])) : 0;
        put16(gpu + (value ? (pos % 32 * d_pad + d) * 2 : d / 8 * 512 + pos % 32 * 16 + d % 8 * 2), h);
        if (d < d_head)
            put16(cpu + (value ? (u64)pos * d_head + d : ((u64)(pos / 32) * d_head + d) * 32 + pos % 32) * 2, h);
    }
}

static void put_q8(const struct arena *a, u32 slot, u32 head, bool value, u32 pos, const float *x)
{
    u32 blocks = a->s.d_head / 32, j = pos % 32;
    u8 *cpu = cpu_head(a, slot, head, value), *gpu = gpu_panel(a, slot, head, value, pos);
    for (u32 b = 0; b < blocks; b++) {
        i8 q[32];
        float d;
        i16 sum;
        kernels_scalar.quantise(x + 32 * b, 32, q, &d, &sum);
        u16 h = (u16)ex_to_half(d);
        u8 *key = cpu + ((u64)(pos / 32) * blocks + b) * KV_Q8_BLOCK, *val = cpu + (u64)pos * blocks * 34;
        put16(value ? val + 2 * b : key + 2 * j, h);
        put16(gpu + (value ? 2 * (j * blocks + b) : b * 1088 + 2 * j), h);
        for (u32 i = 0; i < 32; i++) {
            *(value ? val + 2 * blocks + 32 * b + i : key + 64 + i / 4 * 128 + j * 4 + i % 4) = (u8)q[i];
            gpu[value ? 64 * blocks + j * 32 * blocks + 32 * b + i : b * 1088 + 64 + i / 16 * 512 + j * 16 + i % 16] = (u8)q[i];
        }
    }
}

static void put(const struct arena *a, u32 slot, u32 head, bool value, u32 pos, const float *x)
{
    (a->s.q8 ? put_q8 : put_f16)(a, slot, head, value, pos, x);
}

/* Positions [0, n) of a slot. */
static void fill_slot(const struct arena *a, u32 slot, u32 n)
{
    float x[MAX_D];
    for (u32 head = 0; head < a->s.n_kv; head++)
        for (u32 pos = 0; pos < n; pos++)
            for (u32 value = 0; value < 2; value++) {
                for (u32 d = 0; d < a->s.d_head; d++)
                    x[d] = check_below(60) ? check_plain() * (value ? 1.0f : 3.0f) : check_float();
                put(a, slot, head, value, pos, x);
            }
}

/* ---- a step's inputs ---- */

enum { ROWS_AT = 32, ITEMS_AT = ROWS_AT + 4 * MAX_ROWS, TILES_AT = ITEMS_AT + MAX_ROWS * 4, WORDS = TILES_AT + MAX_ROWS };

static void put_rows(u32 *in, u32 which, const struct row_at *rows, u32 n)
{
    memset(in, POISON, WORDS * 4);
    in[IN_ROWS + which] = n;
    in[IN_ITEMS + which] = in[IN_TILES + which] = 0;
    for (u32 i = 0; i < n; i++) {
        u32 words[4] = {i, rows[i].slot, rows[i].pos, ~0u};
        memcpy(in + ROWS_AT + 4 * i, words, sizeof words);
    }
}

static void put_items(u32 *in, u32 which, const struct row_at *rows, u32 n)
{
    for (u32 i = 0; i < n; i++) {
        in[ROWS_AT + 4 * i + 3] = in[IN_ITEMS + which];
        for (u32 c = 0; c <= rows[i].pos / 256; c++)
            in[ITEMS_AT + in[IN_ITEMS + which]++] = i | c << 16;
    }
}

/* ---- store ---- */

struct heads { /* of rows */
    float *q, *k, *v;
    u32 q_stride, kv_stride;
};

static void open_heads(struct heads *h, const struct shape *s, u32 n_rows)
{
    h->kv_stride = GPU_STRIDE(s->n_kv * s->d_head + 1);
    h->q_stride = GPU_STRIDE(s->n_kv * s->share * s->d_head + 1);
    h->q = mem_array((u64)n_rows * h->q_stride, 4);
    h->k = mem_array((u64)n_rows * h->kv_stride, 4);
    h->v = mem_array((u64)n_rows * h->kv_stride, 4);
    for (u32 i = 0; i < n_rows * h->q_stride; i++)
        h->q[i] = check_below(50) ? check_plain() * 2.0f : check_float();
    for (u32 i = 0; i < n_rows * h->kv_stride; i++) {
        h->k[i] = check_below(50) ? check_plain() : check_float();
        h->v[i] = check_below(50) ? check_plain() : check_float();
    }
}

static void close_heads(struct heads *h)
{
    free(h->q);
    free(h->k);
    free(h->v);
}

static void cpu_rotate(float *x, const float *norm, bool whole, u32 n, u32 d_head, const float *cs, u32 d_rope, bool neox)
{
    if (norm && whole)
        kernels_scalar.rmsnorm(x, x, norm, n * d_head, 1e-6f);
    for (u32 h = 0; h < n; h++) {
        if (norm && !whole)
            kernels_scalar.rmsnorm(x + h * d_head, x + h * d_head, norm, d_head, 1e-6f);
        kernels_scalar.rope(x + h * d_head, cs, d_head, d_rope, neox);
    }
}

static void store_of(const struct shape *s, u32 d_rope, bool neox, u32 norm, u32 n_groups, u64 seed)
{
    static const struct row_at ROWS[] = {{0, 0}, {1, 31}, {1, 32}, {2, 639}, {0, 77}, {2, 5}, {1, 300}};
    enum { N = COUNT(ROWS) };
    struct arena gpu, cpu;
    struct heads h, want;
    u32 in[WORDS], d = s->d_head, n_heads = s->n_kv * s->share;
    float *rope = mem_array((u64)CTX * d_rope, 4), *w = mem_array((u64)2 * MAX_HEADS * MAX_D, 4);
    open_arena(&gpu, s);
    open_arena(&cpu, s);
    check_seed(seed);
    open_heads(&h, s, N);
    check_seed(seed);
    open_heads(&want, s, N);
    for (u32 i = 0; i < CTX * d_rope; i++)
        rope[i] = check_plain();
    for (u32 i = 0; i < 2 * MAX_HEADS * MAX_D; i++)
        w[i] = check_plain() + 1.0f;
    put_rows(in, 0, ROWS, N);
    union gpu_args args = {.store_ = {.rows_at = ROWS_AT, .n_heads = n_heads, .n_kv = s->n_kv, .d_head = d, .d_rope = d_rope,
                                      .neox = neox, .q_stride = h.q_stride, .kv_stride = h.kv_stride, .has_norm = norm > 0,
                                      .whole_norm = norm > 1, .kv_q8 = s->q8, .head_bytes = (u32)gpu.head_bytes,
                                      .slot_lo = (u32)(2 * s->n_kv * gpu.head_bytes), .eps = 1e-6f}};
    struct bufs b = {{in, h.q, h.k, h.v, w, w + MAX_HEADS * MAX_D, rope, gpu.gpu}};
    emulate(GK_store, &args, &b, n_groups, GPU_SHM_STORE, seed);
    for (u32 r = 0; r < N; r++) {
        const float *cs = rope + (u64)ROWS[r].pos * d_rope;
        cpu_rotate(want.q + r * h.q_stride, norm ? w : NULL, norm > 1, n_heads, d, cs, d_rope, neox);
        cpu_rotate(want.k + r * h.kv_stride, norm ? w + MAX_HEADS * MAX_D : NULL, norm > 1, s->n_kv, d, cs, d_rope, neox);
        for (u32 i = 0; i < s->n_kv; i++) {
            put(&cpu, ROWS[r].slot, i, false, ROWS[r].pos, want.k + r * h.kv_stride + i * d);
            put(&cpu, ROWS[r].slot, i, true, ROWS[r].pos, want.v + r * h.kv_stride + i * d);
        }
    }
    check_same_floats("store q", h.q, want.q, (u64)N * h.q_stride);
    for (u64 i = 0; i < gpu_bytes(&gpu); i++)
        if (gpu.gpu[i] != cpu.gpu[i])
            fail_msg("store d_head %u d_rope %u neox %d norm %u q8 %u groups %u: arena's byte %llu is %02x, expected %02x", d, d_rope, neox,
                     norm, s->q8, n_groups, (unsigned long long)i, gpu.gpu[i], cpu.gpu[i]);
    close_heads(&h);
    close_heads(&want);
    close_arena(&gpu);
    close_arena(&cpu);
    free(rope);
    free(w);
}

static void queries_keys_and_values_are_stored(void **state)
{
    (void)state;
    static const u32 DIMS[][2] = {{64, 64}, {80, 80}, {64, 64}, {128, 128}, {128, 64}, {96, 32}, {2, 2}, {10, 6}, {256, 256}, {34, 0}, {160, 40}};
    u64 seed = 100;
    for (u32 i = 0; i < COUNT(DIMS); i++)
        for (u32 norm = 0; norm < 3; norm++)
            for (u32 q8 = 0; q8 < (DIMS[i][0] % 32 ? 1 : 2); q8++, seed++)
                store_of(&(struct shape){DIMS[i][0], 1 + (u32)seed % 2, 1 + (u32)seed % 3, q8}, DIMS[i][1], seed % 2, norm, 1 + (u32)seed % 4 * 3, seed);
}

/* ---- attention by the CPU ---- */

static void cpu_attend(const struct arena *a, const struct row_at *row, u32 kv, const float *q, float *o)
{
    u32 d = a->s.d_head, blocks = d / 32;
    float part[MAX_D], m = 0, l = 0, m2, l2, dq[MAX_D / 32], scale = 1.0f / sqrtf((float)d);
    i8 qq[MAX_D];
    i16 sum[MAX_D / 32];
    if (a->s.q8)
        kernels_scalar.quantise(q, d, qq, dq, sum);
    struct act act = {.q = qq, .d = dq, .sum = sum};
    for (u32 p = 0; p <= row->pos; p += 256) {
        u32 n = min_u32(row->pos + 1 - p, 256);
        const u8 *k = cpu_head(a, row->slot, kv, false), *v = cpu_head(a, row->slot, kv, true);
        float *to = p ? part : o, *tm = p ? &m2 : &m, *tl = p ? &l2 : &l;
        if (a->s.q8)
            kernels_scalar.attend_q8(to, tm, tl, &act, k + (u64)p * blocks * 34, v + (u64)p * blocks * 34, n, d, scale);
        else
            kernels_scalar.attend_f16(to, tm, tl, q, (const u16 *)k + (u64)p * d, (const u16 *)v + (u64)p * d, n, d, scale);
        if (p)
            kernels_scalar.attend_join(o, &m, &l, part, m2, l2, d);
    }
    kernels_scalar.attend_end(o, l, d);
}

struct step { /* rows, queries, what the CPU makes of them */
    const struct row_at *rows;
    u32 n_rows, n_heads, q_stride, att_stride;
    float *q, *want, *att;
    u32 in[WORDS];
};

static void open_step(struct step *s, const struct arena *a, const struct row_at *rows, u32 n_rows, u64 seed)
{
    u32 d = a->s.d_head;
    check_seed(seed);
    s->rows = rows;
    s->n_rows = n_rows;
    s->n_heads = a->s.n_kv * a->s.share;
    s->q_stride = GPU_STRIDE(s->n_heads * d + 1);
    s->att_stride = s->q_stride + 32;
    s->q = mem_array((u64)n_rows * s->q_stride, 4);
    s->want = mem_array((u64)n_rows * s->att_stride, 4);
    s->att = mem_array((u64)n_rows * s->att_stride, 4);
    for (u32 i = 0; i < n_rows * s->q_stride; i++)
        s->q[i] = ex_flush(check_below(100) ? check_plain() * 3.0f : check_float() * 1e-3f);
    memset(s->want, POISON, (u64)n_rows * s->att_stride * 4);
    for (u32 r = 0; r < n_rows; r++)
        for (u32 h = 0; h < s->n_heads; h++)
            cpu_attend(a, &rows[r], h / a->s.share, s->q + r * s->q_stride + h * d, s->want + r * s->att_stride + h * d);
}

static void close_step(struct step *s)
{
    free(s->q);
    free(s->want);
    free(s->att);
}

static union gpu_args attend_args(const struct step *s, const struct arena *a, u32 which)
{
    return (union gpu_args){.attend_ = {.which = which, .rows_at = ROWS_AT, .items_at = ITEMS_AT, .tiles_at = TILES_AT,
                                        .n_heads = s->n_heads, .n_kv = a->s.n_kv, .d_head = a->s.d_head, .q_stride = s->q_stride,
                                        .att_stride = s->att_stride, .kv_q8 = a->s.q8, .head_bytes = (u32)a->head_bytes,
                                        .slot_lo = (u32)(2 * a->s.n_kv * a->head_bytes), .scale = 1.0f / sqrtf((float)a->s.d_head)}};
}

static void check_att(const char *what, const struct step *s, const struct arena *a, u32 heads, u32 n_groups)
{
    for (u32 r = 0; r < s->n_rows; r++)
        for (u32 i = 0; i < s->att_stride; i++) {
            u32 got = EX_BITS(s->att[r * s->att_stride + i]), want = EX_BITS(s->want[r * s->att_stride + i]);
            if (got != want && without[0])
                differs = true;
            else if (got != want)
                fail_msg("%s d_head %u n_kv %u share %u q8 %u heads %u groups %u: row %u (position %u) head %u dimension %u is %08x, "
                         "expected %08x", what, a->s.d_head, a->s.n_kv, a->s.share, a->s.q8, heads, n_groups, r, s->rows[r].pos,
                         i / a->s.d_head, i % a->s.d_head, got, want);
        }
}

/* Act rows of what is wanted against those that the kernels left. */
static void check_acts(const struct step *s, const struct arena *a, const u32 *acts, u32 heads, u32 n_groups)
{
    u32 n = s->n_heads * a->s.d_head, words = GPU_ACT_BYTES(n) / 4;
    u32 *want = mem_array((u64)s->n_rows * words, sizeof *want);
    assert_non_null(want);
    act_rows(want, s->want, n, s->att_stride, s->n_rows);
    for (u32 r = 0; r < s->n_rows; r++) {
        bool same = !memcmp(want + (u64)r * words, acts + (u64)r * words, words * sizeof *want);
        if (!same && !without[0])
            fail_msg("act rows: d_head %u n_kv %u share %u q8 %u heads %u groups %u: row %u (position %u)", a->s.d_head, a->s.n_kv, a->s.share,
                     a->s.q8, heads, n_groups, r, s->rows[r].pos);
        differs |= !same;
    }
    free(want);
}

static void attend_step(struct step *s, const struct arena *a, u32 heads, u32 n_groups, u64 seed)
{
    u32 which = (u32)seed % 2, n_parts;
    union gpu_args args = attend_args(s, a, which);
    put_rows(s->in, which, s->rows, s->n_rows);
    put_items(s->in, which, s->rows, s->n_rows);
    s->in[IN_HEADS + which] = heads;
    n_parts = s->in[IN_ITEMS + which] * s->n_heads * (a->s.d_head + 2);
    float *parts = mem_array(n_parts, 4);
    memset(parts, 0xFF, (u64)n_parts * 4);
    memset(s->att, POISON, (u64)s->n_rows * s->att_stride * 4);
    u32 width = s->n_heads * a->s.d_head;
    u32 *acts = malloc((u64)s->n_rows * GPU_ACT_BYTES(width));
    assert_non_null(acts);
    memset(acts, POISON, (u64)s->n_rows * GPU_ACT_BYTES(width));
    args.attend_.write_act = a->s.d_head % 32 == 0 && width % 256 == 0;
    struct bufs b = {{s->in, s->q, a->gpu, parts, s->att, acts}};
    emulate(GK_attend, &args, &b, n_groups, GPU_SHM_ATTEND(heads, a->s.d_head), seed);
    emulate(GK_join, &args, &b, 1 + n_groups % 4, GPU_SHM_NONE, seed);
    check_att("attend", s, a, heads, n_groups);
    if (args.attend_.write_act)
        check_acts(s, a, acts, heads, n_groups);
    free(acts);
    free(parts);
}

static const struct row_at ROWS[] = {{0, 0}, {1, 30}, {2, 31}, {0, 32}, {1, 254}, {2, 255}, {0, 256}, {1, 599}};

static void attend_of(u32 d_head, u32 share, u32 q8, u64 seed)
{
    struct arena a;
    struct step s, few;
    check_seed(seed);
    open_arena(&a, &(struct shape){d_head, share > 8 ? 1 : MAX_KV, share, q8});
    fill_slot(&a, 0, 257);
    fill_slot(&a, 1, 600);
    fill_slot(&a, 2, 256);
    open_step(&s, &a, ROWS, COUNT(ROWS), seed);
    open_step(&few, &a, ROWS + 6, 1, seed + 1);
    for (u32 heads = 1; heads <= 8 && share % heads == 0; heads *= 2, seed++) {
        attend_step(&s, &a, heads, 1 + (u32)seed % 3, seed);
        attend_step(&few, &a, heads, 2 * few.n_heads / heads * (seed % 2 ? 2 : 4) + (u32)seed % 2, seed); /* dimensions shared out */
    }
    close_step(&s);
    close_step(&few);
    close_arena(&a);
}

static void items_are_attended(void **state)
{
    (void)state;
    static const u32 DIMS[] = {64, 80, 128, 256, 6, 96, 160}, SHARES[] = {1, 2, 4, 8, 16, 3};
    u64 seed = 7;
    for (u32 i = 0; i < COUNT(DIMS); i++)
        for (u32 k = 0; k < COUNT(SHARES); k++)
            for (u32 q8 = 0; q8 < 2; q8++)
                if (!(q8 && DIMS[i] % 32) && (i < 3 || k % 3 == 0))
                    attend_of(DIMS[i], SHARES[k], q8, seed += 10);
}

/* ---- tiles ---- */

static void prompt_of(u32 d_head, u32 share, u32 q8, u64 seed)
{
    static const u32 FROM[][2] = {{0, 8}, {1, 1}, {29, 8}, {120, 8}, {252, 8}, {256, 3}, {509, 5}, {590, 8}}; /* position, rows */
    struct arena a;
    struct step s;
    struct row_at rows[MAX_ROWS];
    check_seed(seed);
    open_arena(&a, &(struct shape){d_head, share > 8 ? 1 : MAX_KV, share, q8});
    fill_slot(&a, 0, 270);
    fill_slot(&a, 1, 600);
    for (u32 i = 0; i < COUNT(FROM); i += 2, seed++) {
        u32 n = 0, which = (u32)seed % 2, n_groups = 1 + (u32)seed % 3, tiles[2] = {0};
        for (u32 k = 0; k < 2; k++) {
            u32 slot = FROM[i + k][0] + FROM[i + k][1] > 270;
            tiles[k] = n | FROM[i + k][1] << 24;
            for (u32 r = 0; r < FROM[i + k][1]; r++)
                rows[n++] = (struct row_at){slot, FROM[i + k][0] + r};
        }
        open_step(&s, &a, rows, n, seed);
        union gpu_args args = attend_args(&s, &a, which);
        put_rows(s.in, which, rows, n);
        s.in[IN_TILES + which] = 2;
        memcpy(s.in + TILES_AT, tiles, sizeof tiles);
        memset(s.att, POISON, (u64)n * s.att_stride * 4);
        struct bufs b = {{s.in, s.q, a.gpu, NULL, s.att}};
        emulate(GK_prompt, &args, &b, n_groups, q8 ? GPU_SHM_PROMPT_Q8(GPU_PROMPT_HEADS, d_head) : GPU_SHM_PROMPT_F16(GPU_PROMPT_HEADS, d_head), seed);
        check_att("prompt", &s, &a, 0, n_groups);
        close_step(&s);
    }
    close_arena(&a);
}

static void tiles_are_attended(void **state)
{
    (void)state;
    static const u32 DIMS[] = {64, 80, 128, 256, 6, 96, 160}, SHARES[] = {1, 2, 4, 8, 16, 3, 12};
    u64 seed = 5000;
    for (u32 i = 0; i < COUNT(DIMS); i++)
        for (u32 k = 0; k < COUNT(SHARES); k++)
            for (u32 q8 = 0; q8 < 2; q8++)
                if (!(q8 && DIMS[i] % 32) && (i < 3 || k % 3 == 0))
                    prompt_of(DIMS[i], SHARES[k], q8, seed += 10);
}

static void check_equal(const void *a, const void *b, u64 bytes)
{
    if (without[0])
        differs |= memcmp(a, b, bytes) != 0;
    else
        assert_memory_equal(a, b, bytes);
}

/* What attention stores by itself is what store would have stored, and the result is the same. */
static void stores_of(const struct shape *s, u32 d_rope, bool neox, bool norm, u64 seed)
{
    static const struct row_at AT[][3] = {{{0, 0}, {1, 31}, {2, 32}}, {{2, 255}, {0, 256}, {1, 5}}, {{1, 300}, {2, 0}, {0, 600}}};
    const struct row_at *rows = AT[seed % 3];
    u32 n = 1 + (u32)seed % 3, d = s->d_head, n_heads = s->n_kv * s->share, width = n_heads * d;
    struct arena two[2];
    struct heads h[2];
    struct step step[2];
    u32 *acts[2];
    float *rope = mem_array((u64)CTX * d_rope + 1, 4), *w = mem_array((u64)2 * MAX_D, 4), *parts = mem_array((u64)MAX_ROWS * 4 * n_heads * (d + 2), 4);
    for (u32 i = 0; i < CTX * d_rope; i++)
        rope[i] = check_plain();
    for (u32 i = 0; i < 2 * MAX_D; i++)
        w[i] = check_plain() + 1.0f;
    for (u32 fused = 0; fused < 2; fused++) {
        struct arena *a = &two[fused];
        check_seed(seed);
        open_arena(a, s);
        for (u32 r = 0; r < n; r++)
            fill_slot(a, rows[r].slot, rows[r].pos);
        open_step(&step[fused], a, rows, n, seed); /* what it expects is not looked at: the queries are others */
        open_heads(&h[fused], s, n);
        acts[fused] = malloc((u64)n * GPU_ACT_BYTES(width));
        assert_non_null(acts[fused]);
        memset(acts[fused], POISON, (u64)n * GPU_ACT_BYTES(width));
        memset(step[fused].att, POISON, (u64)n * step[fused].att_stride * 4);
        put_rows(step[fused].in, 0, rows, n);
        put_items(step[fused].in, 0, rows, n);
        u32 heads = 1, more = (u32)(seed * 2654435761u) >> 16; /* bits that do not follow the shape */
        for (; heads < 8 && s->share % (2 * heads) == 0 && more % 4; more /= 4)
            heads *= 2;
        step[fused].in[IN_HEADS] = heads;
        union gpu_args args = attend_args(&step[fused], a, 0);
        args.attend_.q_stride = h[fused].q_stride;
        args.attend_.write_act = d % 32 == 0 && width % 256 == 0;
        struct store_args store = {.rows_at = ROWS_AT, .n_heads = n_heads, .n_kv = s->n_kv, .d_head = d, .d_rope = d_rope, .neox = neox,
                                   .q_stride = h[fused].q_stride, .kv_stride = h[fused].kv_stride, .has_norm = norm, .kv_q8 = s->q8,
                                   .head_bytes = (u32)a->head_bytes, .slot_lo = (u32)(2 * s->n_kv * a->head_bytes), .eps = 1e-6f};
        u32 n_groups = 1 + (u32)seed % 5;
        struct bufs b = {{step[fused].in, h[fused].q, a->gpu, parts, step[fused].att, acts[fused], h[fused].k, h[fused].v, w, w + MAX_D, rope}};
        if (fused) {
            args.attend_store_ = (struct attend_store_args){args.attend_, store};
        } else {
            union gpu_args first = {.store_ = store};
            struct bufs sb = {{step[fused].in, h[fused].q, h[fused].k, h[fused].v, w, w + MAX_D, rope, a->gpu}};
            emulate(GK_store, &first, &sb, 2, GPU_SHM_STORE, seed);
        }
        emulate(fused ? GK_attend_store : GK_attend, &args, &b, n_groups, GPU_SHM_ATTEND(heads, d), seed);
        emulate(GK_join, &args, &b, 2, GPU_SHM_NONE, seed);
    }
    check_equal(two[0].gpu, two[1].gpu, gpu_bytes(&two[0]));
    check_equal(step[0].att, step[1].att, (u64)n * step[0].att_stride * 4);
    check_equal(acts[0], acts[1], (u64)n * GPU_ACT_BYTES(width));
    for (u32 fused = 0; fused < 2; fused++) {
        close_heads(&h[fused]);
        close_step(&step[fused]);
        close_arena(&two[fused]);
        free(acts[fused]);
    }
    free(rope);
    free(w);
    free(parts);
}

static void attention_stores_what_store_would(void **state)
{
    (void)state;
    static const u32 DIMS[][2] = {{64, 64}, {80, 80}, {64, 64}, {128, 128}, {128, 64}, {96, 32}, {6, 6}, {120, 120}, {34, 0}, {128, 40}}, SHARES[] = {1, 2, 4, 8, 16, 3};
    u64 seed = 9000;
    for (u32 i = 0; i < COUNT(DIMS); i++)
        for (u32 k = 0; k < COUNT(SHARES); k++)
            for (u32 q8 = 0; q8 < (DIMS[i][0] % 32 ? 1 : 2); q8++)
                for (u32 neox = 0; neox < 2; neox++, seed++)
                    stores_of(&(struct shape){DIMS[i][0], SHARES[k] > 8 ? 1 : 1 + (u32)seed / 4 % 2, SHARES[k], q8}, DIMS[i][1], neox, seed / 2 % 2, seed);
}

/* ---- barriers ---- */

enum { ATTEND_FILE = 4, PROMPT_FILE = 5, SEEDS = 40 }; /* KERNEL_FILE of k_attend.h and k_prompt.h */

static void attend_once(u32 d_head, u32 share, u32 q8, u64 seed)
{
    static const struct row_at LONG[] = {{0, 290}, {0, 200}};
    struct arena a;
    struct step s;
    check_seed(seed);
    open_arena(&a, &(struct shape){d_head, 1, share, q8});
    fill_slot(&a, 0, 291);
    open_step(&s, &a, LONG, COUNT(LONG), seed);
    attend_step(&s, &a, share, 1, seed);
    close_step(&s);
    close_arena(&a);
}

static bool shows(u32 file)
{
    differs = false;
    for (u64 seed = 1; seed <= SEEDS && !differs; seed++)
        if (file == PROMPT_FILE)
            prompt_of(64, 2, seed % 2, seed);
        else if (seed % 2)
            attend_once(seed / 2 % 2 ? 160 : 64, seed / 8 % 2 ? 8 : 4, seed / 4 % 2, seed);
        else
            stores_of(&(struct shape){64, 1, 4, seed / 2 % 2}, 64, false, true, seed);
    return differs;
}

static void every_barrier_is_needed(void **state)
{
    (void)state;
    u32 at[64][2], n = emu_barriers(emu, at, COUNT(at)), seen = 0;
    for (u32 i = 0; i < n; i++) {
        if (at[i][0] != ATTEND_FILE && at[i][0] != PROMPT_FILE)
            continue;
        memcpy(without, at[i], sizeof without);
        if (!shows(at[i][0]))
            fail_msg("without the barrier in line %u of file %u nothing changes in %u seeds", at[i][1], at[i][0], (u32)SEEDS);
        seen++;
    }
    memset(without, 0, sizeof without);
    assert_true(seen >= 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_keys_and_values_are_stored),
        cmocka_unit_test(items_are_attended),
        cmocka_unit_test(tiles_are_attended),
        cmocka_unit_test(attention_stores_what_store_would),
        cmocka_unit_test(every_barrier_is_needed),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    emu_close(emu);
    return rc;
}
