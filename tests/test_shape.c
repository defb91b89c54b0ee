/* The bytes of each API: what a client puts together from the events of a stream is what the one object holds, and the
 * rules that clients depend on hold for every stream. */
#include "check.h"

#include <jansson.h>

#include "serve/shape.h"

static struct token_model *tokens;
static struct gguf file;

static int open_tokens(void **state)
{
    struct err err;
    (void)state;
    if (gguf_open(&file, "models/plainsong-tiny-q4_0.gguf", &err) || token_open(&tokens, &file, 4096, &err)) {
        print_error("%s\n", err.text);
        return -1;
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

/* ---- an answer through answer.h into a shape ---- */

struct path {
    struct shape *shape;
    struct bytes out;
    u32 choice;
};

static void on_event(void *arg, const struct answer_event *e)
{
    struct path *p = arg;
    shape_event(p->shape, p->choice, e, &p->out);
}

struct setting {
    enum shape_api api;
    bool stream, usage, logprobs;
    u32 n;
    bool length;
};

static const struct shape_usage used = {.n_prompt = 10,
                                        .n_cached = 4,
                                        .n_generated = 6,
                                        .n_reasoning = 2,
                                        .queue_ms = 0.25,
                                        .prompt_ms = 12,
                                        .decode_ms = 24,
                                        .batch_width = 1.5};

static void answer(struct path *p, const struct setting *s, const char *text)
{
    struct answer *a;
    struct token_ids ids = {0};
    struct err err;
    bool whole = s->api != SHAPE_COMPLETIONS;
    assert_int_equal(answer_open(&a, &(struct answer_options){.tokens = tokens,
                                                              .split_reasoning = whole,
                                                              .parse_calls = whole,
                                                              .request_id = "q1",
                                                              .choice = p->choice,
                                                              .tell = on_event,
                                                              .arg = p}),
                     0);
    size_t len = strlen(text), i = 0;
    while (i < len) { /* random pieces, so random tokens */
        size_t take = 1 + check_below(9);
        take = take > len - i ? len - i : take;
        while (i + take < len && ((u8)text[i + take] & 0xC0) == 0x80)
            take++;
        assert_int_equal(token_encode(tokens, text + i, take, 0, &ids, &err), 0);
        i += take;
    }
    for (size_t k = 0; k < ids.n; k++) {
        const struct shape_top top[] = {{ids.ids[k], -0.5f}, {7, -INFINITY}};
        shape_token(p->shape, p->choice, &(struct shape_token){ids.ids[k], -0.5f, top, 2});
        assert_true(answer_push(a, ids.ids[k]));
    }
    answer_end(a, s->length);
    answer_close(a);
    token_ids_free(&ids);
}

/* The whole output, NUL-terminated. */
static char *speak(const struct setting *s, const char *text)
{
    struct path p = {0};
    assert_int_equal(shape_open(&p.shape, &(struct shape_head){.api = s->api,
                                                               .stream = s->stream,
                                                               .include_usage = s->usage,
                                                               .logprobs = s->logprobs,
                                                               .id = "q1",
                                                               .model = "a \"model\"",
                                                               .fingerprint = "fp",
                                                               .created = 1700000000,
                                                               .seed = 42,
                                                               .n_choices = s->n,
                                                               .n_prompt = 10,
                                                               .echo_json = "\"tools\":[]",
                                                               .tokens = tokens}),
                     0);
    shape_begin(p.shape, &p.out);
    for (p.choice = 0; p.choice < s->n; p.choice++)
        answer(&p, s, text);
    shape_done(p.shape, &used, &p.out);
    assert_false(shape_failed(p.shape));
    shape_close(p.shape);
    return bytes_take(&p.out);
}

/* ---- reading events ---- */

static json_t *load(const char *text, size_t len)
{
    json_error_t error;
    json_t *json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!json)
        fail_msg("no JSON: %s\n%.*s", error.text, (int)len, text);
    return json;
}

/* The next event's data, or NULL for [DONE] and at the end; *name is its event line or "". */
static json_t *next(const char **at, char name[64], bool *done)
{
    const char *end = strstr(*at, "\n\n"), *from = *at;
    name[0] = 0;
    *done = false;
    if (!**at)
        return NULL;
    assert_non_null(end);
    *at = end + 2;
    if (!strncmp(from, "event: ", 7)) {
        size_t n = strcspn(from + 7, "\n");
        assert_true(n < 64);
        memcpy(name, from + 7, n);
        name[n] = 0;
        from += 7 + n + 1;
    }
    assert_true(!strncmp(from, "data: ", 6));
    *done = !strncmp(from + 6, "[DONE]", 6);
    return *done ? NULL : load(from + 6, (size_t)(end - from) - 6);
}

static json_t *at(const json_t *v, const char *key)
{
    return json_object_get(v, key);
}

static void is_string(const json_t *v, const char *want)
{
    if (!json_is_string(v) || strcmp(json_string_value(v), want) != 0)
        fail_msg("%s is not \"%s\"", v ? json_dumps(v, JSON_ENCODE_ANY) : "absent", want);
}

static void append(json_t *object, const char *key, const json_t *more)
{
    const char *before = json_string_value(at(object, key));
    if (json_is_string(more))
        json_object_set_new(object, key, json_sprintf("%s%s", before ? before : "", json_string_value(more)));
}

static void same(json_t *a, json_t *b)
{
    if (!json_equal(a, b))
        fail_msg("\nstream %s\nwhole  %s", json_dumps(a, JSON_ENCODE_ANY), json_dumps(b, JSON_ENCODE_ANY));
}

/* ---- chat ---- */

static const char *const texts[] = {
    "",
    "Hello \"there\" \xF0\x9F\x98\x80\n",
    "<think>\nhm\n</think>\n\nWell.",
    "See.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"\\\"y\\n\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>",
    "<think>hm</think><tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1]}}\n</tool_call> and so on",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": ",
};

static json_t *joined_chat(const char *stream, const struct setting *s)
{
    json_t *choices = json_array(), *chunk;
    char name[64];
    bool done, used_up = false;
    for (u32 i = 0; i < s->n; i++)
        json_array_append_new(choices, json_pack("{s:i, s:{s:n, s:n}, s:n, s:n}", "index", i, "message", "content",
                                                 "refusal", "logprobs", "finish_reason"));
    while ((chunk = next(&stream, name, &done)) || !done) {
        json_t *list = at(chunk, "choices"), *choice = json_array_get(list, 0), *delta = at(choice, "delta");
        assert_string_equal(name, "");
        is_string(at(chunk, "object"), "chat.completion.chunk");
        is_string(at(chunk, "id"), "chatcmpl-q1");
        assert_false(used_up);
        if (json_array_size(list) == 0) {
            assert_true(s->usage);
            assert_int_equal(json_integer_value(at(at(at(chunk, "usage"), "prompt_tokens_details"), "cached_tokens")),
                             4);
            assert_true(json_is_object(at(chunk, "timings")));
            used_up = true;
            json_decref(chunk);
            continue;
        }
        assert_true(s->usage ? json_is_null(at(chunk, "usage")) : !at(chunk, "usage"));
        json_t *mine = json_array_get(choices, (size_t)json_integer_value(at(choice, "index"))),
               *message = at(mine, "message");
        assert_true(json_is_null(at(mine, "finish_reason"))); /* the one that has it is the last */
        if (!at(message, "role"))
            is_string(at(delta, "role"), "assistant");
        append(message, "role", at(delta, "role"));
        if (json_string_length(at(delta, "content")))
            append(message, "content", at(delta, "content"));
        append(message, "reasoning_content", at(delta, "reasoning_content"));
        json_t *call = json_array_get(at(delta, "tool_calls"), 0);
        if (call) {
            if (!at(message, "tool_calls"))
                json_object_set_new(message, "tool_calls", json_array());
            json_t *calls = at(message, "tool_calls");
            size_t i = (size_t)json_integer_value(at(call, "index"));
            if (i == json_array_size(calls)) {
                assert_non_null(at(call, "id"));
                json_object_del(call, "index");
                json_array_append(calls, call);
            } else {
                assert_null(at(call, "id"));
                append(at(json_array_get(calls, i), "function"), "arguments", at(at(call, "function"), "arguments"));
            }
        }
        if (json_is_object(at(choice, "logprobs"))) {
            if (json_is_null(at(mine, "logprobs")))
                json_object_set(mine, "logprobs", at(choice, "logprobs"));
            else
                json_array_extend(at(at(mine, "logprobs"), "content"), at(at(choice, "logprobs"), "content"));
        }
        json_object_set(mine, "finish_reason", at(choice, "finish_reason"));
        json_decref(chunk);
    }
    assert_int_equal(used_up, s->usage);
    assert_int_equal(*stream, 0); /* [DONE] is the last */
    return choices;
}

static void test_chat(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++)
        for (int how = 0; how < 8; how++) {
            struct setting s = {SHAPE_CHAT, true, how & 1, how & 2, how & 4 ? 3 : 1, i == 5};
            check_seed(i + 1);
            char *stream = speak(&s, texts[i]);
            s.stream = false;
            check_seed(i + 1);
            char *whole = speak(&s, texts[i]);
            json_t *object = load(whole, strlen(whole)), *choices = joined_chat(stream, &s);
            is_string(at(object, "object"), "chat.completion");
            is_string(at(object, "model"), "a \"model\"");
            assert_int_equal(json_integer_value(at(object, "seed")), 42);
            assert_int_equal(json_integer_value(at(at(object, "usage"), "total_tokens")), 16);
            for (u32 k = 0; k < s.n; k++) { /* a stream cannot say null or "" for what it does not send */
                json_t *message = at(json_array_get(at(object, "choices"), k), "message");
                if (!json_string_length(at(message, "content")))
                    json_object_set_new(message, "content", json_null());
                json_t *lp = at(json_array_get(at(object, "choices"), k), "logprobs");
                if (json_is_object(lp) && json_array_size(at(lp, "content")) == 0)
                    json_object_set_new(json_array_get(at(object, "choices"), k), "logprobs", json_null());
            }
            same(choices, at(object, "choices"));
            json_decref(choices);
            json_decref(object);
            free(stream);
            free(whole);
        }
}

