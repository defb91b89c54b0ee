/* See bytes.h. */
#include "serve/bytes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bytes_free(struct bytes *b)
{
    free(b->at);
    *b = (struct bytes){0};
}

void bytes_clear(struct bytes *b)
{
    b->len = 0;
}

char *bytes_take(struct bytes *b)
{
    bytes_put(b, "", 1);
    char *text = b->at;
    if (b->failed) {
        free(text);
        text = NULL;
    }
    *b = (struct bytes){0};
    return text;
}

static bool bytes_room(struct bytes *b, size_t len)
{
    if (b->cap - b->len >= len)
        return !b->failed;
    u64 cap;
    if (b->failed || !add_u64(b->cap + b->cap / 2 + 64, len, &cap) || cap > SIZE_MAX / 2) {
        b->failed = true;
        return false;
    }
    char *at = realloc(b->at, cap);
    if (!at) {
        b->failed = true;
        return false;
    }
    b->at = at;
    b->cap = cap;
    return true;
}

void bytes_put(struct bytes *b, const void *text, size_t len)
{
    if (len == 0 || !bytes_room(b, len))
        return;
    memcpy(b->at + b->len, text, len);
    b->len += len;
}

void bytes_str(struct bytes *b, const char *text)
{
    bytes_put(b, text, strlen(text));
}

void bytes_u64(struct bytes *b, u64 n)
{
    char digits[20]; /* 2^64 has 20 */
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + n % 10);
        n /= 10;
    } while (n);
    bytes_put(b, digits + at, sizeof digits - at);
}

void bytes_i64(struct bytes *b, i64 n)
{
    if (n < 0)
        bytes_put(b, "-", 1);
    bytes_u64(b, n < 0 ? 0 - (u64)n : (u64)n);
}

/* %g never writes what JSON does not read: "inf" and "nan" are shut out. The program never leaves the C locale. */
static void bytes_real(struct bytes *b, double x, int digits)
{
    char text[40];
    if (!isfinite(x)) {
        bytes_str(b, "null");
        return;
    }
    int n = snprintf(text, sizeof text, "%.*g", digits, x);
    bytes_put(b, text, (size_t)n);
}

void bytes_f32(struct bytes *b, float x)
{
    char text[40];
    int digits = 6; /* 0.8 is 0.8, not 0.800000012; 9 digits tell any two floats apart */
    while (digits < 9 && (snprintf(text, sizeof text, "%.*g", digits, (double)x), strtof(text, NULL) != x))
        digits++;
    bytes_real(b, (double)x, digits);
}

void bytes_f64(struct bytes *b, double x)
{
    char text[40];
    int digits = 15;
    while (digits < 17 && (snprintf(text, sizeof text, "%.*g", digits, x), strtod(text, NULL) != x))
        digits++;
    bytes_real(b, x, digits);
}

/* Bytes of the well-formed character that s[0..n) begins with (the Unicode Standard, table 3-7), or 0. */
static size_t character(const u8 *s, size_t n)
{
    u8 a = s[0];
    size_t len = a < 0x80 ? 1 : a < 0xC2 ? 0 : a < 0xE0 ? 2 : a < 0xF0 ? 3 : a < 0xF5 ? 4 : 0;
    if (len > n)
        return 0;
    u8 lo = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80, hi = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < len; i++, lo = 0x80, hi = 0xBF)
        if (s[i] < lo || s[i] > hi)
            return 0;
    return len;
}

void bytes_escaped(struct bytes *b, const char *text, size_t len)
{
    static const char hex[] = "0123456789abcdef";
    const u8 *s = (const u8 *)text;
    size_t from = 0, i = 0; /* s[from, i) goes out as it is */
    if (len == 0)
        return;
    while (i < len) {
        size_t n = character(s + i, len - i);
        if (n && s[i] >= 0x20 && s[i] != '"' && s[i] != '\\' && s[i] != 0x7F) {
            i += n;
            continue;
        }
        bytes_put(b, s + from, i - from);
        char escape[6] = {'\\', 'u', '0', '0', hex[s[i] >> 4], hex[s[i] & 15]};
        static const char from_short[] = "\"\\\n\r\t\b\f", to_short[] = "\"\\nrtbf";
        const char *is_short = s[i] ? strchr(from_short, s[i]) : NULL;
        if (n == 0) {
            bytes_put(b, "\xEF\xBF\xBD", 3);
        } else if (is_short) {
            escape[1] = to_short[is_short - from_short];
            bytes_put(b, escape, 2);
        } else {
            bytes_put(b, escape, 6);
        }
        from = ++i;
    }
    bytes_put(b, s + from, len - from);
}

void bytes_json(struct bytes *b, const char *text, size_t len)
{
    bytes_put(b, "\"", 1);
    bytes_escaped(b, text, len);
    bytes_put(b, "\"", 1);
}
