/* The dialect of the GPU kernels: the common part of CUDA C, Metal's C++14 and C, and the words in which the three differ.
 * One text of kernels (k_*.h) is read by nvcc, by Apple's compiler and by cc, which runs it on fibers (emu.h).
 *
 * A kernel is a function of where it stands (struct at), its arguments (args.h), its buffers (struct bufs) and shared memory. All
 * groups have GPU_THREADS threads in SIMD groups of 32. Work is shared out over the groups in loops, so that a result
 * never depends on how many groups there are. Not used: double, recursion, function pointers, 64-bit atomics, float atomics, unsigned
 * division and remainder by a number known at run time only (split_u32 does that), a return before a barrier.
 *
 * Address spaces stand on every pointer: DEV device memory, CON arguments, SHM shared memory of a group, THR a thread's own; WGT is where a kernel
 * finds a weight tile: SHM with a ring, DEV in a PS_METAL build. A function that says ANYWHERE takes words in SHM or in DEV, by a pointer of the type
 * any_words: Metal makes one of it for each. */
#ifndef PS_GPU_H
#define PS_GPU_H

enum { GPU_THREADS = 256, GPU_SIMDS = GPU_THREADS / 32, GPU_BUFS = 16, GPU_MARK_WORDS = 16 };

/* PS_METAL 1: kernels (and the host's formulas, layout.h) in the shape that Apple's GPUs want: at most 32,768 bytes of shared memory a group,
 * weights and act rows read where they lie. Results are the same. */
#ifndef PS_METAL
#define PS_METAL 0
#endif

/* A ring: shared memory into which each SIMD group has weights fetched ahead, its own part of it: marks, then slots. It stands before the shared
 * memory of kernels that have one (GPU_HAS_RING, args.h). In a PS_METAL build nothing is fetched: there is no such memory, and the one slot remembers
 * where its tile lies. */
enum {
    RING_MARKS = 8,
    RING_SLOT_WORDS = 1184,
    RING_SIMD_WORDS = RING_MARKS + RING_SLOT_WORDS,
    RING_WORDS = PS_METAL ? 0 : GPU_SIMDS * RING_SIMD_WORDS,
    RING_SLOTS = PS_METAL ? 1 : 4
};

#if defined(__CUDACC__)

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef __UINT64_TYPE__ u64; /* base.h has the same names for the same types: a plug-in reads both */
typedef uint4 w4;
typedef uint2 w2;

#define KFN static __device__ __forceinline__
#define DEV
#define CON
#define SHM
#define WGT
#define THR
#define ANYWHERE
typedef const unsigned int *any_words;
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")

struct ring {
    u32 turns;  /* bit s: which of its two turns slot s is in */
#ifdef GPU_MARKS
    u32 marked; /* bit i: mark i is there, of the first time a turn was asked for */
#endif
};

struct at {
    u32 group, n_groups;   /* this group of so many */
    u32 id, simd, lane;     /* this thread: id = 32 * simd + lane. Not `thread`: a word of Metal's, as is `half` */
    struct ring *ring;
#ifdef GPU_MARKS
    u64 *marks;             /* GPU_MARK_WORDS of this SIMD group, or NULL */
#endif
};

/* MARK(at, i): when a SIMD group came here, for measuring: nothing, unless built with NVCCFLAGS=-DGPU_MARKS; then PLAINSONG_CUDA_MODE=clock prints them. Marks 3 to 13 are free;
 * cycles of the SM's clock. 0: begin, 1: asks for its turn, 2: has it (14: that in nanoseconds), 15: end. Behind a barrier a mark may read as before it. */
#ifdef GPU_MARKS
KFN void mark(struct at at, u32 i)
{
    u64 t;
    if (i == 0u)
        at.ring->marked = 0u;
    if (!at.marks || at.lane || ((i == 1u || i == 2u) && at.ring->marked >> i & 1u))
        return;
    at.ring->marked |= 1u << i;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t) : : "memory");
    at.marks[i] = t;
    if (i == 2u) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t) : : "memory");
        at.marks[14] = t;
    }
}
#define MARK(at, i) mark(at, i)
#else
#define MARK(at, i)
#endif

#define EX_FN KFN
#define EX_FMA(a, b, c) __fmaf_rn(a, b, c)
#define EX_MULHI(a, b) __umulhi(a, b)
#define EX_BITS(x) __float_as_uint(x)
#define EX_FLOAT(u) __uint_as_float(u)
#define EX_BELOW(x, least) (fabsf(x) < (least))
#include "base/exact.h"

