/* The embedded kernel text, run: compiled by clang++ over the shim and called in place of emu_call.c, so that the
 * tests of kernels that link this hold Metal's branch against the CPU's reference. A fiber's lane is Metal's lane.
 * With MSL_FLUSH in the environment float denormals are flushed, as Apple's GPUs do: for whole models, of which
 * rule 12 says that none is met; tests of kernels feed some on purpose.
 *
 * Of each matrix product it is asked that it is the same on any machine: its halves are integers, and so are its
 * sums, below 2^24.
 *
 * MSL_TEXT: the text, without the attribute [[threadgroup(0)]], which the shim's threadgroup would be put into. */
#include MSL_TEXT

#include <stdio.h>
#include <stdlib.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

/* Of gpu/gpu.h's branch for C: what the emulator hands over. */
struct emu_at {
    u32 group, n_groups, id, simd, lane;
    void *fiber, *ring;
};

extern "C" {
void emu_barrier(void *fiber, u32 file, u32 line);
void emu_simd_barrier(void *fiber);
u32 emu_shuffle(void *fiber, u32 v, u32 from_lane);
u32 emu_max(void *fiber, u32 v);
i32 emu_sum(void *fiber, i32 v);
u32 emu_ballot(void *fiber, u32 v);
const u32 (*emu_pairs(void *fiber, u32 a, u32 b))[2];
void emu_call(enum gpu_kernel which, struct emu_at at, const union gpu_args *args, void *const *bufs, u32 *shm);
const char *emu_name(enum gpu_kernel which);
}

static void flush_denormals(bool on)
{
#if defined(__SSE2__)
    static const bool wanted = getenv("MSL_FLUSH") != NULL;
    if (wanted)
        _mm_setcsr(on ? _mm_getcsr() | 0x8040u : _mm_getcsr() & ~0x8040u);
#else
    (void)on;
#endif
}

/* The lane that runs. A word may let others run: behind it this is set anew. */
static thread_local void *here;
static thread_local u32 here_lane;

struct word {
    void *fiber;
    u32 lane;
    word() : fiber(here), lane(here_lane) {}
    ~word()
    {
        here = fiber;
        here_lane = lane;
        flush_denormals(true);
    }
};

void shim_threadgroup_barrier(u32 file, u32 line)
{
    word w;
    emu_barrier(w.fiber, file, line);
}
void shim_simdgroup_barrier(void)
{
    word w;
    emu_simd_barrier(w.fiber);
}
u32 shim_shuffle(u32 v, u32 from)
{
    word w;
    return emu_shuffle(w.fiber, v, from);
}
u32 shim_shuffle_xor(u32 v, u32 mask)
{
    word w;
    return emu_shuffle(w.fiber, v, w.lane ^ mask);
}
u32 shim_max(u32 v)
{
    word w;
    return emu_max(w.fiber, v);
}
i32 shim_sum(i32 v)
{
    word w;
    return emu_sum(w.fiber, v);
}
u32 shim_ballot(u32 v)
{
    word w;
    return emu_ballot(w.fiber, v);
}

static void refuse(const char *what, double value)
{
    fprintf(stderr, "Metal's text: %s: %.9g\n", what, value);
    abort();
}

/* A half that is an integer. */
static float whole(u32 h)
{
    u32 mag = h & 0x7FFFu;
    float v = mag ? as_type<float>(((mag << 13) + 0x38000000u) | (h & 0x8000u) << 16) : 0.0f;
    if (mag && (mag < 0x3C00u || mag >= 0x7C00u || v != (float)(int)v))
        refuse("no integer in a half", mag < 0x7C00u ? v : __builtin_inff());
    return v;
}

static ushort half_of(float v)
{
    u32 u = as_type<u32>(v);
    if (v != (float)(int)v || v > 2048.0f || v < -2048.0f)
        refuse("no exact half", v);
    return (ushort)(v == 0.0f ? 0u : (u >> 16 & 0x8000u) | (((u & 0x7FFFFFFFu) - 0x38000000u) >> 13));
}

