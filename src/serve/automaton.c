/* One byte for one thread: a function for each place a thread can be in. */
#include "serve/automaton.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct automaton_thread) == 40, "no padding");
_Static_assert(sizeof(struct automaton_cell) == 20, "no padding");

static void feed_one(struct automaton *a, const struct automaton_thread *t, u8 c);

/* ---- room ---- */

enum { ROOM_THREADS = 2048, ROOM_CELLS = 4096 };

int automaton_open(struct automaton *a, const struct grammar *g, struct err *err)
{
    *a = (struct automaton){.g = g, .cap_threads = ROOM_THREADS, .cap_cells = ROOM_CELLS};
    a->threads = mem_array(ROOM_THREADS, sizeof *a->threads);
    a->cells = mem_array(ROOM_CELLS, sizeof *a->cells);
    if (a->threads && a->cells)
        return 0;
    automaton_close(a);
    return err_set(err, "no memory for a grammar's states");
}

void automaton_close(struct automaton *a)
{
    free(a->threads);
    free(a->cells);
    a->threads = NULL;
    a->cells = NULL;
}

/* A thread more, unless the level has it or is full. */
static void push(struct automaton *a, struct automaton_thread t)
{
    for (u32 i = a->from; i < a->n_threads; i++)
        if (!memcmp(&a->threads[i], &t, sizeof t))
            return;
    if (a->n_threads < a->cap_threads && a->n_threads - a->from < AUTOMATON_THREADS)
        a->threads[a->n_threads++] = t;
}

/* A cell more; -1 when there is no room, and the thread that wanted it is given up. */
static i32 cell_new(struct automaton *a, struct automaton_cell c)
{
    if (a->n_cells == a->cap_cells)
        return -1;
    a->cells[a->n_cells] = c;
    return (i32)a->n_cells++;
}

static i32 cell_open(struct automaton *a, u32 node, u32 pos, i32 up)
{
    u16 depth = up < 0 ? 0 : a->cells[up].depth, n_names = up < 0 ? 0 : a->cells[up].n_names;
    return cell_new(a, (struct automaton_cell){node, pos, -1, up, (u16)(depth + 1), n_names});
}

/* The same container further on. */
static i32 cell_at(struct automaton *a, i32 cell, u32 pos)
{
    struct automaton_cell c = a->cells[cell];
    if (c.pos == pos)
        return cell;
    c.pos = pos;
    return cell_new(a, c);
}

static bool fits(const struct automaton *a, i32 node, i32 cell)
{
    if (node < 0)
        return false;
    u32 h = a->g->nodes[node].height;
    return h != GRAMMAR_ENDLESS && h + (cell < 0 ? 0 : a->cells[cell].depth) <= GRAMMAR_DEPTH;
}

/* ---- values begin and end ---- */

static void enter_calls(struct automaton *a, u32 owner, i32 cell, u32 offset)
{
    const struct grammar_node *n = &a->g->nodes[owner];
    for (u32 i = 0; i < n->n; i++)
        if (fits(a, (i32)n->list[i], cell))
            push(a, (struct automaton_thread){.at = AT_TEXT, .node = n->list[i], .cell = cell, .a = offset, .b = owner});
}

static void enter(struct automaton *a, u32 node, i32 cell, bool space)
{
    switch (a->g->nodes[node].kind) {
    case GRAMMAR_FREE:
        push(a, (struct automaton_thread){.at = AT_FREE, .node = node, .cell = cell});
        break;
    case GRAMMAR_CALLS:
        enter_calls(a, node, cell, 0);
        break;
    default:
        push(a, (struct automaton_thread){.at = AT_VALUE, .node = node, .cell = cell, .space = space});
    }
}

