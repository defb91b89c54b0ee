/* Patterns: text -> tree -> nondeterministic parts -> deterministic states. Limits hold at each step, so that no
 * pattern costs more than a moment: its length, its nesting, the parts after {m,n} are written out, the states, and the
 * work of finding them. Lazy quantifiers and groups' names change nothing about what matches and are read over. */
#include "serve/pattern.h"

#include <stdlib.h>
#include <string.h>

enum { DEEP = 64, CP_MAX = 0x10FFFF };

struct range {
    u32 lo, hi;
};

struct ranges { /* grows; ascending and disjoint once ranges_sort has seen it */
    struct range *at;
    u32 n, cap;
};

enum tree_kind { TREE_SET, TREE_CAT, TREE_ALT, TREE_REPEAT, TREE_BEGIN, TREE_END };

struct tree { /* children are a list: first, next */
    enum tree_kind kind;
    i32 first, next;
    u32 set;       /* TREE_SET */
    u32 min, max;  /* TREE_REPEAT; UINT32_MAX: without end */
};

enum part_kind { PART_SPLIT, PART_SET, PART_BEGIN, PART_END, PART_MATCH };

struct part {
    enum part_kind kind;
    i32 out, other; /* -1: none */
    u32 set;
};

struct reader {
    const char *text;
    size_t len, at;
    struct tree *trees;
    u32 n_trees, cap_trees;
    struct ranges *sets;
    u32 n_sets, cap_sets;
    struct part *parts; /* PATTERN_PARTS */
    u32 n_parts;
    struct err *err;
};

/* ---- sets of code points ---- */

static int ranges_add(struct reader *r, struct ranges *s, u32 lo, u32 hi)
{
    if (s->n == s->cap) {
        u32 cap = s->cap ? s->cap * 2 : 8; /* at most a few for each byte of the pattern */
        struct range *at = realloc(s->at, cap * sizeof *at);
        if (!at)
            return err_set(r->err, "no memory for a pattern");
        s->at = at;
        s->cap = cap;
    }
    s->at[s->n++] = (struct range){lo, hi};
    return 0;
}

