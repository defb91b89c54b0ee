/* Quantising: blocks against the shipped file and a slow reference, whole files written, read back
 * and refused, and what is left on the disk after a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/exact.h"
#include "build_gguf.h"
#include "cli/progress.c" /* the library holds no command line */
#include "model/quantize.h"

#include <dirent.h>
#include <fcntl.h>
#include <float.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char folder[256]; /* this run's own; made by setup */

static const char *in_folder(char *buf, const char *name)
{
    snprintf(buf, 512, "%s/%s", folder, name);
    return buf;
}

static u8 *read_whole(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s: run from the root of the tree", path);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    u8 *at = malloc(*n + 1);
    assert_true(at && fread(at, 1, *n, f) == *n);
    fclose(f);
    return at;
}

/* Files in the folder that hold a part of their name. */
static int count_files(const char *part)
{
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));)
        n += strstr(e->d_name, part) != NULL;
    closedir(d);
    return n;
}

/* ---- blocks ---- */

/* A tensor of the bf16 file, quantised, is the shipped file's. */
static void check_shipped(const char *path, const char *name, enum dtype type)
{
    struct gguf g;
    struct err err;
    size_t n;
    u8 *raw = read_whole(path, &n);
    assert_int_equal(gguf_open(&g, "models/plainsong-tiny-q4_0.gguf", &err), 0);
    const struct gguf_tensor *t = gguf_find_tensor(&g, name);
    const struct dtype_info *dt = dtype_info(type);
    u64 count = n / 2, bytes = count / 32 * dt->block_bytes;
    assert_true(t && t->type == (u32)type && t->bytes >= bytes);
    float *x = malloc(count * sizeof *x);
    u8 *out = malloc(bytes);
    for (u64 i = 0; i < count; i++)
        x[i] = ex_bf16(raw[2 * i] | (u32)raw[2 * i + 1] << 8);
    assert_int_equal(quantize_blocks(type, x, count, out), -1);
    assert_memory_equal(out, t->data, bytes);
    gguf_close(&g);
    free(raw);
    free(x);
    free(out);
}

static void blocks_equal_the_shipped_file(void **state)
{
    (void)state;
    check_shipped("tests/oracle/ffn_down_exps.bf16", "blk.0.ffn_down_exps.weight", DT_Q4_0);
    check_shipped("tests/oracle/token_embd_rows.bf16", "token_embd.weight", DT_Q8_0);
}

/* The rule of write_gguf.py, an integer tried after the other instead of rounding. */
static void slow_block(enum dtype type, const float *x, u8 *out)
{
    float most = x[0];
    for (int i = 1; i < 32; i++)
        if (fabsf(x[i]) > fabsf(most))
            most = x[i];
    float d = type == DT_Q4_0 ? most / -8 : fabsf(most) / 127, r = d == 0 ? 0 : 1 / d;
    if (isinf(r))
        r = 0;
    u32 half = ex_to_half(d);
    out[0] = half & 0xFF;
    out[1] = half >> 8 & 0xFF;
    for (int j = 0; j < 32; j++) {
        float z = x[j] * r;
        if (type == DT_Q4_0) {
            float up = z + 8.5f;
            u8 q = 0;
            while (q < 15 && up >= (float)(q + 1))
                q++;
            out[2 + j % 16] = j < 16 ? q : (u8)(out[2 + j % 16] | q << 4);
        } else {
            float up = fabsf(z) + 0.5f;
            int q = 0;
            while (up >= (float)(q + 1))
                q++;
            out[2 + j] = (u8)(z < 0 ? -q : q);
        }
    }
}

static u64 rng_state = 11;

static u32 rng(void)
{
    u64 z = rng_state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (u32)((z ^ z >> 31) >> 32);
}

