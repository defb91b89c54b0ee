/* Bounded numbers, digit by digit. Reading from the left it is not known how long the integer part will be, so a state
 * holds how many digits there are and how they compare with as many of each bound's; in the fraction, whether the text
 * still agrees with a bound digit by digit. Doubles have at most 309 digits before the point and 324 + 17 behind it, so
 * there are a few thousand states at most. */
#include "serve/digits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS_MAX = 700, STATES_MAX = 20000 };

struct decimal { /* n_int >= 1, without leading zeros but a single one; the fraction without trailing zeros */
    bool none, negative;
    u32 n_int, n_frac;
    char digits[DIGITS_MAX + 8]; /* '0'..'9' */
};

void digits_free(struct digits *d)
{
    free(d->states);
    *d = (struct digits){0};
}

int digits_symbol(u8 byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    switch (byte) {
    case '-':
        return 10;
    case '.':
        return 11;
    case 'e':
        return 12;
    case 'E':
        return 13;
    case '+':
        return 14;
    default:
        return -1;
    }
}

/* ---- decimals ---- */

/* digits[0..n) with the point behind the first `point` of them (it may lie outside). */
static void decimal_set(struct decimal *d, bool negative, const char *digits, int n, int point)
{
    while (n && *digits == '0')
        digits++, n--, point--;
    while (n && digits[n - 1] == '0')
        n--;
    *d = (struct decimal){.negative = negative && n};
    if (!n)
        point = 1;
    u32 w = 0;
    if (point <= 0)
        d->digits[w++] = '0';
    for (int i = 0; i < point; i++)
        d->digits[w++] = i < n ? digits[i] : '0';
    d->n_int = w;
    for (int i = point; i < n; i++)
        d->digits[w++] = i < 0 ? '0' : digits[i];
    d->n_frac = w - d->n_int;
}

/* The shortest decimal that reads back as v: at most 17 digits. */
static void decimal_of_double(struct decimal *d, double v)
{
    char text[40], digits[24];
    int precision = 0, n = 0;
    do
        snprintf(text, sizeof text, "%.*e", precision, v);
    while (strtod(text, NULL) != v && precision++ < 17);
    char *e = strchr(text, 'e');
    for (const char *c = text; c < e; c++)
        if (*c >= '0' && *c <= '9')
            digits[n++] = *c;
    decimal_set(d, v < 0, digits, n, atoi(e + 1) + 1);
}

static void decimal_of_text(struct decimal *d, const char *text) /* an integer */
{
    bool negative = *text == '-';
    text += negative;
    decimal_set(d, negative, text, (int)strlen(text), (int)strlen(text));
}

/* An integer becomes the next one up or down. */
static void decimal_step(struct decimal *d, bool up)
{
    bool grow = d->negative != up;
    if (!grow && d->n_int == 1 && d->digits[0] == '0') { /* from 0 down */
        decimal_of_text(d, "-1");
        return;
    }
    u32 i = d->n_int;
    char from = grow ? '9' : '0', to = grow ? '0' : '9';
    while (i && d->digits[i - 1] == from)
        d->digits[--i] = to;
    if (i) {
        d->digits[i - 1] += grow ? 1 : -1;
        if (d->digits[0] == '0' && d->n_int > 1)
            memmove(d->digits, d->digits + 1, --d->n_int);
    } else { /* 99 -> 100 */
        memmove(d->digits + 1, d->digits, d->n_int++);
        d->digits[0] = '1';
    }
    if (d->n_int == 1 && d->digits[0] == '0')
        d->negative = false;
}

static int decimal_order(const struct decimal *a, const struct decimal *b)
{
    if (a->negative != b->negative)
        return a->negative ? -1 : 1;
    int order = 0;
    if (a->n_int != b->n_int) {
        order = a->n_int < b->n_int ? -1 : 1;
    } else {
        u32 na = a->n_int + a->n_frac, nb = b->n_int + b->n_frac;
        order = memcmp(a->digits, b->digits, na < nb ? na : nb);
        if (!order)
            order = na < nb ? -1 : na > nb;
    }
    return a->negative ? -order : order;
}

