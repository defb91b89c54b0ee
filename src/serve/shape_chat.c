/* chat.completion and chat.completion.chunk. The role comes in the first delta, finish_reason in exactly one chunk of
 * each choice, usage in a chunk without choices, then [DONE]. Reasoning is `reasoning_content`, as DeepSeek's API named
 * it and clients read it. */
#include <string.h>

#include "serve/shape_parts.h"

static void put_head(const struct shape *s, const char *object, struct bytes *out)
{
    bytes_str(out, "{\"id\":\"chatcmpl-");
    bytes_escaped(out, s->head.id, strlen(s->head.id));
    bytes_str(out, "\"");
    shape_member(out, "object", object);
    bytes_str(out, ",\"created\":");
    bytes_u64(out, s->head.created);
    shape_member(out, "model", s->head.model);
    shape_member(out, "system_fingerprint", s->head.fingerprint);
}

static void chunk_open(struct shape *s, u32 choice, struct bytes *out)
{
    bytes_put(out, s->prefix.at, s->prefix.len);
    bytes_str(out, ",\"choices\":[{\"index\":");
    bytes_u64(out, choice);
    bytes_str(out, ",\"delta\":{");
}

static void chunk_close(struct shape *s, u32 choice, const char *finish, struct bytes *out)
{
    bytes_str(out, "},\"logprobs\":");
    shape_take_logprobs(s, &s->choices[choice], out);
    bytes_str(out, ",\"finish_reason\":");
    if (finish)
        bytes_json(out, finish, strlen(finish));
    else
        bytes_str(out, "null");
    bytes_str(out, "}]");
    bytes_str(out, s->head.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void chat_begin(struct shape *s, struct bytes *out)
{
    if (!s->head.stream)
        return;
    bytes_str(&s->prefix, "data: ");
    put_head(s, "chat.completion.chunk", &s->prefix);
    for (u32 i = 0; i < s->head.n_choices; i++) {
        bytes_put(out, s->prefix.at, s->prefix.len);
        bytes_str(out, ",\"seed\":");
        bytes_i64(out, (i64)s->head.seed);
        bytes_str(out, ",\"choices\":[{\"index\":");
        bytes_u64(out, i);
        bytes_str(out, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"");
        chunk_close(s, i, NULL, out);
    }
}

/* {"index":0,"id":"call_..","type":"function","function":{"name":"f","arguments":" */
static void put_call(const struct answer_event *e, bool index, struct bytes *out)
{
    bytes_str(out, "{");
    if (index) {
        bytes_str(out, "\"index\":");
        bytes_u64(out, e->call);
        bytes_str(out, ",");
    }
    bytes_str(out, "\"id\":\"call_");
    bytes_str(out, e->id);
    bytes_str(out, "\",\"type\":\"function\",\"function\":{\"name\":");
    bytes_json(out, e->text, e->len);
    bytes_str(out, ",\"arguments\":\"");
}

static void stream_event(struct shape *s, u32 choice, const struct answer_event *e, struct bytes *out)
{
    if (e->kind == ANSWER_CALL_END)
        return;
    chunk_open(s, choice, out);
    switch (e->kind) {
    case ANSWER_REASONING:
    case ANSWER_CONTENT:
        bytes_str(out, e->kind == ANSWER_CONTENT ? "\"content\":" : "\"reasoning_content\":");
        bytes_json(out, e->text, e->len);
        break;
    case ANSWER_CALL:
        bytes_str(out, "\"tool_calls\":[");
        put_call(e, true, out);
        bytes_str(out, "\"}}]");
        break;
    case ANSWER_ARGUMENTS:
        bytes_str(out, "\"tool_calls\":[{\"index\":");
        bytes_u64(out, e->call);
        bytes_str(out, ",\"function\":{\"arguments\":");
        bytes_json(out, e->text, e->len);
        bytes_str(out, "}}]");
        break;
    default:
        break;
    }
    chunk_close(s, choice, e->kind == ANSWER_FINISH ? shape_finish(e->finish) : NULL, out);
}

static void chat_event(struct shape *s, u32 choice, const struct answer_event *e, struct bytes *out)
{
    struct shape_choice *c = &s->choices[choice];
    if (s->head.stream) {
        stream_event(s, choice, e, out);
        return;
    }
    switch (e->kind) {
    case ANSWER_REASONING:
        bytes_put(&c->reasoning, e->text, e->len);
        break;
    case ANSWER_CONTENT:
        bytes_put(&c->text, e->text, e->len);
        break;
    case ANSWER_CALL:
        shape_comma(&c->calls);
        put_call(e, false, &c->calls);
        break;
    case ANSWER_ARGUMENTS:
        bytes_escaped(&c->calls, e->text, e->len);
        break;
    case ANSWER_CALL_END:
        bytes_str(&c->calls, "\"}}");
        break;
    case ANSWER_FINISH:
        break;
    }
}

static void put_choice(struct shape *s, u32 choice, struct bytes *out)
{
    struct shape_choice *c = &s->choices[choice];
    bytes_str(out, choice ? ",{\"index\":" : "{\"index\":");
    bytes_u64(out, choice);
    bytes_str(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->text.len || !c->calls.len)
        bytes_json(out, c->text.at, c->text.len);
    else
        bytes_str(out, "null");
    bytes_str(out, ",\"refusal\":null");
    if (c->reasoning.len) {
        bytes_str(out, ",\"reasoning_content\":");
        bytes_json(out, c->reasoning.at, c->reasoning.len);
    }
    if (c->calls.len) {
        bytes_str(out, ",\"tool_calls\":[");
        bytes_put(out, c->calls.at, c->calls.len);
        bytes_str(out, "]");
    }
    bytes_str(out, "},\"logprobs\":");
    shape_take_logprobs(s, c, out);
    shape_member(out, "finish_reason", shape_finish(c->finish));
    bytes_str(out, "}");
}

static void chat_done(struct shape *s, const struct shape_usage *u, struct bytes *out)
{
    if (s->head.stream) {
        if (s->head.include_usage) {
            bytes_put(out, s->prefix.at, s->prefix.len);
            bytes_str(out, ",\"choices\":[],");
            shape_usage(u, out);
            shape_timings(u, out);
            bytes_str(out, "}\n\n");
        }
        bytes_str(out, "data: [DONE]\n\n");
        return;
    }
    put_head(s, "chat.completion", out);
    bytes_str(out, ",\"choices\":[");
    for (u32 i = 0; i < s->head.n_choices; i++)
        put_choice(s, i, out);
    bytes_str(out, "],");
    shape_usage(u, out);
    shape_timings(u, out);
    bytes_str(out, ",\"seed\":");
    bytes_i64(out, (i64)s->head.seed);
    bytes_str(out, "}");
}

static void chat_fail(struct shape *s, const struct api_error *e, struct bytes *out)
{
    (void)s;
    bytes_str(out, "data: ");
    api_error_openai(e, out);
    bytes_str(out, "\n\ndata: [DONE]\n\n");
}

const struct shape_kind shape_chat = {chat_begin, chat_event, chat_done, chat_fail};
