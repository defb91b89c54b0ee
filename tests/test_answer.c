/* Stop strings, tool calls and the whole pipeline of an answer: whatever the cuts between tokens, the events join to
 * the same bytes, and nothing is lost. */
#include "check.h"

#include "serve/answer.h"

/* ---- stop strings, against the definition ---- */

struct stop_case {
    const char *texts[STOPS_MAX];
    size_t lens[STOPS_MAX];
    u32 n;
};

/* The first end of a stop string, the longest there; *at: where it starts. -1: none. */
static i32 find(const struct stop_case *c, const char *text, size_t len, size_t *at)
{
    for (size_t end = 1; end <= len; end++) {
        i32 best = -1;
        for (u32 i = 0; i < c->n; i++)
            if (c->lens[i] <= end && !memcmp(text + end - c->lens[i], c->texts[i], c->lens[i]) &&
                (best < 0 || c->lens[i] > c->lens[best]))
                best = (i32)i;
        if (best >= 0) {
            *at = end - c->lens[best];
            return best;
        }
    }
    return -1;
}

/* The longest end of text that begins a stop string. */
static size_t could_be(const struct stop_case *c, const char *text, size_t len)
{
    for (size_t n = len < STOPS_MAX_BYTES ? len : STOPS_MAX_BYTES; n > 0; n--)
        for (u32 i = 0; i < c->n; i++)
            if (c->lens[i] > n && !memcmp(text + len - n, c->texts[i], n))
                return n;
    return 0;
}

static void run_stops(const struct stop_case *c, const char *text, size_t len)
{
    struct stops *s;
    assert_int_equal(stops_open(&s, c->texts, c->lens, c->n), 0);
    struct stops_at at = {0};
    char out[512];
    size_t n = 0, i = 0, where = 0;
    i32 found = -1, want = find(c, text, len, &where);
    while (i < len && found < 0) {
        size_t take = 1 + check_below(5);
        take = take > len - i ? len - i : take;
        struct stops_cut cut = stops_push(s, &at, text + i, take);
        memcpy(out + n, cut.head, cut.n_head);
        memcpy(out + n + cut.n_head, cut.tail, cut.n_tail);
        n += cut.n_head + cut.n_tail;
        i += take;
        found = cut.found;
        if (found < 0)
            assert_int_equal(n, i - could_be(c, text, i)); /* not a byte too many is held back, nor one too few */
    }
    if (found < 0) {
        struct stops_cut cut = stops_end(s, &at);
        memcpy(out + n, cut.head, cut.n_head);
        n += cut.n_head + cut.n_tail;
    }
    assert_int_equal(found < 0 ? -1 : (i32)c->lens[found], want < 0 ? -1 : (i32)c->lens[want]);
    assert_int_equal(n, want < 0 ? len : where);
    assert_memory_equal(out, text, n);
    stops_close(s);
}

static void test_stops(void **state)
{
    (void)state;
    check_seed(5);
    for (int round = 0; round < 20000; round++) {
        struct stop_case c = {.n = check_below(5)};
        char texts[5][12], text[200];
        u32 letters = 1 + check_below(3); /* few letters: many half matches */
        for (u32 i = 0; i < c.n; i++) {
            c.lens[i] = 1 + check_below(check_below(3) ? 4 : 11);
            for (size_t k = 0; k < c.lens[i]; k++)
                texts[i][k] = (char)('a' + check_below(letters));
            c.texts[i] = texts[i];
        }
        size_t len = check_below(sizeof text);
        for (size_t k = 0; k < len; k++)
            text[k] = (char)('a' + check_below(letters + (check_below(4) == 0)));
        run_stops(&c, text, len);
    }
}

/* ---- answers ---- */

static struct token_model *tokens;
static struct gguf file;
static u32 byte_ids[256];

static int open_tokens(void **state)
{
    struct err err;
    (void)state;
    if (gguf_open(&file, "models/plainsong-tiny-q4_0.gguf", &err) || token_open(&tokens, &file, 4096, &err)) {
        print_error("%s\n", err.text);
        return -1;
    }
    for (u32 id = 0; id < token_count(tokens); id++) {
        size_t len;
        const char *text = token_bytes(tokens, id, false, &len);
        if (len == 1)
            byte_ids[(u8)*text] = id;
    }
    return 0;
}