/* The thread after a value in the container at cell; false when room ran out. */
static bool after_value(struct automaton *a, i32 cell, struct automaton_thread *t)
{
    *t = (struct automaton_thread){.at = AT_DONE, .cell = -1};
    if (cell < 0)
        return true;
    const struct grammar_node *n = &a->g->nodes[a->cells[cell].node];
    t->node = a->cells[cell].node;
    t->cell = cell;
    if (n->kind == GRAMMAR_ARRAY) {
        u32 pos = a->cells[cell].pos + 1, counts = n->min > n->n ? n->min : n->n;
        t->at = AT_ARRAY_NEXT;
        t->cell = cell_at(a, cell, n->max == GRAMMAR_ENDLESS ? min_u32(pos, counts) : pos);
        return t->cell >= 0;
    }
    t->at = AT_OBJECT_NEXT;
    if (n->kind == GRAMMAR_OBJECT)
        return true;
    if (n->n_lead < n->n_text) {
        *t = (struct automaton_thread){.at = AT_TEXT, .node = t->node, .a = n->n_lead, .b = a->cells[cell].pos,
                                       .cell = a->cells[cell].up};
        return true;
    }
    return after_value(a, a->cells[cell].up, t); /* a call without an end; as deep as calls are nested: two */
}

static void leave(struct automaton *a, i32 cell)
{
    struct automaton_thread t;
    if (after_value(a, cell, &t))
        push(a, t);
}

/* A value that only what follows ends: c is that. */
static void leave_with(struct automaton *a, i32 cell, u8 c)
{
    struct automaton_thread t;
    if (after_value(a, cell, &t))
        feed_one(a, &t, c);
}

/* ---- spellings and numbers ---- */

static void feed_word(struct automaton *a, const struct automaton_thread *t, u8 c)
{
    const struct words *w = &a->g->nodes[t->node].words;
    struct automaton_thread to = *t;
    words_narrow(w, &to.a, &to.b, t->c, c);
    if (to.a < to.b) {
        to.c++;
        if (to.a + 1 == to.b && w->at[to.a].len == to.c)
            leave(a, t->cell);
        else
            push(a, to);
    }
    if (t->c && t->a < t->b && w->at[t->a].len == t->c)
        leave_with(a, t->cell, c);
}

static void feed_number(struct automaton *a, const struct automaton_thread *t, u8 c)
{
    const struct digits_state *s = &a->g->nodes[t->node].digits.states[t->a];
    int symbol = digits_symbol(c);
    if (symbol >= 0 && s->next[symbol]) {
        struct automaton_thread to = *t;
        to.a = s->next[symbol] - 1u;
        push(a, to);
    } else if (s->ends) {
        leave_with(a, t->cell, c);
    }
}

/* ---- strings ---- */

enum { LEX_REST, LEX_MORE1, LEX_MORE2, LEX_MORE3, LEX_ESCAPE, LEX_U, LEX_U0, LEX_U00, LEX_U00X };
enum { LEX_BAD, LEX_MORE, LEX_CHAR, LEX_CLOSE };

static int lex_begin(u8 *lex, u32 *part, u8 c)
{
    if (c == '"')
        return LEX_CLOSE;
    if (c < 0x20 || (c >= 0x80 && c < 0xC2) || c > 0xF4)
        return LEX_BAD;
    *part = c;
    if (c == '\\') {
        *part = 0;
        *lex = LEX_ESCAPE;
        return LEX_MORE;
    }
    if (c < 0x80)
        return LEX_CHAR;
    *lex = c < 0xE0 ? LEX_MORE1 : c < 0xF0 ? LEX_MORE2 : LEX_MORE3;
    *part = c & (0x3Fu >> *lex);
    return LEX_MORE;
}

/* A following byte of a character: the second after E0, ED, F0 and F4 has less room (Unicode, table 3-7). */
static int lex_follow(u8 *lex, u32 *part, u8 c)
{
    if (c < 0x80 || c > 0xBF || (*lex == LEX_MORE2 && ((*part == 0 && c < 0xA0) || (*part == 0xD && c > 0x9F))) ||
        (*lex == LEX_MORE3 && ((*part == 0 && c < 0x90) || (*part == 4 && c > 0x8F))))
        return LEX_BAD;
    *part = *part << 6 | (c & 0x3F);
    return --*lex == LEX_REST ? LEX_CHAR : LEX_MORE;
}

