/* See calls.h. A machine that takes a byte at a time, so that the cuts of the stream cannot matter; only a run of
 * argument bytes is taken at once. */
#include "serve/calls.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 128, DEPTH_MAX = 64 /* bits of `kinds` */ };

static const char tool_open[] = "<tool_call>", tool_close[] = "</tool_call>",
                  function_open[] = "<function=", function_close[] = "</function>",
                  parameter_open[] = "<parameter=", parameter_close[] = "</parameter>";

enum state {
    OPEN, /* behind <tool_call> */
    KEY,  /* expects a key or } */
    KEY_TEXT,
    COLON,
    VALUE,
    NAME,      /* in the name's string */
    ARGS,      /* in the arguments' object */
    ARGS_TEXT, /* in arguments that are a string of JSON */
    ARGS_NULL,
    SKIP,   /* in a value that is neither */
    COMMA,  /* behind a value */
    RAW,    /* arguments that are no JSON: up to the closing tag */
    AFTER,  /* behind the object or </function> */
    CLOSE,  /* in </tool_call> */
    X_OPEN, /* in <function= */
    X_NAME,
    X_BODY, /* between parameters */
    X_TAG,
    X_KEY,
    X_VALUE, /* in a value whose type must be found out: to its end */
    X_TEXT,  /* in a string's value: told as it grows */
    OVER,
};

/* ---- the tools ---- */

struct calls_tools {
    json_t *tools, *by_name; /* name -> the properties of its parameters (borrowed from tools) */
};

int calls_tools_open(struct calls_tools **out, const char *tools_json)
{
    struct calls_tools *t = calloc(1, sizeof *t);
    size_t i;
    json_t *tool;
    *out = NULL;
    if (!t)
        return -1;
    t->tools = json_loads(tools_json, 0, NULL);
    t->by_name = json_object();
    if (!json_is_array(t->tools) || !t->by_name) {
        calls_tools_close(t);
        return -1;
    }
    json_array_foreach(t->tools, i, tool)
    {
        json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        json_t *properties = json_object_get(json_object_get(function, "parameters"), "properties");
        if (name && json_is_object(properties))
            json_object_set(t->by_name, name, properties);
    }
    *out = t;
    return 0;
}

void calls_tools_close(struct calls_tools *t)
{
    if (!t)
        return;
    json_decref(t->by_name);
    json_decref(t->tools);
    free(t);
}

enum { SOME_STRING = 1, SOME_NULL = 2, SOME_OTHER = 4 };

static unsigned type_named(const json_t *name)
{
    const char *s = json_string_value(name);
    return !s ? 0 : !strcmp(s, "string") ? SOME_STRING : !strcmp(s, "null") ? SOME_NULL : SOME_OTHER;
}

/* What a schema lets a value be; one level of anyOf and oneOf. 0: it does not say. */
static unsigned types_of(const json_t *schema, bool nested)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    unsigned types = type_named(json_object_get(schema, "type"));
    size_t i;
    json_t *at;
    json_array_foreach(json_object_get(schema, "type"), i, at) types |= type_named(at);
    for (size_t u = 0; u < COUNT(unions) && !nested; u++)
        json_array_foreach(json_object_get(schema, unions[u]), i, at) types |= types_of(at, true);
    if (types)
        return types;
    json_array_foreach(json_object_get(schema, "enum"), i, at) types |= json_is_string(at) ? SOME_STRING
                                                                        : json_is_null(at) ? SOME_NULL
                                                                                           : SOME_OTHER;
    return types;
}

u32 calls_depth(const char *json, size_t len)
{
    u32 depth = 0, most = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = json[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > most)
                most = depth;
        } else if ((c == '}' || c == ']') && depth) {
            depth--;
        }
    }
    return most;
}

/* ---- what is told ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void tell(struct calls *c, enum calls_part part, const char *text, size_t len)
{
    c->tell(c->arg, part, text, len);
}

static void arguments(struct calls *c, const char *text, size_t len)
{
    if (len)
        tell(c, CALLS_ARGUMENTS, text, len);
}

static void begin(struct calls *c)
{
    c->begun = true;
    bytes_clear(&c->held);
    tell(c, CALLS_BEGIN, c->name.at, c->name.len);
}

static void end(struct calls *c)
{
    if (!c->ended)
        tell(c, CALLS_END, "", 0);
    c->ended = true;
}

/* The byte at hand fits nowhere. It is not taken; what was held comes out as text. */
static bool give_up(struct calls *c)
{
    if (c->begun)
        end(c);
    c->state = OVER;
    return false;
}

