/* What a conjunction allows of each type: its keywords are gathered over all sources (the tighter bound, the common
 * types, all required names), then each type becomes a node. Keywords that cannot be gathered (two patterns, items of
 * two schemas) are refused. */
#include "serve/schema_parts.h"

#include <stdlib.h>
#include <string.h>

enum { NULLS = 1, BOOLEANS = 2, INTEGERS = 4, NUMBERS = 8, STRINGS = 16, ARRAYS = 32, OBJECTS = 64, ALL = 127 };
enum { NUMBER_WORK = 200 /* a bounded number's states, in properties' worth of time */ };

struct given { /* a keyword's value and its source; json NULL: not given */
    const json_t *json;
    u32 place;
};

struct facts {
    u32 types;
    u32 min_length, max_length, min_items, max_items;
    struct given pattern, items, prefix, properties, additional;
    struct digits_bounds bounds;
    struct given values; /* enum or const of the first source that has one */
    bool values_const;
    bool about_containers; /* keywords about arrays or objects */
};

/* ---- gathering ---- */

static u32 type_named(const char *name)
{
    static const char *const NAMES[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
    for (u32 i = 0; name && i < COUNT(NAMES); i++)
        if (!strcmp(NAMES[i], name))
            return 1u << i;
    return 0;
}

static int gather_types(struct builder *b, struct facts *f, const struct source *s)
{
    const json_t *type = json_object_get(s->json, "type");
    u32 types = 0;
    if (!type)
        return 0;
    size_t n = json_is_array(type) ? json_array_size(type) : 1;
    for (size_t i = 0; i < n; i++) {
        u32 one = type_named(json_string_value(json_is_array(type) ? json_array_get(type, i) : type));
        if (!one)
            return schema_refuse(b, s->place, "type",
                                 "must be null, boolean, integer, number, string, array, object or a list of those");
        types |= one;
    }
    if (types & NUMBERS)
        types |= INTEGERS;
    f->types &= types;
    return 0;
}

static int gather_count(struct builder *b, const struct source *s, const char *key, u32 *bound, bool upper)
{
    const json_t *v = json_object_get(s->json, key);
    double x = json_number_value(v);
    if (!v)
        return 0;
    if (!json_is_number(v) || x < 0 || x != (double)(u64)x || x > 1e15)
        return schema_refuse(b, s->place, key, "must be an integer that is not negative");
    u32 n = x >= GRAMMAR_ENDLESS ? GRAMMAR_ENDLESS - !upper : (u32)x;
    if (upper ? n < *bound : n > *bound)
        *bound = n;
    return 0;
}

static int order_of(const json_t *a, const json_t *b)
{
    if (json_is_integer(a) && json_is_integer(b)) {
        json_int_t x = json_integer_value(a), y = json_integer_value(b);
        return x < y ? -1 : x > y;
    }
    double x = json_number_value(a), y = json_number_value(b);
    return x < y ? -1 : x > y;
}

static int gather_bound(struct builder *b, const struct source *s, const char *key, const json_t **bound, bool upper)
{
    const json_t *v = json_object_get(s->json, key);
    if (v && !json_is_number(v))
        return schema_refuse(b, s->place, key, "must be a number");
    if (v && (!*bound || (upper ? order_of(v, *bound) < 0 : order_of(v, *bound) > 0)))
        *bound = v;
    return 0;
}

/* A keyword that one source may give, or several alike. */
static int gather_one(struct builder *b, const struct source *s, const char *key, struct given *to)
{
    const json_t *v = json_object_get(s->json, key);
    if (!v || (to->json && json_equal(to->json, v)))
        return 0;
    if (to->json)
        return schema_refuse(b, s->place, key, "meets another one here by $ref or anyOf; one only is supported");
    *to = (struct given){v, s->place};
    return 0;
}

static int gather_values(struct builder *b, struct facts *f, const struct source *s)
{
    const json_t *list = json_object_get(s->json, "enum"), *one = json_object_get(s->json, "const");
    if (list && (!json_is_array(list) || !json_array_size(list)))
        return schema_refuse(b, s->place, "enum", "must be a list of at least one value");
    if (!f->values.json && (one || list)) {
        f->values = (struct given){one ? one : list, s->place};
        f->values_const = one;
    }
    return 0;
}

static int gather_shape(struct builder *b, struct facts *f, const struct source *s)
{
    if (gather_one(b, s, "items", &f->items) || gather_one(b, s, "prefixItems", &f->prefix) ||
        gather_one(b, s, "properties", &f->properties) || gather_one(b, s, "additionalProperties", &f->additional))
        return -1;
    if (f->items.json && f->prefix.json && f->items.place != f->prefix.place)
        return schema_refuse(b, s->place, "items", "meets prefixItems of another schema by $ref or anyOf");
    if (f->properties.json && f->additional.json && f->properties.place != f->additional.place)
        return schema_refuse(b, s->place, "additionalProperties",
                             "meets properties of another schema by $ref or anyOf");
    if (json_is_array(f->items.json))
        return schema_refuse(b, f->items.place, "items", "must be one schema; a list is named prefixItems");
    if (f->prefix.json && (!json_is_array(f->prefix.json) || !json_array_size(f->prefix.json)))
        return schema_refuse(b, f->prefix.place, "prefixItems", "must be a list of at least one schema");
    if (f->properties.json && !json_is_object(f->properties.json))
        return schema_refuse(b, f->properties.place, "properties", "must be an object");
    const json_t *required = json_object_get(s->json, "required");
    for (size_t i = 0; i < json_array_size(required); i++)
        if (!json_is_string(json_array_get(required, i)))
            return schema_refuse(b, s->place, "required", "must be a list of strings");
    if (required && !json_is_array(required))
        return schema_refuse(b, s->place, "required", "must be a list of strings");
    f->about_containers |= f->items.json || f->prefix.json || f->properties.json || f->additional.json || required;
    return 0;
}

static int gather(struct builder *b, struct facts *f, const struct source *s)
{
    if (gather_types(b, f, s) || gather_values(b, f, s) || gather_shape(b, f, s) ||
        gather_count(b, s, "minLength", &f->min_length, false) ||
        gather_count(b, s, "maxLength", &f->max_length, true) || gather_count(b, s, "minItems", &f->min_items, false) ||
        gather_count(b, s, "maxItems", &f->max_items, true) || gather_one(b, s, "pattern", &f->pattern) ||
        gather_bound(b, s, "minimum", &f->bounds.min, false) || gather_bound(b, s, "maximum", &f->bounds.max, true) ||
        gather_bound(b, s, "exclusiveMinimum", &f->bounds.above, false) ||
        gather_bound(b, s, "exclusiveMaximum", &f->bounds.below, true))
        return -1;
    if (f->pattern.json && !json_is_string(f->pattern.json))
        return schema_refuse(b, f->pattern.place, "pattern", "must be a string");
    return 0;
}

/* ---- strings ---- */

static int make_pattern(struct builder *b, const struct facts *f, struct chars *out)
{
    struct err why;
    if (pattern_open(out, json_string_value(f->pattern.json), json_string_length(f->pattern.json), &b->pattern_work, &why))
        return schema_refuse(b, f->pattern.place, "pattern", why.text);
    return 0;
}

static int build_string(struct builder *b, const struct facts *f, u32 node)
{
    struct grammar_node *n = &b->g->nodes[node];
    struct err why;
    n->min = f->min_length;
    n->max = f->max_length;
    if (!f->pattern.json)
        return 0;
    if (make_pattern(b, f, &n->chars))
        return -1;
    if (n->chars.n && n->min <= n->max && chars_limit(&n->chars, n->min, n->max, SCHEMA_STATES, &why))
        return schema_refuse(b, f->pattern.place, "pattern", why.text);
    b->n_states += n->chars.n;
    b->n_edges += n->chars.n_edges;
    if (b->n_states > SCHEMA_STATES || b->n_edges > CHARS_EDGES)
        return schema_refuse(b, f->pattern.place, "pattern", "all patterns together take more than 20000 states");
    if (!n->chars.n)
        n->min = 1, n->max = 0; /* no string */
    chars_mark_safe(&n->chars);
    return 0;
}

/* ---- enum and const ---- */

static u32 take_cp(const u8 **at) /* of UTF-8 that jansson has checked */
{
    u8 c = *(*at)++;
    u32 more = c < 0xC0 ? 0 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3, cp = more ? c & (0x3Fu >> more) : c;
    while (more--)
        cp = cp << 6 | (*(*at)++ & 0x3F);
    return cp;
}

static bool string_fits(const struct facts *f, const struct chars *pattern, const json_t *v)
{
    const u8 *at = (const u8 *)json_string_value(v), *end = at + json_string_length(v);
    u32 n = 0;
    i64 state = f->pattern.json && !pattern->n ? -1 : 0;
    for (; at < end; n++) {
        u32 cp = take_cp(&at);
        if (f->pattern.json && state >= 0)
            state = chars_next(pattern, (u32)state, cp);
    }
    return n >= f->min_length && (f->max_length == GRAMMAR_ENDLESS || n <= f->max_length) &&
           (!f->pattern.json || (state >= 0 && pattern->states[state].ends));
}

static bool number_fits(const struct facts *f, const json_t *v)
{
    const struct digits_bounds *k = &f->bounds;
    double x = json_number_value(v);
    bool whole = json_is_integer(v) || (x < 1e300 && x > -1e300 && x == __builtin_floor(x)) || x >= 1e300 || x <= -1e300;
    return (f->types & NUMBERS || (whole && f->types & INTEGERS)) && !(k->min && order_of(v, k->min) < 0) &&
           !(k->max && order_of(v, k->max) > 0) && !(k->above && order_of(v, k->above) <= 0) &&
           !(k->below && order_of(v, k->below) >= 0);
}

static bool value_fits(const struct facts *f, const struct chars *pattern, const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_NULL:
        return f->types & NULLS;
    case JSON_TRUE:
    case JSON_FALSE:
        return f->types & BOOLEANS;
    case JSON_INTEGER:
    case JSON_REAL:
        return number_fits(f, v);
    case JSON_STRING:
        return f->types & STRINGS && string_fits(f, pattern, v);
    case JSON_ARRAY:
        return f->types & ARRAYS && json_array_size(v) >= f->min_items &&
               (f->max_items == GRAMMAR_ENDLESS || json_array_size(v) <= f->max_items);
    default:
        return f->types & OBJECTS;
    }
}

