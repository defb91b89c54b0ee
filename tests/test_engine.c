/* Streams in company: counted submissions, bytes equal to solo bytes, joins, cancels, limits, prefixes, and no
 * allocation from one token to the next. */
#include "check.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "device/device_impl.h"
#include "engine/engine.h"
#include "plainsong.h"

static struct ps_model *model;

static struct ps_engine *engine(struct ps_engine_options o)
{
    struct ps_error err;
    o.n_ctx = o.n_ctx ? o.n_ctx : 512;
    struct ps_engine *e = ps_engine_open(model, &o, &err);
    if (!e)
        fail_msg("%s", err.text);
    return e;
}

/* A prompt of n ids that depends on which. */
static void make_ids(u32 *ids, u32 n, u32 which)
{
    check_seed(1000 + which);
    for (u32 i = 0; i < n; i++)
        ids[i] = check_below(4000);
}

static struct ps_stream *start_ids(struct ps_engine *e, const u32 *ids, u32 n, u32 max, struct ps_sampling sampling)
{
    struct ps_error err;
    struct ps_request r = {.ids = ids, .n_ids = n, .max_tokens = max, .ignore_end = true, .want_logits = true,
                           .sampling = sampling};
    struct ps_stream *s = ps_stream_open(e, &r, &err);
    if (!s)
        fail_msg("%s", err.text);
    return s;
}

static struct ps_stream *start(struct ps_engine *e, u32 which, u32 n, u32 max)
{
    u32 ids[512];
    make_ids(ids, n, which);
    return start_ids(e, ids, n, max, (struct ps_sampling){0});
}

/* Hash of everything the stream gave: ids and logits. */
static u64 drain(struct ps_stream *s, struct ps_stream_info *info)
{
    struct ps_token t;
    struct ps_error err;
    u64 h = 0;
    int rc;
    while ((rc = ps_stream_next(s, &t, &err)) == 1) {
        h = check_hash(h, &t.id, sizeof t.id);
        h = check_hash(h, t.logits, 4096 * sizeof *t.logits);
    }
    assert_int_equal(rc, 0);
    if (info)
        ps_stream_info(s, info);
    ps_stream_close(s);
    return h;
}

static u64 solo(u32 which, u32 n, u32 max)
{
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 1});
    u64 h = drain(start(e, which, n, max), NULL);
    ps_engine_close(e);
    return h;
}

/* Eight streams decode together: a step is one submission of eight rows, with --serialize eight of one row. */
static void one_submission_a_step(void **state)
{
    (void)state;
    enum { B = 8, N = 40 };
    for (u32 serialize = 0; serialize < 2; serialize++) {
        struct ps_engine *e = engine((struct ps_engine_options){.n_slots = B, .serialize = serialize});
        struct ps_stream *s[B];
        struct ps_stats before, after;
        struct ps_token t;
        struct ps_error err;
        engine_hold(e, true); /* they start in one step, however late this thread gets to open the last */
        for (u32 i = 0; i < B; i++)
            s[i] = start(e, i, 1, N);
        engine_hold(e, false);
        for (u32 i = 0; i < B; i++) /* from here on every stream decodes */
            assert_int_equal(ps_stream_next(s[i], &t, &err), 1);
        ps_engine_stats(e, &before);
        u32 full = 0, first = 0;
        for (u32 i = 0; i < B; i++, first = 0)
            while (ps_stream_next(s[i], &t, &err) == 1) {
                assert_true(t.batch_rows <= (serialize ? 1 : B));
                full += t.batch_rows == B;
                first++;
            }
        ps_engine_stats(e, &after);
        for (u32 i = 0; i < B; i++)
            ps_stream_close(s[i]);
        u64 subs = after.submissions - before.submissions, rows = after.rows - before.rows;
        assert_int_equal(after.waits, after.submissions);
        if (serialize) {
            assert_int_equal(subs, rows);
        } else {
            assert_true(full >= B * (N / 2)); /* most tokens came from steps of eight rows */
            assert_true(subs <= N + B);
        }
        ps_engine_close(e);
    }
}