static int close_tokens(void **state)
{
    (void)state;
    token_close(tokens);
    gguf_close(&file);
    return 0;
}

/* What was told, as text: R[..] reasoning, C[..] content, B0:f call, A[..] arguments, E0, F:stop. Neighbours of one
 * kind are joined. */
struct story {
    struct bytes text;
    int open; /* kind, or -1 */
    u32 finishes;
    char ids[8][17];
};

static void on_event(void *arg, const struct answer_event *e)
{
    struct story *s = arg;
    static const char *const opens[] = {"R[", "C[", NULL, "A["};
    if (s->open >= 0 && s->open != (int)e->kind)
        bytes_str(&s->text, "]");
    if (opens[e->kind < 4 ? e->kind : 2] && s->open != (int)e->kind)
        bytes_str(&s->text, opens[e->kind]);
    s->open =
        e->kind == ANSWER_REASONING || e->kind == ANSWER_CONTENT || e->kind == ANSWER_ARGUMENTS ? (int)e->kind : -1;
    assert_int_equal(s->finishes, 0);
    if (e->kind == ANSWER_CALL || e->kind == ANSWER_CALL_END) {
        bytes_str(&s->text, e->kind == ANSWER_CALL ? "B" : "E");
        bytes_u64(&s->text, e->call);
        assert_int_equal(strlen(e->id), 16);
        if (e->call < 8)
            strcpy(s->ids[e->call], e->id);
    }
    if (e->kind == ANSWER_CALL)
        bytes_str(&s->text, ":");
    if (s->open >= 0)
        assert_true(e->len > 0);
    bytes_put(&s->text, e->text, e->len);
    if (e->kind == ANSWER_FINISH) {
        static const char *const names[] = {"stop", "length", "tool_calls"};
        bytes_str(&s->text, "F:");
        bytes_str(&s->text, names[e->finish]);
        if (e->stop) {
            bytes_str(&s->text, "=");
            bytes_str(&s->text, e->stop);
        }
        s->finishes++;
    }
}

enum { SPLIT = 1, IN = 2, CALLS = 4, ONE = 8, LENGTH = 16, STOP = 32, TYPES = 64 };

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},"
    "\"n\":{\"type\":[\"string\",\"null\"]},\"a\":{\"anyOf\":[{\"type\":\"number\"},{\"type\":\"array\"}]}}}}}]";

static struct answer *begin(struct story *s, unsigned how, const struct stops *stops, const struct calls_tools *types)
{
    struct answer *a;
    *s = (struct story){.open = -1};
    assert_int_equal(answer_open(&a, &(struct answer_options){.tokens = tokens,
                                                              .stops = how & STOP ? stops : NULL,
                                                              .split_reasoning = how & SPLIT,
                                                              .in_reasoning = how & IN,
                                                              .parse_calls = how & CALLS,
                                                              .one_call = how & ONE,
                                                              .tools = how & TYPES ? types : NULL,
                                                              .request_id = "abc",
                                                              .tell = on_event,
                                                              .arg = s}),
                     0);
    return a;
}

/* text in random pieces; tokens_too: as ids of each piece, else as text, else a byte a token. */
static void tell(struct answer *a, const char *text, int as)
{
    size_t len = strlen(text), i = 0;
    bool more = true;
    while (i < len && more) {
        size_t take = as == 2 ? 1 : as == 3 ? len : 1 + check_below(check_below(3) ? 3 : 20);
        take = take > len - i ? len - i : take;
        while (as != 2 && i + take < len && ((u8)text[i + take] & 0xC0) == 0x80)
            take++;
        if (as == 0 || as == 3) {
            more = answer_text(a, text + i, take);
        } else if (as == 2) {
            more = answer_push(a, byte_ids[(u8)text[i]]);
        } else {
            struct token_ids ids = {0};
            struct err err;
            assert_int_equal(token_encode(tokens, text + i, take, TOKEN_PARSE_SPECIAL, &ids, &err), 0);
            for (size_t k = 0; k < ids.n && more; k++)
                more = answer_push(a, ids.ids[k]);
            token_ids_free(&ids);
        }
        i += take;
    }
}

struct answer_case {
    unsigned how;
    const char *text, *want;
};

