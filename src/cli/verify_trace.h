/* Which operation parted first: the hashes of a text's rows, operation by operation, recorded while
 * it runs alone and compared while it runs in company. A row at a position depends on earlier
 * positions only, so the difference at the lowest position, and there at the first operation, is
 * the root of all others. */
#ifndef PS_VERIFY_TRACE_H
#define PS_VERIFY_TRACE_H

#include "cli/verify_text.h"
#include "plan/plan.h"

struct verify_trace;

/* positions: how many of the text's are recorded. text must outlive it. e: any engine of the model.
 */
int verify_trace_open(struct verify_trace **out, const struct verify_text *text, u32 positions,
                      const struct ps_engine *e, struct err *err);
void verify_trace_close(struct verify_trace *t);

/* From now on (until the next call or the engine's end) e's rows of this text are recorded, or
 * compared with what was. Call while e has no stream. t NULL: neither. */
void verify_trace_record(struct verify_trace *t, struct ps_engine *e);
void verify_trace_compare(struct verify_trace *t, struct ps_engine *e);

/* The root, in words ("layer 2, attend (q -> att), position 40"); false when no compared row
 * differed. */
bool verify_trace_found(const struct verify_trace *t, char *buf, size_t n);

#endif
