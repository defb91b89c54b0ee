/* Anthropic's Messages: an answer is a list of blocks (thinking, text, tool_use). input_tokens are those that were
 * read anew; those of a kept prefix are cache_read_input_tokens. message_start cannot know them yet and counts all as
 * read; message_delta says what was. */
#include <string.h>

#include "serve/shape_parts.h"

static void event_open(const char *type, struct bytes *out)
{
    bytes_str(out, "event: ");
    bytes_str(out, type);
    bytes_str(out, "\ndata: {\"type\":\"");
    bytes_str(out, type);
    bytes_str(out, "\"");
}

static void event_close(struct bytes *out)
{
    bytes_str(out, "}\n\n");
}

static void put_index(const struct shape *s, struct bytes *out)
{
    bytes_str(out, ",\"index\":");
    bytes_u64(out, s->n_items - 1);
}

static void put_usage(const struct shape_usage *u, struct bytes *out)
{
    bytes_str(out, "\"usage\":{\"input_tokens\":");
    bytes_u64(out, u->n_prompt > u->n_cached ? u->n_prompt - u->n_cached : 0);
    bytes_str(out, ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    bytes_u64(out, u->n_cached);
    bytes_str(out, ",\"output_tokens\":");
    bytes_u64(out, u->n_generated);
    bytes_str(out, ",\"output_tokens_details\":{\"thinking_tokens\":");
    bytes_u64(out, u->n_reasoning);
    bytes_str(out, "}}");
}

static void put_stop(const struct shape *s, struct bytes *out)
{
    const struct shape_choice *c = &s->choices[0];
    const char *reason = c->finish == FINISH_LENGTH       ? "max_tokens"
                         : c->finish == FINISH_TOOL_CALLS ? "tool_use"
                         : c->stop                        ? "stop_sequence"
                                                          : "end_turn";
    bytes_str(out, "\"stop_reason\":");
    bytes_json(out, reason, strlen(reason));
    bytes_str(out, ",\"stop_sequence\":");
    if (c->stop)
        bytes_json(out, c->stop, strlen(c->stop));
    else
        bytes_str(out, "null");
}

static void put_head(const struct shape *s, struct bytes *out)
{
    bytes_str(out, "{\"id\":\"msg_");
    bytes_escaped(out, s->head.id, strlen(s->head.id));
    bytes_str(out, "\",\"type\":\"message\",\"role\":\"assistant\"");
    shape_member(out, "model", s->head.model);
    shape_member(out, "system_fingerprint", s->head.fingerprint);
    bytes_str(out, ",\"seed\":");
    bytes_i64(out, (i64)s->head.seed);
    bytes_str(out, ",\"content\":[");
}

/* A thinking block needs a signature; ours proves nothing and is not looked at when it comes back. */
static void put_block(const struct shape *s, bool full, struct bytes *out)
{
    const char *text = full && s->item.len ? s->item.at : "";
    size_t len = full ? s->item.len : 0;
    switch ((enum answer_kind)s->open) {
    case ANSWER_REASONING:
        bytes_str(out, "{\"type\":\"thinking\",\"thinking\":");
        bytes_json(out, text, len);
        bytes_str(out, full ? ",\"signature\":\"unsigned\"}" : ",\"signature\":\"\"}");
        break;
    case ANSWER_CONTENT:
        bytes_str(out, "{\"type\":\"text\",\"text\":");
        bytes_json(out, text, len);
        bytes_str(out, ",\"citations\":null}");
        break;
    default:
        bytes_str(out, "{\"type\":\"tool_use\",\"id\":\"toolu_");
        bytes_str(out, s->call_id);
        bytes_str(out, "\",\"name\":");
        bytes_json(out, s->name.at, s->name.len);
        bytes_str(out, ",\"caller\":{\"type\":\"direct\"},\"input\":");
        if (full)
            shape_object(&s->item, out);
        else
            bytes_str(out, "{}");
        bytes_str(out, "}");
        break;
    }
}

static void delta_open(const struct shape *s, const char *type, const char *key, struct bytes *out)
{
    event_open("content_block_delta", out);
    put_index(s, out);
    bytes_str(out, ",\"delta\":{\"type\":\"");
    bytes_str(out, type);
    bytes_str(out, "\",\"");
    bytes_str(out, key);
    bytes_str(out, "\":");
}

static void block_close(struct shape *s, struct bytes *out)
{
    if (s->open < 0)
        return;
    if (s->head.stream) {
        if (s->open == ANSWER_REASONING) {
            delta_open(s, "signature_delta", "signature", out);
            bytes_str(out, "\"unsigned\"}");
            event_close(out);
        }
        event_open("content_block_stop", out);
        put_index(s, out);
        event_close(out);
    } else {
        shape_comma(&s->items);
        put_block(s, true, &s->items);
    }
    s->open = -1;
}

static void block_open(struct shape *s, enum answer_kind kind, struct bytes *out)
{
    block_close(s, out);
    s->open = (i32)kind;
    s->n_items++;
    bytes_clear(&s->item);
    if (!s->head.stream)
        return;
    event_open("content_block_start", out);
    put_index(s, out);
    bytes_str(out, ",\"content_block\":");
    put_block(s, false, out);
    event_close(out);
}

static void delta(struct shape *s, const struct answer_event *e, struct bytes *out)
{
    if (!s->head.stream) {
        bytes_put(&s->item, e->text, e->len);
        return;
    }
    if (s->open == ANSWER_REASONING)
        delta_open(s, "thinking_delta", "thinking", out);
    else if (s->open == ANSWER_CONTENT)
        delta_open(s, "text_delta", "text", out);
    else
        delta_open(s, "input_json_delta", "partial_json", out);
    bytes_json(out, e->text, e->len);
    bytes_str(out, "}");
    event_close(out);
}

static void messages_begin(struct shape *s, struct bytes *out)
{
    const struct shape_usage none = {.n_prompt = s->head.n_prompt};
    if (!s->head.stream)
        return;
    event_open("message_start", out);
    bytes_str(out, ",\"message\":");
    put_head(s, out);
    bytes_str(out, "],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(&none, out);
    bytes_str(out, "}");
    event_close(out);
}

static void messages_event(struct shape *s, u32 choice, const struct answer_event *e, struct bytes *out)
{
    (void)choice;
    switch (e->kind) {
    case ANSWER_REASONING:
    case ANSWER_CONTENT:
        if (s->open != (i32)e->kind)
            block_open(s, e->kind, out);
        delta(s, e, out);
        break;
    case ANSWER_CALL:
        block_close(s, out);
        memcpy(s->call_id, e->id, sizeof s->call_id);
        bytes_clear(&s->name);
        bytes_put(&s->name, e->text, e->len);
        block_open(s, ANSWER_CALL, out);
        break;
    case ANSWER_ARGUMENTS:
        delta(s, e, out);
        break;
    case ANSWER_CALL_END:
    case ANSWER_FINISH:
        block_close(s, out);
        break;
    }
}

static void messages_done(struct shape *s, const struct shape_usage *u, struct bytes *out)
{
    if (s->head.stream) {
        event_open("message_delta", out);
        bytes_str(out, ",\"delta\":{");
        put_stop(s, out);
        bytes_str(out, "},");
        put_usage(u, out);
        shape_timings(u, out);
        event_close(out);
        event_open("message_stop", out);
        event_close(out);
        return;
    }
    put_head(s, out);
    bytes_put(out, s->items.at, s->items.len);
    bytes_str(out, "],");
    put_stop(s, out);
    bytes_str(out, ",");
    put_usage(u, out);
    shape_timings(u, out);
    bytes_str(out, "}");
}

static void messages_fail(struct shape *s, const struct api_error *e, struct bytes *out)
{
    bytes_str(out, "event: error\ndata: ");
    api_error_anthropic(e, s->head.id, out);
    bytes_str(out, "\n\n");
}

const struct shape_kind shape_messages = {messages_begin, messages_event, messages_done, messages_fail};