static void the_first_token_s_counters_wait_for_a_late_reader(void **state)
{
    (void)state;
    enum { N = 12 };
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 1});
    struct ps_stream *s = start(e, 1, 40, N);
    struct ps_stream_info info;
    struct ps_stats first, after;
    do {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        ps_stream_info(s, &info);
    } while (info.end == PS_END_NONE);
    ps_stream_first(s, &first); /* nothing was read of it yet */
    ps_engine_stats(e, &after);
    assert_int_equal(after.steps - first.steps, info.n_generated - 1);
    assert_int_equal(after.rows - first.rows, info.n_generated - 1);
    assert_true(after.bytes_read > first.bytes_read);
    assert_int_equal(first.prompt_rows, 40);
    ps_stream_close(s);
    ps_engine_close(e);
}

static void company_changes_no_byte(void **state)
{
    (void)state;
    static const u32 N[] = {1, 3, 31, 32, 33, 64, 100, 255, 256, 257};
    u64 want[COUNT(N)], got[COUNT(N)];
    struct ps_stream *s[COUNT(N)];
    for (u32 i = 0; i < COUNT(N); i++)
        want[i] = solo(i, N[i], 5 + 3 * i);
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 4, .chunk = 16});
    for (u32 i = 0; i < COUNT(N); i++)
        s[i] = start(e, i, N[i], 5 + 3 * i);
    for (u32 i = 0; i < COUNT(N); i++)
        got[i] = drain(s[i], NULL);
    ps_engine_close(e);
    assert_memory_equal(want, got, sizeof want);
}

static void kept_and_copied_prefixes_change_no_byte(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 2});
    struct ps_stream_info info;
    struct ps_stats stats;
    u64 want = solo(1, 200, 10);
    assert_true(drain(start(e, 1, 200, 10), &info) == want);
    assert_int_equal(info.n_cached, 0);
    assert_true(drain(start(e, 1, 200, 10), &info) == want); /* from its own slot */
    assert_int_equal(info.n_cached, 199);
    struct ps_stream *a = start(e, 1, 200, 150), *b = start(e, 1, 200, 10); /* b copies from a, which runs */
    assert_true(drain(b, &info) == want);
    assert_int_equal(info.n_cached, 199);
    drain(a, NULL);
    ps_engine_stats(e, &stats);
    assert_true(stats.copied >= 199);
    ps_engine_close(e);
}

static void q8_keys_change_no_byte_between_companies(void **state)
{
    (void)state;
    u64 want[6], got[6];
    struct ps_stream *s[6];
    for (u32 i = 0; i < 6; i++) {
        struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 1, .kv = "q8_0"});
        want[i] = drain(start(e, i, 30 + 50 * i, 8), NULL);
        ps_engine_close(e);
    }
    assert_true(want[0] != solo(0, 30, 8)); /* it is another store */
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 3, .kv = "q8_0", .chunk = 7});
    for (u32 i = 0; i < 6; i++)
        s[i] = start(e, i, 30 + 50 * i, 8);
    for (u32 i = 0; i < 6; i++)
        got[i] = drain(s[i], NULL);
    ps_engine_close(e);
    assert_memory_equal(want, got, sizeof want);
}

static void what_cannot_fit_is_refused_with_both_numbers(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 1, .n_ctx = 64});
    u32 ids[100];
    struct ps_error err;
    make_ids(ids, 100, 1);
    struct ps_request r = {.ids = ids, .n_ids = 64};
    assert_null(ps_stream_open(e, &r, &err));
    assert_non_null(strstr(err.text, "64"));
    r = (struct ps_request){.ids = ids, .n_ids = 60, .max_tokens = 5};
    assert_null(ps_stream_open(e, &r, &err));
    assert_non_null(strstr(err.text, "60"));
    assert_non_null(strstr(err.text, "64"));
    assert_int_equal(err.kind, PS_TOO_LONG);
    r = (struct ps_request){.ids = ids, .n_ids = 0};
    assert_null(ps_stream_open(e, &r, &err));
    ids[3] = 4096;
    r = (struct ps_request){.ids = ids, .n_ids = 10};
    assert_null(ps_stream_open(e, &r, &err));
    assert_non_null(strstr(err.text, "4096"));
    assert_int_equal(err.kind, PS_INVALID);
    struct ps_stream_info info;
    struct ps_stream *s = start(e, 1, 60, 4); /* just fits */
    drain(s, &info);
    assert_int_equal(info.n_generated, 4);
    assert_int_equal(info.end, PS_END_LENGTH);
    ps_engine_close(e);
}

