/* Writes values as grammars read them. */
#include "serve/spelling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEP = 64 };

void spelling_free(struct spelling *s)
{
    free(s->at);
    *s = (struct spelling){0};
}

static int put(struct spelling *s, const char *text, size_t len, struct err *err)
{
    if (s->cap - s->n < len) {
        size_t cap = s->cap * 2 + len + 64;
        char *at = realloc(s->at, cap);
        if (!at)
            return err_set(err, "no memory for %zu bytes", cap);
        s->at = at;
        s->cap = cap;
    }
    memcpy(s->at + s->n, text, len);
    s->n += len;
    return 0;
}

int spelling_string(struct spelling *s, const char *text, size_t len, struct err *err)
{
    static const char FROM[] = "\"\\\b\f\n\r\t", TO[] = "\"\\bfnrt";
    for (size_t i = 0; i < len; i++) {
        const char *at = text[i] ? strchr(FROM, text[i]) : NULL;
        char hex[8];
        int rc;
        if (at)
            rc = put(s, (char[]){'\\', TO[at - FROM]}, 2, err);
        else if ((u8)text[i] < 0x20)
            rc = put(s, hex, (size_t)snprintf(hex, sizeof hex, "\\u%04x", (u8)text[i]), err);
        else
            rc = put(s, text + i, 1, err);
        if (rc)
            return -1;
    }
    return 0;
}

static int quoted(struct spelling *s, const char *text, size_t len, struct err *err)
{
    return put(s, "\"", 1, err) || spelling_string(s, text, len, err) || put(s, "\"", 1, err) ? -1 : 0;
}

static int real(struct spelling *s, double v, struct err *err)
{
    char text[40];
    int precision = 1;
    do
        snprintf(text, sizeof text, "%.*g", precision, v);
    while (strtod(text, NULL) != v && precision++ < 17);
    return put(s, text, strlen(text), err);
}

static int value(struct spelling *s, const json_t *v, u32 deep, struct err *err)
{
    char text[32];
    size_t i;
    json_t *item;
    if (deep > DEEP)
        return err_set(err, "values are nested more than %d deep", DEEP);
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        if (put(s, "{", 1, err))
            return -1;
        for (void *at = json_object_iter((json_t *)v); at; at = json_object_iter_next((json_t *)v, at)) {
            const char *key = json_object_iter_key(at);
            if ((s->at[s->n - 1] != '{' && put(s, ",", 1, err)) || quoted(s, key, strlen(key), err) ||
                put(s, ":", 1, err) || value(s, json_object_iter_value(at), deep + 1, err))
                return -1;
        }
        return put(s, "}", 1, err);
    case JSON_ARRAY:
        if (put(s, "[", 1, err))
            return -1;
        json_array_foreach(v, i, item)
            if ((i && put(s, ",", 1, err)) || value(s, item, deep + 1, err))
                return -1;
        return put(s, "]", 1, err);
    case JSON_STRING:
        return quoted(s, json_string_value(v), json_string_length(v), err);
    case JSON_INTEGER:
        return put(s, text, (size_t)snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v)), err);
    case JSON_REAL:
        return real(s, json_real_value(v), err);
    default:
        return json_is_null(v) ? put(s, "null", 4, err) : json_is_true(v) ? put(s, "true", 4, err) : put(s, "false", 5, err);
    }
}

int spelling_value(struct spelling *s, const json_t *v, struct err *err)
{
    return value(s, v, 0, err);
}
