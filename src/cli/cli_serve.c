/* plainsong serve: the command line of the server. */
#include "cli/cli.h"
#include "cli/cost.h"
#include "cli/opts.h"
#include "serve/serve.h"

#include <stdlib.h>
#include <string.h>

struct serve_line {
    struct opts_engine engine;
    const char *host, *api_key_file, *tls_cert, *tls_key, *log, *name;
    struct opts_many allow_hosts, cors;
    u32 port, queue, per_key, body_mib, header_kib, connections, idle_s, request_s, drain_s, ping_s, stuck_s;
    u64 queue_tokens;
    bool strict_model;
};

static const struct opt_usage usage = {
    "serve",
    "plainsong serve [-m MODEL] [--port N] [options]",
    "Serves the model over HTTP: OpenAI's /v1/chat/completions, /v1/completions, /v1/responses and /v1/models, Anthropic's "
    "/v1/messages, and a page at /. It listens at once and answers 503 until the model is loaded. SIGTERM lets running requests end, "
    "a second one does not; SIGHUP reads the API keys again.",
    0,
};

#define AT(field) offsetof(struct serve_line, field)

static const struct opt table[] = {
    {0, "host", OPT_TEXT, AT(host), 0, 0, "ADDRESS", "to listen on; 127.0.0.1: this machine only"},
    {0, "port", OPT_U32, AT(port), 0, 65535, "N", "8080 when not given; 0: any free one"},
    {0, "name", OPT_TEXT, AT(name), 0, 0, "NAME", "the model's name for clients; the file's name when not given"},
    {0, "strict-model", OPT_FLAG, AT(strict_model), 0, 0, NULL, "refuse requests for a model of another name"},
    {0, "api-key-file", OPT_TEXT, AT(api_key_file), 0, 0, "FILE", "keys, one a line; without it everyone who can connect may ask"},
    {0, "per-key", OPT_U32, AT(per_key), 0, 100000, "N", "requests that one key may have in work; 0: no limit"},
    {0, "queue", OPT_U32, AT(queue), 1, 100000, "N", "requests that may wait for a slot (32)"},
    {0, "queue-tokens", OPT_U64, AT(queue_tokens), 0, 0, "N",
     "prompt and answer tokens of all requests in work; 0: a context for each that may run or wait"},
    {0, "allow-host", OPT_MANY, AT(allow_hosts), 0, 0, "NAME",
     "a name by which this server is reached, beside localhost and addresses; may be repeated"},
    {0, "cors", OPT_MANY, AT(cors), 0, 0, "ORIGIN", "an origin whose pages may ask, * for all; may be repeated"},
    {0, "tls-cert", OPT_TEXT, AT(tls_cert), 0, 0, "FILE", "certificate chain, PEM: HTTPS"},
    {0, "tls-key", OPT_TEXT, AT(tls_key), 0, 0, "FILE", "its key, PEM"},
    {0, "log", OPT_CHOICE, AT(log), 0, 0, "text|json", "form of the log on stderr; prompts and keys are never in it"},
    {0, "max-body", OPT_U32, AT(body_mib), 1, 1024, "MIB", "of a request (16)"},
    {0, "max-headers", OPT_U32, AT(header_kib), 4, 1024, "KIB", "of a request (32)"},
    {0, "max-connections", OPT_U32, AT(connections), 1, 100000, "N", "open at once (4096)"},
    {0, "request-timeout", OPT_U32, AT(request_s), 1, 3600, "S", "for a client to send its request (60)"},
    {0, "idle-timeout", OPT_U32, AT(idle_s), 1, 86400, "S", "for a connection without a byte either way (120)"},
    {0, "drain", OPT_U32, AT(drain_s), 1, 86400, "S", "for running requests after SIGTERM (30)"},
    {0, "ping", OPT_U32, AT(ping_s), 1, 3600, "S", "between comments in an event stream that is silent (10)"},
    {0, "stuck", OPT_U32, AT(stuck_s), 1, 86400, "S", "a step that lasts longer makes /health say 503 (60)"},
};

static void greet(struct ps_engine *engine)
{
    cost_greet(engine, true);
}

int cli_serve(int argc, char **argv)
{
    struct serve_line l = {.port = 8080};
    struct err err;
    u32 n_args;
    const struct opt_group groups[] = {{"Server", table, COUNT(table), &l},
                                       {"Engine", opts_engine_table, opts_engine_count, &l.engine}};
    int rc = opts_parse(&usage, argc, argv, groups, COUNT(groups), NULL, &n_args);
    if (rc)
        return rc == OPTS_HELPED ? EXIT_DONE : EXIT_USAGE;
    if (!l.tls_cert != !l.tls_key)
        return cli_fail(usage.command, EXIT_USAGE, "--tls-cert and --tls-key: expected both or none");
    char *path = opts_model(l.engine.model, &err);
    if (!path)
        return cli_fail(usage.command, EXIT_WORLD, "%s", err.text);
    struct serve_opts o = {
        .model = path, .host = l.host, .port = l.port, .allow_hosts = l.allow_hosts.list, .n_allow_hosts = l.allow_hosts.n,
        .cors = l.cors.list, .n_cors = l.cors.n, .api_key_file = l.api_key_file, .tls_cert = l.tls_cert, .tls_key = l.tls_key,
        .log_json = l.log && strcmp(l.log, "json") == 0, .strict_model = l.strict_model, .queue = l.queue,
        .queue_tokens = l.queue_tokens, .per_key = l.per_key, .max_body_bytes = (u64)l.body_mib << 20,
        .max_header_bytes = l.header_kib << 10, .idle_s = l.idle_s, .max_connections = l.connections, .request_s = l.request_s, .drain_s = l.drain_s, .ping_s = l.ping_s,
        .stuck_s = l.stuck_s, .name = l.name};
    o.loaded = o.log_json ? NULL : greet; /* a JSON log holds nothing else */
    opts_engine_fill(&l.engine, &o.engine);
    rc = serve_run(&o, &err);
    free(path);
    if (rc < 0)
        return cli_fail(usage.command, EXIT_WORLD, "%s", err.text);
    return rc ? EXIT_AT_ONCE : EXIT_DONE;
}
