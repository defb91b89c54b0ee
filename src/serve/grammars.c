/* Grammars that requests ask for. Agents send the same schema again and again: the last few stay compiled, and with them
 * the masks that were made. */
#include "serve/schema.h"
#include "serve/server.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 16, CACHE_BYTES = 4 << 20 };

struct kept {
    char *text;          /* what it was made of */
    struct masks *masks; /* held */
    u64 used;
};

struct grammars {
    const struct vocab *vocab;
    pthread_mutex_t lock;
    struct kept kept[KEPT];
    u64 clock;
};

int grammars_open(struct grammars **out, const struct vocab *v, struct err *err)
{
    struct grammars *g = *out = mem_array(1, sizeof *g);
    if (!g)
        return err_set(err, "out of memory");
    g->vocab = v;
    pthread_mutex_init(&g->lock, NULL);
    return 0;
}

void grammars_close(struct grammars *g)
{
    if (!g)
        return;
    for (u32 i = 0; i < KEPT; i++) {
        masks_close(g->kept[i].masks);
        free(g->kept[i].text);
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* The kept grammar of that text, held, or NULL. */
static struct masks *find(struct grammars *g, const char *text)
{
    struct masks *found = NULL;
    pthread_mutex_lock(&g->lock);
    for (u32 i = 0; i < KEPT && !found; i++)
        if (g->kept[i].text && strcmp(g->kept[i].text, text) == 0) {
            g->kept[i].used = ++g->clock;
            found = masks_hold(g->kept[i].masks);
        }
    pthread_mutex_unlock(&g->lock);
    return found;
}

/* Takes text over. */
static void keep(struct grammars *g, char *text, struct masks *m)
{
    pthread_mutex_lock(&g->lock);
    struct kept *oldest = &g->kept[0];
    for (u32 i = 1; i < KEPT; i++)
        if (g->kept[i].used < oldest->used)
            oldest = &g->kept[i];
    masks_close(oldest->masks);
    free(oldest->text);
    *oldest = (struct kept){text, masks_hold(m), ++g->clock};
    pthread_mutex_unlock(&g->lock);
}

/* Tools whose calls are held to their schema: all where a call must come (or the named one), else those that are strict. */
static u32 choose_tools(const json_t *tools, const struct request *r, struct schema_tool *out, bool *any_strict)
{
    size_t i;
    u32 n = 0;
    json_t *tool;
    json_array_foreach(tools, i, tool) {
        const json_t *f = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        bool strict = json_is_true(json_object_get(f, "strict"));
        if (!name || n == REQUEST_MAX_TOOLS || (r->tool_choice == TOOLS_NAMED && strcmp(name, r->tool_name) != 0))
            continue;
        *any_strict |= strict;
        bool held = strict || r->tool_choice != TOOLS_AUTO;
        out[n++] = (struct schema_tool){name, held ? json_object_get(f, "parameters") : NULL};
    }
    return n;
}

static int compile_tools(struct grammar *g, const struct request *r, bool think, struct err *err)
{
    struct schema_tool list[REQUEST_MAX_TOOLS];
    bool strict = false;
    json_t *tools = json_loads(r->tools_json, 0, NULL);
    u32 n = choose_tools(tools, r, list, &strict);
    int rc = schema_open_calls(g, list, n, r->tool_choice == TOOLS_AUTO ? SCHEMA_CALL_FREE : SCHEMA_CALL_MUST, !r->one_call,
                               think, err);
    json_decref(tools);
    return rc;
}

static int compile(struct grammar *g, const struct request *r, bool tools, bool think, struct err *err)
{
    if (tools)
        return compile_tools(g, r, think, err);
    if (r->format == FORMAT_JSON)
        return schema_open_object(g, think, err);
    json_t *schema = schema_parse(r->schema_json, strlen(r->schema_json), err);
    if (!schema)
        return -1;
    int rc = schema_open(g, schema, think, err);
    json_decref(schema);
    return rc;
}

static bool has_strict(const struct request *r)
{
    struct schema_tool list[REQUEST_MAX_TOOLS];
    bool strict = false;
    json_t *tools = json_loads(r->tools_json, 0, NULL);
    choose_tools(tools, r, list, &strict);
    json_decref(tools);
    return strict;
}

int grammars_get(struct grammars *g, const struct request *r, bool in_reasoning, struct masks **out, struct api_error *e)
{
    bool tools = r->tools_json && r->tool_choice != TOOLS_NONE && (r->tool_choice != TOOLS_AUTO || has_strict(r));
    *out = NULL;
    if (!tools && r->format == FORMAT_TEXT)
        return 0;
    if (tools && r->format != FORMAT_TEXT)
        return api_error_bad(e, r->schema_param ? r->schema_param : "response_format",
                             "cannot be asked for together with strict tools or a tool_choice that demands a call");
    if (!g->vocab)
        return api_error_bad(e, r->schema_param, "this model's vocabulary lacks a byte: its answers cannot be held to a form");
    struct bytes text = {0};
    struct err err;
    struct grammar grammar = {0};
    bytes_u64(&text, (u64)in_reasoning * 8 + (u64)tools * 4 + (u64)r->one_call * 2);
    bytes_u64(&text, (u64)r->tool_choice * 4 + (u64)r->format);
    bytes_str(&text, tools && r->tool_name ? r->tool_name : "");
    bytes_str(&text, tools ? r->tools_json : r->format == FORMAT_SCHEMA ? r->schema_json : "");
    char *key = bytes_take(&text);
    if (!key)
        return api_error_memory(e);
    *out = find(g, key);
    if (*out) {
        free(key);
        return 0;
    }
    if (compile(&grammar, r, tools, in_reasoning, &err)) {
        free(key);
        return api_error_bad(e, tools ? "tools" : r->schema_param ? r->schema_param : "response_format", "%.220s", err.text);
    }
    if (masks_open(out, g->vocab, &grammar, CACHE_BYTES, &err)) {
        free(key);
        return api_error_set(e, 500, "server_error", NULL, NULL, "%.200s", err.text);
    }
    keep(g, key, *out);
    return 0;
}
