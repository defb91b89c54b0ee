/* /v1/chat/completions: messages, tools, formats, the template's variables. See request.h. */
#include <stdlib.h>
#include <string.h>

#include "serve/fields.h"

/* ---- messages ---- */

static int put_call(json_t *calls, const json_t *call, const struct place *at, struct api_error *e)
{
    if (!json_is_object(call))
        return field_wrong(at, "an object", call, e);
    json_t *function = NULL;
    struct place in = place_key(at, "function");
    const char *name = NULL, *id = NULL;
    if (field_object(call, at, "function", &function, e) || field_string(call, at, "id", &id, e))
        return -1;
    if (!function)
        return field_wrong(&in, "an object", NULL, e);
    struct place name_at = place_key(&in, "name"), args_at = place_key(&in, "arguments");
    if (field_string(function, &in, "name", &name, e))
        return -1;
    if (!name)
        return field_wrong(&name_at, "a string", NULL, e);
    json_t *given = field(function, "arguments");
    if (given && !json_is_string(given) && !json_is_object(given))
        return field_wrong(&args_at, "a string of JSON", given, e);
    json_t *arguments =
        json_is_object(given) ? json_incref(given) : field_arguments(given ? json_string_value(given) : "");
    json_t *out = json_pack("{s:s*, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name,
                            "arguments", arguments);
    return json_array_append_new(calls, out) ? api_error_memory(e) : 0;
}

static int put_calls(json_t *message, const json_t *list, const struct place *at, struct api_error *e)
{
    size_t i;
    json_t *call, *calls = json_array();
    json_array_foreach(list, i, call)
    {
        struct place here = place_index(at, i);
        if (put_call(calls, call, &here, e)) {
            json_decref(calls);
            return -1;
        }
    }
    return json_object_set_new(message, "tool_calls", calls) ? api_error_memory(e) : 0;
}

