/* JSON schema -> grammar. A node stands for the conjunction of a few sources: a subschema alone, or one with what its
 * $ref or a branch of its anyOf adds. Equal conjunctions are one node, so that recursion closes and a definition used a
 * hundred times is compiled once; nodes wait in a list, so that nothing here recurses.
 *
 * What cannot be one automaton is refused (oneOf, allOf, not, if, format, multipleOf, ...), and so are keywords this
 * file does not know: a misspelled minLength would bind nothing. */
#include "serve/schema_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- where things stand ---- */

u32 schema_place(struct builder *b, u32 up, const char *key, size_t index)
{
    if (b->n_places == b->cap_places) {
        u32 cap = b->cap_places ? b->cap_places * 2 : 64;
        struct place *places = realloc(b->places, cap * sizeof *places);
        if (!places)
            return 0; /* an error's text says less */
        b->places = places;
        b->cap_places = cap;
    }
    b->places[b->n_places] = (struct place){up, key, index};
    return b->n_places++;
}

/* A name as a JSON pointer has it (/ is ~1, ~ is ~0), as much as fits. */
static void token_of(char *out, size_t room, const char *key)
{
    char escaped[48];
    size_t n = 0;
    for (; *key && n + 2 < sizeof escaped; key++) {
        escaped[n++] = *key == '/' ? '~' : *key;
        if (*key == '/' || *key == '~')
            escaped[n++] = *key == '/' ? '1' : '0';
    }
    err_quote(out, room, escaped, n);
}

/* "#/properties/x", cut from the left when it is long; printable ASCII. */
static void pointer_of(const struct builder *b, u32 place, char *out, size_t room)
{
    char text[200];
    size_t at = sizeof text - 1;
    text[at] = 0;
    while (place && place < b->n_places) {
        char part[64];
        const struct place *p = &b->places[place];
        if (p->key)
            token_of(part, sizeof part, p->key);
        else
            snprintf(part, sizeof part, "%zu", p->index);
        size_t len = strlen(part);
        if (len + 1 > at)
            break;
        memcpy(text + (at -= len), part, len);
        text[--at] = '/';
        place = p->up;
    }
    snprintf(out, room, "#%s%s", place ? "..." : "", text + at);
}

int schema_refuse(struct builder *b, u32 place, const char *keyword, const char *why)
{
    char pointer[208], name[80];
    pointer_of(b, place, pointer, sizeof pointer);
    return err_set(b->err, "\"%s\" at %s: %s", err_quote(name, sizeof name, keyword, strlen(keyword)), pointer, why);
}

/* ---- keywords ---- */

static bool listed(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], key))
            return true;
    return false;
}

static const char *const SILENT[] = {"title",    "description", "default",    "examples", "$schema",   "$id",
                                     "$comment", "deprecated",  "readOnly",   "writeOnly", "$defs",     "definitions"};
static const char *const SPOKEN[] = {
    "$ref",     "anyOf",    "type",      "enum",      "const",   "properties", "required", "additionalProperties",
    "items",    "minItems", "maxItems",  "minLength", "pattern", "maxLength",  "minimum",  "prefixItems",
    "maximum",  "exclusiveMinimum", "exclusiveMaximum"};

static bool silent(const char *key)
{
    return listed(SILENT, COUNT(SILENT), key) || !strncmp(key, "x-", 2);
}

static int check_keywords(struct builder *b, const struct source *s)
{
    for (void *at = json_object_iter((json_t *)s->json); at; at = json_object_iter_next((json_t *)s->json, at)) {
        const char *key = json_object_iter_key(at);
        if (!silent(key) && !listed(SPOKEN, COUNT(SPOKEN), key))
            return schema_refuse(b, s->place, key, "this keyword is not supported");
    }
    return 0;
}