static int by_lo(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static void ranges_sort(struct ranges *s)
{
    u32 w = 0;
    if (s->n)
        qsort(s->at, s->n, sizeof *s->at, by_lo);
    for (u32 i = 0; i < s->n; i++) {
        if (w && s->at[i].lo <= s->at[w - 1].hi + 1) {
            if (s->at[i].hi > s->at[w - 1].hi)
                s->at[w - 1].hi = s->at[i].hi;
        } else {
            s->at[w++] = s->at[i];
        }
    }
    s->n = w;
}

/* Adds to out what from[0..n), ascending and disjoint, leaves out. */
static int ranges_add_rest(struct reader *r, struct ranges *out, const struct range *from, u32 n)
{
    u32 lo = 0;
    for (u32 i = 0; i < n; i++) {
        if (from[i].lo > lo && ranges_add(r, out, lo, from[i].lo - 1))
            return -1;
        lo = from[i].hi + 1;
    }
    return lo <= CP_MAX ? ranges_add(r, out, lo, CP_MAX) : 0;
}

static const struct range DIGIT[] = {{'0', '9'}};
static const struct range WORD[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const struct range SPACE[] = {{9, 13},         {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680},
                                     {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                     {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
static const struct range LINE[] = {{10, 10}, {13, 13}, {0x2028, 0x2029}};

/* \d \D \w \W \s \S: 1 when c was one of them. */
static int class_escape(struct reader *r, struct ranges *s, char c)
{
    const struct range *from;
    u32 n;
    switch (c | 0x20) {
    case 'd':
        from = DIGIT, n = COUNT(DIGIT);
        break;
    case 'w':
        from = WORD, n = COUNT(WORD);
        break;
    case 's':
        from = SPACE, n = COUNT(SPACE);
        break;
    default:
        return 0;
    }
    if (!(c & 0x20))
        return ranges_add_rest(r, s, from, n) ? -1 : 1;
    for (u32 i = 0; i < n; i++)
        if (ranges_add(r, s, from[i].lo, from[i].hi))
            return -1;
    return 1;
}

/* ---- reading ---- */

static int refuse(struct reader *r, const char *why)
{
    return err_set(r->err, "%s at byte %zu", why, r->at);
}

static i32 tree_new(struct reader *r, enum tree_kind kind)
{
    if (r->n_trees == r->cap_trees) {
        u32 cap = r->cap_trees ? r->cap_trees * 2 : 64; /* at most a few for each byte */
        struct tree *trees = realloc(r->trees, cap * sizeof *trees);
        if (!trees)
            return err_set(r->err, "no memory for a pattern");
        r->trees = trees;
        r->cap_trees = cap;
    }
    r->trees[r->n_trees] = (struct tree){.kind = kind, .first = -1, .next = -1};
    return (i32)r->n_trees++;
}

static i32 set_new(struct reader *r)
{
    i32 t = tree_new(r, TREE_SET);
    if (t < 0)
        return -1;
    if (r->n_sets == r->cap_sets) {
        u32 cap = r->cap_sets ? r->cap_sets * 2 : 32;
        struct ranges *sets = realloc(r->sets, cap * sizeof *sets);
        if (!sets)
            return err_set(r->err, "no memory for a pattern");
        r->sets = sets;
        r->cap_sets = cap;
    }
    r->sets[r->n_sets] = (struct ranges){0};
    r->trees[t].set = r->n_sets++;
    return t;
}

/* The pattern is UTF-8 that jansson has checked. */
static u32 take_cp(struct reader *r)
{
    u8 c = (u8)r->text[r->at++];
    if (c < 0xC0)
        return c;
    u32 more = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3, cp = c & (0x3F >> more);
    while (more-- && r->at < r->len)
        cp = cp << 6 | ((u8)r->text[r->at++] & 0x3F);
    return cp;
}

static int hex(struct reader *r, u32 digits, u32 *cp)
{
    u32 v = 0;
    for (u32 i = 0; i < digits; i++) {
        char c = r->at < r->len ? r->text[r->at] : 0, low = (char)(c | 0x20);
        if (!(c >= '0' && c <= '9') && !(low >= 'a' && low <= 'f'))
            return refuse(r, "an escape lacks hexadecimal digits");
        v = v * 16 + (u32)(c <= '9' ? c - '0' : low - 'a' + 10);
        r->at++;
    }
    *cp = v;
    return 0;
}

static int unicode_escape(struct reader *r, u32 *cp)
{
    if (r->at < r->len && r->text[r->at] == '{') {
        u32 v = 0, digit = 0;
        r->at++;
        do {
            if (hex(r, 1, &digit))
                return -1;
            v = v * 16 + digit;
            if (v > CP_MAX)
                return refuse(r, "\\u{...} is beyond U+10FFFF");
        } while (r->at < r->len && r->text[r->at] != '}');
        if (r->at == r->len)
            return refuse(r, "\\u{ is not closed");
        r->at++;
        *cp = v;
    } else {
        u32 low = 0;
        if (hex(r, 4, cp))
            return -1;
        if (*cp >= 0xD800 && *cp < 0xDC00 && r->at + 1 < r->len && r->text[r->at] == '\\' && r->text[r->at + 1] == 'u') {
            r->at += 2;
            if (hex(r, 4, &low))
                return -1;
            if (low < 0xDC00 || low > 0xDFFF)
                return refuse(r, "half of a surrogate pair");
            *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
        }
    }
    return *cp >= 0xD800 && *cp < 0xE000 ? refuse(r, "half of a surrogate pair") : 0;
}

/* After a backslash: 1 when a class went to s, 0 and *cp for one character, -1. */
static int escape(struct reader *r, struct ranges *s, bool in_class, u32 *cp)
{
    static const char FROM[] = "tnvfr", TO[] = "\t\n\v\f\r";
    if (r->at == r->len)
        return refuse(r, "a backslash at the end");
    char c = r->text[r->at];
    int class = class_escape(r, s, c);
    if (class) {
        r->at++;
        return class;
    }
    const char *known = c ? strchr(FROM, c) : NULL;
    if (known)
        *cp = (u8)TO[known - FROM];
    else if (c == 'b' && in_class)
        *cp = 8;
    else if (c == 'b' || c == 'B')
        return refuse(r, "word boundaries (\\b, \\B) are not supported");
    else if (c == 'p' || c == 'P')
        return refuse(r, "\\p{...} is not supported");
    else if (c == 'k' || (c >= '1' && c <= '9'))
        return refuse(r, "back references are not supported");
    else if (c == '0' && !(r->at + 1 < r->len && r->text[r->at + 1] >= '0' && r->text[r->at + 1] <= '9'))
        *cp = 0;
    else if (c == 'c' && r->at + 1 < r->len && (r->text[r->at + 1] | 0x20) >= 'a' && (r->text[r->at + 1] | 0x20) <= 'z')
        *cp = r->text[++r->at] & 31;
    else if (c == 'x' || c == 'u')
        return r->at++, c == 'x' ? hex(r, 2, cp) : unicode_escape(r, cp);
    else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')
        return refuse(r, "an unknown escape");
    else if (c >= '0' && c <= '9')
        return refuse(r, "octal escapes are not supported");
    else
        return *cp = take_cp(r), 0;
    r->at++;
    return 0;
}

/* One member of a [class]: 1 when it was a class of its own, 0 and *cp, -1. */
static int class_atom(struct reader *r, struct ranges *s, u32 *cp)
{
    if (r->text[r->at] == '\\')
        return r->at++, escape(r, s, true, cp);
    *cp = take_cp(r);
    return 0;
}

static int read_class_items(struct reader *r, struct ranges *s)
{
    while (r->at < r->len && r->text[r->at] != ']') {
        u32 lo, hi;
        int kind = class_atom(r, s, &lo);
        if (kind < 0)
            return -1;
        if (!kind && r->at + 1 < r->len && r->text[r->at] == '-' && r->text[r->at + 1] != ']') {
            r->at++;
            if ((kind = class_atom(r, s, &hi)))
                return kind < 0 ? -1 : refuse(r, "a range ends in a class");
            if (hi < lo)
                return refuse(r, "a range goes backwards");
        } else {
            hi = lo;
        }
        if (!kind && ranges_add(r, s, lo, hi))
            return -1;
    }
    if (r->at == r->len)
        return refuse(r, "[ is not closed");
    r->at++;
    return 0;
}

static i32 read_class(struct reader *r) /* after the [ */
{
    i32 t = set_new(r);
    bool negated = r->at < r->len && r->text[r->at] == '^';
    struct ranges s = {0}, rest = {0};
    r->at += negated;
    int rc = t < 0 || read_class_items(r, &s) ? -1 : 0;
    if (!rc) {
        ranges_sort(&s);
        rc = negated ? ranges_add_rest(r, &rest, s.at, s.n) : 0;
        r->sets[r->trees[t].set] = negated ? rest : s;
    }
    if (rc || negated)
        free(s.at);
    return rc ? -1 : t;
}

static i32 read_alternatives(struct reader *r, u32 deep);

static i32 read_group(struct reader *r, u32 deep) /* after the ( */
{
    if (r->at < r->len && r->text[r->at] == '?') {
        const char *rest = r->text + r->at;
        size_t left = r->len - r->at;
        if (left > 1 && rest[1] == ':') {
            r->at += 2;
        } else if (left > 2 && rest[1] == '<' && rest[2] != '=' && rest[2] != '!') {
            const char *end = memchr(rest, '>', left);
            if (!end)
                return refuse(r, "a group's name is not closed");
            r->at += (size_t)(end - rest) + 1;
        } else {
            return refuse(r, left > 1 && (rest[1] == '=' || rest[1] == '!' || rest[1] == '<')
                                 ? "look-around is not supported"
                                 : "this kind of group is not supported");
        }
    }
    if (deep == DEEP)
        return refuse(r, "groups are nested more than 64 deep");
    i32 t = read_alternatives(r, deep + 1);
    if (t < 0)
        return -1;
    if (r->at == r->len || r->text[r->at] != ')')
        return refuse(r, "( is not closed");
    r->at++;
    return t;
}

static i32 read_atom(struct reader *r, u32 deep)
{
    char c = r->text[r->at];
    u32 cp;
    i32 t;
    if (c == '(')
        return r->at++, read_group(r, deep);
    if (c == '[')
        return r->at++, read_class(r);
    if (c == '^' || c == '$')
        return r->at++, tree_new(r, c == '^' ? TREE_BEGIN : TREE_END);
    if (c == '*' || c == '+' || c == '?' || c == '{')
        return refuse(r, "nothing to repeat");
    if ((t = set_new(r)) < 0)
        return -1;
    struct ranges s = {0};
    int kind = 0;
    if (c == '.')
        r->at++, kind = ranges_add_rest(r, &s, LINE, COUNT(LINE)) ? -1 : 1;
    else if (c == '\\')
        r->at++, kind = escape(r, &s, false, &cp);
    else
        cp = take_cp(r);
    if (kind == 0)
        kind = ranges_add(r, &s, cp, cp);
    r->sets[r->trees[t].set] = s; /* freed with all sets, whatever happened */
    return kind < 0 ? -1 : t;
}

/* {m}, {m,} or {m,n}: 1; not one: 0; -1. */
static int read_braces(struct reader *r, u32 *min, u32 *max)
{
    size_t at = r->at + 1;
    u32 v[2] = {0, 0};
    int k = 0;
    bool digits[2] = {false, false};
    for (; at < r->len && r->text[at] != '}'; at++) {
        char c = r->text[at];
        if (c == ',' && k == 0) {
            k = 1;
        } else if (c >= '0' && c <= '9') {
            digits[k] = true;
            v[k] = min_u32(v[k] * 10 + (u32)(c - '0'), 100000000);
        } else {
            break;
        }
    }
    if (at == r->len || r->text[at] != '}' || !digits[0])
        return refuse(r, "{ without a number (a brace itself is \\{)");
    *min = v[0];
    *max = k == 0 ? v[0] : digits[1] ? v[1] : UINT32_MAX;
    if (*max < *min)
        return refuse(r, "{m,n} goes backwards");
    u32 most = *max == UINT32_MAX ? *min : *max;
    if (most > PATTERN_REPEAT)
        return err_set(r->err, "repeats %u times at byte %zu; the most is %d", most, r->at, PATTERN_REPEAT);
    r->at = at + 1;
    return 1;
}

static i32 read_term(struct reader *r, u32 deep)
{
    i32 t = read_atom(r, deep);
    if (t < 0 || r->at == r->len)
        return t;
    char c = r->text[r->at];
    u32 min = 0, max = UINT32_MAX;
    if (c == '{') {
        if (read_braces(r, &min, &max) < 0)
            return -1;
    } else if (c == '*' || c == '+' || c == '?') {
        r->at++;
        min = c == '+';
        max = c == '?' ? 1 : UINT32_MAX;
    } else {
        return t;
    }
    if (r->trees[t].kind == TREE_BEGIN || r->trees[t].kind == TREE_END)
        return refuse(r, "nothing to repeat");
    if (r->at < r->len && r->text[r->at] == '?')
        r->at++; /* lazy: matches the same strings */
    i32 rep = tree_new(r, TREE_REPEAT);
    if (rep < 0)
        return -1;
    r->trees[rep].first = t;
    r->trees[rep].min = min;
    r->trees[rep].max = max;
    return rep;
}

static i32 read_alternatives(struct reader *r, u32 deep)
{
    i32 alt = tree_new(r, TREE_ALT), last_cat = -1;
    if (alt < 0)
        return -1;
    for (;;) {
        i32 cat = tree_new(r, TREE_CAT), last = -1;
        if (cat < 0)
            return -1;
        if (last_cat < 0)
            r->trees[alt].first = cat;
        else
            r->trees[last_cat].next = cat;
        last_cat = cat;
        while (r->at < r->len && r->text[r->at] != '|' && r->text[r->at] != ')') {
            i32 t = read_term(r, deep);
            if (t < 0)
                return -1;
            if (last < 0)
                r->trees[cat].first = t;
            else
                r->trees[last].next = t;
            last = t;
        }
        if (r->at == r->len || r->text[r->at] == ')')
            return alt;
        r->at++;
    }
}

/* ---- parts: each tree becomes parts that lead to `to`, built from the end; -1 on failure ---- */

static i32 part_new(struct reader *r, enum part_kind kind, i32 out, i32 other, u32 set)
{
    if (r->n_parts == PATTERN_PARTS)
        return err_set(r->err, "more than %d parts once its {m,n} are written out", PATTERN_PARTS);
    r->parts[r->n_parts] = (struct part){kind, out, other, set};
    return (i32)r->n_parts++;
}

static i32 build(struct reader *r, i32 t, i32 to);

static i32 build_cat(struct reader *r, i32 first, i32 to)
{
    u32 n = 0, k = 0;
    for (i32 c = first; c >= 0; c = r->trees[c].next)
        n++;
    i32 *kids = mem_array((u64)n + 1, sizeof *kids);
    if (!kids)
        return err_set(r->err, "no memory for a pattern");
    for (i32 c = first; c >= 0; c = r->trees[c].next)
        kids[k++] = c;
    while (k && to >= 0)
        to = build(r, kids[--k], to);
    free(kids);
    return to;
}

static i32 build_repeat(struct reader *r, const struct tree t, i32 to)
{
    if (t.max == UINT32_MAX) {
        i32 loop = part_new(r, PART_SPLIT, -1, to, 0);
        if (loop < 0)
            return -1;
        i32 body = build(r, t.first, loop);
        if (body < 0)
            return -1;
        r->parts[loop].out = body;
        to = loop;
    } else {
        i32 end = to;
        for (u32 i = t.min; i < t.max && to >= 0; i++) {
            i32 body = build(r, t.first, to);
            to = body < 0 ? -1 : part_new(r, PART_SPLIT, body, end, 0);
        }
    }
    for (u32 i = 0; i < t.min && to >= 0; i++) {
        to = build(r, t.first, to);
        if (to >= 0) /* a part for each round, so that the limit ends rounds of nothing too */
            to = part_new(r, PART_SPLIT, to, -1, 0);
    }
    return to;
}

static i32 build(struct reader *r, i32 at, i32 to)
{
    const struct tree t = r->trees[at];
    i32 split = -1;
    switch (t.kind) {
    case TREE_SET:
        return part_new(r, PART_SET, to, -1, t.set);
    case TREE_BEGIN:
        return part_new(r, PART_BEGIN, to, -1, 0);
    case TREE_END:
        return part_new(r, PART_END, to, -1, 0);
    case TREE_CAT:
        return build_cat(r, t.first, to);
    case TREE_REPEAT:
        return build_repeat(r, t, to);
    case TREE_ALT:
        for (i32 c = t.first; c >= 0; c = r->trees[c].next) {
            i32 body = build(r, c, to);
            if (body < 0 || (split = part_new(r, PART_SPLIT, body, split, 0)) < 0)
                return -1;
        }
        return split;
    }
    return -1;
}

/* ---- states: sets of parts ---- */

struct finder {
    const struct reader *r;
    u32 words;      /* of a set */
    u64 *sets;      /* (PATTERN_STATES + 1, words); the last is where the next one is made */
    u32 *slots;     /* 2 * PATTERN_STATES, number + 1 */
    u32 n;
    u32 *cuts;      /* where code points begin to differ, ascending */
    u32 n_cuts;
    i32 *stack;
    u64 work;
    i32 match, any; /* the parts that end, and that take anything after a match */
};

/* Adds to set what p reaches without a character. Past an END part nothing more is read: only whether it ends counts. */
static void close_over(struct finder *f, u64 *set, i32 p, bool at_begin, bool at_end)
{
    u32 n = 0;
    f->stack[n++] = p;
    while (n) {
        i32 at = f->stack[--n];
        if (at < 0 || set[at >> 6] >> (at & 63) & 1)
            continue;
        const struct part *part = &f->r->parts[at];
        set[at >> 6] |= 1ull << (at & 63);
        f->work++;
        if (part->kind == PART_SPLIT || (part->kind == PART_BEGIN && at_begin) || (part->kind == PART_END && at_end)) {
            f->stack[n++] = part->other; /* the stack holds two for each part at most */
            f->stack[n++] = part->out;
        }
    }
}

static bool set_ends(struct finder *f, const u64 *set, bool at_begin, u64 *spare)
{
    if (set[f->match >> 6] >> (f->match & 63) & 1)
        return true;
    memset(spare, 0, f->words * sizeof *spare);
    for (u32 w = 0; w < f->words; w++)
        for (u64 bits = set[w]; bits; bits &= bits - 1) {
            i32 p = (i32)(w * 64 + (u32)__builtin_ctzll(bits));
            if (f->r->parts[p].kind == PART_END)
                close_over(f, spare, p, at_begin, true);
        }
    return spare[f->match >> 6] >> (f->match & 63) & 1;
}

/* The number of the set at sets[n]; a new one stays there. -1: too many. */
static i64 number_of(struct finder *f)
{
    u64 *set = f->sets + (size_t)f->n * f->words, h = 0;
    if (set[f->match >> 6] >> (f->match & 63) & 1) { /* matched: whatever follows, it stays so */
        memset(set, 0, f->words * sizeof *set);
        set[f->match >> 6] |= 1ull << (f->match & 63);
        set[f->any >> 6] |= 1ull << (f->any & 63);
    }
    for (u32 w = 0; w < f->words; w++)
        h = (h ^ set[w]) * 0x9E3779B97F4A7C15ull, h ^= h >> 29;
    u32 slot = (u32)h & (2 * PATTERN_STATES - 1);
    for (; f->slots[slot]; slot = (slot + 1) & (2 * PATTERN_STATES - 1))
        if (!memcmp(f->sets + (size_t)(f->slots[slot] - 1) * f->words, set, f->words * sizeof *set))
            return f->slots[slot] - 1;
    if (f->n == PATTERN_STATES)
        return -1;
    f->slots[slot] = ++f->n;
    return f->n - 1;
}

static bool set_has(const struct ranges *s, u32 cp)
{
    u32 lo = 0, hi = s->n;
    while (lo < hi) {
        u32 mid = lo + (hi - lo) / 2;
        if (s->at[mid].hi < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < s->n && s->at[lo].lo <= cp;
}

static int find_edges(struct finder *f, struct chars *out, u32 state, u32 *cap, struct err *err)
{
    u32 first = out->n_edges;
    for (u32 c = 0; c < f->n_cuts; c++) {
        u64 *next = f->sets + (size_t)f->n * f->words;
        const u64 *set = f->sets + (size_t)state * f->words;
        bool some = false;
        memset(next, 0, f->words * sizeof *next);
        for (u32 w = 0; w < f->words; w++)
            for (u64 bits = set[w]; bits; bits &= bits - 1) {
                u32 p = w * 64 + (u32)__builtin_ctzll(bits);
                const struct part *part = &f->r->parts[p];
                f->work++;
                if (part->kind == PART_SET && set_has(&f->r->sets[part->set], f->cuts[c]))
                    close_over(f, next, part->out, false, false), some = true;
            }
        f->work += f->words;
        if (f->work > PATTERN_WORK)
            return err_set(err, "takes too much work to compile");
        if (!some)
            continue;
        i64 to = number_of(f);
        if (to < 0)
            return err_set(err, "more than %d states", PATTERN_STATES);
        u32 hi = c + 1 < f->n_cuts ? f->cuts[c + 1] - 1 : CP_MAX;
        if (chars_push(out, cap, (struct chars_edge){f->cuts[c], hi, (u32)to}, out->n_edges == first, err))
            return -1;
    }
    out->states[state].first = first;
    out->states[state].n = out->n_edges - first;
    return 0;
}

static int by_value(const void *a, const void *b)
{
    u32 x = *(const u32 *)a, y = *(const u32 *)b;
    return x < y ? -1 : x > y;
}

static int find_cuts(struct finder *f, struct err *err)
{
    u64 n = 1;
    for (u32 s = 0; s < f->r->n_sets; s++)
        n += 2 * (u64)f->r->sets[s].n;
    if (!(f->cuts = mem_array(n, sizeof *f->cuts)))
        return err_set(err, "no memory for a pattern");
    n = 1;
    for (u32 s = 0; s < f->r->n_sets; s++)
        for (u32 i = 0; i < f->r->sets[s].n; i++) {
            f->cuts[n++] = f->r->sets[s].at[i].lo;
            if (f->r->sets[s].at[i].hi < CP_MAX)
                f->cuts[n++] = f->r->sets[s].at[i].hi + 1;
        }
    qsort(f->cuts, n, sizeof *f->cuts, by_value);
    for (u64 i = 0; i < n; i++)
        if (!f->n_cuts || f->cuts[i] != f->cuts[f->n_cuts - 1])
            f->cuts[f->n_cuts++] = f->cuts[i];
    return 0;
}

static int find_states(struct finder *f, struct chars *out, i32 begin, struct err *err)
{
    u32 cap = 0;
    u64 *spare = mem_array(f->words, sizeof *spare);
    f->sets = mem_array((u64)(PATTERN_STATES + 1) * f->words, sizeof *f->sets);
    f->slots = mem_array(2 * PATTERN_STATES, sizeof *f->slots);
    f->stack = mem_array(2 * (u64)f->r->n_parts + 2, sizeof *f->stack);
    out->states = mem_array(PATTERN_STATES, sizeof *out->states);
    int rc = spare && f->sets && f->slots && f->stack && out->states ? find_cuts(f, err)
                                                                     : err_set(err, "no memory for a pattern");
    if (!rc) {
        close_over(f, f->sets, begin, true, false);
        number_of(f);
        memset(f->slots, 0, 2 * PATTERN_STATES * sizeof *f->slots); /* ^ holds here only: no later set is this one */
    }
    for (u32 s = 0; !rc && s < f->n; s++) {
        out->states[s].ends = set_ends(f, f->sets + (size_t)s * f->words, s == 0, spare);
        rc = find_edges(f, out, s, &cap, err);
    }
    out->n = f->n;
    free(spare);
    free(f->sets);
    free(f->slots);
    free(f->stack);
    free(f->cuts);
    return rc;
}

/* any* pattern any*: the pattern may match anywhere. */
static int parts_of(struct reader *r, struct finder *f, i32 *begin)
{
    i32 any = set_new(r);
    if (any < 0 || ranges_add(r, &r->sets[r->trees[any].set], 0, CP_MAX))
        return -1;
    u32 set = r->trees[any].set;
    i32 root = read_alternatives(r, 0);
    if (root < 0)
        return -1;
    if (r->at < r->len)
        return refuse(r, ") without (");
    for (u32 s = 0; s < r->n_sets; s++)
        ranges_sort(&r->sets[s]);
    if ((f->match = part_new(r, PART_MATCH, -1, -1, 0)) < 0 || (f->any = part_new(r, PART_SET, f->match, -1, set)) < 0)
        return -1;
    i32 end = part_new(r, PART_SPLIT, f->match, -1, 0);
    i32 body = build(r, root, end);
    i32 loop = body < 0 ? -1 : part_new(r, PART_SET, -1, -1, set);
    *begin = loop < 0 ? -1 : part_new(r, PART_SPLIT, body, loop, 0);
    if (*begin < 0)
        return -1;
    r->parts[loop].out = *begin;
    return 0;
}

int pattern_open(struct chars *out, const char *text, size_t len, u64 *work, struct err *err)
{
    *out = (struct chars){0};
    if (len > PATTERN_BYTES)
        return err_set(err, "%zu bytes long; the most is %d", len, PATTERN_BYTES);
    struct reader r = {.text = text, .len = len, .err = err};
    struct finder f = {.r = &r, .work = *work};
    i32 begin = -1;
    int rc = -1;
    if (!(r.parts = mem_array(PATTERN_PARTS, sizeof *r.parts)))
        err_set(err, "no memory for a pattern");
    else
        rc = parts_of(&r, &f, &begin);
    if (!rc) {
        f.words = (r.n_parts + 63) / 64;
        rc = find_states(&f, out, begin, err);
        *work = f.work;
    }
    for (u32 s = 0; s < r.n_sets; s++)
        free(r.sets[s].at);
    free(r.sets);
    free(r.trees);
    free(r.parts);
    if (!rc)
        rc = chars_trim(out, err);
    if (rc)
        chars_free(out);
    return rc;
}