static bool same_value(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? order_of(a, b) == 0 : json_equal(a, b);
}

/* Whether all enums and consts of the sources have it. */
static bool in_all(struct builder *b, const struct conjunction *c, const json_t *v)
{
    for (u32 i = 0; i < c->n; i++) {
        const json_t *list = json_object_get(c->of[i].json, "enum"), *one = json_object_get(c->of[i].json, "const");
        bool found = !list;
        for (size_t k = 0; k < json_array_size(list) && !found; k++, b->work++)
            found = json_array_get(list, k) == v || same_value(json_array_get(list, k), v);
        if (!found || (one && !same_value(one, v)))
            return false;
    }
    return true;
}

static int add_value(struct builder *b, const struct facts *f, const json_t *v, struct words *w)
{
    struct spelling s = {0};
    struct err why;
    const char *keyword = f->values_const ? "const" : "enum";
    if ((json_is_object(v) || json_is_array(v)) && f->about_containers)
        return schema_refuse(b, f->values.place, keyword, "has arrays or objects beside keywords about those");
    if (spelling_value(&s, v, &why)) {
        spelling_free(&s);
        return schema_refuse(b, f->values.place, keyword, why.text);
    }
    w->at[w->n].len = (u32)s.n;
    w->at[w->n].at = grammar_text(b->g, s.at, s.n, b->err);
    spelling_free(&s);
    return w->at[w->n++].at ? 0 : -1;
}

