/* See outfile.h. */
#include "cli/outfile.h"

#include <errno.h>
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
    o->out = fopen(o->temp, "wxe");
    if (!o->out)
        return refuse(o, err, strerror(errno));
    return 0;
}

int outfile_commit(struct outfile *o, struct err *err)
{
    bool failed = ferror(o->out) != 0;
    errno = 0;
    failed |= fclose(o->out) != 0;
    o->out = NULL;
    if (!failed && rename(o->temp, o->path) == 0)
        return 0;
    int why = errno;
    unlink(o->temp);
    return refuse(o, err, why ? strerror(why) : "cannot be written");
}

void outfile_close(struct outfile *o)
{
    if (!o->out)
        return;
    fclose(o->out);
    unlink(o->temp);
    o->out = NULL;
}
