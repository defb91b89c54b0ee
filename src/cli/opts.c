/* Command lines. A value is checked where it is read, against the range that stands in the table:
 * after opts_parse no command looks at its options' form again. Whether things named exist (files,
 * devices, token ids) is not asked here. */
#include "cli/opts.h"

#include "cli/cli.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

enum { HELP_COLUMN = 28, HELP_WIDTH = 79 };

/* ---- tables ---- */

#define ENGINE(field) offsetof(struct opts_engine, field)

const struct opt opts_engine_table[] = {
    {'m', "model", OPT_TEXT, ENGINE(model), 0, 0, "FILE",
     "GGUF file; plainsong-tiny when not given"},
    {0, "device", OPT_CHOICE, ENGINE(device), 0, 0, "cpu|cuda|metal|emu", "what computes: cpu"},
    {0, "slots", OPT_U32, ENGINE(slots), 1, 1024, "N", "streams that run at once"},
    {0, "ctx", OPT_U32, ENGINE(ctx), 1, 1 << 24, "N",
     "tokens a slot holds: the largest that fits, up to the model's own"},
    {0, "kv", OPT_CHOICE, ENGINE(kv), 0, 0, "f16|q8_0", "how keys and values are kept: f16"},
    {0, "threads", OPT_U32, ENGINE(threads), 1, 1024, "N", "of the CPU: one for each core"},
    {0, "isa", OPT_CHOICE, ENGINE(isa), 0, 0,
     "scalar|avx2|avxvnni|avx512|avx512vnni|neon|neon-dotprod|neon-i8mm",
     "instruction set of the CPU kernels: the best that this CPU runs; all give the same bytes"},
    {0, "experts", OPT_CHOICE, ENGINE(experts), 0, 0, "grouped|per-row",
     "per-row runs each row's experts alone; same bytes"},
    {0, "serialize", OPT_FLAG, ENGINE(serialize), 0, 0, NULL,
     "one stream in a submission; same bytes"},
    {0, "no-setup-cache", OPT_FLAG, ENGINE(no_setup_cache), 0, 0, NULL,
     "prepare every step anew; same bytes"},
    {0, "profile", OPT_FLAG, ENGINE(profile), 0, 0, NULL,
     "end with the time of each phase, on stderr"},
    {0, "verbose", OPT_FLAG, ENGINE(verbose), 0, 0, NULL,
     "end with speeds, bytes read and the hash of the last logits, on stderr"},
};
const u32 opts_engine_count = COUNT(opts_engine_table);

#define SAMPLING(field) offsetof(struct opts_sampling, values.field)

const struct opt opts_sampling_table[] = {
    {0, "temp", OPT_F32, SAMPLING(temperature), 0, 100, "T", "0: greedy, the default"},
    {0, "top-k", OPT_U32, SAMPLING(top_k), 0, 1 << 24, "K", "keep the K likeliest; 0: all"},
    {0, "top-p", OPT_F32, SAMPLING(top_p), 0, 1, "P",
     "keep the likeliest that sum to P; 0 or 1: all"},
    {0, "min-p", OPT_F32, SAMPLING(min_p), 0, 1, "P",
     "drop those below P times the likeliest; 0: none"},
    {0, "seed", OPT_U64, SAMPLING(seed), 0, 0, "S", "of the random choices: 0"},
    {0, "repeat-penalty", OPT_F32, SAMPLING(repeat_penalty), 0, 100, "X",
     "weaken tokens already seen by this factor; 0 or 1: off"},
    {0, "repeat-last-n", OPT_U32, SAMPLING(repeat_last_n), 0, 1 << 24, "N",
     "how far back the three penalties look; 0: the whole text"},
    {0, "presence-penalty", OPT_F32, SAMPLING(presence_penalty), -100, 100, "X",
     "taken once from logits of seen tokens"},
    {0, "frequency-penalty", OPT_F32, SAMPLING(frequency_penalty), -100, 100, "X",
     "taken for each time a token was seen"},
    {0, "logit-bias", OPT_BIAS, offsetof(struct opts_sampling, bias), -1000, 1000, "ID=ADD",
     "add to the logit of one token; may be given again"},
};
const u32 opts_sampling_count = COUNT(opts_sampling_table);

