/* How fast each kernel is: GB/s of the file's weights and GMAC/s, beside what this machine's memory and multipliers give.
 * Not a test. Times are CPU time of the calling thread, the best of several runs, so that other programs on the same cores
 * disturb as little as they can; instruction sets alternate within a run.
 *
 *   check_bench [NAME [ISA [M]]]    NAME: q4_0 ... bf16, rows, attend, pack, machine or all; ISA, M: only that one
 */
#include "check.h"

#include <time.h>

#include "kernel/kernel.h"
#include "kernel/pack.h"
#include "kernel/tables.h"

enum { N_IN = 2048, COLD_BYTES = 96 << 20, WARM_BYTES = 1 << 20, MAX_M = 64, RUNS = 5 };

static const u32 MS[] = {1, 2, 4, 8, 16, 33, 64};
static const char *isas[16];
static const struct kernels *tables[16]; /* asked for once: cpuid traps in a virtual machine */
static u32 n_isas;
static const char *only_isa;
static u32 only_m;

static double cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool wanted(u32 isa)
{
    return !only_isa || !strcmp(only_isa, isas[isa]);
}

/* ---- the machine ---- */

static double read_gb_s, peak_gmac_s[16]; /* of one thread; peak by instruction set, 0: not measured */

typedef u64 line __attribute__((vector_size(64)));

/* Eight streams: one leaves half of what the memory gives to a core. */
static void measure_reading(void)
{
    enum { PLACES = 8, PART = 1 << 20, AHEAD = 512 };
    u8 *at = mem_alloc(COLD_BYTES);
    memset(at, 1, COLD_BYTES);
    for (u32 run = 0; run < 3 * COLD_BYTES / PART; run += 8) {
        double t = cpu_now();
        for (u32 part = 0; part < 8; part++) {
            const u8 *from = at + (u64)((run + part) % (COLD_BYTES / PART)) * PART;
            line sum[PLACES] = {{0}};
            for (u32 i = 0; i < PART / PLACES; i += sizeof(line))
                for (u32 k = 0; k < PLACES; k++) {
                    const u8 *here = from + k * (PART / PLACES) + i;
                    __builtin_prefetch(here + AHEAD);
                    sum[k] ^= *(const line *)here;
                }
            __asm__ volatile("" ::"m"(sum));
        }
        double gb_s = 1e-9 * 8 * PART / (cpu_now() - t);
        read_gb_s = gb_s > read_gb_s ? gb_s : read_gb_s;
    }
    mem_free(at, COLD_BYTES);
}

