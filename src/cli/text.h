/* Text from outside: files read whole, checked to be UTF-8. */
#ifndef PS_TEXT_H
#define PS_TEXT_H

#include "base/base.h"

enum { TEXT_MAX_BYTES = 64 << 20 };

struct text { /* malloc'd, with a NUL after its len bytes; released by free(at) */
    char *at;
    size_t len;
};

/* The whole of a file, "-": standard input. */
int text_read(struct text *out, const char *path, struct err *err);

/* Bytes of text that are well-formed UTF-8 from its start on: len when all are. */
size_t text_utf8(const char *text, size_t len);

/* err says where and what when text is not wholly UTF-8. what: "-p", a file's name. */
int text_check(const char *what, const char *text, size_t len, struct err *err);

#endif