half2 shim_minus(half2 a, half2 b)
{
    half2 d = {half_of(whole(a.x) - whole(b.x)), half_of(whole(a.y) - whole(b.y))};
    return d;
}

/* With MSL_PLANT=map the elements of matrices lie otherwise: lane 4 r + c has row r, columns 2 c and one more. */
static bool other_map(void)
{
    static const char *const plant = getenv("MSL_PLANT");
    return plant && !__builtin_strcmp(plant, "map");
}

/* Which of Metal's lanes has an element (row, column), columns 2t and 2t + 1: the map as it is published, not by
 * gpu_metal.h's words. */
static u32 lane_of(u32 row, u32 column)
{
    if (other_map())
        return row * 4u + column / 2u;
    return (row & 4u) * 4u + (column & 4u) * 2u + (row & 3u) * 2u + (column >> 1 & 1u);
}

void shim_multiply(float2 *d, half2 a, half2 b, float2 c)
{
    word w;
    u32 q = w.lane / 4u, row = (q & 4u) + w.lane / 2u % 4u, column = (q & 2u) * 2u + w.lane % 2u * 2u;
    if (other_map()) {
        row = w.lane / 4u;
        column = w.lane % 4u * 2u;
    }
    const u32 (*all)[2] = emu_pairs(w.fiber, a.x | (u32)a.y << 16, b.x | (u32)b.y << 16);
    float x = c.x, y = c.y;
    for (u32 k = 0; k < 8u; k++) {
        u32 of_a = all[lane_of(row, k)][0] >> 16u * (k % 2u), of_b = all[lane_of(k, column)][1];
        float v = whole(of_a & 0xFFFFu);
        x += v * whole(of_b & 0xFFFFu);
        y += v * whole(of_b >> 16);
    }
    if (x != (float)(int)x || __builtin_fabsf(x) >= 16777216.0f)
        refuse("a sum is no small integer", x);
    if (y != (float)(int)y || __builtin_fabsf(y) >= 16777216.0f)
        refuse("a sum is no small integer", y);
    d->x = x;
    d->y = y;
}

/* ---- in place of emu_call.c ---- */

template <typename T> static T in_space(const void *p)
{
    return (T)(ulong)p;
}

#define BUF(i) in_space<device u8 *>(bufs[i])
#define X(name, args_of)                                                                                                  \
    static __attribute__((noinline)) void call_##name(const struct emu_at &at, const union gpu_args *args, void *const *bufs, u32 *shm) \
    {                                                                                                                     \
        plainsong_##name(*in_space<constant struct args_of##_args *>(&args->args_of##_), BUF(0), BUF(1), BUF(2), BUF(3), BUF(4), BUF(5), \
                         BUF(6), BUF(7), BUF(8), BUF(9), BUF(10), BUF(11), BUF(12), BUF(13), BUF(14), BUF(15),            \
                         in_space<threadgroup u32 *>(shm), at.group, at.n_groups, at.simd, at.lane);                      \
    }
GPU_KERNELS(X)
#undef X

void emu_call(enum gpu_kernel which, struct emu_at at, const union gpu_args *args, void *const *bufs, u32 *shm)
{
    here = at.fiber;
    here_lane = at.lane;
    flush_denormals(true);
    switch (which) {
#define X(name, args_of)                       \
    case GK_##name:                            \
        call_##name(at, args, bufs, shm);      \
        break;
        GPU_KERNELS(X)
#undef X
    case GK_COUNT:
        break;
    }
    flush_denormals(false);
}

const char *emu_name(enum gpu_kernel which)
{
    switch (which) {
#define X(name, args_of) \
    case GK_##name:      \
        return "plainsong_" #name;
        GPU_KERNELS(X)
#undef X
    case GK_COUNT:
        break;
    }
    return "?";
}