/* The integer bound that v sets: upper, from above or below; exclusive or not. */
static void integer_bound(struct decimal *d, const json_t *v, bool upper, bool exclusive)
{
    char text[400];
    bool step = exclusive;
    if (json_is_integer(v)) {
        snprintf(text, sizeof text, "%lld", (long long)json_integer_value(v));
    } else {
        double x = json_real_value(v), whole = upper ? floor(x) : ceil(x);
        step = exclusive && whole == x;
        snprintf(text, sizeof text, "%.0f", whole);
    }
    decimal_of_text(d, text);
    if (step)
        decimal_step(d, !upper);
}

/* The double bound: exclusive ones are the next double inside. *large: integers beyond 2^53 are cut off that way. False
 * when no double is inside. */
static bool double_bound(struct decimal *d, const json_t *v, bool upper, bool exclusive, bool *large)
{
    double inside = upper ? -INFINITY : INFINITY, x = json_number_value(v);
    if (json_is_integer(v)) {
        long long n = json_integer_value(v);
        /* Whether x was rounded to the outside; 2^63 itself does not fit long long. */
        if (x >= 0x1p63 || (upper ? (long long)x > n : (long long)x < n))
            x = nextafter(x, inside), exclusive = false;
        if (exclusive && (x >= 0x1p53 || x <= -0x1p53) && (long long)x != n)
            exclusive = false; /* x lies inside n already */
    }
    if (x > 0x1p53 || x < -0x1p53)
        *large = true;
    if (exclusive)
        x = nextafter(x, inside);
    char text[400];
    if (isinf(x))
        return false;
    if (x < 0x1p53 && x > -0x1p53)
        return decimal_of_double(d, x), true;
    snprintf(text, sizeof text, "%.0f", x); /* exactly: some read integers that large exactly */
    decimal_of_text(d, text);
    return true;
}

/* ---- states ---- */

enum { AT_BEGIN, AT_MINUS, AT_INT, AT_POINT, AT_FRAC, AT_E, AT_SIGN, AT_EXP1, AT_EXP2 };
enum { LESS, SAME, MORE };

struct side { /* magnitudes of one sign */
    bool none;        /* no number of this sign */
    struct decimal lo, hi; /* hi.none: without end; lo is at least 0 */
};

struct place { /* what a state is about; packed into its key */
    u8 at, side, lo, hi; /* of an integer part: LESS, SAME, MORE than as many digits of lo, hi; of a fraction: SAME while
                          * it agrees with that bound */
    bool zero;           /* the integer part is 0 */
    u16 n;               /* digits of this part, as far as they matter */
};

struct maker {
    struct side sides[2]; /* not negative, negative */
    bool integers, exponents;
    struct place *places;
    struct digits_state *states;
    u32 n;
    u32 *slots; /* 2^16, number + 1 */
};

static u64 key_of(struct place p)
{
    return (u64)p.at | (u64)p.side << 4 | (u64)p.lo << 8 | (u64)p.hi << 12 | (u64)p.zero << 16 | (u64)p.n << 20;
}

static i64 state_of(struct maker *m, struct place p)
{
    u64 key = key_of(p);
    u32 h = (u32)(key * 0x9E3779B97F4A7C15ull >> 48);
    for (; m->slots[h]; h = (h + 1) & 0xFFFF)
        if (key_of(m->places[m->slots[h] - 1]) == key)
            return m->slots[h] - 1;
    if (m->n == STATES_MAX)
        return -1;
    m->places[m->n] = p;
    m->slots[h] = ++m->n;
    return m->n - 1;
}

static u8 compare_next(u8 so_far, char digit, const struct decimal *bound, u32 at, u32 end)
{
    char b = at < end ? bound->digits[at] : '0';
    return so_far != SAME ? so_far : digit < b ? LESS : digit > b ? MORE : SAME;
}

/* How the integer part compares with the bound's whole integer part. */
static u8 compare_whole(const struct place *p, u8 prefix, const struct decimal *bound)
{
    return p->n < bound->n_int ? LESS : p->n > bound->n_int ? MORE : prefix;
}

static bool int_ends(const struct maker *m, const struct place *p)
{
    const struct side *s = &m->sides[p->side];
    u8 lo = compare_whole(p, p->lo, &s->lo), hi = s->hi.none ? LESS : compare_whole(p, p->hi, &s->hi);
    return (lo == MORE || (lo == SAME && !s->lo.n_frac)) && hi != MORE;
}