static int lex_escape(u8 *lex, u32 *part, u8 c)
{
    static const char SHORT[] = "\"\\bfnrt", FOR[] = "\"\\\b\f\n\r\t";
    if (c == 'u') {
        *lex = LEX_U;
        return LEX_MORE;
    }
    const char *at = c ? strchr(SHORT, c) : NULL;
    if (!at)
        return LEX_BAD;
    *part = (u8)FOR[at - SHORT];
    *lex = LEX_REST;
    return LEX_CHAR;
}

static bool has_short_escape(u32 cp)
{
    return (cp >= 8 && cp <= 10) || cp == 12 || cp == 13;
}

static int lex_hex(u8 *lex, u32 *part, u8 c)
{
    if (*lex == LEX_U00X) {
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16;
        if (digit == 16 || has_short_escape(*part | (u32)digit))
            return LEX_BAD;
        *part |= (u32)digit;
        *lex = LEX_REST;
        return LEX_CHAR;
    }
    if (c != '0' && !(*lex == LEX_U00 && c == '1'))
        return LEX_BAD;
    *part = c == '1' ? 0x10 : 0;
    ++*lex;
    return LEX_MORE;
}

static int lex_step(u8 *lex, u32 *part, u8 c)
{
    if (*lex == LEX_REST)
        return lex_begin(lex, part, c);
    if (*lex <= LEX_MORE3)
        return lex_follow(lex, part, c);
    return *lex == LEX_ESCAPE ? lex_escape(lex, part, c) : lex_hex(lex, part, c);
}

/* Whether a character begun so can be one that state goes on with. */
static bool lex_possible(const struct chars *chars, u32 state, u8 lex, u32 part)
{
    if (lex == LEX_ESCAPE)
        return chars_any(chars, state, 0, 0x1F) || chars_any(chars, state, '"', '"') ||
               chars_any(chars, state, '\\', '\\');
    if (lex >= LEX_U) {
        bool low = lex < LEX_U00X || part == 0, high = lex < LEX_U00X || part;
        return (low && (chars_any(chars, state, 0, 7) || chars_any(chars, state, 0xB, 0xB) ||
                        chars_any(chars, state, 0xE, 0xF))) ||
               (high && chars_any(chars, state, 0x10, 0x1F));
    }
    u32 lo = part << 6 * lex, hi = lo | ((1u << 6 * lex) - 1);
    if (lex == LEX_MORE2 && part < 0x10)
        lo = lo < 0x800 ? 0x800 : lo, hi = part == 0xD ? 0xD7FF : hi;
    if (lex == LEX_MORE3)
        lo = lo < 0x10000 ? 0x10000 : lo, hi = min_u32(hi, 0x10FFFF);
    return chars_any(chars, state, lo, hi);
}

static void feed_string(struct automaton *a, const struct automaton_thread *t, u8 c)
{
    const struct grammar_node *n = &a->g->nodes[t->node];
    struct automaton_thread to = *t;
    bool counted = !n->chars.n;
    int got = lex_step(&to.lex, &to.part, c);
    if (got == LEX_CLOSE) {
        if (counted ? t->a >= n->min : n->chars.states[t->a].ends)
            leave(a, t->cell);
        return;
    }
    if (got == LEX_BAD || (counted && n->max != GRAMMAR_ENDLESS && t->a >= n->max))
        return;
    if (got == LEX_MORE) {
        if (counted || lex_possible(&n->chars, t->a, to.lex, to.part))
            push(a, to);
        return;
    }
    if (counted) {
        to.a = n->max == GRAMMAR_ENDLESS ? min_u32(t->a + 1, n->min) : t->a + 1;
    } else {
        i64 next = chars_next(&n->chars, t->a, to.part);
        if (next < 0)
            return;
        to.a = (u32)next;
    }
    to.part = 0;
    push(a, to);
}

