/* The start-up self-test (docs/numerics.md, rule 15): every word of gpu/k_probe.h on the device and here, over inputs where a wrong compiler
 * switch, a flushed denormal or an approximate instruction shows. What is expected is computed from base/exact.h and from the
 * definitions in gpu/gpu.h, not by the emulator's functions: they are tested too. */
#include "device/dev_gpu.h"

#define KERNEL_FILE 12
#include "gpu/k_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_EACH = 1024, WORDS_IN = 3 * COUNT_EACH * PROBE_COUNT, WORDS_OUT = COUNT_EACH * PROBE_COUNT };
_Static_assert(COUNT_EACH * PROBE_HALVES == 65536, "every half is met");

static const char *const WHAT[] = {
#define X(name, what) what,
    GPU_PROBES(X)
#undef X
};

/* ---- inputs ---- */

static u32 next(u32 *state)
{
    *state = *state * 1664525u + 1013904223u;
    return probe_mix(*state, 7);
}

/* Either sign, exponent of 2 in [-span, span]: what comes of it is neither denormal nor infinite. */
static u32 some_float(u32 *state, u32 span)
{
    u32 e = 127 - span + next(state) % (2 * span + 1);
    return (next(state) & 0x807FFFFFu) | e << 23;
}

static u32 uniform(u32 *state, float low, float high)
{
    return EX_BITS(low + (high - low) * ex_unit(next(state)));
}

/* Products whose rounding error is all that is left of a sum: contracted or not, that is the question. */
static void fill_products(u32 *in, u32 i, u32 *state)
{
    in[0] = some_float(state, 20);
    in[1] = some_float(state, 20);
    in[2] = some_float(state, 20);
    if (i % 2) {
        float product = EX_FLOAT(in[0]) * EX_FLOAT(in[1]);
        in[2] = EX_BITS(product) ^ (i / 2 % 2 ? 0x80000000u : 0u);
    }
}

/* NaNs, infinities, denormals, zeros. */
static const u32 ODD[8] = {0x7FC00000, 0xFFA00001, 0x7F800000, 0xFF800000, 0x00000001, 0x807FFFFF, 0x00000000, 0x80000000};

static void fill(u32 *in, enum gpu_probe p, u32 i, u32 *state)
{
    for (u32 k = 0; k < 3; k++)
        in[k] = next(state);
    switch (p) {
    case PROBE_FMA:
    case PROBE_MUL_ADD:
    case PROBE_MUL_SUB: fill_products(in, i, state); break;
    case PROBE_DIV:
        in[0] = some_float(state, 60);
        in[1] = i % 8 ? some_float(state, 60) : EX_BITS(127.0f); /* rule 1's */
        break;
    case PROBE_SQRT: in[0] = some_float(state, 120) & 0x7FFFFFFFu; break;
    case PROBE_MAGIC: /* halves: ties to the even side; then anything */
        in[0] = i % 2 ? EX_BITS((float)(i32)(next(state) % 8192) - 4095.5f) : uniform(state, -2e6f, 2e6f);
        break;
    case PROBE_FLOAT: in[0] = (u32)((i32)(next(state) % 33554433u) - 16777216); break;
    case PROBE_FLUSH: /* the bound; and what a select may not lose, a multiplication may: NaN, denormals */
        in[0] = i >= 8 ? EX_BITS(EX_TINY) - 512 + i : ODD[i];
        break;
    case PROBE_ROUND11: /* ties, and beside them */
        in[0] = (some_float(state, 60) & 0x7FFFE000u) + 0xFFFu + i % 3;
        break;
    case PROBE_HALF:
    case PROBE_TO_HALF: in[0] = i * PROBE_HALVES; break;
    case PROBE_EXP: in[0] = i >= 8 ? uniform(state, -100.0f, 90.0f) : ODD[i]; break;
    case PROBE_LOG: in[0] = some_float(state, 120) & 0x7FFFFFFFu; break;
    case PROBE_SPLIT: /* quotients near a whole number */
        in[1] = 1 + next(state) % (i % 4 ? 4096u : 16777215u);
        in[0] = next(state) % (16777215u / in[1] + 1) * in[1];
        in[0] += in[0] && i % 3 == 0 ? ~0u : 0u;
        break;
    case PROBE_TREE: in[0] = some_float(state, 12); break;
    default: break;
    }
}

