/* A model once loaded does not need its file: cut to nothing, or deleted, the answers stay what they were. Before that,
 * progress counts the file's bytes up to their sum. */
#include "check.h"

#include "plainsong.h"

#include <fcntl.h>
#include <unistd.h>

enum { PROMPT_IDS = 8, ANSWER_IDS = 24 };
static const char TINY[] = "models/plainsong-tiny-q4_0.gguf";

static void copy_file(const char *from, const char *to)
{
    char buf[1 << 16];
    size_t n;
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_non_null(in);
    assert_non_null(out);
    while ((n = fread(buf, 1, sizeof buf, in)) > 0)
        assert_int_equal(fwrite(buf, 1, n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
}

static struct ps_stream *ask(struct ps_engine *e)
{
    struct ps_error err;
    u32 ids[PROMPT_IDS];
    for (u32 i = 0; i < PROMPT_IDS; i++)
        ids[i] = 300 + 7 * i;
    struct ps_request q = {.ids = ids, .n_ids = PROMPT_IDS, .max_tokens = ANSWER_IDS, .domain = 1};
    struct ps_stream *s = ps_stream_open(e, &q, &err);
    assert_non_null(s);
    return s;
}

/* Hash of the answer from its n-th token on, and of the logits. */
static u64 hear(struct ps_stream *s)
{
    struct ps_error err;
    struct ps_token t;
    struct ps_stream_info info;
    u64 h = 1;
    while (ps_stream_next(s, &t, &err) == 1)
        h = h * 31 + t.id;
    ps_stream_info(s, &info);
    ps_stream_close(s);
    return h * 31 + info.logits_hash;
}

struct told {
    u64 last, total, times;
};

static void tell(void *arg, const char *what, uint64_t done, uint64_t total)
{
    struct told *t = arg;
    assert_string_equal(what, "loading");
    assert_true(done >= t->last && done <= total);
    assert_true(t->times == 0 || total == t->total);
    *t = (struct told){done, total, t->times + 1};
}

static void test_file_cut_short(void **state)
{
    (void)state;
    char path[] = "/tmp/plainsong-loading-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    copy_file(TINY, path);
    struct ps_error err;
    struct told told = {0};
    struct ps_engine_options o = {.n_slots = 2, .n_ctx = 256, .progress = {.tell = tell, .arg = &told}};
    struct ps_model *m = ps_model_open(path, &err);
    assert_non_null(m);
    struct ps_engine *e = ps_engine_open(m, &o, &err);
    assert_non_null(e);
    assert_true(told.times >= 2 && told.last == told.total && told.total > 1 << 20);

    u64 whole = hear(ask(e));
    struct ps_token t;
    struct ps_stream *s = ask(e);
    assert_int_equal(ps_stream_next(s, &t, &err), 1); /* in the middle of an answer ... */
    assert_int_equal(ftruncate(fd, 0), 0);            /* ... every page of the file goes */
    assert_int_equal(unlink(path), 0);
    u64 h = 31 + t.id;
    struct ps_stream_info info;
    while (ps_stream_next(s, &t, &err) == 1)
        h = h * 31 + t.id;
    ps_stream_info(s, &info);
    ps_stream_close(s);
    assert_true(h * 31 + info.logits_hash == whole);
    assert_true(hear(ask(e)) == whole);

    u32 *ids; /* vocabulary, merges and metadata too */
    size_t n, len;
    assert_int_equal(ps_encode(m, "a fox and a lantern", 19, false, false, &ids, &n, &err), 0);
    struct ps_decoder *d = ps_decoder_open(m, false);
    for (size_t i = 0; i < n; i++)
        ps_decoder_push(d, ids[i], &len);
    ps_decoder_close(d);
    free(ids);
    struct ps_model_info mi;
    ps_model_info(m, &mi);
    assert_non_null(mi.chat_template);
    assert_non_null(memchr(mi.chat_template, '{', mi.chat_template_len));
    ps_engine_close(e);
    ps_model_close(m);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_file_cut_short)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