/* Programmatic dependent launch: a kernel may be placed on an SM while the one before it still runs, once all groups of that one are past this place: so all launches
 * before that one are whole. Until here it touches nothing that the one before it writes: weights, and what is older (experts_out_twin the route lists); from here on all
 * launches before it are whole and visible, and the next may be placed. Without the launch attribute both are nothing. */
#define IN_TURN(at)                                                                                                     \
    do {                                                                                                                \
        MARK(at, 1u);                                                                                                   \
        in_turn();                                                                                                      \
        MARK(at, 2u);                                                                                                   \
    } while (0)
KFN void in_turn(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

/* Whether a kernel that few groups run goes through its work once for nothing before its turn, where it has the time:
 * instructions come from far away for each launch anew, and are near then. */
#if __CUDA_ARCH__ >= 900
#define REHEARSED 1u
#else
#define REHEARSED 0u
#endif

/* The same number, but the compiler does not know: what follows from it is computed once more instead of being kept in registers. */
KFN u32 again(u32 v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* BARRIER_DEV: what the group wrote to device memory is read by other threads of it as well. */
#define BARRIER(at) __syncthreads()
#define BARRIER_DEV(at) BARRIER(at)
#define SIMD_BARRIER(at) __syncwarp()

KFN u32 shuffle_xor(struct at at, u32 v, u32 mask) { return __shfl_xor_sync(~0u, v, mask); }
KFN u32 shuffle_from(struct at at, u32 v, u32 lane) { return __shfl_sync(~0u, v, lane); }
KFN u32 simd_max_u32(struct at at, u32 v) { return __reduce_max_sync(~0u, v); }
KFN i32 simd_sum_i32(struct at at, i32 v) { return __reduce_add_sync(~0u, v); }
KFN u32 simd_ballot(struct at at, u32 v) { return __ballot_sync(~0u, v); }
KFN i32 dot4(u32 a, u32 b, i32 c) { return __dp4a((int)a, (int)b, c); }
/* Four of eight bytes: nibble i of `by`, 0 to 7, says which of a's (0-3) and b's (4-7) becomes byte i. */
KFN u32 bytes_by(u32 a, u32 b, u32 by) { return __byte_perm(a, b, by); }
KFN float sqrt_rn(float x) { return __fsqrt_rn(x); }
KFN float div_rn(float a, float b) { return __fdiv_rn(a, b); }
/* 1 / x, rounded to nearest, of an x with 11 significant bits between 2^-60 and 2^126: one step of Newton's from what the chip finds, which is exact but for numbers
 * whose 24 bits are all ones; no branch for numbers that are out of range. */
KFN float reciprocal_11(float x)
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return __fmaf_rn(r, __fmaf_rn(-x, r, 1.0f), r);
}
KFN float div_near(float a, float b) { return __fdividef(a, b); } /* within two units in the last place: for split_u32 alone */
KFN u32 popcount(u32 v) { return (u32)__popc(v); }
/* Of words to which several threads may add at once; what stood there is not told, since that would depend on the order. */
KFN void shm_add_u32(SHM u32 *p, u32 v) { atomicAdd(p, v); }

/* One way to read and one to write a half: exact, as ex_half and ex_to_half (denormals kept). */
KFN float half_value(u32 h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((unsigned short)h));
    return f;
}
KFN u32 half_bits(float x)
{
    u32 u = EX_BITS(x), sign = u >> 16 & 0x8000u, mag = u & 0x7FFFFFFFu;
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(EX_FLOAT(mag < 0x477FE000u ? mag : 0x477FE000u))); /* 65,504 */
    return sign | (mag > 0x7F800000u ? 0x7E00u : h);
}

/* 16 or 8 aligned bytes. load16_once: of what no kernel writes and nobody reads again soon (weights); _if: where `there` is not 0, else zeros, without a branch. prefetch: the 128 bytes at p will be
 * wanted; they need not be there. */
KFN w4 load16(const void *p) { return *(const w4 *)p; }
KFN w2 load8(const void *p) { return *(const w2 *)p; }
KFN void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" : : "l"(p)); }
/* The L2 cache gives up weights first: a step's weights are many times its size, and what it keeps instead is wanted again in the next layer or step:
 * instructions, keys and values, activations. */
