/* A bar on stderr for something long: what, share, rate, time left. Drawn only when stderr is a
 * terminal that can redraw a line, at most ten times a second, within 80 columns; gone when closed,
 * so that what is printed next starts on a clean line. */
#ifndef PS_PROGRESS_H
#define PS_PROGRESS_H

#include "base/base.h"
#include "plainsong.h"

struct progress { /* the caller's storage; no field is the caller's */
    char what[24];
    double started, drawn; /* time_now(); drawn is 0 when the line is clean */
};

/* What to hand to the one who does the work: its tell is NULL when there is no terminal. p outlives
 * it. tell may be called from any thread, one at a time. A new what, or done = 0, starts the
 * clock anew. */
struct ps_progress progress_open(struct progress *p);

/* Wipes the line. Nothing may be told any more. */
void progress_close(struct progress *p);

/* The line itself, for tests: at most 79 columns, NUL-terminated. n >= 80. */
void progress_line(char *buf, size_t n, const char *what, u64 done, u64 total, double seconds);

#endif
