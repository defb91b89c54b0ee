/* Paths, and who may ask. The headers decide first: host, origin, key, state, place; only what passes has its body read. */
#include "serve/server.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void page_fn(struct server *s, struct http_exchange *x);

struct route {
    const char *path, *method;
    i32 endpoint;      /* enum endpoint, or -1: page */
    page_fn *page;
    bool open;         /* without a key */
    bool always;       /* also while loading or draining */
};

static const struct route ROUTES[] = {
    {"/v1/chat/completions", "POST", ENDPOINT_CHAT, NULL, false, false},
    {"/chat/completions", "POST", ENDPOINT_CHAT, NULL, false, false},
    {"/v1/completions", "POST", ENDPOINT_COMPLETIONS, NULL, false, false},
    {"/v1/responses", "POST", ENDPOINT_RESPONSES, NULL, false, false},
    {"/v1/messages", "POST", ENDPOINT_MESSAGES, NULL, false, false},
    {"/v1/messages/count_tokens", "POST", ENDPOINT_COUNT_TOKENS, NULL, false, false},
    {"/tokenize", "POST", ENDPOINT_TOKENIZE, NULL, false, false},
    {"/detokenize", "POST", ENDPOINT_DETOKENIZE, NULL, false, false},
    {"/apply-template", "POST", ENDPOINT_APPLY_TEMPLATE, NULL, false, false},
    {"/v1/models", "GET", -1, pages_models, false, false},
    {"/models", "GET", -1, pages_models, false, false},
    {"/metrics", "GET", -1, pages_metrics, false, false},
    {"/slots", "GET", -1, pages_slots, false, false},
    {"/health", "GET", -1, pages_health, true, true},
    {"/v1/health", "GET", -1, pages_health, true, true},
    {"/", "GET", -1, pages_web, true, true},
};

/* ---- refusals ---- */

/* Seconds after which a place may be free: what is in work, over what works at once, at some seconds a request. */
static u32 retry_after(const struct server *s)
{
    u32 rounds = atomic_load(&s->n_jobs) / (s->n_slots ? s->n_slots : 1);
    return rounds < 1 ? 1 : rounds > 60 ? 60 : rounds;
}

void routes_refuse(struct server *s, struct http_exchange *x, enum endpoint endpoint, const struct api_error *e)
{
    struct bytes body = {0};
    if (e->status == 429 || e->status == 503) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", e->status == 503 ? 5 : retry_after(s));
        http_add_header(x, "Retry-After", seconds);
    }
    if (endpoint == ENDPOINT_MESSAGES || endpoint == ENDPOINT_COUNT_TOKENS)
        api_error_anthropic(e, NULL, &body);
    else
        api_error_openai(e, &body);
    http_reply(x, e->status, "application/json", &body);
}

void routes_busy(struct server *s, struct http_exchange *x, enum endpoint endpoint, const char *reason, const char *message)
{
    struct api_error e;
    api_error_set(&e, 429, "rate_limit_error", reason, NULL, "%s", message);
    routes_refuse(s, x, endpoint, &e);
}

/* ---- who asks ---- */

/* The name in a Host header or an origin's authority: without its port, in brackets or not. False: not one. */
static bool host_name(const char *text, char *out, size_t room)
{
    size_t n = text[0] == '[' ? strcspn(text, "]") + 1 : strcspn(text, ":");
    if (n >= room || strcspn(text, "/@ ") < n || (text[0] == '[' && text[n - 1] != ']'))
        return false;
    memcpy(out, text, n);
    out[n] = '\0';
    return n > 0;
}

/* DNS rebinding makes a browser send a name of the attacker's for our address: so only names that cannot be his. */
static bool host_ours(const struct server *s, const char *host)
{
    char name[256], address[16];
    if (!host_name(host, name, sizeof name))
        return false;
    if (strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, address) == 1)
        return true;
    size_t n = strlen(name);
    if (name[0] == '[') {
        name[n - 1] = '\0';
        return inet_pton(AF_INET6, name + 1, address) == 1;
    }
    for (u32 i = 0; i < s->o.n_allow_hosts; i++)
        if (strcasecmp(name, s->o.allow_hosts[i]) == 0)
            return true;
    return s->o.host && strcasecmp(name, s->o.host) == 0;
}