KFN u64 once_policy(void)
{
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
KFN w4 load16_once_if(u32 there, const void *p)
{
    w4 v = {0u, 0u, 0u, 0u};
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %6; }"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : "l"(p), "r"(there), "l"(once_policy()));
    return v;
}
KFN w4 load16_once(const void *p)
{
    w4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(once_policy()));
    return v;
}

/* 16 bytes on their way into shared memory; copies_done: all that this thread sent are there, for others behind a barrier. */
KFN void copy16(u32 *to, const u32 *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}
KFN void copies_done(void) { asm volatile("cp.async.wait_all;" : : : "memory"); }

/* The ring's words; all lanes of a SIMD group call each. ring_open: once, before any other. ring_fetch: `bytes` (a multiple of 16) are on their
 * way into slot `slot`, at word `to` of the SIMD group's part; SIMD_BARRIER after the last read of what the slot held. ring_take: they are
 * there. Each fetch is taken once, a slot's before its next fetch. ring_tile: what was taken; slots are `words` long. */
#define ring_tile(at, ring, slot, words) ((ring) + (at).simd * RING_SIMD_WORDS + RING_MARKS + (slot) * (words))
#if __CUDA_ARCH__ >= 900
KFN u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
KFN void bulk_once(u32 to, const void *from, u32 bytes, u32 mark)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 : : "r"(to), "l"(from), "r"(bytes), "r"(mark), "l"(once_policy()) : "memory");
}
/* The same for a SIMD group that lays out its part `own` itself, marks first; two equal pieces, one behind the other, come as one. */
KFN void ring_open_own(struct at at, u32 *own)
{
    at.ring->turns = 0;
    if (at.lane == 0u) {
        for (u32 i = 0; i < RING_SLOTS; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" : : "r"(shared_address(own) + 8u * i) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
    }
    __syncwarp();
}
KFN void ring_fetch_once(struct at at, u32 *own, u32 slot, u32 to, const void *from, u32 bytes)
{
    if (at.lane == 0u) {
        u32 mark = shared_address(own) + 8u * slot;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(mark), "r"(bytes) : "memory");
        bulk_once(shared_address(own + to), from, bytes, mark);
    }
}
/* Without bulk_once's hint: groups that have other rows read the same. */
KFN void ring_fetch_own(struct at at, u32 *own, u32 slot, u32 to, const void *from, u32 bytes)
{
    if (at.lane == 0u) {
        u32 mark = shared_address(own) + 8u * slot;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(mark), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     : : "r"(shared_address(own + to)), "l"(from), "r"(bytes), "r"(mark) : "memory");
    }
}
KFN void ring_fetch_two(struct at at, u32 *own, u32 slot, u32 to, const void *from0, const void *from1, u32 bytes)
{
    if (at.lane == 0u) {
        u32 mark = shared_address(own) + 8u * slot, word = shared_address(own + to);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(mark), "r"(2u * bytes) : "memory");
        bulk_once(word, from0, bytes, mark);
        bulk_once(word + bytes, from1, bytes, mark);
    }
}
KFN void ring_take_own(struct at at, u32 *own, u32 slot)
{
    u32 mark = shared_address(own) + 8u * slot, done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(mark), "r"(at.ring->turns >> slot & 1u) : "memory");
    at.ring->turns ^= 1u << slot;
}
KFN void ring_open(struct at at, u32 *ring) { ring_open_own(at, ring + at.simd * RING_SIMD_WORDS); }
KFN void ring_fetch(struct at at, u32 *ring, u32 slot, u32 to, const void *from, u32 bytes)
{
    ring_fetch_once(at, ring + at.simd * RING_SIMD_WORDS, slot, to, from, bytes);
}
KFN void ring_take(struct at at, u32 *ring, u32 slot) { ring_take_own(at, ring + at.simd * RING_SIMD_WORDS, slot); }
#else /* as the emulator: the lanes copy at once */
KFN void ring_open_own(struct at at, u32 *own) {}
KFN void ring_fetch_two(struct at at, u32 *own, u32 slot, u32 to, const void *from0, const void *from1, u32 bytes)
{
    for (u32 i = at.lane * 16u; i < bytes; i += 512u) {
        *(w4 *)(own + to + i / 4u) = load16_once((const u8 *)from0 + i);
        *(w4 *)(own + to + (bytes + i) / 4u) = load16_once((const u8 *)from1 + i);
    }
}
KFN void ring_fetch_own(struct at at, u32 *own, u32 slot, u32 to, const void *from, u32 bytes)
{
    for (u32 i = at.lane * 16u; i < bytes; i += 512u)
        *(w4 *)(own + to + i / 4u) = load16_once((const u8 *)from + i);
}
KFN void ring_fetch_once(struct at at, u32 *own, u32 slot, u32 to, const void *from, u32 bytes) { ring_fetch_own(at, own, slot, to, from, bytes); }
KFN void ring_take_own(struct at at, u32 *own, u32 slot) { __syncwarp(); }
KFN void ring_open(struct at at, u32 *ring) {}
KFN void ring_fetch(struct at at, u32 *ring, u32 slot, u32 to, const void *from, u32 bytes)
{
    ring_fetch_own(at, ring + at.simd * RING_SIMD_WORDS, slot, to, from, bytes);
}
KFN void ring_take(struct at at, u32 *ring, u32 slot) { __syncwarp(); }
#endif