/* Arguments that came in one piece. */
static void whole_arguments(struct calls *c, const char *text, size_t len)
{
    if (c->name.len) {
        begin(c);
        arguments(c, text, len);
    } else {
        bytes_put(&c->early, text, len);
    }
    c->has_early = true;
}

/* } of the call's object. */
static bool object_end(struct calls *c)
{
    if (!c->begun) {
        if (!c->name.len)
            return give_up(c);
        begin(c);
        arguments(c, "{}", 2);
    }
    end(c);
    bytes_clear(&c->held);
    c->state = AFTER;
    return true;
}

/* word holds a JSON string with its quotes. Appends what it spells to out; false when it is not well-formed. */
static bool decode(struct bytes *word, struct bytes *out)
{
    json_t *text = json_loadb(word->at, word->len, JSON_DECODE_ANY, NULL);
    bool good = json_is_string(text);
    if (good)
        bytes_put(out, json_string_value(text), json_string_length(text));
    json_decref(text);
    return good;
}

static bool name_end(struct calls *c)
{
    if (c->name.len || !decode(&c->word, &c->name) || !c->name.len || c->name.len > NAME_MAX_BYTES)
        return give_up(c);
    if (c->has_early) {
        begin(c);
        arguments(c, c->early.at, c->early.len);
    }
    c->state = COMMA;
    return true;
}

static bool args_text_end(struct calls *c)
{
    struct bytes text = {0};
    if (!decode(&c->word, &text)) {
        bytes_free(&text);
        return give_up(c);
    }
    whole_arguments(c, text.at ? text.at : "", text.len);
    bytes_free(&text);
    c->state = COMMA;
    return true;
}

/* ---- the JSON form ---- */

static bool value_start(struct calls *c, char b)
{
    bool is_name = c->word.len == 6 && !memcmp(c->word.at, "\"name\"", 6);
    bool is_args = c->word.len == 11 && !memcmp(c->word.at, "\"arguments\"", 11);
    if (is_space(b))
        return true;
    bytes_clear(&c->word);
    c->in_string = c->escape = false;
    if (is_name && b == '"') {
        bytes_put(&c->word, &b, 1);
        c->state = NAME;
    } else if (is_args && !c->has_early && (b == '{' || b == '"' || b == 'n')) {
        c->state = b == '{' ? ARGS : b == '"' ? ARGS_TEXT : ARGS_NULL;
        c->depth = 0;
        c->kinds = 0;
        c->matched = 1;
        if (b == '"')
            bytes_put(&c->word, &b, 1);
        if (b == '{') {
            c->has_early = true;
            if (c->name.len)
                begin(c);
            return false; /* the run begins with it */
        }
    } else if (is_name || is_args) {
        return give_up(c);
    } else {
        c->depth = 0;
        c->state = SKIP;
        return false;
    }
    return true;
}

/* A string's byte into word; true at its closing quote. A raw control character is escaped, as in ARGS. */
static bool string_byte(struct calls *c, char b)
{
    if ((u8)b < 0x20)
        bytes_escaped(&c->word, &b, 1);
    else
        bytes_put(&c->word, &b, 1);
    if (c->escape) {
        c->escape = false;
        return false;
    }
    c->escape = b == '\\';
    return b == '"';
}

static bool skip_byte(struct calls *c, char b)
{
    if (c->in_string) {
        if (c->escape)
            c->escape = false;
        else if (b == '\\')
            c->escape = true;
        else if (b == '"')
            c->in_string = false;
        return true;
    }
    if (c->depth == 0 && b == ',')
        c->state = KEY;
    else if (c->depth == 0 && b == '}')
        return object_end(c);
    else if (b == '"')
        c->in_string = true;
    else if (b == '{' || b == '[')
        c->depth++;
    else if ((b == '}' || b == ']') && c->depth)
        c->depth--;
    else if (b == '<' || b == ']') /* a tag in an unfinished value: it is no call */
        return give_up(c);
    return c->depth < 255 || give_up(c);
}