/* The place after an integer digit; false when there is none. */
static bool int_digit(const struct maker *m, const struct place *p, char digit, struct place *to)
{
    const struct side *s = &m->sides[p->side];
    if (s->none || p->zero)
        return false;
    u32 longest = s->hi.none ? s->lo.n_int + 1 : s->hi.n_int;
    if (p->n == longest && !s->hi.none)
        return false;
    *to = (struct place){.at = AT_INT, .side = p->side, .zero = p->n == 0 && digit == '0'};
    to->lo = compare_next(p->n ? p->lo : SAME, digit, &s->lo, p->n, s->lo.n_int);
    if (!s->hi.none)
        to->hi = compare_next(p->n ? p->hi : SAME, digit, &s->hi, p->n, s->hi.n_int);
    to->n = (u16)min_u32(p->n + 1, longest);
    if (to->n > s->lo.n_int)
        to->lo = MORE;
    return true;
}

static bool begin_fraction(const struct maker *m, const struct place *p, struct place *to)
{
    const struct side *s = &m->sides[p->side];
    u8 lo = compare_whole(p, p->lo, &s->lo), hi = s->hi.none ? LESS : compare_whole(p, p->hi, &s->hi);
    *to = (struct place){.at = AT_POINT, .side = p->side, .lo = lo, .hi = hi};
    if (lo == SAME && !s->lo.n_frac)
        to->lo = MORE;
    return !m->integers && lo != LESS && hi != MORE;
}

static bool fraction_digit(const struct maker *m, const struct place *p, char digit, struct place *to)
{
    const struct side *s = &m->sides[p->side];
    *to = *p;
    to->at = AT_FRAC;
    to->lo = compare_next(p->lo, digit, &s->lo, s->lo.n_int + p->n, s->lo.n_int + s->lo.n_frac);
    if (!s->hi.none)
        to->hi = compare_next(p->hi, digit, &s->hi, s->hi.n_int + p->n, s->hi.n_int + s->hi.n_frac);
    u32 counts = s->lo.n_frac;
    if (!s->hi.none && s->hi.n_frac > counts)
        counts = s->hi.n_frac;
    to->n = (u16)min_u32(p->n + 1u, counts);
    if (to->lo == SAME && to->n >= s->lo.n_frac)
        to->lo = MORE; /* equal so far is enough */
    if (to->lo == MORE && to->hi == LESS)
        to->n = 0; /* nothing to compare any more */
    return to->lo != LESS && to->hi != MORE;
}

/* Symbol by symbol: where it leads. */
static bool follow(const struct maker *m, const struct place *p, int symbol, struct place *to)
{
    char digit = symbol < 10 ? (char)('0' + symbol) : 0;
    bool e = symbol == 12 || symbol == 13;
    switch (p->at) {
    case AT_BEGIN:
        if (symbol == 10) {
            *to = (struct place){.at = AT_MINUS, .side = 1};
            return !m->sides[1].none;
        }
        return digit && int_digit(m, p, digit, to);
    case AT_MINUS:
        return digit && int_digit(m, p, digit, to);
    case AT_INT:
        if (symbol == 11)
            return begin_fraction(m, p, to);
        *to = (struct place){.at = AT_E};
        return (e && m->exponents) || (digit && int_digit(m, p, digit, to));
    case AT_POINT:
        return digit && fraction_digit(m, p, digit, to);
    case AT_FRAC:
        *to = (struct place){.at = AT_E};
        return (e && m->exponents) || (digit && fraction_digit(m, p, digit, to));
    case AT_E:
        *to = (struct place){.at = digit ? AT_EXP1 : AT_SIGN};
        return digit || symbol == 10 || symbol == 14;
    case AT_SIGN:
        *to = (struct place){.at = AT_EXP1};
        return digit;
    case AT_EXP1:
        *to = (struct place){.at = AT_EXP2};
        return digit;
    default:
        return false;
    }
}

static bool place_ends(const struct maker *m, const struct place *p)
{
    switch (p->at) {
    case AT_INT:
        return int_ends(m, p);
    case AT_FRAC:
        return p->lo == MORE;
    case AT_EXP1:
    case AT_EXP2:
        return true;
    default:
        return false;
    }
}

/* Takes away edges to states that cannot end: round by round, backwards in the order of finding, which is nearly the
 * order of the digits, so that two or three rounds do. */
