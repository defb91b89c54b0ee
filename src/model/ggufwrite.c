/* The writer. See ggufwrite.h. */
#include "model/ggufwrite.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAMES = 100 }; /* temporary names tried: one is taken only after a crash */

static int failed(const struct ggufwrite *w, const char *what, struct err *err)
{
    int why = errno;
    char quoted[256];
    return err_set(err, "cannot %s \"%s\": %s", what,
                   err_quote(quoted, sizeof quoted, w->path, strlen(w->path)), strerror(why));
}

static int put(struct ggufwrite *w, const void *bytes, u64 n, struct err *err)
{
    if (n && fwrite(bytes, 1, n, w->file) != n)
        return failed(w, "write", err);
    w->bytes += n;
    return 0;
}

static int put_int(struct ggufwrite *w, u64 v, u32 n_bytes, struct err *err)
{
    u8 b[8];
    for (u32 i = 0; i < n_bytes; i++)
        b[i] = (u8)(v >> 8 * i);
    return put(w, b, n_bytes, err);
}

static int put_str(struct ggufwrite *w, const char *at, u64 len, struct err *err)
{
    return put_int(w, len, 8, err) || put(w, at, len, err) ? -1 : 0;
}

static int pad(struct ggufwrite *w, struct err *err)
{
    static const u8 zeros[4096];
    for (u64 n = round_up_u64(w->bytes, w->from->files[0].alignment) - w->bytes; n > 0;) {
        u64 k = min_u64(n, sizeof zeros);
        if (put(w, zeros, k, err))
            return -1;
        n -= k;
    }
    return 0;
}

/* ---- metadata ---- */

static bool is_split_key(const struct gguf_kv *kv)
{
    return kv->key.len > 6 && memcmp(kv->key.at, "split.", 6) == 0;
}

static const struct ggufwrite_u32 *find_set(const struct gguf_kv *kv,
                                            const struct ggufwrite_u32 *set, u32 n_set)
{
    for (u32 i = 0; i < n_set; i++)
        if (gguf_str_is(kv->key, set[i].key))
            return &set[i];
    return NULL;
}

static int put_set(struct ggufwrite *w, const struct ggufwrite_u32 *s, struct err *err)
{
    return put_str(w, s->key, strlen(s->key), err) || put_int(w, GGUF_U32, 4, err) ||
                   put_int(w, s->value, 4, err)
               ? -1
               : 0;
}

static int put_kv(struct ggufwrite *w, const struct gguf_kv *kv, struct err *err)
{
    if (put_str(w, kv->key.at, kv->key.len, err) || put_int(w, kv->type, 4, err))
        return -1;
    if (kv->type == GGUF_ARRAY && (put_int(w, kv->item, 4, err) || put_int(w, kv->count, 8, err)))
        return -1;
    return put(w, kv->at, kv->bytes, err);
}

static int put_metadata(struct ggufwrite *w, const struct ggufwrite_u32 *set, u32 n_set,
                        struct err *err)
{
    const struct gguf *g = w->from;
    u64 n = 0;
    for (u64 i = 0; i < g->n_kv; i++)
        n += !is_split_key(&g->kv[i]);
    for (u32 i = 0; i < n_set; i++)
        n += !gguf_find(g, set[i].key);
    if (put(w, "GGUF", 4, err) || put_int(w, 3, 4, err) || put_int(w, g->n_tensors, 8, err) ||
        put_int(w, n, 8, err))
        return -1;
    for (u64 i = 0; i < g->n_kv; i++) {
        const struct ggufwrite_u32 *s = find_set(&g->kv[i], set, n_set);
        if (is_split_key(&g->kv[i]))
            continue;
        if (s ? put_set(w, s, err) : put_kv(w, &g->kv[i], err))
            return -1;
    }
    for (u32 i = 0; i < n_set; i++)
        if (!gguf_find(g, set[i].key) && put_set(w, &set[i], err))
            return -1;
    return 0;
}

static int put_directory(struct ggufwrite *w, struct err *err)
{
    u64 offset = 0;
    for (u64 i = 0; i < w->from->n_tensors; i++) {
        const struct gguf_tensor *t = &w->from->tensors[i];
        if (put_str(w, t->name.at, t->name.len, err) || put_int(w, t->n_dims, 4, err))
            return -1;
        for (u32 d = 0; d < t->n_dims; d++)
            if (put_int(w, t->ne[d], 8, err))
                return -1;
        if (put_int(w, w->types[i], 4, err) || put_int(w, offset, 8, err))
            return -1;
        offset += round_up_u64(ggufwrite_tensor_bytes(t, w->types[i]), w->from->files[0].alignment);
    }
    return pad(w, err);
}

