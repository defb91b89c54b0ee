/* GGUF: a header, metadata, a directory of tensors, then the tensors' bytes. See gguf.h.
 *
 * A model file comes from a stranger, so each byte is believed only after it has been checked, and
 * in this order: first a walk over metadata and directory that allocates nothing and ends at the
 * first wrong field; then one sum that compares the memory we are about to take with the size of
 * the files; then the same walk again, which cannot fail any more, storing what it passes. After
 * that every pointer in struct gguf lies inside the mapping and every length has been proven, and
 * no later code needs to ask again.
 *
 * Refused although other readers may accept it: big-endian files, version 1, arrays of arrays,
 * tensors out of file order or sharing bytes (loading such a file could take many times its size),
 * unknown tensor types. What we cannot refuse is a file that changes while it is mapped: reading past
 * a new end is a SIGBUS. So metadata and directory, which are read for as long as the model lives,
 * end as memory of our own at the same addresses, and only tensors' data stays the file's. */
#include "model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    /* Key length, key, type, a bool; name length, name, n_dims, one dimension, type, offset. */
    MIN_KV_BYTES = 8 + 1 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8,
    DEFAULT_ALIGNMENT = 32,
    PATH_SHOWN = 200, /* bytes of a path in a message: leaves 300 of struct err for what is wrong */
    NAME_SHOWN = 80,
};

struct reader {
    const char *path;
    const u8 *bytes;
    u64 len, at;          /* at <= len, always */
    const char *kind;     /* of the entry being read: "metadata", "tensor"; NULL in the header */
    u64 nth;              /* which one it is */
    struct gguf_str name; /* its name; at is NULL until that has been read */
    struct err *err;
};

struct head { /* what one file says about itself, besides the offsets kept in struct gguf_file */
    u32 version;
    u32 alignment, split_no, split_count, split_tensors;
    u32 seen; /* bit i: NOTED[i] was there */
};

static const struct {
    const char *key;
    size_t field; /* a u32 of struct head */
    u32 max;
} NOTED[] = {
    {"general.alignment", offsetof(struct head, alignment), GGUF_MAX_ALIGNMENT},
    {"split.no", offsetof(struct head, split_no), GGUF_MAX_FILES - 1},
    {"split.count", offsetof(struct head, split_count), GGUF_MAX_FILES},
    {"split.tensors.count", offsetof(struct head, split_tensors), GGUF_MAX_TENSORS},
};

