/* Groups of 256 lanes, each lane a fiber (fiber.h). See emu.h.
 *
 * The lanes of a SIMD group run one after another, each to its next meeting: a word for which the whole SIMD group must be there
 * (shuffle, sum, tile, barrier, ...). There a lane lays down what it brings and switches to the next; the last one works out what
 * all get, and runs on at once, so a meeting costs 31 switches. The next lane is lane + stride, an odd number drawn
 * anew at each meeting. A SIMD group runs alone to its barrier or its end, then another one, drawn at random; in half of the groups a
 * SIMD group may lose its turn at any meeting too. All draws come from the seed and the group's number.
 *
 * A host thread has one set of fibers for good: a fiber that ends its kernel waits for the next group. Where lanes or SIMD groups
 * miss each other, the group is given up and its fibers are set anew.
 *
 * TSan is told that only barriers order memory between lanes: a build with CONFIG=tsan reports what two lanes do to one place
 * without one, whatever the order they ran in.
 *
 * Cost: `build/release/tests/test_emu` prints the time of a meeting. */
#include "gpu/emu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/pool.h"
#include "gpu/emu_call.h"
#include "gpu/fiber.h"

enum {
    LANES = 32,
    STACK_BYTES = (FIBER_ASAN || FIBER_TSAN ? 256 : 64) << 10,
    STACK_SHIFT = 128, /* lanes' stacks begin this much apart modulo a page, so that they do not meet in one set of the cache */
    MAX_FILES = 32,
    MAX_LINES = 16384
};
#define POISON 0xFFA00000u /* a signalling NaN, also with small numbers added */

enum word { SHUFFLE, MAX, SUM, BALLOT, TILE_U, TILE_S, TILE_16, SIMD_BARRIER_, PAIRS, END_, GROUP_BARRIER };

/* GROUP_BARRIER carries its text's place: word | file << 4 | line << 12. */
static u32 barrier_word(u32 file, u32 line)
{
    return GROUP_BARRIER | file << 4 | line << 12;
}

/* A SIMD group lies in an aligned block that begins with its fibers, so that group and next lane are found from a lane's address without
 * a load: the loads between two lanes, each needing the one before, are what a meeting's time is made of. */
enum {
    FIBER_BYTES = FIBER_UCONTEXT ? 8192 : FIBER_ASAN || FIBER_TSAN ? 128 : 64,
    RING_BYTES = LANES * FIBER_BYTES,
    BLOCK_BYTES = 4 * RING_BYTES
};

struct emu_fiber {
    _Alignas(FIBER_BYTES) struct fiber fiber;
    u32 lane;
};

/* What lanes lay down, and take away while the next meeting may have begun: hence two of each. */
struct table {
    _Alignas(64) u32 in[LANES];
    u32 a[16][8], b[8][8];  /* tiles: (row, word of four bytes), (word, column) */
    i32 c[16][8];
    u32 pairs[LANES][2];
    u32 all;                /* what every lane gets */
};

struct emu_simd {
    struct emu_fiber ring[LANES];
    struct emu_thread *thread;
    u32 index;
    u32 arrived;
    u32 word;               /* of the meeting, or where the whole SIMD group waits */
    u32 stride;             /* to the next lane, bytes in the ring */
    u32 side;               /* table of the meeting */
    struct table tables[2];
};

_Static_assert(sizeof(struct emu_fiber) == FIBER_BYTES && sizeof(struct emu_simd) <= BLOCK_BYTES, "a SIMD group fits its block");

struct emu_thread {
    struct emu *emu;
    struct fiber host;
    struct emu_simd *simds[GPU_SIMDS];
    u32 ready;              /* bit s: SIMD group s may run */
    u32 group, n_groups;
    u32 turn_mask;          /* a SIMD group loses its turn where a draw has none of these bits; 0xFFFFFFFF: hardly ever */
    u64 random;
    u32 *shm;
    u8 *blocks, *stacks;    /* mapped */
    u8 *shm_map;
    size_t shm_room;        /* without the guard pages */
    bool failed;
    u32 failed_task;
    struct err err;
    u8 passed[MAX_FILES][MAX_LINES / 8];
};

