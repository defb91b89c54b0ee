/* The emulator's words against their meaning in plain loops, and that it does what it is there for: a missing barrier shows. */
#include "check.h"

#include "gpu/emu.h"

#undef KERNEL_FILE
#define KERNEL_FILE 20 /* no k_*.h has it */

static struct emu *open_emu(u32 n_threads, u64 seed)
{
    struct emu_opts o = {.n_threads = n_threads, .seed = seed, .poison = true};
    struct emu *e = emu_open(&o);
    assert_non_null(e);
    return e;
}

static void run(struct emu *e, void (*fn)(struct at at, void *arg, u32 *shm), void *arg, u32 n_groups, u32 shm_bytes)
{
    struct err err = {.text = ""};
    if (emu_run(e, fn, arg, n_groups, shm_bytes, &err))
        fail_msg("%s", err.text);
}

/* ---- words ---- */

struct words {
    const u32 *in;  /* (group, thread) */
    u32 (*out)[6];  /* (group, thread, word) */
};

static void each_word(struct at at, void *arg, u32 *shm)
{
    const struct words *w = arg;
    u32 i = at.group * GPU_THREADS + at.thread, v = w->in[i], *out = w->out[i];
    (void)shm;
    out[0] = shuffle_xor(at, v, 1 + at.simd);
    out[1] = shuffle_from(at, v, v & 31);
    out[2] = simd_max_u32(at, v);
    SIMD_BARRIER(at);
    out[3] = (u32)simd_sum_i32(at, (i32)v);
    out[4] = simd_ballot(at, v & 2);
    out[5] = EX_BITS(simd_tree(at, (float)(v & 1023)));
}

static void words_of(u32 n_threads, u32 n_groups, u64 seed)
{
    u32 n = n_groups * GPU_THREADS, *in = mem_array(n, sizeof *in), (*out)[6] = mem_array(n, sizeof *out);
    struct words w = {in, out};
    struct emu *e = open_emu(n_threads, seed);
    for (u32 i = 0; i < n; i++)
        in[i] = check_below(4) ? check_u32() : check_below(2) ? 0 : UINT32_MAX;
    run(e, each_word, &w, n_groups, 0);
    emu_close(e);
    for (u32 i = 0; i < n; i++) {
        u32 lane = i % 32, simd = i / 32 % 8, max = 0, sum = 0, ballot = 0, tree = 0;
        const u32 *of = in + i - lane;
        for (u32 k = 0; k < 32; k++) {
            max = of[k] > max ? of[k] : max;
            sum += of[k];
            ballot |= (of[k] >> 1 & 1) << k;
            tree += of[k] & 1023; /* exact as a float */
        }
        u32 want[6] = {of[lane ^ (1 + simd)], of[of[lane] & 31], max, sum, ballot, EX_BITS((float)tree)};
        for (u32 k = 0; k < 6; k++)
            if (out[i][k] != want[k])
                fail_msg("word %u, thread %u of group %u, seed %llu: %08x, expected %08x", k, i % GPU_THREADS, i / GPU_THREADS,
                         (unsigned long long)seed, out[i][k], want[k]);
    }
    free(in);
    free(out);
}

static void words_mean_what_they_say(void **state)
{
    (void)state;
    check_seed(1);
    for (u64 seed = 0; seed < 8; seed++)
        for (u32 n_threads = 1; n_threads <= 3; n_threads++)
            words_of(n_threads, (u32[]){1, 2, 3, 7}[seed % 4], seed);
}

/* ---- tiles ---- */

struct tiles {
    u8 a[GPU_SIMDS][16][32];
    i8 b[GPU_SIMDS][8][32];
    i32 c[GPU_SIMDS][3][16][8]; /* in and out: tile_u, tile_s, tile_16 */
};

static u32 word_at(const void *p)
{
    u32 v;
    memcpy(&v, p, 4);
    return v;
}

static void three_tiles(struct at at, void *arg, u32 *shm)
{
    struct tiles *w = arg;
    u32 g = at.lane / 4, t = at.lane % 4;
    const u8 *lo = w->a[at.simd][g], *hi = w->a[at.simd][g + 8];
    const i8 *col = w->b[at.simd][g];
    u32 a[4] = {word_at(lo + 4 * t), word_at(hi + 4 * t), word_at(lo + 16 + 4 * t), word_at(hi + 16 + 4 * t)};
    u32 b[2] = {word_at(col + 4 * t), word_at(col + 16 + 4 * t)};
    i32 c[3][4];
    (void)shm;
    for (u32 k = 0; k < 3; k++)
        for (u32 i = 0; i < 4; i++)
            c[k][i] = w->c[at.simd][k][g + i / 2 * 8][2 * t + i % 2];
    tile_u(at, c[0], a, b);
    tile_s(at, c[1], a, b);
    tile_16(at, c[2], a[0], a[1], b[0]);
    for (u32 k = 0; k < 3; k++)
        for (u32 i = 0; i < 4; i++)
            w->c[at.simd][k][g + i / 2 * 8][2 * t + i % 2] = c[k][i];
}

static u8 some_byte(void)
{
    static const u8 EXTREMES[] = {0, 1, 127, 128, 129, 255};
    return check_below(4) ? (u8)check_u32() : EXTREMES[check_below(COUNT(EXTREMES))];
}

static void fill_tiles(struct tiles *w, u32 rep)
{
    for (u32 i = 0; i < sizeof w->a; i++)
        (&w->a[0][0][0])[i] = rep == 0 ? 255 : rep == 1 ? 128 : some_byte();
    for (u32 i = 0; i < sizeof w->b; i++)
        (&w->b[0][0][0])[i] = (i8)(rep <= 1 ? 128 : some_byte());
    for (u32 i = 0; i < sizeof w->c / 4; i++)
        (&w->c[0][0][0][0])[i] = check_below(4) ? (i32)check_u32() >> 8 : 0;
}

static void tiles_are_exact_products(void **state)
{
    (void)state;
    check_seed(2);
    struct tiles *w = mem_array(2, sizeof *w);
    struct emu *e = open_emu(1, 5);
    for (u32 rep = 0; rep < 40; rep++) {
        fill_tiles(&w[0], rep);
        w[1] = w[0];
        run(e, three_tiles, &w[1], 1, 0);
        for (u32 i = 0; i < GPU_SIMDS * 3 * 16 * 8; i++) {
            u32 col = i % 8, row = i / 8 % 16, k = i / 128 % 3, s = i / 384;
            i32 sum = w[0].c[s][k][row][col];
            for (u32 j = 0; j < (k == 2 ? 16 : 32); j++)
                sum += (k ? (i8)w[0].a[s][row][j] : w[0].a[s][row][j]) * w[0].b[s][col][j];
            if (w[1].c[s][k][row][col] != sum)
                fail_msg("rep %u, tile %u, row %u, column %u: %d, expected %d", rep, k, row, col, w[1].c[s][k][row][col], sum);
        }
    }
    emu_close(e);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_mean_what_they_say),
        cmocka_unit_test(tiles_are_exact_products),
    };
    return cmocka_run_group_tests_name("emu", tests, NULL, NULL);
}