/* A run of the arguments' object out of text[0..len): told, or kept until the name is known. Returns bytes taken. */
static size_t args_run(struct calls *c, const char *text, size_t len)
{
    size_t from = 0, i = 0;
    struct bytes *early = c->begun ? NULL : &c->early;
    for (; i < len && c->state == ARGS; i++) {
        char b = text[i];
        if (c->in_string) {
            if ((u8)b < 0x20) {
                struct bytes escaped = {0};
                bytes_escaped(&escaped, &b, 1);
                if (early)
                    bytes_put(early, text + from, i - from), bytes_put(early, escaped.at, escaped.len);
                else
                    arguments(c, text + from, i - from), arguments(c, escaped.at, escaped.len);
                bytes_free(&escaped);
                from = i + 1;
                c->escape = false;
            } else if (c->escape) {
                c->escape = false;
            } else if (b == '\\') {
                c->escape = true;
            } else if (b == '"') {
                c->in_string = false;
            }
        } else if (b == '"') {
            c->in_string = true;
        } else if (b == '{' || b == '[') {
            if (c->depth == DEPTH_MAX)
                break;
            c->kinds = c->kinds << 1 | (b == '[');
            c->depth++;
        } else if (b == '}' || b == ']') {
            if ((c->kinds & 1) != (b == ']'))
                break;
            c->kinds >>= 1;
            if (--c->depth == 0)
                c->state = COMMA;
        }
    }
    if (early) {
        bytes_put(early, text + from, i - from);
        bytes_put(&c->held, text, i);
    } else {
        arguments(c, text + from, i - from);
    }
    if (i < len && c->state == ARGS) { /* a bracket that fits nowhere */
        if (c->begun) {
            c->state = RAW;
            c->matched = 0;
        } else {
            give_up(c);
        }
    }
    return i;
}

static bool raw_byte(struct calls *c, char b)
{
    if (c->matched && b != tool_close[c->matched]) {
        arguments(c, tool_close, c->matched);
        c->matched = 0;
    }
    if (b == tool_close[c->matched]) {
        if (++c->matched == sizeof tool_close - 1) {
            end(c);
            c->state = OVER;
        }
    } else {
        arguments(c, &b, 1);
    }
    return true;
}

/* ---- Qwen3-Coder's form ---- */

/* Of the parameter whose key is word. What the schema does not know is a string. */
static unsigned types_here(const struct calls *c)
{
    const json_t *properties = c->tools ? json_object_getn(c->tools->by_name, c->name.at, c->name.len) : NULL;
    const json_t *schema = properties ? json_object_getn(properties, c->word.at ? c->word.at : "", c->word.len) : NULL;
    return schema ? types_of(schema, false) : SOME_STRING;
}