struct emu {
    struct emu_opts opts;
    struct pool *pool;
    u32 n_threads;
    struct emu_thread **threads;
    /* the launch */
    const char *name;
    void (*fn)(struct at at, void *arg, u32 *shm);
    void *arg;
    u32 n_groups, shm_bytes;
    u32 *order;
    u32 order_room;
    atomic_uint first_failed; /* task */
};

/* ---- draws ---- */

static inline u32 draw(struct emu_thread *t)
{
    t->random = t->random * 6364136223846793005ull + 1442695040888963407ull;
    return (u32)(t->random >> 32);
}

static u64 mix(u64 x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

static inline struct emu_simd *simd_of(struct emu_fiber *f)
{
    return (struct emu_simd *)(void *)((uintptr_t)f & ~(uintptr_t)(BLOCK_BYTES - 1));
}

static inline u32 pick_bit(u32 mask, u32 random)
{
    u32 rot = random % GPU_SIMDS, turned = (mask >> rot | mask << (GPU_SIMDS - rot)) & ((1u << GPU_SIMDS) - 1);
    return ((u32)__builtin_ctz(turned) + rot) % GPU_SIMDS;
}

/* ---- who runs next ---- */

static struct emu_fiber *next_turn(struct emu_thread *t)
{
    u32 r = draw(t);
    return &t->simds[pick_bit(t->ready, r)]->ring[r >> 8 & 31];
}

static inline void go_on(struct emu_fiber *f, struct emu_fiber *to)
{
    if (f != to)
        fiber_switch(&f->fiber, &to->fiber);
}

static const char *say(char *buf, size_t n, u32 word)
{
    static const char *const WORDS[] = {"a shuffle", "a maximum", "a sum", "a ballot", "tile_u", "tile_s", "tile_16", "a SIMD barrier", "pairs", "the end"};
    if ((word & 15) == GROUP_BARRIER)
        snprintf(buf, n, "the barrier of file %u line %u", word >> 4 & 255, word >> 12);
    else
        snprintf(buf, n, "%s", WORDS[word & 15]);
    return buf;
}

/* Does not return: the host thread sets all fibers anew. */
static void give_up(struct emu_fiber *f)
{
    struct emu_thread *t = simd_of(f)->thread;
    t->failed = true;
    fiber_switch(&f->fiber, &t->host);
    __builtin_trap();
}

static __attribute__((noinline)) void lanes_differ(struct emu_fiber *f, u32 word)
{
    struct emu_simd *s = simd_of(f);
    struct emu_thread *t = s->thread;
    char here[64], there[64];
    err_set(&t->err, "kernel %s, group %u of %u, SIMD group %u: lane %u is at %s while other lanes are at %s (seed %llu)", t->emu->name,
            t->group, t->n_groups, s->index, f->lane, say(here, sizeof here, word), say(there, sizeof there, s->word),
            (unsigned long long)t->emu->opts.seed);
    give_up(f);
}

static void simds_differ(struct emu_fiber *f)
{
    struct emu_thread *t = simd_of(f)->thread;
    char here[64], there[64];
    u32 other = 0;
    while (t->simds[other]->word == simd_of(f)->word)
        other++;
    err_set(&t->err, "kernel %s, group %u of %u: SIMD group %u is at %s while SIMD group %u is at %s (seed %llu)", t->emu->name, t->group,
            t->n_groups, simd_of(f)->index, say(here, sizeof here, simd_of(f)->word), other, say(there, sizeof there, t->simds[other]->word),
            (unsigned long long)t->emu->opts.seed);
    give_up(f);
}

/* ---- meetings ---- */

/* f comes to its meeting: true for the last of its SIMD group. */
static inline bool last_to_arrive(struct emu_fiber *f, u32 word)
{
    struct emu_simd *s = simd_of(f);
    if (s->arrived == 0)
        s->word = word;
    else if (s->word != word)
        lanes_differ(f, word);
    return ++s->arrived == LANES;
}

/* Not the last: the next lane's turn, back when this lane's comes again, after the meeting. */
static inline void wait_turn(struct emu_fiber *f)
{
    struct emu_simd *s = simd_of(f);
    uintptr_t next = ((uintptr_t)f + s->stride) & (RING_BYTES - 1);
    fiber_switch(&f->fiber, (struct fiber *)(void *)((u8 *)s + next));
}

static inline void open_next(struct emu_simd *s)
{
    s->arrived = 0;
    s->side ^= 1;
    s->stride = (draw(s->thread) >> 8 | 1) * FIBER_BYTES;
}

/* The last: the meeting is over. */
static inline void end_meeting(struct emu_fiber *f)
{
    struct emu_thread *t = simd_of(f)->thread;
    open_next(simd_of(f));
    if (!(t->random >> 32 & t->turn_mask))
        go_on(f, next_turn(t));
}

/* The last, where the whole SIMD group waits for the others: at a barrier or at its end. */
static void end_turn(struct emu_fiber *f)
{
    struct emu_thread *t = simd_of(f)->thread;
    u32 word = simd_of(f)->word;
    open_next(simd_of(f));
    t->ready &= ~(1u << simd_of(f)->index);
    if (!t->ready) {
        for (u32 s = 0; s < GPU_SIMDS; s++)
            if (t->simds[s]->word != word)
                simds_differ(f);
        t->ready = (1u << GPU_SIMDS) - 1;
        if (word == END_) {
            fiber_switch(&f->fiber, &t->host);
            return;
        }
        u32 file = word >> 4 & 255, line = word >> 12;
        t->passed[file][line / 8] |= (u8)(1u << line % 8);
    }
    go_on(f, next_turn(t));
}

void emu_barrier(struct emu_fiber *f, u32 file, u32 line)
{
    const struct emu_opts *o = &simd_of(f)->thread->emu->opts;
    if (file == o->no_file && line == o->no_line)
        return;
    if (file >= MAX_FILES || line >= MAX_LINES)
        __builtin_trap();
    struct emu_thread *t = simd_of(f)->thread;
    fiber_before(&t->ready);
    if (last_to_arrive(f, barrier_word(file, line)))
        end_turn(f);
    else
        wait_turn(f);
    fiber_after(&t->ready);
}

static void at_end(struct emu_fiber *f)
{
    fiber_before(&simd_of(f)->thread->host);
    if (last_to_arrive(f, END_))
        end_turn(f);
    else
        wait_turn(f);
}

void emu_simd_barrier(struct emu_fiber *f)
{
    struct emu_simd *s = simd_of(f);
    fiber_before(&s->arrived);
    if (last_to_arrive(f, SIMD_BARRIER_))
        end_meeting(f);
    else
        wait_turn(f);
    fiber_after(&s->arrived);
}

u32 emu_shuffle(struct emu_fiber *f, u32 v, u32 from_lane)
{
    struct table *at = &simd_of(f)->tables[simd_of(f)->side];
    at->in[f->lane] = v;
    if (last_to_arrive(f, SHUFFLE))
        end_meeting(f);
    else
        wait_turn(f);
    return at->in[from_lane & 31];
}

const u32 (*emu_pairs(struct emu_fiber *f, u32 a, u32 b))[2]
{
    struct table *at = &simd_of(f)->tables[simd_of(f)->side];
    at->pairs[f->lane][0] = a;
    at->pairs[f->lane][1] = b;
    if (last_to_arrive(f, PAIRS))
        end_meeting(f);
    else
        wait_turn(f);
    return (const u32 (*)[2])at->pairs;
}

u32 emu_max(struct emu_fiber *f, u32 v)
{
    struct table *at = &simd_of(f)->tables[simd_of(f)->side];
    at->in[f->lane] = v;
    if (last_to_arrive(f, MAX)) {
        u32 m = 0;
        for (u32 i = 0; i < LANES; i++)
            m = at->in[i] > m ? at->in[i] : m;
        at->all = m;
        end_meeting(f);
    } else
        wait_turn(f);
    return at->all;
}

i32 emu_sum(struct emu_fiber *f, i32 v)
{
    struct table *at = &simd_of(f)->tables[simd_of(f)->side];
    at->in[f->lane] = (u32)v;
    if (last_to_arrive(f, SUM)) {
        u32 sum = 0;
        for (u32 i = 0; i < LANES; i++)
            sum += at->in[i];
        at->all = sum;
        end_meeting(f);
    } else
        wait_turn(f);
    return (i32)at->all;
}

u32 emu_ballot(struct emu_fiber *f, u32 v)
{
    struct table *at = &simd_of(f)->tables[simd_of(f)->side];
    at->in[f->lane] = v;
    if (last_to_arrive(f, BALLOT)) {
        u32 bits = 0;
        for (u32 i = 0; i < LANES; i++)
            bits |= (u32)(at->in[i] != 0) << i;
        at->all = bits;
        end_meeting(f);
    } else
        wait_turn(f);
    return at->all;
}

#if defined(__SSE2__)

/* Bytes 0..7 of v as eight 16-bit numbers. */
static inline __m128i low_8(__m128i v, bool is_signed)
{
    return is_signed ? _mm_srai_epi16(_mm_unpacklo_epi8(v, v), 8) : _mm_unpacklo_epi8(v, _mm_setzero_si128());
}

static inline __m128i high_8(__m128i v, bool is_signed)
{
    return is_signed ? _mm_srai_epi16(_mm_unpackhi_epi8(v, v), 8) : _mm_unpackhi_epi8(v, _mm_setzero_si128());
}

/* c += pair of a row, times that pair of each column */
#define ADD_PAIR(p, a, i)                                                                                        \
    do {                                                                                                         \
        __m128i pair = _mm_shuffle_epi32(a, (i) * 0x55);                                                         \
        c0 = _mm_add_epi32(c0, _mm_madd_epi16(pair, b[(p) + (i)][0]));                                           \
        c1 = _mm_add_epi32(c1, _mm_madd_epi16(pair, b[(p) + (i)][1]));                                           \
    } while (0)

/* c = a . b over 4 * words elements. b: a register has the same two elements, as 16-bit numbers, of four columns; a: eight elements of
 * a row, of which two at a time are spread over a register. A product is at most 255 * 128 in size, 32 of them fit easily. */
static inline void multiply(struct table *at, u32 words, bool a_signed)
{
    __m128i b[16][2];
    for (u32 w = 0; w < words; w++)
        for (u32 half = 0; half < 2; half++) {
            __m128i v = _mm_load_si128((const __m128i *)(const void *)&at->b[w][4 * half]);
            __m128 lo = _mm_castsi128_ps(low_8(v, true)), hi = _mm_castsi128_ps(high_8(v, true));
            b[2 * w][half] = _mm_castps_si128(_mm_shuffle_ps(lo, hi, _MM_SHUFFLE(2, 0, 2, 0)));
            b[2 * w + 1][half] = _mm_castps_si128(_mm_shuffle_ps(lo, hi, _MM_SHUFFLE(3, 1, 3, 1)));
        }
    for (u32 row = 0; row < 16; row++) {
        __m128i c0 = _mm_setzero_si128(), c1 = c0;
        for (u32 w = 0; w < words; w += 4) {
            __m128i v = _mm_load_si128((const __m128i *)(const void *)&at->a[row][w]);
            __m128i lo = low_8(v, a_signed), hi = high_8(v, a_signed);
            ADD_PAIR(2 * w, lo, 0);
            ADD_PAIR(2 * w, lo, 1);
            ADD_PAIR(2 * w, lo, 2);
            ADD_PAIR(2 * w, lo, 3);
            ADD_PAIR(2 * w + 4, hi, 0);
            ADD_PAIR(2 * w + 4, hi, 1);
            ADD_PAIR(2 * w + 4, hi, 2);
            ADD_PAIR(2 * w + 4, hi, 3);
        }
        _mm_store_si128((__m128i *)(void *)&at->c[row][0], c0);
        _mm_store_si128((__m128i *)(void *)&at->c[row][4], c1);
    }
}

#else

/* c = a . b over 4 * words elements. */
static inline void multiply(struct table *at, u32 words, bool a_signed)
{
    i16 a[16][32], b[8][32];
    for (u32 i = 0; i < 4 * words; i++) {
        for (u32 row = 0; row < 16; row++) {
            u32 byte = at->a[row][i / 4] >> i % 4 * 8 & 255;
            a[row][i] = a_signed ? (i8)byte : (i16)byte;
        }
        for (u32 col = 0; col < 8; col++)
            b[col][i] = (i8)(at->b[i / 4][col] >> i % 4 * 8);
    }
    for (u32 row = 0; row < 16; row++)
        for (u32 col = 0; col < 8; col++) {
            i32 sum = 0;
            for (u32 i = 0; i < 4 * words; i++)
                sum += a[row][i] * b[col][i];
            at->c[row][col] = sum;
        }
}

#endif

static inline void add_tile(const struct table *at, u32 g, u32 t, i32 c[4])
{
    c[0] = (i32)((u32)c[0] + (u32)at->c[g][2 * t]);
    c[1] = (i32)((u32)c[1] + (u32)at->c[g][2 * t + 1]);
    c[2] = (i32)((u32)c[2] + (u32)at->c[g + 8][2 * t]);
    c[3] = (i32)((u32)c[3] + (u32)at->c[g + 8][2 * t + 1]);
}

void emu_tile(struct emu_fiber *f, i32 c[4], const u32 a[4], const u32 b[2], bool a_signed)
{
    struct table *at = &simd_of(f)->tables[simd_of(f)->side];
    u32 g = f->lane / 4, t = f->lane % 4;
    at->a[g][t] = a[0];
    at->a[g + 8][t] = a[1];
    at->a[g][4 + t] = a[2];
    at->a[g + 8][4 + t] = a[3];
    at->b[t][g] = b[0];
    at->b[4 + t][g] = b[1];
    if (last_to_arrive(f, a_signed ? TILE_S : TILE_U)) {
        if (a_signed)
            multiply(at, 8, true);
        else
            multiply(at, 8, false);
        end_meeting(f);
    } else
        wait_turn(f);
    add_tile(at, g, t, c);
}

void emu_tile_16(struct emu_fiber *f, i32 c[4], u32 a0, u32 a1, u32 b0)
{
    struct table *at = &simd_of(f)->tables[simd_of(f)->side];
    u32 g = f->lane / 4, t = f->lane % 4;
    at->a[g][t] = a0;
    at->a[g + 8][t] = a1;
    at->b[t][g] = b0;
    if (last_to_arrive(f, TILE_16)) {
        multiply(at, 4, true);
        end_meeting(f);
    } else
        wait_turn(f);
    add_tile(at, g, t, c);
}

/* ---- groups ---- */

static void lane_main(void *arg)
{
    struct emu_fiber *f = arg;
    struct emu_thread *t = simd_of(f)->thread;
    for (;;) {
        fiber_after(&t->group);
        struct ring ring = {0};
        struct at at = {t->group, t->n_groups, simd_of(f)->index * LANES + f->lane, simd_of(f)->index, f->lane, f, &ring};
        t->emu->fn(at, t->emu->arg, t->shm);
        at_end(f);
    }
}

static void set_fibers(struct emu_thread *t)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (u32 i = 0; i < GPU_THREADS; i++) {
        struct emu_fiber *f = &t->simds[i / LANES]->ring[i % LANES];
        u8 *stack = t->stacks + i * (STACK_BYTES + page) + page; /* the page below is the guard */
        fiber_set(&f->fiber, stack, STACK_BYTES - i % LANES * STACK_SHIFT, lane_main, f);
    }
    for (u32 s = 0; s < GPU_SIMDS; s++) {
        t->simds[s]->arrived = 0;
        t->simds[s]->stride = FIBER_BYTES;
    }
    t->ready = (1u << GPU_SIMDS) - 1;
    t->failed = false;
}