/* ---- arrays ---- */

static bool more_items(const struct automaton *a, i32 cell, u32 *item)
{
    const struct automaton_cell *c = &a->cells[cell];
    const struct grammar_node *n = &a->g->nodes[c->node];
    if (c->pos >= n->max && n->max != GRAMMAR_ENDLESS)
        return false;
    i32 node = c->pos < n->n ? (i32)n->list[c->pos] : n->rest;
    if (!fits(a, node, cell))
        return false;
    *item = (u32)node;
    return true;
}

static void feed_array(struct automaton *a, const struct automaton_thread *t, u8 c)
{
    u32 item;
    i32 up = a->cells[t->cell].up;
    if (c == ']') {
        if (a->cells[t->cell].pos >= a->g->nodes[t->node].min)
            leave(a, up);
    } else if (more_items(a, t->cell, &item)) {
        if (t->at == AT_ARRAY_OPEN)
            feed_one(a, &(struct automaton_thread){.at = AT_VALUE, .node = item, .cell = t->cell}, c);
        else if (c == ',')
            enter(a, item, t->cell, true);
    }
}

/* ---- objects ---- */

/* Whether property p may come next: not before pos, not beyond the next required one. */
static bool may_come(const struct automaton *a, i32 cell, u32 p)
{
    const struct automaton_cell *c = &a->cells[cell];
    const struct grammar_node *n = &a->g->nodes[c->node];
    return p >= c->pos && p <= n->next_required[c->pos] && fits(a, (i32)n->list[p], cell);
}

static bool some_property(const struct automaton *a, i32 cell)
{
    const struct automaton_cell *c = &a->cells[cell];
    const struct grammar_node *n = &a->g->nodes[c->node];
    for (u32 p = c->pos; p < n->n && p <= n->next_required[c->pos]; p++)
        if (fits(a, (i32)n->list[p], cell))
            return true;
    return false;
}

static bool other_property(const struct automaton *a, i32 cell)
{
    const struct automaton_cell *c = &a->cells[cell];
    const struct grammar_node *n = &a->g->nodes[c->node];
    return n->next_required[c->pos] == n->n && c->n_names < AUTOMATON_NAMES && fits(a, n->rest, cell);
}

static void begin_name(struct automaton *a, i32 cell)
{
    u32 node = a->cells[cell].node;
    struct automaton_thread t = {.at = AT_NAME, .node = node, .cell = cell, .b = a->g->nodes[node].words.n};
    if (some_property(a, cell))
        push(a, t);
    t.at = AT_OTHER_NAME;
    if (other_property(a, cell))
        push(a, t);
}

static void feed_object(struct automaton *a, const struct automaton_thread *t, u8 c)
{
    const struct grammar_node *n = &a->g->nodes[t->node];
    const struct automaton_cell *cell = &a->cells[t->cell];
    if (t->at == AT_OBJECT_NAME) {
        struct automaton_thread to = *t;
        to.space = false;
        if (c == ' ' && t->space)
            push(a, to);
        else if (c == '"')
            begin_name(a, t->cell);
    } else if (c == '}') {
        if (n->next_required[cell->pos] == n->n)
            leave(a, cell->up);
    } else if (c == '"' && t->at == AT_OBJECT_OPEN) {
        begin_name(a, t->cell);
    } else if (c == ',' && t->at == AT_OBJECT_NEXT && (some_property(a, t->cell) || other_property(a, t->cell))) {
        push(a, (struct automaton_thread){.at = AT_OBJECT_NAME, .node = t->node, .cell = t->cell, .space = true});
    }
}

