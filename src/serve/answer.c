/* See answer.h. Each stage hands runs of bytes to the next and keeps only what a tag, a stop string or white space at
 * an edge may still need. What one token makes is told in one event for each kind. */
#include "serve/answer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char think_open[] = "<think>", think_close[] = "</think>", tool_open[] = "<tool_call>";

/* Tags that some files mark as control tokens, which have no text of their own. */
static const char *const tags[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};

enum region {
    LEAD, /* nothing but white space and the beginning of <think> so far */
    REASONING,
    CONTENT,
    CALL,
};

/* Text without the white space at its edges. */
struct trim {
    bool lead; /* nothing has come yet: white space is dropped */
    bool hold; /* white space at the end waits for what follows */
    struct bytes space;
};

struct answer {
    struct answer_options o;
    struct token_stream stream;
    struct stops_at stops_at;
    enum region region;
    u32 matched;       /* bytes of the region's tag, not told yet */
    struct bytes lead; /* LEAD: what was read */
    struct trim trim;
    struct calls calls;
    u32 n_calls; /* begun */
    u32 n_reasoning;
    i32 tag_ids[COUNT(tags)];
    const char *stop;
    bool enough, finished;
    bool has_pending;
    enum answer_kind pending_kind;
    struct bytes pending; /* text of pending_kind */
    char id[17];
    char *buf;
    size_t buf_bytes;
};

/* ---- telling ---- */

static void flush(struct answer *a)
{
    if (!a->has_pending)
        return;
    a->has_pending = false;
    a->o.tell(a->o.arg, &(struct answer_event){.kind = a->pending_kind,
                                               .text = a->pending.at,
                                               .len = a->pending.len,
                                               .call = a->n_calls - 1,
                                               .id = a->id});
    bytes_clear(&a->pending);
}