static void cut_dead(struct digits *d, bool *live)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (u32 s = d->n; s-- > 0;)
            for (u32 k = 0; !live[s] && k <= DIGITS_SYMBOLS; k++)
                if (k == DIGITS_SYMBOLS ? d->states[s].ends : d->states[s].next[k] && live[d->states[s].next[k] - 1])
                    live[s] = changed = true;
    }
    for (u32 s = 0; s < d->n; s++)
        for (u32 k = 0; k < DIGITS_SYMBOLS; k++)
            if (d->states[s].next[k] && !live[d->states[s].next[k] - 1])
                d->states[s].next[k] = 0;
    if (!live[0])
        d->n = 0;
}

static int make(struct digits *out, struct maker *m, struct err *err)
{
    *out = (struct digits){0};
    m->places = mem_array(STATES_MAX, sizeof *m->places);
    m->states = mem_array(STATES_MAX, sizeof *m->states);
    m->slots = mem_array(0x10000, sizeof *m->slots);
    bool *live = mem_array(STATES_MAX, sizeof *live);
    int rc = m->places && m->states && m->slots && live ? 0 : err_set(err, "no memory for a number's bounds");
    if (!rc)
        state_of(m, (struct place){.at = AT_BEGIN});
    for (u32 s = 0; !rc && s < m->n; s++) {
        struct place p = m->places[s], to;
        m->states[s].ends = place_ends(m, &p);
        for (int k = 0; !rc && k < DIGITS_SYMBOLS; k++) {
            if (!follow(m, &p, k, &to))
                continue;
            i64 number = state_of(m, to);
            if (number < 0)
                rc = err_set(err, "a number's bounds take more than %d states", STATES_MAX);
            else
                m->states[s].next[k] = (u16)(number + 1);
        }
    }
    if (!rc) {
        *out = (struct digits){m->n, m->states};
        cut_dead(out, live);
        struct digits_state *fit = realloc(m->states, (out->n + 1) * sizeof *fit);
        out->states = fit ? fit : m->states;
        m->states = NULL;
    }
    free(m->places);
    free(m->states);
    free(m->slots);
    free(live);
    return rc;
}

/* ---- bounds -> sides ---- */

static void magnitude_from(struct decimal *d, const struct decimal *from)
{
    *d = *from;
    d->negative = false;
}

static void split_sides(struct maker *m, const struct decimal *lo, const struct decimal *hi)
{
    struct side *up = &m->sides[0], *down = &m->sides[1];
    struct decimal zero;
    decimal_of_text(&zero, m->integers ? "1" : "0");
    down->lo = zero; /* no integer is spelled -0 */
    decimal_of_text(&up->lo, "0");
    up->hi.none = hi->none;
    down->hi.none = lo->none;
    if (!hi->none) {
        if (hi->negative)
            up->none = true, magnitude_from(&down->lo, hi);
        else
            magnitude_from(&up->hi, hi);
    }
    if (!lo->none) {
        if (!lo->negative)
            down->none = true, magnitude_from(&up->lo, lo);
        else
            magnitude_from(&down->hi, lo);
    }
    for (u32 k = 0; k < 2; k++) {
        struct side *s = &m->sides[k];
        if (!s->none && !s->hi.none && decimal_order(&s->lo, &s->hi) > 0)
            s->none = true;
    }
}

static void tighter(struct decimal *d, const struct decimal *other, bool upper)
{
    if (d->none || (upper ? decimal_order(other, d) < 0 : decimal_order(other, d) > 0))
        *d = *other;
}

static int open_bounded(struct digits *out, const struct digits_bounds *b, bool integers, bool *large, struct err *err)
{
    struct maker m = {.integers = integers};
    struct decimal lo = {.none = true}, hi = {.none = true}, one;
    const json_t *given[4] = {b->min, b->above, b->max, b->below};
    for (int k = 0; k < 4; k++) {
        bool upper = k >= 2, exclusive = k & 1;
        if (!given[k])
            continue;
        if (integers)
            integer_bound(&one, given[k], upper, exclusive);
        else if (!double_bound(&one, given[k], upper, exclusive, large))
            return *out = (struct digits){0}, 0;
        tighter(upper ? &hi : &lo, &one, upper);
    }
    m.exponents = !integers && lo.none && hi.none;
    split_sides(&m, &lo, &hi);
    return make(out, &m, err);
}

int digits_integers(struct digits *out, const struct digits_bounds *b, struct err *err)
{
    bool large;
    return open_bounded(out, b, true, &large, err);
}

int digits_numbers(struct digits *out, const struct digits_bounds *b, bool *integers, struct err *err)
{
    *integers = false;
    return open_bounded(out, b, false, integers, err);
}
