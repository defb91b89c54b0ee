/* plainsong COMMAND ...: finds the command and gives it its arguments. A command is listed here
 * once it exists. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct command {
    const char *name, *about;
    int (*run)(int argc, char **argv);
};

static const struct command commands[] = {
    {"run", "continue one prompt and end", cli_run},
    {"chat", "talk, turn by turn", cli_chat},
    {"serve", "an HTTP server for OpenAI's and Anthropic's clients", cli_serve},
    {"inspect", "what is in a model file", cli_inspect},
    {"tokenize", "text to token ids and back", cli_tokenize},
    {"verify", "check that streams in company have their solo bytes", cli_verify},
    {"bench", "how fast the model runs on this machine", cli_bench},
    {"quantize", "make a 4-bit or 8-bit file of a float one", cli_quantize},
};

int cli_fail(const char *command, int status, const char *fmt, ...)
{
    struct err line; /* err_set makes the text safe to print */
    char text[sizeof line.text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    err_set(&line, "%s", text);
    fprintf(stderr, "plainsong%s%s: %s\n", command ? " " : "", command ? command : "", line.text);
    return status;
}

static void usage(FILE *out)
{
    fputs("usage: plainsong COMMAND [options]\n\n", out);
    for (u32 i = 0; i < COUNT(commands); i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].about);
    fputs("\n  plainsong COMMAND --help    the command's options\n"
          "  plainsong --version         version, compiler, instruction sets\n\n"
          "First words:  plainsong run -p \"Tell me a tale about a fox and a lantern.\"\n",
          out);
}

static int unknown(const char *name)
{
    char quoted[48], known[256] = "";
    for (u32 i = 0; i < COUNT(commands); i++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", commands[i].name);
    }
    return cli_fail(NULL, EXIT_USAGE, "no command \"%s\": expected one of %s",
                    err_quote(quoted, sizeof quoted, name, strlen(name)), known);
}

static int dispatch(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0) {
        version_print();
        return EXIT_DONE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        usage(stdout);
        return EXIT_DONE;
    }
    for (u32 i = 0; i < COUNT(commands); i++)
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return unknown(name);
}

/* Descriptors 0 to 2 stay standard input and output: one that was closed would be given to the next file or pipe opened.
 * Opened for reading only: input ends at once, output still fails. */
static void keep_standard(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0 && fd <= STDERR_FILENO)
        ;
    if (fd > STDERR_FILENO)
        close(fd);
}

/* A page of a mapped file that is no longer there: the file was cut short while we read it. */
static void file_gone(int sig)
{
    static const char LINE[] = "plainsong: a file was cut short while it was being read, or its disk failed\n";
    (void)sig;
    if (write(STDERR_FILENO, LINE, sizeof LINE - 1) < 0)
        _exit(EXIT_WORLD); /* nobody to tell */
    _exit(EXIT_WORLD);
}

int main(int argc, char **argv)
{
    keep_standard();
    signal(SIGBUS, file_gone);
    /* A reader that goes away is an EPIPE where we write, not a death: the engine is closed in
     * order. */
    signal(SIGPIPE, SIG_IGN);
    int status = dispatch(argc, argv);
    if (status == EXIT_AT_ONCE) {
        fflush(stdout);
        _exit(EXIT_DONE);
    }
    if ((fflush(stdout) || ferror(stdout)) && status == EXIT_DONE && errno != EPIPE)
        status = cli_fail(NULL, EXIT_WORLD, "cannot write to standard output: %s", strerror(errno));
    exit(status);
}