static void poison(u32 *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = POISON | (i & 0xFFFF);
}

/* A task of the pool: one group. */
static void run_group(void *arg, u32 task, u32 thread)
{
    struct emu *e = arg;
    struct emu_thread *t = e->threads[thread];
    if (task > atomic_load(&e->first_failed))
        return;
    t->group = e->order[task];
    t->n_groups = e->n_groups;
    t->random = mix(e->opts.seed + 0x9E3779B97F4A7C15ull * (t->group + 1));
    u32 mode = draw(t) >> 16 & 3;
    t->turn_mask = mode == 0 ? 1 : mode == 1 ? 15 : ~0u;
    size_t bytes = (size_t)round_up_u64(e->shm_bytes, 16);
    t->shm = (u32 *)(void *)(t->shm_map + sysconf(_SC_PAGESIZE) + t->shm_room - bytes);
    if (e->opts.poison)
        poison(t->shm, bytes / 4);
    fiber_host(&t->host);
    fiber_before(&t->group);
    fiber_switch(&t->host, &next_turn(t)->fiber);
    fiber_after(&t->host);
    if (!t->failed)
        return;
    set_fibers(t);
    if (task < t->failed_task) {
        t->failed_task = task;
        unsigned seen = atomic_load(&e->first_failed);
        while (task < seen && !atomic_compare_exchange_weak(&e->first_failed, &seen, task))
            ;
    }
}