/* Whether the source still says something. */
static bool speaks(const struct source *s)
{
    if (!json_is_object(s->json))
        return !json_is_true(s->json);
    for (void *at = json_object_iter((json_t *)s->json); at; at = json_object_iter_next((json_t *)s->json, at)) {
        const char *key = json_object_iter_key(at);
        if (!(silent(key) || (s->ref_done && !strcmp(key, "$ref")) || (s->any_done && !strcmp(key, "anyOf"))))
            return true;
    }
    return false;
}

/* ---- conjunctions ---- */

static int add_source(struct builder *b, struct conjunction *c, struct source s)
{
    if (!speaks(&s))
        return 0;
    for (u32 i = 0; i < c->n; i++)
        if (c->of[i].json == s.json && c->of[i].ref_done == s.ref_done && c->of[i].any_done == s.any_done)
            return 0;
    if (c->n == SOURCES)
        return schema_refuse(b, s.place, "anyOf", "more than 8 schemas meet in one value here");
    c->of[c->n++] = s;
    return 0;
}

static u64 hash_of(const struct conjunction *c)
{
    u64 h = c->n;
    for (u32 i = 0; i < c->n; i++) {
        h = (h ^ (u64)(uintptr_t)c->of[i].json ^ (u64)c->of[i].ref_done << 62 ^ (u64)c->of[i].any_done << 63) *
            0x9E3779B97F4A7C15ull;
        h ^= h >> 31;
    }
    return h;
}

static bool same_conjunction(const struct conjunction *a, const struct conjunction *c)
{
    if (a->n != c->n)
        return false;
    for (u32 i = 0; i < a->n; i++)
        if (a->of[i].json != c->of[i].json || a->of[i].ref_done != c->of[i].ref_done ||
            a->of[i].any_done != c->of[i].any_done)
            return false;
    return true;
}

i32 schema_node(struct builder *b, const struct conjunction *c)
{
    u32 slot = (u32)hash_of(c) & (SLOTS - 1);
    for (; b->slots[slot]; slot = (slot + 1) & (SLOTS - 1))
        if (same_conjunction(&b->jobs[b->slots[slot] - 1].of, c))
            return (i32)b->jobs[b->slots[slot] - 1].node;
    if (b->n_jobs == b->cap_jobs) {
        u32 cap = b->cap_jobs ? b->cap_jobs * 2 : 16;
        struct job *jobs = realloc(b->jobs, cap * sizeof *jobs);
        if (!jobs)
            return err_set(b->err, "no memory for a schema");
        b->jobs = jobs;
        b->cap_jobs = cap;
    }
    i32 node = grammar_node(b->g, GRAMMAR_UNION, b->err);
    if (node < 0)
        return -1;
    b->jobs[b->n_jobs] = (struct job){*c, (u32)node};
    b->slots[slot] = ++b->n_jobs;
    return node;
}

i32 schema_node_of(struct builder *b, const json_t *json, u32 place)
{
    struct conjunction c = {0};
    if (json && add_source(b, &c, (struct source){.json = json, .place = place}))
        return -1;
    return schema_node(b, &c);
}

int schema_node_list(struct builder *b, u32 node, u32 n)
{
    u32 *list = grammar_memory(b->g, n, sizeof *list, b->err);
    if (!list)
        return -1;
    b->g->nodes[node].list = list;
    b->g->nodes[node].n = n;
    return 0;
}

/* ---- $ref ---- */

/* One token of a JSON pointer in a URI fragment: %XX, then ~1 and ~0. False when it is none or too long. */
static bool read_token(const char **at, char *out, size_t room)
{
    size_t n = 0;
    for (; **at && **at != '/'; ++*at) {
        char c = **at;
        if (c == '%') {
            char hex[3] = {(*at)[1], (*at)[1] ? (*at)[2] : 0, 0};
            if (strspn(hex, "0123456789abcdefABCDEF") != 2)
                return false;
            c = (char)strtoul(hex, NULL, 16);
            *at += 2;
            if (!c)
                return false;
        }
        if (n + 1 >= room)
            return false;
        out[n++] = c;
    }
    out[n] = 0;
    size_t w = 0;
    for (size_t i = 0; i < n; i++) {
        if (out[i] == '~' && out[i + 1] != '0' && out[i + 1] != '1')
            return false;
        bool escaped = out[i] == '~';
        out[w++] = !escaped ? out[i] : out[i + 1] == '1' ? '/' : '~';
        i += escaped;
    }
    out[w] = 0;
    return true;
}

