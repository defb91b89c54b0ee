/* The figures as one JSON object; the fields are those of docs/architecture.md and some more. */
#include "cli/bench.h"

#include <jansson.h>
#include <stdlib.h>

static json_t *spread(const double *x, u32 n)
{
    struct bench_spread s = bench_spread(x, n);
    return json_pack("{s:f, s:f, s:f}", "median", s.median, "min", s.min, "max", s.max);
}

static const struct {
    const char *name;
    enum bench_figure figure;
} SPREADS[] =
    {
        {"aggregate_tok_s", FIG_TOK_S},      {"stream_tok_s", FIG_STREAM_TOK_S},
        {"with_first_tok_s", FIG_ALL_TOK_S}, {"prompt_tok_s", FIG_PROMPT_TOK_S},
        {"first_token_ms", FIG_FIRST_MS},    {"step_ms", FIG_STEP_MS},
},
  PHASES[] =
      {
          {"setup", FIG_SETUP_MS},
          {"submit", FIG_SUBMIT_MS},
          {"wait", FIG_WAIT_MS},
          {"tail", FIG_TAIL_MS},
},
  MEDIANS[] = {
      {"submissions_per_step", FIG_SUBMISSIONS},
      {"rows_per_step", FIG_ROWS},
      {"experts_hit_per_layer", FIG_EXPERTS},
      {"bytes_per_step", FIG_BYTES},
      {"macs_per_step", FIG_MACS},
      {"gb_s", FIG_GB_S},
};

static json_t *known(double x) /* 0: not known */
{
    return x > 0 ? json_real(x) : json_null();
}

static json_t *series_json(const struct bench_result *r, const struct bench_series *s)
{
    char hash[17];
    json_t *phases = json_object();
    json_t *j =
        json_pack("{s:i, s:s}", "streams", (int)s->streams, "path", bench_path_names[s->path]);
    for (u32 i = 0; i < COUNT(SPREADS); i++)
        json_object_set_new(j, SPREADS[i].name, spread(s->runs[SPREADS[i].figure], s->n_runs));
    for (u32 i = 0; i < COUNT(PHASES); i++)
        json_object_set_new(phases, PHASES[i].name,
                            json_real(bench_figure(s, PHASES[i].figure).median));
    json_object_set_new(j, "phase_ms", phases);
    for (u32 i = 0; i < COUNT(MEDIANS); i++)
        json_object_set_new(j, MEDIANS[i].name,
                            json_real(bench_figure(s, MEDIANS[i].figure).median));
    double peak = r->machine->peak_gb_s;
    json_object_set_new(j, "share_of_peak",
                        known(peak > 0 ? bench_figure(s, FIG_GB_S).median / peak : 0));
    json_object_set_new(j, "roofline_tok_s", known(bench_roofline(r, s)));
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)s->hash);
    json_object_set_new(j, "logits_hash", json_string(hash));
    return j;
}

static json_t *mixed_json(const struct bench_result *r, const struct bench_mixed *m)
{
    static const char *const names[MIX_FIGURES] = {
        [MIX_IDLE_P50_MS] = "idle_p50_ms",   [MIX_IDLE_P95_MS] = "idle_p95_ms",
        [MIX_BUSY_P50_MS] = "busy_p50_ms",   [MIX_BUSY_P95_MS] = "busy_p95_ms",
        [MIX_RATIO_P50] = "ratio_p50",       [MIX_RATIO_P95] = "ratio_p95",
        [MIX_PROMPT_TOK_S] = "prompt_tok_s", [MIX_FIRST_MS] = "first_token_ms",
    };
    json_t *j = json_pack("{s:i, s:s, s:i}", "streams", (int)m->streams, "path", "engine",
                          "prompt_tokens", (int)r->setup->prompt);
    for (u32 i = 0; i < MIX_FIGURES; i++)
        json_object_set_new(j, names[i], spread(m->runs[i], m->n_runs));
    return j;
}

int bench_json(const struct bench_result *r, FILE *out, struct err *err)
{
    const struct bench_setup *s = r->setup;
    json_t *runs = json_array(), *mixed = json_array();
    for (u32 i = 0; i < r->n_series; i++)
        json_array_append_new(runs, series_json(r, &r->series[i]));
    for (u32 i = 0; i < r->n_mixed; i++)
        json_array_append_new(mixed, mixed_json(r, &r->mixed[i]));
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:I, s:i, s:o}", "model", r->model.name, "device",
                          r->stats.device, "cpu", r->machine->cpu, "commit", r->commit, "seed",
                          (json_int_t)s->seed, "warmup", 1, "peak_gb_s", known(r->machine->peak_gb_s));
    json_t *more =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:I, s:o, s:o}", "isa", r->stats.isa,
                  "kv", r->stats.kv, "threads", (int)r->stats.n_threads, "ctx", (int)r->stats.n_ctx,
                  "prompt_tokens", (int)s->prompt, "generated_tokens", (int)s->gen, "repeats",
                  (int)s->runs, "load_s", r->stats.load_s, "load_gb_s",
                  r->stats.load_s > 0 ? 1e-9 * (double)r->model.file_bytes / r->stats.load_s : 0, "weight_bytes",
                  (json_int_t)r->stats.weight_bytes, "runs", runs, "mixed", mixed);
    char *text = NULL;
    if (j && more && !json_object_update(j, more))
        text = json_dumps(j, JSON_REAL_PRECISION(6));
    json_decref(j);
    json_decref(more);
    if (!text)
        return err_set(err, "cannot write the figures as JSON: is the model's name UTF-8?");
    fprintf(out, "%s\n", text);
    free(text);
    return 0;
}
