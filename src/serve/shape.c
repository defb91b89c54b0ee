/* See shape.h: opening, dispatch, and the parts that all forms share. */
#include "serve/shape.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serve/shape_parts.h"

void shape_member(struct bytes *out, const char *key, const char *text)
{
    bytes_str(out, ",\"");
    bytes_str(out, key);
    bytes_str(out, "\":");
    bytes_json(out, text, strlen(text));
}

void shape_comma(struct bytes *list)
{
    if (list->len)
        bytes_put(list, ",", 1);
}

/* -inf is no JSON; OpenAI writes this for what never happens. */
static void put_logprob(struct bytes *out, float logprob)
{
    bytes_f32(out, logprob >= -9999.0f ? logprob : -9999.0f);
}

static void put_token(const struct shape *s, u32 id, float logprob, struct bytes *out)
{
    size_t len;
    const char *text = token_bytes(s->head.tokens, id, true, &len);
    bytes_str(out, "{\"token\":");
    bytes_json(out, text, len);
    bytes_str(out, ",\"logprob\":");
    put_logprob(out, logprob);
    bytes_str(out, ",\"bytes\":[");
    for (size_t i = 0; i < len; i++) {
        bytes_str(out, i ? "," : "");
        bytes_u64(out, (u8)text[i]);
    }
    bytes_str(out, "]");
}

void shape_logprob(const struct shape *s, const struct shape_token *t, struct bytes *out)
{
    put_token(s, t->id, t->logprob, out);
    bytes_str(out, ",\"top_logprobs\":[");
    for (u32 i = 0; i < t->n_top; i++) {
        bytes_str(out, i ? "," : "");
        put_token(s, t->top[i].id, t->top[i].logprob, out);
        bytes_str(out, "}");
    }
    bytes_str(out, "]}");
}

void shape_token_text(const struct shape *s, u32 id, struct bytes *out)
{
    static const char hex[] = "0123456789abcdef";
    size_t len;
    const char *text = token_bytes(s->head.tokens, id, true, &len);
    size_t at = out->len;
    bytes_json(out, text, len);
    if (out->failed)
        return;
    char *escaped = memmem(out->at + at, out->len - at, "\xEF\xBF\xBD", 3);
    if (!escaped || memmem(text, len, "\xEF\xBF\xBD", 3))
        return;
    out->len = at;
    bytes_str(out, "\"bytes:");
    for (size_t i = 0; i < len; i++) {
        char one[5] = {'\\', '\\', 'x', hex[(u8)text[i] >> 4], hex[(u8)text[i] & 15]};
        bytes_put(out, one, 5);
    }
    bytes_str(out, "\"");
}

static void put_top(const struct shape *s, const struct shape_token *t, struct bytes *out)
{
    bytes_str(out, "{");
    for (u32 i = 0; i < t->n_top; i++) {
        bytes_str(out, i ? "," : "");
        shape_token_text(s, t->top[i].id, out);
        bytes_str(out, ":");
        put_logprob(out, t->top[i].logprob);
    }
    bytes_str(out, "}");
}

void shape_take_logprobs(struct shape *s, struct shape_choice *c, struct bytes *out)
{
    if (!s->head.logprobs || (s->head.stream && !c->logprobs.len)) {
        bytes_str(out, "null");
        return;
    }
    bytes_str(out, "{\"content\":[");
    bytes_put(out, c->logprobs.at, c->logprobs.len);
    bytes_str(out, "],\"refusal\":null}");
    bytes_clear(&c->logprobs);
}