/* c += A . B over 32 (tile_16: 16) elements, exact integers; a and b hold bytes. Lane 4 g + t of a SIMD group holds
 *   a[0], a[1] elements 4t..4t+3 of rows g and g + 8 of A, a[2], a[3] elements 16 + 4t..; b: see TILE_COLS;
 *   c[0], c[1] row g, columns 2t and 2t+1; c[2], c[3] row g + 8. tile_u: A unsigned, tile_s: signed; B is signed. */
KFN void tile_u(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
KFN void tile_s(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* The same from somewhere else: c = from + A . B. */
KFN void tile_u_from(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b, THR const i32 *from)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]));
}
KFN void tile_s_from(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b, THR const i32 *from)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]));
}
/* The same from 0: c = A . B. */
KFN void tile_u0(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}
KFN void tile_s0(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(0));
}
KFN void tile_16(struct at at, THR i32 *c, u32 a0, u32 a1, THR const u32 *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b[0]));
}
KFN void tile_16_from(struct at at, THR i32 *c, u32 a0, u32 a1, THR const u32 *b, THR const i32 *from)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(b[0]), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]));
}

#elif defined(__METAL_VERSION__)

#include "gpu/gpu_metal.h"

#else /* C, on fibers: the same words as functions of emu.c */

#if defined(__clang__)
/* SHM, DEV and their like are empty here: a line that begins with one behind an `if` begins, for clang, where its second word stands. */
#pragma clang diagnostic ignored "-Wmisleading-indentation"
#endif

#include "base/exact.h"

typedef struct {
    u32 x, y, z, w;
} w4;

typedef struct {
    u32 x, y;
} w2;

#define KFN static inline __attribute__((unused))
#define DEV
#define CON
#define SHM
#define WGT
#define THR
#define ANYWHERE
typedef const u32 *any_words;
#define UNROLL
#define NO_UNROLL

struct ring {
    const void *tile; /* PS_METAL: where the slot's tile lies */
};

struct emu_fiber;
struct at {
    u32 group, n_groups;
    u32 id, simd, lane;
    struct emu_fiber *fiber;
    struct ring *ring;
};

/* Defined in emu.c. A barrier has the line of its text for a name, so that a test can take it away. */
void emu_barrier(struct emu_fiber *f, u32 file, u32 line);
void emu_simd_barrier(struct emu_fiber *f);
u32 emu_shuffle(struct emu_fiber *f, u32 v, u32 from_lane);
u32 emu_max(struct emu_fiber *f, u32 v);
i32 emu_sum(struct emu_fiber *f, i32 v);
u32 emu_ballot(struct emu_fiber *f, u32 v);
void emu_tile(struct emu_fiber *f, i32 c[4], const u32 a[4], const u32 b[2], bool a_signed);
void emu_tile_16(struct emu_fiber *f, i32 c[4], u32 a0, u32 a1, u32 b0);
/* Two words of every lane, by lanes: there until this lane's next meeting. No word of the dialect: of what runs Metal's text. */
const u32 (*emu_pairs(struct emu_fiber *f, u32 a, u32 b))[2];

/* KERNEL_FILE: a number that each k_*.h defines for itself before its kernels. */
#define IN_TURN(at) (void)(at)
#define MARK(at, i)
#define REHEARSED 0u
KFN u32 again(u32 v) { return v; }
#define BARRIER(at) emu_barrier((at).fiber, KERNEL_FILE, __LINE__)
#define BARRIER_DEV(at) BARRIER(at)
#define SIMD_BARRIER(at) emu_simd_barrier((at).fiber)

