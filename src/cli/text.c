/* Text from outside. What is larger than any context could hold is refused before it fills the
 * memory. */
#include "cli/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static int read_stream(struct text *out, FILE *in, const char *name, struct err *err)
{
    size_t cap = 0;
    for (size_t got = 1; got;) {
        if (cap - out->len < 2) {
            cap = cap ? cap * 2 : 4096;
            char *at = realloc(out->at, cap);
            if (!at)
                return err_set(err, "%s: out of memory", name);
            out->at = at;
        }
        errno = 0;
        got = fread(out->at + out->len, 1, cap - out->len - 1, in);
        out->len += got;
        if (ferror(in))
            return err_set(err, "%s: %s", name, strerror(errno));
        if (out->len > TEXT_MAX_BYTES)
            return err_set(err, "%s: more than %d MiB: expected a prompt", name,
                           TEXT_MAX_BYTES >> 20);
    }
    out->at[out->len] = 0;
    return 0;
}

int text_read(struct text *out, const char *path, struct err *err)
{
    bool from_stdin = strcmp(path, "-") == 0;
    FILE *in = from_stdin ? stdin : fopen(path, "rb");
    *out = (struct text){NULL, 0};
    if (!in)
        return err_set(err, "%s: %s", path, strerror(errno));
    int rc = read_stream(out, in, from_stdin ? "standard input" : path, err);
    if (!from_stdin)
        fclose(in);
    if (rc) {
        free(out->at);
        out->at = NULL;
    }
    return rc;
}

size_t text_utf8(const char *text, size_t len)
{
    size_t i = 0;
    while (i < len) {
        utf8proc_int32_t c;
        utf8proc_ssize_t left = (utf8proc_ssize_t)(len - i);
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + i, left, &c);
        if (n <= 0)
            break;
        i += (size_t)n;
    }
    return i;
}

int text_check(const char *what, const char *text, size_t len, struct err *err)
{
    size_t good = text_utf8(text, len);
    if (good == len)
        return 0;
    return err_set(err, "%s: byte 0x%02x at offset %zu: expected UTF-8 text", what, (u8)text[good],
                   good);
}
