/* The words that every kernel's bits rest on, each for itself, for the start-up self-test (docs/numerics.md, rule 15): the
 * host computes the same from the same inputs (device/gpu_selftest.c) and compares. No shared memory.
 *
 * 0 in: (probe, count) three words, 1 out: (probe, count) one word. A SIMD group takes 32 inputs that follow each other. */

/* X(NAME, what a person is told) */
#define GPU_PROBES(X)                                        \
    X(FMA, "fused multiply-add")                             \
    X(MUL_ADD, "a * b + c in two roundings")                 \
    X(MUL_SUB, "c - a * b in two roundings")                 \
    X(DIV, "division")                                       \
    X(SQRT, "square root")                                   \
    X(MAGIC, "rounding to an integer")                       \
    X(FLOAT, "integer to float")                             \
    X(FLUSH, "flushing of small numbers")                    \
    X(ROUND11, "rounding to 11 bits")                        \
    X(HALF, "half to float")                                 \
    X(TO_HALF, "float to half")                              \
    X(EXP, "exp")                                            \
    X(LOG, "log")                                            \
    X(DOT4, "dot product of bytes")                          \
    X(POPCOUNT, "population count")                          \
    X(SPLIT, "quotient and remainder")                       \
    X(WIDE, "integers of 64 bits")                           \
    X(SIMD, "SIMD group's maximum, sum, ballot and shuffle") \
    X(TREE, "SIMD group's tree of sums")                     \
    X(TILE_U, "tile of unsigned by signed bytes")            \
    X(TILE_S, "tile of signed bytes")                        \
    X(TILE_16, "tile of 16 signed bytes")

enum gpu_probe {
#define X(name, what) PROBE_##name,
    GPU_PROBES(X)
#undef X
    PROBE_COUNT
};

enum { PROBE_HALVES = 64 }; /* that one input goes through */

/* Many words out of one input. */
KFN u32 probe_mix(u32 x, u32 k)
{
    x = (x ^ k * 0x9E3779B9u) * 0x85EBCA6Bu;
    x ^= x >> 13;
    x *= 0xC2B2AE35u;
    return x ^ x >> 16;
}