KFN u32 shuffle_xor(struct at at, u32 v, u32 mask) { return emu_shuffle(at.fiber, v, at.lane ^ mask); }
KFN u32 shuffle_from(struct at at, u32 v, u32 lane) { return emu_shuffle(at.fiber, v, lane); }
KFN u32 simd_max_u32(struct at at, u32 v) { return emu_max(at.fiber, v); }
KFN i32 simd_sum_i32(struct at at, i32 v) { return emu_sum(at.fiber, v); }
KFN u32 simd_ballot(struct at at, u32 v) { return emu_ballot(at.fiber, v); }
KFN i32 dot4(u32 a, u32 b, i32 c)
{
    for (u32 i = 0; i < 4; i++)
        c += (i8)(a >> 8 * i) * (i8)(b >> 8 * i);
    return c;
}
KFN u32 bytes_by(u32 a, u32 b, u32 by)
{
    u32 v = 0;
    for (u32 i = 0; i < 4; i++)
        v |= ((by >> 4 * i & 4u ? b : a) >> (by >> 4 * i & 3u) * 8 & 0xFFu) << 8 * i;
    return v;
}
KFN float sqrt_rn(float x) { return sqrtf(x); }
KFN float div_rn(float a, float b) { return a / b; }
KFN float reciprocal_11(float x) { return 1.0f / x; }
KFN float div_near(float a, float b) { return a / b; }
KFN float half_value(u32 h) { return ex_half(h); }
KFN u32 half_bits(float x) { return ex_to_half(x); }
KFN u32 popcount(u32 v) { return (u32)__builtin_popcount(v); }
KFN void shm_add_u32(u32 *p, u32 v) { *p += v; } /* a lane runs on to its next meeting */
KFN w4 load16(const void *p) { return *(const w4 *)p; }
KFN w4 load16_once(const void *p) { return *(const w4 *)p; }
KFN w4 load16_once_if(u32 there, const void *p) { return there ? *(const w4 *)p : (w4){0, 0, 0, 0}; }
KFN w2 load8(const void *p) { return *(const w2 *)p; }
KFN void prefetch(const void *p) { (void)p; }
KFN void copy16(u32 *to, const u32 *from) { memcpy(to, from, 16); }
KFN void copies_done(void) {}
/* The lanes copy 16 bytes each in turn, at once. */
KFN void ring_open(struct at at, u32 *ring) { (void)at, (void)ring; }
KFN void ring_fetch(struct at at, u32 *ring, u32 slot, u32 to, const void *from, u32 bytes)
{
    (void)slot;
    at.ring->tile = from;
    for (u32 i = at.lane * 16; !PS_METAL && i < bytes; i += 32 * 16)
        memcpy((u8 *)(ring + at.simd * RING_SIMD_WORDS + to) + i, (const u8 *)from + i, 16);
}
KFN void ring_take(struct at at, u32 *ring, u32 slot)
{
    (void)ring, (void)slot;
    if (!PS_METAL)
        emu_simd_barrier(at.fiber);
}
KFN const u32 *ring_tile(struct at at, const u32 *ring, u32 slot, u32 words)
{
    return PS_METAL ? (const u32 *)at.ring->tile : ring + at.simd * RING_SIMD_WORDS + RING_MARKS + slot * words;
}
KFN void ring_open_own(struct at at, u32 *own) { (void)at, (void)own; }
KFN void ring_fetch_own(struct at at, u32 *own, u32 slot, u32 to, const void *from, u32 bytes)
{
    (void)slot;
    for (u32 i = at.lane * 16; i < bytes; i += 32 * 16)
        memcpy((u8 *)(own + to) + i, (const u8 *)from + i, 16);
}
KFN void ring_fetch_once(struct at at, u32 *own, u32 slot, u32 to, const void *from, u32 bytes) { ring_fetch_own(at, own, slot, to, from, bytes); }
KFN void ring_fetch_two(struct at at, u32 *own, u32 slot, u32 to, const void *from0, const void *from1, u32 bytes)
{
    (void)slot;
    for (u32 i = at.lane * 16; i < bytes; i += 32 * 16) {
        memcpy((u8 *)(own + to) + i, (const u8 *)from0 + i, 16);
        memcpy((u8 *)(own + to) + bytes + i, (const u8 *)from1 + i, 16);
    }
}
KFN void ring_take_own(struct at at, u32 *own, u32 slot)
{
    (void)own, (void)slot;
    emu_simd_barrier(at.fiber);
}
KFN void tile_u(struct at at, i32 *c, const u32 *a, const u32 *b) { emu_tile(at.fiber, c, a, b, false); }
KFN void tile_s(struct at at, i32 *c, const u32 *a, const u32 *b) { emu_tile(at.fiber, c, a, b, true); }
KFN void tile_u_from(struct at at, i32 *c, const u32 *a, const u32 *b, const i32 *from)
{
    memcpy(c, from, 4 * sizeof *c);
    emu_tile(at.fiber, c, a, b, false);
}
KFN void tile_s_from(struct at at, i32 *c, const u32 *a, const u32 *b, const i32 *from)
{
    memcpy(c, from, 4 * sizeof *c);
    emu_tile(at.fiber, c, a, b, true);
}
KFN void tile_u0(struct at at, i32 *c, const u32 *a, const u32 *b)
{
    c[0] = c[1] = c[2] = c[3] = 0;
    emu_tile(at.fiber, c, a, b, false);
}
KFN void tile_s0(struct at at, i32 *c, const u32 *a, const u32 *b)
{
    c[0] = c[1] = c[2] = c[3] = 0;
    emu_tile(at.fiber, c, a, b, true);
}
KFN void tile_16(struct at at, i32 *c, u32 a0, u32 a1, const u32 *b) { emu_tile_16(at.fiber, c, a0, a1, b[0]); }
KFN void tile_16_from(struct at at, i32 *c, u32 a0, u32 a1, const u32 *b, const i32 *from)
{
    memcpy(c, from, 4 * sizeof *c);
    emu_tile_16(at.fiber, c, a0, a1, b[0]);
}