/* ---- launches ---- */

static void *map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Room between two unmapped pages; what lies in it begins as poison. */
static int grow_shm(struct emu_thread *t, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size_t)round_up_u64(bytes, page);
    if (t->shm_map && room <= t->shm_room)
        return 0;
    u8 *p = map(room + 2 * page);
    if (!p)
        return -1;
    if (room && mprotect(p + page, room, PROT_READ | PROT_WRITE)) {
        munmap(p, room + 2 * page);
        return -1;
    }
    if (t->shm_map)
        munmap(t->shm_map, t->shm_room + 2 * page);
    t->shm_map = p;
    t->shm_room = room;
    poison((u32 *)(void *)(p + page), room / 4);
    return 0;
}

static int make_order(struct emu *e, u32 n_groups)
{
    if (n_groups > e->order_room) {
        u32 *order = realloc(e->order, n_groups * sizeof *order);
        if (!order)
            return -1;
        e->order = order;
        e->order_room = n_groups;
    }
    u64 r = mix(e->opts.seed);
    for (u32 i = 0; i < n_groups; i++) {
        u32 j = (u32)((r >> 32) * (i + 1) >> 32);
        e->order[i] = e->order[j];
        e->order[j] = i;
        r = mix(r + 0x9E3779B97F4A7C15ull);
    }
    return 0;
}