static int too_much(struct builder *b, u32 place, const char *keyword)
{
    return schema_refuse(b, place, keyword, "the schema is too large: properties and enum values together");
}

/* The node becomes the values that everything else allows. */
static int build_values(struct builder *b, const struct facts *f, const struct conjunction *c, u32 node)
{
    size_t n = f->values_const ? 1 : json_array_size(f->values.json);
    struct words w = {0, grammar_memory(b->g, n, sizeof *w.at, b->err)};
    struct chars pattern = {0};
    int rc = !w.at || (f->pattern.json && make_pattern(b, f, &pattern)) ? -1 : 0;
    u32 lists = 0;
    for (u32 i = 0; i < c->n; i++)
        lists += !!json_object_get(c->of[i].json, "enum") + !!json_object_get(c->of[i].json, "const");
    for (size_t i = 0; i < n && !rc; i++) {
        const json_t *v = f->values_const ? f->values.json : json_array_get(f->values.json, i);
        if (++b->work > SCHEMA_WORK)
            rc = too_much(b, f->values.place, f->values_const ? "const" : "enum");
        else if ((lists == 1 || in_all(b, c, v)) && value_fits(f, &pattern, v))
            rc = add_value(b, f, v, &w);
    }
    chars_free(&pattern);
    if (rc)
        return -1;
    words_sort(&w, NULL);
    b->g->nodes[node].kind = GRAMMAR_WORDS;
    b->g->nodes[node].words = w;
    return 0;
}

