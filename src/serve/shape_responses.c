/* OpenAI's Responses: one answer is a list of items (reasoning, message, function_call), each opened, filled and closed
 * by events that carry a sequence_number; the last event repeats the whole response. A message that continues behind a
 * call is a new item. */
#include <string.h>

#include "serve/shape_parts.h"

/* ---- the response object ---- */

static void put_usage(const struct shape_usage *u, struct bytes *out)
{
    bytes_str(out, "{\"input_tokens\":");
    bytes_u64(out, u->n_prompt);
    bytes_str(out, ",\"input_tokens_details\":{\"cached_tokens\":");
    bytes_u64(out, u->n_cached);
    bytes_str(out, ",\"cache_write_tokens\":0},\"output_tokens\":");
    bytes_u64(out, u->n_generated);
    bytes_str(out, ",\"output_tokens_details\":{\"reasoning_tokens\":");
    bytes_u64(out, u->n_reasoning);
    bytes_str(out, "},\"total_tokens\":");
    bytes_u64(out, (u64)u->n_prompt + u->n_generated);
    bytes_str(out, "}");
}

/* usage NULL: not at its end. error NULL: none. */
static void put_response(const struct shape *s, const char *status, const struct shape_usage *u,
                         const struct api_error *error, struct bytes *out)
{
    bytes_str(out, "{\"id\":\"resp_");
    bytes_escaped(out, s->head.id, strlen(s->head.id));
    bytes_str(out, "\",\"object\":\"response\",\"created_at\":");
    bytes_u64(out, s->head.created);
    shape_member(out, "status", status);
    bytes_str(out, ",\"background\":false,\"store\":false,\"error\":");
    if (error) {
        bytes_str(out, "{\"code\":\"server_error\"");
        shape_member(out, "message", error->message);
        bytes_str(out, "}");
    } else {
        bytes_str(out, "null");
    }
    bytes_str(out, ",\"incomplete_details\":");
    bytes_str(out, !strcmp(status, "incomplete") ? "{\"reason\":\"max_output_tokens\"}" : "null");
    shape_member(out, "model", s->head.model);
    shape_member(out, "system_fingerprint", s->head.fingerprint);
    bytes_str(out, ",\"seed\":");
    bytes_i64(out, (i64)s->head.seed);
    if (s->head.echo_json && *s->head.echo_json) {
        bytes_str(out, ",");
        bytes_str(out, s->head.echo_json);
    }
    bytes_str(out, ",\"output\":[");
    bytes_put(out, s->items.at, s->items.len);
    bytes_str(out, "],\"usage\":");
    if (u) {
        put_usage(u, out);
        shape_timings(u, out);
    } else {
        bytes_str(out, "null");
    }
    bytes_str(out, "}");
}

/* ---- events ---- */

static void event_open(struct shape *s, const char *type, struct bytes *out)
{
    bytes_str(out, "event: ");
    bytes_str(out, type);
    bytes_str(out, "\ndata: {\"type\":\"");
    bytes_str(out, type);
    bytes_str(out, "\",\"sequence_number\":");
    bytes_u64(out, s->sequence++);
}

static void event_close(struct bytes *out)
{
    bytes_str(out, "}\n\n");
}

static void whole_event(struct shape *s, const char *type, const char *status, const struct shape_usage *u,
                        const struct api_error *error, struct bytes *out)
{
    event_open(s, type, out);
    bytes_str(out, ",\"response\":");
    put_response(s, status, u, error, out);
    event_close(out);
}

/* "rs_ID_0": the kind, the request, the item's number. */
static void put_item_id(const struct shape *s, struct bytes *out)
{
    bytes_str(out, s->open == ANSWER_REASONING ? "\"rs_" : s->open == ANSWER_CONTENT ? "\"msg_" : "\"fc_");
    bytes_escaped(out, s->head.id, strlen(s->head.id));
    bytes_str(out, "_");
    bytes_u64(out, s->n_items - 1);
    bytes_str(out, "\"");
}

static void put_place(const struct shape *s, bool content, struct bytes *out)
{
    bytes_str(out, ",\"item_id\":");
    put_item_id(s, out);
    bytes_str(out, ",\"output_index\":");
    bytes_u64(out, s->n_items - 1);
    if (content)
        bytes_str(out, ",\"content_index\":0");
}

/* The content part as far as it has come. */
static void put_part(const struct shape *s, bool full, struct bytes *out)
{
    bytes_str(out, s->open == ANSWER_CONTENT ? "{\"type\":\"output_text\",\"text\":"
                                             : "{\"type\":\"reasoning_text\",\"text\":");
    bytes_json(out, s->item.at, full ? s->item.len : 0);
    if (s->open == ANSWER_CONTENT) {
        bytes_str(out, ",\"annotations\":[],\"logprobs\":[");
        if (full)
            bytes_put(out, s->item_logprobs.at, s->item_logprobs.len);
        bytes_str(out, "]");
    }
    bytes_str(out, "}");
}

