/* Bodies of every endpoint: what they become, and which field a refusal names. */
#include "check.h"

#include <jansson.h>

#include "serve/request.h"

static int parse(struct request *r, enum endpoint endpoint, const char *body, struct api_error *e)
{
    memset(e, 0, sizeof *e);
    return request_parse(r, endpoint, body, strlen(body), e);
}

static void good(struct request *r, enum endpoint endpoint, const char *body)
{
    struct api_error e;
    if (parse(r, endpoint, body, &e))
        fail_msg("%s\nrefused: %s (%s)", body, e.message, e.param);
}

static void same_json(const char *got, const char *want)
{
    json_t *a = got ? json_loads(got, JSON_DECODE_ANY, NULL) : NULL,
           *b = want ? json_loads(want, JSON_DECODE_ANY, NULL) : NULL;
    if (!json_equal(a, b) && (got || want))
        fail_msg("\ngot      %s\nexpected %s", got ? got : "nothing", want ? want : "nothing");
    json_decref(a);
    json_decref(b);
}

/* ---- what conversations become ---- */

struct talk_case {
    enum endpoint endpoint;
    const char *body, *messages, *tools, *kwargs;
};

#define USER "{\"role\":\"user\",\"content\":\"hi\"}"
#define CHAT(more) "{\"messages\":[" USER "]," more "}"

static const struct talk_case talks[] = {
    {ENDPOINT_CHAT, "{\"messages\":[" USER "],\"user\":\"x\",\"unknown\":[1],\"temperature\":null}", "[" USER "]", NULL,
     NULL},
    {ENDPOINT_CHAT,
     "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
     "\"text\":\"b\"}]},"
     "{\"role\":\"user\",\"content\":[]},"
     "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r\",\"tool_calls\":[{\"id\":\"c1\",\"type\":"
     "\"function\",\"function\":"
     "{\"name\":\"f\",\"arguments\":\"{\\\"x\\\": "
     "[1]}\"}},{\"function\":{\"name\":\"g\",\"arguments\":\"\"}},{\"function\":{\"name\":"
     "\"h\",\"arguments\":\"{broken\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"42\"}]}",
     "[{\"role\":\"system\",\"content\":\"a\\nb\"},{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\","
     "\"content\":\"\","
     "\"reasoning_content\":\"r\",\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"f\","
     "\"arguments\":"
     "{\"x\":[1]}}},{\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}},{\"type\":\"function\","
     "\"function\":{\"name\":"
     "\"h\",\"arguments\":\"{broken\"}}]},{\"role\":\"tool\",\"content\":\"42\",\"tool_call_id\":\"c1\"}]",
     NULL, NULL},
    {ENDPOINT_CHAT,
     CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"strict\":true,"
          "\"parameters\":{\"type\":"
          "\"object\"}}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}],\"reasoning_effort\":\"none\""),
     "[" USER "]",
     "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"},"
     "\"strict\":true}},"
     "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]",
     "{\"enable_thinking\":false,\"reasoning_effort\":\"none\"}"},
    {ENDPOINT_CHAT, CHAT("\"chat_template_kwargs\":{\"enable_thinking\":true,\"x\":1},\"reasoning_effort\":\"none\""),
     "[" USER "]", NULL, "{\"enable_thinking\":true,\"x\":1,\"reasoning_effort\":\"none\"}"},
    {ENDPOINT_CHAT, CHAT("\"tool_choice\":\"none\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"),
     "[" USER "]", NULL, NULL},
    {ENDPOINT_RESPONSES, "{\"input\":\"hi\",\"instructions\":\"be\"}",
     "[{\"role\":\"system\",\"content\":\"be\"}," USER "]", NULL, NULL},
    {ENDPOINT_RESPONSES,
     "{\"instructions\":\"one\",\"input\":[{\"role\":\"developer\",\"content\":\"two\"},{\"type\":\"message\",\"role\":"
     "\"user\",\"content\":"
     "[{\"type\":\"input_text\",\"text\":\"hi\"}]},{\"type\":\"reasoning\",\"id\":\"rs\",\"summary\":[],\"content\":[{"
     "\"type\":"
     "\"reasoning_text\",\"text\":\"hm\"}]},{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":"
     "\"output_text\",\"text\":\"ok\","
     "\"annotations\":[]}]},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},{"
     "\"type\":"
     "\"function_call_output\",\"call_id\":\"c\",\"output\":\"4\"}],\"tools\":[{\"type\":\"function\",\"name\":\"f\","
     "\"strict\":null,"
     "\"parameters\":{\"type\":\"object\"}}],\"reasoning\":{\"effort\":\"low\"}}",
     "[{\"role\":\"system\",\"content\":\"one\\n\\ntwo\"}," USER
     ",{\"role\":\"assistant\",\"content\":\"ok\",\"reasoning_content\":\"hm\","
     "\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]},{\"role\":"
     "\"tool\",\"content\":\"4\","
     "\"tool_call_id\":\"c\"}]",
     "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]",
     "{\"enable_thinking\":true,\"reasoning_effort\":\"low\"}"},
    {ENDPOINT_MESSAGES,
     "{\"max_tokens\":9,\"system\":[{\"type\":\"text\",\"text\":\"a\",\"cache_control\":{\"type\":\"ephemeral\"}},{"
     "\"type\":\"text\",\"text\":"
     "\"b\"}],\"messages\":[" USER
     ",{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"s\"},"
     "{\"type\":\"text\",\"text\":\"ok\"},{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\",\"input\":{\"x\":1}}]},{"
     "\"role\":\"user\",\"content\":"
     "[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":[{\"type\":\"text\",\"text\":\"4\"}]},{\"type\":"
     "\"text\",\"text\":\"and?\"}]}],"
     "\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\"}}],\"thinking\":{\"type\":\"enabled\",\"budget_"
     "tokens\":99}}",
     "[{\"role\":\"system\",\"content\":\"a\\nb\"}," USER
     ",{\"role\":\"assistant\",\"content\":\"ok\",\"reasoning_content\":\"hm\",\"tool_calls\":"
     "[{\"id\":\"t1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1}}}]},{\"role\":"
     "\"tool\",\"content\":\"4\","
     "\"tool_call_id\":\"t1\"},{\"role\":\"user\",\"content\":\"and?\"}]",
     "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}]",
     "{\"enable_thinking\":true}"},
    {ENDPOINT_COUNT_TOKENS, "{\"messages\":[" USER "]}", "[" USER "]", NULL, "{\"enable_thinking\":false}"},
    {ENDPOINT_APPLY_TEMPLATE, "{\"messages\":[" USER "]}", "[" USER "]", NULL, NULL},
};

static void test_talks(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(talks); i++) {
        struct request r;
        good(&r, talks[i].endpoint, talks[i].body);
        same_json(r.messages_json, talks[i].messages);
        same_json(r.tools_json, talks[i].tools);
        same_json(r.kwargs_json, talks[i].kwargs);
        request_free(&r);
    }
}