static int resolve(struct builder *b, const struct source *s, struct source *to)
{
    const json_t *ref = json_object_get(s->json, "$ref"), *at = b->root;
    const char *text = json_string_value(ref);
    char token[256];
    u32 place = 0;
    if (!text)
        return schema_refuse(b, s->place, "$ref", "must be a string");
    if (text[0] != '#' || (text[1] && text[1] != '/'))
        return schema_refuse(b, s->place, "$ref", "only references within this schema, # or #/..., are supported");
    for (text++; at && *text;) {
        text++;
        if (!read_token(&text, token, sizeof token))
            return schema_refuse(b, s->place, "$ref", "is not a JSON pointer");
        if (json_is_object(at)) {
            void *iter = json_object_iter_at((json_t *)at, token);
            at = iter ? json_object_iter_value(iter) : NULL;
            place = iter ? schema_place(b, place, json_object_iter_key(iter), 0) : 0;
        } else if (json_is_array(at) && token[0] && strspn(token, "0123456789") == strlen(token) && strlen(token) < 9) {
            place = schema_place(b, place, NULL, (size_t)atoi(token));
            at = json_array_get(at, (size_t)atoi(token));
        } else {
            at = NULL;
        }
    }
    if (!at)
        return schema_refuse(b, s->place, "$ref", "refers to nothing");
    *to = (struct source){.json = at, .place = place};
    return 0;
}

/* ---- a node ---- */

static int build_ref(struct builder *b, u32 node, const struct conjunction *c, u32 k)
{
    struct conjunction with = {0};
    struct source to;
    if (resolve(b, &c->of[k], &to))
        return -1;
    for (u32 i = 0; i < c->n; i++) {
        struct source s = c->of[i];
        s.ref_done |= i == k;
        if (add_source(b, &with, s))
            return -1;
    }
    if (add_source(b, &with, to) || schema_node_list(b, node, 1))
        return -1;
    i32 child = schema_node(b, &with);
    b->g->nodes[node].list[0] = (u32)child;
    return child < 0 ? -1 : 0;
}

static int build_any(struct builder *b, u32 node, const struct conjunction *c, u32 k)
{
    const json_t *branches = json_object_get(c->of[k].json, "anyOf");
    size_t n = json_array_size(branches);
    if (!n)
        return schema_refuse(b, c->of[k].place, "anyOf", "must be a list of at least one schema");
    u32 place = schema_place(b, c->of[k].place, "anyOf", 0);
    if (n > GRAMMAR_NODES || schema_node_list(b, node, (u32)n))
        return n > GRAMMAR_NODES ? schema_refuse(b, c->of[k].place, "anyOf", "has too many branches") : -1;
    for (u32 j = 0; j < n; j++) {
        struct conjunction with = {0};
        for (u32 i = 0; i < c->n; i++) {
            struct source s = c->of[i];
            s.any_done |= i == k;
            if (add_source(b, &with, s))
                return -1;
        }
        struct source branch = {.json = json_array_get(branches, j), .place = schema_place(b, place, NULL, j)};
        if (add_source(b, &with, branch))
            return -1;
        i32 child = schema_node(b, &with);
        if (child < 0)
            return -1;
        b->g->nodes[node].list[j] = (u32)child;
    }
    return 0;
}

