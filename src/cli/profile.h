/* The table behind --profile: where a step's time goes. `run`, `chat` and `bench` print it. */
#ifndef PS_PROFILE_H
#define PS_PROFILE_H

#include "plainsong.h"

#include <stdio.h>

/* Setup, submit, wait and tail in ms and in % of the wall, for the steps up to the first token and,
 * apart, for those after it: ms of a step there. title: a line before the table, or NULL. at:
 * counted before the prompt, once the first token was there, at the end. Steps that were not made
 * are not printed. */
void profile_print(FILE *out, const char *title, const struct ps_stats at[3]);

#endif