/* ---- parameters ---- */

static void test_defaults(void **state)
{
    (void)state;
    struct request r;
    good(&r, ENDPOINT_CHAT, "{\"messages\":[" USER "]}");
    assert_true(r.temperature == 1 && r.top_p == 1 && r.min_p == 0 && r.repeat_penalty == 1 && r.presence_penalty == 0);
    assert_true(r.top_k == 0 && r.repeat_last_n == 0 && !r.has_seed && r.n == 1 && r.max_tokens == 0 && !r.stops &&
                !r.stream);
    assert_true(r.tool_choice == TOOLS_NONE && r.format == FORMAT_TEXT && !r.logprobs && r.add_generation_prompt &&
                !r.model);
    request_free(&r);
}

static void test_parameters(void **state)
{
    (void)state;
    struct request r;
    size_t len;
    good(&r, ENDPOINT_CHAT,
         CHAT("\"model\":\"m\",\"temperature\":0.5,\"top_p\":0,\"top_k\":20.0,\"min_p\":0.1,\"repeat_penalty\":1.5,"
              "\"repeat_last_n\":64,"
              "\"presence_penalty\":-2,\"frequency_penalty\":2,\"seed\":-7,\"n\":3,\"stop\":[\"a\",\"\",\"bc\"],"
              "\"logprobs\":true,"
              "\"top_logprobs\":20,\"logit_bias\":{\"5\":-100,\"4095\":0.5},\"stream\":true,\"stream_options\":{"
              "\"include_usage\":true},"
              "\"max_tokens\":5,\"max_completion_tokens\":7,\"parallel_tool_calls\":false,\"response_format\":{"
              "\"type\":\"json_object\"},"
              "\"ignore_eos\":true"));
    assert_string_equal(r.model, "m");
    assert_true(r.temperature == 0.5f && r.top_p > 0 && r.top_p < 1e-6f && r.top_k == 20 && r.min_p == 0.1f);
    assert_true(r.repeat_penalty == 1.5f && r.repeat_last_n == 64 && r.presence_penalty == -2 &&
                r.frequency_penalty == 2);
    assert_true(r.has_seed && r.seed == (u64)-7 && r.n == 3 && r.logprobs && r.top_logprobs == 20 && r.stream &&
                r.include_usage);
    assert_true(r.n_bias == 2 && r.bias[0].id == 5 && r.bias[0].add == -100 && r.bias[1].id == 4095 &&
                r.bias[1].add == 0.5f);
    assert_true(r.max_tokens == 7 && r.one_call && r.format == FORMAT_JSON && r.ignore_end);
    assert_string_equal(stops_text(r.stops, 1, &len), "bc");
    request_free(&r);
    good(&r, ENDPOINT_CHAT,
         CHAT("\"repeat_last_n\":0,\"repetition_penalty\":2,\"presence_penalty\":1,\"seed\":-1,\"top_k\":-1,\"max_"
              "tokens\":-1"));
    assert_true(r.repeat_penalty == 1 && r.presence_penalty == 0 && !r.has_seed && r.top_k == 0 && r.max_tokens == 0);
    request_free(&r);
    good(
        &r, ENDPOINT_CHAT,
        CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"type\":\"function\","
             "\"function\":{\"name\":\"f\"}},\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":"
             "\"x\","
             "\"schema\":{\"type\":\"object\"}}}"));
    assert_true(r.tool_choice == TOOLS_NAMED && r.format == FORMAT_SCHEMA);
    assert_string_equal(r.tool_name, "f");
    assert_string_equal(r.schema_json, "{\"type\":\"object\"}");
    assert_string_equal(r.schema_param, "response_format");
    request_free(&r);
    good(&r, ENDPOINT_RESPONSES,
         "{\"input\":\"hi\",\"max_output_tokens\":3,\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"x\","
         "\"schema\":"
         "{}}},\"include\":[\"message.output_text.logprobs\"],\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],"
         "\"tool_choice\":\"required\",\"metadata\":{\"a\":\"b\"}}");
    assert_true(r.max_tokens == 3 && r.format == FORMAT_SCHEMA && r.logprobs && r.tool_choice == TOOLS_REQUIRED);
    assert_non_null(strstr(r.echo_json, "\"metadata\":{\"a\":\"b\"}"));
    assert_non_null(strstr(r.echo_json, "\"temperature\":1.0"));
    request_free(&r);
    good(&r, ENDPOINT_MESSAGES,
         "{\"max_tokens\":3,\"messages\":[" USER
         "],\"stop_sequences\":[\"x\"],\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],"
         "\"tool_choice\":{\"type\":\"tool\",\"name\":\"f\",\"disable_parallel_tool_use\":true},"
         "\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{}}}}");
    assert_true(r.max_tokens == 3 && r.stops && r.one_call && r.tool_choice == TOOLS_NAMED &&
                r.format == FORMAT_SCHEMA);
    request_free(&r);
}