static int build_job(struct builder *b, u32 job)
{
    struct conjunction c = b->jobs[job].of;
    u32 node = b->jobs[job].node;
    for (u32 i = 0; i < c.n; i++) {
        if (json_is_false(c.of[i].json))
            return 0; /* a union of nothing */
        if (!json_is_object(c.of[i].json))
            return schema_refuse(b, c.of[i].place, "", "a schema must be an object or a boolean");
        if (check_keywords(b, &c.of[i]))
            return -1;
    }
    for (u32 i = 0; i < c.n; i++)
        if (!c.of[i].ref_done && json_object_get(c.of[i].json, "$ref"))
            return build_ref(b, node, &c, i);
    for (u32 i = 0; i < c.n; i++)
        if (!c.of[i].any_done && json_object_get(c.of[i].json, "anyOf"))
            return build_any(b, node, &c, i);
    return schema_build_leaves(b, node, &c);
}

/* ---- unions become flat ---- */

struct flattener {
    u32 *seen, *stack, *leaves; /* (nodes) */
    u32 stamp, n_leaves;
    u64 entries;
};

/* All spellings of a union are one list: an anyOf of a thousand constants is an enum. */
static i32 merge_words(struct builder *b, const u32 *leaves, u32 n)
{
    u64 total = 0;
    for (u32 i = 0; i < n; i++)
        total += b->g->nodes[leaves[i]].words.n;
    i32 node = grammar_node(b->g, GRAMMAR_WORDS, b->err);
    struct word *at = node < 0 ? NULL : grammar_memory(b->g, total, sizeof *at, b->err);
    if (!at)
        return -1;
    struct words w = {0, at};
    for (u32 i = 0; i < n; i++) {
        const struct words *from = &b->g->nodes[leaves[i]].words;
        if (from->n)
            memcpy(at + w.n, from->at, from->n * sizeof *at);
        w.n += from->n;
    }
    words_sort(&w, NULL);
    b->g->nodes[node].words = w;
    return node;
}

static int flatten(struct builder *b, struct flattener *f, u32 node)
{
    u32 n = 0, words = 0, others = 0;
    f->stamp++;
    f->n_leaves = 0;
    f->stack[n++] = node;
    f->seen[node] = f->stamp;
    while (n) {
        const struct grammar_node *at = &b->g->nodes[f->stack[--n]];
        for (u32 i = 0; i < at->n; i++, f->entries++) {
            u32 child = at->list[i];
            if (f->seen[child] == f->stamp)
                continue;
            f->seen[child] = f->stamp;
            if (b->g->nodes[child].kind == GRAMMAR_UNION)
                f->stack[n++] = child;
            else
                f->leaves[f->n_leaves++] = child;
        }
    }
    if (f->entries > SCHEMA_WORK)
        return err_set(b->err, "the schema's anyOf and $ref have too many branches together");
    for (u32 i = 0; i < f->n_leaves; i++) { /* spellings first, in the room of the stack */
        if (b->g->nodes[f->leaves[i]].kind == GRAMMAR_WORDS)
            f->stack[words++] = f->leaves[i];
        else
            f->leaves[others++] = f->leaves[i];
    }
    if (others > SCHEMA_BRANCHES)
        return err_set(b->err, "\"anyOf\": %u alternatives for one value; the most is %d", others, SCHEMA_BRANCHES);
    i32 merged = words > 1 ? merge_words(b, f->stack, words) : words ? (i32)f->stack[0] : -1;
    if (words && merged < 0)
        return -1;
    u32 *list = grammar_memory(b->g, others + 1u, sizeof *list, b->err);
    if (!list)
        return -1;
    memcpy(list, f->leaves, others * sizeof *list);
    if (words)
        list[others++] = (u32)merged;
    b->flat[node] = list;
    b->n_flat[node] = others;
    return 0;
}