static void say(struct answer *a, enum answer_kind kind, const char *text, size_t len)
{
    if (len == 0)
        return;
    if (a->has_pending && a->pending_kind != kind)
        flush(a);
    a->pending_kind = kind;
    bytes_put(&a->pending, text, len);
    a->has_pending = a->pending.len > 0;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void say_trimmed(struct answer *a, enum answer_kind kind, const char *text, size_t len)
{
    struct trim *t = &a->trim;
    size_t end = len;
    while (t->lead && len && is_space(*text))
        text++, len--, end--;
    if (len == 0)
        return;
    t->lead = false;
    while (t->hold && end && is_space(text[end - 1]))
        end--;
    if (end) {
        say(a, kind, t->space.at, t->space.len);
        bytes_clear(&t->space);
        say(a, kind, text, end);
    }
    bytes_put(&t->space, text + end, len - end);
}

static void trim_start(struct answer *a, bool lead, bool hold)
{
    a->trim.lead = lead;
    a->trim.hold = hold;
    bytes_clear(&a->trim.space);
}

static void content(struct answer *a, const char *text, size_t len)
{
    say_trimmed(a, ANSWER_CONTENT, text, len);
}

/* ---- calls ---- */

/* 64 bits of FNV-1a over the name of the call, mixed (splitmix64's finish) so that neighbours look unlike. */
static void call_id(struct answer *a)
{
    const char *name = a->o.request_id ? a->o.request_id : "";
    u64 h = 0xCBF29CE484222325ull;
    for (; *name; name++)
        h = (h ^ (u8)*name) * 0x100000001B3ull;
    h += ((u64)a->o.choice << 32 | a->n_calls) * 0x9E3779B97F4A7C15ull;
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9ull;
    h = (h ^ h >> 27) * 0x94D049BB133111EBull;
    h ^= h >> 31;
    for (int i = 0; i < 16; i++)
        a->id[i] = "0123456789abcdef"[h >> (60 - 4 * i) & 15];
}

static void on_call(void *arg, enum calls_part part, const char *text, size_t len)
{
    struct answer *a = arg;
    if (part == CALLS_ARGUMENTS) {
        say(a, ANSWER_ARGUMENTS, text, len);
        return;
    }
    flush(a);
    if (part == CALLS_BEGIN) {
        bytes_clear(&a->trim.space); /* between the text and the call */
        call_id(a);
        a->n_calls++;
    }
    a->o.tell(a->o.arg, &(struct answer_event){.kind = part == CALLS_BEGIN ? ANSWER_CALL : ANSWER_CALL_END,
                                               .text = text,
                                               .len = len,
                                               .call = a->n_calls - 1,
                                               .id = a->id});
}

/* The call is over. What it left is text; the end of that may be the beginning of the next call's tag. */
static void call_over(struct answer *a)
{
    const struct bytes *held = &a->calls.held;
    size_t len = held->len, first = a->calls.begun ? 0 : sizeof tool_open - 1;
    a->region = CONTENT;
    a->matched = 0;
    if (a->calls.begun) {
        trim_start(a, true, true);
        if (a->o.one_call) {
            a->enough = true;
            return;
        }
    }
    for (u32 n = sizeof tool_open - 2; n > 0 && !a->matched; n--)
        if (len >= first + n && !memcmp(held->at + len - n, tool_open, n))
            a->matched = n;
    if (len)
        content(a, held->at, len - a->matched);
}

/* ---- regions ---- */

/* Bytes of text[0..len) up to the end of the tag, or all; those that are not the tag's go to kind, the tag's
 * beginning is held back. *found: the tag is complete. In all tags < stands at the front only, so a mismatch starts
 * over. */
static size_t until(struct answer *a, const char *tag, enum answer_kind kind, const char *text, size_t len, bool *found)
{
    size_t i = 0;
    *found = false;
    while (i < len) {
        if (a->matched == 0) {
            const char *at = memchr(text + i, '<', len - i);
            size_t n = at ? (size_t)(at - text) - i : len - i;
            say_trimmed(a, kind, text + i, n);
            i += n;
            if (!at)
                break;
        }
        if (text[i] != tag[a->matched]) {
            say_trimmed(a, kind, tag, a->matched);
            a->matched = 0;
            continue;
        }
        i++;
        if (!tag[++a->matched]) {
            a->matched = 0;
            *found = true;
            break;
        }
    }
    return i;
}

static void enter_content(struct answer *a, bool lead)
{
    a->region = CONTENT;
    a->matched = 0;
    trim_start(a, lead, a->o.parse_calls);
}

static void enter_reasoning(struct answer *a)
{
    a->region = REASONING;
    a->matched = 0;
    trim_start(a, true, true);
}

static size_t feed(struct answer *a, const char *text, size_t len);

/* White space, then <think> or something else. A prompt that opened <think> may see it once more. */
static size_t feed_lead(struct answer *a, const char *text, size_t len)
{
    size_t i = 0;
    bool other = false;
    for (; i < len && think_open[a->matched]; i++) {
        if (text[i] == think_open[a->matched])
            a->matched++;
        else if ((other = a->matched || !is_space(text[i])))
            break;
        bytes_put(&a->lead, text + i, 1);
    }
    if (!think_open[a->matched]) {
        bytes_clear(&a->lead);
        enter_reasoning(a);
    } else if (other) {
        if (a->o.in_reasoning)
            enter_reasoning(a);
        else
            enter_content(a, false);
        for (size_t k = 0; k < a->lead.len;) /* not fed to this function again: the region has changed */
            k += feed(a, a->lead.at + k, a->lead.len - k);
        bytes_clear(&a->lead);
    }
    return i;
}

/* Returns the bytes taken: at least one, unless the region changed. */
static size_t feed(struct answer *a, const char *text, size_t len)
{
    bool found;
    size_t n = len;
    switch (a->region) {
    case LEAD:
        return feed_lead(a, text, len);
    case REASONING:
        n = until(a, think_close, ANSWER_REASONING, text, len, &found);
        if (found)
            enter_content(a, true);
        return n;
    case CONTENT:
        if (!a->o.parse_calls) {
            content(a, text, len);
            return len;
        }
        n = until(a, tool_open, ANSWER_CONTENT, text, len, &found);
        if (found) {
            a->region = CALL;
            calls_begin(&a->calls);
        }
        return n;
    case CALL:
        n = calls_push(&a->calls, text, len, &found);
        if (found)
            call_over(a);
        return n;
    }
    return n;
}

static void feed_all(struct answer *a, const char *text, size_t len)
{
    for (size_t i = 0; i < len && !a->enough;)
        i += feed(a, text + i, len - i);
}

/* ---- the ends ---- */

static void text_in(struct answer *a, const char *text, size_t len)
{
    if (a->enough || len == 0)
        return;
    if (!a->o.stops) {
        feed_all(a, text, len);
        return;
    }
    struct stops_cut c = stops_push(a->o.stops, &a->stops_at, text, len);
    feed_all(a, c.head, c.n_head);
    feed_all(a, c.tail, c.n_tail);
    if (c.found >= 0 && !a->enough) {
        size_t n;
        a->stop = stops_text(a->o.stops, (u32)c.found, &n);
        a->enough = true;
    }
}

bool answer_failed(const struct answer *a)
{
    return a->pending.failed || a->lead.failed || a->trim.space.failed || calls_failed(&a->calls);
}

bool answer_text(struct answer *a, const char *text, size_t len)
{
    text_in(a, text, len);
    flush(a);
    return !a->enough && !answer_failed(a);
}

bool answer_push(struct answer *a, u32 id)
{
    size_t n_bytes;
    token_bytes(a->o.tokens, id, false, &n_bytes);
    a->n_reasoning += a->region == REASONING || (a->region == LEAD && a->o.in_reasoning);
    for (u32 i = 0; i < COUNT(tags) && n_bytes == 0; i++) {
        if (a->tag_ids[i] != (i32)id)
            continue;
        size_t n = token_stream_end(&a->stream, a->buf, a->buf_bytes);
        text_in(a, a->buf, n);
        return answer_text(a, tags[i], strlen(tags[i]));
    }
    size_t n = token_stream_push(a->o.tokens, &a->stream, id, a->buf, a->buf_bytes);
    return answer_text(a, a->buf, n);
}

/* What the region holds back is text after all. */
static void release(struct answer *a)
{
    switch (a->region) {
    case LEAD:
        if (a->o.in_reasoning)
            enter_reasoning(a);
        else
            enter_content(a, false);
        say_trimmed(a, a->region == REASONING ? ANSWER_REASONING : ANSWER_CONTENT, a->lead.at, a->lead.len);
        break;
    case REASONING:
        say_trimmed(a, ANSWER_REASONING, think_close, a->matched);
        break;
    case CALL:
        calls_end(&a->calls);
        call_over(a);
        /* fall through */
    case CONTENT:
        content(a, tool_open, a->matched);
        break;
    }
    a->matched = 0;
    if (!a->n_calls)
        say(a, a->region == REASONING ? ANSWER_REASONING : ANSWER_CONTENT, a->trim.space.at, a->trim.space.len);
    flush(a);
}

void answer_end(struct answer *a, bool length)
{
    assert(!a->finished);
    if (!a->enough && a->o.tokens)
        text_in(a, a->buf, token_stream_end(&a->stream, a->buf, a->buf_bytes));
    if (!a->enough && a->o.stops) {
        struct stops_cut c = stops_end(a->o.stops, &a->stops_at);
        feed_all(a, c.head, c.n_head);
    }
    if (a->enough)
        length = false; /* it was complete before the limit came */
    release(a);
    a->finished = true;
    a->o.tell(a->o.arg, &(struct answer_event){.kind = ANSWER_FINISH,
                                               .text = "",
                                               .stop = a->stop,
                                               .finish = length       ? FINISH_LENGTH
                                                         : a->n_calls ? FINISH_TOOL_CALLS
                                                                      : FINISH_STOP});
}

u32 answer_reasoning_tokens(const struct answer *a)
{
    return a->n_reasoning;
}

int answer_open(struct answer **out, const struct answer_options *o)
{
    struct answer *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a)
        return -1;
    a->o = *o;
    if (o->tokens) {
        a->buf_bytes = 3 * (token_max_bytes(o->tokens) + 4);
        a->buf = malloc(a->buf_bytes);
        if (!a->buf) {
            free(a);
            return -1;
        }
        for (u32 i = 0; i < COUNT(tags); i++)
            a->tag_ids[i] = token_find(o->tokens, tags[i], strlen(tags[i]));
    }
    a->calls.tools = o->tools;
    a->calls.tell = on_call;
    a->calls.arg = a;
    if (o->split_reasoning)
        a->region = LEAD;
    else
        enter_content(a, false);
    *out = a;
    return 0;
}

void answer_close(struct answer *a)
{
    if (!a)
        return;
    calls_free(&a->calls);
    bytes_free(&a->lead);
    bytes_free(&a->trim.space);
    bytes_free(&a->pending);
    free(a->buf);
    free(a);
}

bool answer_in_reasoning(const struct token_model *t, const u32 *ids, size_t n)
{
    /* A template writes the tag and at most a few line ends behind it. */
    struct bytes tail = {0};
    size_t from = n > 16 ? n - 16 : 0, len;
    for (size_t i = from; i < n; i++) {
        const char *text = token_bytes(t, ids[i], true, &len);
        bytes_put(&tail, text, len);
    }
    while (tail.len && is_space(tail.at[tail.len - 1]))
        tail.len--;
    bool in = tail.len >= sizeof think_open - 1 &&
              !memcmp(tail.at + tail.len - (sizeof think_open - 1), think_open, sizeof think_open - 1);
    bytes_free(&tail);
    return in;
}
