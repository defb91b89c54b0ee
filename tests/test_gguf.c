/* GGUF files, honest and hostile: what is read, what is refused and in which words, how much memory
 * and time it may take. Inputs are exact malloc'd copies, so that AddressSanitizer sees any read
 * past the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "build_gguf.h"
#include "model/weights.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* Peak of live heap bytes, by standing in front of glibc's allocator. */
#if defined(__GLIBC__) && !defined(SANITIZED)
#include <malloc.h>
#define COUNTS_HEAP 1
#define EXPORTED __attribute__((visibility("default"))) /* so that libc calls them too */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void __libc_free(void *p);
/* volatile: compilers believe that malloc and free change no variable of ours. */
static _Thread_local volatile size_t heap_live, heap_peak;

static void *heap_took(void *p)
{
    heap_live += malloc_usable_size(p);
    if (heap_live > heap_peak)
        heap_peak = heap_live;
    return p;
}
EXPORTED void *malloc(size_t n)
{
    return heap_took(__libc_malloc(n));
}
EXPORTED void *calloc(size_t n, size_t size)
{
    return heap_took(__libc_calloc(n, size));
}
EXPORTED void *realloc(void *p, size_t n)
{
    heap_live -= malloc_usable_size(p);
    return heap_took(__libc_realloc(p, n));
}
EXPORTED void free(void *p)
{
    heap_live -= malloc_usable_size(p);
    __libc_free(p);
}
#endif

#ifdef SANITIZED
enum { SLOWER = 30 };
#else
enum { SLOWER = 1 };
#endif

static char dir[] = "/tmp/plainsong-gguf-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[4][128];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int drop_dir(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    return system(command);
}

static void write_file(const char *path, const void *at, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(at, 1, n, f), n);
    fclose(f);
}

/* One line, nothing unprintable, and each of the words (separated by '|') in it. */
static void check_message(const struct err *err, const char *words)
{
    char copy[256];
    snprintf(copy, sizeof copy, "%s", words);
    for (const char *c = err->text; *c; c++)
        assert_in_range((u8)*c, 0x20, 0x7E);
    for (char *save, *w = strtok_r(copy, "|", &save); w; w = strtok_r(NULL, "|", &save))
        if (!strstr(err->text, w))
            fail_msg("message \"%s\" lacks \"%s\"", err->text, w);
}

static void check_refused(const void *at, size_t n, const char *words)
{
    struct gguf g;
    struct err err = {.text = ""};
    u8 *copy = malloc(n ? n : 1);
    memcpy(copy, at, n);
    assert_int_equal(gguf_parse(&g, "t.gguf", copy, n, &err), -1);
    check_message(&err, "t.gguf");
    check_message(&err, words);
    assert_null(g.kv);
    free(copy);
}

/* Builds b, which is freed, and expects it refused. */
static void check_build_refused(struct build *b, const char *words)
{
    struct bytes out = build_bytes(b);
    check_refused(out.at, out.len, words);
    free(out.at);
    free(b);
}

static void check_open_refused(const char *path, const char *words)
{
    struct gguf g;
    struct err err = {.text = ""};
    assert_int_equal(gguf_open(&g, path, &err), -1);
    check_message(&err, words);
}