static void a_full_queue_refuses_and_disturbs_nobody(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 1, .n_queue = 2});
    struct ps_stream *s[16];
    struct ps_error err;
    u32 n = 0, refused = 0, ids[8];
    make_ids(ids, 8, 3);
    u64 want = solo(3, 8, 40);
    for (u32 i = 0; i < 16; i++) {
        struct ps_request r = {.ids = ids, .n_ids = 8, .max_tokens = 40, .ignore_end = true, .want_logits = true};
        struct ps_stream *one = ps_stream_open(e, &r, &err);
        if (one)
            s[n++] = one;
        else
            refused += err.kind == PS_BUSY && strstr(err.text, "try again") != NULL;
    }
    assert_true(n >= 2);
    assert_int_equal(n + refused, 16);
    for (u32 i = 0; i < n; i++)
        assert_true(drain(s[i], NULL) == want);
    ps_engine_close(e);
}

/* The bound holds however many are opened before the engine gets to look: what waits for a free slot counts apart. */
static void the_queue_is_bounded_while_slots_are_free(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 2, .n_queue = 3});
    struct ps_stream *s[6];
    struct ps_error err;
    struct ps_stats st;
    u32 ids[8];
    make_ids(ids, 8, 3);
    struct ps_request r = {.ids = ids, .n_ids = 8, .max_tokens = 4, .ignore_end = true, .want_logits = true};
    engine_hold(e, true);
    for (u32 i = 0; i < 6; i++) {
        s[i] = ps_stream_open(e, &r, &err);
        assert_int_equal(s[i] != NULL, i < 5);
    }
    assert_int_equal(err.kind, PS_BUSY);
    ps_engine_stats(e, &st);
    assert_int_equal(st.n_queued, 5);
    engine_hold(e, false);
    for (u32 i = 0; i < 5; i++)
        drain(s[i], NULL);
    ps_engine_close(e);
}

static void cancels_end_at_the_next_step_in_every_phase(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 2, .chunk = 4});
    u64 want = solo(5, 20, 60);
    for (u32 rep = 0; rep < 20; rep++) {
        struct ps_stream *kept = start(e, 5, 20, 60);
        struct ps_stream *prompt = start(e, 6, 300, 60), *queued = start(e, 7, 10, 60);
        struct ps_token t;
        struct ps_error err;
        struct ps_stream_info info;
        usleep(rep * 700);
        ps_stream_cancel(queued);
        ps_stream_cancel(prompt);
        while (ps_stream_next(prompt, &t, &err) == 1)
            ;
        ps_stream_info(prompt, &info);
        assert_int_equal(info.end, PS_END_CANCEL);
        if (rep % 2)
            ps_stream_close(queued); /* abandoned without a look */
        else
            drain(queued, &info);
        ps_stream_close(prompt);
        assert_true(drain(kept, NULL) == want);
    }
    struct ps_stats st;
    for (u32 i = 0; i < 200; i++) { /* slots and queue are empty again */
        ps_engine_stats(e, &st);
        if (!st.n_active && !st.n_queued)
            break;
        usleep(1000);
    }
    assert_int_equal(st.n_active, 0);
    assert_int_equal(st.n_queued, 0);
    assert_int_equal(kv_free_slots(e->kv), 2);
    ps_engine_close(e);
}

static const u32 *wait_a_while(void *asked) /* past the deadline, from the third token on */
{
    if (++*(u32 *)asked >= 3)
        usleep(60000);
    return NULL;
}

