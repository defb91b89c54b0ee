/* Anthropic's /v1/messages and count_tokens: blocks become messages of the one form. A user's turn of tool results and
 * text is split in their order; thinking joins the assistant's message. See request.h. */
#include <stdlib.h>
#include <string.h>

#include "serve/fields.h"

static int add(json_t *messages, const char *role, json_t *content, struct api_error *e) /* content is taken */
{
    return json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", content))
               ? api_error_memory(e)
               : 0;
}

static int wrong_block(const json_t *block, const struct place *at, struct api_error *e)
{
    char quoted[40];
    const char *type = json_string_value(json_object_get(block, "type"));
    struct place here = place_key(at, "type");
    if (!type)
        return field_wrong(&here, "a string", json_object_get(block, "type"), e);
    return api_error_bad(e, here.text, "%s is \"%s\", which is not supported here; this model reads text only",
                         here.text, err_quote(quoted, sizeof quoted, type, strlen(type)));
}

static bool is_type(const json_t *block, const char *type)
{
    const char *is = json_string_value(json_object_get(block, "type"));
    return is && !strcmp(is, type);
}

/* The blocks' texts, joined as parts of a message are. */
struct joined {
    struct bytes text;
    bool any;
};

static int join_text(struct joined *j, const json_t *block, const char *key, const struct place *at,
                     struct api_error *e)
{
    const char *text = NULL;
    struct place here = place_key(at, key);
    if (field_string(block, at, key, &text, e))
        return -1;
    if (!text)
        return field_wrong(&here, "a string", NULL, e);
    if (j->any)
        bytes_str(&j->text, "\n");
    j->any = true;
    bytes_str(&j->text, text);
    return 0;
}

static json_t *join_end(struct joined *j)
{
    json_t *text = j->text.failed ? NULL : json_stringn_nocheck(j->text.at ? j->text.at : "", j->text.len);
    bytes_free(&j->text);
    j->any = false;
    return text;
}

static int add_result(json_t *messages, const json_t *block, const struct place *at, struct api_error *e)
{
    const char *id = NULL;
    const json_t *content = field(block, "content");
    struct place content_at = place_key(at, "content"), id_at = place_key(at, "tool_use_id");
    if (field_string(block, at, "tool_use_id", &id, e))
        return -1;
    if (!id)
        return field_wrong(&id_at, "a string", NULL, e);
    json_t *text = content ? field_text(content, &content_at, "text", "text", e) : json_string("");
    if (!text)
        return -1;
    json_t *message = json_pack("{s:s, s:o, s:s}", "role", "tool", "content", text, "tool_call_id", id);
    return json_array_append_new(messages, message) ? api_error_memory(e) : 0;
}

static int add_user(json_t *messages, const char *role, const json_t *blocks, const struct place *at,
                    struct api_error *e)
{
    struct joined j = {0};
    size_t i;
    json_t *block;
    int bad = 0;
    json_array_foreach(blocks, i, block)
    {
        struct place here = place_index(at, i);
        if (is_type(block, "text"))
            bad = join_text(&j, block, "text", &here, e);
        else if (is_type(block, "tool_result") && !strcmp(role, "user"))
            bad = (j.any ? add(messages, role, join_end(&j), e) : 0) || add_result(messages, block, &here, e) ? -1 : 0;
        else
            bad = wrong_block(block, &here, e);
        if (bad)
            break;
    }
    if (!bad && j.any)
        bad = add(messages, role, join_end(&j), e);
    bytes_free(&j.text);
    return bad;
}

static int put_use(json_t *calls, const json_t *block, const struct place *at, struct api_error *e)
{
    const char *name = NULL, *id = NULL;
    json_t *input = NULL;
    struct place name_at = place_key(at, "name");
    if (field_string(block, at, "name", &name, e) || field_string(block, at, "id", &id, e) ||
        field_object(block, at, "input", &input, e))
        return -1;
    if (!name)
        return field_wrong(&name_at, "a string", NULL, e);
    json_t *call = json_pack("{s:s*, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", input ? json_incref(input) : json_object());
    return json_array_append_new(calls, call) ? api_error_memory(e) : 0;
}