static void value_put(struct calls *c, struct bytes *out, const char *text, size_t len)
{
    unsigned types = types_here(c);
    const char *at = text;
    size_t n = len;
    while (n && is_space(at[0]))
        at++, n--;
    while (n && is_space(at[n - 1]))
        n--;
    if (n == 4 && (types & SOME_NULL || !(types & SOME_STRING)) && (!memcmp(at, "null", 4) || !memcmp(at, "None", 4))) {
        bytes_str(out, "null");
        return;
    }
    if (!(types & SOME_STRING)) {
        if ((n == 4 && !memcmp(at, "True", 4)) || (n == 5 && !memcmp(at, "False", 5))) {
            bytes_str(out, n == 4 ? "true" : "false");
            return;
        }
        json_t *value =
            n && calls_depth(at, n) <= DEPTH_MAX ? json_loadb(at, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
        bool is_json = value && !json_is_string(value);
        json_decref(value);
        if (is_json) {
            bytes_put(out, at, n);
            return;
        }
    }
    bytes_json(out, text, len);
}

static void key_put(struct calls *c, struct bytes *out)
{
    bytes_str(out, c->first ? "" : ", ");
    bytes_json(out, c->word.at ? c->word.at : "", c->word.len);
    bytes_str(out, ": ");
    c->first = false;
}

/* `"key": value` of the parameter whose key is word and whose text is early; open: the answer ended inside it. */
static void parameter(struct calls *c, bool open)
{
    struct bytes out = {0};
    const char *text = c->early.at ? c->early.at : "";
    size_t len = c->early.len;
    if (len && text[0] == '\n')
        text++, len--;
    if (len && text[len - 1] == '\n' && !open)
        len--;
    key_put(c, &out);
    if (open) {
        bytes_str(&out, "\"");
        bytes_escaped(&out, text, len);
    } else {
        value_put(c, &out, text, len);
    }
    c->early.failed |= out.failed;
    arguments(c, out.at, out.len);
    bytes_free(&out);
}

static bool x_name_byte(struct calls *c, char b)
{
    if (b == '\n' || b == '<' || c->name.len > NAME_MAX_BYTES || (b == '>' && !c->name.len))
        return give_up(c);
    if (b != '>') {
        bytes_put(&c->name, &b, 1);
        return true;
    }
    begin(c);
    arguments(c, "{", 1);
    c->first = true;
    c->state = X_BODY;
    return true;
}

static bool x_give_up(struct calls *c)
{
    arguments(c, "}", 1);
    return give_up(c);
}

static bool x_tag_byte(struct calls *c, char b)
{
    static const char *const tags[] = {parameter_open, function_close, tool_close};
    bytes_put(&c->word, &b, 1);
    for (size_t i = 0; i < COUNT(tags); i++) {
        size_t len = strlen(tags[i]);
        if (c->word.failed || c->word.len > len || memcmp(tags[i], c->word.at, c->word.len) != 0)
            continue;
        if (c->word.len < len)
            return true;
        bytes_clear(&c->word);
        bytes_clear(&c->early);
        if (i == 0) {
            c->state = X_KEY;
            return true;
        }
        arguments(c, "}", 1);
        end(c);
        bytes_clear(&c->held);
        c->state = i == 1 ? AFTER : OVER;
        return true;
    }
    return x_give_up(c);
}

static bool x_value_byte(struct calls *c, char b)
{
    size_t tag = sizeof parameter_close - 1;
    bytes_put(&c->early, &b, 1);
    if (b != '>' || c->early.len < tag || memcmp(c->early.at + c->early.len - tag, parameter_close, tag) != 0)
        return true;
    c->early.len -= tag;
    parameter(c, false);
    bytes_clear(&c->held);
    c->state = X_BODY;
    return true;
}

/* > behind a key. */
static void value_begin(struct calls *c)
{
    struct bytes out = {0};
    c->state = types_here(c) == SOME_STRING ? X_TEXT : X_VALUE;
    bytes_clear(&c->early);
    if (c->state == X_VALUE)
        return;
    key_put(c, &out);
    bytes_str(&out, "\"");
    c->early.failed |= out.failed;
    arguments(c, out.at, out.len);
    bytes_free(&out);
    bytes_clear(&c->held);
    c->matched = 0; /* nothing of the value has come */
}

static void text_put(struct calls *c, const char *text, size_t len)
{
    struct bytes out = {0};
    bytes_escaped(&out, text, len);
    c->early.failed |= out.failed;
    arguments(c, out.at, out.len);
    bytes_free(&out);
}

/* A run of a string's value. Held in early: what may become the line end and tag that close it; a line end and < stand
 * at the front of those only, so all else before a mismatch is text. Returns the bytes taken. */
static size_t x_text_run(struct calls *c, const char *text, size_t len)
{
    static const char ending[] = "\n</parameter>";
    size_t i = 0;
    if (!c->matched) { /* one line end at the front is the form's, not the value's */
        c->matched = 1;
        if (text[0] == '\n')
            return 1;
    }
    while (i < len && c->state == X_TEXT) {
        size_t n = c->early.len, skip = n && c->early.at[0] == '<'; /* the line end may be missing */
        if (n == 0) {
            size_t run = i;
            while (run < len && text[run] != '\n' && text[run] != '<')
                run++;
            text_put(c, text + i, run - i);
            i = run;
            if (i < len)
                bytes_put(&c->early, text + i++, 1);
        } else if (text[i] != ending[n + skip]) {
            text_put(c, c->early.at, n);
            bytes_clear(&c->early);
        } else {
            bytes_put(&c->early, text + i++, 1);
            if (!ending[n + skip + 1]) {
                arguments(c, "\"", 1);
                bytes_clear(&c->early);
                c->state = X_BODY;
            }
        }
    }
    return i;
}

/* ---- the machine ---- */

static bool tag_byte(struct calls *c, const char *tag, char b, enum state then)
{
    if (b != tag[c->matched])
        return give_up(c);
    if (!tag[++c->matched])
        c->state = then;
    return true;
}

/* True: the byte was taken. False: it was not, and the state has changed. */
static bool byte(struct calls *c, char b)
{
    enum state state = c->state;
    if (is_space(b) &&
        (state == OPEN || state == KEY || state == COLON || state == COMMA || state == AFTER || state == X_BODY))
        return true;
    switch (state) {
    case OPEN:
    case AFTER:
        if (state == OPEN && b == '{')
            c->state = KEY;
        else if (b == '<')
            c->matched = 1, c->state = state == OPEN ? X_OPEN : CLOSE;
        else if (state == OPEN || b != '}') /* one } too many is the commonest slip of small models */
            return give_up(c);
        return true;
    case KEY:
        if (b == '}')
            return object_end(c);
        bytes_clear(&c->word);
        bytes_put(&c->word, &b, 1);
        c->state = KEY_TEXT;
        return b == '"' || give_up(c);
    case KEY_TEXT:
        if (string_byte(c, b))
            c->state = COLON;
        return true;
    case COLON:
        c->state = VALUE;
        return b == ':' || give_up(c);
    case VALUE:
        return value_start(c, b);
    case NAME:
        return !string_byte(c, b) || name_end(c);
    case ARGS_TEXT:
        return !string_byte(c, b) || args_text_end(c);
    case ARGS_NULL:
        if (b != "null"[c->matched])
            return give_up(c);
        if (++c->matched == 4)
            whole_arguments(c, "{}", 2), c->state = COMMA;
        return true;
    case SKIP:
        return skip_byte(c, b);
    case COMMA:
        if (b == '}')
            return object_end(c);
        c->state = KEY;
        return b == ',' || give_up(c);
    case CLOSE:
        return tag_byte(c, tool_close, b, OVER);
    case X_OPEN:
        return tag_byte(c, function_open, b, X_NAME);
    case X_NAME:
        return x_name_byte(c, b);
    case X_BODY:
        bytes_clear(&c->word);
        bytes_put(&c->word, &b, 1);
        c->state = X_TAG;
        return b == '<' || x_give_up(c);
    case X_TAG:
        return x_tag_byte(c, b);
    case X_KEY:
        if (b == '\n' || b == '<' || c->word.len > NAME_MAX_BYTES)
            return x_give_up(c);
        if (b == '>')
            value_begin(c);
        else
            bytes_put(&c->word, &b, 1);
        return true;
    case X_VALUE:
        return x_value_byte(c, b);
    case ARGS:
    case RAW:
    case X_TEXT:
    case OVER:
        break;
    }
    return false;
}

void calls_begin(struct calls *c)
{
    c->state = OPEN;
    c->begun = c->has_early = c->ended = c->in_string = c->escape = false;
    c->depth = c->matched = 0;
    bytes_clear(&c->name);
    bytes_clear(&c->word);
    bytes_clear(&c->early);
    bytes_clear(&c->held);
    bytes_str(&c->held, tool_open);
}

size_t calls_push(struct calls *c, const char *text, size_t len, bool *over)
{
    size_t i = 0;
    while (i < len && c->state != OVER) {
        if (c->state == ARGS) {
            i += args_run(c, text + i, len - i);
            continue;
        }
        if (c->state == RAW) {
            raw_byte(c, text[i++]);
            continue;
        }
        if (c->state == X_TEXT) {
            i += x_text_run(c, text + i, len - i);
            continue;
        }
        bytes_put(&c->held, text + i, 1);
        size_t held = c->held.len;
        if (byte(c, text[i]))
            i++;
        else if (c->held.len == held && held) /* begin() may have emptied it */
            c->held.len--;
        if (c->state == OVER && c->matched == sizeof tool_close - 1)
            bytes_clear(&c->held);
    }
    *over = c->state == OVER;
    return i;
}

void calls_end(struct calls *c)
{
    switch ((enum state)c->state) {
    case RAW:
        arguments(c, tool_close, c->matched);
        break;
    case AFTER:
    case CLOSE: /* it is whole but for its tag */
        bytes_clear(&c->held);
        break;
    case X_BODY:
        arguments(c, "}", 1);
        bytes_clear(&c->held);
        break;
    case X_VALUE:
        parameter(c, true);
        bytes_clear(&c->held);
        break;
    case X_TEXT:
        text_put(c, c->early.at, c->early.len);
        break;
    default:
        break;
    }
    if (c->begun)
        end(c);
    c->state = OVER;
}

void calls_free(struct calls *c)
{
    bytes_free(&c->name);
    bytes_free(&c->word);
    bytes_free(&c->early);
    bytes_free(&c->held);
}

bool calls_failed(const struct calls *c)
{
    return c->name.failed || c->word.failed || c->early.failed || c->held.failed;
}