/* ---- completions ---- */

static void test_completions(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++)
        for (int how = 0; how < 4; how++) {
            struct setting s = {SHAPE_COMPLETIONS, true, how & 1, how & 2, 1, i == 5};
            check_seed(i + 1);
            char *stream = speak(&s, texts[i]), name[64];
            s.stream = false;
            check_seed(i + 1);
            char *whole = speak(&s, texts[i]);
            json_t *object = load(whole, strlen(whole)), *chunk, *choice = json_array_get(at(object, "choices"), 0);
            json_t *text = json_pack("{s:s}", "text", ""), *names = json_array(), *offsets = json_array();
            bool done, usage = false, finished = false;
            const char *from = stream;
            is_string(at(object, "object"), "text_completion");
            is_string(at(choice, "text"), texts[i]);
            while ((chunk = next(&from, name, &done)) || !done) {
                json_t *c = json_array_get(at(chunk, "choices"), 0);
                assert_false(usage);
                usage = !c;
                assert_false(finished && c);
                append(text, "text", at(c, "text"));
                finished |= json_is_string(at(c, "finish_reason"));
                if (json_is_object(at(c, "logprobs"))) {
                    json_array_extend(names, at(at(c, "logprobs"), "tokens"));
                    json_array_extend(offsets, at(at(c, "logprobs"), "text_offset"));
                }
                json_decref(chunk);
            }
            assert_true(usage == s.usage && finished && !*from);
            is_string(at(text, "text"), texts[i]);
            if (s.logprobs) {
                same(names, at(at(choice, "logprobs"), "tokens"));
                same(offsets, at(at(choice, "logprobs"), "text_offset"));
                assert_int_equal(json_array_size(names), json_array_size(at(at(choice, "logprobs"), "top_logprobs")));
            }
            json_decref(text);
            json_decref(names);
            json_decref(offsets);
            json_decref(object);
            free(stream);
            free(whole);
        }
}