static int add_assistant(json_t *messages, const json_t *blocks, const struct place *at, struct api_error *e)
{
    struct joined text = {0}, thinking = {0};
    json_t *calls = json_array(), *block;
    size_t i;
    int bad = 0;
    json_array_foreach(blocks, i, block)
    {
        struct place here = place_index(at, i);
        if (is_type(block, "text"))
            bad = join_text(&text, block, "text", &here, e);
        else if (is_type(block, "thinking"))
            bad = join_text(&thinking, block, "thinking", &here, e);
        else if (is_type(block, "tool_use"))
            bad = put_use(calls, block, &here, e);
        else if (!is_type(block, "redacted_thinking"))
            bad = wrong_block(block, &here, e);
        if (bad)
            break;
    }
    bool thought = thinking.any;
    json_t *content = join_end(&text), *reasoning = join_end(&thinking);
    if (!bad)
        bad = add(messages, "assistant", json_incref(content), e);
    json_t *message = bad ? NULL : json_array_get(messages, json_array_size(messages) - 1);
    if (!bad && thought && json_object_set(message, "reasoning_content", reasoning))
        bad = api_error_memory(e);
    if (!bad && json_array_size(calls) && json_object_set(message, "tool_calls", calls))
        bad = api_error_memory(e);
    json_decref(content);
    json_decref(reasoning);
    json_decref(calls);
    return bad;
}

static int add_message(json_t *messages, const json_t *message, const struct place *at, struct api_error *e)
{
    const char *role = NULL;
    struct place role_at = place_key(at, "role"), content_at = place_key(at, "content");
    if (!json_is_object(message))
        return field_wrong(at, "an object", message, e);
    if (field_string(message, at, "role", &role, e))
        return -1;
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0 && strcmp(role, "system") != 0))
        return api_error_bad(e, role_at.text, "%s must be user or assistant", role_at.text);
    json_t *content = field(message, "content");
    if (json_is_string(content))
        return add(messages, role, json_incref(content), e);
    if (!json_is_array(content))
        return field_wrong(&content_at, "a string or an array of blocks", content, e);
    return !strcmp(role, "assistant") ? add_assistant(messages, content, &content_at, e)
                                      : add_user(messages, role, content, &content_at, e);
}

static int read_messages(struct request *r, const json_t *body, struct api_error *e)
{
    json_t *list = NULL, *system = field(body, "system"), *messages = json_array();
    struct place at = place_key(NULL, "messages"), system_at = place_key(NULL, "system");
    int bad = field_array(body, NULL, "messages", &list, e);
    if (!bad && json_array_size(list) == 0)
        bad = list ? api_error_bad(e, "messages", "messages is empty") : field_wrong(&at, "an array", NULL, e);
    if (!bad && json_is_string(system))
        bad = add(messages, "system", json_incref(system), e);
    else if (!bad && json_is_array(system))
        bad = add_user(messages, "system", system, &system_at, e);
    else if (!bad && system)
        bad = field_wrong(&system_at, "a string or an array of text blocks", system, e);
    for (size_t i = 0; !bad && i < json_array_size(list); i++) {
        struct place here = place_index(&at, i);
        bad = add_message(messages, json_array_get(list, i), &here, e);
    }
    if (!bad && !(r->messages_json = field_dump(messages, e)))
        bad = -1;
    json_decref(messages);
    return bad;
}

