/* What the files of `plainsong bench` share: a machine's figures, a rig (model, engine and the ids
 * that are fed), one run's figures and the series they form. Main thread. */
#ifndef PS_BENCH_H
#define PS_BENCH_H

#include "cli/opts.h"
#include "device/device.h"

#include <stdio.h>

enum { BENCH_MAX_RUNS = 99, BENCH_MAX_WIDTHS = 16, BENCH_MAX_STREAMS = 1024 };

/* ---- bench_machine.c: what this machine gives ---- */

struct bench_machine {
    char cpu[128];
    double peak_gb_s; /* read by all threads from memory, the best seen so far; of a device with memory of its own
                         what it says; 0: not known */
    u64 cache_bytes;  /* last level, where the device is the CPU; 0: not known */
    struct pool *pool; /* NULL: nothing to measure here */
    u8 *at;
    u64 bytes;
};

/* stats: of the engine that will be measured. */
int bench_machine_open(struct bench_machine *m, u32 n_threads, const struct ps_stats *stats, struct err *err);
void bench_machine_close(struct bench_machine *m); /* half-open is fine */

/* Streams over the buffer a few times; raises peak_gb_s when this time was the best. Nothing where the
 * device is not the CPU. */
void bench_machine_measure(struct bench_machine *m);

/* ---- one run's figures ---- */

enum bench_figure {
    FIG_TOK_S,        /* of all streams, the first tokens apart */
    FIG_STREAM_TOK_S, /* of the median stream, likewise */
    FIG_ALL_TOK_S,    /* of all streams, prompts and first tokens included */
    FIG_PROMPT_TOK_S, /* of all prompts, until the last stream has its first token */
    FIG_FIRST_MS,     /* until then */
    FIG_STEP_MS,      /* this and all below: a step of the steady state */
    FIG_SETUP_MS,
    FIG_SUBMIT_MS,
    FIG_WAIT_MS,
    FIG_TAIL_MS,
    FIG_SUBMISSIONS,
    FIG_ROWS,
    FIG_EXPERTS, /* distinct, in a layer */
    FIG_BYTES,   /* weights, keys and values */
    FIG_MACS,    /* multiply-adds of products and attention */
    FIG_GB_S,
    FIGURES
};

enum bench_path { PATH_ENGINE, PATH_DEVICE, PATHS };
extern const char *const bench_path_names[PATHS];

struct bench_series { /* runs of one width on one path */
    u32 streams, n_runs;
    enum bench_path path;
    double runs[FIGURES][BENCH_MAX_RUNS];
    u64 hash;                 /* of all streams' last logits, the same in each run */
    struct ps_stats stats[3]; /* of the last run: at its begin, after all first tokens, at the end;
                                 engine only */
};

struct bench_spread {
    double median, min, max;
};
struct bench_spread bench_spread(const double *x, u32 n);
struct bench_spread bench_figure(const struct bench_series *s, enum bench_figure f);

/* ---- mixed ---- */

enum mixed_figure {
    MIX_IDLE_P50_MS, /* gaps between two tokens of a stream, before the long prompt came */
    MIX_IDLE_P95_MS,
    MIX_BUSY_P50_MS, /* and while it was read */
    MIX_BUSY_P95_MS,
    MIX_RATIO_P50,
    MIX_RATIO_P95,
    MIX_PROMPT_TOK_S,
    MIX_FIRST_MS, /* of the long prompt */
    MIX_FIGURES
};

struct bench_mixed {
    u32 streams, n_runs;
    double runs[MIX_FIGURES][BENCH_MAX_RUNS];
};

/* ---- the rig ---- */

struct bench_setup { /* what was asked for */
    u32 widths[BENCH_MAX_WIDTHS], n_widths;
    u32 prompt, gen, runs;
    bool mixed, serialize, profile;
    u64 seed;
    enum bench_path first; /* of the n_paths that are measured */
    u32 n_paths;
};

struct bench_rig {
    const struct bench_setup *setup;
    struct ps_model *model;
    struct ps_engine *engine;
    u32 n_vocab, n_slots, chunk;
    u32 *ids;   /* (n_slots, prompt + gen) seeded random ids: what each stream reads and is made to
                   say */
    u64 domain; /* of the next run: no run finds another's prefix */
};

/* bench_run.c: runs one width once and adds the figures to the series. err also when logits differ
 * from those of an earlier run of the series. */
int bench_run(struct bench_rig *r, struct bench_series *s, struct err *err);

/* bench_mixed.c */
int bench_mixed(struct bench_rig *r, struct bench_mixed *m, struct err *err);

u32 bench_mixed_ctx(const struct bench_setup *s); /* positions a slot needs for it */

/* The i-th of the seeded ids of a stream. */
u32 bench_id(const struct bench_rig *r, u32 stream, u32 i);

/* ---- what is printed ---- */

struct bench_result {
    const struct bench_setup *setup;
    const struct bench_machine *machine;
    const char *commit;
    struct ps_model_info model;
    struct ps_stats stats;
    const struct bench_series *series;
    u32 n_series;
    const struct bench_mixed *mixed;
    u32 n_mixed;
};

/* tok/s that reading alone would allow at this series' bytes a step; 0: not known. */
double bench_roofline(const struct bench_result *r, const struct bench_series *s);

void bench_table(const struct bench_result *r, FILE *out); /* at most 80 columns */
int bench_json(const struct bench_result *r, FILE *out, struct err *err);
void bench_plot(const struct bench_result *r, FILE *out); /* SVG */

#endif
