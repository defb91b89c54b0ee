/* GGUF: a header, metadata, a directory of tensors, then the tensors' bytes. See gguf.h.
 *
 * A model file comes from a stranger, so each byte is believed only after it has been checked, and
 * in this order: first a walk over metadata and directory that allocates nothing and ends at the
 * first wrong field; then one sum that compares the memory we are about to take with the size of
 * the files; then the same walk again, which cannot fail any more, storing what it passes. After
 * that every pointer in struct gguf lies inside the mapping and every length has been proven, and
 * no later code needs to ask again.
 *
 * Names are found by binary search over sorted indices, not by hashing: a stranger can choose names
 * that collide in any hash without a secret, nobody can make a sort slow, and duplicates end up
 * side by side.
 *
 * Refused although other readers may accept it: big-endian files, version 1, arrays of arrays,
 * tensors out of file order or sharing bytes (loading such a file could take many times its size),
 * unknown tensor types. What we cannot refuse is a file that shrinks while it is mapped: reading
 * past the new end is a SIGBUS. */
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
    MIN_KV_BYTES = 8 + 1 + 4 + 1, /* key length, key, type, a bool */
    MIN_TENSOR_BYTES =
        8 + 1 + 4 + 8 + 4 + 8, /* name length, name, n_dims, one dimension, type, offset */
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

static const struct {
    const char *name;
    u8 bytes; /* 0: not fixed */
    bool is_int;
} TYPES[] = {
    [GGUF_U8] = {"u8", 1, true},          [GGUF_I8] = {"i8", 1, true},
    [GGUF_U16] = {"u16", 2, true},        [GGUF_I16] = {"i16", 2, true},
    [GGUF_U32] = {"u32", 4, true},        [GGUF_I32] = {"i32", 4, true},
    [GGUF_F32] = {"f32", 4, false},       [GGUF_BOOL] = {"bool", 1, false},
    [GGUF_STRING] = {"string", 0, false}, [GGUF_ARRAY] = {"array", 0, false},
    [GGUF_U64] = {"u64", 8, true},        [GGUF_I64] = {"i64", 8, true},
    [GGUF_F64] = {"f64", 8, false},
};

/* Little-endian words at any address, read on a machine of any endianness. */
static u32 le32(const u8 *p)
{
    return (u32)p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
}

static u64 le64(const u8 *p)
{
    return le32(p) | (u64)le32(p + 4) << 32;
}

/* Fills err with "PATH: KIND "NAME": ..." and returns -1. */
__attribute__((format(printf, 2, 3))) static int refuse(const struct reader *r, const char *fmt,
                                                        ...)
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
    *out = le32(p);
    return 0;
}

static int take_u64(struct reader *r, u64 *out, const char *field)
{
    const u8 *p = take(r, 8, field);
    if (!p)
        return -1;
    *out = le64(p);
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
    if (!mul_u64(kv->count, TYPES[kv->item].bytes, &bytes))
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
    if (type >= COUNT(TYPES))
        return refuse(r, "%s is %" PRIu32 ", expected 0 to %zu", field, type, COUNT(TYPES) - 1);
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
            return refuse(r, "is of type %s, expected an integer", TYPES[kv->type].name);
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
    close(fd);
    *f = (struct gguf_file){.at = p, .bytes = (u64)st.st_size};
    return 0;
fail:
    close(fd);
    return -1;
}

/* Split files. Part i (from 0) of n is called NAME-0000(i+1)-of-0000n.gguf; writes that name over
 * path, whose own suffix has the same length. False when path is not named like a part of n. */
static bool name_part(char *path, u32 i, u32 n)
{
    char suffix[32], last[16];
    size_t len = strlen(path);
    size_t size = (size_t)snprintf(suffix, sizeof suffix, "-%05u-of-%05u.gguf", i + 1, n);
    size_t last_size = (size_t)snprintf(last, sizeof last, "-of-%05u.gguf", n);
    if (len < size || path[len - size] != '-' || memcmp(path + len - last_size, last, last_size))
        return false;
    memcpy(path + len - size, suffix, size);
    return true;
}