static void blocks_equal_the_slow_rule(void **state)
{
    (void)state;
    static const float edges[] = {0.0f, -0.0f, 1.0f, -1.0f,    1e-45f, -1e-45f, FLT_MIN, 1e-39f,
                                  8.0f, -8.0f, 0.5f, -0.0625f, 500000, -520000, 6e-8f,   1e-7f};
    for (u32 round = 0; round < 40000; round++) {
        float x[32], scale = ldexpf(1, (int)(rng() % 40) - 30);
        u8 got[34], want[34];
        enum dtype type = round % 2 ? DT_Q4_0 : DT_Q8_0;
        u32 kind = rng() % 4;
        for (int i = 0; i < 32; i++) {
            float v = (ex_unit(rng()) - 0.5f) * scale;
            u32 edge = rng();
            x[i] = kind == 0 ? edges[edge % COUNT(edges)]
                   : kind == 1
                       ? ldexpf((float)(edge % 33) - 16, -4) /* multiples: ties of both roundings */
                       : v;
        }
        if (quantize_blocks(type, x, 32, got) >= 0)
            continue; /* too large for a half: seen below */
        slow_block(type, x, want);
        size_t n = type == DT_Q4_0 ? 18 : 34;
        for (size_t i = 0; i < n; i++)
            if (got[i] != want[i])
                fail_msg("round %u, %s: byte %zu is %02x, want %02x", round, dtype_info(type)->name,
                         i, got[i], want[i]);
    }
}

static void blocks_by_hand(void **state)
{
    (void)state;
    float x[64] = {0};
    u8 out[68];
    assert_int_equal(quantize_blocks(DT_Q4_0, x, 32, out), -1);
    assert_memory_equal(
        out, "\x00\x80\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88", 18);
    x[0] = -8, x[1] = 8, x[16] = 7, x[31] = -0.5f; /* d = 1: 0, 16 cut to 15, 15, floor(8.0) */
    assert_int_equal(quantize_blocks(DT_Q4_0, x, 32, out), -1);
    assert_memory_equal(
        out, "\x00\x3C\xF0\x8F\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88\x88", 18);
    x[0] = -127, x[2] = 0.5f, x[3] = -0.5f; /* d = 1, halves away from 0 */
    assert_int_equal(quantize_blocks(DT_Q8_0, x, 32, out), -1);
    assert_memory_equal(out, "\x00\x3C\x81\x08\x01\xFF\x00", 7);
    /* Named: the first that is not finite, the first block whose scale is 65,520 and more. */
    x[40] = NAN, x[41] = INFINITY;
    assert_int_equal(quantize_blocks(DT_Q8_0, x, 64, out), 40);
    x[40] = 0, x[41] = 65519.9f * 8;
    assert_int_equal(quantize_blocks(DT_Q4_0, x, 64, out), -1);
    x[41] = 65520.0f * 8;
    assert_int_equal(quantize_blocks(DT_Q4_0, x, 64, out), 32);
    x[41] = 65520.0f * 127;
    assert_int_equal(quantize_blocks(DT_Q8_0, x, 64, out), 32);
}

/* ---- files ---- */

static char last_note[512];
static u64 told, told_total;

static void take_note(void *arg, const char *line)
{
    (void)arg;
    snprintf(last_note, sizeof last_note, "%s", line);
}

static void take_tell(void *arg, const char *what, u64 done, u64 total)
{
    (void)arg;
    assert_string_equal(what, "quantising");
    told = done;
    told_total = total;
}

static bool stop_third(void *arg)
{
    return ++*(int *)arg == 3;
}

static int quantize(const char *in, const char *out, enum dtype type, struct err *err)
{
    struct quantize_result res;
    struct quantize_job job = {
        .in = in, .out = out, .type = type, .note = take_note, .tell = take_tell};
    last_note[0] = 0;
    err->text[0] = 0;
    return quantize_file(&job, &res, err);
}

/* n weights as the type's bytes, small and various; every bf16 and f16 here is exact in f32. */
static void *weights(u32 type, u32 n)
{
    u8 *at = malloc(4 * n);
    for (u32 i = 0; i < n; i++) {
        float v = ldexpf((float)(rng() % 255) - 127, -8);
        u32 u = EX_BITS(v), h = type == DT_F16 ? ex_to_half(v) : u >> 16;
        memcpy(at + i * (type == DT_F32 ? 4u : 2u), type == DT_F32 ? &u : &h,
               type == DT_F32 ? 4 : 2);
    }
    return at;
}