static const struct opt help_option = {'h', "help", OPT_HELP, 0, 0, 0, NULL, "this text"};

void opts_engine_fill(const struct opts_engine *o, struct ps_engine_options *out)
{
    out->n_slots = o->slots;
    out->n_ctx = o->ctx;
    out->n_threads = o->threads;
    out->device = o->device;
    out->isa = o->isa;
    out->kv = o->kv;
    out->serialize = o->serialize;
    out->no_setup_cache = o->no_setup_cache;
    out->experts_per_row = o->experts && strcmp(o->experts, "per-row") == 0;
}

struct ps_sampling opts_sampling_fill(const struct opts_sampling *o)
{
    struct ps_sampling s = o->values;
    s.bias = o->bias.list;
    s.n_bias = o->bias.n;
    return s;
}

/* ---- numbers ---- */

bool opts_u64(const char *text, u64 *out)
{
    u64 n = 0;
    if (!*text)
        return false;
    for (const char *c = text; *c; c++)
        if (*c < '0' || *c > '9' || !mul_u64(n, 10, &n) || !add_u64(n, (u64)(*c - '0'), &n))
            return false;
    *out = n;
    return true;
}

bool opts_float(const char *text, double *out)
{
    /* strtod also takes spaces, hexadecimal, inf and nan: only these bytes may occur. */
    if (!*text || text[strspn(text, "0123456789+-.eE")])
        return false;
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end || !isfinite(x))
        return false;
    *out = x;
    return true;
}

/* ---- parsing ---- */

static int wrong(const struct opt_usage *usage, const struct opt *o, const char *value,
                 const char *wish)
{
    char quoted[80];
    return cli_fail(usage->command, EXIT_USAGE, "--%s \"%s\": expected %s", o->name,
                    err_quote(quoted, sizeof quoted, value, strlen(value)), wish),
           OPTS_WRONG;
}

static bool is_choice(const char *choices, const char *value)
{
    size_t len = strlen(value);
    for (const char *c = choices; len;) {
        size_t n = strcspn(c, "|");
        if (n == len && memcmp(c, value, n) == 0)
            return true;
        if (!c[n])
            break;
        c += n + 1;
    }
    return false;
}

static int take_u32(const struct opt_usage *usage, const struct opt *o, const char *value, u32 *out)
{
    u64 n;
    char wish[80];
    if (!opts_u64(value, &n) || (double)n < o->min || (double)n > o->max) {
        snprintf(wish, sizeof wish, "a whole number from %.0f to %.0f", o->min, o->max);
        return wrong(usage, o, value, wish);
    }
    *out = (u32)n;
    return OPTS_GO;
}

static int take_f32(const struct opt_usage *usage, const struct opt *o, const char *value,
                    float *out)
{
    double x;
    char wish[80];
    if (!opts_float(value, &x) || x < o->min || x > o->max) {
        snprintf(wish, sizeof wish, "a number from %g to %g", o->min, o->max);
        return wrong(usage, o, value, wish);
    }
    *out = (float)x;
    return OPTS_GO;
}

/* ID=ADD, where ADD is a number in the option's range. */
static int take_bias(const struct opt_usage *usage, const struct opt *o, const char *value,
                     struct opts_bias *out)
{
    char id_text[16], wish[80];
    const char *equals = strchr(value, '=');
    size_t len = equals ? (size_t)(equals - value) : 0;
    u64 id;
    double add;
    snprintf(wish, sizeof wish, "ID=ADD, a token id and a number from %g to %g", o->min, o->max);
    if (len == 0 || len >= sizeof id_text)
        return wrong(usage, o, value, wish);
    memcpy(id_text, value, len);
    id_text[len] = 0;
    if (!opts_u64(id_text, &id) || id > UINT32_MAX || !opts_float(equals + 1, &add) ||
        add < o->min || add > o->max)
        return wrong(usage, o, value, wish);
    if (out->n == OPTS_MAX_BIAS) {
        snprintf(wish, sizeof wish, "at most %d of these", OPTS_MAX_BIAS);
        return wrong(usage, o, value, wish);
    }
    out->list[out->n++] = (struct ps_bias){.id = (u32)id, .add = (float)add};
    return OPTS_GO;
}