static int launch(struct emu *e, u32 n_groups, u32 shm_bytes, struct err *err)
{
    bool room = make_order(e, n_groups) == 0;
    for (u32 i = 0; i < e->n_threads; i++)
        room = room && grow_shm(e->threads[i], shm_bytes) == 0;
    if (!room)
        return err_set(err, "kernel %s: no memory for %u groups with %u bytes each", e->name, n_groups, shm_bytes);
    e->n_groups = n_groups;
    e->shm_bytes = shm_bytes;
    for (u32 i = 0; i < e->n_threads; i++)
        e->threads[i]->failed_task = UINT32_MAX;
    atomic_store(&e->first_failed, UINT32_MAX);
    pool_run(e->pool, n_groups, run_group, e);
    u32 failed = atomic_load(&e->first_failed);
    for (u32 i = 0; failed != UINT32_MAX && i < e->n_threads; i++)
        if (e->threads[i]->failed_task == failed)
            return err_set(err, "%s", e->threads[i]->err.text);
    return 0;
}

int emu_run(struct emu *e, void (*fn)(struct at at, void *arg, u32 *shm), void *arg, u32 n_groups, u32 shm_bytes, struct err *err)
{
    e->name = "of a test";
    e->fn = fn;
    e->arg = arg;
    return launch(e, n_groups, shm_bytes, err);
}