static void feed_name(struct automaton *a, const struct automaton_thread *t, u8 c)
{
    const struct grammar_node *n = &a->g->nodes[t->node];
    struct automaton_thread to = *t;
    words_narrow(&n->words, &to.a, &to.b, t->c, c);
    to.c++;
    for (u32 k = to.a; k < to.b; k++)
        if (may_come(a, t->cell, n->order[k])) {
            push(a, to);
            break;
        }
    if (c == '"' && t->a < t->b && n->words.at[t->a].len == t->c && may_come(a, t->cell, n->order[t->a])) {
        u32 p = n->order[t->a];
        i32 cell = cell_at(a, t->cell, p + 1);
        if (cell >= 0)
            push(a, (struct automaton_thread){.at = AT_COLON, .node = n->list[p], .cell = cell});
    }
}

static bool name_used(const struct automaton *a, i32 cell, u64 hash)
{
    for (i32 k = a->cells[cell].names; k >= 0; k = a->cells[k].names)
        if (a->cells[k].node == (u32)hash && a->cells[k].pos == (u32)(hash >> 32))
            return true;
    return false;
}

static void close_other_name(struct automaton *a, const struct automaton_thread *t)
{
    const struct grammar_node *n = &a->g->nodes[t->node];
    if ((t->a < t->b && n->words.at[t->a].len == t->c) || name_used(a, t->cell, t->hash))
        return;
    struct automaton_cell c = a->cells[t->cell];
    c.names = cell_new(a, (struct automaton_cell){(u32)t->hash, (u32)(t->hash >> 32), c.names, -1, 0, 0});
    c.n_names++;
    c.pos = n->n;
    i32 cell = c.names < 0 ? -1 : cell_new(a, c);
    if (cell >= 0)
        push(a, (struct automaton_thread){.at = AT_COLON, .node = (u32)n->rest, .cell = cell});
}

static void feed_other_name(struct automaton *a, const struct automaton_thread *t, u8 c)
{
    struct automaton_thread to = *t;
    int got = lex_step(&to.lex, &to.part, c);
    if (got == LEX_CLOSE) {
        close_other_name(a, t);
    } else if (got != LEX_BAD) {
        if (got == LEX_CHAR)
            to.part = 0;
        to.hash = (t->hash ^ c) * 0x9E3779B97F4A7C15ull;
        to.hash ^= to.hash >> 32;
        if (t->a < t->b)
            words_narrow(&a->g->nodes[t->node].words, &to.a, &to.b, t->c, c);
        to.c = to.a < to.b ? t->c + 1 : 0;
        if (to.a >= to.b)
            to.a = to.b = 0;
        push(a, to);
    }
}

/* ---- calls and free text ---- */

static void feed_text(struct automaton *a, const struct automaton_thread *t, u8 c)
{
    const struct grammar_node *n = &a->g->nodes[t->node];
    struct automaton_thread to = *t;
    if ((u8)n->text[t->a] != c)
        return;
    to.a++;
    if (to.a == n->n_lead) {
        i32 cell = cell_open(a, t->node, t->b, t->cell);
        if (cell >= 0)
            enter(a, (u32)n->rest, cell, false);
    } else if (to.a < n->n_text) {
        push(a, to);
    } else if (a->g->nodes[t->b].kind == GRAMMAR_CALLS) {
        push(a, (struct automaton_thread){.at = AT_AFTER_CALL, .node = t->b, .cell = t->cell});
    } else if (a->g->nodes[t->b].again) {
        enter(a, t->b, t->cell, false);
    } else {
        leave(a, t->cell);
    }
}

static void feed_free(struct automaton *a, const struct automaton_thread *t, u8 c)
{
    const struct grammar_node *n = &a->g->nodes[t->node];
    struct automaton_thread to = *t;
    while (to.a && (u8)n->text[to.a] != c)
        to.a = n->back[to.a - 1];
    to.a += (u8)n->text[to.a] == c;
    if (to.a == n->n_text)
        enter_calls(a, t->node, t->cell, n->n_text);
    else
        push(a, to);
}