static int take(const struct opt_usage *usage, const struct opt *o, void *into, const char *value)
{
    void *at = (char *)into + o->at;
    switch (o->kind) {
    case OPT_TEXT:
        if (!*value && o->min >= 0)
            return wrong(usage, o, value, "something");
        *(const char **)at = value;
        return OPTS_GO;
    case OPT_CHOICE:
        if (!is_choice(o->wish, value)) {
            char wish[120];
            snprintf(wish, sizeof wish, "one of %s", o->wish);
            return wrong(usage, o, value, wish);
        }
        *(const char **)at = value;
        return OPTS_GO;
    case OPT_U32:
        return take_u32(usage, o, value, at);
    case OPT_U64:
        return opts_u64(value, at)
                   ? OPTS_GO
                   : wrong(usage, o, value, "a whole number from 0 to 18446744073709551615");
    case OPT_F32:
        return take_f32(usage, o, value, at);
    case OPT_MANY: {
        struct opts_many *many = at;
        if (!*value || many->n == OPTS_MAX_MANY)
            return wrong(usage, o, value, *value ? "at most 16 of them" : "a text that is not empty");
        many->list[many->n++] = value;
        return OPTS_GO;
    }
    case OPT_BIAS:
        return take_bias(usage, o, value, at);
    case OPT_FLAG:
    case OPT_OFF:
    case OPT_HELP:
        break;
    }
    assert(!"an option of this kind takes no value");
    return OPTS_WRONG;
}

/* The option that arg ("-m", "--model", "--model=x") names; *into its group's struct, *value what
 * follows '='. */
static const struct opt *find(const struct opt_group *groups, u32 n_groups, const char *arg,
                              void **into, const char **value)
{
    size_t len = strcspn(arg, "=");
    *value = NULL;
    for (u32 g = 0; g <= n_groups; g++) {
        const struct opt *opts = g < n_groups ? groups[g].opts : &help_option;
        for (u32 i = 0; i < (g < n_groups ? groups[g].n_opts : 1); i++) {
            *into = g < n_groups ? groups[g].into : NULL;
            if (arg[1] != '-') {
                if (opts[i].letter && arg[1] == opts[i].letter && !arg[2])
                    return &opts[i];
            } else if (strlen(opts[i].name) == len - 2 &&
                       memcmp(opts[i].name, arg + 2, len - 2) == 0) {
                *value = arg[len] ? arg + len + 1 : NULL;
                return &opts[i];
            }
        }
    }
    return NULL;
}

/* ---- help ---- */

/* Words of text from column `from` on, which the cursor has reached; a newline in text starts a new
 * paragraph. */
static void wrap(const char *text, int from)
{
    int column = from;
    while (*text) {
        size_t n = strcspn(text, " \n");
        if (column > from && column + 1 + (int)n > HELP_WIDTH) {
            printf("\n%*s", from, "");
            column = from;
        }
        column += printf("%s%.*s", column > from ? " " : "", (int)n, text);
        text += n;
        if (*text == '\n') {
            printf("\n%*s", from, "");
            column = from;
        }
        text += *text != 0;
    }
    putchar('\n');
}

static void print_option(const struct opt *o)
{
    char letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    int n = printf("  %s--%s%s%s", letter, o->name, o->wish ? " " : "", o->wish ? o->wish : "");
    if (n >= HELP_COLUMN) {
        putchar('\n');
        n = 0;
    }
    printf("%*s", HELP_COLUMN - n, "");
    wrap(o->help, HELP_COLUMN);
}