static int flatten_all(struct builder *b)
{
    u32 n = b->g->n_nodes;
    struct flattener f = {.seen = mem_array(n, sizeof(u32)), .stack = mem_array(n, sizeof(u32)),
                          .leaves = mem_array(n, sizeof(u32))};
    b->flat = mem_array(n, sizeof *b->flat);
    b->n_flat = mem_array(n, sizeof *b->n_flat);
    int rc = f.seen && f.stack && f.leaves && b->flat && b->n_flat ? 0 : err_set(b->err, "no memory for a schema");
    for (u32 i = 0; i < n && !rc; i++)
        if (b->g->nodes[i].kind == GRAMMAR_UNION)
            rc = flatten(b, &f, i);
    for (u32 i = 0; i < n && !rc; i++)
        if (b->flat[i]) {
            b->g->nodes[i].list = b->flat[i];
            b->g->nodes[i].n = b->n_flat[i];
        }
    free(f.seen);
    free(f.stack);
    free(f.leaves);
    free(b->flat);
    free(b->n_flat);
    b->flat = NULL;
    b->n_flat = NULL;
    return rc;
}

/* ---- whole grammars ---- */

static int builder_open(struct builder *b, struct grammar *g, struct err *err)
{
    *g = (struct grammar){0};
    *b = (struct builder){.g = g, .err = err};
    schema_place(b, 0, "", 0); /* the root is place 0 */
    if (!(b->slots = mem_array(SLOTS, sizeof *b->slots)))
        return err_set(err, "no memory for a schema");
    return 0;
}

static void builder_close(struct builder *b)
{
    free(b->slots);
    free(b->jobs);
    free(b->places);
}

/* The node of a schema with all that it refers to. */
static i32 build_schema(struct builder *b, const json_t *schema)
{
    b->root = schema; /* jobs of other schemas are known by their own JSON: nothing is confused */
    i32 node = schema_node_of(b, schema, 0);
    for (; node >= 0 && b->done < b->n_jobs; b->done++)
        if (build_job(b, b->done))
            return -1;
    return node;
}

static i32 add_call(struct builder *b, const char *lead, const char *tail, u32 value)
{
    size_t n = strlen(lead), m = strlen(tail);
    i32 node = grammar_node(b->g, GRAMMAR_CALL, b->err);
    char *text = node < 0 ? NULL : grammar_memory(b->g, n + m + 1, 1, b->err);
    if (!text)
        return -1;
    memcpy(text, lead, n);
    memcpy(text + n, tail, m);
    b->g->nodes[node].text = text;
    b->g->nodes[node].n_lead = (u32)n;
    b->g->nodes[node].n_text = (u32)(n + m);
    b->g->nodes[node].rest = (i32)value;
    return node;
}

static i32 add_free(struct builder *b, const char *text, u32 n_calls)
{
    u32 n = (u32)strlen(text);
    i32 node = grammar_node(b->g, GRAMMAR_FREE, b->err);
    u16 *back = node < 0 ? NULL : grammar_memory(b->g, n, sizeof *back, b->err);
    if (!back || schema_node_list(b, (u32)node, n_calls) || !(b->g->nodes[node].text = grammar_text(b->g, text, n, b->err)))
        return -1;
    b->g->nodes[node].n_text = n;
    b->g->nodes[node].back = back;
    for (u32 i = 1, k = 0; i < n; i++) {
        while (k && text[i] != text[k])
            k = back[k - 1];
        back[i] = (u16)(k += text[i] == text[k]);
    }
    return node;
}

/* Unions flat, thought before, heights, and whether any text is left. */
static int finish(struct builder *b, i32 root, bool think)
{
    if (root < 0 || flatten_all(b))
        return -1;
    if (think) {
        i32 call = add_call(b, "</think>\n\n", "", (u32)root), open = call < 0 ? -1 : add_free(b, "</think>", 1);
        if (open < 0)
            return -1;
        b->g->nodes[open].list[0] = (u32)call;
        root = open;
    }
    b->g->root = (u32)root;
    grammar_heights(b->g);
    if (b->g->nodes[root].height > GRAMMAR_DEPTH)
        return err_set(b->err, "no value of at most %d levels satisfies the schema", GRAMMAR_DEPTH);
    return 0;
}