/* ---- one byte ---- */

static void begin_leaf(struct automaton *a, u32 node, i32 cell, u8 c)
{
    const struct grammar_node *n = &a->g->nodes[node];
    struct automaton_thread t = {.node = node, .cell = cell};
    if (!fits(a, (i32)node, cell))
        return;
    switch (n->kind) {
    case GRAMMAR_WORDS:
        t.b = n->words.n;
        feed_word(a, (t.at = AT_WORD, &t), c);
        break;
    case GRAMMAR_NUMBER:
        feed_number(a, (t.at = AT_NUMBER, &t), c);
        break;
    case GRAMMAR_STRING:
        t.at = AT_STRING;
        if (c == '"')
            push(a, t);
        break;
    case GRAMMAR_ARRAY:
    case GRAMMAR_OBJECT:
        t.at = n->kind == GRAMMAR_ARRAY ? AT_ARRAY_OPEN : AT_OBJECT_OPEN;
        if (c == (n->kind == GRAMMAR_ARRAY ? '[' : '{') && (t.cell = cell_open(a, node, 0, cell)) >= 0)
            push(a, t);
        break;
    default:
        break;
    }
}

static void feed_value(struct automaton *a, const struct automaton_thread *t, u8 c)
{
    const struct grammar_node *n = &a->g->nodes[t->node];
    if (c == ' ' && t->space) {
        struct automaton_thread to = *t;
        to.space = false;
        push(a, to);
    } else if (n->kind == GRAMMAR_UNION) {
        for (u32 i = 0; i < n->n; i++)
            begin_leaf(a, n->list[i], t->cell, c);
    } else {
        begin_leaf(a, t->node, t->cell, c);
    }
}

static void feed_one(struct automaton *a, const struct automaton_thread *t, u8 c)
{
    switch (t->at) {
    case AT_VALUE:
        feed_value(a, t, c);
        break;
    case AT_WORD:
        feed_word(a, t, c);
        break;
    case AT_NUMBER:
        feed_number(a, t, c);
        break;
    case AT_STRING:
        feed_string(a, t, c);
        break;
    case AT_ARRAY_OPEN:
    case AT_ARRAY_NEXT:
        feed_array(a, t, c);
        break;
    case AT_OBJECT_OPEN:
    case AT_OBJECT_NEXT:
    case AT_OBJECT_NAME:
        feed_object(a, t, c);
        break;
    case AT_NAME:
        feed_name(a, t, c);
        break;
    case AT_OTHER_NAME:
        feed_other_name(a, t, c);
        break;
    case AT_COLON:
        if (c == ':')
            enter(a, t->node, t->cell, true);
        break;
    case AT_TEXT:
        feed_text(a, t, c);
        break;
    case AT_AFTER_CALL:
        if (c == '\n' && a->g->nodes[t->node].again)
            enter_calls(a, t->node, t->cell, 0);
        break;
    case AT_FREE:
        feed_free(a, t, c);
        break;
    default:
        break;
    }
}

void automaton_feed(struct automaton *a, u32 from, u32 end, u8 byte)
{
    a->from = a->n_threads = end;
    for (u32 i = from; i < end; i++) {
        struct automaton_thread t = a->threads[i];
        feed_one(a, &t, byte);
    }
}

/* ---- states ---- */

/* Takes over threads [from, end) of the room with the cells they need. A thread whose cells find no room is given up;
 * the first always finds it. */