/* The open item; full: with what it has, else as it is when it begins. */
static void put_item(const struct shape *s, bool full, const char *status, struct bytes *out)
{
    bytes_str(out, "{\"id\":");
    put_item_id(s, out);
    if (s->open == ANSWER_CALL) {
        bytes_str(out, ",\"type\":\"function_call\",\"call_id\":\"call_");
        bytes_str(out, s->call_id);
        bytes_str(out, "\",\"name\":");
        bytes_json(out, s->name.at, s->name.len);
        bytes_str(out, ",\"arguments\":");
        bytes_json(out, s->item.at, full ? s->item.len : 0);
    } else {
        bytes_str(out, s->open == ANSWER_CONTENT ? ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                                                 : ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (full)
            put_part(s, true, out);
        bytes_str(out, "]");
    }
    shape_member(out, "status", status);
    bytes_str(out, "}");
}

static void item_open(struct shape *s, enum answer_kind kind, struct bytes *out)
{
    s->open = (i32)kind;
    s->n_items++;
    bytes_clear(&s->item);
    bytes_clear(&s->item_logprobs);
    if (!s->head.stream)
        return;
    event_open(s, "response.output_item.added", out);
    bytes_str(out, ",\"output_index\":");
    bytes_u64(out, s->n_items - 1);
    bytes_str(out, ",\"item\":");
    put_item(s, false, "in_progress", out);
    event_close(out);
    if (kind == ANSWER_CALL)
        return;
    event_open(s, "response.content_part.added", out);
    put_place(s, true, out);
    bytes_str(out, ",\"part\":");
    put_part(s, false, out);
    event_close(out);
}

/* The text is complete: told once more as a whole. */
static void text_done(struct shape *s, struct bytes *out)
{
    if (s->open == ANSWER_CALL) {
        event_open(s, "response.function_call_arguments.done", out);
        put_place(s, false, out);
        bytes_str(out, ",\"name\":");
        bytes_json(out, s->name.at, s->name.len);
        bytes_str(out, ",\"arguments\":");
        bytes_json(out, s->item.at, s->item.len);
        event_close(out);
        return;
    }
    event_open(s, s->open == ANSWER_CONTENT ? "response.output_text.done" : "response.reasoning_text.done", out);
    put_place(s, true, out);
    bytes_str(out, ",\"text\":");
    bytes_json(out, s->item.at, s->item.len);
    if (s->open == ANSWER_CONTENT) {
        bytes_str(out, ",\"logprobs\":[");
        bytes_put(out, s->item_logprobs.at, s->item_logprobs.len);
        bytes_str(out, "]");
    }
    event_close(out);
    event_open(s, "response.content_part.done", out);
    put_place(s, true, out);
    bytes_str(out, ",\"part\":");
    put_part(s, true, out);
    event_close(out);
}

static void item_close(struct shape *s, const char *status, struct bytes *out)
{
    if (s->open < 0)
        return;
    if (s->head.stream) {
        text_done(s, out);
        event_open(s, "response.output_item.done", out);
        bytes_str(out, ",\"output_index\":");
        bytes_u64(out, s->n_items - 1);
        bytes_str(out, ",\"item\":");
        put_item(s, true, status, out);
        event_close(out);
    }
    shape_comma(&s->items);
    put_item(s, true, status, &s->items);
    s->open = -1;
}

static void delta(struct shape *s, const struct answer_event *e, struct bytes *out)
{
    struct bytes *waiting = &s->choices[0].logprobs;
    bytes_put(&s->item, e->text, e->len);
    if (s->head.stream) {
        event_open(s,
                   s->open == ANSWER_CALL      ? "response.function_call_arguments.delta"
                   : s->open == ANSWER_CONTENT ? "response.output_text.delta"
                                               : "response.reasoning_text.delta",
                   out);
        put_place(s, s->open != ANSWER_CALL, out);
        bytes_str(out, ",\"delta\":");
        bytes_json(out, e->text, e->len);
        if (s->open == ANSWER_CONTENT) {
            bytes_str(out, ",\"logprobs\":[");
            bytes_put(out, waiting->at, waiting->len);
            bytes_str(out, "]");
        }
        event_close(out);
    }
    if (s->open == ANSWER_CONTENT && waiting->len) {
        shape_comma(&s->item_logprobs);
        bytes_put(&s->item_logprobs, waiting->at, waiting->len);
    }
    bytes_clear(waiting); /* those of reasoning and calls have no place in this API */
}

/* ---- the four calls ---- */

static void responses_begin(struct shape *s, struct bytes *out)
{
    if (!s->head.stream)
        return;
    whole_event(s, "response.created", "in_progress", NULL, NULL, out);
    whole_event(s, "response.in_progress", "in_progress", NULL, NULL, out);
}

static void responses_event(struct shape *s, u32 choice, const struct answer_event *e, struct bytes *out)
{
    (void)choice;
    switch (e->kind) {
    case ANSWER_REASONING:
    case ANSWER_CONTENT:
        if (s->open != (i32)e->kind) {
            item_close(s, "completed", out);
            item_open(s, e->kind, out);
        }
        delta(s, e, out);
        break;
    case ANSWER_CALL:
        item_close(s, "completed", out);
        memcpy(s->call_id, e->id, sizeof s->call_id);
        bytes_clear(&s->name);
        bytes_put(&s->name, e->text, e->len);
        item_open(s, ANSWER_CALL, out);
        break;
    case ANSWER_ARGUMENTS:
        delta(s, e, out);
        break;
    case ANSWER_CALL_END: /* closed by what comes next: it may have been cut off */
        break;
    case ANSWER_FINISH:
        item_close(s, e->finish == FINISH_LENGTH ? "incomplete" : "completed", out);
        break;
    }
}

static void responses_done(struct shape *s, const struct shape_usage *u, struct bytes *out)
{
    bool cut = s->choices[0].finish == FINISH_LENGTH;
    const char *status = cut ? "incomplete" : "completed";
    if (s->head.stream)
        whole_event(s, cut ? "response.incomplete" : "response.completed", status, u, NULL, out);
    else
        put_response(s, status, u, NULL, out);
}

static void responses_fail(struct shape *s, const struct api_error *e, struct bytes *out)
{
    item_close(s, "incomplete", out);
    whole_event(s, "response.failed", "failed", NULL, e, out);
}

const struct shape_kind shape_responses = {responses_begin, responses_event, responses_done, responses_fail};