static int build_literals(struct builder *b, u32 node, u32 types)
{
    static const struct word SPELLED[] = {{"false", 5}, {"null", 4}, {"true", 4}};
    struct words w = {0, grammar_memory(b->g, 3, sizeof *w.at, b->err)};
    if (!w.at)
        return -1;
    for (u32 i = 0; i < 3; i++)
        if (types & (i == 1 ? NULLS : BOOLEANS))
            w.at[w.n++] = SPELLED[i];
    b->g->nodes[node].words = w;
    return 0;
}

/* ---- arrays and objects ---- */

static int build_array(struct builder *b, const struct facts *f, u32 node)
{
    size_t n = json_array_size(f->prefix.json);
    b->work += n;
    if (n > GRAMMAR_NODES || b->work > SCHEMA_WORK)
        return too_much(b, f->prefix.place, "prefixItems");
    if (schema_node_list(b, node, (u32)n))
        return -1;
    u32 place = n ? schema_place(b, f->prefix.place, "prefixItems", 0) : 0;
    for (size_t i = 0; i < n; i++) {
        i32 item = schema_node_of(b, json_array_get(f->prefix.json, i), schema_place(b, place, NULL, i));
        if (item < 0)
            return -1;
        b->g->nodes[node].list[i] = (u32)item;
    }
    i32 rest = schema_node_of(b, f->items.json, f->items.json ? schema_place(b, f->items.place, "items", 0) : 0);
    b->g->nodes[node].rest = rest;
    b->g->nodes[node].min = f->min_items;
    b->g->nodes[node].max = f->max_items;
    return rest < 0 ? -1 : 0;
}

struct property_list { /* in order: the schema's, then names that are only required */
    u32 n, cap;
    struct property {
        const char *name;
        i32 node;
        bool required;
    } *at;
    json_t *index; /* name -> position */
};

static int add_property(struct builder *b, struct property_list *l, const char *name, i32 node)
{
    if (l->n == l->cap) {
        u32 cap = l->cap ? l->cap * 2 : 16;
        struct property *at = realloc(l->at, cap * sizeof *at);
        if (!at)
            return err_set(b->err, "no memory for a schema");
        l->at = at;
        l->cap = cap;
    }
    if (json_object_set_new(l->index, name, json_integer(l->n)))
        return err_set(b->err, "no memory for a schema");
    l->at[l->n++] = (struct property){name, node, false};
    return node < 0 ? -1 : 0;
}

static int list_properties(struct builder *b, const struct facts *f, const struct conjunction *c, i32 rest,
                           struct property_list *l)
{
    json_t *map = (json_t *)f->properties.json;
    u32 place = map ? schema_place(b, f->properties.place, "properties", 0) : 0;
    for (void *at = json_object_iter(map); at; at = json_object_iter_next(map, at)) {
        const char *name = json_object_iter_key(at);
        if (++b->work > SCHEMA_WORK)
            return too_much(b, f->properties.place, "properties");
        if (add_property(b, l, name, schema_node_of(b, json_object_iter_value(at), schema_place(b, place, name, 0))))
            return -1;
    }
    for (u32 i = 0; i < c->n; i++) {
        const json_t *required = json_object_get(c->of[i].json, "required");
        for (size_t k = 0; k < json_array_size(required); k++) {
            const char *name = json_string_value(json_array_get(required, k));
            if (++b->work > SCHEMA_WORK)
                return too_much(b, c->of[i].place, "required");
            if (!json_object_get(l->index, name) && add_property(b, l, name, rest))
                return -1;
            l->at[json_integer_value(json_object_get(l->index, name))].required = true;
        }
    }
    return 0;
}

static int fill_object(struct builder *b, u32 node, const struct property_list *l)
{
    struct grammar *g = b->g;
    struct words w = {l->n, grammar_memory(g, l->n, sizeof *w.at, b->err)};
    u32 *order = grammar_memory(g, l->n, sizeof *order, b->err);
    u32 *next = grammar_memory(g, l->n + 1ull, sizeof *next, b->err);
    if (!w.at || !order || !next || schema_node_list(b, node, l->n))
        return -1;
    next[l->n] = l->n;
    for (u32 i = l->n; i-- > 0;)
        next[i] = l->at[i].required ? i : next[i + 1];
    for (u32 i = 0; i < l->n; i++) {
        struct spelling s = {0};
        g->nodes[node].list[i] = (u32)l->at[i].node;
        order[i] = i;
        if (!spelling_string(&s, l->at[i].name, strlen(l->at[i].name), b->err)) {
            w.at[i].len = (u32)s.n;
            w.at[i].at = grammar_text(g, s.at ? s.at : "", s.n, b->err);
        }
        spelling_free(&s);
        if (!w.at[i].at)
            return -1;
    }
    words_sort(&w, order);
    g->nodes[node].words = w;
    g->nodes[node].order = order;
    g->nodes[node].next_required = next;
    return 0;
}