void shape_usage(const struct shape_usage *u, struct bytes *out)
{
    bytes_str(out, "\"usage\":{\"prompt_tokens\":");
    bytes_u64(out, u->n_prompt);
    bytes_str(out, ",\"completion_tokens\":");
    bytes_u64(out, u->n_generated);
    bytes_str(out, ",\"total_tokens\":");
    bytes_u64(out, (u64)u->n_prompt + u->n_generated);
    bytes_str(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    bytes_u64(out, u->n_cached);
    bytes_str(out, "},\"completion_tokens_details\":{\"reasoning_tokens\":");
    bytes_u64(out, u->n_reasoning);
    bytes_str(out, "}}");
}

/* To a thousandth: a clock's last digits say nothing. */
static void put_milli(struct bytes *out, const char *key, double x)
{
    bytes_str(out, key);
    bytes_f64(out, isfinite(x) && fabs(x) < 1e12 ? round(x * 1000) / 1000 : 0);
}

void shape_timings(const struct shape_usage *u, struct bytes *out)
{
    u32 fresh = u->n_prompt > u->n_cached ? u->n_prompt - u->n_cached : 0;
    put_milli(out, ",\"timings\":{\"queue_ms\":", u->queue_ms);
    put_milli(out, ",\"prompt_ms\":", u->prompt_ms);
    put_milli(out, ",\"decode_ms\":", u->decode_ms);
    put_milli(out, ",\"prompt_tok_s\":", u->prompt_ms > 0 ? 1000 * fresh / u->prompt_ms : 0);
    put_milli(out, ",\"decode_tok_s\":", u->decode_ms > 0 ? 1000 * u->n_generated / u->decode_ms : 0);
    put_milli(out, ",\"batch_width\":", u->batch_width);
    bytes_str(out, "}");
}

const char *shape_finish(enum answer_finish f)
{
    return f == FINISH_LENGTH ? "length" : f == FINISH_TOOL_CALLS ? "tool_calls" : "stop";
}

void shape_object(const struct bytes *json, struct bytes *out)
{
    bool deep = calls_depth(json->at ? json->at : "", json->len) > 64;
    json_t *value = json->len && !deep ? json_loadb(json->at, json->len, JSON_ALLOW_NUL, NULL) : NULL;
    bool good = json_is_object(value);
    json_decref(value);
    if (good) {
        bytes_put(out, json->at, json->len);
    } else if (json->len == 0) {
        bytes_str(out, "{}");
    } else { /* the model broke off or wrote no JSON: what it wrote is not lost */
        bytes_str(out, "{\"malformed_arguments\":");
        bytes_json(out, json->at, json->len);
        bytes_str(out, "}");
    }
}

/* ---- the life of a shape ---- */

int shape_open(struct shape **out, const struct shape_head *head)
{
    static const struct shape_kind *const kinds[] = {&shape_chat, &shape_completions, &shape_responses,
                                                     &shape_messages};
    struct shape *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return -1;
    s->head = *head;
    s->kind = kinds[head->api];
    s->open = -1;
    s->choices = calloc(head->n_choices, sizeof *s->choices);
    if (!s->choices) {
        free(s);
        return -1;
    }
    *out = s;
    return 0;
}

void shape_close(struct shape *s)
{
    if (!s)
        return;
    for (u32 i = 0; i < s->head.n_choices; i++) {
        struct shape_choice *c = &s->choices[i];
        struct bytes *all[] = {&c->text,   &c->reasoning,      &c->calls, &c->args,   &c->logprobs,
                               &c->tokens, &c->token_logprobs, &c->tops,  &c->offsets};
        for (size_t k = 0; k < COUNT(all); k++)
            bytes_free(all[k]);
    }
    bytes_free(&s->prefix);
    bytes_free(&s->items);
    bytes_free(&s->item);
    bytes_free(&s->item_logprobs);
    bytes_free(&s->name);
    free(s->choices);
    free(s);
}

bool shape_failed(const struct shape *s)
{
    bool failed =
        s->failed || s->prefix.failed || s->items.failed || s->item.failed || s->item_logprobs.failed || s->name.failed;
    for (u32 i = 0; i < s->head.n_choices; i++) {
        const struct shape_choice *c = &s->choices[i];
        failed |= c->text.failed | c->reasoning.failed | c->calls.failed | c->args.failed | c->logprobs.failed |
                  c->tokens.failed | c->token_logprobs.failed | c->tops.failed | c->offsets.failed;
    }
    return failed;
}

void shape_begin(struct shape *s, struct bytes *out)
{
    s->kind->begin(s, out);
}

static u64 characters(const char *text, size_t len)
{
    u64 n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((u8)text[i] & 0xC0) != 0x80;
    return n;
}

void shape_token(struct shape *s, u32 choice, const struct shape_token *t)
{
    struct shape_choice *c = &s->choices[choice];
    size_t len;
    if (!s->head.logprobs)
        return;
    if (s->head.api != SHAPE_COMPLETIONS) {
        shape_comma(&c->logprobs);
        shape_logprob(s, t, &c->logprobs);
        return;
    }
    shape_comma(&c->tokens);
    shape_token_text(s, t->id, &c->tokens);
    shape_comma(&c->token_logprobs);
    put_logprob(&c->token_logprobs, t->logprob);
    shape_comma(&c->tops);
    put_top(s, t, &c->tops);
    shape_comma(&c->offsets);
    bytes_u64(&c->offsets, c->n_chars);
    const char *text = token_bytes(s->head.tokens, t->id, false, &len);
    c->n_chars += characters(text, len);
}

void shape_event(struct shape *s, u32 choice, const struct answer_event *e, struct bytes *out)
{
    struct shape_choice *c = &s->choices[choice];
    if (e->kind == ANSWER_FINISH) {
        c->finished = true;
        c->finish = e->finish;
        c->stop = e->stop;
    }
    s->kind->event(s, choice, e, out);
}

void shape_done(struct shape *s, const struct shape_usage *u, struct bytes *out)
{
    s->kind->done(s, u, out);
}

void shape_fail(struct shape *s, const struct api_error *e, struct bytes *out)
{
    if (s->head.stream)
        s->kind->fail(s, e, out);
    else if (s->head.api == SHAPE_MESSAGES)
        api_error_anthropic(e, s->head.id, out);
    else
        api_error_openai(e, out);
}

void shape_ping(const struct shape *s, struct bytes *out)
{
    if (s->head.api == SHAPE_MESSAGES)
        bytes_str(out, "event: ping\ndata: {\"type\":\"ping\"}\n\n");
    else
        bytes_str(out, ": ping\n\n");
}