static void deadlines_end_streams(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 1});
    u32 ids[8], asked = 0;
    struct ps_error err;
    struct ps_token t;
    struct ps_stream_info info;
    make_ids(ids, 8, 3);
    struct ps_request r = {.ids = ids, .n_ids = 8, .ignore_end = true, .deadline_s = 0.05,
                           .mask = {.arg = &asked, .allowed = wait_a_while}};
    for (u32 i = 0; i < 2; i++, r.deadline_s = 1e-6) { /* while it decodes; before it has begun */
        struct ps_stream *s = ps_stream_open(e, &r, &err);
        assert_non_null(s);
        while (ps_stream_next(s, &t, &err) == 1)
            ;
        ps_stream_info(s, &info);
        assert_int_equal(info.end, PS_END_DEADLINE);
        assert_in_range(info.n_generated, 0, 3);
        ps_stream_close(s);
    }
    static const double WRONG[] = {-0.1, -INFINITY, NAN};
    for (u32 i = 0; i < COUNT(WRONG); i++) { /* time that has run out already is not "none" */
        r.deadline_s = WRONG[i];
        assert_null(ps_stream_open(e, &r, &err));
        assert_int_equal(err.kind, PS_INVALID);
        assert_non_null(strstr(err.text, "deadline_s"));
    }
    ps_engine_close(e);
}

static void seeds_choose_alike_in_company(void **state)
{
    (void)state;
    struct ps_sampling hot = {.temperature = 1.0f, .top_k = 50, .top_p = 0.95f, .repeat_penalty = 1.1f};
    u32 ids[20];
    u64 want[6];
    make_ids(ids, 20, 9);
    for (u32 i = 0; i < 6; i++) {
        struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 1});
        hot.seed = i;
        want[i] = drain(start_ids(e, ids, 20, 30, hot), NULL);
        assert_true(i == 0 || want[i] != want[i - 1]);
        ps_engine_close(e);
    }
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 6});
    struct ps_stream *s[6];
    for (u32 i = 0; i < 6; i++) {
        hot.seed = i;
        s[i] = start_ids(e, ids, 20, 30, hot);
    }
    for (u32 i = 0; i < 6; i++)
        assert_true(drain(s[i], NULL) == want[i]);
    ps_engine_close(e);
}

/* Engines close under running streams' owners only after those let go: here they let go by cancelling. */
/* Forced ids are handed out as they are, end tokens among them; the logits are those of the same text read as a
 * prompt; times never run backwards. */
static void forced_tokens_are_the_answer(void **state)
{
    (void)state;
    enum { PROMPT = 20, N = 30 };
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 2});
    struct ps_error err;
    struct ps_token t;
    u32 ids[PROMPT + N], end = 0;
    double before = 0;
    make_ids(ids, PROMPT + N, 77);
    while (!ps_is_end(model, end))
        end++;
    ids[PROMPT + 3] = end;
    struct ps_request r = {.ids = ids, .n_ids = PROMPT, .max_tokens = N, .forced = ids + PROMPT, .domain = 1};
    struct ps_stream *s = ps_stream_open(e, &r, &err);
    assert_non_null(s);
    for (u32 i = 0; i < N; i++) {
        assert_int_equal(ps_stream_next(s, &t, &err), 1);
        assert_int_equal(t.id, ids[PROMPT + i]);
        assert_true(t.time >= before);
        before = t.time;
    }
    assert_int_equal(ps_stream_next(s, &t, &err), 0);
    struct ps_stream_info forced, read;
    ps_stream_info(s, &forced);
    ps_stream_close(s);
    assert_int_equal(forced.end, PS_END_LENGTH);
    drain(start_ids(e, ids, PROMPT + N - 1, 1, (struct ps_sampling){0}), &read);
    assert_true(forced.logits_hash == read.logits_hash);

    ids[PROMPT + 5] = 4096;
    assert_null(ps_stream_open(e, &r, &err));
    assert_non_null(strstr(err.text, "forced token 5"));
    r.max_tokens = 0;
    assert_null(ps_stream_open(e, &r, &err));
    assert_non_null(strstr(err.text, "max_tokens"));
    ps_engine_close(e);
}

/* A server's way: told of tokens by a note, never waiting; a mask; what the slots show. */
struct notes {
    atomic_uint told;
    u32 mask[4096 / 32];
    u32 asked, n_took, took[8];
    atomic_uint done;
};

static void note(void *arg)
{
    atomic_fetch_add(&((struct notes *)arg)->told, 1);
}

static const u32 *allowed(void *arg)
{
    struct notes *n = arg;
    memset(n->mask, 0, sizeof n->mask);
    u32 id = 100 + 7 * n->asked++; /* one token at a time */
    n->mask[id / 32] = 1u << id % 32;
    return n->mask;
}