static int build_object(struct builder *b, const struct facts *f, const struct conjunction *c, u32 node)
{
    struct property_list l = {.index = json_object()};
    const json_t *more = f->additional.json;
    i32 rest = schema_node_of(b, more, more ? schema_place(b, f->additional.place, "additionalProperties", 0) : 0);
    int rc = l.index ? 0 : err_set(b->err, "no memory for a schema");
    if (rest < 0)
        rc = -1;
    if (!rc)
        rc = list_properties(b, f, c, rest, &l);
    if (!rc)
        rc = fill_object(b, node, &l);
    b->g->nodes[node].rest = rest;
    json_decref(l.index);
    free(l.at);
    return rc;
}

/* ---- one node for each type ---- */

/* Numbers without bounds are one node for the whole schema. */
static int add_number(struct builder *b, const struct facts *f, bool *integers, u32 *kinds, u32 *n)
{
    const struct digits_bounds *k = &f->bounds;
    bool plain = !k->min && !k->max && !k->above && !k->below, whole = *integers;
    if (plain && b->plain_numbers[whole]) {
        kinds[(*n)++] = b->plain_numbers[whole] - 1;
        *integers = false;
        return 0;
    }
    i32 node = grammar_node(b->g, GRAMMAR_NUMBER, b->err);
    b->work += NUMBER_WORK;
    if (b->work > SCHEMA_WORK)
        return too_much(b, 0, "minimum");
    if (node < 0 || (whole ? digits_integers(&b->g->nodes[node].digits, k, b->err)
                           : digits_numbers(&b->g->nodes[node].digits, k, integers, b->err)))
        return -1;
    if (plain)
        b->plain_numbers[whole] = (u32)node + 1;
    kinds[(*n)++] = (u32)node;
    return 0;
}

static int build_numbers(struct builder *b, const struct facts *f, u32 *kinds, u32 *n)
{
    bool integers = !(f->types & NUMBERS);
    if (add_number(b, f, &integers, kinds, n))
        return -1;
    return integers && f->types & NUMBERS ? add_number(b, f, &integers, kinds, n) : 0;
}

static int build_kinds(struct builder *b, const struct facts *f, const struct conjunction *c, u32 *kinds, u32 *n)
{
    static const struct {
        u32 types;
        enum grammar_kind kind;
    } KINDS[] = {{NULLS | BOOLEANS, GRAMMAR_WORDS}, {STRINGS, GRAMMAR_STRING}, {ARRAYS, GRAMMAR_ARRAY},
                 {OBJECTS, GRAMMAR_OBJECT}};
    if (f->types & (INTEGERS | NUMBERS) && build_numbers(b, f, kinds, n))
        return -1;
    for (u32 k = 0; k < COUNT(KINDS); k++) {
        if (!(f->types & KINDS[k].types))
            continue;
        i32 node = grammar_node(b->g, KINDS[k].kind, b->err);
        if (node < 0)
            return -1;
        kinds[(*n)++] = (u32)node;
        int rc = KINDS[k].kind == GRAMMAR_WORDS    ? build_literals(b, (u32)node, f->types)
                 : KINDS[k].kind == GRAMMAR_STRING ? build_string(b, f, (u32)node)
                 : KINDS[k].kind == GRAMMAR_ARRAY  ? build_array(b, f, (u32)node)
                                                   : build_object(b, f, c, (u32)node);
        if (rc)
            return -1;
    }
    return 0;
}

int schema_build_leaves(struct builder *b, u32 node, const struct conjunction *c)
{
    struct facts f = {.types = ALL, .max_length = GRAMMAR_ENDLESS, .max_items = GRAMMAR_ENDLESS};
    u32 kinds[8], n = 0;
    for (u32 i = 0; i < c->n; i++)
        if (gather(b, &f, &c->of[i]))
            return -1;
    if (f.values.json) {
        i32 values = grammar_node(b->g, GRAMMAR_WORDS, b->err);
        if (values < 0 || build_values(b, &f, c, (u32)values))
            return -1;
        kinds[n++] = (u32)values;
    } else if (build_kinds(b, &f, c, kinds, &n)) {
        return -1;
    }
    if (schema_node_list(b, node, n))
        return -1;
    if (n)
        memcpy(b->g->nodes[node].list, kinds, n * sizeof *kinds);
    return 0;
}
