/* The bar. See progress.h. */
#include "cli/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BAR = 28 };
static const double REDRAW_S = 0.1;

void progress_line(char *buf, size_t n, const char *what, u64 done, u64 total, double seconds)
{
    char bar[BAR + 1];
    done = min_u64(done, total);
    double share = total ? (double)done / (double)total : 0;
    int full = (int)(share * BAR);
    for (int i = 0; i < BAR; i++)
        bar[i] = i < full ? '#' : '-';
    bar[BAR] = 0;
    n = n < 80 ? n : 80;
    int at = snprintf(buf, n, "%-12.12s [%s] %3u%%", what, bar, (u32)(share * 100));
    if (seconds < 0.2 || done == 0) /* before that a rate is noise */
        return;
    double per_s = (double)done / seconds, left = (double)(total - done) / per_s;
    bool giga = per_s >= 1e9;
    at += snprintf(buf + at, n - (size_t)at, "  %5.1f %s", per_s / (giga ? 1e9 : 1e6),
                   giga ? "GB/s" : "MB/s");
    if (left < 100 * 3600)
        snprintf(buf + at, n - (size_t)at, "  %u:%02u left", (u32)left / 60, (u32)left % 60);
}

static void tell(void *arg, const char *what, uint64_t done, uint64_t total)
{
    struct progress *p = arg;
    double now = time_now();
    if (strncmp(p->what, what, sizeof p->what - 1) || done == 0) {
        snprintf(p->what, sizeof p->what, "%s", what);
        p->started = now;
    }
    if (p->drawn > 0 && now - p->drawn < REDRAW_S)
        return;
    char line[80];
    progress_line(line, sizeof line, what, done, total, now - p->started);
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
    p->drawn = now;
}

struct ps_progress progress_open(struct progress *p)
{
    const char *term = getenv("TERM");
    *p = (struct progress){.what = ""};
    if (!isatty(STDERR_FILENO) || !term || strcmp(term, "dumb") == 0)
        return (struct ps_progress){0};
    return (struct ps_progress){.tell = tell, .arg = p};
}

void progress_close(struct progress *p)
{
    if (p->drawn > 0) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    p->drawn = 0;
}