static const struct {
    const char *name;
    u32 type, ne0, ne1, ne2, q4_0, q8_0; /* its type in either file */
} plan[] = {
    {"token_embd.weight", DT_BF16, 64, 40, 0, DT_Q8_0, DT_Q8_0},
    {"output.weight", DT_F16, 64, 40, 0, DT_Q8_0, DT_Q8_0},
    {"blk.0.attn_norm.weight", DT_F16, 64, 0, 0, DT_F32, DT_F32},
    {"blk.0.attn_q_norm.weight", DT_BF16, 32, 2, 0, DT_F32, DT_F32},
    {"blk.0.attn_q.weight", DT_F32, 64, 64, 0, DT_Q4_0, DT_Q8_0},
    {"blk.0.attn_q.bias", DT_BF16, 64, 0, 0, DT_F32, DT_F32},
    {"blk.0.ffn_gate_inp.weight", DT_BF16, 64, 4, 0, DT_F32, DT_F32},
    {"blk.0.ffn_gate_inp_shexp.weight", DT_F16, 64, 1, 0, DT_F32, DT_F32},
    {"blk.0.ffn_up_exps.weight", DT_F16, 64, 32, 4, DT_Q4_0, DT_Q8_0},
    {"blk.0.ffn_odd.weight", DT_BF16, 40, 3, 0, DT_BF16, DT_BF16},
    {"blk.0.large.weight", DT_BF16, 96, 700, 0, DT_Q4_0, DT_Q8_0}, /* more than one piece of work */
};

static struct build *build_plan(u32 from, u32 to)
{
    struct build *b = build_new();
    build_string(b, "general.architecture", "test");
    build_f32(b, "test.eps", 0.5f);
    build_array(b, "test.list", GGUF_U16, 3, "\1\0\2\0\3\0", 6);
    build_array(b, "test.words", GGUF_STRING, 2, "\1\0\0\0\0\0\0\0a\2\0\0\0\0\0\0\0bc", 19);
    for (u32 i = from; i < to; i++) {
        struct build_tensor *t =
            build_tensor(b, plan[i].name, plan[i].type, plan[i].ne0, plan[i].ne1, plan[i].ne2);
        t->data = weights(plan[i].type, (u32)(t->ne[0] * t->ne[1] * t->ne[2]));
    }
    return b;
}

static void build_free(struct build *b)
{
    for (u32 i = 0; i < b->n_tensors; i++)
        free((void *)b->tensors[i].data);
    free(b);
}

static float *as_floats(const struct gguf_tensor *t, u64 n)
{
    float *x = malloc(n * sizeof *x);
    for (u64 i = 0; i < n; i++) {
        const u8 *p = t->data + i * dtype_info(t->type)->block_bytes;
        u32 h = p[0] | (u32)p[1] << 8;
        x[i] = t->type == DT_F32   ? EX_FLOAT(gguf_le32(p))
               : t->type == DT_F16 ? ex_half(h)
                                   : ex_bf16(h);
    }
    return x;
}

/* Every tensor of out is that of in by the rules. */
static void check_tensors(const struct gguf *in, const struct gguf *out, enum dtype type)
{
    assert_int_equal(in->n_tensors, out->n_tensors);
    for (u64 i = 0; i < in->n_tensors; i++) {
        const struct gguf_tensor *a = &in->tensors[i], *b = &out->tensors[i];
        u64 n = a->bytes / dtype_info(a->type)->block_bytes;
        u8 *want = malloc(4 * n);
        float *x = as_floats(a, n);
        assert_memory_equal(a->name.at, b->name.at, a->name.len);
        assert_memory_equal(a->ne, b->ne, sizeof a->ne);
        assert_int_equal(a->n_dims, b->n_dims);
        assert_int_equal(b->type, type == DT_Q4_0 ? plan[i].q4_0 : plan[i].q8_0);
        if (dtype_info(b->type)->quantised)
            assert_int_equal(quantize_blocks((enum dtype)b->type, x, n, want), -1);
        assert_memory_equal(dtype_info(b->type)->quantised ? want
                            : b->type == a->type           ? a->data
                                                           : (u8 *)x,
                            b->data, b->bytes);
        free(want);
        free(x);
    }
}

