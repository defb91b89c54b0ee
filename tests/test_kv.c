/* Slots: claims with the longest kept prefix, copies, domains, releases. */
#include "check.h"

#include "engine/kv.h"

static struct kv *kv;

static int open_kv(void **state)
{
    (void)state;
    struct err err;
    return kv_open(&kv, 3, 100, &err);
}

static int close_kv(void **state)
{
    (void)state;
    kv_close(kv);
    return 0;
}

/* ids first..first+n-1 as a text that runs at once. */
static int claim(u64 domain, u32 first, u32 n, u32 *kept, i32 *from)
{
    u32 ids[100];
    for (u32 i = 0; i < n; i++)
        ids[i] = first + i;
    int slot = kv_claim(kv, domain, ids, n, kept, from);
    if (slot >= 0) {
        assert_int_equal(kv_length(kv, (u32)slot), *kept);
        kv_append(kv, (u32)slot, ids + *kept, n - *kept);
    }
    return slot;
}

static void an_empty_slot_comes_first(void **state)
{
    (void)state;
    u32 kept;
    i32 from;
    assert_int_equal(claim(0, 10, 20, &kept, &from), 0);
    assert_int_equal(kept, 0);
    assert_int_equal(claim(0, 500, 20, &kept, &from), 1);
    kv_release(kv, 0);
    assert_int_equal(claim(0, 900, 20, &kept, &from), 2);
    assert_int_equal(kept, 0);
    assert_int_equal(from, -1);
}

static void a_released_slot_keeps_its_tokens(void **state)
{
    (void)state;
    u32 kept;
    i32 from;
    assert_int_equal(claim(0, 10, 20, &kept, &from), 0);
    kv_release(kv, 0);
    assert_int_equal(claim(0, 10, 30, &kept, &from), 0);
    assert_int_equal(kept, 20);
    kv_release(kv, 0);
    assert_int_equal(claim(0, 10, 30, &kept, &from), 0); /* the same text: its last token must run again */
    assert_int_equal(kept, 29);
}

static void all_in_use_is_minus_one(void **state)
{
    (void)state;
    u32 kept;
    i32 from;
    for (u32 i = 0; i < 3; i++)
        assert_int_equal(claim(0, 1000 * i, 10, &kept, &from), (int)i);
    assert_int_equal(claim(0, 0, 10, &kept, &from), -1);
    assert_int_equal(kv_free_slots(kv), 0);
    kv_release(kv, 1);
    assert_int_equal(kv_free_slots(kv), 1);
    assert_int_equal(claim(0, 5, 10, &kept, &from), 1);
}

static void a_long_prefix_of_a_running_stream_is_copied(void **state)
{
    (void)state;
    u32 kept;
    i32 from;
    assert_int_equal(claim(7, 10, 60, &kept, &from), 0);
    assert_int_equal(claim(7, 10, 50, &kept, &from), 1);
    assert_int_equal(from, 0);
    assert_int_equal(kept, 49);
    assert_int_equal(claim(7, 10, 31, &kept, &from), 2); /* 31 tokens are not worth a copy */
    assert_int_equal(from, -1);
    assert_int_equal(kept, 0);
}

static void domains_share_nothing(void **state)
{
    (void)state;
    u32 kept;
    i32 from;
    assert_int_equal(claim(1, 10, 60, &kept, &from), 0);
    assert_int_equal(claim(2, 10, 60, &kept, &from), 1);
    assert_int_equal(kept, 0);
    assert_int_equal(from, -1);
    kv_release(kv, 0);
    kv_release(kv, 1);
    assert_int_equal(claim(3, 10, 60, &kept, &from), 2);
    assert_int_equal(kept, 0);
    kv_release(kv, 2);
    assert_int_equal(claim(3, 10, 60, &kept, &from), 2);
    assert_int_equal(kept, 59);
}

/* A long text that shares only its first tokens with the newcomer is not overwritten while an older one is free. */
static void a_long_conversation_survives_a_short_likeness(void **state)
{
    (void)state;
    u32 kept, ids[100];
    i32 from;
    assert_int_equal(claim(0, 10, 90, &kept, &from), 0);
    assert_int_equal(claim(0, 500, 90, &kept, &from), 1);
    assert_int_equal(claim(0, 700, 90, &kept, &from), 2);
    kv_release(kv, 1); /* the oldest */
    kv_release(kv, 0);
    for (u32 i = 0; i < 40; i++)
        ids[i] = i < 20 ? 10 + i : 2000 + i;
    assert_int_equal(kv_claim(kv, 0, ids, 40, &kept, &from), 1);
    assert_int_equal(kept, 0);
}

/* Against a plain model: any sequence of claims, appends and releases leaves each slot's text what was said of it. */
static void random_histories_agree_with_a_plain_model(void **state)
{
    (void)state;
    static u32 texts[3][100];
    u32 lengths[3] = {0};
    bool used[3] = {0};
    check_seed(20);
    for (u32 rep = 0; rep < 20000; rep++) {
        u32 ids[100], n = 1 + check_below(100), kept, slot = check_below(3);
        i32 from;
        if (used[slot] && check_below(2)) {
            kv_release(kv, slot);
            used[slot] = false;
            continue;
        }
        u32 fork = check_below(n + 1), like = check_below(3);
        for (u32 i = 0; i < n; i++)
            ids[i] = i < fork && i < lengths[like] ? texts[like][i] : check_below(3);
        int got = kv_claim(kv, 0, ids, n, &kept, &from);
        if (got < 0) {
            assert_true(used[0] && used[1] && used[2]);
            continue;
        }
        assert_false(used[got]);
        assert_true(kept < n);
        u32 source = from < 0 ? (u32)got : (u32)from;
        assert_true(kept <= lengths[source]);
        assert_memory_equal(texts[source], ids, kept * sizeof *ids);
        kv_append(kv, (u32)got, ids + kept, n - kept);
        memcpy(texts[got], ids, n * sizeof *ids);
        lengths[got] = n;
        used[got] = true;
        assert_int_equal(kv_room(kv, (u32)got), 100 - n);
    }
}

#define KV_TEST(fn) cmocka_unit_test_setup_teardown(fn, open_kv, close_kv)

int main(void)
{
    const struct CMUnitTest tests[] = {
        KV_TEST(an_empty_slot_comes_first),
        KV_TEST(a_released_slot_keeps_its_tokens),
        KV_TEST(all_in_use_is_minus_one),
        KV_TEST(a_long_prefix_of_a_running_stream_is_copied),
        KV_TEST(domains_share_nothing),
        KV_TEST(a_long_conversation_survives_a_short_likeness),
        KV_TEST(random_histories_agree_with_a_plain_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
