/* See request.h: the body as a whole, sampling, completions and the small endpoints. Conversations are in
 * request_chat.c, request_responses.c and request_messages.c. */
#include "serve/request.h"

#include <stdlib.h>
#include <string.h>

#include "serve/calls.h"
#include "serve/fields.h"

static const i64 i32_max = INT32_MAX, i64_min = INT64_MIN, i64_max = INT64_MAX;

/* ---- sampling ---- */

static int read_seed(struct request *r, const json_t *body, struct api_error *e)
{
    i64 seed = -1;
    if (field_i64(body, NULL, "seed", i64_min, i64_max, &seed, e))
        return -1;
    r->has_seed = seed != -1;
    r->seed = r->has_seed ? (u64)seed : 0;
    return 0;
}

static int read_bias(struct request *r, const json_t *body, struct api_error *e)
{
    json_t *bias = NULL;
    const char *key;
    json_t *value;
    struct place at = place_key(NULL, "logit_bias");
    if (field_object(body, NULL, "logit_bias", &bias, e))
        return -1;
    if (!bias)
        return 0;
    size_t n = json_object_size(bias);
    if (n > REQUEST_MAX_BIAS)
        return api_error_bad(e, "logit_bias", "logit_bias has %zu entries; at most %d are taken", n, REQUEST_MAX_BIAS);
    r->bias = calloc(n + 1, sizeof *r->bias);
    if (!r->bias)
        return api_error_memory(e);
    json_object_foreach(bias, key, value)
    {
        struct place here = place_key(&at, key);
        size_t digits = strspn(key, "0123456789");
        if (digits == 0 || digits > 9 || key[digits])
            return api_error_bad(e, here.text, "logit_bias: a key must be a token id");
        struct request_bias *b = &r->bias[r->n_bias++];
        b->id = (u32)strtoul(key, NULL, 10);
        if (field_f32(bias, &at, key, -100, 100, &b->add, e))
            return -1;
    }
    return 0;
}

int request_stops(struct request *r, const json_t *body, const char *key, struct api_error *e)
{
    json_t *value = field(body, key), *item;
    struct place at = place_key(NULL, key);
    const char *texts[STOPS_MAX];
    size_t lens[STOPS_MAX], i;
    u32 n = 0;
    if (!value)
        return 0;
    if (!json_is_string(value) && !json_is_array(value))
        return field_wrong(&at, "a string or an array of strings", value, e);
    json_t *list = json_is_array(value) ? json_incref(value) : json_pack("[O]", value);
    if (!list)
        return api_error_memory(e);
    json_array_foreach(list, i, item)
    {
        struct place here = json_is_array(value) ? place_index(&at, i) : at;
        if (!json_is_string(item)) {
            field_wrong(&here, "a string", item, e);
            goto fail;
        }
        size_t len = json_string_length(item);
        if (len == 0)
            continue; /* says nothing */
        if (len > STOPS_MAX_BYTES) {
            api_error_bad(e, here.text, "%s has %zu bytes; at most %d are taken", here.text, len, STOPS_MAX_BYTES);
            goto fail;
        }
        if (n == STOPS_MAX) {
            api_error_bad(e, key, "%s: at most %d stop strings are taken", key, STOPS_MAX);
            goto fail;
        }
        texts[n] = json_string_value(item);
        lens[n++] = len;
    }
    if (n && stops_open(&r->stops, texts, lens, n)) {
        api_error_memory(e);
        goto fail;
    }
    json_decref(list);
    return 0;
fail:
    json_decref(list);
    return -1;
}

static int read_penalties(struct request *r, const json_t *body, struct api_error *e)
{
    i64 last = -1;
    if (field_f32(body, NULL, "repetition_penalty", 1e-3, 100, &r->repeat_penalty, e) ||
        field_f32(body, NULL, "repeat_penalty", 1e-3, 100, &r->repeat_penalty, e) ||
        field_f32(body, NULL, "presence_penalty", -2, 2, &r->presence_penalty, e) ||
        field_f32(body, NULL, "frequency_penalty", -2, 2, &r->frequency_penalty, e) ||
        field_i64(body, NULL, "repeat_last_n", -1, i32_max, &last, e))
        return -1;
    if (last == 0) {
        r->repeat_penalty = 1;
        r->presence_penalty = r->frequency_penalty = 0;
    }
    r->repeat_last_n = last > 0 ? (u32)last : 0;
    return 0;
}

/* What all APIs share. */
static int read_common(struct request *r, const json_t *body, struct api_error *e)
{
    i64 top_k = 0;
    const char *model = NULL;
    r->temperature = r->top_p = r->repeat_penalty = 1;
    r->n = 1;
    if (field_string(body, NULL, "model", &model, e) ||
        field_f32(body, NULL, "temperature", 0, 100, &r->temperature, e) ||
        field_f32(body, NULL, "top_p", 0, 1, &r->top_p, e) || field_f32(body, NULL, "min_p", 0, 1, &r->min_p, e) ||
        field_i64(body, NULL, "top_k", -1, i32_max, &top_k, e) || read_penalties(r, body, e) || read_seed(r, body, e) ||
        read_bias(r, body, e) || field_bool(body, NULL, "stream", &r->stream, e) ||
        field_bool(body, NULL, "ignore_eos", &r->ignore_end, e))
        return -1;
    if (model && field_copy(&r->model, model, e))
        return -1;
    r->top_k = top_k > 0 ? (u32)top_k : 0;
    if (r->top_p <= 0) /* the best token alone; to the engine 0 means off */
        r->top_p = 1e-9f;
    return 0;
}