static void check_metadata(const struct gguf *in, const struct gguf *out, u32 file_type)
{
    struct err err;
    u32 v;
    u64 at = 0;
    for (u64 i = 0; i < in->n_kv; i++) {
        const struct gguf_kv *a = &in->kv[i], *b = &out->kv[at];
        if (!strncmp(a->key.at, "split.", 6))
            continue;
        at++;
        assert_int_equal(a->key.len, b->key.len);
        assert_memory_equal(a->key.at, b->key.at, a->key.len);
        if (gguf_str_is(a->key, "general.file_type"))
            continue;
        assert_true(a->type == b->type && a->item == b->item && a->count == b->count &&
                    a->bytes == b->bytes);
        assert_memory_equal(a->at, b->at, a->bytes);
    }
    assert_int_equal(gguf_u32(out, "general.file_type", &v, &err), 1);
    assert_int_equal(v, file_type);
    assert_int_equal(gguf_u32(out, "general.quantization_version", &v, &err), 1);
    assert_int_equal(v, 2);
    assert_null(gguf_find(out, "split.count"));
    assert_int_equal(out->version, 3);
}

static void check_output(const char *in, const char *out, enum dtype type)
{
    struct gguf a, b;
    struct err err;
    if (quantize(in, out, type, &err))
        fail_msg("%s", err.text);
    assert_int_equal(gguf_open(&a, in, &err), 0);
    assert_int_equal(gguf_open(&b, out, &err), 0);
    check_tensors(&a, &b, type);
    check_metadata(&a, &b, type == DT_Q4_0 ? 2 : 7);
    assert_true(b.files[0].alignment == a.files[0].alignment);
    assert_true(told_total == a.data_bytes && told < told_total && told > 0);
    gguf_close(&a);
    gguf_close(&b);
    assert_string_equal(
        last_note, "tensor \"blk.0.ffn_odd.weight\" stays bf16: rows of 40 weights are not whole "
                   "blocks of 32");
}

