/* See outfile.h. */
#include "cli/outfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int refuse(const struct outfile *o, struct err *err, const char *why)
{
    char quoted[200];
    return err_set(err, "%s \"%s\": %s", o->option,
                   err_quote(quoted, sizeof quoted, o->path, strlen(o->path)), why);
}

int outfile_open(struct outfile *o, const char *option, const char *path, const char *model,
                 struct err *err)
{
    struct stat there, in;
    *o = (struct outfile){.option = option};
    if (snprintf(o->path, sizeof o->path, "%s", path) >= (int)sizeof o->path)
        return refuse(o, err, "the name is too long");
    if (stat(path, &there) == 0) {
        if (!S_ISREG(there.st_mode))
            return refuse(o, err, "not a regular file: give the name of a new file");
        if (model && stat(model, &in) == 0 && in.st_dev == there.st_dev &&
            in.st_ino == there.st_ino)
            return refuse(o, err, "is the model itself: give another name");
    }
    snprintf(o->temp, sizeof o->temp, "%s.%ld.part", o->path, (long)getpid());
    FILE *there_now = fopen(o->temp, "wxe"); /* whether it can be made */
    if (!there_now)
        return refuse(o, err, strerror(errno));
    fclose(there_now);
    unlink(o->temp);
    o->out = open_memstream(&o->text, &o->n);
    return o->out ? 0 : refuse(o, err, "out of memory");
}

/* 0, or why not: an errno. */
static int write_all(const struct outfile *o)
{
    errno = 0;
    FILE *f = fopen(o->temp, "wxe");
    if (!f)
        return errno;
    bool failed = fwrite(o->text, 1, o->n, f) != o->n;
    failed |= fclose(f) != 0;
    failed = failed || rename(o->temp, o->path) != 0;
    int why = errno ? errno : EIO;
    if (failed)
        unlink(o->temp);
    return failed ? why : 0;
}

int outfile_commit(struct outfile *o, struct err *err)
{
    bool failed = ferror(o->out) != 0;
    failed |= fclose(o->out) != 0;
    o->out = NULL;
    int why = failed ? ENOMEM : write_all(o);
    outfile_close(o);
    return why ? refuse(o, err, strerror(why)) : 0;
}

void outfile_close(struct outfile *o)
{
    if (o->out)
        fclose(o->out);
    free(o->text);
    o->out = NULL;
    o->text = NULL;
}