static void test_prompts(void **state)
{
    (void)state;
    struct request r;
    good(&r, ENDPOINT_COMPLETIONS, "{\"prompt\":\"\",\"logprobs\":0}");
    assert_true(r.n_prompts == 1 && r.prompts[0].len == 0 && !r.prompts[0].ids && r.logprobs && r.top_logprobs == 0);
    request_free(&r);
    good(&r, ENDPOINT_COMPLETIONS, "{\"prompt\":[\"a\",\"bc\"],\"n\":8}");
    assert_true(r.n_prompts == 2 && r.prompts[1].len == 2 && r.n == 8);
    request_free(&r);
    good(&r, ENDPOINT_COMPLETIONS, "{\"prompt\":[1,2.0,3],\"logprobs\":5}");
    assert_true(r.n_prompts == 1 && r.prompts[0].n_ids == 3 && r.prompts[0].ids[1] == 2 && r.top_logprobs == 5);
    request_free(&r);
    good(&r, ENDPOINT_COMPLETIONS, "{\"prompt\":[[1],[2,3]]}");
    assert_true(r.n_prompts == 2 && r.prompts[1].n_ids == 2 && r.prompts[1].ids[1] == 3);
    request_free(&r);
    good(&r, ENDPOINT_TOKENIZE, "{\"content\":\"a\",\"with_pieces\":true}");
    assert_true(r.n_prompts == 1 && r.prompts[0].len == 1 && r.parse_special && !r.add_special && r.with_pieces);
    request_free(&r);
    good(&r, ENDPOINT_DETOKENIZE, "{\"tokens\":[]}");
    assert_true(r.n_prompts == 1 && r.prompts[0].ids && r.prompts[0].n_ids == 0);
    request_free(&r);
}

