/* plainsong quantize: a float GGUF to a 4-bit or 8-bit one. An interrupt is looked for between two
 * pieces of work, so that nothing half-made is left behind; then the process ends as the signal
 * ends it. */
#include "model/quantize.h"
#include "cli/cli.h"
#include "cli/opts.h"
#include "cli/progress.h"

#include <signal.h>
#include <stdio.h>

struct quantize {
    const char *type;
};

static const struct opt_usage usage = {
    "quantize",
    "plainsong quantize IN OUT --type q4_0|q8_0",
    "Makes a smaller file of a GGUF file with f32, f16 or bf16 weights (a split one is named by "
    "its first part). Norms, "
    "biases and routers become f32; with q4_0 the embedding and the output matrix become q8_0. OUT "
    "appears only when it "
    "is complete.",
    2,
};

static const struct opt table[] = {
    {'t', "type", OPT_CHOICE, offsetof(struct quantize, type), 0, 0, "q4_0|q8_0",
     "how weights are stored: 4.5 or 8.5 bits each"},
};

static void note(void *arg, const char *line)
{
    (void)arg;
    fprintf(stderr, "plainsong quantize: note: %s\n", line);
}

static const int ends[] = {SIGINT, SIGTERM, SIGHUP};

/* Those signals that would end the process: they wait from now on. */
static void block(sigset_t *old)
{
    sigset_t set;
    sigemptyset(&set);
    for (u32 i = 0; i < COUNT(ends); i++) {
        struct sigaction now;
        if (sigaction(ends[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            sigaddset(&set, ends[i]);
    }
    sigprocmask(SIG_BLOCK, &set, old);
}

static bool signal_waits(void *arg)
{
    const sigset_t *old = arg;
    sigset_t set;
    sigpending(&set);
    for (u32 i = 0; i < COUNT(ends); i++)
        if (sigismember(&set, ends[i]) == 1 && !sigismember(old, ends[i]))
            return true;
    return false;
}

int cli_quantize(int argc, char **argv)
{
    struct quantize o = {0};
    struct quantize_result res;
    struct progress bar;
    struct err err;
    const char *args[2];
    u32 n_args;
    sigset_t old;
    const struct opt_group groups[] = {{"Options", table, COUNT(table), &o}};
    int rc = opts_parse(&usage, argc, argv, groups, COUNT(groups), args, &n_args);
    if (rc)
        return rc == OPTS_HELPED ? EXIT_DONE : EXIT_USAGE;
    if (n_args < 2)
        return cli_fail(usage.command, EXIT_USAGE, "no %s file: expected IN OUT --type q4_0|q8_0",
                        n_args ? "OUT" : "IN");
    if (!o.type)
        return cli_fail(usage.command, EXIT_USAGE, "no --type: expected q4_0 or q8_0");
    struct ps_progress shown = progress_open(&bar);
    struct quantize_job job = {
        .in = args[0],
        .out = args[1],
        .type = (enum dtype)dtype_parse(o.type),
        .tell = shown.tell,
        .tell_arg = shown.arg,
        .note = note,
        .stop = signal_waits,
        .stop_arg = &old,
    };
    double start = time_now();
    block(&old);
    rc = quantize_file(&job, &res, &err);
    progress_close(&bar);
    sigprocmask(SIG_SETMASK, &old, NULL); /* a signal that waited ends the process here */
    if (rc)
        return cli_fail(usage.command, EXIT_WORLD, "%s", err.text);
    fprintf(stderr, "%s: %llu tensors quantised, %llu in floats; %.1f MB of %.1f MB, %.1f s\n",
            args[1], (unsigned long long)res.n_quantised, (unsigned long long)res.n_float,
            (double)res.out_bytes / 1e6, (double)res.in_bytes / 1e6, time_now() - start);
    return EXIT_DONE;
}