static void files_keep_what_is_not_weights(void **state)
{
    (void)state;
    char in[512], out[512];
    for (u32 alignment = 32; alignment <= 4096; alignment *= 128) {
        struct build *b = build_plan(0, COUNT(plan));
        b->alignment = alignment;
        if (alignment != 32) {
            build_u32(b, "general.alignment", alignment);
            build_u32(b, "general.file_type", 1); /* replaced where it stands */
        }
        b->version = alignment == 32 ? 2 : 3;
        build_write(b, in_folder(in, "in.gguf"));
        build_free(b);
        check_output(in, in_folder(out, "out.gguf"), DT_Q4_0);
        check_output(in, out, DT_Q8_0); /* over the one before */
    }
    assert_int_equal(count_files(".part"), 0);
    struct stat st;
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(stat(out, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0666 & ~mask);
}

static void split_files_become_one(void **state)
{
    (void)state;
    char in[512], part[512], out[512];
    struct err err;
    for (u32 i = 0; i < 2; i++) {
        struct build *b = build_plan(i ? 4 : 0, i ? COUNT(plan) : 4);
        build_u32(b, "split.no", i);
        build_u32(b, "split.count", 2);
        build_u32(b, "split.tensors.count", COUNT(plan));
        build_write(
            b, in_folder(i ? part : in, i ? "s-00002-of-00002.gguf" : "s-00001-of-00002.gguf"));
        build_free(b);
    }
    check_output(in, in_folder(out, "one.gguf"), DT_Q4_0);
    assert_int_equal(quantize(in, part, DT_Q4_0, &err), -1); /* the second part is input too */
    assert_non_null(strstr(err.text, "is the input itself: expected another name for the output"));
}

static void check_refused(const char *in, const char *out, enum dtype type, const char *says)
{
    struct err err;
    assert_int_equal(quantize(in, out, type, &err), -1);
    if (!strstr(err.text, says))
        fail_msg("says: %s", err.text);
    assert_int_equal(count_files(".part"), 0);
}

static void bad_weights_are_named(void **state)
{
    (void)state;
    char in[512], out[512];
    float x[64 * 2] = {0};
    in_folder(in, "bad.gguf");
    in_folder(out, "never.gguf");
    for (u32 i = 0; i < 5; i++) {
        struct build *b = build_new();
        build_string(b, "general.architecture", "test");
        build_tensor(b, i == 4 ? "blk.0.x_norm.weight" : "blk.0.x.weight", DT_F32, 64, 2, 0)->data =
            x;
        if (i == 0)
            build_tensor(b, "blk.1.y.weight", DT_Q4_0, 64, 2, 0);
        x[70] = i == 1 || i == 4 ? NAN : i == 2 ? -INFINITY : i == 3 ? 1e6f : 0;
        build_write(b, in);
        free(b);
        static const char *const says[] = {
            "tensor \"blk.1.y.weight\" is q4_0 already: expected f32, f16 or bf16",
            "tensor \"blk.0.x.weight\": weight 70 is nan: expected a finite number",
            "tensor \"blk.0.x.weight\": weight 70 is -inf",
            "tensor \"blk.0.x.weight\": weights from 64 on are too large for q4_0",
            "tensor \"blk.0.x_norm.weight\": weight 70 is nan",
        };
        check_refused(in, out, DT_Q4_0, says[i]);
    }
    assert_int_equal(count_files("never"), 0);
    check_refused("models/plainsong-tiny-q4_0.gguf", out, DT_Q8_0,
                  "tensor \"token_embd.weight\" is q8_0 already");
}

static void bad_names_are_refused(void **state)
{
    (void)state;
    char in[512], out[512], link_name[512];
    struct build *b = build_plan(0, COUNT(plan));
    build_write(b, in_folder(in, "same.gguf"));
    build_free(b);
    check_refused(in, in, DT_Q4_0, "is the input itself");
    assert_int_equal(symlink(in, in_folder(link_name, "link.gguf")), 0);
    check_refused(in, link_name, DT_Q4_0, "is the input itself");
    check_refused(link_name, in, DT_Q4_0, "is the input itself");
    check_refused(in, folder, DT_Q4_0, "is not a regular file");
    check_refused(in, "/dev/null", DT_Q4_0, "is not a regular file");
    check_refused(in, in_folder(out, "none/x.gguf"), DT_Q4_0, "No such file or directory");
    check_refused(in_folder(out, "absent.gguf"), in, DT_Q4_0, "absent.gguf");
    if (geteuid() != 0) { /* root may write anywhere */
        assert_int_equal(mkdir(in_folder(out, "closed"), 0500), 0);
        check_refused(in, in_folder(out, "closed/x.gguf"), DT_Q4_0, "Permission denied");
    }
}

/* The limit on a file's size stands for a full disk. What was there before stays. */
static void failures_leave_nothing_half_made(void **state)
{
    (void)state;
    char in[512], out[512];
    size_t n;
    struct err err;
    struct rlimit old, small;
    struct build *b = build_plan(0, COUNT(plan));
    build_write(b, in_folder(in, "in2.gguf"));
    build_free(b);
    FILE *f = fopen(in_folder(out, "kept.gguf"), "wb");
    assert_true(f && fputs("before", f) >= 0 && fclose(f) == 0);
    void (*was)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (u32 limit = 0; limit < 60000; limit += 9973) {
        small = old;
        small.rlim_cur = limit;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        int rc = quantize(in, out, DT_Q8_0, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(rc, -1);
        assert_non_null(strstr(err.text, "cannot write \""));
        assert_non_null(strstr(err.text, "File too large"));
        assert_int_equal(count_files(".part"), 0);
    }
    signal(SIGXFSZ, was);
    int asked = 0;
    struct quantize_result res;
    struct quantize_job job = {
        .in = in, .out = out, .type = DT_Q4_0, .stop = stop_third, .stop_arg = &asked};
    assert_int_equal(quantize_file(&job, &res, &err), -1);
    assert_string_equal(err.text, "interrupted: nothing was written");
    assert_int_equal(count_files(".part"), 0);
    u8 *text = read_whole(out, &n);
    assert_true(n == 6 && memcmp(text, "before", 6) == 0);
    free(text);
}

static void progress_fits_the_line(void **state)
{
    (void)state;
    char line[80];
    progress_line(line, sizeof line, "loading", 0, 100, 0);
    assert_string_equal(line, "loading      [----------------------------]   0%");
    progress_line(line, sizeof line, "quantising", 50000000, 100000000, 2);
    assert_string_equal(line,
                        "quantising   [##############--------------]  50%   25.0 MB/s  0:02 left");
    progress_line(line, sizeof line, "loading", 6000000000, 18000000000, 4);
    assert_string_equal(line,
                        "loading      [#########-------------------]  33%    1.5 GB/s  0:08 left");
    static const u64 ends[] = {0, 1, 100, UINT64_MAX / 2, UINT64_MAX};
    static const double times[] = {0, 0.3, 1e9, 1e30};
    for (u32 i = 0; i < COUNT(ends) * COUNT(ends) * COUNT(times); i++) {
        progress_line(line, sizeof line, "a word much longer than there is room", ends[i % 5],
                      ends[i / 5 % 5], times[i / 25]);
        assert_true(strlen(line) >= 48 && strlen(line) < 80);
    }
    struct progress p; /* the tests' stderr may be a terminal: then there is a tell */
    assert_true(progress_open(&p).tell == NULL || isatty(STDERR_FILENO));
    progress_close(&p);
}

/* The whole bf16 file, where it lies beside the tree: every tensor's bytes are the shipped ones. */
#define FLOATS "../shared/models/plainsong-tiny-bf16.gguf"

static void whole_model_equals_the_shipped_file(void **state)
{
    (void)state;
    char out[512];
    struct gguf a, b;
    struct err err;
    if (quantize(FLOATS, in_folder(out, "tiny.gguf"), DT_Q4_0, &err))
        fail_msg("%s", err.text);
    assert_int_equal(gguf_open(&a, "models/plainsong-tiny-q4_0.gguf", &err), 0);
    assert_int_equal(gguf_open(&b, out, &err), 0);
    assert_int_equal(a.n_tensors, b.n_tensors);
    for (u64 i = 0; i < a.n_tensors; i++) {
        assert_true(a.tensors[i].type == b.tensors[i].type &&
                    a.tensors[i].bytes == b.tensors[i].bytes);
        assert_memory_equal(a.tensors[i].data, b.tensors[i].data, a.tensors[i].bytes);
    }
    gguf_close(&a);
    gguf_close(&b);
}

static int setup(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/plainsong-quantize-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char name[512];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.' && unlink(in_folder(name, e->d_name)))
            rmdir(name);
    if (d)
        closedir(d);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_equal_the_shipped_file),
        cmocka_unit_test(blocks_equal_the_slow_rule),
        cmocka_unit_test(blocks_by_hand),
        cmocka_unit_test(files_keep_what_is_not_weights),
        cmocka_unit_test(split_files_become_one),
        cmocka_unit_test(bad_weights_are_named),
        cmocka_unit_test(bad_names_are_refused),
        cmocka_unit_test(failures_leave_nothing_half_made),
        cmocka_unit_test(progress_fits_the_line),
    };
    const struct CMUnitTest whole[] = {cmocka_unit_test(whole_model_equals_the_shipped_file)};
    int rc = cmocka_run_group_tests(tests, setup, teardown);
    if (access(FLOATS, R_OK) == 0)
        rc += cmocka_run_group_tests(whole, setup, teardown);
    return rc;
}