static void reads_values(void **state)
{
    (void)state;
    for (u32 version = 2; version <= 3; version++) {
        struct build *b = build_new();
        struct bytes strings = {0};
        b->version = version;
        build_raw(b, "a.u8", GGUF_U8, "\xff", 1);
        build_raw(b, "a.i8", GGUF_I8, "\xff", 1);
        build_raw(b, "a.u16", GGUF_U16, "\xfe\xff", 2);
        build_raw(b, "a.i16", GGUF_I16, "\xfe\xff", 2);
        build_raw(b, "a.i32", GGUF_I32, "\x05\0\0\0", 4);
        build_raw(b, "a.u64", GGUF_U64, "\xff\xff\xff\xff\0\0\0\0", 8);
        build_raw(b, "a.i64", GGUF_I64, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
        build_raw(b, "a.huge", GGUF_U64, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
        build_raw(b, "a.f64", GGUF_F64, "\0\0\0\0\0\0\xf8\x3f", 8); /* 1.5 */
        build_f32(b, "a.f32", 0.25f);
        build_bool(b, "a.yes", 1);
        build_string(b, "a.text", "h\nllo");
        build_array(b, "a.ints", GGUF_I16, 3, "\x01\0\xff\xff\x03\0", 6);
        build_array(b, "a.none", GGUF_STRING, 0, "", 0);
        put_u32(&strings, GGUF_STRING);
        put_u64(&strings, 3);
        put_str(&strings, "one");
        put_str(&strings, "");
        put_str(&strings, "three");
        build_large(b, "a.strings", GGUF_ARRAY, &strings);
        build_tensor(b, "t.one", DT_F32, 3, 0, 0);
        build_tensor(b, "t.two", DT_Q4_K, 512, 3, 2)->data = NULL;
        struct bytes out = build_bytes(b);
        struct gguf g;
        struct err err = {.text = ""};
        assert_int_equal(gguf_parse(&g, "t.gguf", out.at, out.len, &err), 0);
        assert_int_equal(g.version, version);

        u32 n = 77;
        float f = 7;
        bool yes = false;
        struct gguf_str s;
        assert_int_equal(gguf_u32(&g, "a.u8", &n, &err), 1);
        assert_int_equal(n, 255);
        assert_int_equal(gguf_u32(&g, "a.u16", &n, &err), 1);
        assert_int_equal(n, 65534);
        assert_int_equal(gguf_u32(&g, "a.i32", &n, &err), 1);
        assert_int_equal(n, 5);
        assert_int_equal(gguf_u32(&g, "a.u64", &n, &err), 1);
        assert_int_equal(n, UINT32_MAX);
        assert_int_equal(gguf_u32(&g, "a.nothing", &n, &err), 0);
        assert_int_equal(n, UINT32_MAX);
        assert_int_equal(gguf_u32(&g, "a.i64", &n, &err), -1);
        check_message(&err, "t.gguf|a.i64|-1|4294967295");
        assert_int_equal(gguf_u32(&g, "a.huge", &n, &err), -1);
        check_message(&err, "a.huge|18446744073709551615");
        assert_int_equal(gguf_u32(&g, "a.f32", &n, &err), -1);
        check_message(&err, "a.f32|f32|integer");
        assert_int_equal(gguf_f32(&g, "a.f32", &f, &err), 1);
        assert_true(f == 0.25f);
        assert_int_equal(gguf_f32(&g, "a.f64", &f, &err), 1);
        assert_true(f == 1.5f);
        assert_int_equal(gguf_f32(&g, "a.u8", &f, &err), -1);
        assert_int_equal(gguf_bool(&g, "a.yes", &yes, &err), 1);
        assert_true(yes);
        assert_int_equal(gguf_bool(&g, "a.u8", &yes, &err), -1);
        assert_int_equal(gguf_string(&g, "a.text", &s, &err), 1);
        assert_true(gguf_str_is(s, "h\nllo"));
        assert_int_equal(gguf_string(&g, "a.ints", &s, &err), -1);
        check_message(&err, "a.ints|array|string");

        const struct gguf_kv *ints = gguf_find(&g, "a.ints");
        assert_int_equal(ints->count, 3);
        assert_int_equal(ints->item, GGUF_I16);
        assert_int_equal(gguf_item_int(ints, 1), -1);
        assert_int_equal(gguf_item_int(ints, 2), 3);
        assert_int_equal(gguf_item_int(gguf_find(&g, "a.i8"), 0), -1);
        assert_int_equal(gguf_item_int(gguf_find(&g, "a.i16"), 0), -2);
        assert_int_equal(gguf_find(&g, "a.none")->count, 0);
        const struct gguf_kv *kv = gguf_find(&g, "a.strings");
        const u8 *at = kv->at;
        assert_true(gguf_str_is(gguf_item_str(&at), "one"));
        assert_true(gguf_str_is(gguf_item_str(&at), ""));
        assert_true(gguf_str_is(gguf_item_str(&at), "three"));
        assert_ptr_equal(at, kv->at + kv->bytes);

        const struct gguf_tensor *t = gguf_find_tensor(&g, "t.two");
        assert_non_null(t);
        assert_null(gguf_find_tensor(&g, "t.tw"));
        assert_null(gguf_find_tensor(&g, "t.two "));
        assert_int_equal(t->n_dims, 3);
        assert_int_equal(t->ne[3], 1);
        assert_int_equal(t->bytes, 12 * 144);
        assert_ptr_equal(t->data, out.at + b->header_bytes + 32);
        assert_int_equal(g.data_bytes, 12 + 12 * 144);
        gguf_close(&g);
        gguf_close(&g);
        free(strings.at);
        free(out.at);
        free(b);
    }
}

static void alignments(void **state)
{
    (void)state;
    for (u32 i = 0; i < 34; i++) {
        u32 a = i < 32 ? 1u << i : i == 32 ? 0 : 48;
        bool fine = a >= 8 && a <= 1 << 20 && a != 48;
        struct build *b = build_new();
        char value[64];
        b->alignment = fine ? a : 32;
        build_u32(b, "general.alignment", a);
        build_tensor(b, "t", DT_F32, 4, 0, 0);
        build_tensor(b, "u", DT_F32, 4, 0, 0);
        if (!fine) {
            snprintf(value, sizeof value, "general.alignment|is %u|expected", a);
            check_build_refused(b, value);
            continue;
        }
        struct bytes out = build_bytes(b);
        struct gguf g;
        assert_int_equal(gguf_parse(&g, "t", out.at, out.len, NULL), 0);
        assert_int_equal((u64)(gguf_find_tensor(&g, "u")->data - out.at) % a, 0);
        gguf_close(&g);
        free(out.at);
        free(b);
    }
    struct build *b = build_new();
    build_string(b, "general.alignment", "32");
    check_build_refused(b, "general.alignment|string|integer");
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    struct build *b = build_model("qwen3moe", true);
    struct bytes out = build_bytes(b);
    for (size_t n = 0; n < b->header_bytes; n++)
        check_refused(out.at, n, n ? "t.gguf" : "empty");
    for (size_t n = b->header_bytes; n < out.len; n += 61)
        check_refused(out.at, n, "end of the file");
    check_refused(out.at, out.len - 1, "end of the file");
    /* The same on disk, where the message comes with the path. */
    for (size_t n = 0; n < b->header_bytes; n += 97) {
        write_file(in_dir("cut.gguf"), out.at, n);
        check_open_refused(in_dir("cut.gguf"), "cut.gguf");
    }
    free(out.at);
    free(b);
}

/* Every byte of a header times values that make counts, types and lengths extreme: whatever the
 * answer, nothing may be touched that is not ours, and a refusal must leave one printable line. */
static void every_mutation_is_survived(void **state)
{
    (void)state;
    static const u8 VALUES[] = {0x00, 0x01, 0x02, 0x09, 0x1F, 0x7F, 0x80, 0xFF};
    static const u8 FLIPS[] = {0x01, 0x04, 0x20, 0x80};
    struct build *b = build_model("qwen2moe", true);
    struct bytes out = build_bytes(b);
    u32 refused = 0, tried = 0;
    for (size_t i = 0; i < b->header_bytes; i++) {
        u8 old = out.at[i];
        for (u32 k = 0; k < COUNT(VALUES) + COUNT(FLIPS); k++) {
            struct gguf g;
            struct weights w;
            struct err err = {.text = ""};
            out.at[i] = k < COUNT(VALUES) ? VALUES[k] : old ^ FLIPS[k - COUNT(VALUES)];
            bool bad = gguf_parse(&g, "t.gguf", out.at, out.len, &err) != 0;
            bool bad_weights = !bad && weights_open(&w, &g, &err) != 0;
            if (bad || bad_weights) {
                check_message(&err, "t.gguf");
                refused++;
            } else {
                weights_close(&w);
            }
            if (!bad)
                gguf_close(&g);
            tried++;
        }
        out.at[i] = old;
    }
    assert_true(refused > tried / 2);
    free(out.at);
    free(b);
}

static void hostile_headers(void **state)
{
    (void)state;
    static const struct {
        size_t at, n;
        const char *bytes, *words;
    } CASES[] = {
        {0, 4, "FUGG", "magic|FUGG|GGUF"},
        {0, 4, "ggml", "magic|ggml"},
        {0, 4, "\x1b[2J", "magic|\\x1b[2J"},
        {4, 4, "\0\0\0\0", "version is 0|2 or 3"},
        {4, 4, "\1\0\0\0", "version is 1|2 or 3"},
        {4, 4, "\4\0\0\0", "version is 4|2 or 3"},
        {4, 4, "\0\0\0\3", "version is 50331648|big-endian"},
        {8, 8, "\xff\xff\xff\xff\xff\xff\xff\xff", "tensor count|18446744073709551615|131072"},
        {8, 8, "\xff\xff\1\0\0\0\0\0", "tensor count|131071|left"},
        {16, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f", "metadata count|9223372036854775807|65536"},
        {16, 8, "\xff\xff\0\0\0\0\0\0", "metadata count|65535|left"},
        {24, 8, "\xff\xff\xff\xff\xff\xff\xff\xff", "metadata 0|name|18446744073709551615"},
        {24, 8, "\0\0\0\0\0\0\0\0", "metadata 0|name of 0 bytes"},
    };
    struct build *b = build_model("qwen3", false);
    struct bytes out = build_bytes(b);
    for (u32 i = 0; i < COUNT(CASES); i++) {
        struct bytes copy = {0};
        put(&copy, out.at, out.len);
        memcpy(copy.at + CASES[i].at, CASES[i].bytes, CASES[i].n);
        check_refused(copy.at, copy.len, CASES[i].words);
        free(copy.at);
    }
    free(out.at);
    free(b);
}

static void hostile_metadata(void **state)
{
    (void)state;
    static const struct {
        u32 type;
        size_t n;
        const char *value, *words;
    } CASES[] = {
        {13, 4, "\0\0\0\0", "\"k\"|value type is 13|0 to 12"},
        {UINT32_MAX, 4, "\0\0\0\0", "\"k\"|4294967295"},
        {GGUF_BOOL, 1, "\2", "\"k\"|bool|2|0 or 1"},
        {GGUF_STRING, 8, "\xff\xff\xff\xff\xff\xff\xff\xff",
         "\"k\"|18446744073709551615|file ends"},
        {GGUF_STRING, 8, "\0\0\0\1\0\0\0\0", "\"k\"|16777216|file ends"},
        {GGUF_ARRAY, 12, "\x09\0\0\0\1\0\0\0\0\0\0\0", "\"k\"|array of arrays"},
        {GGUF_ARRAY, 12, "\x0d\0\0\0\1\0\0\0\0\0\0\0", "\"k\"|item type is 13"},
        {GGUF_ARRAY, 12, "\x0a\0\0\0\1\0\0\0\0\0\0\x20", "\"k\"|2305843009213693953|wraps"},
        {GGUF_ARRAY, 12, "\x04\0\0\0\0\0\0\1\0\0\0\0", "\"k\"|67108864|file ends"},
        {GGUF_ARRAY, 12, "\x08\0\0\0\0\0\0\1\0\0\0\0", "\"k\"|16777216 strings|left"},
        {GGUF_ARRAY, 14, "\x07\0\0\0\2\0\0\0\0\0\0\0\1\3", "\"k\"|bool|3|0 or 1"},
    };
    for (u32 i = 0; i < COUNT(CASES); i++) {
        struct build *b = build_new();
        build_raw(b, "k", CASES[i].type, CASES[i].value, CASES[i].n);
        build_tensor(b, "t", DT_F32, 4, 0, 0);
        check_build_refused(b, CASES[i].words);
    }
    struct build *b = build_new();
    build_u32(b, "twice", 1);
    build_u32(b, "other", 1);
    strcpy(build_kv(b, "third")->key, "twice");
    build_kv(b, "other")->type = GGUF_U32;
    b->kv[2].type = GGUF_U32;
    b->kv[2].bytes = 4;
    check_build_refused(b, "metadata \"twice\"|appears twice");
    b = build_new();
    build_u32(b, "split.no", 0);
    build_u32(b, "x", 0);
    strcpy(b->kv[1].key, "split.no");
    check_build_refused(b, "metadata \"split.no\"|appears twice");
    b = build_new();
    build_u32(b, "bad\x1b[31m\"key", 1);
    b->kv[0].type = 99;
    check_build_refused(b, "bad\\x1b[31m\\x22key|99");
}

static struct build *two_tensors(void)
{
    struct build *b = build_new();
    build_tensor(b, "first", DT_F32, 8, 0, 0);
    build_tensor(b, "second", DT_Q8_0, 64, 2, 0);
    return b;
}

static void hostile_tensors(void **state)
{
    (void)state;
    struct build *b;
    struct build_tensor *t;

    for (u32 type = 0; type < 64; type++) {
        char words[64];
        if (dtype_info(type))
            continue;
        t = build_find(b = two_tensors(), "second");
        t->type = type;
        snprintf(words, sizeof words, "tensor \"second\"|type number %u ", type);
        check_build_refused(b, words);
    }
    t = build_find(b = two_tensors(), "second");
    t->type = UINT32_MAX;
    check_build_refused(b, "second|4294967295");
    t = build_find(b = two_tensors(), "second");
    t->n_dims = 0;
    check_build_refused(b, "second|0 dimensions|1 to 4");
    t = build_find(b = two_tensors(), "second");
    t->n_dims = 5;
    check_build_refused(b, "second|5 dimensions|1 to 4");
    for (u32 d = 0; d < 2; d++) {
        t = build_find(b = two_tensors(), "second");
        t->ne[d] = 0;
        check_build_refused(b, d ? "second|dimension 1 is 0" : "second|dimension 0 is 0");
    }
    t = build_find(b = two_tensors(), "second");
    t->ne[0] = 48;
    check_build_refused(b, "second|rows of 48|multiple of 32|q8_0");
    t = build_find(b = two_tensors(), "second");
    t->ne[0] = (u64)1 << 62;
    t->ne[1] = 1 << 10;
    check_build_refused(b, "second|4611686018427387904|wraps");
    t = build_find(b = two_tensors(), "first"); /* 2^62 floats of 4 bytes: only the bytes wrap */
    t->ne[0] = (u64)1 << 62;
    check_build_refused(b, "first|4611686018427387904|wraps");
    t = build_find(b = two_tensors(), "second");
    t->ne[1] = 3;
    check_build_refused(b, "second|past the end of the file");
    t = build_find(b = two_tensors(), "second");
    t->offset = 33;
    check_build_refused(b, "second|offset 33|multiple of the alignment 32");
    t = build_find(b = two_tensors(), "second");
    t->offset = 1 << 20;
    check_build_refused(b, "second|offset 1048576|end of the file");
    t = build_find(b = two_tensors(), "second");
    t->offset = INT64_MAX - 31; /* + 136 bytes does not wrap u64, 2^64 - 32 would */
    check_build_refused(b, "second|9223372036854775776|end of the file");
    t = build_find(b = two_tensors(), "second");
    t->offset = 0;
    check_build_refused(b, "second|offset 0|before the end|32");
    t = build_find(b = two_tensors(), "second");
    strcpy(t->name, "first");
    check_build_refused(b, "tensor \"first\"|appears twice");
    t = build_find(b = two_tensors(), "second");
    strcpy(t->name, "");
    check_build_refused(b, "tensor 1|name of 0 bytes");
}

/* offset + bytes wraps 64 bits: not expressible through the builder's signed offset. */
static void offset_that_wraps(void **state)
{
    (void)state;
    struct build *b = two_tensors();
    struct bytes out = build_bytes(b);
    u64 offset = UINT64_MAX - 31, was = 32;
    size_t at = b->header_bytes;
    while (memcmp(out.at + --at, &was, 8)) /* the last field of the directory */
        ;
    memcpy(out.at + at, &offset, 8);
    check_refused(out.at, out.len, "second|18446744073709551584|end of the file");
    free(out.at);
    free(b);
}

static void not_files(void **state)
{
    (void)state;
    check_open_refused(in_dir("none.gguf"), "none.gguf|No such file");
    check_open_refused(dir, "directory|GGUF");
    write_file(in_dir("empty.gguf"), "", 0);
    check_open_refused(in_dir("empty.gguf"), "empty.gguf|empty");
    check_refused("", 0, "empty");
    assert_int_equal(mkfifo(in_dir("pipe.gguf"), 0600), 0);
    check_open_refused(in_dir("pipe.gguf"), "pipe.gguf|pipe");
    write_file(in_dir("secret.gguf"), "GGUF", 4);
    chmod(in_dir("secret.gguf"), 0);
    if (access(in_dir("secret.gguf"), R_OK))
        check_open_refused(in_dir("secret.gguf"), "secret.gguf|Permission denied");
    char path[4000];
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = 0;
    check_open_refused(path, "cannot open");
}

/* Part i of n, with a tensor of its own. */
static struct build *part_of(u32 i, u32 n, u32 n_tensors)
{
    static const char *const NAMES[] = {"zero", "one", "two"};
    struct build *b = build_new();
    u16 no = (u16)i, count = (u16)n;
    build_raw(b, "split.no", GGUF_U16, &no, 2);
    build_raw(b, "split.count", GGUF_U16, &count, 2);
    build_raw(b, "split.tensors.count", GGUF_I32, &n_tensors, 4);
    build_u32(b, "which", i);
    build_tensor(b, NAMES[i], DT_F32, 8 + i, 0, 0);
    return b;
}

static void write_part(u32 i, u32 n, struct build *b)
{
    char name[64];
    snprintf(name, sizeof name, "m-%05u-of-%05u.gguf", i + 1, n);
    build_write(b, in_dir(name));
    free(b);
}

static void split_files(void **state)
{
    (void)state;
    const char *first = in_dir("m-00001-of-00003.gguf");
    char path[128];
    snprintf(path, sizeof path, "%s", first);
    for (u32 i = 0; i < 3; i++)
        write_part(i, 3, part_of(i, 3, 3));
    struct gguf g;
    struct err err = {.text = ""};
    if (gguf_open(&g, path, &err))
        fail_msg("%s", err.text);
    assert_int_equal(g.n_files, 3);
    assert_int_equal(g.n_tensors, 3);
    assert_int_equal(g.data_bytes, 4 * (8 + 9 + 10));
    const struct gguf_tensor *t = gguf_find_tensor(&g, "two");
    assert_int_equal(t->file, 2);
    assert_true(t->data >= g.files[2].at && t->data + t->bytes <= g.files[2].at + g.files[2].bytes);
    u32 which = 9;
    assert_int_equal(gguf_u32(&g, "which", &which, &err), 1);
    assert_int_equal(which, 0);
    gguf_close(&g);

    check_open_refused(in_dir("m-00002-of-00003.gguf"),
                       "m-00002-of|split.no is 1|m-00001-of-00003.gguf");
    rename(in_dir("m-00003-of-00003.gguf"), in_dir("other.gguf"));
    check_open_refused(path, "m-00003-of-00003.gguf|No such file");
    check_open_refused(in_dir("other.gguf"), "other.gguf|split.no is 2|-00001-of-00003.gguf");
    rename(in_dir("other.gguf"), in_dir("m-00003-of-00003.gguf"));
    write_part(2, 3, part_of(1, 3, 3));
    check_open_refused(path, "m-00003-of-00003.gguf|split.no is 1|expected 2 and 3");
    write_part(2, 3, part_of(2, 2, 3));
    check_open_refused(path, "m-00003|split.count 2|expected 2 and 3");
    struct build *b = part_of(2, 3, 3);
    strcpy(b->tensors[0].name, "zero");
    write_part(2, 3, b);
    check_open_refused(path, "tensor \"zero\"|appears twice");
    b = part_of(2, 3, 3);
    b->tensors[0].ne[0] = 1000;
    write_part(2, 3, b);
    check_open_refused(path, "m-00003|\"two\"|end of the file");
    write_part(2, 3, part_of(2, 3, 3));
    write_part(0, 3, part_of(0, 3, 4));
    check_open_refused(path, "split.tensors.count is 4|expected 3");

    b = part_of(0, 1, 1); /* a merged file is whole */
    build_write(b, in_dir("merged.gguf"));
    assert_int_equal(gguf_open(&g, in_dir("merged.gguf"), &err), 0);
    gguf_close(&g);
    free(b);
    check_build_refused(part_of(0, 3, 3), "split.count is 3|whole file");
    b = part_of(0, 3, 3);
    build_u32(b, "split.count", 60000);
    check_build_refused(b, "split.count|60000|512");
    b = part_of(0, 3, 3);
    build_string(b, "split.count", "3");
    check_build_refused(b, "split.count|string|integer");
}

/* A header of n tiny entries, as dense as the format allows. */
static struct bytes many_entries(u32 n_kv, u32 n_tensors)
{
    struct bytes out = {0};
    char name[16];
    put(&out, "GGUF", 4);
    put_u32(&out, 3);
    put_u64(&out, n_tensors);
    put_u64(&out, n_kv);
    for (u32 i = 0; i < n_kv; i++) {
        snprintf(name, sizeof name, "%x", i);
        put_str(&out, name);
        put_u32(&out, GGUF_BOOL);
        put(&out, "", 1);
    }
    for (u32 i = 0; i < n_tensors; i++) {
        snprintf(name, sizeof name, "%x", i);
        put_str(&out, name);
        put_u32(&out, 1);
        put_u64(&out, 1);
        put_u32(&out, DT_F32);
        put_u64(&out, (u64)i * 32);
    }
    put_zeros(&out, (32 - out.len % 32) % 32 + (size_t)n_tensors * 32);
    return out;
}

static void memory_stays_below_the_file(void **state)
{
    (void)state;
#ifdef COUNTS_HEAP
    static const struct {
        u32 n_kv, n_tensors;
        int result;
    } CASES[] = {{1000, 10, 0}, {3000, 0, -1}, {0, 700, 0}, {0, 60000, -1}, {65536, 1 << 17, -1}};
    for (u32 i = 0; i < COUNT(CASES); i++) {
        struct bytes out = many_entries(CASES[i].n_kv, CASES[i].n_tensors);
        struct gguf g;
        struct err err = {.text = ""};
        size_t before = heap_live;
        heap_peak = heap_live;
        int result = gguf_parse(&g, "t.gguf", out.at, out.len, &err);
        assert_in_range(heap_peak - before, 0, out.len + GGUF_FLOOR_BYTES);
        assert_int_equal(result, CASES[i].result);
        if (result)
            check_message(&err, "metadata entries|tensors|bytes of memory|expected at most");
        else
            gguf_close(&g);
        assert_int_equal(heap_live, before);
        free(out.at);
    }
    /* Opening the weights of a whole model stays inside as well, and every failure gives all of it
     * back. */
    struct build *b = build_model("qwen3moe", true);
    struct bytes out = build_bytes(b);
    for (size_t n = 0; n <= out.len; n += n < b->header_bytes ? 1 : out.len - n ? out.len - n : 1) {
        struct gguf g;
        struct weights w;
        size_t before = heap_live;
        heap_peak = heap_live;
        if (!gguf_parse(&g, "t.gguf", out.at, n, NULL)) {
            assert_int_equal(n, out.len);
            assert_int_equal(weights_open(&w, &g, NULL), 0);
            weights_close(&w);
            gguf_close(&g);
        }
        assert_in_range(heap_peak - before, 0, n + GGUF_FLOOR_BYTES);
        assert_int_equal(heap_live, before);
    }
    free(out.at);
    free(b);
#else
    print_message("a sanitizer's own allocator cannot be counted\n");
    skip();
#endif
}

/* Of this process: what else the machine does is not counted. */
static double cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

static double open_seconds(const char *path)
{
    struct gguf g;
    struct err err = {.text = ""};
    double start = cpu_seconds();
    if (gguf_open(&g, path, &err))
        fail_msg("%s", err.text);
    double seconds = cpu_seconds() - start;
    gguf_close(&g);
    return seconds;
}

static void opens_fast(void **state)
{
    (void)state;
    struct build *b = build_model("qwen3moe", true);
    struct bytes tokens = {0}, merges = {0};
    put_u32(&tokens, GGUF_STRING);
    put_u64(&tokens, 152000);
    put_u32(&merges, GGUF_STRING);
    put_u64(&merges, 151000);
    for (u32 i = 0; i < 152000; i++) {
        char text[32];
        snprintf(text, sizeof text, "token%u", i);
        put_str(&tokens, text);
        if (i < 151000)
            put_str(&merges, text);
    }
    build_large(b, "tokenizer.ggml.tokens", GGUF_ARRAY, &tokens);
    build_large(b, "tokenizer.ggml.merges", GGUF_ARRAY, &merges);
    build_write(b, in_dir("large.gguf"));
    assert_true(open_seconds(in_dir("large.gguf")) < 0.05 * SLOWER);
    free(tokens.at);
    free(merges.at);
    free(b);

    /* The most entries that memory is granted for: sorted names and the limit on counts keep it
     * near n log n. */
    struct bytes out = many_entries(1, 1 << 17);
    put_zeros(&out, 8 << 20);
    struct gguf g;
    double start = cpu_seconds();
    assert_int_equal(gguf_parse(&g, "t.gguf", out.at, out.len, NULL), 0);
    assert_true(cpu_seconds() - start < 1.0 * SLOWER);
    assert_non_null(gguf_find_tensor(&g, "1ffff"));
    gguf_close(&g);
    free(out.at);
}

static void opens_the_shipped_model(void **state)
{
    (void)state;
    struct gguf g;
    struct weights w;
    struct err err = {.text = ""};
    const char *path = "models/plainsong-tiny-q4_0.gguf";
    assert_true(open_seconds(path) < 0.05 * SLOWER);
    if (gguf_open(&g, path, &err) || weights_open(&w, &g, &err))
        fail_msg("%s", err.text);
    assert_int_equal(g.n_tensors, 74);
    assert_int_equal(g.data_bytes, 25900032);
    assert_int_equal(w.hp.n_params, 43834624);
    assert_ptr_equal(w.output, w.embed);
    weights_close(&w);
    gguf_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_values),
        cmocka_unit_test(alignments),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_mutation_is_survived),
        cmocka_unit_test(hostile_headers),
        cmocka_unit_test(hostile_metadata),
        cmocka_unit_test(hostile_tensors),
        cmocka_unit_test(offset_that_wraps),
        cmocka_unit_test(not_files),
        cmocka_unit_test(split_files),
        cmocka_unit_test(memory_stays_below_the_file),
        cmocka_unit_test(opens_fast),
        cmocka_unit_test(opens_the_shipped_model),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
