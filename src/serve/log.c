/* The log. See log.h. A line is made whole and written by one write, so lines of different threads never mix. */
#include "serve/log.h"
#include "serve/bytes.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct log {
    bool json;
    pthread_mutex_t lock;
    struct bytes line;
};

int log_open(struct log **out, bool json, struct err *err)
{
    struct log *l = *out = mem_array(1, sizeof *l);
    if (!l)
        return err_set(err, "out of memory");
    l->json = json;
    pthread_mutex_init(&l->lock, NULL);
    return 0;
}

void log_close(struct log *l)
{
    if (!l)
        return;
    bytes_free(&l->line);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

/* Under the lock: the line's beginning. */
static void begin(struct log *l, const char *what)
{
    struct timespec now;
    struct tm utc;
    char when[40];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(when + n, sizeof when - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
    bytes_clear(&l->line);
    if (l->json) {
        bytes_str(&l->line, "{\"time\":\"");
        bytes_str(&l->line, when);
        bytes_str(&l->line, "\",\"event\":");
        bytes_json(&l->line, what, strlen(what));
    } else {
        bytes_str(&l->line, when);
        bytes_str(&l->line, " ");
        bytes_str(&l->line, what);
    }
}

/* Under the lock: out with it. A log that cannot be written is no reason to stop serving. */
static void end(struct log *l)
{
    bytes_str(&l->line, l->json ? "}\n" : "\n");
    for (size_t at = 0; !l->line.failed && at < l->line.len;) {
        ssize_t n = write(STDERR_FILENO, l->line.at + at, l->line.len - at);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
}

static void name(struct log *l, const char *field)
{
    bytes_str(&l->line, l->json ? ",\"" : " ");
    bytes_str(&l->line, field);
    bytes_str(&l->line, l->json ? "\":" : "=");
}

static void text(struct log *l, const char *field, const char *value)
{
    char safe[160];
    name(l, field);
    err_quote(safe, sizeof safe, value, strlen(value));
    if (l->json)
        bytes_json(&l->line, value, strnlen(value, 128));
    else
        for (const char *c = safe; *c; c++) /* a space would end the field: who asks for /a%20status=200 writes no other */
            bytes_put(&l->line, *c == ' ' ? "\\x20" : c, *c == ' ' ? 4 : 1);
}

static void number(struct log *l, const char *field, u64 value)
{
    name(l, field);
    bytes_u64(&l->line, value);
}

static void ms(struct log *l, const char *field, double seconds)
{
    char buf[32];
    snprintf(buf, sizeof buf, "%.1f", seconds * 1e3);
    name(l, field);
    bytes_str(&l->line, buf);
}

void log_event(struct log *l, const char *what, const char *fmt, ...)
{
    struct err line; /* err_set makes the text safe */
    char sentence[sizeof line.text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    err_set(&line, "%s", sentence);
    pthread_mutex_lock(&l->lock);
    begin(l, what);
    if (l->json) {
        name(l, "message");
        bytes_json(&l->line, line.text, strlen(line.text));
    } else {
        bytes_str(&l->line, " ");
        bytes_str(&l->line, line.text);
    }
    end(l);
    pthread_mutex_unlock(&l->lock);
}

void log_request(struct log *l, const struct log_request *r)
{
    pthread_mutex_lock(&l->lock);
    begin(l, "request");
    number(l, "id", r->id);
    text(l, "method", r->method);
    text(l, "path", r->path);
    text(l, "peer", r->peer);
    number(l, "status", (u64)(r->status > 0 ? r->status : 0));
    if (r->gone)
        number(l, "client_gone", 1);
    if (r->refusal)
        text(l, "refused", r->refusal);
    ms(l, "wall_ms", r->wall_s);
    if (r->n_choices) {
        number(l, "choices", r->n_choices);
        number(l, "prompt_tokens", r->n_prompt);
        number(l, "cached_tokens", r->n_cached);
        number(l, "generated_tokens", r->n_generated);
        ms(l, "queue_ms", r->queue_s);
        ms(l, "prompt_ms", r->prompt_s);
        ms(l, "decode_ms", r->decode_s);
    }
    end(l);
    pthread_mutex_unlock(&l->lock);
}
