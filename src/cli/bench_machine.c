/* How fast this machine's memory is read: all threads stream over a buffer that no cache holds, each
 * at eight places at once and asking ahead, since one stream a core leaves half of what the memory
 * gives (10-18 GB/s against 26-30 on two cores of a Xeon at 2.80 GHz). Only the best of many short passes
 * counts, since whatever else runs here can only make it slower. */
#include "base/pool.h"
#include "cli/bench.h"

#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

enum {
    PART_BYTES = 1 << 20, /* a task: long against a claim */
    PLACES = 8,           /* read side by side in a part */
    AHEAD_BYTES = 512,
    SLICE_BYTES =
        32 << 20, /* timed together: a millisecond, which other programs may well leave alone */
    LEAST_BYTES = 256 << 20,
    MOST_BYTES = 1 << 30,
    PASSES = 4
};

static void find_cpu(char *out, size_t size)
{
    snprintf(out, size, "unknown CPU");
#ifdef __APPLE__
    size_t n = size;
    sysctlbyname("machdep.cpu.brand_string", out, &n, NULL, 0);
#else
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        char *at = strchr(line, ':');
        if (!at || strncmp(line, "model name", 10))
            continue;
        at[1 + strcspn(at + 1, "\n")] = 0;
        snprintf(out, size, "%.120s", at + 2);
        break;
    }
    if (f)
        fclose(f);
#endif
}

static u64 find_cache(void)
{
    long n = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    n = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (n <= 0)
        n = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return n > 0 ? (u64)n : 0;
}

int bench_machine_open(struct bench_machine *m, u32 n_threads, const struct ps_stats *stats, struct err *err)
{
    *m = (struct bench_machine){.peak_gb_s = stats->peak_gb_s};
    find_cpu(m->cpu, sizeof m->cpu);
    if (strcmp(stats->device, "cpu") != 0)
        return 0;
    m->cache_bytes = find_cache();
    m->bytes =
        min_u64(4 * m->cache_bytes > LEAST_BYTES ? 4 * m->cache_bytes : LEAST_BYTES, MOST_BYTES);
    m->bytes = round_up_u64(m->bytes, SLICE_BYTES);
    m->at = mem_alloc(m->bytes);
    if (!m->at)
        return err_set(err, "out of memory: %llu bytes to measure reading",
                       (unsigned long long)m->bytes);
    memset(m->at, 1, m->bytes); /* zero pages may all be one */
    return pool_open(&m->pool, n_threads, err);
}

void bench_machine_close(struct bench_machine *m)
{
    pool_close(m->pool);
    mem_free(m->at, m->bytes);
}

typedef u64 line __attribute__((vector_size(64)));

struct slice {
    const struct bench_machine *machine;
    u32 first; /* part */
};

static void read_part(void *arg, u32 task, u32 thread)
{
    (void)thread;
    const struct slice *s = arg;
    const u8 *at = s->machine->at + (u64)(s->first + task) * PART_BYTES;
    line sum[PLACES] = {{0}};
    for (u32 i = 0; i < PART_BYTES / PLACES; i += sizeof(line))
        for (u32 k = 0; k < PLACES; k++) {
            const u8 *here = at + k * (PART_BYTES / PLACES) + i;
            __builtin_prefetch(here + AHEAD_BYTES);
            sum[k] ^= *(const line *)here;
        }
    __asm__ volatile("" ::"m"(sum)); /* the result is wanted */
}

void bench_machine_measure(struct bench_machine *m)
{
    struct slice s = {m, 0};
    if (!m->pool)
        return;
    for (u32 i = 0; i < PASSES * m->bytes / SLICE_BYTES; i++) {
        double t0 = time_now();
        pool_run(m->pool, SLICE_BYTES / PART_BYTES, read_part, &s);
        double gb_s = 1e-9 * SLICE_BYTES / (time_now() - t0);
        m->peak_gb_s = gb_s > m->peak_gb_s ? gb_s : m->peak_gb_s;
        s.first = (s.first + SLICE_BYTES / PART_BYTES) % (u32)(m->bytes / PART_BYTES);
    }
}