static const struct answer_case cases[] = {
    {0, "", "F:stop"},
    {LENGTH, "Hello", "C[Hello]F:length"},
    {0, " \xC3\xA9\xF0\x9F\x98\x80<think>x</think> ", "C[ \xC3\xA9\xF0\x9F\x98\x80<think>x</think> ]F:stop"},
    /* reasoning */
    {SPLIT, "<think>\nhm hm\n</think>\n\nYes. ", "R[hm hm]C[Yes. ]F:stop"},
    {SPLIT, "\n<think>a</thin</think>b", "R[a</thin]C[b]F:stop"},
    {SPLIT, "<think>\n\n</think>\n\nYes", "C[Yes]F:stop"},
    {SPLIT, " <thing> and <think>", "C[ <thing> and <think>]F:stop"},
    {SPLIT, " <thi", "C[ <thi]F:stop"},
    {SPLIT | LENGTH, "<think>cut off ", "R[cut off ]F:length"},
    {SPLIT | IN, "so\n\n</think>\n\nyes", "R[so]C[yes]F:stop"},
    {SPLIT | IN, "\n<think>\nso</think>yes", "R[so]C[yes]F:stop"},
    {SPLIT | IN | LENGTH, "<th", "R[<th]F:length"},
    {SPLIT | IN, "a</think>b</think>c", "R[a]C[b</think>c]F:stop"},
    /* stop strings: END, ###, in all that is written */
    {STOP, "text EN END and", "C[text EN ]F:stop=END"},
    {STOP, "a##", "C[a##]F:stop"},
    {STOP | SPLIT, "<think>a END b", "R[a ]F:stop=END"},
    {STOP | LENGTH, "##EN", "C[##EN]F:length"},
    {STOP | CALLS, "x<tool_###", "C[x<tool_]F:stop=###"},
    /* calls */
    {CALLS, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\\\"\"}]}}\n</tool_call>",
     "B0:fA[{\"a\": [1, {\"b\": \"}\\\"\"}]}]E0F:tool_calls"},
    {CALLS,
     "Let me see.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
     "\"arguments\": {\"x\":1}}\n</tool_call>\n",
     "C[Let me see.]B0:fA[{}]E0B1:gA[{\"x\":1}]E1F:tool_calls"},
    {CALLS,
     "<tool_call>{\"arguments\": {\"x\":\"</tool_call>\"}, \"id\": [1,\"}\"], \"name\": \"f\\u00e9\"}</tool_call> "
     "after ",
     "B0:f\xC3\xA9"
     "A[{\"x\":\"</tool_call>\"}]E0C[after]F:tool_calls"},
    {CALLS, "<tool_call>{\"name\":\"f\"}</tool_call>", "B0:fA[{}]E0F:tool_calls"},
    {CALLS, "<tool_call>{\"name\":\"f\",\"arguments\":null}</tool_call>", "B0:fA[{}]E0F:tool_calls"},
    {CALLS, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": 1}\"}</tool_call>",
     "B0:fA[{\"x\": 1}]E0F:tool_calls"},
    {CALLS, "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"a\nb\"}}}\n</tool_call>",
     "B0:fA[{\"x\":\"a\\nb\"}]E0F:tool_calls"},
    {CALLS, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "B0:fA[{}]E0F:tool_calls"},
    {CALLS, "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n<tool_call>{\"name\":\"g\"}</tool_call>",
     "B0:fA[{}]E0B1:gA[{}]E1F:tool_calls"},
    {CALLS, "<tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>", "C[<tool_call>]B0:gA[{}]E0F:tool_calls"},
    {CALLS | LENGTH, "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\": \"ab", "B0:fA[{\"x\": \"ab]E0F:length"},
    {CALLS | ONE, "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\"}</tool_call>",
     "B0:fA[{}]E0F:tool_calls"},
    /* what is no call is text */
    {CALLS, "a <tool_call>b</tool_call> c ", "C[a <tool_call>b</tool_call> c ]F:stop"},
    {CALLS, "x <tool_call>\n{\"name\": 1}</tool_call>", "C[x <tool_call>\n{\"name\": 1}</tool_call>]F:stop"},
    {CALLS, "<tool_call>{\"arguments\":{}}</tool_call>", "C[<tool_call>{\"arguments\":{}}</tool_call>]F:stop"},
    {CALLS, "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
     "C[<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>]F:stop"},
    {CALLS, "<tool_call>\n{\"na", "C[<tool_call>\n{\"na]F:stop"},
    {CALLS, "a\n <tool_cal", "C[a\n <tool_cal]F:stop"},
    {CALLS, "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1]}}</tool_call>b",
     "B0:fA[{\"x\":1]}}]E0C[b]F:tool_calls"},
    {CALLS, "<tool_call>{\"name\":\"f\",\"arguments\":{}, oops}</tool_call>",
     "B0:fA[{}]E0C[, oops}</tool_call>]F:tool_calls"},
    {CALLS | SPLIT, "<think>\n<tool_call>\n</think>\n<tool_call>{\"name\":\"f\"}</tool_call>",
     "R[<tool_call>]B0:fA[{}]E0F:tool_calls"},
    /* Qwen3-Coder's form */
    {CALLS | TYPES,
     "<tool_call>\n<function=f>\n<parameter=s>\nline 1\n\"2\"\n</parameter>\n<parameter=i>\n42\n</parameter>\n"
     "<parameter=b>True</parameter>\n<parameter=o>\n{\"a\": [1]}\n</parameter>\n</function>\n</tool_call>",
     "B0:fA[{\"s\": \"line 1\\n\\\"2\\\"\", \"i\": 42, \"b\": true, \"o\": {\"a\": [1]}}]E0F:tool_calls"},
    {CALLS | TYPES,
     "<tool_call>\n<function=f>\n<parameter=n>\nnull\n</parameter>\n<parameter=a>\n[1]\n</parameter>\n"
     "<parameter=i>\nabout 3\n</parameter>\n<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>",
     "B0:fA[{\"n\": null, \"a\": [1], \"i\": \"about 3\", \"other\": \"7\"}]E0F:tool_calls"},
    {CALLS,
     "<tool_call>\n<function=f>\n<parameter=s>\n\n\xC3\xA9\n\n<b></param\n</\n\n</parameter>\n<parameter=t>\n</"
     "parameter>\n</function>\n"
     "</tool_call>",
     "B0:fA[{\"s\": \"\\n\xC3\xA9\\n\\n<b></param\\n</\\n\", \"t\": \"\"}]E0F:tool_calls"},
    {CALLS, "<tool_call>\n<function=f>\n</function>\n</tool_call> x", "B0:fA[{}]E0C[x]F:tool_calls"},
    {CALLS, "<tool_call><function=f><parameter=s>a</parameter></tool_call>", "B0:fA[{\"s\": \"a\"}]E0F:tool_calls"},
    {CALLS | LENGTH, "<tool_call>\n<function=f>\n<parameter=s>\nab\n", "B0:fA[{\"s\": \"ab\\n]E0F:length"},
    {CALLS, "<tool_call>\n<function=f>\n<parameter=s>\na</parameter> oops </function>",
     "B0:fA[{\"s\": \"a\"}]E0C[oops </function>]F:tool_calls"},
    {CALLS, "<tool_call>\n<func=f>", "C[<tool_call>\n<func=f>]F:stop"},
};