static void took(void *arg, u32 id)
{
    struct notes *n = arg;
    if (n->n_took < COUNT(n->took))
        n->took[n->n_took++] = id;
}

static void mask_done(void *arg)
{
    atomic_fetch_add(&((struct notes *)arg)->done, 1);
}

/* A mask is told of the token that is taken, also where that was settled before. */
static void a_mask_is_told_of_forced_tokens(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 1});
    struct ps_error err;
    struct ps_token t;
    struct notes notes = {0};
    u32 ids[8];
    make_ids(ids, COUNT(ids), 3);
    struct ps_request r = {.ids = ids, .n_ids = 2, .max_tokens = 6, .forced = ids + 2, .mask = {.arg = &notes, .allowed = allowed, .took = took}};
    struct ps_stream *s = ps_stream_open(e, &r, &err);
    assert_non_null(s);
    while (ps_stream_next(s, &t, &err) == 1)
        ;
    assert_int_equal(notes.n_took, 6);
    assert_memory_equal(notes.took, ids + 2, 6 * sizeof *ids);
    ps_stream_close(s);
    ps_engine_close(e);
}

static void polling_masks_and_slots(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 2});
    struct ps_error err;
    struct notes notes = {0};
    u32 ids[20], n = 0;
    make_ids(ids, COUNT(ids), 3);
    struct ps_request r = {.ids = ids, .n_ids = COUNT(ids), .max_tokens = 8, .ignore_end = true, .tag = 77,
                           .notify = note, .notify_arg = &notes, .mask = {&notes, allowed, took, mask_done}};
    struct ps_stream *s = ps_stream_open(e, &r, &err);
    assert_non_null(s);
    struct ps_token t;
    int rc;
    while ((rc = ps_stream_poll(s, &t, &err)) != 0) {
        assert_in_range(rc, 1, 2);
        if (rc == 1) {
            assert_int_equal(t.id, 100 + 7 * n);
            assert_int_equal(notes.took[n], t.id);
            n++;
        }
    }
    assert_int_equal(n, 8);
    assert_int_equal(atomic_load(&notes.told), 8); /* the last token's note is the end's */
    struct ps_slot slots[3];
    assert_int_equal(ps_engine_slots(e, slots, 3), 2);
    bool seen = false;
    for (u32 i = 0; i < 2; i++)
        seen |= slots[i].state == PS_SLOT_FREE && slots[i].tag == 77 && slots[i].n_kept == COUNT(ids) + 7;
    assert_true(seen);
    ps_stream_close(s);
    struct ps_stats stats;
    do
        ps_engine_stats(e, &stats);
    while (stats.turn_s > 0); /* the engine waits for work */
    assert_int_equal(atomic_load(&notes.done), 1);
    ps_engine_close(e);
}

/* A mask stays the engine's until it says so: a step in progress may ask after the stream was closed. */
static void a_mask_outlives_its_stream(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 2});
    struct ps_error err;
    u32 ids[20];
    make_ids(ids, COUNT(ids), 3);
    for (u32 i = 0; i < 20; i++) {
        struct notes *notes = calloc(1, sizeof *notes);
        struct ps_request r = {.ids = ids, .n_ids = COUNT(ids), .max_tokens = 8, .ignore_end = true,
                               .mask = {notes, allowed, took, mask_done}};
        struct ps_stream *s = ps_stream_open(e, &r, &err);
        struct ps_token t;
        assert_non_null(s);
        for (u32 k = 0; k < i % 9; k++)
            ps_stream_next(s, &t, &err);
        ps_stream_close(s);
        while (!atomic_load(&notes->done))
            ;
        memset(notes, 0xFF, sizeof *notes);
        free(notes);
    }
    struct notes none = {0};
    struct ps_request bad = {.ids = ids, .n_ids = COUNT(ids), .sampling.temperature = -1, .sampling.top_p = 7,
                             .mask = {&none, allowed, took, mask_done}};
    assert_null(ps_stream_open(e, &bad, &err));
    assert_int_equal(atomic_load(&none.done), 0);
    ps_engine_close(e);
}

