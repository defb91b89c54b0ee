/* The words of the dialect in Metal's C++14: a branch of gpu.h, which says what each means. No Mac has run this;
 * Metal's functions are used as published kernels use them.
 *
 * Lanes. Metal's 8 x 8 matrices lie in a SIMD group as lane l = b4 b3 b2 b1 b0 (bits) has row b4 b2 b1, columns 2
 * (b3 b0) and one more: known from use, not from the specification, hence probed at start (k_probe.h). Our lane is
 * b4 b2 b1 b3 b0, so that lane 4 g + t has row g, columns 2t and 2t + 1, as CUDA has it. Words that name lanes
 * translate: a permutation of bits, so that xor masks go through it as well.
 *
 * Numbers. Divisions and roots are the precise ones, correctly rounded in every mode; halves become floats by
 * their bits, since what converts may flush denormals. Bytes become halves as bits 0x6400 | n = 1024 + n, from
 * which 1024 is taken: exact. */
#define KFN static inline __attribute__((always_inline))
#define DEV device
#define CON constant
#define SHM threadgroup
#define WGT device
#define THR thread
#define ANYWHERE template <class any_words>
#define UNROLL _Pragma("clang loop unroll(full)")
#define NO_UNROLL _Pragma("clang loop unroll(disable)")

typedef uchar u8;
typedef char i8;
typedef ushort u16;
typedef short i16;
typedef uint u32;
typedef int i32;
typedef ulong u64;
typedef uint4 w4;
typedef uint2 w2;

struct ring {
    DEV const void *tile; /* where the only slot's tile lies */
};

struct at {
    u32 group, n_groups;
    u32 id, simd, lane;
    THR struct ring *ring;
};

#define EX_FN KFN
#define EX_FMA(a, b, c) fma(a, b, c)
#define EX_MULHI(a, b) mulhi(a, b)
#define EX_BITS(x) as_type<u32>(x)
#define EX_FLOAT(u) as_type<float>(u)
#define EX_DIV(a, b) precise::divide(a, b)
#include "base/exact.h"

/* ---- lanes ---- */

KFN u32 lane_ours(u32 metals) { return (metals & 0x11u) | (metals & 0x06u) << 1 | (metals & 0x08u) >> 2; }
KFN u32 lane_metals(u32 ours) { return (ours & 0x11u) | (ours & 0x0Cu) >> 1 | (ours & 0x02u) << 2; }

KFN struct at at_of(u32 group, u32 n_groups, u32 simd, u32 metals_lane, THR struct ring *ring)
{
    struct at at;
    at.ring = ring;
    at.group = group;
    at.n_groups = n_groups;
    at.simd = simd;
    at.lane = lane_ours(metals_lane);
    at.id = 32u * simd + at.lane;
    return at;
}

#define IN_TURN(at) (void)(at)
#define MARK(at, i)
#define REHEARSED 0u
KFN u32 again(u32 v) { return v; }

/* BARRIER_DEV: what the group wrote to device memory is read by other threads of the group behind it. */
#define BARRIER(at) threadgroup_barrier(mem_flags::mem_threadgroup)
#define BARRIER_DEV(at) threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup)
#define SIMD_BARRIER(at) simdgroup_barrier(mem_flags::mem_threadgroup)

KFN u32 shuffle_xor(struct at at, u32 v, u32 mask) { return simd_shuffle_xor(v, (ushort)lane_metals(mask)); }
KFN u32 shuffle_from(struct at at, u32 v, u32 lane) { return simd_shuffle(v, (ushort)lane_metals(lane)); }
KFN u32 simd_max_u32(struct at at, u32 v) { return simd_max(v); }
KFN i32 simd_sum_i32(struct at at, i32 v) { return simd_sum(v); }

/* Metal's bits are by its lanes: indices b4 b3 b2 b1 b0 become b4 b2 b3 b1 b0, then b4 b2 b1 b3 b0. */
KFN u32 simd_ballot(struct at at, u32 v)
{
    u32 bits = (u32)(simd_vote::vote_t)metal::simd_ballot(v != 0u);
    u32 t = ((bits >> 4) ^ bits) & 0x00F000F0u;
    bits ^= t ^ t << 4;
    t = ((bits >> 2) ^ bits) & 0x0C0C0C0Cu;
    return bits ^ t ^ t << 2;
}

