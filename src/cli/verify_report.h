/* One small text file about this machine and what verify found on it, to be put into a bug report.
 * It names no path and no user. */
#ifndef PS_VERIFY_REPORT_H
#define PS_VERIFY_REPORT_H

#include "base/base.h"
#include "plainsong.h"

#include <stdio.h>

struct verify_report { /* texts may be NULL: left out */
    const struct ps_model *model;
    u64 file; /* verify_golden_file */
    const char *device, *isa;
    u32 n_threads, n_cores;
    const char *self_test; /* of a device that has one */
    const char *golden;   /* what the frozen number said */
    const char *settings; /* the lines, one a setting */
    const char *last;     /* the last lines */
};

/* The processor's name, or "unknown". */
void verify_report_cpu(char *buf, size_t n);

void verify_report_print(const struct verify_report *r, FILE *out);

#endif