/* A page of ours, or of an origin that a flag allows. *cors: the value for Access-Control-Allow-Origin, or NULL. */
static bool origin_ours(const struct server *s, const char *origin, const char *host, const char **cors)
{
    *cors = NULL;
    for (u32 i = 0; i < s->o.n_cors; i++)
        if (strcmp(s->o.cors[i], "*") == 0 || strcasecmp(s->o.cors[i], origin) == 0) {
            *cors = s->o.cors[i];
            return true;
        }
    const char *at = strstr(origin, "://");
    return at && host && strcasecmp(at + 3, host) == 0;
}

/* The key of a request: "Authorization: Bearer KEY", or Anthropic's "x-api-key: KEY". */
static struct key *find_key(struct server *s, struct http_exchange *x)
{
    const char *text = http_header(x, "Authorization");
    if (text && strncasecmp(text, "Bearer ", 7) == 0)
        text += 7 + strspn(text + 7, " ");
    else
        text = http_header(x, "x-api-key");
    return text ? keys_find(s->keys, text, strlen(text)) : NULL;
}

/* ---- routes ---- */

static const struct route *find_route(const struct http_exchange *x, bool *path_known)
{
    const char *path = http_path(x), *method = http_method(x);
    *path_known = false;
    for (u32 i = 0; i < COUNT(ROUTES); i++) {
        const struct route *r = &ROUTES[i];
        bool model = r->page == pages_models && strncmp(path, r->path, strlen(r->path)) == 0 && path[strlen(r->path)] == '/';
        if (strcmp(path, r->path) != 0 && !model)
            continue;
        *path_known = true;
        if (strcmp(method, r->method) == 0 || (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0))
            return r;
    }
    return NULL;
}

static enum endpoint spoken(const struct http_exchange *x)
{
    return strncmp(http_path(x), "/v1/messages", 12) == 0 ? ENDPOINT_MESSAGES : ENDPOINT_CHAT;
}

static void allow_origin(struct http_exchange *x, const char *cors)
{
    if (!cors)
        return;
    http_add_header(x, "Access-Control-Allow-Origin", cors);
    if (strcmp(cors, "*") != 0)
        http_add_header(x, "Vary", "Origin");
    http_add_header(x, "Access-Control-Expose-Headers", "Retry-After");
}