#endif

#if !defined(__METAL_VERSION__)
/* What a lane brings to a tile as B: word w = tile_word(at) and, for 32 elements, word 4 + w of TILE_COLS columns, tile_col(at, i). b[i] is word w of
 * column i, b[TILE_COLS + i] word 4 + w. Where the tile's columns are four, each twice: of column tile_col_of_four(at), or TILE_COLS times of it. */
enum { TILE_COLS = 1 };
KFN u32 tile_col(struct at at, u32 i) { return (at.lane >> 2) + i; }
KFN u32 tile_word(struct at at) { return at.lane & 3u; }
KFN u32 tile_col_of_four(struct at at) { return at.lane >> 3; }
#endif

#if !defined(__METAL_VERSION__)
/* Where a kernel finds what it had copied from `there` to `here`, by the rule of WGT. */
KFN WGT const u8 *wgt_at(SHM const u8 *here, DEV const u8 *there) { return PS_METAL ? there : here; }
#endif

/* A kernel's buffers, in the order that args.h gives. */
struct bufs {
    DEV void *p[GPU_BUFS];
};

KFN float shuffle_xor_f(struct at at, float v, u32 mask) { return EX_FLOAT(shuffle_xor(at, EX_BITS(v), mask)); }

/* The tree of rule 6 over a SIMD group's lanes: 16-8-4-2-1. Every lane has the result: x + y is y + x. */
KFN float simd_tree(struct at at, float v)
{
    UNROLL
    for (u32 step = 16; step; step /= 2)
        v = v + shuffle_xor_f(at, v, step);
    return v;
}

/* s with x * x, as rule 12 wants it: an |x| below 2^-40 would add 0 to what is not below 0. */
KFN float square_joins(float x, float s)
{
    return EX_BELOW(x, EX_TINY) ? s : EX_FMA(x, x, s);
}

KFN u32 least_u32(u32 a, u32 b) { return a < b ? a : b; }

/* a = q * b + *rest, for a, b < 2^24 and a / b < 2^21: a quotient within two units in its last place is off by one at most. */
KFN u32 split_u32(u32 a, u32 b, THR u32 *rest)
{
    i32 q = (i32)div_near((float)(i32)a, (float)(i32)b), r = (i32)a - q * (i32)b;
    if (r < 0) {
        q--;
        r += (i32)b;
    } else if (r >= (i32)b) {
        q++;
        r -= (i32)b;
    }
    *rest = (u32)r;
    return (u32)q;
}

#endif