/* Maps and checks parts 1..n-1, n = first->split_count. part is a copy of the first one's path, to
 * be written to. */
static int open_parts(struct gguf *g, char *part, const struct head *first, struct err *err)
{
    u32 n = first->split_count;
    u64 n_tensors = g->files[0].n_tensors;
    char suffix[32];
    snprintf(suffix, sizeof suffix, "-00001-of-%05u.gguf", n);
    if (first->split_no != 0) {
        if (first->split_no < n && name_part(part, 0, n))
            return err_set(err, "%s: is part %u of %u of a split file, give the first: %s", g->path,
                           first->split_no + 1, n, part);
        return err_set(err, "%s: split.no is %u of %u, give the first part, named NAME%s", g->path,
                       first->split_no, n, suffix);
    }
    if (strlen(part) < strlen(suffix) || strcmp(part + strlen(part) - strlen(suffix), suffix))
        return err_set(err, "%s: split.count is %u, expected a file name that ends in %s", g->path,
                       n, suffix);
    struct gguf_file *files = realloc(g->files, n * sizeof *files);
    if (!files)
        return err_set(err, "%s: out of memory for %u parts", g->path, n);
    g->files = files;
    for (u32 i = 1; i < n; i++) {
        struct head head;
        name_part(part, i, n);
        const char *shown = strlen(part) > PATH_SHOWN ? part + strlen(part) - PATH_SHOWN : part;
        if (map_file(&g->files[i], part, shown, err))
            return -1;
        g->n_files = i + 1;
        if (check_file(&g->files[i], shown, &head, err))
            return -1;
        if (head.split_no != i || head.split_count != n)
            return err_set(err, "%s: split.no %u of %u, expected %u of %u", shown, head.split_no,
                           head.split_count, i, n);
        n_tensors += g->files[i].n_tensors;
    }
    if (first->split_tensors && n_tensors != first->split_tensors)
        return err_set(err, "%s: split.tensors.count is %u, but the %u parts hold %" PRIu64,
                       g->path, first->split_tensors, n, n_tensors);
    if (n_tensors > GGUF_MAX_TENSORS)
        return err_set(err, "%s: %" PRIu64 " tensors, expected at most %d", g->path, n_tensors,
                       GGUF_MAX_TENSORS);
    return 0;
}

/* Names in an array of structs that begin with a gguf_str. */
struct names {
    const void *items;
    size_t stride;
};

static struct gguf_str name_at(struct names names, u32 i)
{
    struct gguf_str s;
    memcpy(&s, (const char *)names.items + i * names.stride, sizeof s);
    return s;
}

static int name_cmp(struct gguf_str a, struct gguf_str b)
{
    int c = memcmp(a.at, b.at, min_u64(a.len, b.len));
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

/* Moves the item at i down the heap order[0..n) until no child is greater. */
static void sift_down(u32 *order, u32 i, u32 n, struct names names)
{
    for (u32 child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n &&
            name_cmp(name_at(names, order[child]), name_at(names, order[child + 1])) < 0)
            child++;
        if (name_cmp(name_at(names, order[i]), name_at(names, order[child])) >= 0)
            return;
        u32 t = order[i];
        order[i] = order[child];
        order[child] = t;
    }
}

/* Heapsort: no memory, and n log n whatever the names are. */
static void sort_names(u32 *order, u32 n, struct names names)
{
    for (u32 i = 0; i < n; i++)
        order[i] = i;
    for (u32 i = n / 2; i-- > 0;)
        sift_down(order, i, n, names);
    for (u32 i = n; i-- > 1;) {
        u32 t = order[0];
        order[0] = order[i];
        order[i] = t;
        sift_down(order, 0, i, names);
    }
}