/* Logprobs are those of the logits, sorted, and the same in company. */
static void logprobs_follow_the_logits(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 3});
    struct ps_error err;
    u32 ids[9];
    make_ids(ids, COUNT(ids), 5);
    struct ps_request r = {.ids = ids, .n_ids = COUNT(ids), .max_tokens = 6, .ignore_end = true, .want_logits = true,
                           .want_logprobs = true, .n_top = 5, .sampling = {.temperature = 2, .seed = 4}};
    u64 hash[2] = {0};
    for (u32 company = 0; company < 2; company++) {
        struct ps_stream *others[2] = {NULL}, *s = ps_stream_open(e, &r, &err);
        assert_non_null(s);
        for (u32 i = 0; company && i < 2; i++)
            others[i] = start(e, 30 + i, 40, 20);
        struct ps_token t;
        while (ps_stream_next(s, &t, &err) == 1) {
            double sum = 0, m = t.logits[0];
            for (u32 i = 0; i < 4096; i++)
                m = t.logits[i] > m ? t.logits[i] : m;
            for (u32 i = 0; i < 4096; i++)
                sum += exp(t.logits[i] - m);
            assert_true(fabs(t.logprob - (t.logits[t.id] - m - log(sum))) < 1e-4);
            assert_true(fabs(t.top[0].logprob + log(sum)) < 1e-4);
            for (u32 i = 1; i < 5; i++)
                assert_true(t.top[i - 1].logprob > t.top[i].logprob ||
                            (t.top[i - 1].logprob == t.top[i].logprob && t.top[i - 1].id < t.top[i].id));
            hash[company] = check_hash(hash[company], &t.logprob, sizeof t.logprob);
            hash[company] = check_hash(hash[company], t.top, 5 * sizeof *t.top);
        }
        ps_stream_close(s);
        for (u32 i = 0; company && i < 2; i++)
            drain(others[i], NULL);
    }
    assert_true(hash[0] == hash[1]);
    r.n_top = 21;
    assert_null(ps_stream_open(e, &r, &err));
    assert_int_equal(err.kind, PS_INVALID);
    ps_engine_close(e);
}

/* ---- a device with memory of its own: heads of rows, rows fetched ---- */

enum { N_VOCAB = 4096, MAX_ROWS = 8 };

static atomic_uint fetched; /* rows */
static bool lies;           /* the second likeliest is listed first */

static const float *fetch(const struct device *d, u32 i)
{
    atomic_fetch_add(&fetched, 1);
    return device_cpu.logits(d, i);
}

static const u32 *list(const struct device *d, u32 i)
{
    static u32 picks[MAX_ROWS][DEVICE_PICK_WORDS];
    const float *l = device_cpu.logits(d, i);
    u32 *p = picks[i], n = 0;
    for (u32 id = 0; id < N_VOCAB; id++) {
        u32 at = n;
        for (; at && l[id] > EX_FLOAT(p[1 + 2 * at]); at--)
            if (at < DEVICE_PICKS)
                p[2 + 2 * at] = p[2 * at], p[3 + 2 * at] = p[1 + 2 * at];
        if (at < DEVICE_PICKS)
            p[2 + 2 * at] = id, p[3 + 2 * at] = EX_BITS(l[id]);
        n = min_u32(n + 1, DEVICE_PICKS);
    }
    p[0] = 1;
    p[1] = n;
    if (lies)
        p[2] = p[4], p[4] = N_VOCAB - 1;
    return p;
}

static void use_device(struct ps_engine *e, const struct device_ops *ops)
{
    engine_borrow(e)->ops = ops;
    engine_give_back(e);
}

/* Ids and the last logits' hash of a stream that wants no logits. */
static u64 say(struct ps_engine *e, struct ps_sampling sampling, u32 n)
{
    u32 ids[30];
    u64 h = 0;
    struct ps_error err;
    struct ps_token t;
    struct ps_stream_info info;
    make_ids(ids, 30, 4);
    struct ps_request r = {.ids = ids, .n_ids = 30, .max_tokens = n, .ignore_end = true, .sampling = sampling,
                           .domain = 9};
    struct ps_stream *s = ps_stream_open(e, &r, &err);
    assert_non_null(s);
    while (ps_stream_next(s, &t, &err) == 1)
        h = check_hash(h, &t.id, sizeof t.id);
    ps_stream_info(s, &info);
    ps_stream_close(s);
    assert_int_equal(info.n_generated, n);
    return check_hash(h, &info.logits_hash, sizeof info.logits_hash);
}