/* ---- numbers ---- */

/* An integer, |v| < 2^22, that is a float: full rate, where a conversion has a quarter of it. */
KFN i32 small_int(float v) { return as_type<i32>(v + EX_MAGIC) - 0x4B400000; }

/* Byte i of a word of signed bytes + 128. */
KFN float byte_plus_128(u32 w, u32 i) { return as_type<float>(0x4B000000u | (w >> 8u * i & 255u)) - 8388736.0f; }

/* Sums of 4 products of at most 2^14 each. */
KFN i32 dot4(u32 a, u32 b, i32 c)
{
    float sum = 0.0f;
    a ^= 0x80808080u;
    b ^= 0x80808080u;
    UNROLL
    for (u32 i = 0; i < 4u; i++)
        sum = fma(byte_plus_128(a, i), byte_plus_128(b, i), sum);
    return c + small_int(sum);
}

KFN float sqrt_rn(float x) { return precise::sqrt(x); }
KFN float div_rn(float a, float b) { return precise::divide(a, b); }
KFN float reciprocal_11(float x) { return precise::divide(1.0f, x); }
KFN float div_near(float a, float b) { return precise::divide(a, b); }

/* As ex_half, with a subtraction, exact, where that converts an integer: a denormal's bits under the exponent of
 * 2^-14 are 2^-14 too much. */
KFN float half_value(u32 h)
{
    u32 bits = (h & 0x7FFFu) << 13, normal = bits + (bits < 0x0F800000u ? 0x38000000u : 0x70000000u);
    u32 small = as_type<u32>(as_type<float>(bits + 0x38800000u) - 6.103515625e-5f);
    return as_type<float>((h & 0x8000u) << 16 | (bits < 0x00800000u ? small : normal));
}
KFN u32 half_bits(float x) { return ex_to_half(x); }

/* popcount is Metal's own. */

/* ---- memory ---- */

KFN void shm_add_u32(SHM u32 *p, u32 v) { atomic_fetch_add_explicit((SHM atomic_uint *)p, v, memory_order_relaxed); }
KFN w4 load16(DEV const void *p) { return *(DEV const w4 *)p; }
KFN w4 load16(SHM const void *p) { return *(SHM const w4 *)p; }
KFN w4 load16_once(DEV const void *p) { return *(DEV const w4 *)p; }
KFN w4 load16_once_if(u32 there, DEV const void *p)
{
    w4 v = {0u, 0u, 0u, 0u};
    if (there)
        v = *(DEV const w4 *)p;
    return v;
}
KFN w2 load8(DEV const void *p) { return *(DEV const w2 *)p; }
KFN w2 load8(SHM const void *p) { return *(SHM const w2 *)p; }
KFN void prefetch(DEV const void *p) { (void)p; }
KFN u32 bytes_by(u32 a, u32 b, u32 by)
{
    u32 v = 0;
    UNROLL
    for (u32 i = 0; i < 4u; i++)
        v |= ((by >> 4u * i & 4u ? b : a) >> (by >> 4u * i & 3u) * 8u & 0xFFu) << 8u * i;
    return v;
}
KFN void copy16(SHM u32 *to, DEV const u32 *from) { *(SHM w4 *)to = *(DEV const w4 *)from; }
KFN void copies_done() {}
KFN WGT const u8 *wgt_at(SHM const u8 *here, DEV const u8 *there) { return there; }

KFN void ring_open(struct at at, SHM u32 *ring) {}
KFN void ring_fetch(struct at at, SHM u32 *ring, u32 slot, u32 to, DEV const void *from, u32 bytes) { at.ring->tile = from; }
KFN void ring_take(struct at at, SHM u32 *ring, u32 slot) {}
KFN WGT const u32 *ring_tile(struct at at, SHM const u32 *ring, u32 slot, u32 words) { return (WGT const u32 *)at.ring->tile; }

/* ---- tiles: 8 x 8 matrices of halves, with float sums, exact: integers below 2^24 ----
 *
 * Column 2i + r of a step's A, row 2i + r of its B is byte 2r (odd: 2r + 1) of word i: so a word's bytes 0 and 2,
 * or 1 and 3, are a lane's pair of A, two at a time without a shift. A lane's pair of B is one byte of word g / 2
 * of columns 2t and 2t + 1: B comes as these words (TILE_COLS). */