static void test_answers(void **state)
{
    (void)state;
    struct stops *stops;
    struct calls_tools *types;
    const char *texts[] = {"END", "###"};
    size_t lens[] = {3, 3};
    assert_int_equal(stops_open(&stops, texts, lens, 2), 0);
    assert_int_equal(calls_tools_open(&types, tools), 0);
    check_seed(6);
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int round = 0; round < 40; round++) {
            struct story s;
            struct answer *a = begin(&s, cases[i].how, stops, types);
            tell(a, cases[i].text, round == 0 ? 3 : round % 3);
            answer_end(a, cases[i].how & LENGTH);
            assert_false(answer_failed(a));
            answer_close(a);
            bytes_put(&s.text, "", 1);
            if (strcmp(s.text.at, cases[i].want) != 0)
                fail_msg("case %zu, round %d: %s\nexpected %s\ngot      %s", i, round, cases[i].text, cases[i].want,
                         s.text.at);
            bytes_free(&s.text);
        }
    calls_tools_close(types);
    stops_close(stops);
}

/* Random texts of the tags' pieces: the cuts make no difference, and with nothing taken out the text is as it was. */
static void test_random(void **state)
{
    (void)state;
    static const char *const pieces[] = {"<think>",
                                         "</think>",
                                         "<tool_call>",
                                         "</tool_call>",
                                         "{\"name\": \"f\", \"arguments\": ",
                                         "{",
                                         "}",
                                         "\"",
                                         "\n",
                                         " ",
                                         "<",
                                         ">",
                                         "x",
                                         "\\",
                                         ":",
                                         ",",
                                         "[",
                                         "]",
                                         "END",
                                         "EN",
                                         "<function=f>",
                                         "<parameter=s>",
                                         "</parameter>",
                                         "</function>",
                                         "\xF0\x9F\x98\x80",
                                         "{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
                                         "null",
                                         "#",
                                         "</tool"};
    struct stops *stops;
    struct calls_tools *types;
    const char *texts[] = {"END", "###"};
    size_t lens[] = {3, 3};
    assert_int_equal(stops_open(&stops, texts, lens, 2), 0);
    assert_int_equal(calls_tools_open(&types, tools), 0);
    check_seed(7);
    for (int round = 0; round < 6000; round++) {
        struct bytes text = {0};
        unsigned how = check_below(128) & ~(unsigned)LENGTH;
        for (u32 n = check_below(30); n > 0; n--)
            bytes_str(&text, pieces[check_below(COUNT(pieces))]);
        bytes_put(&text, "", 1);
        char *first = NULL;
        for (int as = 3; as >= 0; as--) {
            struct story s;
            struct answer *a = begin(&s, how, stops, types);
            tell(a, text.at, as);
            answer_end(a, false);
            answer_close(a);
            assert_int_equal(s.finishes, 1);
            bytes_put(&s.text, "", 1);
            if (!first)
                first = strdup(s.text.at);
            if (strcmp(s.text.at, first) != 0)
                fail_msg("round %d, as %d, how %u: %s\nwhole %s\ncut   %s", round, as, how, text.at, first, s.text.at);
            bytes_free(&s.text);
        }
        if (!(how & (SPLIT | CALLS | STOP)) && text.len > 1)
            assert_memory_equal(first + 2, text.at, text.len - 1);
        free(first);
        bytes_free(&text);
    }
    calls_tools_close(types);
    stops_close(stops);
}