#if defined(__x86_64__)
/* Twelve chains in registers of the instructions that an instruction set's dots are made of, 1000 times. */
#define TWELVE(one) one("0") one("1") one("2") one("3") one("4") one("5") one("6") one("7") one("8") one("9") one("10") one("11")
#define PEAK(name, one)                                                                                                \
    static void name(void)                                                                                             \
    {                                                                                                                  \
        u64 n = 1000;                                                                                                  \
        __asm__ volatile("1:\n" TWELVE(one) "dec %0\njnz 1b\nvzeroupper"                                             \
                         : "+r"(n)::"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",   \
                           "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "cc");                                         \
    }
#define DOT_512(r) "vpdpbusd %%zmm14, %%zmm13, %%zmm" r "\n"
#define DOT_256(r) "%{vex%} vpdpbusd %%ymm14, %%ymm13, %%ymm" r "\n"
/* q4 products: pairs of bytes to 16 bits, added up there. */
#define PAIRS_512(r) "vpmaddubsw %%zmm14, %%zmm13, %%zmm12\nvpaddw %%zmm12, %%zmm" r ", %%zmm" r "\n"
#define PAIRS_256(r) "vpmaddubsw %%ymm14, %%ymm13, %%ymm12\nvpaddw %%ymm12, %%ymm" r ", %%ymm" r "\n"
PEAK(peak_dot_512, DOT_512)
PEAK(peak_dot_256, DOT_256)
PEAK(peak_pairs_512, PAIRS_512)
PEAK(peak_pairs_256, PAIRS_256)

static const struct {
    const char *isa, *what;
    void (*run)(void);
    u32 macs;
} PEAKS[] = {{"avx2", "vpmaddubsw + vpaddw, 32 bytes", peak_pairs_256, 32},
             {"avxvnni", "vpdpbusd, 32 bytes", peak_dot_256, 32},
             {"avx512", "vpmaddubsw + vpaddw, 64 bytes", peak_pairs_512, 64},
             {"avx512vnni", "vpdpbusd, 64 bytes", peak_dot_512, 64}};

static void measure_peaks(void)
{
    for (u32 i = 0; i < COUNT(PEAKS); i++)
        for (u32 k = 0; k < n_isas; k++)
            for (u32 run = 0; run < 200 && !strcmp(isas[k], PEAKS[i].isa); run++) {
                double t = cpu_now();
                for (u32 j = 0; j < 20; j++)
                    PEAKS[i].run();
                double gmac_s = 1e-9 * 20 * 12000.0 * PEAKS[i].macs / (cpu_now() - t);
                peak_gmac_s[k] = gmac_s > peak_gmac_s[k] ? gmac_s : peak_gmac_s[k];
            }
}

static const char *peak_of(const char *isa)
{
    for (u32 i = 0; i < COUNT(PEAKS); i++)
        if (!strcmp(isa, PEAKS[i].isa))
            return PEAKS[i].what;
    return "";
}
#else
static void measure_peaks(void) /* not written for other machines: shares are left out */
{
}

static const char *peak_of(const char *isa)
{
    (void)isa;
    return "";
}
#endif

static void print_machine(void)
{
    printf("machine: %.1f GB/s read from memory by one thread\n", read_gb_s);
    for (u32 k = 0; k < n_isas; k++)
        if (peak_gmac_s[k] > 0)
            printf("machine: %-11s %.0f GMAC/s at most by one thread (%s)\n", isas[k], peak_gmac_s[k], peak_of(isas[k]));
}

/* "  87 % of reading    6 % of the peak": what a product's figures are of the machine's. NAN, INFINITY: does not apply. */
static void print_shares(u32 isa, double gb_s, double gmac_s)
{
    if (gb_s < 1.05 * read_gb_s) /* else from a cache */
        printf("  %3.0f %% of reading", 100 * gb_s / read_gb_s);
    if (gmac_s / peak_gmac_s[isa] < 2) /* neither is missing */
        printf("  %3.0f %% of the peak", 100 * gmac_s / peak_gmac_s[isa]);
    printf("\n");
}

/* ---- products ---- */

struct rows {
    float *x, *y, *d;
    i8 *q;
    i16 *sum;
    struct act act[MAX_M];
    const struct act *in[MAX_M];
    float *out[MAX_M];
};

static void make_rows(struct rows *r, u32 n_out)
{
    r->x = malloc(MAX_M * N_IN * sizeof *r->x);
    r->y = malloc((u64)MAX_M * n_out * sizeof *r->y);
    r->d = malloc(MAX_M * N_IN / 32 * sizeof *r->d);
    r->q = malloc(MAX_M * N_IN);
    r->sum = malloc(MAX_M * N_IN / 32 * sizeof *r->sum);
    for (u32 i = 0; i < MAX_M * N_IN; i++)
        r->x[i] = check_plain();
    for (u32 i = 0; i < MAX_M; i++) {
        u32 b = i * N_IN / 32;
        r->act[i] = (struct act){r->x + i * N_IN, r->q + i * N_IN, r->d + b, r->sum + b};
        r->in[i] = &r->act[i];
        r->out[i] = r->y + (u64)i * n_out;
        kernels_scalar.quantise(r->x + i * N_IN, N_IN, r->q + i * N_IN, r->d + b, r->sum + b);
    }
}

static void free_rows(struct rows *r)
{
    free(r->x);
    free(r->y);
    free(r->d);
    free(r->q);
    free(r->sum);
}

/* One pass over panels [p0, p1) in tasks of a few panels, as the device does it. */
static double time_mat(const struct kernels *k, enum dtype type, struct rows *r, u32 m, const u8 *w, u32 p0, u32 p1)
{
    u32 chunk = m < 16 ? 4 : 8;
    double t = cpu_now();
    for (u32 p = p0; p < p1; p += chunk)
        k->mat[type](r->out, r->in, m, w, N_IN, p, min_u32(p + chunk, p1));
    return cpu_now() - t;
}

static void bench_mat(enum dtype type)
{
    const struct dtype_info *t = dtype_info(type);
    u64 panel = pack_panel_bytes(type, N_IN), file = (u64)N_IN / t->block_elems * t->block_bytes * PANEL;
    u32 cold = (u32)(COLD_BYTES / panel), warm = (u32)(WARM_BYTES / panel);
    u8 *w = mem_alloc(panel * cold), *src = malloc(file);
    struct rows r;
    u32 bad;
    make_rows(&r, cold * PANEL);
    for (u64 i = 0; i < file; i++)
        src[i] = (u8)(check_u32() & 0x3B); /* any bits are finite scales */
    if (pack(type, src, N_IN, PANEL, w, 0, 1, &bad))
        fail_msg("bench: not finite");
    for (u32 p = 1; p < cold; p++)
        memcpy(w + p * panel, w, panel);
    for (u32 i = 0; i < COUNT(MS); i++) {
        if (only_m && only_m != MS[i])
            continue;
        bool big = MS[i] <= 16; /* rows of a decode step: weights come from memory; more: of a prompt, they stay */
        u32 n = big ? cold : warm;
        double best[16], macs = (double)n * PANEL * N_IN * MS[i];
        for (u32 k = 0; k < n_isas; k++)
            best[k] = 1e9;
        for (u32 run = 0; run < (big ? 24 : 60); run++)
            for (u32 k = 0; k < n_isas; k++) {
                if (!wanted(k) || (!strcmp(isas[k], "scalar") && !only_isa))
                    continue;
                u32 part = (run * n_isas + k) % 8; /* eighths in turn, each body another: never in the cache */
                u32 p0 = big ? n / 8 * part : 0, p1 = big ? p0 + n / 8 : n;
                double s = time_mat(tables[k], type, &r, MS[i], w, p0, p1) * n / (p1 - p0);
                best[k] = s < best[k] ? s : best[k];
            }
        for (u32 k = 0; k < n_isas; k++)
            if (best[k] < 1e9) {
                double gb_s = (double)n * (double)file / best[k] * 1e-9, gmac_s = macs / best[k] * 1e-9;
                printf("%-5s M=%-3u %-11s %6.1f GB/s %7.1f GMAC/s", t->name, MS[i], isas[k], gb_s, gmac_s);
                print_shares(k, big ? gb_s : INFINITY, t->quantised ? gmac_s : NAN);
            }
    }
    fflush(stdout);
    free_rows(&r);
    free(src);
    mem_free(w, panel * cold);
}

/* ---- rows ---- */

enum row_kernel { QUANTISE, RMSNORM, ROPE, SWIGLU, ADD, COMBINE, HALVES, ROW_KERNELS };
static const char *const ROW_NAMES[] = {"quantise", "rmsnorm", "rope", "swiglu", "add", "combine 8", "halves"};

static void run_row(const struct kernels *k, enum row_kernel which, float *y, const float *x, const float *w)
{
    static i8 q[N_IN];
    static float d[N_IN / 32];
    static i16 sum[N_IN / 32];
    switch (which) {
    case QUANTISE:
        k->quantise(x, N_IN, q, d, sum);
        break;
    case RMSNORM:
        k->rmsnorm(y, x, w, N_IN, 1e-6f);
        break;
    case ROPE:
        k->rope(y, w, N_IN, N_IN, true);
        break;
    case SWIGLU:
        k->swiglu(y, x, w, N_IN);
        break;
    case ADD:
        k->add(y, x, N_IN);
        break;
    case COMBINE:
        k->combine(y, (const float *const[]){x, w, x, w, x, w, x, w}, w, 8, N_IN);
        break;
    default:
        k->halves((u16 *)q, x, N_IN / 2); /* room for half as many */
        break;
    }
}

static void bench_rows(void)
{
    static float x[N_IN], y[N_IN], w[N_IN];
    for (u32 i = 0; i < N_IN; i++) {
        x[i] = check_plain();
        w[i] = check_plain() * 1e-3f;
    }
    for (u32 f = 0; f < ROW_KERNELS; f++)
        for (u32 k = 0; k < n_isas; k++) {
            double best = 1e9;
            for (u32 run = 0; wanted(k) && run < RUNS; run++) {
                double t = cpu_now();
                for (u32 i = 0; i < 500; i++)
                    run_row(tables[k], f, y, x, w);
                t = (cpu_now() - t) / 500;
                best = t < best ? t : best;
            }
            if (best < 1e9)
                printf("%-9s %-11s %7.2f elements/ns\n", ROW_NAMES[f], isas[k], N_IN / best * 1e-9);
        }
}

static void bench_attend(void)
{
    enum { D = 128, N = 256 };
    static u16 kk[N * D], v[N * D];
    static float q[D], o[D];
    float m, l;
    for (u32 i = 0; i < N * D; i++) {
        kk[i] = (u16)ex_to_half(check_plain());
        v[i] = (u16)ex_to_half(check_plain());
    }
    for (u32 i = 0; i < D; i++)
        q[i] = check_plain();
    for (u32 k = 0; k < n_isas; k++) {
        double best = 1e9;
        for (u32 run = 0; wanted(k) && run < RUNS; run++) {
            double t = cpu_now();
            for (u32 i = 0; i < 50; i++)
                tables[k]->attend_f16(o, &m, &l, q, kk, v, N, D, 0.1f);
            t = (cpu_now() - t) / 50;
            best = t < best ? t : best;
        }
        if (best < 1e9)
            printf("attend_f16 %-11s %6.1f GB/s of keys and values, %6.1f GMAC/s\n", isas[k], sizeof kk * 2 / best * 1e-9,
                   2.0 * N * D / best * 1e-9);
    }
}

/* Eight queries over one chunk: eight heads of a row, or of several rows of a prompt. */
static void bench_attend_many(bool q8)
{
    enum { D = 128, N = 256, Q = 8 };
    static u16 kk[N * D], v[N * D];
    static float q[Q * D], o[Q * D], d[Q * D / 32];
    static i8 qq[Q * D];
    static i16 sum[Q * D / 32];
    struct attend_query a[Q];
    for (u32 i = 0; i < N * D; i++) { /* plain halves, whose bytes are any integers too */
        kk[i] = (u16)ex_to_half(check_plain());
        v[i] = (u16)ex_to_half(check_plain());
    }
    for (u32 i = 0; i < Q * D; i++)
        q[i] = check_plain();
    kernels_scalar.quantise(q, Q * D, qq, d, sum);
    for (u32 r = 0; r < Q; r++)
        a[r] = (struct attend_query){.q = q + r * D, .act = {.q = qq + r * D, .d = d + r * D / 32, .sum = sum + r * D / 32},
                                     .o = o + r * D, .n_pos = N};
    for (u32 k = 0; k < n_isas; k++) {
        double best = 1e9;
        for (u32 run = 0; wanted(k) && run < 4 * RUNS; run++) {
            double t = cpu_now();
            for (u32 i = 0; i < 5; i++)
                if (q8)
                    tables[k]->attend_q8_many(a, Q, (const u8 *)kk, (const u8 *)v, D, 1e-4f);
                else
                    tables[k]->attend_f16_many(a, Q, kk, v, D, 0.1f);
            t = (cpu_now() - t) / 5;
            best = t < best ? t : best;
        }
        if (best < 1e9)
            printf("attend_%s_many %-11s %6.1f GMAC/s\n", q8 ? "q8" : "f16", isas[k], 2.0 * N * D * Q / best * 1e-9);
    }
}

static void bench_pack(void)
{
    static const enum dtype TYPES[] = {DT_Q4_0, DT_Q8_0, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_F32, DT_F16};
    for (u32 t = 0; t < COUNT(TYPES); t++) {
        const struct dtype_info *ti = dtype_info(TYPES[t]);
        u64 row = (u64)N_IN / ti->block_elems * ti->block_bytes, panel = pack_panel_bytes(TYPES[t], N_IN);
        u32 n_out = (16u << 20) / (u32)row / PANEL * PANEL, bad;
        u8 *src = malloc(row * n_out), *dst = malloc(panel * pack_panels(n_out));
        for (u64 i = 0; i < row * n_out; i++)
            src[i] = (u8)(check_u32() & 0x3B);
        double best = 1e9;
        for (u32 run = 0; run < RUNS; run++) {
            double s = cpu_now();
            if (pack(TYPES[t], src, N_IN, n_out, dst, 0, pack_panels(n_out), &bad))
                fail_msg("bench: not finite");
            s = cpu_now() - s;
            best = s < best ? s : best;
        }
        printf("pack %-5s %6.2f GB/s of the file by one thread\n", ti->name, (double)(row * n_out) / best * 1e-9);
        free(src);
        free(dst);
    }
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "all";
    bool all = !strcmp(name, "all");
    only_isa = argc > 2 ? argv[2] : NULL;
    only_m = argc > 3 ? (u32)atoi(argv[3]) : 0;
    n_isas = kernels_list(isas, COUNT(isas));
    for (u32 k = 0; k < n_isas; k++)
        tables[k] = kernels_choose(isas[k]);
    check_seed(1);
    measure_reading();
    measure_peaks();
    print_machine();
    for (u32 t = 0; t < DT_LIMIT; t++)
        if (dtype_info(t) && kernels_scalar.mat[t] && (all || !strcmp(name, dtype_info(t)->name)))
            bench_mat(t);
    if (all || !strcmp(name, "rows"))
        bench_rows();
    if (all || !strcmp(name, "attend")) {
        bench_attend();
        bench_attend_many(false);
        bench_attend_many(true);
    }
    if (all || !strcmp(name, "pack"))
        bench_pack();
    return 0;
}
