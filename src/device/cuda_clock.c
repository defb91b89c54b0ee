/* A step's times as a table. Contract: cuda_clock.h. */
#include "device/cuda_clock.h"

#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>

enum { MARK_ASKS = 1, MARK_TURN = 2, MARK_TURN_NS = 14, MARK_END = 15, LATE_NS = 1000 };

struct table {
    const struct gpu_launch *list;
    u32 n, stride;
    const u64 *at;
};

struct span {
    u64 begin, end;
};

static const char *name_of(enum gpu_kernel kernel)
{
    static const char *const NAMES[GK_COUNT] = {
#define X(name, args) #name,
        GPU_KERNELS(X)
#undef X
    };
    return NAMES[kernel];
}

static const u64 *group_at(const struct table *t, u32 launch, u32 group)
{
    return t->at + ((u64)launch * t->stride + group) * CUDA_CLOCK_WORDS;
}

static u64 mark_at(const struct table *t, u32 launch, u32 group, u32 simd, u32 mark)
{
    return group_at(t, launch, group)[2 + simd * GPU_MARK_WORDS + mark];
}

static struct span span_of(const struct table *t, u32 launch)
{
    const u64 *first = group_at(t, launch, 0);
    struct span s = {first[0], first[1]};
    for (u32 g = 1; g < t->list[launch].n_groups; g++) {
        s.begin = min_u64(s.begin, group_at(t, launch, g)[0]);
        s.end = group_at(t, launch, g)[1] > s.end ? group_at(t, launch, g)[1] : s.end;
    }
    return s;
}

/* Launches i and k are of one line. */
static bool alike(const struct table *t, u32 i, u32 k)
{
    bool first = i == 0 || k == 0;
    return t->list[i].kernel == t->list[k].kernel && (first ? i == k : t->list[i - 1].kernel == t->list[k - 1].kernel);
}

static int by_value(const void *a, const void *b)
{
    i64 x = *(const i64 *)a, y = *(const i64 *)b;
    return x < y ? -1 : x > y;
}

/* Cycles from the turn to the mark, of all SIMD groups of launches like i: how many there are, sorted. */
static u64 mark_values(const struct table *t, u32 i, u32 mark, i64 *v)
{
    u64 n = 0;
    for (u32 k = i; k < t->n; k++)
        for (u32 g = 0; alike(t, i, k) && g < t->list[k].n_groups; g++)
            for (u32 s = 0; s < GPU_SIMDS; s++) {
                u64 turn = mark_at(t, k, g, s, MARK_TURN), at = mark_at(t, k, g, s, mark);
                if (turn && at)
                    v[n++] = (i64)(at - turn);
            }
    qsort(v, n, sizeof *v, by_value);
    return n;
}

/* Groups that had their turn long after the launch before had ended: there was no room for them. Nanoseconds to the median group's turn: *turn, summed up. */
static u32 late_groups(const struct table *t, u32 launch, u64 before, i64 *v, double *turn)
{
    u32 late = 0;
    u64 n = 0;
    for (u32 g = 0; g < t->list[launch].n_groups; g++) {
        u64 at = mark_at(t, launch, g, 0, MARK_TURN_NS);
        if (!at)
            continue;
        v[n++] = (i64)(at - before);
        late += at > before + LATE_NS;
    }
    qsort(v, n, sizeof *v, by_value);
    *turn += n ? (double)v[n / 2] : 0;
    return late;
}

static void print_marks(const struct table *t, u32 i, u32 launches, i64 *v)
{
    double turn = 0, late = 0;
    for (u32 k = i ? i : 1; k < t->n; k++)
        if (alike(t, i, k))
            late += late_groups(t, k, span_of(t, k - 1).end, v, &turn);
    if (!mark_values(t, i, MARK_END, v))
        return;
    fprintf(stderr, "    turn %.0f ns after the end before, %.1f of %u groups late; cycles from the turn, median/98 %%:", turn / launches, late / launches,
            t->list[i].n_groups);
    for (u32 mark = 0; mark < GPU_MARK_WORDS; mark++) {
        u64 n = mark == MARK_TURN || mark == MARK_TURN_NS ? 0 : mark_values(t, i, mark, v);
        if (n)
            fprintf(stderr, " %u:%lld/%lld", mark, (long long)v[n / 2], (long long)v[n * 98 / 100]);
    }
    fputc('\n', stderr);
}

void cuda_clock_print(const struct gpu_launch *list, u32 n, u32 stride, const u64 *at)
{
    struct table t = {list, n, stride, at};
    u64 most = (u64)n * stride * GPU_SIMDS;
    i64 *v = malloc(most * sizeof *v);
    fprintf(stderr, "a step of %u launches, %.1f us from the first one's begin to the last one's end\n", n,
            1e-3 * (double)(span_of(&t, n - 1).end - span_of(&t, 0).begin));
    fprintf(stderr, "  %-18s %-18s %8s %11s %12s %9s\n", "kernel", "after", "launches", "us a launch", "us before it", "us in all");
    for (u32 i = 0; i < n; i++) {
        double busy = 0, gap = 0;
        u32 launches = 0;
        bool seen = false;
        for (u32 k = 0; k < i && !seen; k++)
            seen = alike(&t, k, i);
        for (u32 k = i; k < n && !seen; k++) {
            if (!alike(&t, i, k))
                continue;
            struct span s = span_of(&t, k);
            launches++;
            busy += 1e-3 * (double)(s.end - s.begin);
            gap += k ? 1e-3 * ((double)s.begin - (double)span_of(&t, k - 1).end) : 0;
        }
        if (seen)
            continue;
        fprintf(stderr, "  %-18s %-18s %8u %11.2f %12.2f %9.1f\n", name_of(list[i].kernel), i ? name_of(list[i - 1].kernel) : "", launches,
                busy / launches, gap / launches, busy + gap);
        if (v)
            print_marks(&t, i, launches, v);
    }
    free(v);
}
