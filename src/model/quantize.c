/* The quantiser. A tensor streams through one buffer, so memory does not grow with the model.
 * Floats of any kind become fp32 first: exact for f16 and bf16. */
#include "model/quantize.h"

#include "base/exact.h"
#include "model/ggufwrite.h"

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

enum {
    BLOCK = 32,
    CHUNK = 32768,      /* weights at a time: 128 KiB as fp32 */
    NAME_SHOWN = 96,    /* bytes of a tensor's name in a message */
    FILE_TYPE_Q4_0 = 2, /* general.file_type */
    FILE_TYPE_Q8_0 = 7,
    QUANTIZATION_VERSION = 2
};

/* ---- blocks ---- */

static void put_half(u8 *out, float d)
{
    u32 h = ex_to_half(d);
    out[0] = (u8)h;
    out[1] = (u8)(h >> 8);
}

static float inverse(float d)
{
    float r = d == 0 ? 0.0f : 1.0f / d;
    return r >= -FLT_MAX && r <= FLT_MAX ? r : 0.0f;
}

/* 65,520 and more round past the largest half. */
static bool half_holds(float d)
{
    return d > -65520.0f && d < 65520.0f;
}

static u32 magnitude(float x)
{
    return EX_BITS(x) & 0x7FFFFFFFu;
}

/* The weight of largest magnitude, the first of equals. The bits of magnitudes are ordered as they
 * are. */
static float block_extreme(const float *x)
{
    u32 most = 0, i = 0;
    for (u32 j = 0; j < BLOCK; j++)
        most = magnitude(x[j]) > most ? magnitude(x[j]) : most;
    while (magnitude(x[i]) != most)
        i++;
    return x[i];
}

/* x / d lies in [-8, 8] up to a rounding, so the sum in [0.49, 16.51]. */
static u8 to_q4(float x, float r)
{
    u32 q = (u32)(i32)(x * r + 8.5f);
    return (u8)min_u32(q, 15);
}

static bool block_q4_0(const float *x, u8 *out)
{
    float d = block_extreme(x) / -8.0f, r = inverse(d);
    put_half(out, d);
    for (u32 j = 0; j < BLOCK / 2; j++)
        out[2 + j] = (u8)(to_q4(x[j], r) | to_q4(x[j + BLOCK / 2], r) << 4);
    return half_holds(d);
}

static bool block_q8_0(const float *x, u8 *out)
{
    float d = fabsf(block_extreme(x)) / 127.0f, r = inverse(d);
    put_half(out, d);
    for (u32 j = 0; j < BLOCK; j++) {
        float z = x[j] * r;
        i32 q = (i32)(fabsf(z) + 0.5f); /* at most 127: |z| <= 127 up to a rounding */
        out[2 + j] = (u8)(z < 0 ? -q : q);
    }
    return half_holds(d);
}

static i64 find_infinite(const float *x, u64 n)
{
    for (u64 i = 0; i < n; i++)
        if (!(x[i] >= -FLT_MAX && x[i] <= FLT_MAX))
            return (i64)i;
    return -1;
}

i64 quantize_blocks(enum dtype type, const float *x, u64 n, u8 *out)
{
    i64 bad = find_infinite(x, n);
    if (bad >= 0)
        return bad;
    u32 block_bytes = dtype_info(type)->block_bytes;
    for (u64 b = 0; b < n / BLOCK; b++, out += block_bytes) {
        const float *block = x + b * BLOCK;
        if (!(type == DT_Q4_0 ? block_q4_0(block, out) : block_q8_0(block, out)))
            return (i64)(b * BLOCK);
    }
    return -1;
}

/* ---- which type ---- */

static bool name_ends(struct gguf_str s, const char *end)
{
    size_t n = strlen(end);
    return s.len >= n && memcmp(s.at + s.len - n, end, n) == 0;
}

static bool name_is(const struct gguf_tensor *t, const char *name)
{
    return gguf_str_is(t->name, name);
}

