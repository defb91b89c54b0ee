/* text_completion, whole and in chunks of the same form. */
#include <string.h>

#include "serve/shape_parts.h"

static void put_head(const struct shape *s, struct bytes *out)
{
    bytes_str(out, "{\"id\":\"cmpl-");
    bytes_escaped(out, s->head.id, strlen(s->head.id));
    bytes_str(out, "\",\"object\":\"text_completion\",\"created\":");
    bytes_u64(out, s->head.created);
    shape_member(out, "model", s->head.model);
    shape_member(out, "system_fingerprint", s->head.fingerprint);
}

/* The lists so far; in a stream those since the last chunk. */
static void put_logprobs(struct shape *s, struct shape_choice *c, struct bytes *out)
{
    static const char *const names[] = {"{\"tokens\":[", "],\"token_logprobs\":[", "],\"top_logprobs\":[",
                                        "],\"text_offset\":["};
    struct bytes *const lists[] = {&c->tokens, &c->token_logprobs, &c->tops, &c->offsets};
    if (!s->head.logprobs || (s->head.stream && !c->tokens.len)) {
        bytes_str(out, "null");
        return;
    }
    for (size_t i = 0; i < COUNT(lists); i++) {
        bytes_str(out, names[i]);
        bytes_put(out, lists[i]->at, lists[i]->len);
        bytes_clear(lists[i]);
    }
    bytes_str(out, "]}");
}

static void put_choice(struct shape *s, u32 choice, const char *text, size_t len, const char *finish, struct bytes *out)
{
    bytes_str(out, "{\"text\":");
    bytes_json(out, text, len);
    bytes_str(out, ",\"index\":");
    bytes_u64(out, choice);
    bytes_str(out, ",\"logprobs\":");
    put_logprobs(s, &s->choices[choice], out);
    bytes_str(out, ",\"finish_reason\":");
    if (finish)
        bytes_json(out, finish, strlen(finish));
    else
        bytes_str(out, "null");
    bytes_str(out, "}");
}

static void completions_begin(struct shape *s, struct bytes *out)
{
    (void)out;
    if (!s->head.stream)
        return;
    bytes_str(&s->prefix, "data: ");
    put_head(s, &s->prefix);
}

static void completions_event(struct shape *s, u32 choice, const struct answer_event *e, struct bytes *out)
{
    if (e->kind != ANSWER_CONTENT && e->kind != ANSWER_FINISH)
        return; /* neither reasoning nor calls are looked for in a completion */
    if (!s->head.stream) {
        bytes_put(&s->choices[choice].text, e->text, e->len);
        return;
    }
    bytes_put(out, s->prefix.at, s->prefix.len);
    if (e->kind == ANSWER_FINISH) {
        bytes_str(out, ",\"seed\":");
        bytes_i64(out, (i64)s->head.seed);
    }
    bytes_str(out, ",\"choices\":[");
    put_choice(s, choice, e->text, e->len, e->kind == ANSWER_FINISH ? shape_finish(e->finish) : NULL, out);
    bytes_str(out, s->head.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

static void completions_done(struct shape *s, const struct shape_usage *u, struct bytes *out)
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
    put_head(s, out);
    bytes_str(out, ",\"choices\":[");
    for (u32 i = 0; i < s->head.n_choices; i++) {
        const struct shape_choice *c = &s->choices[i];
        bytes_str(out, i ? "," : "");
        put_choice(s, i, c->text.at, c->text.len, shape_finish(c->finish), out);
    }
    bytes_str(out, "],");
    shape_usage(u, out);
    shape_timings(u, out);
    bytes_str(out, ",\"seed\":");
    bytes_i64(out, (i64)s->head.seed);
    bytes_str(out, "}");
}

static void completions_fail(struct shape *s, const struct api_error *e, struct bytes *out)
{
    shape_chat.fail(s, e, out);
}

const struct shape_kind shape_completions = {completions_begin, completions_event, completions_done, completions_fail};
