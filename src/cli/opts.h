/* Command lines: tables say what an option is called, what it takes and where its value goes; one
 * parser reads them strictly ("12abc", "", "nan" and what is out of range are wrong usage) and one
 * printer makes --help of them. */
#ifndef PS_OPTS_H
#define PS_OPTS_H

#include "base/base.h"
#include "plainsong.h"

enum opt_kind {
    OPT_FLAG,   /* bool: set */
    OPT_OFF,    /* bool: cleared */
    OPT_TEXT,   /* const char *: the argument itself; must not be empty unless min is -1 */
    OPT_CHOICE, /* const char *: one of wish, "a|b|c" */
    OPT_U32,    /* u32 in [min, max] */
    OPT_U64,    /* u64 */
    OPT_F32,    /* float in [min, max] */
    OPT_MANY,   /* struct opts_many: the argument appended */
    OPT_BIAS,   /* struct opts_bias: ID=ADD appended */
    OPT_HELP
};

struct opt {
    char letter;      /* -m, or 0 */
    const char *name; /* --model, without the dashes */
    enum opt_kind kind;
    size_t at; /* offset of the value in the group's struct */
    double min, max;
    const char *wish; /* the argument's word in --help (FILE, N); the choices of OPT_CHOICE */
    const char *help;
};

enum { OPTS_MAX_MANY = 16 };
struct opts_many {
    u32 n;
    const char *list[OPTS_MAX_MANY];
};

struct opt_group {
    const char *title;
    const struct opt *opts;
    u32 n_opts;
    void *into;
};

struct opt_usage {
    const char *command;
    const char *synopsis; /* lines after "usage: ", ready to print */
    const char *about;    /* paragraphs, wrapped by the printer */
    u32 max_args;         /* positional arguments taken */
};

enum { OPTS_GO = 0, OPTS_HELPED = 1, OPTS_WRONG = -1 };

/* Reads argv[1..argc) into the groups' structs (which hold the defaults) and args (max_args of
 * room). Prints --help to stdout and returns OPTS_HELPED, or one line naming option, value and wish
 * to stderr and returns OPTS_WRONG. Option values point into argv. "--" ends the options; "-" alone
 * is an argument. Both --name VALUE and --name=VALUE. */
int opts_parse(const struct opt_usage *usage, int argc, char **argv, const struct opt_group *groups,
               u32 n_groups, const char **args, u32 *n_args);

/* Whole-text numbers: decimal digits only for the integers, no sign, no space; finite decimal
 * floats. False, *out untouched, when text is not wholly one or does not fit. */
bool opts_u64(const char *text, u64 *out);
bool opts_float(const char *text, double *out);

/* ---- options that several commands share ---- */

struct opts_engine {   /* zeroed: the defaults */
    const char *model; /* NULL: the shipped one, see opts_model */
    const char *device, *isa, *kv, *experts;
    u32 slots, ctx, threads;
    bool serialize, no_setup_cache, profile, verbose;
};
extern const struct opt opts_engine_table[];
extern const u32 opts_engine_count;

/* What of them the public API takes. */
void opts_engine_fill(const struct opts_engine *o, struct ps_engine_options *out);

enum { OPTS_MAX_BIAS = 256 };
struct opts_bias {
    u32 n;
    struct ps_bias list[OPTS_MAX_BIAS];
};

struct opts_sampling {
    struct ps_sampling values; /* its bias fields are filled by opts_sampling_fill */
    struct opts_bias bias;
};
extern const struct opt opts_sampling_table[];
extern const u32 opts_sampling_count;

/* A view: valid while o is. */
struct ps_sampling opts_sampling_fill(const struct opts_sampling *o);

/* The model file to use: o itself, or for NULL plainsong-tiny as it is found beside the executable
 * (../../models, then
 * ../share/plainsong) and then in ./models. Malloc'd; NULL with err when nothing is found. */
char *opts_model(const char *o, struct err *err);

#endif