static int check_unique(const struct gguf *g, const char *kind, const u32 *order, u32 n,
                        struct names names, struct err *err)
{
    struct reader r = {.path = g->path, .kind = kind, .err = err};
    for (u32 i = 1; i < n; i++) {
        r.name = name_at(names, order[i]);
        if (!name_cmp(name_at(names, order[i - 1]), r.name))
            return refuse(&r, "appears twice");
    }
    return 0;
}

/* Index of a name, or n. */
static u32 find_name(const char *name, const u32 *order, u32 n, struct names names)
{
    struct gguf_str want = {name, strlen(name)};
    u32 lo = 0, hi = n;
    while (lo < hi) {
        u32 mid = lo + (hi - lo) / 2;
        int c = name_cmp(name_at(names, order[mid]), want);
        if (!c)
            return order[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return n;
}

static struct names kv_names(const struct gguf *g)
{
    return (struct names){g->kv, sizeof *g->kv};
}

static struct names tensor_names(const struct gguf *g)
{
    return (struct names){g->tensors, sizeof *g->tensors};
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
    u64 kv_bytes = sizeof *g->kv + sizeof *g->kv_order;
    u64 tensor_bytes = sizeof *g->tensors + sizeof *g->tensor_order;
    /* Cannot wrap: at most 2^16 * 52 + 2^20 * 92 + 2^10 * 64 bytes. The path twice: ours and
     * open_parts'. */
    u64 need = g->n_kv * kv_bytes + g->n_tensors * tensor_bytes + g->n_files * sizeof *g->files +
               2 * (strlen(g->path) + 1);
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
    sort_names(g->kv_order, (u32)g->n_kv, kv_names(g));
    sort_names(g->tensor_order, (u32)g->n_tensors, tensor_names(g));
    if (check_unique(g, "metadata", g->kv_order, (u32)g->n_kv, kv_names(g), err) ||
        check_unique(g, "tensor", g->tensor_order, (u32)g->n_tensors, tensor_names(g), err))
        return -1;
    return 0;
}

/* The path for messages and room for the first file. */
static int begin(struct gguf *g, const char *path, struct err *err)
{
    size_t len = strlen(path);
    memset(g, 0, sizeof *g);
    g->path = strdup(len > PATH_SHOWN ? path + len - PATH_SHOWN : path);
    g->files = mem_array(1, sizeof *g->files);
    if (!g->path || !g->files)
        return err_set(err, "out of memory");
    return 0;
}

int gguf_open(struct gguf *g, const char *path, struct err *err)
{
    struct head head;
    char *part = NULL;
    if (begin(g, path, err))
        goto fail;
    g->mapped = true;
    if (map_file(&g->files[0], path, g->path, err))
        goto fail;
    g->n_files = 1;
    if (check_file(&g->files[0], g->path, &head, err))
        goto fail;
    g->version = head.version;
    if (head.split_count > 1 || head.split_no > 0) { /* merged files keep a split.count of 0 or 1 */
        part = strdup(path);
        if (!part) {
            err_set(err, "%s: out of memory", g->path);
            goto fail;
        }
        if (open_parts(g, part, &head, err))
            goto fail;
    }
    if (build(g, err))
        goto fail;
    free(part);
    return 0;
fail:
    free(part);
    gguf_close(g);
    return -1;
}

int gguf_parse(struct gguf *g, const char *name, const void *bytes, u64 len, struct err *err)
{
    struct head head;
    if (begin(g, name, err))
        goto fail;
    g->files[0] = (struct gguf_file){.at = bytes, .bytes = len};
    g->n_files = 1;
    if (check_file(&g->files[0], g->path, &head, err))
        goto fail;
    g->version = head.version;
    if (head.split_count > 1 || head.split_no > 0) {
        err_set(err, "%s: is part %u of %u, expected a whole file", g->path, head.split_no + 1,
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
    for (u32 i = 0; g->mapped && i < g->n_files; i++)
        munmap((void *)(uintptr_t)g->files[i].at, g->files[i].bytes);
    free(g->path);
    free(g->files);
    free(g->kv);
    free(g->kv_order);
    free(g->tensors);
    free(g->tensor_order);
    memset(g, 0, sizeof *g);
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    u32 i = find_name(key, g->kv_order, (u32)g->n_kv, kv_names(g));
    return i < g->n_kv ? &g->kv[i] : NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    u32 i = find_name(name, g->tensor_order, (u32)g->n_tensors, tensor_names(g));
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

static int wrong_type(const struct gguf *g, const struct gguf_kv *kv, const char *wish,
                      struct err *err)
{
    struct reader r = {.path = g->path, .kind = "metadata", .name = kv->key, .err = err};
    return refuse(&r, "is of type %s, expected %s", TYPES[kv->type].name, wish);
}

int gguf_u32(const struct gguf *g, const char *key, u32 *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (!gguf_type_is_int(kv->type))
        return wrong_type(g, kv, "an integer", err);
    i64 value = gguf_item_int(kv, 0);
    if (value < 0 || value > UINT32_MAX)
        return err_set(err, "%s: metadata \"%s\": is %s%" PRIu64 ", expected 0 to %" PRIu32,
                       g->path, key, value < 0 && kv->type != GGUF_U64 ? "-" : "",
                       value < 0 && kv->type != GGUF_U64 ? 0 - (u64)value : (u64)value, UINT32_MAX);
    *out = (u32)value;
    return 1;
}

int gguf_f32(const struct gguf *g, const char *key, float *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->type != GGUF_F32 && kv->type != GGUF_F64)
        return wrong_type(g, kv, "f32 or f64", err);
    *out = gguf_item_f32(kv, 0);
    return 1;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->type != GGUF_BOOL)
        return wrong_type(g, kv, "bool", err);
    *out = kv->at[0] != 0;
    return 1;
}

int gguf_string(const struct gguf *g, const char *key, struct gguf_str *out, struct err *err)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return 0;
    if (kv->type != GGUF_STRING)
        return wrong_type(g, kv, "string", err);
    const u8 *at = kv->at;
    *out = gguf_item_str(&at);
    return 1;
}

const char *gguf_type_name(enum gguf_type type)
{
    return (u32)type < COUNT(TYPES) ? TYPES[type].name : "?";
}

bool gguf_type_is_int(enum gguf_type type)
{
    return (u32)type < COUNT(TYPES) && TYPES[type].is_int;
}

bool gguf_str_is(struct gguf_str s, const char *text)
{
    return s.len == strlen(text) && !memcmp(s.at, text, s.len);
}

i64 gguf_item_int(const struct gguf_kv *kv, u64 i)
{
    const u8 *p = kv->at + i * TYPES[kv->item].bytes;
    switch (kv->item) {
    case GGUF_U8:
        return p[0];
    case GGUF_I8:
        return (i8)p[0];
    case GGUF_U16:
        return p[0] | p[1] << 8;
    case GGUF_I16:
        return (i16)(p[0] | p[1] << 8);
    case GGUF_U32:
        return le32(p);
    case GGUF_I32:
        return (i32)le32(p);
    case GGUF_U64:
    case GGUF_I64:
        return (i64)le64(p);
    default:
        return 0;
    }
}

float gguf_item_f32(const struct gguf_kv *kv, u64 i)
{
    const u8 *p = kv->at + i * TYPES[kv->item].bytes;
    if (kv->item == GGUF_F32) {
        u32 bits = le32(p);
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    if (kv->item == GGUF_F64) {
        u64 bits = le64(p);
        double value;
        memcpy(&value, &bits, sizeof value);
        return (float)value;
    }
    return 0;
}

struct gguf_str gguf_item_str(const u8 **at)
{
    struct gguf_str s = {(const char *)*at + 8, le64(*at)};
    *at += 8 + s.len;
    return s;
}