enum dtype quantize_choose(const struct gguf_tensor *t, enum dtype type)
{
    if (t->n_dims == 1 || name_ends(t->name, "_norm.weight") || name_ends(t->name, ".bias") ||
        name_ends(t->name, "ffn_gate_inp.weight") ||
        name_ends(t->name, "ffn_gate_inp_shexp.weight"))
        return DT_F32;
    if (t->ne[0] % BLOCK)
        return (enum dtype)t->type;
    return name_is(t, "token_embd.weight") || name_is(t, "output.weight") ? DT_Q8_0 : type;
}

/* ---- one file ---- */

struct work {
    const struct quantize_job *job;
    struct gguf in;
    struct ggufwrite out;
    u32 *types;    /* (n_tensors) */
    float *floats; /* (CHUNK) */
    u8 *bytes;     /* CHUNK weights in any type */
    u64 done;      /* bytes of the input */
};

static const char *shown(const struct gguf_tensor *t, char *buf)
{
    return err_quote(buf, NAME_SHOWN, t->name.at, (size_t)t->name.len);
}

/* Whether both names are one file. A name that is not there is no file. */
static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Refuses an OUT that is IN or one of its parts, NAME-00001-of-0000N.gguf. */
static int check_names(const struct work *k, struct err *err)
{
    static const char tail[] = "-00001-of-00001.gguf";
    char quoted[256];
    const char *out = k->job->out;
    char *part = strdup(k->job->in);
    size_t len = part ? strlen(part) : 0;
    bool same = part && same_file(part, out);
    for (u32 i = 1; part && k->in.n_files > 1 && len >= sizeof tail && i <= k->in.n_files; i++) {
        snprintf(part + len - (sizeof tail - 1), sizeof tail, "-%05u-of-%05u.gguf", i % 100000,
                 k->in.n_files % 100000);
        same = same || same_file(part, out);
    }
    free(part);
    if (!part)
        return err_set(err, "out of memory");
    if (same)
        return err_set(err, "\"%s\" is the input itself: expected another name for the output",
                       err_quote(quoted, sizeof quoted, out, strlen(out)));
    return 0;
}

static int choose_types(struct work *k, struct quantize_result *res, struct err *err)
{
    const struct quantize_job *job = k->job;
    char name[NAME_SHOWN], line[256];
    for (u64 i = 0; i < k->in.n_tensors; i++) {
        const struct gguf_tensor *t = &k->in.tensors[i];
        const struct dtype_info *dt = dtype_info(t->type);
        if (dt->quantised)
            return err_set(err, "%s: tensor \"%s\" is %s already: expected f32, f16 or bf16",
                           k->in.path, shown(t, name), dt->name);
        k->types[i] = quantize_choose(t, job->type);
        bool quantised = dtype_info(k->types[i])->quantised;
        res->n_quantised += quantised;
        res->n_float += !quantised;
        if (!quantised && k->types[i] == t->type && t->n_dims > 1 && t->ne[0] % BLOCK &&
            job->note) {
            snprintf(line, sizeof line,
                     "tensor \"%s\" stays %s: rows of %" PRIu64
                     " weights are not whole blocks of %d",
                     shown(t, name), dt->name, t->ne[0], BLOCK);
            job->note(job->note_arg, line);
        }
    }
    return 0;
}

static void read_floats(float *x, const u8 *at, u32 type, u64 n)
{
    if (type == DT_F32)
        for (u64 i = 0; i < n; i++)
            x[i] = EX_FLOAT(gguf_le32(at + 4 * i));
    else if (type == DT_F16)
        for (u64 i = 0; i < n; i++)
            x[i] = ex_half(at[2 * i] | (u32)at[2 * i + 1] << 8);
    else
        for (u64 i = 0; i < n; i++)
            x[i] = ex_bf16(at[2 * i] | (u32)at[2 * i + 1] << 8);
}

