/* Which body this CPU runs. The table is ordered from plain to best; a name picks one, no name the last that works. */
#include "kernel/tables.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

struct choice {
    const struct kernels *table;
    bool (*runs)(void);
};

static bool runs_scalar(void)
{
    return true;
}

#if defined(__x86_64__)
/* All of x86-64-v3: what the compiler may use, not only what we think of. */
static bool runs_avx2(void)
{
    u32 a, b, c, d, more = 0;
    bool half = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && (c & bit_MOVBE);
    bool lzcnt = __get_cpuid(0x80000001, &a, &b, &more, &d) && (more & bit_LZCNT);
    return half && lzcnt && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

/* CPUID leaf 7, subleaf 1: EAX bit 4. */
static bool runs_avxvnni(void)
{
    u32 a, b, c, d;
    return runs_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

static bool runs_avx512(void)
{
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool runs_avx512vnni(void)
{
    return runs_avx512() && __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
#if defined(__APPLE__)
static bool has(const char *name)
{
    int value = 0;
    size_t bytes = sizeof value;
    return !sysctlbyname(name, &value, &bytes, NULL, 0) && value;
}

/* Every Mac with Arm runs armv8.2-a. */
static bool runs_neon_dotprod(void)
{
    return has("hw.optional.arm.FEAT_DotProd");
}

static bool runs_neon_i8mm(void)
{
    return runs_neon_dotprod() && has("hw.optional.arm.FEAT_I8MM");
}
#else
/* Bits of Linux's <asm/hwcap.h>, some younger than the headers found: CRC32 7, ATOMICS 8, ASIMDRDM 12, ASIMDDP 20;
 * I8MM is 13 of the second word. The first three are what armv8.2-a lets the compiler use besides. */
static bool runs_neon_dotprod(void)
{
    const unsigned long need = 1ul << 7 | 1ul << 8 | 1ul << 12 | 1ul << 20;
    return (getauxval(AT_HWCAP) & need) == need;
}

static bool runs_neon_i8mm(void)
{
    return runs_neon_dotprod() && (getauxval(AT_HWCAP2) & 1ul << 13);
}
#endif
#endif

static const struct choice CHOICES[] = {
    {&kernels_scalar, runs_scalar},
#if defined(__x86_64__)
    {&kernels_avx2, runs_avx2},
    {&kernels_avxvnni, runs_avxvnni},
    {&kernels_avx512, runs_avx512},
    {&kernels_avx512vnni, runs_avx512vnni},
#elif defined(__aarch64__)
    {&kernels_neon, runs_scalar}, /* part of every 64-bit Arm */
    {&kernels_neon_dotprod, runs_neon_dotprod},
    {&kernels_neon_i8mm, runs_neon_i8mm},
#endif
};

const struct kernels *kernels_choose(const char *isa)
{
    const struct kernels *found = NULL;
    for (u32 i = 0; i < COUNT(CHOICES); i++)
        if ((!isa || !strcmp(isa, CHOICES[i].table->isa)) && CHOICES[i].runs())
            found = CHOICES[i].table;
    return found;
}

u32 kernels_list(const char **names, u32 max)
{
    u32 n = 0;
    for (u32 i = 0; i < COUNT(CHOICES) && n < max; i++)
        if (CHOICES[i].runs())
            names[n++] = CHOICES[i].table->isa;
    return n;
}