static void rows_stay_where_the_head_is_enough(void **state)
{
    (void)state;
    static const struct {
        struct ps_sampling o;
        u32 least, most; /* rows fetched for 20 tokens; that of the last one is, for its hash */
    } CASES[] = {
        {{0}, 1, 1},
        {{.temperature = 0.7f, .top_k = 20, .seed = 3}, 1, 1},
        {{.temperature = 1, .top_p = 0.95f, .seed = 4}, 1, 20},
        {{.repeat_penalty = 1.2f}, 20, 20},
    };
    struct device_ops ops = device_cpu;
    ops.each = NULL;
    ops.logits = fetch;
    ops.picks = list;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 2});
    for (u32 i = 0; i < COUNT(CASES); i++) {
        u64 want = say(e, CASES[i].o, 20);
        use_device(e, &ops);
        fetched = 0;
        assert_true(say(e, CASES[i].o, 20) == want);
        assert_in_range(fetched, CASES[i].least, CASES[i].most);
        use_device(e, &device_cpu);
    }
    u64 want = drain(start(e, 2, 10, 10), NULL);
    use_device(e, &ops);
    assert_true(drain(start(e, 2, 10, 10), NULL) == want);
    lies = true; /* who wants logits is told */
    struct ps_stream *s = start(e, 2, 10, 10);
    struct ps_token t;
    struct ps_error err;
    assert_int_equal(ps_stream_next(s, &t, &err), -1);
    assert_non_null(strstr(err.text, "list of likely tokens"));
    ps_stream_close(s);
    lies = false;
    ps_engine_close(e);
}

/* ---- a device that fails ---- */

static const char WHY[] = "cuda: an illegal address was met; start the program again";

struct breaker {
    struct ps_engine *engine;
    u32 told;
};

static void break_after_three(void *arg) /* a stream's notify, on the thread that owns the device */
{
    struct breaker *b = arg;
    if (++b->told == 3)
        device_break(b->engine->device, WHY);
}

static const u32 *break_while_choosing(void *arg)
{
    device_break(((struct breaker *)arg)->engine->device, WHY);
    return NULL;
}

static void ends_broken(struct ps_stream *s)
{
    struct ps_token t;
    struct ps_error err;
    struct ps_stream_info info;
    int rc;
    while ((rc = ps_stream_next(s, &t, &err)) == 1)
        ;
    assert_int_equal(rc, -1);
    assert_string_equal(err.text, WHY);
    assert_int_equal(err.kind, PS_BROKEN);
    ps_stream_info(s, &info);
    assert_int_equal(info.end, PS_END_ERROR);
    ps_stream_close(s);
}

/* Running, reading its prompt, queued: all end with the device's line, nothing more is taken, and the engine closes. */
static void a_broken_device_ends_its_streams_and_takes_no_more(void **state)
{
    (void)state;
    for (u32 way = 0; way < 3; way++) { /* between two steps, while a token is chosen, while nothing runs */
        struct ps_engine *e = engine((struct ps_engine_options){.n_slots = way == 1 ? 1 : 3, .chunk = 4});
        struct breaker b = {.engine = e};
        struct ps_error err;
        struct ps_stats st;
        struct ps_stream *s[6];
        u32 ids[40];
        drain(start(e, 1, 5, 5), NULL);
        ps_engine_stats(e, &st);
        assert_null(st.broken);
        make_ids(ids, 40, 5);
        struct ps_request r = {.ids = ids, .n_ids = 10, .ignore_end = true, .notify_arg = &b,
                               .notify = way == 0 ? break_after_three : NULL,
                               .mask = {.arg = &b, .allowed = way == 1 ? break_while_choosing : NULL}};
        engine_hold(e, true);
        for (u32 i = 0; i < COUNT(s) && way < 2; i++) {
            s[i] = ps_stream_open(e, &r, &err);
            assert_non_null(s[i]);
            r = (struct ps_request){.ids = ids, .n_ids = 40, .ignore_end = true};
        }
        engine_hold(e, false);
        for (u32 i = 0; i < COUNT(s) && way < 2; i++)
            ends_broken(s[i]);
        if (way == 2) {
            device_break(engine_borrow(e), WHY);
            device_break(e->device, "what came of it"); /* the first line stays */
            engine_give_back(e);
        }
        ps_engine_stats(e, &st);
        assert_string_equal(st.broken, WHY);
        assert_int_equal(st.n_active + st.n_queued, 0);
        assert_null(ps_stream_open(e, &r, &err));
        assert_string_equal(err.text, WHY);
        assert_int_equal(err.kind, PS_BROKEN);
        ps_engine_close(e);
    }
}