/* What both of OpenAI's older APIs share. */
static int read_openai(struct request *r, const json_t *body, struct api_error *e)
{
    /* llama-server's: what would be broken in silence is refused, and its name for max_tokens is known */
    static const char *const ELSEWHERE[] = {"grammar", "json_schema"};
    i64 n = 1, max_tokens = -1, max_completion = -1, n_predict = -1;
    json_t *options = NULL;
    for (u32 i = 0; i < COUNT(ELSEWHERE); i++)
        if (!json_is_null(json_object_get(body, ELSEWHERE[i])) && json_object_get(body, ELSEWHERE[i]))
            return api_error_bad(e, ELSEWHERE[i], "%s is not taken here: response_format with a json_schema is", ELSEWHERE[i]);
    struct place at = place_key(NULL, "stream_options");
    if (field_i64(body, NULL, "n", 1, REQUEST_MAX_CHOICES, &n, e) ||
        field_i64(body, NULL, "max_tokens", -1, i32_max, &max_tokens, e) ||
        field_i64(body, NULL, "max_completion_tokens", -1, i32_max, &max_completion, e) ||
        field_i64(body, NULL, "n_predict", -1, i32_max, &n_predict, e) ||
        field_object(body, NULL, "stream_options", &options, e) || request_stops(r, body, "stop", e))
        return -1;
    if (options && field_bool(options, &at, "include_usage", &r->include_usage, e))
        return -1;
    if (max_tokens == -1)
        max_tokens = n_predict;
    if (max_tokens == 0 || max_completion == 0) {
        const char *which = n_predict == 0 ? "n_predict" : max_tokens == 0 ? "max_tokens" : "max_completion_tokens";
        return api_error_bad(e, which, "%s is 0; it must be at least 1", which);
    }
    r->n = (u32)n;
    r->max_tokens = max_completion > 0 ? (u32)max_completion : max_tokens > 0 ? (u32)max_tokens : 0;
    return 0;
}

/* ---- formats ---- */

int request_schema(struct request *r, const json_t *schema, const struct place *at, const char *param,
                   struct api_error *e)
{
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return field_wrong(at, "a JSON schema", schema, e);
    r->schema_json = field_dump(schema, e);
    if (!r->schema_json)
        return -1;
    if (strlen(r->schema_json) > REQUEST_MAX_SCHEMA_BYTES)
        return api_error_bad(e, at->text, "%s has more than %d bytes", at->text, REQUEST_MAX_SCHEMA_BYTES);
    r->format = FORMAT_SCHEMA;
    r->schema_param = param;
    return 0;
}

/* ---- completions ---- */

static int read_ids(struct request_prompt *p, const json_t *list, const struct place *at, struct api_error *e)
{
    size_t i;
    json_t *item;
    p->ids = calloc(json_array_size(list) + 1, sizeof *p->ids);
    if (!p->ids)
        return api_error_memory(e);
    json_array_foreach(list, i, item)
    {
        struct place here = place_index(at, i);
        i64 id = 0;
        if (value_i64(item, &here, 0, i32_max, &id, e))
            return -1;
        p->ids[p->n_ids++] = (u32)id;
    }
    return 0;
}

static int read_prompt(struct request *r, const json_t *value, const struct place *at, struct api_error *e)
{
    struct request_prompt *p = &r->prompts[r->n_prompts++];
    if (json_is_array(value))
        return read_ids(p, value, at, e);
    if (!json_is_string(value))
        return field_wrong(at, "a string or an array of token ids", value, e);
    p->len = json_string_length(value);
    return field_copy(&p->text, json_string_value(value), e);
}

static int read_prompts(struct request *r, const json_t *body, struct api_error *e)
{
    const json_t *value = field(body, "prompt");
    struct place at = place_key(NULL, "prompt");
    bool one = !json_is_array(value) || json_is_number(json_array_get(value, 0));
    size_t n = one ? 1 : json_array_size(value);
    if (!value)
        return field_wrong(&at, "a string, an array of strings or token ids", value, e);
    if (n == 0)
        return api_error_bad(e, "prompt", "prompt is empty");
    if (n * r->n > REQUEST_MAX_CHOICES)
        return api_error_bad(e, "prompt", "%zu prompts with n = %u are %zu answers; at most %d are made", n, r->n,
                             n * r->n, REQUEST_MAX_CHOICES);
    r->prompts = calloc(n, sizeof *r->prompts);
    if (!r->prompts)
        return api_error_memory(e);
    for (size_t i = 0; i < n; i++) {
        struct place here = one ? at : place_index(&at, i);
        if (read_prompt(r, one ? value : json_array_get(value, i), &here, e))
            return -1;
    }
    return 0;
}