static const char *role_of(const json_t *message, const struct place *at, struct api_error *e)
{
    static const char *const roles[][2] = {{"system", "system"},       {"developer", "system"}, {"user", "user"},
                                           {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"}};
    const json_t *role = field(message, "role");
    struct place here = place_key(at, "role");
    if (!json_is_string(role)) {
        field_wrong(&here, "a string", role, e);
        return NULL;
    }
    for (size_t i = 0; i < COUNT(roles); i++)
        if (!strcmp(json_string_value(role), roles[i][0]))
            return roles[i][1];
    api_error_bad(e, here.text, "%s must be system, developer, user, assistant or tool", here.text);
    return NULL;
}

/* Optional strings that templates may read. */
static int put_names(json_t *out, const json_t *message, const struct place *at, struct api_error *e)
{
    static const char *const keys[][2] = {{"name", "name"},
                                          {"tool_call_id", "tool_call_id"},
                                          {"reasoning", "reasoning_content"},
                                          {"reasoning_content", "reasoning_content"}};
    for (size_t i = 0; i < COUNT(keys); i++) {
        const char *text = NULL;
        if (field_string(message, at, keys[i][0], &text, e))
            return -1;
        if (text && json_object_set_new(out, keys[i][1], json_string_nocheck(text)))
            return api_error_memory(e);
    }
    return 0;
}

static int put_message(json_t *messages, const json_t *message, const struct place *at, struct api_error *e)
{
    if (!json_is_object(message))
        return field_wrong(at, "an object", message, e);
    const char *role = role_of(message, at, e);
    if (!role)
        return -1;
    bool assistant = !strcmp(role, "assistant");
    const json_t *content = field(message, "content");
    struct place content_at = place_key(at, "content"), calls_at = place_key(at, "tool_calls");
    json_t *calls = NULL;
    if (!content && !assistant)
        return field_wrong(&content_at, "a string or an array of text parts", NULL, e);
    json_t *text = content ? field_text(content, &content_at, "text", "text", e) : json_string("");
    if (!text)
        return -1;
    json_t *out = json_pack("{s:s, s:o}", "role", role, "content", text);
    if (!out)
        return api_error_memory(e);
    if (put_names(out, message, at, e) || (assistant && field_array(message, at, "tool_calls", &calls, e)) ||
        (json_array_size(calls) && put_calls(out, calls, &calls_at, e))) {
        json_decref(out);
        return -1;
    }
    return json_array_append_new(messages, out) ? api_error_memory(e) : 0;
}

static int read_messages(struct request *r, const json_t *body, struct api_error *e)
{
    json_t *list = NULL, *message;
    struct place at = place_key(NULL, "messages");
    size_t i;
    if (field_array(body, NULL, "messages", &list, e))
        return -1;
    if (json_array_size(list) == 0)
        return list ? api_error_bad(e, "messages", "messages is empty") : field_wrong(&at, "an array", NULL, e);
    json_t *messages = json_array();
    json_array_foreach(list, i, message)
    {
        struct place here = place_index(&at, i);
        if (put_message(messages, message, &here, e)) {
            json_decref(messages);
            return -1;
        }
    }
    r->messages_json = field_dump(messages, e);
    json_decref(messages);
    return r->messages_json ? 0 : -1;
}

/* ---- tools ---- */

int request_tools(struct request *r, const json_t *tools, const char *name, struct api_error *e)
{
    size_t i, n = json_array_size(tools);
    json_t *tool, *seen = json_object();
    bool named = false;
    int bad = 0;
    if (!seen)
        return api_error_memory(e);
    json_array_foreach(tools, i, tool)
    {
        const char *is = json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (!bad && json_object_get(seen, is))
            bad = api_error_bad(e, "tools", "tools: two are named %s", is);
        json_object_set_new(seen, is, json_true());
        named |= name && !strcmp(is, name);
    }
    json_decref(seen);
    if (!bad && n > REQUEST_MAX_TOOLS)
        bad = api_error_bad(e, "tools", "tools has %zu entries; at most %d are taken", n, REQUEST_MAX_TOOLS);
    if (!bad && name && !named)
        bad = api_error_bad(e, "tool_choice", "tool_choice names a tool that tools does not have");
    if (!bad && n == 0 && r->tool_choice == TOOLS_REQUIRED)
        bad = api_error_bad(e, "tool_choice", "tool_choice asks for a call, but there are no tools");
    if (bad)
        return -1;
    if (n == 0)
        r->tool_choice = TOOLS_NONE;
    if (name && field_copy(&r->tool_name, name, e))
        return -1;
    if (r->tool_choice == TOOLS_NONE)
        return 0;
    r->tools_json = field_dump(tools, e);
    return r->tools_json ? 0 : -1;
}

static int put_tool(json_t *tools, const json_t *tool, const struct place *at, struct api_error *e)
{
    if (!json_is_object(tool))
        return field_wrong(at, "an object", tool, e);
    struct place type_at = place_key(at, "type"), in = place_key(at, "function");
    const char *type = NULL, *name = NULL, *description = NULL;
    json_t *function = NULL, *parameters = NULL;
    bool strict = false;
    if (field_string(tool, at, "type", &type, e) || field_object(tool, at, "function", &function, e))
        return -1;
    if (!type || strcmp(type, "function") != 0)
        return api_error_bad(e, type_at.text, "%s must be \"function\": no other tools are supported", type_at.text);
    if (!function)
        return field_wrong(&in, "an object", NULL, e);
    if (field_string(function, &in, "name", &name, e) || field_string(function, &in, "description", &description, e) ||
        field_object(function, &in, "parameters", &parameters, e) || field_bool(function, &in, "strict", &strict, e))
        return -1;
    return field_tool(tools, &in, name, description, parameters, strict, e);
}

static int read_choice(struct request *r, const json_t *body, const char **name, struct api_error *e)
{
    const json_t *choice = field(body, "tool_choice");
    struct place at = place_key(NULL, "tool_choice");
    const char *word = json_string_value(choice);
    r->tool_choice = TOOLS_AUTO;
    if (!choice || (word && !strcmp(word, "auto")))
        return 0;
    if (word && !strcmp(word, "none"))
        r->tool_choice = TOOLS_NONE;
    else if (word && !strcmp(word, "required"))
        r->tool_choice = TOOLS_REQUIRED;
    else if (json_is_object(choice) && json_is_object(json_object_get(choice, "function"))) {
        struct place in = place_key(&at, "function"), name_at = place_key(&in, "name");
        if (field_string(json_object_get(choice, "function"), &in, "name", name, e))
            return -1;
        if (!*name)
            return field_wrong(&name_at, "a string", NULL, e);
        r->tool_choice = TOOLS_NAMED;
    } else {
        return api_error_bad(
            e, "tool_choice",
            "tool_choice must be none, auto, required or {\"type\":\"function\",\"function\":{\"name\":..}}");
    }
    return 0;
}

static int read_tools(struct request *r, const json_t *body, struct api_error *e)
{
    json_t *list = NULL, *tool;
    struct place at = place_key(NULL, "tools");
    const char *name = NULL;
    bool parallel = true;
    size_t i;
    if (field_array(body, NULL, "tools", &list, e) || field_bool(body, NULL, "parallel_tool_calls", &parallel, e) ||
        read_choice(r, body, &name, e))
        return -1;
    r->one_call = !parallel;
    if (json_array_size(field(body, "functions")))
        return api_error_bad(e, "functions", "functions is not supported; use tools");
    json_t *tools = json_array();
    int bad = 0;
    json_array_foreach(list, i, tool)
    {
        struct place here = place_index(&at, i);
        if ((bad = put_tool(tools, tool, &here, e)))
            break;
    }
    if (!bad)
        bad = request_tools(r, tools, name, e);
    json_decref(tools);
    return bad;
}

/* ---- the template's variables ---- */

int request_kwargs(struct request *r, const json_t *body, int thinking, const char *effort, struct api_error *e)
{
    /* What the renderer sets itself, and jinja2's own names. */
    static const char *const reserved[] = {"messages",
                                           "tools",
                                           "documents",
                                           "add_generation_prompt",
                                           "continue_final_message",
                                           "bos_token",
                                           "eos_token",
                                           "raise_exception",
                                           "strftime_now",
                                           "range",
                                           "dict",
                                           "namespace",
                                           "cycler",
                                           "joiner",
                                           "lipsum",
                                           "loop",
                                           "self",
                                           "caller"};
    json_t *given = NULL;
    struct place at = place_key(NULL, "chat_template_kwargs");
    if (field_object(body, NULL, "chat_template_kwargs", &given, e))
        return -1;
    for (size_t i = 0; i < COUNT(reserved); i++) {
        struct place here = place_key(&at, reserved[i]);
        if (json_object_get(given, reserved[i]))
            return api_error_bad(e, here.text, "chat_template_kwargs may not set %s", reserved[i]);
    }
    json_t *kwargs = given ? json_copy(given) : json_object();
    int bad = !kwargs;
    if (!bad && thinking >= 0 && !json_object_get(kwargs, "enable_thinking"))
        bad = json_object_set_new(kwargs, "enable_thinking", json_boolean(thinking));
    if (!bad && effort && !json_object_get(kwargs, "reasoning_effort"))
        bad = json_object_set_new(kwargs, "reasoning_effort", json_string_nocheck(effort));
    if (bad)
        api_error_memory(e);
    else if (json_object_size(kwargs) && !(r->kwargs_json = field_dump(kwargs, e)))
        bad = -1;
    json_decref(kwargs);
    return bad ? -1 : 0;
}

static int read_kwargs(struct request *r, const json_t *body, struct api_error *e)
{
    const char *effort = NULL, *format = NULL;
    if (field_string(body, NULL, "reasoning_effort", &effort, e) ||
        field_string(body, NULL, "reasoning_format", &format, e))
        return -1;
    r->keep_reasoning = format && !strcmp(format, "none");
    return request_kwargs(r, body, effort ? strcmp(effort, "none") != 0 : -1, effort, e);
}

/* ---- formats ---- */

static int read_format(struct request *r, const json_t *body, struct api_error *e)
{
    json_t *format = NULL, *inner = NULL;
    struct place at = place_key(NULL, "response_format"), type_at = place_key(&at, "type"),
                 in = place_key(&at, "json_schema");
    const char *type = NULL;
    if (field_object(body, NULL, "response_format", &format, e))
        return -1;
    if (!format)
        return 0;
    if (field_string(format, &at, "type", &type, e))
        return -1;
    if (type && !strcmp(type, "text"))
        return 0;
    if (!type || (strcmp(type, "json_object") != 0 && strcmp(type, "json_schema") != 0))
        return api_error_bad(e, type_at.text, "response_format.type must be text, json_object or json_schema");
    r->format = FORMAT_JSON;
    r->schema_param = "response_format";
    if (!strcmp(type, "json_object") && !field(format, "schema"))
        return 0;
    if (field_object(format, &at, "json_schema", &inner, e))
        return -1;
    if (!strcmp(type, "json_object"))
        inner = format; /* llama-server's form: the schema beside the type */
    if (!inner)
        return field_wrong(&in, "an object", NULL, e);
    struct place schema_at = place_key(inner == format ? &at : &in, "schema");
    const json_t *schema = field(inner, "schema");
    return schema ? request_schema(r, schema, &schema_at, "response_format", e) : 0;
}

static int read_logprobs(struct request *r, const json_t *body, struct api_error *e)
{
    i64 top = -1;
    if (field_bool(body, NULL, "logprobs", &r->logprobs, e) ||
        field_i64(body, NULL, "top_logprobs", 0, REQUEST_MAX_TOP_LOGPROBS, &top, e))
        return -1;
    if (top > 0 && !r->logprobs)
        return api_error_bad(e, "top_logprobs", "top_logprobs needs logprobs to be true");
    r->top_logprobs = top > 0 ? (u32)top : 0;
    return 0;
}

int request_chat(struct request *r, const json_t *body, struct api_error *e)
{
    if (read_messages(r, body, e) || read_tools(r, body, e) || read_kwargs(r, body, e) || read_format(r, body, e) ||
        read_logprobs(r, body, e))
        return -1;
    if (r->endpoint == ENDPOINT_APPLY_TEMPLATE)
        return field_bool(body, NULL, "add_generation_prompt", &r->add_generation_prompt, e);
    return 0;
}