/* ---- refusals ---- */

static const struct {
    enum endpoint endpoint;
    const char *body, *param;
} bad[] = {
    {ENDPOINT_CHAT, "", ""},
    {ENDPOINT_CHAT, "[]", ""},
    {ENDPOINT_CHAT, "{\"messages\":[" USER "]", ""},
    {ENDPOINT_CHAT, "{\"messages\":[" USER "]}x", ""},
    {ENDPOINT_CHAT, "{\"messages\":[" USER "],\"n\":1,\"n\":1}", ""},
    {ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\xC3(\"}]}", ""},
    {ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000\"}]}", ""},
    {ENDPOINT_CHAT, CHAT("\"temperature\":NaN"), ""},
    {ENDPOINT_CHAT, CHAT("\"temperature\":1e999"), ""},
    {ENDPOINT_CHAT, "{}", "messages"},
    {ENDPOINT_CHAT, "{\"messages\":[]}", "messages"},
    {ENDPOINT_CHAT, "{\"messages\":{}}", "messages"},
    {ENDPOINT_CHAT, "{\"messages\":[1]}", "messages[0]"},
    {ENDPOINT_CHAT, "{\"messages\":[{\"content\":\"a\"}]}", "messages[0].role"},
    {ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"me\",\"content\":\"a\"}]}", "messages[0].role"},
    {ENDPOINT_CHAT, "{\"messages\":[" USER ",{\"role\":\"user\",\"content\":7}]}", "messages[1].content"},
    {ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
    {ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}",
     "messages[0].content[0].type"},
    {ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
     "messages[0].content[0].text"},
    {ENDPOINT_CHAT, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}",
     "messages[0].tool_calls[0].function"},
    {ENDPOINT_CHAT, CHAT("\"temperature\":\"hot\""), "temperature"},
    {ENDPOINT_CHAT, CHAT("\"temperature\":-1"), "temperature"},
    {ENDPOINT_CHAT, CHAT("\"top_p\":1.1"), "top_p"},
    {ENDPOINT_CHAT, CHAT("\"top_k\":1.5"), "top_k"},
    {ENDPOINT_CHAT, CHAT("\"seed\":1e300"), "seed"},
    {ENDPOINT_CHAT, CHAT("\"n\":0"), "n"},
    {ENDPOINT_CHAT, CHAT("\"n\":17"), "n"},
    {ENDPOINT_CHAT, CHAT("\"max_tokens\":0"), "max_tokens"},
    {ENDPOINT_CHAT, CHAT("\"stop\":[1]"), "stop[0]"},
    {ENDPOINT_CHAT, CHAT("\"stop\":{}"), "stop"},
    {ENDPOINT_CHAT,
     CHAT("\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\","
          "\"h\"]"),
     "stop"},
    {ENDPOINT_CHAT, CHAT("\"stream\":1"), "stream"},
    {ENDPOINT_CHAT, CHAT("\"stream_options\":[]"), "stream_options"},
    {ENDPOINT_CHAT, CHAT("\"stream_options\":{\"include_usage\":1}"), "stream_options.include_usage"},
    {ENDPOINT_CHAT, CHAT("\"logprobs\":5"), "logprobs"},
    {ENDPOINT_CHAT, CHAT("\"top_logprobs\":5"), "top_logprobs"},
    {ENDPOINT_CHAT, CHAT("\"logprobs\":true,\"top_logprobs\":21"), "top_logprobs"},
    {ENDPOINT_CHAT, CHAT("\"logit_bias\":{\"x\":1}"), "logit_bias.x"},
    {ENDPOINT_CHAT, CHAT("\"logit_bias\":{\"1\":101}"), "logit_bias.1"},
    {ENDPOINT_CHAT, CHAT("\"logit_bias\":{\"1\":101}"), "logit_bias.1"},
    {ENDPOINT_CHAT, CHAT("\"tools\":[{\"type\":\"web\"}]"), "tools[0].type"},
    {ENDPOINT_CHAT, CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}]"),
     "tools[0].function.name"},
    {ENDPOINT_CHAT,
     CHAT("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"type\":\"function\",\"function\":{"
          "\"name\":\"a\"}}]"),
     "tools"},
    {ENDPOINT_CHAT, CHAT("\"tool_choice\":\"required\""), "tool_choice"},
    {ENDPOINT_CHAT, CHAT("\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"), "tool_choice"},
    {ENDPOINT_CHAT, CHAT("\"tool_choice\":7"), "tool_choice"},
    {ENDPOINT_CHAT, CHAT("\"chat_template_kwargs\":{\"messages\":[]}"), "chat_template_kwargs.messages"},
    {ENDPOINT_CHAT, CHAT("\"response_format\":{\"type\":\"xml\"}"), "response_format.type"},
    {ENDPOINT_CHAT, CHAT("\"response_format\":\"json\""), "response_format"},
    {ENDPOINT_CHAT, CHAT("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":1}}"),
     "response_format.json_schema.schema"},
    {ENDPOINT_COMPLETIONS, "{}", "prompt"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\":[]}", "prompt"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\":[1,\"a\"]}", "prompt[1]"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\":[1,-1]}", "prompt[1]"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\":[\"a\",{}]}", "prompt[1]"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\":[\"a\",\"b\"],\"n\":9}", "prompt"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\":\"a\",\"echo\":true}", "echo"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\":\"a\",\"grammar\":\"root ::= x\"}", "grammar"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\":\"a\",\"json_schema\":{}}", "json_schema"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\":\"a\",\"n_predict\":0}", "n_predict"},
    {ENDPOINT_COMPLETIONS, "{\"prompt\":\"a\",\"best_of\":2}", "best_of"},
    {ENDPOINT_RESPONSES, "{\"input\":\"a\",\"previous_response_id\":\"r\"}", "previous_response_id"},
    {ENDPOINT_RESPONSES, "{\"input\":\"a\",\"background\":true}", "background"},
    {ENDPOINT_RESPONSES, "{\"input\":[]}", "input"},
    {ENDPOINT_RESPONSES, "{\"input\":[{\"type\":\"item_reference\",\"id\":\"x\"}]}", "input[0].type"},
    {ENDPOINT_RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]}",
     "input[0].content[0].type"},
    {ENDPOINT_RESPONSES, "{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}]}", "tools[0].type"},
    {ENDPOINT_RESPONSES, "{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"x\"}}}", "text.format.type"},
    {ENDPOINT_MESSAGES, "{\"messages\":[" USER "]}", "max_tokens"},
    {ENDPOINT_MESSAGES, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}",
     "messages[0].content[0].type"},
    {ENDPOINT_MESSAGES, "{\"max_tokens\":1,\"messages\":[" USER "],\"system\":3}", "system"},
    {ENDPOINT_MESSAGES, "{\"max_tokens\":1,\"messages\":[" USER "],\"tools\":[{\"name\":\"f\"}]}",
     "tools[0].input_schema"},
    {ENDPOINT_MESSAGES, "{\"max_tokens\":1,\"messages\":[" USER "],\"tool_choice\":{\"type\":\"x\"}}", "tool_choice"},
    {ENDPOINT_TOKENIZE, "{\"content\":1}", "content"},
    {ENDPOINT_DETOKENIZE, "{\"tokens\":[\"a\"]}", "tokens[0]"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(bad); i++) {
        struct request r;
        struct api_error e;
        if (parse(&r, bad[i].endpoint, bad[i].body, &e) == 0)
            fail_msg("not refused: %s", bad[i].body);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.type, "invalid_request_error");
        if (strcmp(e.param, bad[i].param) != 0 || !e.message[0])
            fail_msg("%s\nnames %s (%s), expected %s", bad[i].body, e.param, e.message, bad[i].param);
    }
}