/* Fills err with "PATH: KIND "NAME": ..." and returns -1. */
static int refuse(const struct reader *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static int refuse(const struct reader *r, const char *fmt, ...)
{
    char what[sizeof r->err->text], name[NAME_SHOWN];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (!r->kind)
        return err_set(r->err, "%s: %s", r->path, what);
    if (!r->name.at)
        return err_set(r->err, "%s: %s %" PRIu64 ": %s", r->path, r->kind, r->nth, what);
    err_quote(name, sizeof name, r->name.at, r->name.len);
    return err_set(r->err, "%s: %s \"%s\": %s", r->path, r->kind, name, what);
}

/* The next n bytes, or NULL when the file ends before them. */
static const u8 *take(struct reader *r, u64 n, const char *field)
{
    if (n > r->len - r->at) {
        refuse(r, "%s needs %" PRIu64 " bytes at offset %" PRIu64 ", the file ends at %" PRIu64,
               field, n, r->at, r->len);
        return NULL;
    }
    const u8 *p = r->bytes + r->at;
    r->at += n;
    return p;
}

static int take_u32(struct reader *r, u32 *out, const char *field)
{
    const u8 *p = take(r, 4, field);
    if (!p)
        return -1;
    *out = gguf_le32(p);
    return 0;
}

static int take_u64(struct reader *r, u64 *out, const char *field)
{
    const u8 *p = take(r, 8, field);
    if (!p)
        return -1;
    *out = gguf_le64(p);
    return 0;
}

static int take_str(struct reader *r, struct gguf_str *out, const char *field)
{
    u64 len;
    if (take_u64(r, &len, field))
        return -1;
    const u8 *p = take(r, len, field);
    if (!p)
        return -1;
    *out = (struct gguf_str){(const char *)p, len};
    return 0;
}

/* The name that opens an entry: 1..max bytes. */
static int take_name(struct reader *r, const char *kind, u64 nth, u64 max, struct gguf_str *out)
{
    r->kind = kind;
    r->nth = nth;
    r->name = (struct gguf_str){NULL, 0};
    if (take_str(r, out, "its name"))
        return -1;
    if (out->len == 0 || out->len > max)
        return refuse(r, "name of %" PRIu64 " bytes, expected 1 to %" PRIu64, out->len, max);
    r->name = *out;
    return 0;
}

static int take_strings(struct reader *r, u64 count)
{
    struct gguf_str s;
    if (count > (r->len - r->at) / 8) /* each has a length of 8 bytes */
        return refuse(r, "array of %" PRIu64 " strings, but only %" PRIu64 " bytes are left", count,
                      r->len - r->at);
    for (u64 i = 0; i < count; i++)
        if (take_str(r, &s, "a string of the value"))
            return -1;
    return 0;
}

static int take_numbers(struct reader *r, const struct gguf_kv *kv)
{
    u64 bytes;
    if (!mul_u64(kv->count, gguf_type_bytes(kv->item), &bytes))
        return refuse(r, "array of %" PRIu64 " items: its size wraps", kv->count);
    if (!take(r, bytes, "the value"))
        return -1;
    if (kv->item != GGUF_BOOL)
        return 0;
    for (u64 i = 0; i < bytes; i++)
        if (kv->at[i] > 1)
            return refuse(r, "bool byte is %u, expected 0 or 1", kv->at[i]);
    return 0;
}

static int take_type(struct reader *r, enum gguf_type *out, const char *field)
{
    u32 type;
    if (take_u32(r, &type, field))
        return -1;
    if (type > GGUF_F64)
        return refuse(r, "%s is %" PRIu32 ", expected 0 to %d", field, type, GGUF_F64);
    *out = (enum gguf_type)type;
    return 0;
}

static int take_kv(struct reader *r, u64 nth, struct gguf_kv *kv)
{
    if (take_name(r, "metadata", nth, GGUF_MAX_KEY, &kv->key) ||
        take_type(r, &kv->type, "value type"))
        return -1;
    kv->item = kv->type;
    kv->count = 1;
    if (kv->type == GGUF_ARRAY) {
        if (take_type(r, &kv->item, "item type") || take_u64(r, &kv->count, "item count"))
            return -1;
        if (kv->item == GGUF_ARRAY)
            return refuse(r, "array of arrays, expected an array of numbers, bools or strings");
    }
    u64 from = r->at;
    kv->at = r->bytes + from;
    if (kv->item == GGUF_STRING ? take_strings(r, kv->count) : take_numbers(r, kv))
        return -1;
    kv->bytes = r->at - from;
    return 0;
}

/* Keeps the value when it is one of NOTED, which must be small integers and unique in each file. */
static int note_kv(const struct reader *r, const struct gguf_kv *kv, struct head *head)
{
    for (u32 i = 0; i < COUNT(NOTED); i++) {
        if (!gguf_str_is(kv->key, NOTED[i].key))
            continue;
        if (head->seen >> i & 1)
            return refuse(r, "appears twice");
        head->seen |= 1u << i;
        if (!gguf_type_is_int(kv->type))
            return refuse(r, "is of type %s, expected an integer", gguf_type_name(kv->type));
        i64 value = gguf_item_int(kv, 0);
        if (value < 0 || value > NOTED[i].max)
            return refuse(r, "is %" PRId64 ", expected 0 to %" PRIu32, value, NOTED[i].max);
        *(u32 *)((char *)head + NOTED[i].field) = (u32)value;
    }
    return 0;
}

/* Bytes of a tensor from its type and shape. */
static int tensor_size(const struct reader *r, struct gguf_tensor *t)
{
    const struct dtype_info *dt = dtype_info(t->type);
    if (!dt)
        return refuse(r, "type number %" PRIu32 " is not one this program reads", t->type);
    if (t->ne[0] % dt->block_elems)
        return refuse(r, "rows of %" PRIu64 " elements, expected a multiple of %" PRIu32 " for %s",
                      t->ne[0], dt->block_elems, dt->name);
    u64 n = t->ne[0] / dt->block_elems;
    if (!mul_u64(n, t->ne[1], &n) || !mul_u64(n, t->ne[2], &n) || !mul_u64(n, t->ne[3], &n) ||
        !mul_u64(n, dt->block_bytes, &t->bytes))
        return refuse(r,
                      "shape %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                      ": its size in bytes wraps",
                      t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
    return 0;
}

/* One entry of the directory. *end is where the one before it ended, counted like its offset from
 * the start of the data, and moves to the end of this one. */
static int take_tensor(struct reader *r, u64 nth, u32 alignment, struct gguf_tensor *t, u64 *offset,
                       u64 *end)
{
    if (take_name(r, "tensor", nth, GGUF_MAX_NAME, &t->name) ||
        take_u32(r, &t->n_dims, "the number of dimensions"))
        return -1;
    if (t->n_dims < 1 || t->n_dims > GGUF_MAX_DIMS)
        return refuse(r, "%" PRIu32 " dimensions, expected 1 to %d", t->n_dims, GGUF_MAX_DIMS);
    for (u32 i = 0; i < GGUF_MAX_DIMS; i++) {
        t->ne[i] = 1;
        if (i < t->n_dims && take_u64(r, &t->ne[i], "a dimension"))
            return -1;
        if (t->ne[i] == 0)
            return refuse(r, "dimension %" PRIu32 " is 0, expected at least 1", i);
    }
    if (take_u32(r, &t->type, "the type") || take_u64(r, offset, "the offset") || tensor_size(r, t))
        return -1;
    if (*offset % alignment)
        return refuse(r, "offset %" PRIu64 ", expected a multiple of the alignment %" PRIu32,
                      *offset, alignment);
    if (*offset < *end)
        return refuse(
            r, "offset %" PRIu64 " lies before the end of the tensor listed before it, %" PRIu64,
            *offset, *end);
    if (!add_u64(*offset, t->bytes, end) || *end > r->len)
        return refuse(r,
                      "%" PRIu64 " bytes at offset %" PRIu64 " pass the end of the file, %" PRIu64,
                      t->bytes, *offset, r->len);
    return 0;
}

static int check_count(const struct reader *r, const char *field, u64 n, u64 min_bytes, u64 max)
{
    if (n > max)
        return refuse(r, "%s is %" PRIu64 ", expected at most %" PRIu64, field, n, max);
    if (n > (r->len - r->at) / min_bytes)
        return refuse(r,
                      "%s is %" PRIu64 ", which needs at least %" PRIu64
                      " bytes each, but only %" PRIu64 " are left",
                      field, n, min_bytes, r->len - r->at);
    return 0;
}

static int check_header(struct reader *r, struct gguf_file *f, struct head *head)
{
    char quoted[24];
    if (r->len == 0)
        return refuse(r, "the file is empty, expected GGUF");
    const u8 *magic = take(r, 4, "magic");
    if (!magic)
        return -1;
    if (memcmp(magic, "GGUF", 4))
        return refuse(r, "magic is \"%s\", expected \"GGUF\"",
                      err_quote(quoted, sizeof quoted, magic, 4));
    if (take_u32(r, &head->version, "version"))
        return -1;
    if (head->version != 2 && head->version != 3)
        return refuse(r, "version is %" PRIu32 "%s, expected 2 or 3", head->version,
                      head->version && head->version % 65536 == 0 ? " (a big-endian file)" : "");
    if (take_u64(r, &f->n_tensors, "tensor count") || take_u64(r, &f->n_kv, "metadata count") ||
        check_count(r, "tensor count", f->n_tensors, MIN_TENSOR_BYTES, GGUF_MAX_TENSORS) ||
        check_count(r, "metadata count", f->n_kv, MIN_KV_BYTES, GGUF_MAX_KV))
        return -1;
    return 0;
}

static int check_metadata(struct reader *r, struct gguf_file *f, struct head *head)
{
    struct gguf_kv kv;
    f->kv_at = r->at;
    head->alignment = DEFAULT_ALIGNMENT;
    for (u64 i = 0; i < f->n_kv; i++)
        if (take_kv(r, i, &kv) || note_kv(r, &kv, head))
            return -1;
    r->kind = NULL;
    u32 a = head->alignment;
    if (a < GGUF_MIN_ALIGNMENT || (a & (a - 1)))
        return refuse(r, "general.alignment is %" PRIu32 ", expected a power of two from %d to %d",
                      a, GGUF_MIN_ALIGNMENT, GGUF_MAX_ALIGNMENT);
    f->alignment = a;
    return 0;
}

static int check_directory(struct reader *r, struct gguf_file *f)
{
    struct gguf_tensor t;
    u64 offset, end = 0;
    f->tensors_at = r->at;
    for (u64 i = 0; i < f->n_tensors; i++)
        if (take_tensor(r, i, f->alignment, &t, &offset, &end))
            return -1;
    f->data_at = round_up_u64(r->at, f->alignment);
    /* Tensors lie in order, so the last one reaches furthest. */
    if (f->n_tensors && (f->data_at > r->len || end > r->len - f->data_at))
        return refuse(r, "ends at byte %" PRIu64 ", past the end of the file, %" PRIu64,
                      f->data_at + end, r->len);
    return 0;
}

static struct reader reader_at(const struct gguf_file *f, const char *path, u64 at, struct err *err)
{
    return (struct reader){.path = path, .bytes = f->at, .len = f->bytes, .at = at, .err = err};
}

/* The walk that allocates nothing: fills the rest of *f and *head. */
static int check_file(struct gguf_file *f, const char *path, struct head *head, struct err *err)
{
    struct reader r = reader_at(f, path, 0, err);
    *head = (struct head){0};
    if (check_header(&r, f, head) || check_metadata(&r, f, head) || check_directory(&r, f))
        return -1;
    return 0;
}

static int map_file(struct gguf_file *f, const char *path, const char *shown, struct err *err)
{
    struct stat st;
    /* Not blocking: opening a pipe would otherwise wait for its writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_set(err, "%s: cannot open: %s", shown, strerror(errno));
    if (fstat(fd, &st)) {
        err_set(err, "%s: cannot stat: %s", shown, strerror(errno));
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        err_set(err, "%s: is a %s, expected a GGUF file", shown,
                S_ISDIR(st.st_mode) ? "directory" : "device or pipe");
        goto fail;
    }
    if (st.st_size == 0) {
        err_set(err, "%s: the file is empty, expected GGUF", shown);
        goto fail;
    }
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        err_set(err, "%s: cannot map: %s", shown, strerror(errno));
        goto fail;
    }
    *f = (struct gguf_file){.at = p, .bytes = (u64)st.st_size, .fd = fd};
    return 0;
fail:
    close(fd);
    return -1;
}

/* The path as messages show it: its end, when it is very long. */
static const char *shown_path(const char *path)
{
    size_t len = strlen(path);
    return len > PATH_SHOWN ? path + len - PATH_SHOWN : path;
}

/* Part i (from 0) of n is called NAME-0000(i+1)-of-0000n.gguf. Writes that name over path, whose
 * own suffix has the same length; false when path is not named like a part of n. */
static bool name_part(char *path, u32 i, u32 n)
{
    char suffix[32];
    size_t len = strlen(path);
    size_t size =
        (size_t)snprintf(suffix, sizeof suffix, "-%05" PRIu32 "-of-%05" PRIu32 ".gguf", i + 1, n);
    size_t digits = strlen("-00001"); /* the rest must be there already */
    if (len < size || path[len - size] != '-' ||
        memcmp(path + len - size + digits, suffix + digits, size - digits))
        return false;
    memcpy(path + len - size, suffix, digits);
    return true;
}

/* The file given must be the first part and named so. first_name is its path as name_part makes it.
 */
static int check_first_part(const struct gguf *g, const char *path, const char *first_name,
                            const struct head *head, struct err *err)
{
    const char *slash = strrchr(first_name, '/');
    u32 n = head->split_count;
    if (head->split_no >= n)
        return err_set(err, "%s: split.no is %" PRIu32 ", expected less than split.count %" PRIu32,
                       g->path, head->split_no, n);
    if (head->split_no != 0)
        return err_set(err, "%s: split.no is %" PRIu32 ", expected 0: give the first part, %.120s",
                       g->path, head->split_no, slash ? slash + 1 : first_name);
    if (strcmp(path, first_name))
        return err_set(err,
                       "%s: split.no is 0, but the name is that of another part, expected %.120s",
                       g->path, slash ? slash + 1 : first_name);
    return 0;
}

static int open_part(struct gguf *g, const char *path, u32 i, u32 n, struct err *err)
{
    struct head head;
    struct gguf_file *f = &g->files[i];
    const char *shown = shown_path(path);
    if (map_file(f, path, shown, err))
        return -1;
    g->n_files = i + 1;
    if (check_file(f, shown, &head, err))
        return -1;
    if (head.split_no != i || head.split_count != n)
        return err_set(err,
                       "%s: split.no is %" PRIu32 " and split.count %" PRIu32 ", expected %" PRIu32
                       " and %" PRIu32,
                       shown, head.split_no, head.split_count, i, n);
    return 0;
}

/* Maps and checks the parts after the first. name is a copy of path, to be written to. */
static int open_parts(struct gguf *g, const char *path, char *name, const struct head *head,
                      struct err *err)
{
    u32 n = head->split_count;
    u64 n_tensors = g->files[0].n_tensors;
    if (!name_part(name, 0, n))
        return err_set(err,
                       "%s: split.no is %" PRIu32 " and split.count %" PRIu32
                       ", expected a name that ends in -00001-of-%05" PRIu32 ".gguf",
                       g->path, head->split_no, n, n);
    if (check_first_part(g, path, name, head, err))
        return -1;
    struct gguf_file *files = realloc(g->files, n * sizeof *files);
    if (!files)
        return err_set(err, "%s: out of memory for %" PRIu32 " parts", g->path, n);
    g->files = files;
    for (u32 i = 1; i < n; i++) {
        name_part(name, i, n);
        if (open_part(g, name, i, n, err))
            return -1;
        n_tensors += g->files[i].n_tensors;
    }
    if (head->split_tensors && n_tensors != head->split_tensors)
        return err_set(err,
                       "%s: split.tensors.count is %" PRIu32 ", expected %" PRIu64
                       ", the tensors in all %" PRIu32 " parts",
                       g->path, head->split_tensors, n_tensors, n);
    return 0;
}

static int open_split(struct gguf *g, const char *path, const struct head *head, struct err *err)
{
    char *name = strdup(path);
    if (!name)
        return err_set(err, "%s: out of memory", g->path);
    int result = open_parts(g, path, name, head, err);
    free(name);
    return result;
}

/* Files that were split once and merged again keep a split.count of 0 or 1. */
static bool is_split(const struct head *head)
{
    return head->split_count > 1 || head->split_no > 0;
}

/* Takes the memory for everything counted, if the files are large enough to deserve it. */
static int allocate(struct gguf *g, struct err *err)
{
    u64 have = GGUF_FLOOR_BYTES;
    g->n_kv = g->files[0].n_kv;
    for (u32 i = 0; i < g->n_files; i++) {
        g->n_tensors += g->files[i].n_tensors;
        have += g->files[i].bytes;
    }
    if (g->n_tensors > GGUF_MAX_TENSORS)
        return err_set(err, "%s: %" PRIu64 " tensors in all parts, expected at most %d", g->path,
                       g->n_tensors, GGUF_MAX_TENSORS);
    u64 kv_bytes = sizeof *g->kv + sizeof *g->kv_order;
    u64 tensor_bytes = sizeof *g->tensors + sizeof *g->tensor_order;
    /* Cannot wrap: at most 2^16 * 52 + 2^17 * 92 + 2^9 * 64 bytes and a short path. */
    u64 need = g->n_kv * kv_bytes + g->n_tensors * tensor_bytes + g->n_files * sizeof *g->files +
               strlen(g->path) + 1;
    if (need > have)
        return err_set(err,
                       "%s: %" PRIu64 " metadata entries and %" PRIu64 " tensors take %" PRIu64
                       " bytes of memory, expected at most %" PRIu64 " for a file of this size",
                       g->path, g->n_kv, g->n_tensors, need, have);
    g->kv = mem_array(g->n_kv, sizeof *g->kv);
    g->kv_order = mem_array(g->n_kv, sizeof *g->kv_order);
    g->tensors = mem_array(g->n_tensors, sizeof *g->tensors);
    g->tensor_order = mem_array(g->n_tensors, sizeof *g->tensor_order);
    if (!g->kv || !g->kv_order || !g->tensors || !g->tensor_order)
        return err_set(err, "%s: out of memory for %" PRIu64 " bytes", g->path, need);
    return 0;
}

/* The second walk over one file: the first has shown that it succeeds. */
static int store(struct gguf *g, u32 file, u64 first_tensor, struct err *err)
{
    const struct gguf_file *f = &g->files[file];
    struct reader r = reader_at(f, g->path, f->kv_at, err);
    for (u64 i = 0; file == 0 && i < f->n_kv; i++)
        if (take_kv(&r, i, &g->kv[i]))
            return -1;
    r.at = f->tensors_at;
    u64 offset, end = 0;
    for (u64 i = 0; i < f->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[first_tensor + i];
        if (take_tensor(&r, i, f->alignment, t, &offset, &end))
            return -1;
        t->data = f->at + f->data_at + offset;
        t->file = file;
        t->fd = f->fd;
        t->offset = f->data_at + offset;
        g->data_bytes += t->bytes;
    }
    return 0;
}

static int build(struct gguf *g, struct err *err)
{
    if (allocate(g, err))
        return -1;
    u64 n = 0;
    for (u32 i = 0; i < g->n_files; n += g->files[i++].n_tensors)
        if (store(g, i, n, err))
            return -1;
    return gguf_index(g, err);
}

/* Puts a copy in place of the pages that hold everything before the tensors: same addresses, same bytes, no file. */
static int own_head(const struct gguf *g, const struct gguf_file *f, struct err *err)
{
    u8 *at = (u8 *)(uintptr_t)f->at;
    u64 bytes = min_u64(round_up_u64(f->data_at, (u64)sysconf(_SC_PAGESIZE)), f->bytes);
    int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void *copy = mmap(NULL, bytes, prot, flags, -1, 0);
    if (copy == MAP_FAILED)
        return err_set(err, "%s: out of memory for %" PRIu64 " bytes", g->path, bytes);
    memcpy(copy, at, bytes);
    bool ok = mmap(at, bytes, prot, flags | MAP_FIXED, -1, 0) != MAP_FAILED;
    if (ok)
        memcpy(at, copy, bytes);
    munmap(copy, bytes);
    if (!ok || mprotect(at, bytes, PROT_READ))
        return err_set(err, "%s: out of memory for %" PRIu64 " bytes", g->path, bytes);
    return 0;
}

/* The path for messages and room for the first file. */
static int begin(struct gguf *g, const char *path, struct err *err)
{
    memset(g, 0, sizeof *g);
    g->path = strdup(shown_path(path));
    g->files = mem_array(1, sizeof *g->files);
    if (!g->path || !g->files)
        return err_set(err, "%s: out of memory", shown_path(path));
    return 0;
}

int gguf_open(struct gguf *g, const char *path, struct err *err)
{
    struct head head;
    if (begin(g, path, err))
        goto fail;
    g->mapped = true;
    if (map_file(&g->files[0], path, g->path, err))
        goto fail;
    g->n_files = 1;
    if (check_file(&g->files[0], g->path, &head, err))
        goto fail;
    g->version = head.version;
    if (is_split(&head) && open_split(g, path, &head, err))
        goto fail;
    if (build(g, err))
        goto fail;
    for (u32 i = 0; i < g->n_files; i++)
        if (own_head(g, &g->files[i], err))
            goto fail;
    return 0;
fail:
    gguf_close(g);
    return -1;
}

int gguf_parse(struct gguf *g, const char *name, const void *bytes, u64 len, struct err *err)
{
    struct head head;
    if (begin(g, name, err))
        goto fail;
    g->files[0] = (struct gguf_file){.at = bytes, .bytes = len, .fd = -1};
    g->n_files = 1;
    if (check_file(&g->files[0], g->path, &head, err))
        goto fail;
    g->version = head.version;
    if (is_split(&head)) {
        err_set(err, "%s: split.count is %" PRIu32 ", expected a whole file", g->path,
                head.split_count);
        goto fail;
    }
    if (build(g, err))
        goto fail;
    return 0;
fail:
    gguf_close(g);
    return -1;
}

void gguf_close(struct gguf *g)
{
    for (u32 i = 0; g->mapped && i < g->n_files; i++) {
        munmap((void *)(uintptr_t)g->files[i].at, g->files[i].bytes);
        close(g->files[i].fd);
    }
    free(g->path);
    free(g->files);
    free(g->kv);
    free(g->kv_order);
    free(g->tensors);
    free(g->tensor_order);
    memset(g, 0, sizeof *g);
}
