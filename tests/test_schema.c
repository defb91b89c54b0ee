/* Schemas as grammars, and grammars as token masks: what is accepted and refused, by tables and by an independent judge
 * (tests/schema/judge.py, python3-jsonschema); and masks by trying every token. */
#include "check.h"

#include <jansson.h>
#include <pthread.h>
#include <unistd.h>

#include "serve/schema.h"
#include "serve/vocab_mask.h"

static struct gguf tiny_file;
static struct token_model *tiny;
static struct vocab *tiny_vocab;

static int open_tiny(void **state)
{
    (void)state;
    struct err err = {.text = ""};
    if (gguf_open(&tiny_file, "models/plainsong-tiny-q4_0.gguf", &err) || token_open(&tiny, &tiny_file, 4096, &err) ||
        vocab_open(&tiny_vocab, tiny, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    return 0;
}

static int close_tiny(void **state)
{
    (void)state;
    vocab_close(tiny_vocab);
    token_close(tiny);
    gguf_close(&tiny_file);
    return 0;
}

/* ---- a text against a grammar ---- */

enum { OPEN = 'o', WHOLE = 'w', REFUSED = 'r' };

static int read_text(const struct grammar *g, const char *text, size_t len)
{
    struct automaton a;
    struct err err;
    struct automaton_state *s = malloc(sizeof *s);
    int verdict = REFUSED;
    assert_int_equal(automaton_open(&a, g, &err), 0);
    automaton_begin(&a, s);
    size_t i = 0;
    while (i < len && automaton_step(&a, s, (u8)text[i]))
        i++;
    if (i == len)
        verdict = automaton_can_end(g, s) ? WHOLE : OPEN;
    automaton_close(&a);
    free(s);
    return verdict;
}

static json_t *parsed(const char *schema)
{
    struct err err = {.text = ""};
    json_t *j = schema_parse(schema, strlen(schema), &err);
    if (!j)
        fail_msg("%s: %s", schema, err.text);
    return j;
}

static void accepts_of_table(const char *const (*table)[3], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct grammar g;
        struct err err = {.text = ""};
        json_t *j = parsed(table[i][0]);
        if (schema_open(&g, j, false, &err))
            fail_msg("%s: %s", table[i][0], err.text);
        int got = read_text(&g, table[i][2], strlen(table[i][2]));
        if (got != table[i][1][0])
            fail_msg("schema %s\ntext %s\nis %c, should be %c", table[i][0], table[i][2], got, table[i][1][0]);
        grammar_free(&g);
        json_decref(j);
    }
}

#define INT(more) "{\"type\":\"integer\"" more "}"
#define NUM(more) "{\"type\":\"number\"" more "}"
#define STR(more) "{\"type\":\"string\"" more "}"

static void test_scalars(void **state)
{
    (void)state;
    static const char *const T[][3] = {
        {"true", "w", "[1,{\"a\":null}]"},
        {"{}", "w", "\"x\""},
        {"{}", "r", " 1"},
        {"{}", "r", "01"},
        {"{}", "o", "[1, 2"},
        {"{}", "r", "[1 ,"},
        {"{}", "r", "[1,  2"},
        {"{}", "w", "{\"a\": 1, \"b\": [true]}"},
        {"{\"type\":[\"null\",\"boolean\"]}", "w", "null"},
        {"{\"type\":[\"null\",\"boolean\"]}", "w", "false"},
        {"{\"type\":[\"null\",\"boolean\"]}", "r", "1"},
        {INT(), "w", "-12"},
        {INT(), "r", "1."},
        {INT(), "r", "-0"},
        {INT(",\"minimum\":3,\"maximum\":120"), "o", "1"},
        {INT(",\"minimum\":3,\"maximum\":120"), "w", "120"},
        {INT(",\"minimum\":3,\"maximum\":120"), "r", "121"},
        {INT(",\"minimum\":3,\"maximum\":120"), "r", "2 "},
        {INT(",\"minimum\":13,\"maximum\":19"), "r", "2"},
        {INT(",\"exclusiveMinimum\":-3,\"exclusiveMaximum\":3"), "w", "-2"},
        {INT(",\"exclusiveMinimum\":-3,\"exclusiveMaximum\":3"), "r", "-3"},
        {INT(",\"minimum\":1.5"), "r", "1,"},
        {INT(",\"minimum\":1.5"), "w", "2"},
        {INT(",\"maximum\":9223372036854775807"), "w", "9223372036854775807"},
        {INT(",\"maximum\":9223372036854775807"), "r", "9223372036854775808"},
        {INT(",\"exclusiveMinimum\":9223372036854775807"), "w", "9223372036854775808"},
        {INT(",\"minimum\":-100,\"maximum\":-99"), "w", "-99"},
        {INT(",\"minimum\":-100,\"maximum\":-99"), "r", "-98"},
        {NUM(), "w", "-1.5e-7"},
        {NUM(), "w", "1E+30"},
        {NUM(), "r", "1e100"},
        {NUM(",\"maximum\":0.1"), "w", "0.1000"},
        {NUM(",\"maximum\":0.1"), "r", "0.10001"},
        {NUM(",\"exclusiveMaximum\":0.1"), "r", "0.1"},
        {NUM(",\"exclusiveMaximum\":0.1"), "w", "0.09999"},
        {NUM(",\"exclusiveMaximum\":0.1"), "r", "0.0999999999999999999999"}, /* reads back as 0.1 */
        {NUM(",\"minimum\":-2.5,\"maximum\":-1"), "w", "-2.5"},
        {NUM(",\"minimum\":-2.5,\"maximum\":-1"), "r", "-2.6"},
        {NUM(",\"minimum\":-2.5,\"maximum\":-1"), "r", "-0"},
        {NUM(",\"minimum\":1e300"), "r", "1e"},
        {NUM(",\"maximum\":4611686018427387904"), "r", "4611686018427387905"},
        {NUM(",\"maximum\":4611686018427387904"), "w", "4611686018427387904"},
        {STR(), "w", "\"a\\n\\u001f\xC3\xA9\xF0\x9F\x98\x80\""},
        {STR(), "r", "\"\\/"},
        {STR(), "r", "\"\\u00e"},
        {STR(), "r", "\"\\u000a"},
        {STR(), "r", "\"\xC0"},
        {STR(), "r", "\"\xED\xA0"},
        {STR(), "r", "\"\n"},
        {STR(",\"minLength\":2,\"maxLength\":3"), "r", "\"\xC3\xA9\""},
        {STR(",\"minLength\":2,\"maxLength\":3"), "w", "\"\xC3\xA9\\n\xF0\x9F\x98\x80\""},
        {STR(",\"minLength\":2,\"maxLength\":3"), "r", "\"abcd"},
        {"{\"enum\":[1,\"a\",\"ab\",{\"k\":[1,null]},2.5,\"\\u0001\"]}", "w", "{\"k\":[1,null]}"},
        {"{\"enum\":[1,\"a\",\"ab\",{\"k\":[1,null]},2.5,\"\\u0001\"]}", "w", "\"ab\""},
        {"{\"enum\":[1,\"a\",\"ab\",{\"k\":[1,null]},2.5,\"\\u0001\"]}", "w", "\"\\u0001\""},
        {"{\"enum\":[1,\"a\",\"ab\",{\"k\":[1,null]},2.5,\"\\u0001\"]}", "r", "\"abc"},
        {"{\"enum\":[1,12,\"a\"],\"type\":\"integer\",\"minimum\":2}", "r", "1}"},
        {"{\"enum\":[1,12,\"a\"],\"type\":\"integer\",\"minimum\":2}", "w", "12"},
        {"{\"const\":{\"a\":1.0}}", "w", "{\"a\":1}"},
        {"{\"enum\":[\"abc\",\"x\"],\"pattern\":\"^a\",\"maxLength\":3}", "r", "\"x"},
    };
    accepts_of_table(T, COUNT(T));
}

static void test_patterns(void **state)
{
    (void)state;
    static const char *const T[][3] = {
        {STR(",\"pattern\":\"foo\""), "w", "\"xfoox\""},
        {STR(",\"pattern\":\"foo\""), "r", "\"fo\""},
        {STR(",\"pattern\":\"^foo\""), "r", "\"xf"},
        {STR(",\"pattern\":\"foo$\""), "w", "\"foofoo\""},
        {STR(",\"pattern\":\"foo$\""), "r", "\"foob\""},
        {STR(",\"pattern\":\"^a|b$\""), "w", "\"zzb\""},
        {STR(",\"pattern\":\"^a|b$\""), "w", "\"azz\""},
        {STR(",\"pattern\":\"^a|b$\""), "r", "\"zz\""},
        {STR(",\"pattern\":\"$^\""), "w", "\"\""},
        {STR(",\"pattern\":\"$^\""), "r", "\"a"},
        {STR(",\"pattern\":\"^(ab|c)*d{2,3}$\""), "w", "\"abcabddd\""},
        {STR(",\"pattern\":\"^(ab|c)*d{2,3}$\""), "r", "\"dddd"},
        {STR(",\"pattern\":\"^[^\\\\d\\\"]+$\""), "r", "\"\\\""},
        {STR(",\"pattern\":\"^\\\\\\\\\\\\n$\""), "w", "\"\\\\\\n\""},
        {STR(",\"pattern\":\"^[\\\\u4e00-\\\\u9fff]{2}$\""), "w", "\"\xE4\xB8\xAD\xE4\xB8\xAD\""},
        {STR(",\"pattern\":\"^[\\\\u4e00-\\\\u9fff]{2}$\""), "r", "\"\xE3"},
        {STR(",\"pattern\":\"^\\\\ud83d\\\\ude00$\""), "w", "\"\xF0\x9F\x98\x80\""},
        {STR(",\"pattern\":\"^\\\\u{1F600}?$\""), "r", "\"\xF0\x9F\x98\x81"},
        {STR(",\"pattern\":\"^(?<year>\\\\d{4})-(?:\\\\d\\\\d)$\""), "w", "\"2024-05\""},
        {STR(",\"pattern\":\"^.$\""), "r", "\"\\n"},
        {STR(",\"pattern\":\"^\\\\x01$\""), "w", "\"\\u0001\""},
        {STR(",\"pattern\":\"^\\\\x01$\""), "r", "\"\\n"},
        {STR(",\"pattern\":\"^a+?$\",\"minLength\":2,\"maxLength\":3"), "r", "\"a\""},
        {STR(",\"pattern\":\"^a+?$\",\"minLength\":2,\"maxLength\":3"), "w", "\"aaa\""},
        {STR(",\"pattern\":\"^a+?$\",\"minLength\":2,\"maxLength\":3"), "r", "\"aaaa"},
        {STR(",\"pattern\":\"^(aaa)*$\",\"minLength\":4"), "r", "\"aaa\""},
        {STR(",\"pattern\":\"^(aaa)*$\",\"minLength\":4,\"maxLength\":8"), "r", "\"aaaaaaa"},
        {STR(",\"pattern\":\"[]|b\""), "w", "\"b\""},
        {STR(",\"pattern\":\"^[^]$\""), "w", "\"\\n\""},
    };
    accepts_of_table(T, COUNT(T));
}

#define OBJ(props, more) "{\"type\":\"object\",\"properties\":{" props "}" more "}"
#define CLOSED ",\"additionalProperties\":false"
#define AB "\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}"
#define TREE "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"kids\":{\"type\":\"array\"," \
             "\"items\":{\"$ref\":\"#/$defs/t\"}}},\"required\":[\"kids\"]" CLOSED "}}}"

static void test_containers(void **state)
{
    (void)state;
    static const char *const T[][3] = {
        {OBJ(AB, CLOSED), "w", "{}"},
        {OBJ(AB, CLOSED), "w", "{\"b\":\"\"}"},
        {OBJ(AB, CLOSED), "r", "{\"b\":\"\",\"a\""},
        {OBJ(AB, CLOSED), "r", "{\"b\":\"\","},
        {OBJ(AB, CLOSED), "r", "{\"c"},
        {OBJ(AB, ",\"required\":[\"b\"]"), "r", "{\"a\":1}"},
        {OBJ(AB, ",\"required\":[\"b\"]"), "w", "{\"a\":1,\"b\":\"\",\"c\":[]}"},
        {OBJ(AB, ",\"required\":[\"b\"]"), "r", "{\"c"},
        {OBJ(AB, ""), "r", "{\"c\":1,\"a\""}, /* others come last */
        {OBJ(AB, ""), "w", "{\"ab\":1}"},
        {OBJ(AB, ""), "r", "{\"c\":1,\"c\""},
        {OBJ(AB, ""), "w", "{\"c\":{\"c\":1},\"d\":{\"c\":2}}"},
        {OBJ(AB, ""), "r", "{\"a\":\"x\""},
        {OBJ("", ",\"required\":[\"z\"],\"additionalProperties\":{\"type\":\"null\"}"), "w", "{\"z\":null,\"y\":null}"},
        {OBJ("", ",\"required\":[\"z\"],\"additionalProperties\":{\"type\":\"null\"}"), "r", "{}"},
        {OBJ("\"a\\\"\\\\b\\u00e9\":true", CLOSED), "w", "{\"a\\\"\\\\b\xC3\xA9\":0}"},
        {OBJ("\"a\\\"\":true,\"a\":true", CLOSED), "w", "{\"a\\\"\":0,\"a\":1}"},
        {OBJ("\"no\":false", ""), "r", "{\"no\""},
        {OBJ("\"no\":false", ""), "w", "{\"n\":1}"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "r", "[1]"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "w", "[1, 2,3]"},
        {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}", "r", "[1,2,3,"},
        {"{\"type\":\"array\",\"maxItems\":0}", "r", "[1"},
        {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}", "w", "[1,2]"},
        {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":false}", "r", "[1,2,"},
        {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"minItems\":3}", "r", "[1,2]"},
        {TREE, "w", "{\"kids\":[{\"kids\":[]},{\"kids\":[{\"kids\":[]}]}]}"},
        {TREE, "r", "{\"kids\":[{}"},
        {"{\"anyOf\":[" OBJ("\"t\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}", ",\"required\":[\"t\",\"x\"]") ","
             OBJ("\"t\":{\"const\":\"b\"},\"x\":{\"type\":\"string\"}", ",\"required\":[\"t\",\"x\"]") "]}",
         "w", "{\"t\":\"b\",\"x\":\"1\"}"},
        {"{\"anyOf\":[" OBJ("\"t\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}", ",\"required\":[\"t\",\"x\"]") ","
             OBJ("\"t\":{\"const\":\"b\"},\"x\":{\"type\":\"string\"}", ",\"required\":[\"t\",\"x\"]") "]}",
         "r", "{\"t\":\"b\",\"x\":1"},
        {"{\"type\":\"integer\",\"anyOf\":[{\"maximum\":3},{\"minimum\":7}]}", "w", "8"},
        {"{\"type\":\"integer\",\"anyOf\":[{\"maximum\":3},{\"minimum\":7}]}", "r", "5,"},
        {OBJ(AB, ",\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]"), "r", "{}"},
        {OBJ(AB, ",\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]"), "w", "{\"b\":\"\"}"},
        {"{\"$ref\":\"#/$defs/a%20b~1\",\"maximum\":3,\"$defs\":{\"a b/\":{\"type\":\"integer\"}}}", "r", "4,"},
    };
    accepts_of_table(T, COUNT(T));
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const T[][2] = {
        {"{\"oneOf\":[]}", "\"oneOf\" at #:"},
        {"{\"properties\":{\"x/y\":{\"allOf\":[]}}}", "\"allOf\" at #/properties/x~1y:"},
        {"{\"items\":{\"anyOf\":[{},{\"not\":{}}]}}", "\"not\" at #/items/anyOf/1:"},
        {"{\"$defs\":{\"d\":{\"format\":\"email\"}},\"$ref\":\"#/$defs/d\"}", "\"format\" at #/$defs/d:"},
        {"{\"multipleOf\":2}", "\"multipleOf\" at #:"},
        {"{\"uniqueItems\":true}", "\"uniqueItems\" at #:"},
        {"{\"patternProperties\":{}}", "\"patternProperties\" at #:"},
        {"{\"if\":{}}", "\"if\" at #:"},
        {"{\"minlength\":1}", "\"minlength\" at #:"},
        {"{\"type\":\"float\"}", "\"type\" at #:"},
        {"{\"minLength\":-1}", "\"minLength\" at #:"},
        {"{\"minItems\":1.5}", "\"minItems\" at #:"},
        {"{\"minimum\":\"1\"}", "\"minimum\" at #:"},
        {"{\"required\":[1]}", "\"required\" at #:"},
        {"{\"required\":{}}", "\"required\" at #:"},
        {"{\"enum\":[]}", "\"enum\" at #:"},
        {"{\"anyOf\":{}}", "\"anyOf\" at #:"},
        {"{\"items\":[{}]}", "\"items\" at #:"},
        {"{\"properties\":[]}", "\"properties\" at #:"},
        {"{\"$ref\":\"http://example.com/x\"}", "\"$ref\" at #:"},
        {"{\"$ref\":\"#/nowhere\"}", "refers to nothing"},
        {"{\"$ref\":\"#\"}", "no value"},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"],\"type\":\"object\"}", "no value"},
        {"false", "no value"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "no value"},
        {"{\"type\":\"string\",\"pattern\":\"a^\"}", "no value"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no value"},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":2,\"exclusiveMaximum\":3}", "no value"},
        {"{\"type\":\"number\",\"exclusiveMinimum\":2,\"maximum\":2}", "no value"},
        {"{\"enum\":[1],\"type\":\"string\"}", "no value"},
        {"{\"properties\":{\"a\":3}}", "at #/properties/a: a schema must be"},
        {"{\"pattern\":\"a{1001}\"}", "repeats 1001 times at byte 1"},
        {"{\"pattern\":\"(a{1000}){1000}\"}", "more than 4096 parts"},
        {"{\"pattern\":\"((((|a){1000}){1000}){1000}){1000}\"}", "more than 4096 parts"},
        {"{\"pattern\":\"(a|b)*a(a|b){14}$\"}", "more than 4096 states"},
        {"{\"pattern\":\"^x{9}$\",\"maxLength\":100000000}", ""},
        {"{\"pattern\":\"x\",\"minLength\":100000}", "more than 20000 states"},
        {"{\"pattern\":\"\\\\bx\"}", "\\b"},
        {"{\"pattern\":\"(?=x)\"}", "look-around"},
        {"{\"pattern\":\"(?<!x)\"}", "look-around"},
        {"{\"pattern\":\"(a)\\\\1\"}", "back references"},
        {"{\"pattern\":\"\\\\p{L}\"}", "\\p"},
        {"{\"pattern\":\"(?i)x\"}", "group"},
        {"{\"pattern\":\"(\"}", "( is not closed"},
        {"{\"pattern\":\")\"}", ") without ("},
        {"{\"pattern\":\"[a\"}", "[ is not closed"},
        {"{\"pattern\":\"*\"}", "nothing to repeat"},
        {"{\"pattern\":\"a**\"}", "nothing to repeat"},
        {"{\"pattern\":\"[b-a]\"}", "backwards"},
        {"{\"pattern\":\"\\\\ud800\"}", "surrogate"},
    };
    for (size_t i = 0; i < COUNT(T); i++) {
        struct grammar g;
        struct err err = {.text = ""};
        json_t *j = parsed(T[i][0]);
        int rc = schema_open(&g, j, false, &err);
        if (rc ? !T[i][1][0] || !strstr(err.text, T[i][1]) : !!T[i][1][0])
            fail_msg("%s: \"%s\" lacks \"%s\"", T[i][0], rc ? err.text : "(compiles)", T[i][1]);
        if (!rc)
            grammar_free(&g);
        json_decref(j);
    }
}

/* n of something in a text of 1 MiB at most; frees nothing: one per test. */
static char *repeated(const char *before, const char *each, const char *after, u32 n)
{
    size_t room = strlen(before) + strlen(after) + n * (strlen(each) + 12ull) + 1;
    char *text = malloc(room), *at = text;
    at += sprintf(at, "%s", before);
    for (u32 i = 0; i < n; i++)
        at += sprintf(at, each, i, i + 1 < n ? "," : "");
    sprintf(at, "%s", after);
    return text;
}

static void large(const char *before, const char *each, const char *after, u32 n, const char *refused)
{
    struct grammar g;
    struct err err = {.text = ""};
    char *text = repeated(before, each, after, n);
    json_t *j = parsed(text);
    int rc = schema_open(&g, j, false, &err);
    if (rc ? !refused || !strstr(err.text, refused) : !!refused)
        fail_msg("%u of %s: \"%s\"", n, each, err.text);
    if (!rc)
        grammar_free(&g);
    json_decref(j);
    free(text);
}

static void test_limits(void **state)
{
    (void)state;
    large("{\"enum\":[", "\"value %u\"%s", "]}", 20000, NULL);
    large("{\"anyOf\":[", "{\"const\":%u}%s", "]}", 4000, NULL);
    large("{\"anyOf\":[", "{\"type\":\"array\",\"maxItems\":%u}%s", "]}", 200, NULL);
    large("{\"anyOf\":[", "{\"type\":\"array\",\"maxItems\":%u}%s", "]}", 201, "201 alternatives");
    large("{\"properties\":{", "\"p%u\":{\"type\":\"string\"}%s", "}}", 5000, NULL);
    large("{\"properties\":{", "\"p%u\":{\"type\":\"string\"}%s", "}}", 15000, "20000 nodes");
    large("{\"properties\":{", "\"p%u\":{\"type\":\"integer\",\"minimum\":1}%s", "}}", 6000, "too large");
    large("{\"properties\":{", "\"p%u\":{\"pattern\":\"^.{500}$\",\"type\":\"string\"}%s", "}}", 60, "20000 states");
    char deep[2000];
    size_t n = 0;
    for (int i = 0; i < 65; i++)
        n += (size_t)sprintf(deep + n, "{\"items\":");
    n += (size_t)sprintf(deep + n, "{}");
    memset(deep + n, '}', 65);
    json_t *j = json_loadb(deep, n + 65, 0, NULL);
    struct grammar g;
    struct err err;
    assert_int_equal(schema_open(&g, j, false, &err), 0); /* deeper than a value may be: never reached */
    grammar_free(&g);
    json_decref(j);
    assert_int_equal(schema_open_object(&g, false, &err), 0);
    memset(deep, '[', 100);
    memcpy(deep, "{\"\":", 4);
    assert_int_equal(read_text(&g, deep, 4 + 63), OPEN);
    assert_int_equal(read_text(&g, deep, 4 + 64), REFUSED);
    char *names = repeated("{", "\"%x\":1%s", "", AUTOMATON_NAMES), *more = repeated("{", "\"%x\":1%s", "", AUTOMATON_NAMES + 1);
    assert_int_equal(read_text(&g, names, strlen(names)), OPEN);
    assert_int_equal(read_text(&g, more, strlen(more)), REFUSED);
    free(names);
    free(more);
    grammar_free(&g);
}

/* ---- calls ---- */

static void test_calls(void **state)
{
    (void)state;
    json_t *args = parsed(OBJ("\"city\":{\"type\":\"string\"}", ",\"required\":[\"city\"]" CLOSED));
    const struct schema_tool tools[] = {{"weather", args}, {"any \"thing\"", NULL}};
    struct grammar g;
    struct err err;
#define WEATHER "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rom\"}}\n</tool_call>"
#define THING "<tool_call>\n{\"name\": \"any \\\"thing\\\"\", \"arguments\": {\"a\": [1]}}\n</tool_call>"
    static const struct {
        enum schema_calls calls;
        bool parallel, think;
        int verdict;
        const char *text;
    } T[] = {
        {SCHEMA_CALL_MUST, false, false, WHOLE, WEATHER},
        {SCHEMA_CALL_MUST, false, false, WHOLE, THING},
        {SCHEMA_CALL_MUST, false, false, REFUSED, WEATHER "\n"},
        {SCHEMA_CALL_MUST, true, false, WHOLE, WEATHER "\n" THING},
        {SCHEMA_CALL_MUST, true, false, OPEN, ""},
        {SCHEMA_CALL_MUST, true, false, REFUSED, "Hello"},
        {SCHEMA_CALL_MUST, false, false, REFUSED, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}"},
        {SCHEMA_CALL_FREE, false, false, WHOLE, ""},
        {SCHEMA_CALL_FREE, false, false, WHOLE, "Hello <tool_cal <<tool"},
        {SCHEMA_CALL_FREE, false, false, WHOLE, "Hello\xFF <" WEATHER},
        {SCHEMA_CALL_FREE, false, false, REFUSED, "Hello " WEATHER " "},
        {SCHEMA_CALL_FREE, true, false, WHOLE, "Hello " WEATHER "\n" THING " and so on"},
        {SCHEMA_CALL_FREE, true, false, REFUSED, "Hello " WEATHER "\n<tool_call> "},
        {SCHEMA_CALL_MUST, false, true, WHOLE, "I <think> so\n</think>\n\n" WEATHER},
        {SCHEMA_CALL_MUST, false, true, OPEN, "I think </thin"},
        {SCHEMA_CALL_MUST, false, true, REFUSED, "</think>\n\nWell"},
        {SCHEMA_CALL_FREE, true, true, WHOLE, "</think>\n\nWell"},
        {SCHEMA_CALL_FREE, true, true, WHOLE, "<tool_call> no </think>\n\nWell" WEATHER},
    };
    for (size_t i = 0; i < COUNT(T); i++) {
        assert_int_equal(schema_open_calls(&g, tools, 2, T[i].calls, T[i].parallel, T[i].think, &err), 0);
        int got = read_text(&g, T[i].text, strlen(T[i].text));
        if (got != T[i].verdict)
            fail_msg("calls %zu: %s is %c, should be %c", i, T[i].text, got, T[i].verdict);
        grammar_free(&g);
    }
    assert_int_equal(schema_open(&g, args, true, &err), 0);
    assert_int_equal(read_text(&g, "x</think>\n\n{\"city\":\"\"}", 22), WHOLE);
    assert_int_equal(read_text(&g, "x</think>\n\n{\"city\":\"\"}", 21), OPEN);
    assert_int_equal(read_text(&g, "{\"city\":\"\"}", 11), OPEN);
    grammar_free(&g);
    assert_int_equal(schema_open_calls(&g, tools, 0, SCHEMA_CALL_MUST, true, false, &err), -1);
    json_decref(args);
}

/* ---- masks ---- */

static struct masks *masks_of(const char *schema)
{
    struct grammar g;
    struct masks *m = NULL;
    struct err err = {.text = ""};
    json_t *j = parsed(schema);
    if (schema_open(&g, j, false, &err) || masks_open(&m, tiny_vocab, &g, 1 << 20, &err))
        fail_msg("%s: %s", schema, err.text);
    json_decref(j);
    return m;
}

static bool bit(const u32 *bits, u32 id)
{
    return bits[id >> 5] >> (id & 31) & 1;
}

/* Picks an allowed token; in a hurry one that ends the text, or else closes the string or the container. */
static i32 pick(const u32 *bits, u32 n, bool hurry, bool in_string)
{
    u32 first = check_below(n);
    i32 some = -1, closes = -1;
    for (u32 i = 0; i < n; i++) {
        u32 id = (first + i) % n;
        size_t len;
        if (!bit(bits, id))
            continue;
        const char *at = token_bytes(tiny, id, false, &len);
        if (!hurry || token_is_end(tiny, id))
            return (i32)id;
        if (len == 1 && (in_string ? at[0] == '"' : at[0] == ']' || at[0] == '}'))
            closes = (i32)id;
        some = some < 0 ? (i32)id : some;
    }
    /* A string that its pattern does not let end yet: what the judge's patterns ask for. */
    static const char *const ASKED[] = {"a", "b", "c", "1", "7", "A", "x", "_", "-", ".", "\\", "\xC3", "\xA9", "\xC3\xA9"};
    for (u32 k = 0; k < 30 && closes < 0 && in_string; k++) {
        const char *text = ASKED[check_below(COUNT(ASKED))];
        i32 id = token_find(tiny, text, strlen(text));
        closes = id >= 0 && bit(bits, (u32)id) ? id : -1;
    }
    return closes >= 0 ? closes : some;
}

static bool ends_in_string(const char *text, size_t n)
{
    bool in = false;
    for (size_t i = 0; i < n; i++) {
        if (in && text[i] == '\\')
            i++;
        else
            in ^= text[i] == '"';
    }
    return in;
}

/* A random walk; the text to out, its length back; -1 when it does not end. */
static i32 walk(struct masks *m, char *out, size_t room)
{
    struct mask *k;
    struct err err;
    size_t n = 0;
    i32 length = -1;
    u32 calm = check_below(40);
    assert_int_equal(mask_open(&k, m, &err), 0);
    for (u32 i = 0; i < 3000 && length < 0; i++) {
        const u32 *bits = mask_allowed(k);
        i32 id = pick(bits, token_count(tiny), i > calm, ends_in_string(out, n));
        if (id < 0)
            fail_msg("nothing is allowed after %.*s", (int)n, out);
        size_t len;
        const char *at = token_bytes(tiny, (u32)id, false, &len);
        if (token_is_end(tiny, (u32)id)) {
            assert_true(mask_can_end(k));
            length = (i32)n;
        } else {
            assert_true(len > 0 && n + len < room);
            memcpy(out + n, at, len);
            n += len;
        }
        mask_took(k, (u32)id);
        assert_false(mask_broken(k));
    }
    mask_close(k);
    return length;
}

/* The mask by trying every token from the bytes so far. */
static void compare_mask(struct masks *m, const struct grammar *g, const u32 *path, u32 n)
{
    struct mask *k;
    struct err err;
    struct automaton a;
    struct automaton_state *s = malloc(2 * sizeof *s);
    size_t len;
    assert_int_equal(mask_open(&k, m, &err), 0);
    assert_int_equal(automaton_open(&a, g, &err), 0);
    automaton_begin(&a, s);
    for (u32 i = 0; i < n; i++) {
        const char *at = token_bytes(tiny, path[i], false, &len);
        for (size_t c = 0; c < len; c++)
            assert_true(automaton_step(&a, s, (u8)at[c]));
        mask_took(k, path[i]);
    }
    const u32 *bits = mask_allowed(k);
    for (u32 id = 0; id < token_count(tiny); id++) {
        const char *at = token_bytes(tiny, id, false, &len);
        bool want = len > 0;
        memcpy(&s[1], s, sizeof *s);
        for (size_t c = 0; c < len && want; c++)
            want = automaton_step(&a, &s[1], (u8)at[c]);
        if (token_is_end(tiny, id))
            want = automaton_can_end(g, s);
        if (want != bit(bits, id))
            fail_msg("after %u tokens token %u (%.*s) is %d, should be %d", n, id, (int)len, at, !want, want);
    }
    automaton_close(&a);
    mask_close(k);
    free(s);
}

static const char *const MASKED[] = {
    "{}",
    OBJ(AB ",\"c\":{\"type\":\"number\",\"minimum\":-3.5}", ",\"required\":[\"b\"]" CLOSED),
    STR(",\"pattern\":\"^[a-z]+@[a-z]+\\\\.(com|org)$\""),
    STR(",\"pattern\":\"the\""),
    STR(",\"pattern\":\"^.{1,20}$\""),
    STR(",\"pattern\":\"^[^,]*$\",\"maxLength\":12"),
    STR(",\"minLength\":3,\"maxLength\":9"),
    STR(",\"maxLength\":40"),
    TREE,
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"type\":\"string\",\"pattern\":\"^a\"},{\"enum\":[\"abc def\",7]}]}",
};

static void test_masks_by_trying(void **state)
{
    (void)state;
    check_seed(7);
    for (size_t i = 0; i < COUNT(MASKED); i++) {
        struct grammar g;
        struct err err;
        json_t *j = parsed(MASKED[i]);
        assert_int_equal(schema_open(&g, j, false, &err), 0);
        struct masks *m = masks_of(MASKED[i]);
        for (u32 round = 0; round < 3; round++) {
            u32 path[24], n = 0;
            struct mask *k;
            assert_int_equal(mask_open(&k, m, &err), 0);
            for (; n < COUNT(path); n++) {
                i32 id = pick(mask_allowed(k), token_count(tiny), false, false);
                if (token_is_end(tiny, (u32)id))
                    break;
                mask_took(k, path[n] = (u32)id);
            }
            mask_close(k);
            for (u32 len = 0; len <= n; len += 1 + check_below(6))
                compare_mask(m, &g, path, len);
        }
        masks_close(m);
        grammar_free(&g);
        json_decref(j);
    }
}

static void test_free_mask_by_trying(void **state)
{
    (void)state;
    const struct schema_tool tool = {"f", NULL};
    struct grammar g, own;
    struct masks *m;
    struct err err;
    assert_int_equal(schema_open_calls(&g, &tool, 1, SCHEMA_CALL_FREE, true, false, &err), 0);
    assert_int_equal(schema_open_calls(&own, &tool, 1, SCHEMA_CALL_FREE, true, false, &err), 0);
    assert_int_equal(masks_open(&m, tiny_vocab, &own, 1 << 20, &err), 0);
    struct token_ids ids = {0};
    static const char TEXT[] = "So <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call> <";
    assert_int_equal(token_encode(tiny, TEXT, sizeof TEXT - 1, 0, &ids, &err), 0);
    for (u32 n = 0; n <= ids.n; n += 2)
        compare_mask(m, &g, ids.ids, n);
    token_ids_free(&ids);
    masks_close(m);
    grammar_free(&g);
}

static void test_mask_after_a_wrong_token(void **state)
{
    (void)state;
    struct masks *m = masks_of(INT());
    struct mask *k;
    struct err err;
    assert_int_equal(mask_open(&k, m, &err), 0);
    mask_took(k, (u32)token_find(tiny, "x", 1));
    assert_true(mask_broken(k));
    const u32 *bits = mask_allowed(k);
    for (u32 id = 0; id < token_count(tiny); id++)
        assert_int_equal(bit(bits, id), token_is_end(tiny, id));
    mask_close(k);
    masks_close(m);
}

static void *walk_many(void *of)
{
    char text[65536];
    struct mask *k;
    struct err err;
    for (u32 i = 0; i < 30; i++) {
        if (mask_open(&k, of, &err))
            return "no mask";
        for (u32 n = 0; n < 20; n++) {
            const u32 *bits = mask_allowed(k);
            u32 id = (i * 977 + n * 131) % token_count(tiny);
            while (!bit(bits, id))
                id = (id + 1) % token_count(tiny);
            if (token_is_end(tiny, id))
                break;
            mask_took(k, id);
        }
        text[0] = mask_broken(k);
        mask_close(k);
        if (text[0])
            return "broken";
    }
    return NULL;
}

static void test_threads_share_masks(void **state)
{
    (void)state;
    struct grammar g;
    struct masks *m;
    struct err err;
    assert_int_equal(schema_open_object(&g, false, &err), 0);
    assert_int_equal(masks_open(&m, tiny_vocab, &g, 4000, &err), 0); /* room for a few: they push each other out */
    pthread_t threads[4];
    for (u32 i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, walk_many, m), 0);
    for (u32 i = 0; i < 4; i++) {
        void *said;
        pthread_join(threads[i], &said);
        if (said)
            fail_msg("%s", (const char *)said);
    }
    masks_close(m);
}