static void print_help(const struct opt_usage *usage, const struct opt_group *groups, u32 n_groups)
{
    printf("usage: %s\n\n", usage->synopsis);
    wrap(usage->about, 0);
    for (u32 g = 0; g < n_groups; g++) {
        printf("\n%s\n", groups[g].title);
        for (u32 i = 0; i < groups[g].n_opts; i++)
            print_option(&groups[g].opts[i]);
        if (g == 0)
            print_option(&help_option);
    }
}

int opts_parse(const struct opt_usage *usage, int argc, char **argv, const struct opt_group *groups,
               u32 n_groups, const char **args, u32 *n_args)
{
    bool options = true;
    char quoted[80];
    *n_args = 0;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *value;
        void *into;
        if (options && strcmp(arg, "--") == 0) {
            options = false;
        } else if (!options || arg[0] != '-' || !arg[1]) {
            if (*n_args == usage->max_args)
                return cli_fail(usage->command, EXIT_USAGE,
                                "\"%s\": expected %s (see plainsong %s --help)",
                                err_quote(quoted, sizeof quoted, arg, strlen(arg)),
                                usage->max_args ? "no further argument" : "an option",
                                usage->command),
                       OPTS_WRONG;
            args[(*n_args)++] = arg;
        } else {
            const struct opt *o = find(groups, n_groups, arg, &into, &value);
            if (!o)
                return cli_fail(usage->command, EXIT_USAGE,
                                "no option %s (see plainsong %s --help)",
                                err_quote(quoted, sizeof quoted, arg, strlen(arg)), usage->command),
                       OPTS_WRONG;
            if (o->kind == OPT_HELP || o->kind == OPT_FLAG || o->kind == OPT_OFF) {
                if (value)
                    return wrong(usage, o, value, "no value");
                if (o->kind == OPT_HELP)
                    return print_help(usage, groups, n_groups), OPTS_HELPED;
                *(bool *)((char *)into + o->at) = o->kind == OPT_FLAG;
                continue;
            }
            if (!value && ++i == argc)
                return cli_fail(usage->command, EXIT_USAGE, "--%s: expected %s after it", o->name,
                                o->wish),
                       OPTS_WRONG;
            if (take(usage, o, into, value ? value : argv[i]))
                return OPTS_WRONG;
        }
    }
    return OPTS_GO;
}

/* ---- the shipped model ---- */

/* Folder of the running executable with its links resolved, no slash at the end; false when the
 * system does not tell. */
static bool executable_folder(char *buf, size_t size)
{
#ifdef __APPLE__
    char path[4096], real[4096];
    uint32_t n = sizeof path;
    if (_NSGetExecutablePath(path, &n) || !realpath(path, real) || strlen(real) >= size)
        return false;
    strcpy(buf, real);
#else
    ssize_t n = readlink("/proc/self/exe", buf, size - 1);
    if (n <= 0 || (size_t)n == size - 1)
        return false;
    buf[n] = 0;
#endif
    char *slash = strrchr(buf, '/');
    if (!slash)
        return false;
    *slash = 0;
    return true;
}

char *opts_model(const char *o, struct err *err)
{
    static const char *const places[] = {"../../models", "../share/plainsong"};
    static const char file[] = "plainsong-tiny-q4_0.gguf";
    char folder[4096], path[4096 + 64] = "";
    if (!o && executable_folder(folder, sizeof folder))
        for (u32 i = 0; !o && i < COUNT(places); i++) {
            snprintf(path, sizeof path, "%s/%s/%s", folder, places[i], file);
            o = access(path, R_OK) == 0 ? path : NULL;
        }
    if (!o) {
        snprintf(path, sizeof path, "models/%s", file);
        o = access(path, R_OK) == 0 ? path : NULL;
    }
    if (!o)
        return err_set(err, "no -m FILE, and %s is neither beside the program nor in ./models",
                       file),
               NULL;
    char *copy = strdup(o);
    if (!copy)
        err_set(err, "out of memory");
    return copy;
}
