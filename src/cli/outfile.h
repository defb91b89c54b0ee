/* A file that a command writes beside its work (--plot, --report): asked for before the work begins, whole or not at all.
 * Its text is kept until the end, then written under a temporary name in the same folder, which becomes its own: a command that
 * is stopped leaves nothing there. */
#ifndef PS_OUTFILE_H
#define PS_OUTFILE_H

#include "base/base.h"

#include <stdio.h>

struct outfile {
    const char *option;
    char path[1024], temp[1060];
    FILE *out; /* to memory */
    char *text;
    size_t n;
};

/* Refuses what is there and not a regular file, the model itself (model may be NULL), and a folder that cannot be
 * written. option and path as the user gave them; option is kept. */
int outfile_open(struct outfile *o, const char *option, const char *path, const char *model, struct err *err);
/* Everything is in o->out: make the file. */
int outfile_commit(struct outfile *o, struct err *err);
/* Takes back what was not committed. A zeroed or closed one is fine. */
void outfile_close(struct outfile *o);

#endif