/* ---- responses ---- */

static void item_text(json_t *output, json_t *event, const char *done_key, const char *value)
{
    json_t *item = json_array_get(output, (size_t)json_integer_value(at(event, "output_index")));
    is_string(at(event, "item_id"), json_string_value(at(item, "id")));
    json_t *part = at(event, "content_index") ? json_array_get(at(item, "content"), 0) : item;
    assert_non_null(part);
    if (at(event, "delta"))
        append(part, value, at(event, "delta"));
    else
        same(at(part, value), at(event, done_key));
    if (json_array_size(at(event, "logprobs")) && at(event, "delta"))
        json_array_extend(at(part, "logprobs"), at(event, "logprobs"));
}

static json_t *joined_responses(const char *stream, const char *last)
{
    json_t *output = json_array(), *event, *response = NULL;
    char name[64];
    bool done;
    i64 sequence = 0;
    while ((event = next(&stream, name, &done))) {
        size_t i = (size_t)json_integer_value(at(event, "output_index"));
        assert_null(response);
        is_string(at(event, "type"), name);
        assert_int_equal(json_integer_value(at(event, "sequence_number")), sequence++);
        if (sequence <= 2)
            assert_string_equal(name, sequence == 1 ? "response.created" : "response.in_progress");
        else if (!strcmp(name, "response.output_item.added"))
            assert_int_equal((json_array_append(output, at(event, "item")), json_array_size(output)), i + 1);
        else if (!strcmp(name, "response.content_part.added"))
            json_array_append(at(json_array_get(output, i), "content"), at(event, "part"));
        else if (!strcmp(name, "response.content_part.done"))
            same(json_array_get(at(json_array_get(output, i), "content"), 0), at(event, "part"));
        else if (!strncmp(name, "response.output_text.", 21) || !strncmp(name, "response.reasoning_text.", 24))
            item_text(output, event, "text", "text");
        else if (!strncmp(name, "response.function_call_arguments.", 33))
            item_text(output, event, "arguments", "arguments");
        else if (!strcmp(name, "response.output_item.done")) {
            json_object_set(json_array_get(output, i), "status", at(at(event, "item"), "status"));
            same(json_array_get(output, i), at(event, "item"));
        } else {
            assert_string_equal(name, last);
            response = json_incref(at(event, "response"));
        }
        json_decref(event);
    }
    assert_true(!done && !*stream); /* this API has no [DONE] */
    assert_non_null(response);
    same(output, at(response, "output"));
    json_decref(output);
    return response;
}