/* NaNs count as one: which one comes out is not part of the contract. */
KFN u32 probe_bits(float x)
{
    u32 u = EX_BITS(x);
    return (u & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC00000u : u;
}

KFN u32 probe_halves(u32 from)
{
    u32 sum = 0;
    for (u32 i = 0; i < PROBE_HALVES; i++)
        sum = sum * 31u + probe_bits(half_value((from + i) & 0xFFFFu));
    return sum;
}

/* Each half's value, the tie above it and that tie's neighbours, back to halves. */
KFN u32 probe_to_halves(u32 from)
{
    u32 sum = 0;
    for (u32 i = 0; i < PROBE_HALVES; i++) {
        u32 bits = EX_BITS(ex_half((from + i) & 0xFFFFu));
        sum = sum * 31u + half_bits(EX_FLOAT(bits));
        for (u32 k = 0xFFFu; k < 0x1002u; k++)
            sum = sum * 31u + half_bits(EX_FLOAT(bits + k));
    }
    return sum;
}

/* Sums, products, shifts and orders of numbers of 64 bits. */
KFN u32 probe_wide(u32 x, u32 y, u32 z)
{
    u64 a = (u64)x << 32 | y, b = ((u64)z << 24) - y, c = a * 3u + b, d = c >> (z & 63u);
    return (u32)d ^ (u32)(d >> 32) * 3u ^ (a < b ? 5u : 0u) ^ (c >= a ? 9u : 0u);
}

KFN u32 probe_tile(struct at at, enum gpu_probe p, u32 x, u32 y, u32 z)
{
    i32 c[4] = {(i32)(x >> 8), (i32)(y >> 8), (i32)(z >> 8), -5};
    u32 a[4], b[2 * TILE_COLS];
    UNROLL
    for (u32 i = 0; i < 4; i++)
        a[i] = probe_mix(x, i);
    UNROLL
    for (u32 i = 0; i < TILE_COLS; i++) { /* words w and 4 + w of column c are of lane 4 c + w's making */
        u32 lane = 4u * tile_col(at, i) + tile_word(at);
        b[i] = probe_mix(shuffle_from(at, y, lane), 4);
        b[TILE_COLS + i] = probe_mix(shuffle_from(at, z, lane), 5);
    }
    if (p == PROBE_TILE_U)
        tile_u(at, c, a, b);
    else if (p == PROBE_TILE_S)
        tile_s(at, c, a, b);
    else
        tile_16(at, c, a[0], a[1], b);
    return (u32)c[0] + 3u * (u32)c[1] + 5u * (u32)c[2] + 7u * (u32)c[3];
}

KFN u32 probe_simd(struct at at, u32 x, u32 y, u32 z)
{
    u32 most = simd_max_u32(at, x), sum = (u32)simd_sum_i32(at, (i32)(y >> 6)), votes = simd_ballot(at, z & 1u);
    u32 other = shuffle_xor(at, z, 5), from = shuffle_from(at, x, 31u - at.lane);
    return most ^ sum * 3u ^ votes * 5u ^ other * 7u ^ from * 9u;
}

KFN u32 probe_one(struct at at, enum gpu_probe p, u32 x, u32 y, u32 z)
{
    float a = EX_FLOAT(x), b = EX_FLOAT(y), c = EX_FLOAT(z);
    u32 rest = 0, quotient;
    switch (p) {
    case PROBE_FMA: return probe_bits(EX_FMA(a, b, c));
    case PROBE_MUL_ADD: return probe_bits(a * b + c);
    case PROBE_MUL_SUB: return probe_bits(c - a * b);
    case PROBE_DIV: return probe_bits(div_rn(a, b));
    case PROBE_SQRT: return probe_bits(sqrt_rn(a));
    case PROBE_MAGIC: return probe_bits((a + EX_MAGIC) - EX_MAGIC);
    case PROBE_FLOAT: return probe_bits((float)(i32)x);
    case PROBE_FLUSH: return probe_bits(ex_flush(a));
    case PROBE_ROUND11: return probe_bits(ex_round11(a));
    case PROBE_HALF: return probe_halves(x);
    case PROBE_TO_HALF: return probe_to_halves(x);
    case PROBE_EXP: return probe_bits(ex_exp(a));
    case PROBE_LOG: return probe_bits(ex_log(a));
    case PROBE_DOT4: return (u32)dot4(x, y, (i32)z);
    case PROBE_POPCOUNT: return popcount(x);
    case PROBE_SPLIT: quotient = split_u32(x, y, &rest); return quotient * 0x10001u + rest * 3u;
    case PROBE_WIDE: return probe_wide(x, y, z);
    case PROBE_SIMD: return probe_simd(at, x, y, z);
    case PROBE_TREE: return probe_bits(simd_tree(at, a));
    default: return probe_tile(at, p, x, y, z);
    }
}

KFN void k_probe(struct at at, CON const struct probe_args *a, struct bufs b, SHM u32 *shm)
{
    DEV const u32 *in = (DEV const u32 *)b.p[0];
    DEV u32 *out = (DEV u32 *)b.p[1];
    u32 blocks = a->count / 32u;
    (void)shm;
    NO_UNROLL
    for (u32 p = 0; p < PROBE_COUNT; p++)
        NO_UNROLL
        for (u32 block = at.group * GPU_SIMDS + at.simd; block < blocks; block += at.n_groups * GPU_SIMDS) {
            u32 i = p * a->count + block * 32u + at.lane;
            out[i] = probe_one(at, (enum gpu_probe)p, in[3u * i], in[3u * i + 1u], in[3u * i + 2u]);
        }
}