/* ---- the file ---- */

/* A new file beside path, with the permissions that any new file gets. */
static int make_temp(struct ggufwrite *w, struct err *err)
{
    size_t room = strlen(w->path) + 40;
    struct stat st;
    if (stat(w->path, &st) == 0 && !S_ISREG(st.st_mode))
        return err_set(err, "%s is not a regular file: expected the name of a file to make",
                       w->path);
    if (!(w->temp = malloc(room)))
        return err_set(err, "out of memory");
    for (int i = 0; i < NAMES; i++) {
        snprintf(w->temp, room, "%s.%ld-%d.part", w->path, (long)getpid(), i);
        int fd = open(w->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 && (w->file = fdopen(fd, "wb")))
            return 0;
        if (fd >= 0) {
            close(fd);
            unlink(w->temp);
        }
        if (errno != EEXIST)
            break;
    }
    failed(w, "make", err);
    free(w->temp); /* nothing to remove */
    w->temp = NULL;
    return -1;
}

/* Until the bytes are where no loss of power takes them. macOS: fsync leaves them in the disk's own cache, and
 * F_FULLFSYNC is not known to every kind of disk. */
static int sync_file(int fd)
{
#ifdef F_FULLFSYNC
    if (fcntl(fd, F_FULLFSYNC) == 0)
        return 0;
#endif
    return fsync(fd);
}

/* The rename itself must reach the disk too. A folder that cannot be synced is no failure: the data
 * is. */
static void sync_folder(const char *path)
{
    char *folder = strdup(path);
    char *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash)
        slash[slash == folder ? 1 : 0] = 0;
    int fd = folder ? open(slash ? folder : ".", O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        sync_file(fd);
        close(fd);
    }
    free(folder);
}

/* Goes on to the tensor whose data comes next. */
static void next_tensor(struct ggufwrite *w)
{
    if (w->tensor < w->from->n_tensors)
        w->room = ggufwrite_tensor_bytes(&w->from->tensors[w->tensor], w->types[w->tensor]);
}

u64 ggufwrite_tensor_bytes(const struct gguf_tensor *t, u32 type)
{
    const struct dtype_info *dt = dtype_info(type);
    assert(dt && t->ne[0] % dt->block_elems == 0);
    /* gguf_open found the tensor in the file: at twice the bytes (f16 as f32) it cannot wrap. */
    return t->ne[0] / dt->block_elems * t->ne[1] * t->ne[2] * t->ne[3] * dt->block_bytes;
}

int ggufwrite_open(struct ggufwrite *w, const char *path, const struct gguf *from, const u32 *types,
                   const struct ggufwrite_u32 *set, u32 n_set, struct err *err)
{
    *w = (struct ggufwrite){.from = from, .types = types, .path = strdup(path)};
    if (!w->path) {
        err_set(err, "out of memory");
        goto fail;
    }
    if (make_temp(w, err) || put_metadata(w, set, n_set, err) || put_directory(w, err))
        goto fail;
    next_tensor(w);
    return 0;
fail:
    ggufwrite_close(w);
    return -1;
}

int ggufwrite_data(struct ggufwrite *w, const void *bytes, u64 n, struct err *err)
{
    assert(w->tensor < w->from->n_tensors && n <= w->room);
    if (put(w, bytes, n, err))
        return -1;
    w->room -= n;
    if (w->room)
        return 0;
    w->tensor++;
    next_tensor(w);
    return pad(w, err);
}

int ggufwrite_commit(struct ggufwrite *w, struct err *err)
{
    assert(w->tensor == w->from->n_tensors);
    if (fflush(w->file) || sync_file(fileno(w->file)))
        return failed(w, "write", err);
    FILE *file = w->file;
    w->file = NULL;
    if (fclose(file))
        return failed(w, "write", err);
    if (rename(w->temp, w->path))
        return failed(w, "make", err);
    free(w->temp);
    w->temp = NULL;
    sync_folder(w->path);
    return 0;
}

void ggufwrite_close(struct ggufwrite *w)
{
    if (w->file)
        fclose(w->file);
    if (w->temp)
        unlink(w->temp);
    free(w->temp);
    free(w->path);
    *w = (struct ggufwrite){0};
}