static void test_responses(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++)
        for (int how = 0; how < 2; how++) {
            struct setting s = {SHAPE_RESPONSES, true, false, how & 1, 1, i == 5};
            check_seed(i + 1);
            char *stream = speak(&s, texts[i]);
            s.stream = false;
            check_seed(i + 1);
            char *whole = speak(&s, texts[i]);
            json_t *object = load(whole, strlen(whole));
            json_t *response = joined_responses(stream, s.length ? "response.incomplete" : "response.completed");
            same(response, object);
            is_string(at(object, "status"), s.length ? "incomplete" : "completed");
            is_string(at(object, "id"), "resp_q1");
            assert_int_equal(json_integer_value(at(at(at(object, "usage"), "input_tokens_details"), "cached_tokens")),
                             4);
            assert_true(json_is_array(at(object, "tools")));
            json_decref(response);
            json_decref(object);
            free(stream);
            free(whole);
        }
}

/* ---- messages ---- */

static void test_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        struct setting s = {SHAPE_MESSAGES, true, false, false, 1, i == 5};
        char *stream = speak(&s, texts[i]), name[64];
        s.stream = false;
        char *whole = speak(&s, texts[i]);
        json_t *object = load(whole, strlen(whole)), *event, *message = NULL, *partial = json_object();
        const char *from = stream;
        bool done, stopped = false;
        i64 open = -1, next_index = 0;
        while ((event = next(&from, name, &done))) {
            is_string(at(event, "type"), name);
            assert_false(stopped);
            json_t *content = at(message, "content"), *delta = at(event, "delta"),
                   *block = json_array_get(content, (size_t)open);
            if (at(event, "index") && strcmp(name, "content_block_start") != 0)
                assert_int_equal(json_integer_value(at(event, "index")), open);
            if (!message) {
                assert_string_equal(name, "message_start");
                message = json_incref(at(event, "message"));
            } else if (!strcmp(name, "content_block_start")) {
                assert_true(open == -1 && json_integer_value(at(event, "index")) == next_index);
                open = next_index++;
                json_array_append(content, at(event, "content_block"));
                json_object_clear(partial);
            } else if (!strcmp(name, "content_block_delta")) {
                append(block, "text", at(delta, "text"));
                append(block, "thinking", at(delta, "thinking"));
                append(block, "signature", at(delta, "signature"));
                append(partial, "json", at(delta, "partial_json"));
            } else if (!strcmp(name, "content_block_stop")) {
                const char *input = json_string_value(at(partial, "json"));
                json_t *value = input ? json_loads(input, 0, NULL) : NULL;
                if (value)
                    json_object_set_new(block, "input", value);
                else if (input)
                    json_object_set_new(block, "input", json_pack("{s:s}", "malformed_arguments", input));
                open = -1;
            } else if (!strcmp(name, "message_delta")) {
                json_object_update(message, delta);
                json_object_set(message, "usage", at(event, "usage"));
                json_object_set(message, "timings", at(event, "timings"));
            } else {
                assert_string_equal(name, "message_stop");
                stopped = true;
            }
            json_decref(event);
        }
        assert_true(stopped && !*from);
        same(message, object);
        is_string(at(object, "stop_reason"), s.length ? "max_tokens" : i == 3 || i == 4 ? "tool_use" : "end_turn");
        assert_int_equal(json_integer_value(at(at(object, "usage"), "input_tokens")), 6);
        assert_int_equal(json_integer_value(at(at(object, "usage"), "cache_read_input_tokens")), 4);
        json_decref(partial);
        json_decref(message);
        json_decref(object);
        free(stream);
        free(whole);
    }
}