/* What is said of a body that is no JSON quotes nothing of it: messages may be logged, prompts may not. */
static void test_private(void **state)
{
    (void)state;
    static const char *const bodies[] = {"{\"messages\": secret}",
                                         "{\"secret\":1,\"secret\":2}",
                                         "{\"messages\":\"secret\\x\"}",
                                         "{\"messages\":[\"secret",
                                         "secret",
                                         "{\"messages\":\"secret\xFF\"}"};
    for (size_t i = 0; i < COUNT(bodies); i++) {
        struct request r;
        struct api_error e;
        assert_int_equal(parse(&r, ENDPOINT_CHAT, bodies[i], &e), -1);
        if (strstr(e.message, "secret"))
            fail_msg("%s", e.message);
    }
}

static void test_depth(void **state)
{
    (void)state;
    for (int depth = 60; depth < 70; depth++) { /* the object is one level, its value the others */
        struct bytes body = {0};
        struct request r;
        struct api_error e;
        bytes_str(&body, "{\"messages\":[" USER "],\"x\":");
        for (int i = 1; i < depth; i++)
            bytes_str(&body, "[");
        for (int i = 1; i < depth; i++)
            bytes_str(&body, "]");
        bytes_str(&body, "}");
        assert_int_equal(request_parse(&r, ENDPOINT_CHAT, body.at, body.len, &e), depth > REQUEST_MAX_DEPTH ? -1 : 0);
        request_free(&r);
        bytes_free(&body);
    }
}