enum { TILE_COLS = 2 };
KFN u32 tile_col(struct at at, u32 i) { return 2u * (at.lane & 3u) + i; }
KFN u32 tile_word(struct at at) { return at.lane >> 3; }
KFN u32 tile_col_of_four(struct at at) { return at.lane & 3u; }

typedef simdgroup_matrix<half, 8, 8> tile_half;
typedef simdgroup_matrix<float, 8, 8> tile_float;

/* Bytes 0 and 2 as halves. */
KFN half2 tile_two(const bool is_signed, u32 w)
{
    w = (is_signed ? w ^ 0x00800080u : w) & 0x00FF00FFu;
    return as_type<half2>(w | 0x64006400u) - as_type<half2>(is_signed ? 0x64806480u : 0x64006400u);
}

KFN void tile_zero(THR tile_float &d) { reinterpret_cast<THR float2 &>(d.thread_elements()) = float2(0.0f); }

KFN void tile_add(THR tile_float &d, half2 a, half2 b)
{
    tile_half of_a, of_b;
    reinterpret_cast<THR half2 &>(of_a.thread_elements()) = a;
    reinterpret_cast<THR half2 &>(of_b.thread_elements()) = b;
    simdgroup_multiply_accumulate(d, of_a, of_b, d);
}

/* words: of a row of A and a column of B that a lane has, 2 or 1. */
KFN void tile_any(struct at at, const bool a_signed, const u32 words, THR i32 *c, THR const u32 *a, THR const u32 *b)
{
    tile_float low, high; /* rows 0..7, 8..15 */
    u32 shift = (at.lane >> 2 & 1u) * 16u;
    tile_zero(low);
    tile_zero(high);
    UNROLL
    for (u32 w = 0; w < words; w++) {
        u32 b0 = b[2u * w] >> shift, b1 = b[2u * w + 1u] >> shift;
        UNROLL
        for (u32 odd = 0; odd < 2u; odd++) {
            half2 two = tile_two(true, (b0 >> 8u * odd & 255u) | (b1 >> 8u * odd & 255u) << 16);
            tile_add(low, tile_two(a_signed, a[2u * w] >> 8u * odd), two);
            tile_add(high, tile_two(a_signed, a[2u * w + 1u] >> 8u * odd), two);
        }
    }
    float2 v = reinterpret_cast<THR float2 &>(low.thread_elements()), u = reinterpret_cast<THR float2 &>(high.thread_elements());
    c[0] += small_int(v.x); /* at most 32 * 255 * 128 < 2^22 */
    c[1] += small_int(v.y);
    c[2] += small_int(u.x);
    c[3] += small_int(u.y);
}

KFN void tile_u(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b) { tile_any(at, false, 2, c, a, b); }
KFN void tile_s(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b) { tile_any(at, true, 2, c, a, b); }
KFN void tile_u_from(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b, THR const i32 *from)
{
    c[0] = from[0], c[1] = from[1], c[2] = from[2], c[3] = from[3];
    tile_u(at, c, a, b);
}
KFN void tile_s_from(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b, THR const i32 *from)
{
    c[0] = from[0], c[1] = from[1], c[2] = from[2], c[3] = from[3];
    tile_s(at, c, a, b);
}
KFN void tile_u0(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b)
{
    c[0] = c[1] = c[2] = c[3] = 0;
    tile_u(at, c, a, b);
}
KFN void tile_s0(struct at at, THR i32 *c, THR const u32 *a, THR const u32 *b)
{
    c[0] = c[1] = c[2] = c[3] = 0;
    tile_s(at, c, a, b);
}
KFN void tile_16(struct at at, THR i32 *c, u32 a0, u32 a1, THR const u32 *b)
{
    u32 a[2] = {a0, a1};
    tile_any(at, true, 1, c, a, b);
}
KFN void tile_16_from(struct at at, THR i32 *c, u32 a0, u32 a1, THR const u32 *b, THR const i32 *from)
{
    c[0] = from[0], c[1] = from[1], c[2] = from[2], c[3] = from[3];
    tile_16(at, c, a0, a1, b);
}
