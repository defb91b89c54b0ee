/* Ctrl-C. One thread waits for SIGINT, which every other thread blocks (ps_stream_cancel takes
 * locks, so a handler must not call it), and acts by what goes on: a watched stream is cancelled;
 * with nobody to ask, the process ends as SIGINT ends it; at a prompt the descriptor becomes
 * readable. */
#ifndef PS_INTERRUPT_H
#define PS_INTERRUPT_H

#include "base/base.h"
#include "plainsong.h"

struct interrupt;

/* Call before other threads start: they inherit the blocked signal. Until the first watch or prompt
 * Ctrl-C ends the process. */
int interrupt_open(struct interrupt **out, struct err *err);
void interrupt_close(struct interrupt *in);

/* An answer is in the making, though it has no stream yet: Ctrl-C is remembered. */
void interrupt_begin(struct interrupt *in);

/* From now on Ctrl-C cancels s, whose owner calls interrupt_rest before closing it; one that came
 * since interrupt_begin does so at once. */
void interrupt_watch(struct interrupt *in, struct ps_stream *s);

/* Nothing to cancel now. Returns whether Ctrl-C was pressed since interrupt_begin or
 * interrupt_watch. */
bool interrupt_rest(struct interrupt *in);

/* Readable when Ctrl-C was pressed at rest; interrupt_taken empties it. */
int interrupt_fd(const struct interrupt *in);
void interrupt_taken(struct interrupt *in);

#endif