/* Every cut and every changed byte of a body is answered, with a message when refused. */
static void test_damage(void **state)
{
    (void)state;
    check_seed(9);
    for (size_t i = 0; i < COUNT(talks); i++) {
        size_t len = strlen(talks[i].body);
        for (size_t cut = 0; cut < len; cut++) {
            char *copy = malloc(cut + 1);
            struct request r;
            struct api_error e = {0};
            memcpy(copy, talks[i].body, cut + 1);
            if (cut % 2)
                copy[check_below((u32)cut)] = (char)check_u32();
            if (request_parse(&r, talks[i].endpoint, copy, cut + cut % 2, &e))
                assert_true(e.status == 400 && e.message[0]);
            request_free(&r);
            free(copy);
        }
    }
}

static void test_errors(void **state)
{
    (void)state;
    struct api_error e;
    struct bytes out = {0};
    api_error_bad(&e, "n", "n is \"%s\"", "x\n\x80");
    api_error_openai(&e, &out);
    bytes_put(&out, "", 1);
    assert_string_equal(out.at, "{\"error\":{\"message\":\"n is "
                                "\\\"x??\\\"\",\"type\":\"invalid_request_error\",\"param\":\"n\",\"code\":null}}");
    bytes_clear(&out);
    api_error_set(&e, 429, "rate_limit_error", "queue_full", NULL, "busy");
    api_error_anthropic(&e, "r1", &out);
    bytes_put(&out, "", 1);
    assert_string_equal(
        out.at,
        "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"busy\"},\"request_id\":\"r1\"}");
    bytes_free(&out);
}

static void test_bytes(void **state)
{
    (void)state;
    struct bytes out = {0};
    bytes_json(&out, "a\"\\\n\x01\x7F\xC3\xA9\xC3\xF0\x9F\x98\x80/", 14);
    bytes_u64(&out, UINT64_MAX);
    bytes_i64(&out, INT64_MIN);
    bytes_str(&out, " ");
    bytes_f32(&out, 0.1f);
    bytes_str(&out, " ");
    bytes_f32(&out, -1.0f / 3);
    bytes_str(&out, " ");
    bytes_f64(&out, 0.1);
    bytes_f64(&out, (double)NAN);
    char *text = bytes_take(&out);
    assert_string_equal(
        text,
        "\"a\\\"\\\\\\n\\u0001\\u007f\xC3\xA9\xEF\xBF\xBD\xF0\x9F\x98\x80/\"18446744073709551615-9223372036854775808 "
        "0.1 -0.33333334 0.1null");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_talks),   cmocka_unit_test(test_defaults), cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_prompts), cmocka_unit_test(test_refusals), cmocka_unit_test(test_private),
        cmocka_unit_test(test_depth),   cmocka_unit_test(test_damage),   cmocka_unit_test(test_errors),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