/* ---- what is expected ---- */

static i32 byte_of(const u32 *words, u32 i, bool is_signed)
{
    u32 byte = words[i / 4] >> 8 * (i % 4) & 0xFFu;
    return is_signed ? (i8)byte : (i32)byte;
}

/* A SIMD group's tile by its definition (gpu.h): element e of row r of A is in lane 4 (r % 8) + e / 4 % 4, word r / 8 + 2 (e / 16). */
static void expect_tile(u32 *out, enum gpu_probe p, const u32 *in)
{
    u32 a[16][8] = {0}, b[8][8] = {0}, n = p == PROBE_TILE_16 ? 16 : 32;
    for (u32 lane = 0; lane < 32; lane++) {
        u32 g = lane / 4, t = lane % 4;
        const u32 *x = in + 3 * lane;
        for (u32 half = 0; half < 2; half++) {
            a[g][4 * half + t] = probe_mix(x[0], 2 * half);
            a[g + 8][4 * half + t] = probe_mix(x[0], 2 * half + 1);
            b[g][4 * half + t] = probe_mix(x[1 + half], 4 + half);
        }
    }
    for (u32 lane = 0; lane < 32; lane++) {
        const u32 *x = in + 3 * lane, times[4] = {1, 3, 5, 7};
        u32 start[4] = {x[0] >> 8, x[1] >> 8, x[2] >> 8, (u32)-5};
        out[lane] = 0;
        for (u32 k = 0; k < 4; k++) {
            u32 row = lane / 4 + k / 2 * 8, column = 2 * (lane % 4) + k % 2;
            i32 sum = 0;
            for (u32 e = 0; e < n; e++)
                sum += byte_of(a[row], e, p != PROBE_TILE_U) * byte_of(b[column], e, true);
            out[lane] += times[k] * (start[k] + (u32)sum);
        }
    }
}

static void expect_simd(u32 *out, const u32 *in)
{
    u32 most = 0, sum = 0, votes = 0;
    for (u32 l = 0; l < 32; l++) {
        most = in[3 * l] > most ? in[3 * l] : most;
        sum += in[3 * l + 1] >> 6;
        votes |= (in[3 * l + 2] & 1u) << l;
    }
    for (u32 l = 0; l < 32; l++)
        out[l] = most ^ sum * 3u ^ votes * 5u ^ in[3 * (l ^ 5) + 2] * 7u ^ in[3 * (31 - l)] * 9u;
}

static void expect_tree(u32 *out, const u32 *in)
{
    float v[32];
    for (u32 l = 0; l < 32; l++)
        v[l] = EX_FLOAT(in[3 * l]);
    for (u32 half = 16; half; half /= 2)
        for (u32 l = 0; l < half; l++)
            v[l] += v[l + half];
    for (u32 l = 0; l < 32; l++)
        out[l] = probe_bits(v[0]);
}

static u32 expect_halves(u32 from)
{
    u32 sum = 0;
    for (u32 i = 0; i < PROBE_HALVES; i++)
        sum = sum * 31u + probe_bits(ex_half((from + i) & 0xFFFFu));
    return sum;
}

static u32 expect_dot(const u32 *in)
{
    u32 sum = in[2];
    for (u32 i = 0; i < 4; i++)
        sum += (u32)(byte_of(in, i, true) * byte_of(in + 1, i, true));
    return sum;
}