static void a_warning_is_shown_and_changes_nothing(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 1});
    struct ps_stats st;
    u64 want = drain(start(e, 1, 5, 5), NULL);
    device_warn(engine_borrow(e), "self-test: division differs");
    engine_give_back(e);
    ps_engine_stats(e, &st);
    assert_string_equal(st.warning, "self-test: division differs");
    assert_null(st.broken);
    assert_true(drain(start(e, 1, 5, 5), NULL) == want);
    ps_engine_close(e);
}

static void closing_cancels(void **state)
{
    (void)state;
    struct ps_engine *e = engine((struct ps_engine_options){.n_slots = 2});
    struct ps_stream *s[5];
    for (u32 i = 0; i < 5; i++)
        s[i] = start(e, i, 50, 200);
    for (u32 i = 0; i < 5; i++)
        ps_stream_close(s[i]);
    ps_engine_close(e);
}

static void bad_options_are_named(void **state)
{
    (void)state;
    static const struct {
        struct ps_engine_options o;
        const char *says;
    } CASES[] = {
        {{.n_ctx = 5000}, "4096"},          {{.n_slots = 5000}, "--slots"}, {{.isa = "abacus"}, "abacus"},
        {{.device = "tpu"}, "tpu"},         {{.kv = "q3"}, "--kv"},         {{.n_threads = 100000}, "threads"},
        {{.chunk = 1000000}, "chunk"},
    };
    for (u32 i = 0; i < COUNT(CASES); i++) {
        struct ps_error err;
        assert_null(ps_engine_open(model, &CASES[i].o, &err));
        if (!strstr(err.text, CASES[i].says))
            fail_msg("\"%s\" does not name %s", err.text, CASES[i].says);
    }
}

static int open_model(void **state)
{
    (void)state;
    struct ps_error err;
    model = ps_model_open("models/plainsong-tiny-q4_0.gguf", &err);
    return model ? 0 : -1;
}

static int close_model(void **state)
{
    (void)state;
    ps_model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_submission_a_step),
        cmocka_unit_test(the_first_token_s_counters_wait_for_a_late_reader),
        cmocka_unit_test(company_changes_no_byte),
        cmocka_unit_test(kept_and_copied_prefixes_change_no_byte),
        cmocka_unit_test(q8_keys_change_no_byte_between_companies),
        cmocka_unit_test(what_cannot_fit_is_refused_with_both_numbers),
        cmocka_unit_test(a_full_queue_refuses_and_disturbs_nobody),
        cmocka_unit_test(the_queue_is_bounded_while_slots_are_free),
        cmocka_unit_test(cancels_end_at_the_next_step_in_every_phase),
        cmocka_unit_test(deadlines_end_streams),
        cmocka_unit_test(seeds_choose_alike_in_company),
        cmocka_unit_test(forced_tokens_are_the_answer),
        cmocka_unit_test(a_mask_is_told_of_forced_tokens),
        cmocka_unit_test(polling_masks_and_slots),
        cmocka_unit_test(a_mask_outlives_its_stream),
        cmocka_unit_test(logprobs_follow_the_logits),
        cmocka_unit_test(rows_stay_where_the_head_is_enough),
        cmocka_unit_test(a_broken_device_ends_its_streams_and_takes_no_more),
        cmocka_unit_test(a_warning_is_shown_and_changes_nothing),
        cmocka_unit_test(closing_cancels),
        cmocka_unit_test(bad_options_are_named),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