static void take(const struct automaton *a, u32 from, u32 end, struct automaton_state *s, i32 *moved)
{
    memset(moved, 0xFF, a->n_cells * sizeof *moved);
    s->n_threads = s->n_cells = 0;
    for (u32 i = from; i < end; i++) {
        u32 begin = s->n_cells, fresh[GRAMMAR_DEPTH + AUTOMATON_NAMES + 2], n = 0;
        bool room = true;
        for (i32 c = a->threads[i].cell; c >= 0; c = a->cells[c].up)
            for (i32 k = c; k >= 0 && moved[k] < 0; k = a->cells[k].names)
                if ((room = room && s->n_cells < AUTOMATON_CELLS && n < COUNT(fresh))) {
                    moved[k] = (i32)s->n_cells;
                    s->cells[s->n_cells++] = a->cells[k];
                    fresh[n++] = (u32)k;
                }
        for (u32 k = 0; k < n && room; k++) {
            struct automaton_cell *c = &s->cells[moved[fresh[k]]];
            c->names = c->names < 0 ? -1 : moved[c->names];
            c->up = c->up < 0 ? -1 : moved[c->up];
        }
        if (!room) {
            for (u32 k = 0; k < n; k++)
                moved[fresh[k]] = -1;
            s->n_cells = begin;
            continue;
        }
        s->threads[s->n_threads] = a->threads[i];
        if (a->threads[i].cell >= 0)
            s->threads[s->n_threads].cell = moved[a->threads[i].cell];
        s->n_threads++;
    }
}

void automaton_put(struct automaton *a, const struct automaton_state *s, u32 first, u32 n)
{
    memcpy(a->threads, s->threads + first, n * sizeof *a->threads);
    memcpy(a->cells, s->cells, s->n_cells * sizeof *a->cells);
    a->n_threads = n;
    a->n_cells = s->n_cells;
}

void automaton_begin(struct automaton *a, struct automaton_state *s)
{
    i32 moved[1];
    a->from = a->n_threads = a->n_cells = 0;
    if (fits(a, (i32)a->g->root, -1))
        enter(a, a->g->root, -1, false);
    take(a, 0, a->n_threads, s, moved);
}

bool automaton_step(struct automaton *a, struct automaton_state *s, u8 byte)
{
    i32 moved[ROOM_CELLS];
    u32 n = s->n_threads;
    automaton_put(a, s, 0, n);
    automaton_feed(a, 0, n, byte);
    take(a, n, a->n_threads, s, moved);
    return s->n_threads;
}

static bool thread_can_end(const struct grammar *g, const struct automaton_state *s, const struct automaton_thread *t)
{
    const struct grammar_node *n = &g->nodes[t->node];
    i32 cell = t->cell;
    bool ends = t->at == AT_DONE || t->at == AT_AFTER_CALL || (t->at == AT_FREE && n->may_end) ||
                (t->at == AT_WORD && t->a < t->b && n->words.at[t->a].len == t->c) ||
                (t->at == AT_NUMBER && n->digits.states[t->a].ends);
    for (; ends && cell >= 0; cell = s->cells[cell].up) { /* only calls that end with their value end too */
        const struct grammar_node *around = &g->nodes[s->cells[cell].node];
        ends = around->kind == GRAMMAR_CALL && around->n_lead == around->n_text;
    }
    return ends;
}

bool automaton_can_end(const struct grammar *g, const struct automaton_state *s)
{
    for (u32 i = 0; i < s->n_threads; i++)
        if (thread_can_end(g, s, &s->threads[i]))
            return true;
    return false;
}

u32 automaton_key(const struct automaton_state *s, u32 k, u8 *room)
{
    struct automaton_thread t = s->threads[k];
    u32 used = sizeof t;
    for (i32 c = t.cell; c >= 0; c = s->cells[c].up)
        for (i32 i = c; i >= 0 && used + sizeof *s->cells <= AUTOMATON_KEY; i = s->cells[i].names) {
            struct automaton_cell cell = s->cells[i];
            cell.names = cell.names >= 0; /* the order says which */
            cell.up = cell.up >= 0;
            memcpy(room + used, &cell, sizeof cell);
            used += (u32)sizeof cell;
        }
    t.cell = t.cell >= 0;
    memcpy(room, &t, sizeof t);
    return used;
}