static int close_with(struct builder *b, int rc)
{
    builder_close(b);
    if (rc)
        grammar_free(b->g);
    return rc;
}

int schema_open(struct grammar *g, const json_t *schema, bool think, struct err *err)
{
    struct builder b;
    int rc = builder_open(&b, g, err);
    if (!rc)
        rc = finish(&b, build_schema(&b, schema), think);
    return close_with(&b, rc);
}

int schema_open_object(struct grammar *g, bool think, struct err *err)
{
    json_t *schema = json_pack("{s:s}", "type", "object");
    int rc = schema ? schema_open(g, schema, think, err) : err_set(err, "no memory for a schema");
    json_decref(schema);
    return rc;
}

static i32 add_tool(struct builder *b, const struct schema_tool *tool, const json_t *any_object)
{
    struct spelling s = {0};
    static const char BEFORE[] = "<tool_call>\n{\"name\": \"", AFTER[] = "\", \"arguments\": ";
    i32 value = build_schema(b, tool->parameters ? tool->parameters : any_object), node = -1;
    char *lead = NULL;
    if (value >= 0 && !spelling_string(&s, tool->name, strlen(tool->name), b->err) &&
        (lead = grammar_memory(b->g, s.n + sizeof BEFORE + sizeof AFTER, 1, b->err))) {
        memcpy(lead, BEFORE, sizeof BEFORE - 1);
        if (s.n)
            memcpy(lead + sizeof BEFORE - 1, s.at, s.n);
        memcpy(lead + sizeof BEFORE - 1 + s.n, AFTER, sizeof AFTER);
        node = add_call(b, lead, "}\n</tool_call>", (u32)value);
    }
    spelling_free(&s);
    return node;
}

static i32 build_calls(struct builder *b, const struct schema_tool *tools, u32 n, enum schema_calls calls, bool parallel,
                       const json_t *any_object)
{
    i32 root;
    if (calls == SCHEMA_CALL_FREE)
        root = add_free(b, "<tool_call>", n);
    else if ((root = grammar_node(b->g, GRAMMAR_CALLS, b->err)) >= 0 && schema_node_list(b, (u32)root, n))
        root = -1;
    if (root < 0)
        return -1;
    for (u32 i = 0; i < n; i++) {
        i32 tool = add_tool(b, &tools[i], any_object);
        if (tool < 0)
            return -1;
        b->g->nodes[root].list[i] = (u32)tool;
    }
    b->g->nodes[root].again = parallel;
    b->g->nodes[root].may_end = calls == SCHEMA_CALL_FREE;
    return root;
}

int schema_open_calls(struct grammar *g, const struct schema_tool *tools, u32 n_tools, enum schema_calls calls,
                      bool parallel, bool think, struct err *err)
{
    struct builder b;
    json_t *any_object = json_pack("{s:s}", "type", "object");
    int rc = builder_open(&b, g, err);
    if (!rc && !any_object)
        rc = err_set(err, "no memory for a schema");
    if (!rc && (n_tools == 0 || n_tools > SCHEMA_BRANCHES))
        rc = err_set(err, "%u tools; there can be 1 to %d", n_tools, SCHEMA_BRANCHES);
    if (!rc)
        rc = finish(&b, build_calls(&b, tools, n_tools, calls, parallel, any_object), think);
    json_decref(any_object);
    return close_with(&b, rc);
}

json_t *schema_parse(const char *text, size_t len, struct err *err)
{
    json_error_t e;
    if (len > SCHEMA_BYTES) {
        err_set(err, "a schema of %zu bytes; the most is %d", len, SCHEMA_BYTES);
        return NULL;
    }
    json_t *schema = json_loadb(text, len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &e);
    if (!schema)
        err_set(err, "the schema is not JSON: %s at byte %d", e.text, e.position);
    return schema;
}