static void write_f32(u8 *out, const float *x, u64 n)
{
    for (u64 i = 0; i < n; i++)
        for (u32 b = 0, u = EX_BITS(x[i]); b < 4; b++)
            out[4 * i + b] = (u8)(u >> 8 * b);
}

/* Weights [first, first + n) of t into the output. */
static int convert(struct work *k, const struct gguf_tensor *t, u32 to, u64 first, u64 n,
                   struct err *err)
{
    char name[NAME_SHOWN];
    u32 size = dtype_info(t->type)->block_bytes;
    const u8 *from = t->data + first * size;
    const struct dtype_info *dt = dtype_info(to);
    read_floats(k->floats, from, t->type, n);
    i64 bad = dt->quantised ? quantize_blocks((enum dtype)to, k->floats, n, k->bytes)
                            : find_infinite(k->floats, n);
    if (bad >= 0 && find_infinite(k->floats + bad, 1) == 0)
        return err_set(err, "%s: tensor \"%s\": weight %" PRIu64 " is %g: expected a finite number",
                       k->in.path, shown(t, name), first + (u64)bad, (double)k->floats[bad]);
    if (bad >= 0)
        return err_set(err,
                       "%s: tensor \"%s\": weights from %" PRIu64
                       " on are too large for %s, whose scale is a half",
                       k->in.path, shown(t, name), first + (u64)bad, dt->name);
    if (to == t->type)
        return ggufwrite_data(&k->out, from, n * size, err);
    if (to == DT_F32)
        write_f32(k->bytes, k->floats, n);
    return ggufwrite_data(&k->out, k->bytes, n / dt->block_elems * dt->block_bytes, err);
}

static int convert_all(struct work *k, struct err *err)
{
    const struct quantize_job *job = k->job;
    for (u64 i = 0; i < k->in.n_tensors; i++) {
        const struct gguf_tensor *t = &k->in.tensors[i];
        u64 size = dtype_info(t->type)->block_bytes, n = t->bytes / size;
        for (u64 first = 0; first < n; first += CHUNK) {
            u64 some = min_u64(CHUNK, n - first);
            if (job->stop && job->stop(job->stop_arg))
                return err_set(err, "interrupted: nothing was written");
            if (job->tell)
                job->tell(job->tell_arg, "quantising", k->done, k->in.data_bytes);
            if (convert(k, t, k->types[i], first, some, err))
                return -1;
            k->done += some * size;
        }
    }
    return 0;
}

static int run(struct work *k, struct quantize_result *res, struct err *err)
{
    const struct ggufwrite_u32 set[] = {
        {"general.file_type", k->job->type == DT_Q4_0 ? FILE_TYPE_Q4_0 : FILE_TYPE_Q8_0},
        {"general.quantization_version", QUANTIZATION_VERSION},
    };
    if (gguf_open(&k->in, k->job->in, err) || check_names(k, err))
        return -1;
    k->types = mem_array(k->in.n_tensors, sizeof *k->types);
    k->floats = mem_array(CHUNK, sizeof *k->floats);
    k->bytes = mem_array(CHUNK, sizeof(float));
    if (!k->types || !k->floats || !k->bytes)
        return err_set(err, "out of memory");
    if (choose_types(k, res, err) ||
        ggufwrite_open(&k->out, k->job->out, &k->in, k->types, set, COUNT(set), err) ||
        convert_all(k, err) || ggufwrite_commit(&k->out, err))
        return -1;
    for (u32 i = 0; i < k->in.n_files; i++)
        res->in_bytes += k->in.files[i].bytes;
    res->out_bytes = k->out.bytes;
    return 0;
}

int quantize_file(const struct quantize_job *job, struct quantize_result *result, struct err *err)
{
    struct work k = {.job = job};
    *result = (struct quantize_result){0};
    int rc = run(&k, result, err);
    ggufwrite_close(&k.out);
    gguf_close(&k.in);
    free(k.types);
    free(k.floats);
    free(k.bytes);
    return rc;
}