struct call {
    enum gpu_kernel kernel;
    const union gpu_args *args;
    const struct bufs *b;
};

static void call_kernel(struct at at, void *arg, u32 *shm)
{
    const struct call *c = arg;
    emu_call(c->kernel, at, c->args, c->b, shm);
}

int emu_launch(struct emu *e, enum gpu_kernel kernel, const union gpu_args *args, const struct bufs *b, u32 n_groups,
               u32 shm_bytes, struct err *err)
{
    struct call c = {kernel, args, b};
    e->name = emu_name(kernel);
    e->fn = call_kernel;
    e->arg = &c;
    return launch(e, n_groups, shm_bytes, err);
}

void emu_set(struct emu *e, const struct emu_opts *o)
{
    e->opts = *o;
    e->opts.n_threads = e->n_threads;
}

u32 emu_barriers(const struct emu *e, u32 (*at)[2], u32 max)
{
    u32 n = 0;
    for (u32 file = 0; file < MAX_FILES; file++)
        for (u32 line = 0; line < MAX_LINES; line++) {
            u32 bits = 0;
            for (u32 i = 0; i < e->n_threads; i++)
                bits |= e->threads[i]->passed[file][line / 8];
            if (!(bits >> line % 8 & 1))
                continue;
            if (n < max) {
                at[n][0] = file;
                at[n][1] = line;
            }
            n++;
        }
    return n;
}

