/* See fields.h. */
#include "serve/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/calls.h"

struct place place_key(const struct place *parent, const char *key)
{
    struct place p;
    char quoted[48];
    err_quote(quoted, sizeof quoted, key, strlen(key));
    if (snprintf(p.text, sizeof p.text, "%s%s%s", parent ? parent->text : "", parent ? "." : "", quoted) < 0)
        p.text[0] = 0;
    return p;
}

struct place place_index(const struct place *parent, size_t index)
{
    struct place p;
    if (snprintf(p.text, sizeof p.text, "%.40s[%zu]", parent->text, index) < 0)
        p.text[0] = 0;
    return p;
}

const char *field_type(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

int field_wrong(const struct place *at, const char *wish, const json_t *value, struct api_error *e)
{
    return api_error_bad(e, at->text, "%s must be %s, not %s", at->text, wish, value ? field_type(value) : "absent");
}

json_t *field(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

int field_bool(const json_t *object, const struct place *parent, const char *key, bool *out, struct api_error *e)
{
    const json_t *value = field(object, key);
    if (!value)
        return 0;
    struct place at = place_key(parent, key);
    if (!json_is_boolean(value))
        return field_wrong(&at, "a boolean", value, e);
    *out = json_is_true(value);
    return 0;
}

int field_f32(const json_t *object, const struct place *parent, const char *key, double lo, double hi, float *out,
              struct api_error *e)
{
    const json_t *value = field(object, key);
    if (!value)
        return 0;
    struct place at = place_key(parent, key);
    if (!json_is_number(value))
        return field_wrong(&at, "a number", value, e);
    double x = json_number_value(value);
    if (!(x >= lo && x <= hi))
        return api_error_bad(e, at.text, "%s is %.15g; it must be from %g to %g", at.text, x, lo, hi);
    *out = (float)x;
    return 0;
}

int value_i64(const json_t *value, const struct place *at, i64 lo, i64 hi, i64 *out, struct api_error *e)
{
    i64 n;
    if (json_is_integer(value)) {
        n = json_integer_value(value);
    } else if (json_is_real(value)) {
        double x = json_real_value(value);
        if (x != floor(x))
            return api_error_bad(e, at->text, "%s is %.15g; it must be an integer", at->text, x);
        if (fabs(x) > 0x1p53) /* beyond, not every integer is a double: which one was meant is unknown */
            return api_error_bad(e, at->text, "%s is %.15g; it must be from %lld to %lld, in digits alone", at->text, x, (long long)lo,
                                 (long long)hi);
        n = (i64)x;
    } else {
        return field_wrong(at, "an integer", value, e);
    }
    if (n < lo || n > hi)
        return api_error_bad(e, at->text, "%s is %lld; it must be from %lld to %lld", at->text, (long long)n,
                             (long long)lo, (long long)hi);
    *out = n;
    return 0;
}

int field_i64(const json_t *object, const struct place *parent, const char *key, i64 lo, i64 hi, i64 *out,
              struct api_error *e)
{
    const json_t *value = field(object, key);
    if (!value)
        return 0;
    struct place at = place_key(parent, key);
    return value_i64(value, &at, lo, hi, out, e);
}

int field_string(const json_t *object, const struct place *parent, const char *key, const char **out,
                 struct api_error *e)
{
    const json_t *value = field(object, key);
    if (!value)
        return 0;
    struct place at = place_key(parent, key);
    if (!json_is_string(value))
        return field_wrong(&at, "a string", value, e);
    *out = json_string_value(value);
    return 0;
}

int field_object(const json_t *object, const struct place *parent, const char *key, json_t **out, struct api_error *e)
{
    json_t *value = field(object, key);
    if (!value)
        return 0;
    struct place at = place_key(parent, key);
    if (!json_is_object(value))
        return field_wrong(&at, "an object", value, e);
    *out = value;
    return 0;
}

int field_array(const json_t *object, const struct place *parent, const char *key, json_t **out, struct api_error *e)
{
    json_t *value = field(object, key);
    if (!value)
        return 0;
    struct place at = place_key(parent, key);
    if (!json_is_array(value))
        return field_wrong(&at, "an array", value, e);
    *out = value;
    return 0;
}

json_t *field_text(const json_t *value, const struct place *at, const char *type, const char *other,
                   struct api_error *e)
{
    struct bytes text = {0};
    size_t i;
    json_t *part;
    if (json_is_string(value))
        return json_incref((json_t *)value);
    if (!json_is_array(value)) {
        field_wrong(at, "a string or an array of text parts", value, e);
        return NULL;
    }
    json_array_foreach(value, i, part)
    {
        struct place here = place_index(at, i);
        if (!json_is_object(part)) {
            field_wrong(&here, "an object", part, e);
            goto fail;
        }
        struct place type_at = place_key(&here, "type"), text_at = place_key(&here, "text");
        const char *is = json_string_value(field(part, "type"));
        if (!is) {
            field_wrong(&type_at, "a string", field(part, "type"), e);
            goto fail;
        }
        bool refusal = !strcmp(is, "refusal");
        if (strcmp(is, "text") != 0 && strcmp(is, type) != 0 && strcmp(is, other) != 0 && !refusal) {
            char quoted[40];
            api_error_bad(e, type_at.text, "%s is \"%s\"; this model reads text only", type_at.text,
                          err_quote(quoted, sizeof quoted, is, strlen(is)));
            goto fail;
        }
        const json_t *words = field(part, refusal ? "refusal" : "text");
        if (!json_is_string(words)) {
            field_wrong(&text_at, "a string", words, e);
            goto fail;
        }
        if (i)
            bytes_str(&text, "\n");
        bytes_put(&text, json_string_value(words), json_string_length(words));
    }
    json_t *joined = text.failed ? NULL : json_stringn_nocheck(text.at ? text.at : "", text.len);
    bytes_free(&text);
    if (!joined)
        api_error_memory(e);
    return joined;
fail:
    bytes_free(&text);
    return NULL;
}

char *field_dump(const json_t *value, struct api_error *e)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text)
        api_error_memory(e);
    return text;
}

int field_copy(char **out, const char *text, struct api_error *e)
{
    free(*out);
    *out = strdup(text);
    return *out ? 0 : api_error_memory(e);
}

json_t *field_arguments(const char *text)
{
    size_t len = strlen(text);
    if (strspn(text, " \t\r\n") == len)
        return json_object();
    json_t *value =
        calls_depth(text, len) <= REQUEST_MAX_DEPTH ? json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (json_is_object(value))
        return value;
    json_decref(value);
    return json_string_nocheck(text);
}

static bool name_good(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/");
    return n > 0 && n <= 128 && !name[n];
}

int field_tool(json_t *tools, const struct place *at, const char *name, const char *description,
               const json_t *parameters, bool strict, struct api_error *e)
{
    struct place name_at = place_key(at, "name");
    if (!name || !name_good(name))
        return api_error_bad(e, name_at.text, "%s must be 1 to 128 of the characters a-z A-Z 0-9 _ - . : /",
                             name_at.text);
    json_t *function = json_pack("{s:s}", "name", name);
    int bad = !function;
    if (description)
        bad |= json_object_set_new(function, "description", json_string_nocheck(description));
    bad |= json_object_set_new(function, "parameters",
                               parameters ? json_incref((json_t *)parameters)
                                          : json_pack("{s:s, s:{}}", "type", "object", "properties"));
    if (strict)
        bad |= json_object_set_new(function, "strict", json_true());
    bad |= json_array_append_new(tools, json_pack("{s:s, s:o}", "type", "function", "function", function));
    return bad ? api_error_memory(e) : 0;
}
