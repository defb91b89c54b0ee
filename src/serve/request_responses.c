/* /v1/responses, without state: what the client does not send is not there. Items become messages: a reasoning item and
 * function calls join the assistant's message they belong to. See request.h. */
#include <stdlib.h>
#include <string.h>

#include "serve/fields.h"

struct talk {
    json_t *messages;
    json_t *assistant; /* the message that reasoning and calls join; borrowed, NULL: the next one begins anew */
};

static int add_message(struct talk *t, const char *role, json_t *content, struct api_error *e) /* content is taken */
{
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", content);
    if (json_array_append_new(t->messages, message))
        return api_error_memory(e);
    t->assistant = !strcmp(role, "assistant") ? message : NULL;
    return 0;
}

static int want_assistant(struct talk *t, struct api_error *e)
{
    return t->assistant ? 0 : add_message(t, "assistant", json_string(""), e);
}

static int add_text(struct talk *t, const json_t *item, const struct place *at, struct api_error *e)
{
    const char *role = NULL;
    struct place role_at = place_key(at, "role"), content_at = place_key(at, "content");
    if (field_string(item, at, "role", &role, e))
        return -1;
    if (role && !strcmp(role, "developer"))
        role = "system";
    if (!role || (strcmp(role, "system") != 0 && strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
        return api_error_bad(e, role_at.text, "%s must be user, assistant, system or developer", role_at.text);
    json_t *text = field_text(json_object_get(item, "content"), &content_at, "input_text", "output_text", e);
    if (!text)
        return -1;
    size_t n = json_array_size(t->messages);
    json_t *last = n ? json_array_get(t->messages, n - 1) : NULL;
    const char *before = json_string_value(json_object_get(last, "content"));
    bool joins = last && n == 1 && !strcmp(role, "system") &&
                 !strcmp(json_string_value(json_object_get(last, "role")), "system");
    bool speaks = !strcmp(role, "assistant") && t->assistant &&
                  !*json_string_value(json_object_get(t->assistant, "content")) &&
                  !json_object_get(t->assistant, "tool_calls");
    if (joins) { /* instructions and the first system message are one: templates know one */
        json_t *both = json_sprintf("%s\n\n%s", before, json_string_value(text));
        json_decref(text);
        return json_object_set_new(last, "content", both) ? api_error_memory(e) : 0;
    }
    if (speaks) /* its reasoning came before */
        return json_object_set_new(t->assistant, "content", text) ? api_error_memory(e) : 0;
    return add_message(t, role, text, e);
}

static int add_call(struct talk *t, const json_t *item, const struct place *at, struct api_error *e)
{
    const char *name = NULL, *arguments = "", *id = NULL;
    struct place name_at = place_key(at, "name");
    if (field_string(item, at, "name", &name, e) || field_string(item, at, "arguments", &arguments, e) ||
        field_string(item, at, "call_id", &id, e))
        return -1;
    if (!name)
        return field_wrong(&name_at, "a string", NULL, e);
    if (want_assistant(t, e))
        return -1;
    json_t *calls = json_object_get(t->assistant, "tool_calls");
    if (!calls) {
        calls = json_array();
        if (json_object_set_new(t->assistant, "tool_calls", calls))
            return api_error_memory(e);
    }
    json_t *call = json_pack("{s:s*, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", field_arguments(arguments));
    return json_array_append_new(calls, call) ? api_error_memory(e) : 0;
}

static int add_output(struct talk *t, const json_t *item, const struct place *at, struct api_error *e)
{
    const char *id = NULL;
    struct place output_at = place_key(at, "output");
    if (field_string(item, at, "call_id", &id, e))
        return -1;
    json_t *text = field_text(json_object_get(item, "output"), &output_at, "input_text", "output_text", e);
    if (!text || add_message(t, "tool", text, e))
        return -1;
    json_t *message = json_array_get(t->messages, json_array_size(t->messages) - 1);
    return id && json_object_set_new(message, "tool_call_id", json_string_nocheck(id)) ? api_error_memory(e) : 0;
}

/* content (what we wrote), else the summary. */
static int add_reasoning(struct talk *t, const json_t *item, const struct place *at, struct api_error *e)
{
    const char *key = json_array_size(field(item, "content")) ? "content" : "summary";
    const json_t *parts = field(item, key);
    struct place parts_at = place_key(at, key);
    if (!json_array_size(parts))
        return 0;
    json_t *text = field_text(parts, &parts_at, "reasoning_text", "summary_text", e);
    if (!text)
        return -1;
    t->assistant = NULL;
    if (want_assistant(t, e)) {
        json_decref(text);
        return -1;
    }
    return json_object_set_new(t->assistant, "reasoning_content", text) ? api_error_memory(e) : 0;
}

static int add_item(struct talk *t, const json_t *item, const struct place *at, struct api_error *e)
{
    const char *type = "message";
    struct place type_at = place_key(at, "type");
    char quoted[40];
    if (!json_is_object(item))
        return field_wrong(at, "an object", item, e);
    if (field_string(item, at, "type", &type, e))
        return -1;
    if (!strcmp(type, "message"))
        return add_text(t, item, at, e);
    if (!strcmp(type, "function_call"))
        return add_call(t, item, at, e);
    if (!strcmp(type, "function_call_output"))
        return add_output(t, item, at, e);
    if (!strcmp(type, "reasoning"))
        return add_reasoning(t, item, at, e);
    err_quote(quoted, sizeof quoted, type, strlen(type));
    return api_error_bad(e, type_at.text, "%s is \"%s\", which is not supported", type_at.text, quoted);
}

static int read_input(struct request *r, const json_t *body, struct api_error *e)
{
    const json_t *input = field(body, "input"), *item;
    const char *instructions = NULL;
    struct talk t = {.messages = json_array()};
    struct place at = place_key(NULL, "input");
    size_t i;
    int bad = field_string(body, NULL, "instructions", &instructions, e);
    if (!bad && instructions)
        bad = add_message(&t, "system", json_string_nocheck(instructions), e);
    if (!bad && json_is_string(input))
        bad = add_message(&t, "user", json_incref((json_t *)input), e);
    else if (!bad && !json_is_array(input))
        bad = field_wrong(&at, "a string or an array of items", input, e);
    for (i = 0; !bad && i < json_array_size(input); i++) {
        struct place here = place_index(&at, i);
        item = json_array_get(input, i);
        bad = add_item(&t, item, &here, e);
    }
    if (!bad && json_array_size(t.messages) == 0)
        bad = api_error_bad(e, "input", "input is empty");
    if (!bad && !(r->messages_json = field_dump(t.messages, e)))
        bad = -1;
    json_decref(t.messages);
    return bad;
}

/* What needs a memory of earlier requests, or services, that this server does not have. */
static int refuse_state(const json_t *body, struct api_error *e)
{
    static const char *const keys[] = {"previous_response_id", "conversation", "prompt"};
    bool background = false;
    for (size_t i = 0; i < COUNT(keys); i++)
        if (field(body, keys[i]))
            return api_error_bad(e, keys[i],
                                 "%s is not supported: responses are not stored; send the whole conversation as input",
                                 keys[i]);
    if (field_bool(body, NULL, "background", &background, e))
        return -1;
    return background ? api_error_bad(e, "background", "background is not supported: responses are not stored") : 0;
}

static int put_tool(json_t *tools, const json_t *tool, const struct place *at, struct api_error *e)
{
    const char *type = NULL, *name = NULL, *description = NULL;
    json_t *parameters = NULL;
    bool strict = false;
    char quoted[40];
    if (!json_is_object(tool))
        return field_wrong(at, "an object", tool, e);
    if (field_string(tool, at, "type", &type, e))
        return -1;
    if (!type || strcmp(type, "function") != 0) {
        struct place type_at = place_key(at, "type");
        err_quote(quoted, sizeof quoted, type ? type : "", type ? strlen(type) : 0);
        return api_error_bad(e, type_at.text, "%s is \"%s\"; only function tools are supported", type_at.text, quoted);
    }
    if (field_string(tool, at, "name", &name, e) || field_string(tool, at, "description", &description, e) ||
        field_object(tool, at, "parameters", &parameters, e) || field_bool(tool, at, "strict", &strict, e))
        return -1;
    return field_tool(tools, at, name, description, parameters, strict, e);
}

static int read_choice(struct request *r, const json_t *body, const char **name, struct api_error *e)
{
    const json_t *choice = field(body, "tool_choice");
    const char *word = json_string_value(choice);
    r->tool_choice = TOOLS_AUTO;
    if (!choice || (word && !strcmp(word, "auto")))
        return 0;
    *name = json_string_value(json_object_get(choice, "name"));
    const char *type = json_string_value(json_object_get(choice, "type"));
    if (word && !strcmp(word, "none"))
        r->tool_choice = TOOLS_NONE;
    else if (word && !strcmp(word, "required"))
        r->tool_choice = TOOLS_REQUIRED;
    else if (type && !strcmp(type, "function") && *name)
        r->tool_choice = TOOLS_NAMED;
    else
        return api_error_bad(e, "tool_choice",
                             "tool_choice must be none, auto, required or {\"type\":\"function\",\"name\":..}");
    return 0;
}

static int read_tools(struct request *r, const json_t *body, struct api_error *e)
{
    json_t *list = NULL;
    struct place at = place_key(NULL, "tools");
    const char *name = NULL;
    bool parallel = true;
    if (field_array(body, NULL, "tools", &list, e) || field_bool(body, NULL, "parallel_tool_calls", &parallel, e) ||
        read_choice(r, body, &name, e))
        return -1;
    r->one_call = !parallel;
    json_t *tools = json_array();
    int bad = 0;
    for (size_t i = 0; !bad && i < json_array_size(list); i++) {
        struct place here = place_index(&at, i);
        bad = put_tool(tools, json_array_get(list, i), &here, e);
    }
    if (!bad)
        bad = request_tools(r, tools, name, e);
    json_decref(tools);
    return bad;
}

static int read_format(struct request *r, const json_t *body, struct api_error *e)
{
    json_t *text = NULL, *format = NULL;
    const char *type = NULL;
    struct place text_at = place_key(NULL, "text"), at = place_key(&text_at, "format"),
                 schema_at = place_key(&at, "schema");
    if (field_object(body, NULL, "text", &text, e) || field_object(text, &text_at, "format", &format, e) ||
        field_string(format, &at, "type", &type, e))
        return -1;
    if (!format || (type && !strcmp(type, "text")))
        return 0;
    r->schema_param = "text.format";
    if (type && !strcmp(type, "json_object")) {
        r->format = FORMAT_JSON;
        return 0;
    }
    if (type && !strcmp(type, "json_schema"))
        return request_schema(r, field(format, "schema"), &schema_at, "text.format", e);
    return api_error_bad(e, "text.format.type", "text.format.type must be text, json_object or json_schema");
}

static int read_options(struct request *r, const json_t *body, struct api_error *e)
{
    i64 max_tokens = 0, top = -1;
    json_t *reasoning = NULL, *include = NULL;
    const char *effort = NULL;
    struct place at = place_key(NULL, "reasoning");
    if (field_i64(body, NULL, "max_output_tokens", 1, INT32_MAX, &max_tokens, e) ||
        field_i64(body, NULL, "top_logprobs", 0, REQUEST_MAX_TOP_LOGPROBS, &top, e) ||
        field_object(body, NULL, "reasoning", &reasoning, e) || field_string(reasoning, &at, "effort", &effort, e) ||
        field_array(body, NULL, "include", &include, e) || request_stops(r, body, "stop", e))
        return -1;
    for (size_t i = 0; i < json_array_size(include); i++) {
        const char *what = json_string_value(json_array_get(include, i));
        r->logprobs |= what && !strcmp(what, "message.output_text.logprobs");
    }
    r->max_tokens = (u32)max_tokens;
    r->logprobs |= top > 0;
    r->top_logprobs = top > 0 ? (u32)top : 0;
    return request_kwargs(r, body, effort ? strcmp(effort, "none") != 0 : -1, effort, e);
}

/* Fields that the answer repeats: as the client wrote them, else as the API's defaults are. */
static int make_echo(struct request *r, const json_t *body, struct api_error *e)
{
    static const char *const fields[][2] = {{"instructions", "null"},
                                            {"max_output_tokens", "null"},
                                            {"metadata", "{}"},
                                            {"parallel_tool_calls", "true"},
                                            {"previous_response_id", "null"},
                                            {"reasoning", "{\"effort\":null,\"summary\":null}"},
                                            {"temperature", "1.0"},
                                            {"text", "{\"format\":{\"type\":\"text\"}}"},
                                            {"tool_choice", "\"auto\""},
                                            {"tools", "[]"},
                                            {"top_logprobs", "0"},
                                            {"top_p", "1.0"},
                                            {"truncation", "\"disabled\""},
                                            {"user", "null"}};
    struct bytes out = {0};
    for (size_t i = 0; i < COUNT(fields); i++) {
        const json_t *value = field(body, fields[i][0]);
        char *text = value ? field_dump(value, e) : NULL;
        if (value && !text) {
            bytes_free(&out);
            return -1;
        }
        bytes_str(&out, i ? "," : "");
        bytes_json(&out, fields[i][0], strlen(fields[i][0]));
        bytes_str(&out, ":");
        bytes_str(&out, text ? text : fields[i][1]);
        free(text);
    }
    r->echo_json = bytes_take(&out);
    return r->echo_json ? 0 : api_error_memory(e);
}

int request_responses(struct request *r, const json_t *body, struct api_error *e)
{
    if (refuse_state(body, e) || read_input(r, body, e) || read_tools(r, body, e) || read_format(r, body, e) ||
        read_options(r, body, e))
        return -1;
    return make_echo(r, body, e);
}
