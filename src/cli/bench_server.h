/* `plainsong bench --http`: the same requests put to a running server and, when a model file is given, to an engine
 * of this process, by turns; what HTTP costs is the ratio. Main thread. */
#ifndef PS_BENCH_SERVER_H
#define PS_BENCH_SERVER_H

#include "cli/bench.h"
#include "cli/bench_http.h"

struct bench_server {
    struct bench_http_url url;
    const char *shown; /* the URL as it was given */
    char key[260];     /* "": none */
    char model[128];   /* its name for clients */
    u32 n_slots, n_ctx, n_vocab;
};

/* Asks the server what it serves; fails when it is not there, refuses, or has fewer slots or positions than s
 * needs. key_file may be NULL. */
int bench_server_open(struct bench_server *b, const char *url, const char *key_file, const struct bench_setup *s,
                      struct err *err);

/* Runs and prints, JSON or a table. r->engine NULL: no engine path. Fails when the two paths' texts differ. */
int bench_server_run(const struct bench_server *b, struct bench_rig *r, bool json, struct err *err);

#endif
