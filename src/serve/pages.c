/* Answers that are made at once: health, metrics, slots, models, the page itself. */
#include "serve/server.h"
#include "base/sysmem.h"
#include "page_html.h"

#include <stdlib.h>
#include <string.h>

void pages_look(struct server *s, struct health *h)
{
    int state = atomic_load(&s->state);
    struct ps_stats stats;
    *h = (struct health){.status = "loading"};
    if (state == SERVER_LOADING)
        return;
    ps_engine_stats(s->engine, &stats);
    h->message = stats.broken;
    h->warning = stats.warning;
    h->status = stats.broken                  ? "broken"
                : stats.turn_s > s->o.stuck_s ? "stuck"
                : state == SERVER_DRAINING    ? "draining"
                                              : "ok";
    h->ok = strcmp(h->status, "ok") == 0;
}

static void member(struct bytes *out, const char *name, const char *text)
{
    if (!text)
        return;
    bytes_str(out, ",\"");
    bytes_str(out, name);
    bytes_str(out, "\":");
    bytes_json(out, text, strlen(text));
}

void pages_health(struct server *s, struct http_exchange *x)
{
    struct bytes out = {0};
    struct health h;
    pages_look(s, &h);
    bytes_str(&out, "{\"status\":");
    bytes_json(&out, h.status, strlen(h.status));
    member(&out, "message", h.message);
    member(&out, "warning", h.warning);
    bytes_str(&out, "}\n");
    http_reply(x, h.ok ? 200 : 503, "application/json", &out);
}

void pages_metrics(struct server *s, struct http_exchange *x)
{
    struct bytes out = {0};
    struct metrics_now now = {.n_requests = atomic_load(&s->n_jobs), .n_connections = http_connections(s->http),
                              .resident_bytes = sysmem_resident(),
                              .draining = atomic_load(&s->state) == SERVER_DRAINING};
    ps_engine_stats(s->engine, &now.engine);
    metrics_write(s->metrics, &now, &out);
    http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}

static void field(struct bytes *out, const char *name, double value)
{
    bytes_str(out, ",\"");
    bytes_str(out, name);
    bytes_str(out, "\":");
    bytes_f64(out, value);
}

static void put_slot(struct bytes *out, u32 i, const struct ps_slot *slot, u32 n_ctx)
{
    static const char *const STATES[] = {"free", "prompt", "decode"};
    double now = time_now();
    bytes_str(out, i ? ",{\"id\":" : "{\"id\":");
    bytes_u64(out, i);
    bytes_str(out, ",\"state\":\"");
    bytes_str(out, STATES[slot->state]);
    bytes_str(out, "\"");
    field(out, "n_ctx", n_ctx);
    field(out, "n_kept", slot->n_kept);
    if (slot->state != PS_SLOT_FREE) {
        field(out, "request", (double)slot->tag);
        field(out, "n_prompt", slot->n_prompt);
        field(out, "n_cached", slot->n_cached);
        field(out, "n_generated", slot->n_generated);
        field(out, "running_ms", (now - slot->started_s) * 1e3);
        if (slot->first_s > 0 && slot->n_generated > 1)
            field(out, "tok_s", (slot->n_generated - 1) / (now - slot->first_s));
    }
    bytes_str(out, "}");
}

void pages_slots(struct server *s, struct http_exchange *x)
{
    struct bytes out = {0};
    struct ps_slot *slots = mem_array(s->n_slots, sizeof *slots);
    struct ps_stats stats;
    ps_engine_stats(s->engine, &stats);
    u32 n = slots ? ps_engine_slots(s->engine, slots, s->n_slots) : 0;
    bytes_str(&out, "{\"slots\":[");
    for (u32 i = 0; i < n; i++)
        put_slot(&out, i, &slots[i], s->n_ctx);
    bytes_str(&out, "]");
    field(&out, "active", stats.n_active);
    field(&out, "queued", stats.n_queued);
    field(&out, "requests", atomic_load(&s->n_jobs));
    field(&out, "steps", (double)stats.steps);
    field(&out, "submissions", (double)stats.submissions);
    field(&out, "rows", (double)stats.rows);
    field(&out, "prompt_rows", (double)stats.prompt_rows);
    field(&out, "logit_rows", (double)stats.logit_rows);
    field(&out, "bytes_read", (double)stats.bytes_read);
    field(&out, "time_s", time_now()); /* the clock of differences between two readings */
    field(&out, "setup_s", stats.setup_s);
    field(&out, "submit_s", stats.submit_s);
    field(&out, "wait_s", stats.wait_s);
    field(&out, "tail_s", stats.tail_s);
    bytes_str(&out, "}\n");
    free(slots);
    http_add_header(x, "Cache-Control", "no-store");
    http_reply(x, 200, "application/json", &out);
}

static void put_model(struct server *s, struct bytes *out)
{
    struct ps_model_info info;
    ps_model_info(s->model, &info);
    bytes_str(out, "{\"id\":");
    bytes_json(out, s->name, strlen(s->name));
    bytes_str(out, ",\"object\":\"model\",\"owned_by\":\"plainsong\",\"created\":");
    bytes_u64(out, s->started);
    bytes_str(out, ",\"type\":\"model\",\"display_name\":");
    bytes_json(out, info.name, strlen(info.name));
    bytes_str(out, ",\"created_at\":\"1970-01-01T00:00:00Z\",\"context_length\":");
    bytes_u64(out, s->n_ctx);
    bytes_str(out, ",\"meta\":{\"arch\":");
    bytes_json(out, info.arch, strlen(info.arch));
    field(out, "n_params", (double)info.n_params);
    field(out, "n_vocab", info.n_vocab);
    field(out, "n_ctx_train", info.n_ctx);
    field(out, "size", (double)info.file_bytes);
    bytes_str(out, "}}");
}

/* /v1/models, or /v1/models/NAME. */
void pages_models(struct server *s, struct http_exchange *x)
{
    struct bytes out = {0};
    const char *at = strstr(http_path(x), "models/");
    if (at && strcmp(at + 7, s->name) != 0) {
        struct api_error e;
        api_error_set(&e, 404, "invalid_request_error", "model_not_found", "model", "there is no such model here: this server has \"%.100s\"",
                      s->name);
        routes_refuse(s, x, ENDPOINT_CHAT, &e);
        return;
    }
    if (!at)
        bytes_str(&out, "{\"object\":\"list\",\"data\":[");
    put_model(s, &out);
    if (!at)
        bytes_str(&out, "],\"has_more\":false}");
    http_reply(x, 200, "application/json", &out);
}

void pages_web(struct server *s, struct http_exchange *x)
{
    (void)s;
    struct bytes out = {0};
    bytes_put(&out, page_html, sizeof page_html - 1);
    http_add_header(x, "Content-Security-Policy",
                    "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
                    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                    "require-trusted-types-for 'script'; trusted-types 'none'"); /* no text becomes markup */
    http_add_header(x, "X-Content-Type-Options", "nosniff");
    http_add_header(x, "Referrer-Policy", "no-referrer");
    http_add_header(x, "Cache-Control", "no-cache");
    http_reply(x, 200, "text/html; charset=utf-8", &out);
}
