/* The commands of `plainsong`: each takes its own arguments (argv[0] is the command's name) and
 * returns the exit status: 0 done, 1 the world failed (one line on stderr says what and what to
 * do), 2 wrong usage (likewise). exit() is main.c's alone. */
#ifndef PS_CLI_H
#define PS_CLI_H

#include "base/base.h"

enum {
    EXIT_DONE = 0,
    EXIT_WORLD = 1,
    EXIT_USAGE = 2,
    EXIT_INTERRUPTED = 130, /* 128 + SIGINT, as shells say it */
    EXIT_AT_ONCE = 256 /* done, and a thread still works: what libraries do at an exit would pull away what it stands on */
};

int cli_run(int argc, char **argv);
int cli_chat(int argc, char **argv);
int cli_serve(int argc, char **argv);
int cli_inspect(int argc, char **argv);
int cli_tokenize(int argc, char **argv);
int cli_verify(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_quantize(int argc, char **argv);

/* Prints "plainsong COMMAND: ..." and a newline to stderr and returns status, so that a failure is
 * one statement. Control bytes come out as '?'. */
int cli_fail(const char *command, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Name, version, commit, compiler and the instruction sets of this CPU, to stdout. */
void version_print(void);
const char *version_commit(void);

#endif
