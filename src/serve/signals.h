/* Signals as something to wait for with a time limit: a thread takes them with sigwait and writes their numbers into a
 * pipe, which is polled. One way for every system: macOS has no sigtimedwait. Owner: the thread that opens;
 * signals_wake may be called by any. */
#ifndef PS_SIGNALS_H
#define PS_SIGNALS_H

#include "base/base.h"

struct signals;

/* From here on SIGTERM, SIGINT, SIGHUP and SIGUSR1 are waited for, and SIGPIPE does nothing: this thread, and those
 * that are started from now on, have them blocked. To be called before other threads are started. 0, or -1 with err
 * and nothing changed. */
int signals_open(struct signals **out, struct err *err);

/* The number of the next signal that came, or 0: none within ms milliseconds, or signals_wake was called. */
int signals_wait(struct signals *s, u32 ms);

/* Ends a signals_wait, or the next one. */
void signals_wake(struct signals *s);

/* Ends the thread, forgets signals that nobody waited for, and gives the calling thread its mask back. NULL is fine. */
void signals_close(struct signals *s);

#endif