static size_t stacks_bytes(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return GPU_THREADS * (STACK_BYTES + page) + page;
}

static void close_thread(struct emu_thread *t)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (u32 i = 0; i < GPU_THREADS; i++)
        if (t->simds[i / LANES])
            fiber_unset(&t->simds[i / LANES]->ring[i % LANES].fiber);
    if (t->blocks)
        munmap(t->blocks, (GPU_SIMDS + 1) * BLOCK_BYTES);
    if (t->stacks)
        munmap(t->stacks, stacks_bytes());
    if (t->shm_map)
        munmap(t->shm_map, t->shm_room + 2 * page);
    mem_free(t, sizeof *t);
}

static struct emu_thread *open_thread(struct emu *e)
{
    struct emu_thread *t = mem_alloc(sizeof *t);
    if (!t)
        return NULL;
    t->emu = e;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), blocks_bytes = (GPU_SIMDS + 1) * BLOCK_BYTES;
    t->stacks = map(stacks_bytes());
    t->blocks = map(blocks_bytes);
    bool good = t->stacks && t->blocks && mprotect(t->blocks, blocks_bytes, PROT_READ | PROT_WRITE) == 0;
    for (u32 i = 0; good && i < GPU_THREADS; i++)
        good = mprotect(t->stacks + i * (STACK_BYTES + page) + page, STACK_BYTES, PROT_READ | PROT_WRITE) == 0;
    if (!good) {
        close_thread(t);
        return NULL;
    }
    u8 *block = t->blocks + (BLOCK_BYTES - (uintptr_t)t->blocks % BLOCK_BYTES);
    for (u32 s = 0; s < GPU_SIMDS; s++, block += BLOCK_BYTES) {
        t->simds[s] = (struct emu_simd *)(void *)block;
        t->simds[s]->thread = t;
        t->simds[s]->index = s;
        for (u32 lane = 0; lane < LANES; lane++)
            t->simds[s]->ring[lane].lane = lane;
    }
    set_fibers(t);
    return t;
}

struct emu *emu_open(const struct emu_opts *o)
{
    struct emu *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->opts = *o;
    if (pool_open(&e->pool, o->n_threads ? o->n_threads : 1, NULL))
        goto fail;
    u32 n = pool_threads(e->pool);
    if (!(e->threads = mem_array(n, sizeof(struct emu_thread *))))
        goto fail;
    for (; e->n_threads < n; e->n_threads++)
        if (!(e->threads[e->n_threads] = open_thread(e)))
            goto fail;
    return e;
fail:
    emu_close(e);
    return NULL;
}

void emu_close(struct emu *e)
{
    if (!e)
        return;
    pool_close(e->pool);
    for (u32 i = 0; i < e->n_threads; i++)
        close_thread(e->threads[i]);
    free(e->threads);
    free(e->order);
    free(e);
}
