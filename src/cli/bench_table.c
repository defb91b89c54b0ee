/* The figures as a person reads them: 80 columns, medians, least and most beside what matters. */
#include "cli/bench.h"

#include "cli/cost.h"

#include <string.h>

static void print_head(const struct bench_result *r, FILE *out)
{
    const struct bench_setup *s = r->setup;
    char device[160];
    fprintf(out, "%.60s, %s\n", r->model.name, r->model.arch);
    fprintf(out, "%s, %u x %u tokens of %s\n%.79s\n", cost_device(device, sizeof device, &r->stats),
            r->stats.n_slots, r->stats.n_ctx, r->stats.kv, r->machine->cpu);
    fprintf(out, "commit %s, seed %llu; %u prompt tokens a stream, %u generated, %u runs\n",
            r->commit, (unsigned long long)s->seed, s->prompt, s->gen, s->runs);
    if (r->stats.warning)
        fprintf(out, "warning: %s\n", r->stats.warning);
    if (r->machine->peak_gb_s > 0)
        fprintf(out, "memory: %.1f GB/s%s; ", r->machine->peak_gb_s,
                r->machine->pool ? " read by all threads" : "");
    fprintf(out, "loaded in %.2f s, %.2f GB/s\n", r->stats.load_s,
            r->stats.load_s > 0 ? 1e-9 * (double)r->model.file_bytes / r->stats.load_s : 0);
}

static void print_rates(const struct bench_result *r, FILE *out)
{
    fputs("\n              tok/s of all streams           one  with first  prompt    first\n"
          "  B path      median     least      most  stream       token   tok/s       ms\n",
          out);
    for (u32 i = 0; i < r->n_series; i++) {
        const struct bench_series *s = &r->series[i];
        struct bench_spread t = bench_figure(s, FIG_TOK_S);
        fprintf(out, "%3u %-6s %9.1f %9.1f %9.1f %7.1f %11.1f %7.0f %8.1f\n", s->streams,
                bench_path_names[s->path], t.median, t.min, t.max,
                bench_figure(s, FIG_STREAM_TOK_S).median, bench_figure(s, FIG_ALL_TOK_S).median,
                bench_figure(s, FIG_PROMPT_TOK_S).median, bench_figure(s, FIG_FIRST_MS).median);
    }
}

/* In so many columns; "-" when it is not known. */
static void print_known(FILE *out, double x, int columns, const char *unit)
{
    if (x > 0)
        fprintf(out, " %*.0f%s", columns, x, unit);
    else
        fprintf(out, " %*s%*s", columns, "-", (int)strlen(unit), "");
}

static void print_reading(const struct bench_result *r, FILE *out)
{
    double most = 0, peak = r->machine->peak_gb_s;
    fputs("\n              what a step reads and does                       roofline   logits\n"
          "  B path    rows  submits  experts      MB  GB/s of peak GMAC/s   tok/s     hash\n",
          out);
    for (u32 i = 0; i < r->n_series; i++) {
        const struct bench_series *s = &r->series[i];
        double bytes = bench_figure(s, FIG_BYTES).median, gb_s = bench_figure(s, FIG_GB_S).median,
               step = bench_figure(s, FIG_STEP_MS).median;
        most = bytes > most ? bytes : most;
        fprintf(out, "%3u %-6s %5.1f %8.1f %8.1f %7.1f %5.1f", s->streams,
                bench_path_names[s->path], bench_figure(s, FIG_ROWS).median,
                bench_figure(s, FIG_SUBMISSIONS).median, bench_figure(s, FIG_EXPERTS).median,
                1e-6 * bytes, gb_s);
        print_known(out, peak > 0 ? 100 * gb_s / peak : 0, 5, " %");
        fprintf(out, " %6.1f", step > 0 ? 1e-6 * bench_figure(s, FIG_MACS).median / step : 0);
        print_known(out, bench_roofline(r, s), 7, "");
        fprintf(out, " %08llx\n", (unsigned long long)s->hash & 0xFFFFFFFF);
    }
    if (most < (double)r->machine->cache_bytes)
        fputs("What a step reads fits this CPU's cache: memory is no roof here.\n", out);
}

static void print_phases(const struct bench_result *r, FILE *out)
{
    fputs("\n              ms of a step                                    setup + submit\n"
          "  B path       step    setup   submit      wait     tail           of step\n",
          out);
    for (u32 i = 0; i < r->n_series; i++) {
        const struct bench_series *s = &r->series[i];
        double setup = bench_figure(s, FIG_SETUP_MS).median,
               submit = bench_figure(s, FIG_SUBMIT_MS).median;
        double step = bench_figure(s, FIG_STEP_MS).median;
        fprintf(out, "%3u %-6s %9.3f %8.4f %8.4f %9.3f %8.4f          %6.2f %%\n", s->streams,
                bench_path_names[s->path], step, setup, submit, bench_figure(s, FIG_WAIT_MS).median,
                bench_figure(s, FIG_TAIL_MS).median, step > 0 ? 100 * (setup + submit) / step : 0);
    }
}

static void print_mixed(const struct bench_result *r, FILE *out)
{
    fprintf(out,
            "\nms between two tokens of a running stream, before and while a prompt of %u tokens\n"
            "is read; the ratio is that of p95s, its least and most over the runs beside it\n"
            "     before            while            p95 ratio               prompt      first\n"
            "  B     p50      p95      p50      p95  median  least   most     tok/s          s\n",
            r->setup->prompt);
    for (u32 i = 0; i < r->n_mixed; i++) {
        const struct bench_mixed *m = &r->mixed[i];
        struct bench_spread x[MIX_FIGURES];
        for (u32 k = 0; k < MIX_FIGURES; k++)
            x[k] = bench_spread(m->runs[k], m->n_runs);
        fprintf(out, "%3u %7.2f %8.2f %8.2f %8.2f %7.2f %6.2f %6.2f %9.1f %10.2f\n", m->streams,
                x[MIX_IDLE_P50_MS].median, x[MIX_IDLE_P95_MS].median, x[MIX_BUSY_P50_MS].median,
                x[MIX_BUSY_P95_MS].median, x[MIX_RATIO_P95].median, x[MIX_RATIO_P95].min,
                x[MIX_RATIO_P95].max, x[MIX_PROMPT_TOK_S].median, 1e-3 * x[MIX_FIRST_MS].median);
    }
}

void bench_table(const struct bench_result *r, FILE *out)
{
    print_head(r, out);
    if (r->n_series) {
        print_rates(r, out);
        print_reading(r, out);
        print_phases(r, out);
    }
    if (r->n_mixed)
        print_mixed(r, out);
}