/* ---- the judge ---- */

enum { N_SCHEMAS = 300, N_WALKS = 4 };

static void judge_line(json_t *line, FILE *out, u32 *compiled, u32 *endless)
{
    struct grammar g;
    struct masks *m;
    struct err err = {.text = ""};
    json_t *schema = json_object_get(line, "schema"), *texts = json_array(), *text;
    size_t i;
    char *said = json_dumps(schema, 0), room[65536];
    if (schema_open(&g, schema, false, &err)) {
        /* Refused only where nothing satisfies it, or for what the table says cannot meet. */
        if (json_array_size(json_object_get(line, "valid")) && !strstr(err.text, "meets"))
            fail_msg("%s: %s", said, err.text);
        free(said);
        json_decref(texts);
        return;
    }
    ++*compiled;
    json_array_foreach(json_object_get(line, "valid"), i, text)
        if (read_text(&g, json_string_value(text), json_string_length(text)) != WHOLE)
            fail_msg("refuses %s\nof schema %s", json_string_value(text), said);
    json_array_foreach(json_object_get(line, "invalid"), i, text)
        if (read_text(&g, json_string_value(text), json_string_length(text)) == WHOLE)
            fail_msg("accepts %s\nof schema %s", json_string_value(text), said);
    assert_int_equal(masks_open(&m, tiny_vocab, &g, 1 << 20, &err), 0);
    for (u32 k = 0; k < N_WALKS; k++) {
        i32 n = walk(m, room, sizeof room);
        if (n < 0) /* never stuck, but chance does not spell what the pattern asks for at a string's end */
            ++*endless;
        else
            json_array_append_new(texts, json_stringn(room, (size_t)n));
    }
    masks_close(m);
    json_t *asked = json_pack("{s:O,s:o}", "schema", schema, "texts", texts);
    json_dumpf(asked, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(asked);
    free(said);
}

static void test_judge(void **state)
{
    (void)state;
    u32 seed = 1, n = N_SCHEMAS, compiled = 0, endless = 0;
    if (getenv("SCHEMA_SEED"))
        seed = (u32)atoi(getenv("SCHEMA_SEED"));
    char command[200], path[] = "/tmp/schema-XXXXXX", verdict[200] = "";
    int fd = mkstemp(path);
    FILE *out = fdopen(fd, "w");
    assert_non_null(out);
    check_seed(seed);
    snprintf(command, sizeof command, "python3 -W ignore tests/schema/judge.py make %u %u", seed, n);
    FILE *in = popen(command, "r");
    assert_non_null(in);
    for (json_t *line; (line = json_loadf(in, JSON_DISABLE_EOF_CHECK, NULL)); json_decref(line), n--)
        judge_line(line, out, &compiled, &endless);
    assert_int_equal(pclose(in), 0);
    assert_int_equal(n, 0);
    fclose(out);
    snprintf(command, sizeof command, "python3 -W ignore tests/schema/judge.py check %s", path);
    assert_non_null(in = popen(command, "r"));
    while (fgets(verdict, sizeof verdict, in))
        fputs(verdict, stderr);
    assert_int_equal(pclose(in), 0);
    unlink(path);
    snprintf(command, sizeof command, "%u texts, 0 wrong\n", compiled * N_WALKS - endless);
    assert_true(endless < compiled * N_WALKS / 20);
    assert_string_equal(verdict, command);
    assert_true(compiled > N_SCHEMAS * 3 / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_containers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_masks_by_trying),
        cmocka_unit_test(test_free_mask_by_trying),
        cmocka_unit_test(test_mask_after_a_wrong_token),
        cmocka_unit_test(test_threads_share_masks),
        cmocka_unit_test(test_judge),
    };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