static u32 expect_one(enum gpu_probe p, const u32 *in)
{
    float a = EX_FLOAT(in[0]), b = EX_FLOAT(in[1]), c = EX_FLOAT(in[2]), ab = a * b;
    switch (p) {
    case PROBE_FMA: return probe_bits(fmaf(a, b, c));
    case PROBE_MUL_ADD: return probe_bits(ab + c);
    case PROBE_MUL_SUB: return probe_bits(c - ab);
    case PROBE_DIV: return probe_bits(a / b);
    case PROBE_SQRT: return probe_bits(sqrtf(a));
    case PROBE_MAGIC: return probe_bits((a + EX_MAGIC) - EX_MAGIC);
    case PROBE_FLOAT: return probe_bits((float)(i32)in[0]);
    case PROBE_FLUSH: return probe_bits(ex_flush(a));
    case PROBE_ROUND11: return probe_bits(ex_round11(a));
    case PROBE_HALF: return expect_halves(in[0]);
    case PROBE_TO_HALF: return probe_to_halves(in[0]);
    case PROBE_EXP: return probe_bits(ex_exp(a));
    case PROBE_LOG: return probe_bits(ex_log(a));
    case PROBE_DOT4: return expect_dot(in);
    case PROBE_POPCOUNT: return (u32)__builtin_popcount(in[0]);
    case PROBE_WIDE: return probe_wide(in[0], in[1], in[2]);
    case PROBE_SPLIT: return in[0] / in[1] * 0x10001u + in[0] % in[1] * 3u;
    default: return 0;
    }
}

/* Of 32 inputs that follow each other. */
static void expect(u32 out[32], enum gpu_probe p, const u32 *in)
{
    if (p == PROBE_TILE_U || p == PROBE_TILE_S || p == PROBE_TILE_16)
        expect_tile(out, p, in);
    else if (p == PROBE_SIMD)
        expect_simd(out, in);
    else if (p == PROBE_TREE)
        expect_tree(out, in);
    else
        for (u32 i = 0; i < 32; i++)
            out[i] = expect_one(p, in + 3 * i);
}

/* ---- the test ---- */

static int run_probe(const struct gpu_backend *b, void *self, const u32 *in, u32 *out, struct err *err)
{
    u64 base;
    void *program = NULL;
    u64 in_bytes = WORDS_IN * sizeof *in, out_bytes = WORDS_OUT * sizeof *out;
    if (b->alloc(self, in_bytes + out_bytes, &base, err))
        return -1;
    struct gpu_ref to = {base, 0}, from = {base, in_bytes};
    struct gpu_launch l = {.kernel = GK_probe, .n_groups = 8, .n_bufs = 2, .bufs = {to, from}};
    l.args.probe_.count = COUNT_EACH;
    if (b->prepare(self, &l, 1, true, &program, err))
        return -1;
    int status = b->submit(self, program, to, in, in_bytes, out, from, out_bytes, err) || b->wait(self, err) ? -1 : 0;
    b->discard(self, program);
    return status;
}

/* Names in `bad`, with commas between, as many as fit. */
static void name(char *bad, size_t n, const char *what)
{
    size_t used = strlen(bad);
    if (used + 2 + strlen(what) < n)
        snprintf(bad + used, n - used, "%s%s", used ? ", " : "", what);
}

int gpu_selftest(const struct gpu_backend *b, void *self, char *bad, size_t n, struct err *err)
{
    u32 *in = mem_array(WORDS_IN, sizeof *in), *out = mem_array(WORDS_OUT, sizeof *out), state = 20260101;
    int status = in && out ? 0 : err_set(err, "out of memory");
    bad[0] = 0;
    for (u32 i = 0; i < WORDS_OUT && !status; i++)
        fill(in + 3 * i, (enum gpu_probe)(i / COUNT_EACH), i % COUNT_EACH, &state);
    if (!status)
        status = run_probe(b, self, in, out, err);
    for (u32 p = 0; p < PROBE_COUNT && !status; p++) {
        bool same = true;
        for (u32 i = p * COUNT_EACH; i < (p + 1) * COUNT_EACH; i += 32) {
            u32 wish[32];
            expect(wish, (enum gpu_probe)p, in + 3 * i);
            same &= !memcmp(wish, out + i, sizeof wish);
        }
        if (!same)
            name(bad, n, WHAT[p]);
    }
    free(in);
    free(out);
    return status;
}