/* ---- failures ---- */

static void test_failures(void **state)
{
    (void)state;
    static const char *const ends[] = {
        "data: {\"error\":{\"message\":\"broken\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\ndata: "
        "[DONE]\n\n",
        "data: {\"error\":{\"message\":\"broken\",\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\ndata: "
        "[DONE]\n\n",
        NULL,
        "event: error\ndata: "
        "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"broken\"},\"request_id\":\"q1\"}\n\n"};
    for (int api = SHAPE_CHAT; api <= SHAPE_MESSAGES; api++) {
        struct path p = {0};
        struct api_error e;
        assert_int_equal(shape_open(&p.shape, &(struct shape_head){.api = (enum shape_api)api,
                                                                   .stream = true,
                                                                   .id = "q1",
                                                                   .model = "m",
                                                                   .fingerprint = "f",
                                                                   .n_choices = 1}),
                         0);
        shape_begin(p.shape, &p.out);
        shape_event(p.shape, 0, &(struct answer_event){.kind = ANSWER_CONTENT, .text = "hi", .len = 2}, &p.out);
        size_t before = p.out.len;
        api_error_set(&e, 500, "server_error", NULL, NULL, "broken");
        shape_fail(p.shape, &e, &p.out);
        bytes_put(&p.out, "", 1);
        if (ends[api]) {
            assert_string_equal(p.out.at + before, ends[api]);
        } else {
            json_t *response = joined_responses(p.out.at, "response.failed");
            is_string(at(response, "status"), "failed");
            is_string(at(at(response, "error"), "message"), "broken");
            json_decref(response);
        }
        shape_close(p.shape);
        bytes_free(&p.out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat),     cmocka_unit_test(test_completions), cmocka_unit_test(test_responses),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, open_tokens, close_tokens);
}
