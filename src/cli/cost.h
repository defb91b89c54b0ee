/* What an open engine stands on and costs: the device, and what it holds in memory, as the commands print them. */
#ifndef PS_COST_H
#define PS_COST_H

#include "base/base.h"
#include "plainsong.h"

#include <stdio.h>

/* Two lines of at most 80 columns, and a third where another plainsong runs on this machine:
 *   memory: 26.8 MB weights, 201.3 MB keys and values (4 x 4096 x 12288 bytes),
 *     1.3 MB setup, 3.9 MB scratch: 233.3 MB in all of the 22.1 GB that were free
 *   another plainsong (pid 4711) holds 17.4 GB */
void cost_print(FILE *out, const struct ps_cost *c);

/* "cpu avx2, 8 threads"; "cuda NVIDIA H200". Returns text. */
const char *cost_device(char *text, size_t room, const struct ps_stats *s);

/* For commands whose stderr belongs to someone's script: prints when asked to or when stderr is a terminal. */
void cost_greet(struct ps_engine *e, bool asked);

#endif