static int request_completions(struct request *r, const json_t *body, struct api_error *e)
{
    bool echo = false;
    i64 logprobs = -1, best_of = 1;
    const char *suffix = NULL;
    if (read_openai(r, body, e) || read_prompts(r, body, e) || field_bool(body, NULL, "echo", &echo, e) ||
        field_i64(body, NULL, "logprobs", 0, REQUEST_MAX_TOP_LOGPROBS, &logprobs, e) ||
        field_i64(body, NULL, "best_of", 1, 128, &best_of, e) || field_string(body, NULL, "suffix", &suffix, e))
        return -1;
    if (echo)
        return api_error_bad(e, "echo", "echo is not supported");
    if (suffix && *suffix)
        return api_error_bad(e, "suffix", "suffix is not supported");
    if (best_of > r->n)
        return api_error_bad(e, "best_of", "best_of is not supported beyond n");
    r->logprobs = logprobs >= 0;
    r->top_logprobs = logprobs > 0 ? (u32)logprobs : 0;
    return 0;
}

/* ---- tokenize, detokenize ---- */

static int request_tokenize(struct request *r, const json_t *body, struct api_error *e)
{
    const json_t *value = field(body, "content");
    struct place at = place_key(NULL, "content");
    if (!json_is_string(value))
        return field_wrong(&at, "a string", value, e);
    r->parse_special = true;
    r->prompts = calloc(1, sizeof *r->prompts);
    if (!r->prompts)
        return api_error_memory(e);
    if (read_prompt(r, value, &at, e) || field_bool(body, NULL, "add_special", &r->add_special, e) ||
        field_bool(body, NULL, "parse_special", &r->parse_special, e))
        return -1;
    return field_bool(body, NULL, "with_pieces", &r->with_pieces, e);
}

static int request_detokenize(struct request *r, const json_t *body, struct api_error *e)
{
    const json_t *value = field(body, "tokens");
    struct place at = place_key(NULL, "tokens");
    if (!json_is_array(value))
        return field_wrong(&at, "an array of token ids", value, e);
    r->prompts = calloc(1, sizeof *r->prompts);
    return r->prompts ? read_prompt(r, value, &at, e) : api_error_memory(e);
}

/* ---- the body ---- */

/* The parser's line ends in a piece of the body ("... near 'secret'"), which is nobody's but the client's. */
static int bad_json(const json_error_t *error, struct api_error *e)
{
    char what[120];
    const char *near = strstr(error->text, " near ");
    size_t len = near ? (size_t)(near - error->text) : strnlen(error->text, sizeof error->text);
    if (json_error_code(error) == json_error_out_of_memory)
        return api_error_memory(e);
    if (json_error_code(error) == json_error_invalid_utf8)
        return api_error_bad(e, NULL, "the body is not UTF-8, at byte %d", error->position);
    return api_error_bad(e, NULL, "the body is not the JSON that is taken here: %s, at byte %d",
                         err_quote(what, sizeof what, error->text, len), error->position);
}

static int read_body(struct request *r, const json_t *body, struct api_error *e)
{
    if (!json_is_object(body))
        return api_error_bad(e, NULL, "the body must be a JSON object, not %s", field_type(body));
    if (read_common(r, body, e))
        return -1;
    switch (r->endpoint) {
    case ENDPOINT_CHAT:
        return read_openai(r, body, e) || request_chat(r, body, e) ? -1 : 0;
    case ENDPOINT_APPLY_TEMPLATE:
        return request_chat(r, body, e);
    case ENDPOINT_COMPLETIONS:
        return request_completions(r, body, e);
    case ENDPOINT_RESPONSES:
        return request_responses(r, body, e);
    case ENDPOINT_MESSAGES:
    case ENDPOINT_COUNT_TOKENS:
        return request_messages(r, body, e);
    case ENDPOINT_TOKENIZE:
        return request_tokenize(r, body, e);
    case ENDPOINT_DETOKENIZE:
        return request_detokenize(r, body, e);
    }
    return -1;
}

int request_parse(struct request *r, enum endpoint endpoint, const char *body, size_t len, struct api_error *e)
{
    json_error_t error;
    *r = (struct request){.endpoint = endpoint, .add_generation_prompt = true};
    if (calls_depth(body, len) > REQUEST_MAX_DEPTH)
        return api_error_bad(e, NULL, "the body has more than %d levels of arrays and objects", REQUEST_MAX_DEPTH);
    json_t *json = json_loadb(body, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    int bad = json ? read_body(r, json, e) : bad_json(&error, e);
    json_decref(json);
    if (bad)
        request_free(r);
    return bad;
}

void request_free(struct request *r)
{
    for (u32 i = 0; i < r->n_prompts; i++) {
        free(r->prompts[i].text);
        free(r->prompts[i].ids);
    }
    free(r->prompts);
    free(r->model);
    free(r->messages_json);
    free(r->tools_json);
    free(r->kwargs_json);
    free(r->bias);
    free(r->tool_name);
    free(r->schema_json);
    free(r->echo_json);
    stops_close(r->stops);
    *r = (struct request){0};
}