static int put_tool(json_t *tools, const json_t *tool, const struct place *at, struct api_error *e)
{
    const char *type = NULL, *name = NULL, *description = NULL;
    json_t *schema = NULL;
    bool strict = false;
    if (!json_is_object(tool))
        return field_wrong(at, "an object", tool, e);
    if (field_string(tool, at, "type", &type, e))
        return -1;
    if (type && strcmp(type, "custom") != 0)
        return wrong_block(tool, at, e);
    if (field_string(tool, at, "name", &name, e) || field_string(tool, at, "description", &description, e) ||
        field_object(tool, at, "input_schema", &schema, e) || field_bool(tool, at, "strict", &strict, e))
        return -1;
    struct place schema_at = place_key(at, "input_schema");
    if (!schema)
        return field_wrong(&schema_at, "an object", NULL, e);
    return field_tool(tools, at, name, description, schema, strict, e);
}

static int read_choice(struct request *r, const json_t *body, const char **name, struct api_error *e)
{
    json_t *choice = NULL;
    const char *type = NULL;
    bool one = false;
    struct place at = place_key(NULL, "tool_choice");
    r->tool_choice = TOOLS_AUTO;
    if (field_object(body, NULL, "tool_choice", &choice, e))
        return -1;
    if (!choice)
        return 0;
    if (field_string(choice, &at, "type", &type, e) || field_string(choice, &at, "name", name, e) ||
        field_bool(choice, &at, "disable_parallel_tool_use", &one, e))
        return -1;
    r->one_call = one;
    if (type && !strcmp(type, "none"))
        r->tool_choice = TOOLS_NONE;
    else if (type && !strcmp(type, "any"))
        r->tool_choice = TOOLS_REQUIRED;
    else if (type && !strcmp(type, "tool") && *name)
        r->tool_choice = TOOLS_NAMED;
    else if (!type || strcmp(type, "auto") != 0)
        return api_error_bad(e, "tool_choice", "tool_choice must be of type auto, any, none, or tool with a name");
    if (r->tool_choice != TOOLS_NAMED)
        *name = NULL;
    return 0;
}

static int read_tools(struct request *r, const json_t *body, struct api_error *e)
{
    json_t *list = NULL, *tools;
    struct place at = place_key(NULL, "tools");
    const char *name = NULL;
    if (field_array(body, NULL, "tools", &list, e) || read_choice(r, body, &name, e))
        return -1;
    tools = json_array();
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

static int read_format(struct request *r, const json_t *body, const char **effort, struct api_error *e)
{
    json_t *config = NULL, *format = NULL;
    struct place config_at = place_key(NULL, "output_config"), at = place_key(&config_at, "format"),
                 schema_at = place_key(&at, "schema");
    if (field_object(body, NULL, "output_config", &config, e) ||
        field_string(config, &config_at, "effort", effort, e) || field_object(config, &config_at, "format", &format, e))
        return -1;
    if (!format)
        return 0;
    if (!is_type(format, "json_schema"))
        return api_error_bad(e, "output_config.format.type", "output_config.format.type must be json_schema");
    return request_schema(r, field(format, "schema"), &schema_at, "output_config.format", e);
}

int request_messages(struct request *r, const json_t *body, struct api_error *e)
{
    i64 max_tokens = 0;
    json_t *thinking = NULL;
    const char *effort = NULL, *type = NULL;
    struct place at = place_key(NULL, "thinking"), max_at = place_key(NULL, "max_tokens");
    if (field_i64(body, NULL, "max_tokens", 1, INT32_MAX, &max_tokens, e) ||
        field_object(body, NULL, "thinking", &thinking, e) || field_string(thinking, &at, "type", &type, e))
        return -1;
    if (max_tokens == 0 && r->endpoint == ENDPOINT_MESSAGES)
        return field_wrong(&max_at, "an integer", NULL, e);
    r->max_tokens = (u32)max_tokens;
    if (read_messages(r, body, e) || read_tools(r, body, e) || read_format(r, body, &effort, e) ||
        request_stops(r, body, "stop_sequences", e))
        return -1;
    /* Their API thinks when asked to, and not before. */
    return request_kwargs(r, body, type && strcmp(type, "disabled") != 0, effort, e);
}
