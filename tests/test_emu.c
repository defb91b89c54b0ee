/* The emulator's words against their meaning in plain loops, and that it does what it is there for: a missing barrier shows. */
#include "check.h"

#include "gpu/emu.h"

#undef KERNEL_FILE
#define KERNEL_FILE 20 /* no k_*.h has it */

static struct emu *open_emu(u32 n_threads, u64 seed)
{
    struct emu_opts o = {.n_threads = n_threads, .seed = seed, .poison = true};
    struct emu *e = emu_open(&o);
    assert_true(e != NULL);
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
    u32 i = at.group * GPU_THREADS + at.id, v = w->in[i], *out = w->out[i];
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
    tile_16(at, c[2], a[0], a[1], b);
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

/* ---- barriers ---- */

/* What races on purpose is not for TSan. */
#define RACES __attribute__((no_sanitize("thread")))

enum { ROUNDS = 3 };

/* Each thread reads what a thread of the next SIMD group wrote, in several rounds: the first barrier lets it be written, the second lets it be
 * read before the next round writes. */
RACES static void neighbours(struct at at, void *arg, u32 *shm)
{
    u32 *out = arg, sum = 0;
    for (u32 round = 0; round < ROUNDS; round++) {
        shm[at.id] = at.group + at.id + 1000 * round;
        BARRIER(at);
        sum += shm[(at.id + 32) % GPU_THREADS];
        BARRIER(at);
    }
    out[at.group * GPU_THREADS + at.id] = sum;
}

static bool neighbours_right(const u32 *out, u32 n_groups)
{
    for (u32 i = 0; i < n_groups * GPU_THREADS; i++) {
        u32 want = 0;
        for (u32 round = 0; round < ROUNDS; round++)
            want += i / GPU_THREADS + (i + 32) % GPU_THREADS + 1000 * round;
        if (out[i] != want)
            return false;
    }
    return true;
}

/* SIMD group 0 writes for the others: right without the barrier when it happens to run first. */
RACES static void one_for_all(struct at at, void *arg, u32 *shm)
{
    u32 *out = arg;
    if (at.id == 0)
        shm[0] = 77;
    BARRIER(at);
    out[at.id] = shm[0];
}

static void a_missing_barrier_shows(void **state)
{
    (void)state;
    enum { GROUPS = 5, SEEDS = 20 };
    u32 out[GROUPS * GPU_THREADS], lines[4][2], wrong[3] = {0};
    for (u32 n_threads = 1; n_threads <= 2; n_threads++) {
        struct emu *e = open_emu(n_threads, 0);
        run(e, neighbours, out, 1, GPU_THREADS * 4);
        assert_int_equal(emu_barriers(e, lines, 4), 2);
        for (u64 seed = 0; seed < SEEDS; seed++) {
            struct emu_opts o = {.seed = seed, .poison = seed % 2};
            emu_set(e, &o);
            run(e, neighbours, out, GROUPS, GPU_THREADS * 4);
            assert_true(neighbours_right(out, GROUPS));
            for (u32 k = 0; k < 2; k++) {
                o.no_file = lines[k][0];
                o.no_line = lines[k][1];
                emu_set(e, &o);
                run(e, neighbours, out, 1, GPU_THREADS * 4);
                wrong[k] += !neighbours_right(out, 1);
            }
        }
        emu_close(e);
    }
    for (u32 k = 0; k < 2; k++)
        assert_int_equal(wrong[k], 2 * SEEDS); /* whichever order they run in, one comes before its neighbour */
    struct emu *e = open_emu(1, 0);
    run(e, one_for_all, out, 1, 4);
    assert_int_equal(emu_barriers(e, lines, 4), 1);
    for (u64 seed = 0; seed < SEEDS; seed++) {
        struct emu_opts o = {.seed = seed, .poison = true};
        emu_set(e, &o);
        run(e, one_for_all, out, 1, 4);
        for (u32 i = 0; i < GPU_THREADS; i++)
            assert_int_equal(out[i], 77);
        o.no_file = lines[0][0];
        o.no_line = lines[0][1];
        emu_set(e, &o);
        run(e, one_for_all, out, 1, 4);
        bool right = true;
        for (u32 i = 0; i < GPU_THREADS; i++)
            right &= out[i] == 77;
        wrong[2] += !right;
    }
    emu_close(e);
    assert_true(wrong[2] >= SEEDS * 3 / 4);
}

struct pairs {
    bool meet;
    u32 out[GPU_THREADS];
};

RACES static void pairs_of_lanes(struct at at, void *arg, u32 *shm)
{
    struct pairs *p = arg;
    shm[at.id] = at.id;
    if (p->meet)
        SIMD_BARRIER(at);
    p->out[at.id] = shm[at.id ^ 1];
}

static void a_missing_simd_barrier_shows(void **state)
{
    (void)state;
    struct emu *e = open_emu(1, 0);
    for (u64 seed = 0; seed < 20; seed++)
        for (u32 meet = 0; meet < 2; meet++) {
            struct emu_opts o = {.seed = seed, .poison = true};
            struct pairs p = {.meet = meet};
            bool right = true;
            emu_set(e, &o);
            run(e, pairs_of_lanes, &p, 1, GPU_THREADS * 4);
            for (u32 i = 0; i < GPU_THREADS; i++)
                right &= p.out[i] == (i ^ 1);
            assert_int_equal(right, meet);
        }
    emu_close(e);
}

/* ---- what goes wrong ---- */

enum fault { LANE_AWAY, LANE_ENDS, OTHER_WORD, LANE_AT_BARRIER, OTHER_BARRIER, SIMD_ENDS, N_FAULTS };

struct faulty {
    enum fault fault;
    u32 group; /* where it happens */
    u32 *out;
};

static void faulty(struct at at, void *arg, u32 *shm)
{
    const struct faulty *w = arg;
    bool here = at.group == w->group, lane = here && at.id == 2 * 32 + 5, simd = here && at.simd == 3;
    u32 v = 0;
    if (!(w->fault == LANE_AWAY && lane))
        v = shuffle_xor(at, at.lane, 1);
    if (w->fault == LANE_ENDS && lane)
        return;
    if (w->fault == OTHER_WORD && lane)
        v += simd_max_u32(at, at.lane);
    else
        v += simd_ballot(at, 1);
    if (w->fault == LANE_AT_BARRIER && lane)
        BARRIER(at);
    SIMD_BARRIER(at);
    if (w->fault == SIMD_ENDS && simd)
        return;
    if (w->fault == OTHER_BARRIER && simd)
        BARRIER(at);
    else
        BARRIER(at);
    w->out[at.group * GPU_THREADS + at.id] = v;
    (void)shm;
}

/* Each word stands in the message or the message is shown. */
static void says(const struct err *err, const char *const *words, u32 n)
{
    for (u32 i = 0; i < n; i++)
        if (words[i] && !strstr(err->text, words[i]))
            fail_msg("\"%s\" lacks \"%s\"", err->text, words[i]);
}

static void lanes_that_miss_each_other_are_named(void **state)
{
    (void)state;
    static const char *const SAID[N_FAULTS][3] = {
        [LANE_AWAY] = {"SIMD group 2", "a ballot", "a shuffle"},      [LANE_ENDS] = {"SIMD group 2", "the end", "a ballot"},
        [OTHER_WORD] = {"SIMD group 2", "a maximum", "a ballot"},     [LANE_AT_BARRIER] = {"SIMD group 2", "line ", "a SIMD barrier"},
        [OTHER_BARRIER] = {"SIMD group 3", "barrier of file 20 line", "SIMD group"}, [SIMD_ENDS] = {"the end", "SIMD group 3", "line "},
    };
    enum { GROUPS = 5 };
    u32 out[GROUPS * GPU_THREADS];
    for (u32 n_threads = 1; n_threads <= 2; n_threads++) {
        struct emu *e = open_emu(n_threads, 0);
        for (u64 seed = 0; seed < 6; seed++)
            for (u32 fault = 0; fault <= N_FAULTS; fault++) {
                struct emu_opts o = {.seed = seed};
                struct faulty w = {(enum fault)fault, (u32)seed % GROUPS, out};
                struct err err = {.text = ""};
                emu_set(e, &o);
                int rc = emu_run(e, faulty, &w, GROUPS, 0, &err);
                if (fault < N_FAULTS) {
                    char group[32];
                    snprintf(group, sizeof group, "kernel of a test, group %u", w.group);
                    assert_int_equal(rc, -1);
                    says(&err, SAID[fault], 3);
                    says(&err, (const char *const[]){group}, 1);
                } else { /* and all is well again */
                    assert_int_equal(rc, 0);
                    for (u32 i = 0; i < GROUPS * GPU_THREADS; i++)
                        assert_int_equal(out[i], (i % 32 ^ 1) + UINT32_MAX);
                }
            }
        emu_close(e);
    }
}

/* ---- shared memory ---- */

static void keep_shm(struct at at, void *arg, u32 *shm)
{
    u32 *out = arg;
    assert_int_equal((uintptr_t)shm % 16, 0);
    out[at.id] = shm[at.id];
    shm[at.id] = 1;
}

static void shared_memory_begins_poisoned(void **state)
{
    (void)state;
    struct emu *e = open_emu(1, 3);
    u32 out[GPU_THREADS];
    for (u32 bytes = 1024; bytes <= 5000; bytes += 333) {
        run(e, keep_shm, out, 3, bytes);
        for (u32 i = 0; i < GPU_THREADS; i++)
            assert_true(isnan(EX_FLOAT(out[i])) && !(out[i] & 0x400000));
    }
    emu_close(e);
}

static void no_groups(struct at at, void *arg, u32 *shm)
{
    (void)at, (void)arg, (void)shm;
    assert_true(false);
}

/* ---- time ---- */

static void many_shuffles(struct at at, void *arg, u32 *shm)
{
    u32 *out = arg, v = at.lane;
    (void)shm;
    for (u32 i = 0; i < 10000; i++)
        v = shuffle_xor(at, v, 1) + 1;
    out[at.id] = v;
}

static void many_tiles(struct at at, void *arg, u32 *shm)
{
    u32 *out = arg, a[4] = {at.lane, 2, 3, 4}, b[2] = {5, at.lane};
    i32 c[4] = {0};
    (void)shm;
    for (u32 i = 0; i < 1000; i++)
        tile_u(at, c, a, b);
    out[at.id] = (u32)c[0];
}

static void the_time_of_a_meeting_is_printed(void **state)
{
    (void)state;
    u32 out[GPU_THREADS];
    double shuffle = 1e9, tile = 1e9;
    for (u64 seed = 0; seed < 8; seed++) {
        struct emu *e = open_emu(1, seed);
        double t0 = time_now();
        run(e, many_shuffles, out, 1, 0);
        double t1 = time_now();
        run(e, many_tiles, out, 1, 0);
        double t2 = time_now();
        shuffle = fmin(shuffle, t1 - t0);
        tile = fmin(tile, t2 - t1);
        if (seed == 0)
            run(e, no_groups, NULL, 0, 0);
        emu_close(e);
    }
    printf("32 lanes: a shuffle %.0f ns, a tile %.0f ns (best of 8 seeds)\n", shuffle * 1e9 / (10000.0 * GPU_SIMDS),
           tile * 1e9 / (1000.0 * GPU_SIMDS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_mean_what_they_say),
        cmocka_unit_test(tiles_are_exact_products),
        cmocka_unit_test(a_missing_barrier_shows),
        cmocka_unit_test(a_missing_simd_barrier_shows),
        cmocka_unit_test(lanes_that_miss_each_other_are_named),
        cmocka_unit_test(shared_memory_begins_poisoned),
        cmocka_unit_test(the_time_of_a_meeting_is_printed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