static void allow_methods(struct http_exchange *x)
{
    for (u32 i = 0; i < COUNT(ROUTES); i++)
        if (strcmp(http_path(x), ROUTES[i].path) == 0)
            http_add_header(x, "Allow", strcmp(ROUTES[i].method, "GET") == 0 ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
}

/* OPTIONS: a browser asks whether a page may ask, or someone which methods there are. */
static int preflight(struct http_exchange *x, const char *cors)
{
    struct bytes none = {0};
    bytes_str(&none, "");
    allow_origin(x, cors);
    if (cors) {
        http_add_header(x, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        http_add_header(x, "Access-Control-Allow-Headers", "*, Authorization");
        http_add_header(x, "Access-Control-Max-Age", "600");
    }
    allow_methods(x);
    http_reply(x, 204, "text/plain", &none);
    return -1;
}

/* Host, origin, path, method, state. 0: go on with *route. */
static int admit(struct server *s, struct http_exchange *x, const struct route **route, struct api_error *e)
{
    const char *host = http_header(x, "Host"), *origin = http_header(x, "Origin"), *cors = NULL;
    bool known;
    if (host && !host_ours(s, host))
        return api_error_set(e, 403, "invalid_request_error", "host_not_allowed", NULL,
                             "this server does not go by that host name; --allow-host NAME lets it");
    if (origin && !origin_ours(s, origin, host, &cors))
        return api_error_set(e, 403, "invalid_request_error", "origin_not_allowed", NULL,
                             "pages of other origins may not ask here; --cors ORIGIN lets one");
    *route = find_route(x, &known);
    if (strcmp(http_method(x), "OPTIONS") == 0 && known)
        return preflight(x, cors);
    allow_origin(x, cors);
    if (!*route && known) {
        allow_methods(x);
        return api_error_set(e, 405, "invalid_request_error", "method_not_allowed", NULL, "%.10s is not for this path", http_method(x));
    }
    if (!*route)
        return api_error_set(e, 404, "invalid_request_error", "not_found", NULL, "there is nothing at this path");
    int state = atomic_load(&s->state);
    if (!(*route)->always && state != SERVER_READY)
        return api_error_set(e, 503, "server_error", state == SERVER_LOADING ? "loading" : "draining", NULL, "%s",
                             state == SERVER_LOADING ? "the model is being loaded: try again in a moment"
                                                     : "the server is stopping: no new requests");
    return 0;
}

static bool makes_tokens(const struct route *r)
{
    return r->endpoint >= 0 && r->endpoint <= ENDPOINT_MESSAGES;
}

int routes_headers(void *server, struct http_exchange *x)
{
    struct server *s = server;
    const struct route *route = NULL;
    struct api_error e = {0};
    char id[24];
    snprintf(id, sizeof id, "%llu", (unsigned long long)http_id(x)); /* the one of /slots and the log */
    http_add_header(x, "X-Request-Id", id);
    if (admit(s, x, &route, &e)) {
        if (e.status)
            routes_refuse(s, x, spoken(x), &e);
        return -1;
    }
    if (keys_needed(s->keys) && !route->open) {
        struct key *key = find_key(s, x);
        if (!key) {
            http_add_header(x, "WWW-Authenticate", "Bearer");
            api_error_set(&e, 401, "authentication_error", "invalid_api_key", NULL, "a valid API key is needed: Authorization: Bearer KEY");
            routes_refuse(s, x, spoken(x), &e);
            return -1;
        }
        keys_give(s->keys, key);
    }
    if (makes_tokens(route) && !job_may_enter(s)) {
        routes_busy(s, x, (enum endpoint)route->endpoint, "queue_full", "as many requests are in work or waiting as may be: try again later");
        return -1;
    }
    return 0;
}

/* A page answers at once; all else goes to the intake, with its place and its key. */
void routes_request(void *server, struct http_exchange *x)
{
    struct server *s = server;
    bool known;
    const struct route *route = find_route(x, &known);
    if (route->page) {
        route->page(s, x);
        http_release(x);
        return;
    }
    enum endpoint endpoint = (enum endpoint)route->endpoint;
    struct key *key = keys_needed(s->keys) ? find_key(s, x) : NULL;
    bool tokens = makes_tokens(route), entered = false, started = false;
    if (keys_needed(s->keys) && !key) { /* taken away between headers and body */
        struct api_error e;
        api_error_set(&e, 401, "authentication_error", "invalid_api_key", NULL, "a valid API key is needed");
        routes_refuse(s, x, endpoint, &e);
    } else if (tokens && !(entered = job_enter(s))) {
        routes_busy(s, x, endpoint, "queue_full", "as many requests are in work or waiting as may be: try again later");
    } else if (tokens && key && !(started = keys_start(s->keys, key, s->o.per_key))) {
        routes_busy(s, x, endpoint, "key_limit", "this key has as many requests in work as it may: try again later");
    } else {
        http_mark(x, tokens);
        if (intake_push(s->intake, x, key, endpoint))
            return;
        http_mark(x, 0);
        routes_busy(s, x, endpoint, "intake_full", "too many requests at once: try again later");
    }
    if (started)
        keys_stop(s->keys, key);
    if (entered)
        job_leave(s);
    keys_give(s->keys, key);
    http_release(x);
}

void routes_done(void *server, struct http_exchange *x, bool gone)
{
    struct server *s = server;
    bool known;
    const struct route *route = find_route(x, &known);
    double wall = time_now() - http_began(x);
    int status = gone && !http_status(x) ? 499 : http_status(x); /* nginx's number for: left before its answer */
    metrics_answer(s->metrics, route ? route->path : "other", status);
    if (status == 429 || status == 503)
        metrics_time(s->metrics, METRIC_REFUSAL, wall);
    if (http_marked(x)) {
        metrics_time(s->metrics, METRIC_REQUEST, wall);
        return; /* the pump writes its line, when it knows the tokens */
    }
    if (route && route->page && status < 400)
        return; /* what monitors and the page ask several times a second would bury the rest */
    struct log_request line = {.id = http_id(x), .method = http_method(x), .path = http_path(x), .peer = http_peer(x),
                               .status = status, .gone = gone, .wall_s = wall};
    log_request(s->log, &line);
}