/* Calls have ids that follow from the request and differ. */
static void test_ids(void **state)
{
    (void)state;
    const char *text = "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"f\"}</tool_call>";
    struct story s[2];
    for (int i = 0; i < 2; i++) {
        struct answer *a = begin(&s[i], CALLS, NULL, NULL);
        tell(a, text, i);
        answer_end(a, false);
        answer_close(a);
        bytes_free(&s[i].text);
    }
    assert_string_equal(s[0].ids[0], s[1].ids[0]);
    assert_string_equal(s[0].ids[1], s[1].ids[1]);
    assert_string_not_equal(s[0].ids[0], s[0].ids[1]);
}

/* Bytes that are no characters: U+FFFD, wherever they come. */
static void test_bytes(void **state)
{
    (void)state;
    struct story s;
    struct answer *a = begin(&s, 0, NULL, NULL);
    const char *text = "a\xF0\x9F\x98"
                       "b\xC3";
    for (size_t i = 0; text[i]; i++)
        assert_true(answer_push(a, byte_ids[(u8)text[i]]));
    answer_end(a, true);
    answer_close(a);
    bytes_put(&s.text, "", 1);
    assert_string_equal(s.text.at, "C[a\xEF\xBF\xBD"
                                   "b\xEF\xBF\xBD]F:length");
    bytes_free(&s.text);
}

static void test_in_reasoning(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool in;
    } prompts[] = {{"<|im_start|>assistant\n<think>\n", true},
                   {"<|im_start|>assistant\n", false},
                   {"", false},
                   {"<|im_start|>assistant\n<think>\n\n</think>\n\n", false},
                   {"<think>", true}};
    for (size_t i = 0; i < COUNT(prompts); i++) {
        struct token_ids ids = {0};
        struct err err;
        assert_int_equal(
            token_encode(tokens, prompts[i].text, strlen(prompts[i].text), TOKEN_PARSE_SPECIAL, &ids, &err), 0);
        assert_int_equal(answer_in_reasoning(tokens, ids.ids, ids.n), prompts[i].in);
        token_ids_free(&ids);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stops), cmocka_unit_test(test_answers), cmocka_unit_test(test_random),
        cmocka_unit_test(test_ids),   cmocka_unit_test(test_bytes),   cmocka_unit_test(test_in_reasoning),
    };
    return cmocka_run_group_tests(tests, open_tokens, close_tokens);
}
