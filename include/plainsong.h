/* plainsong: many streams of one 4-bit mixture-of-experts model, decoded together, each with the bytes it would
 * have had alone.
 *
 *     struct ps_error err;
 *     struct ps_model *model = ps_model_open("model.gguf", NULL, &err);
 *     struct ps_engine *engine = ps_engine_open(model, NULL, &err);
 *     struct ps_stream *s = ps_stream_open(engine, &request, &err);
 *     while (ps_stream_next(s, &token, &err) == 1) ...
 *     ps_stream_close(s);
 *
 * Functions return 0 or -1 (or what their comment says) and fill err, one line, on failure. Objects are closed in
 * the reverse order; every close accepts NULL. A model is immutable and may be shared; streams of one engine may be
 * used from different threads, one thread a stream. */
#ifndef PLAINSONG_H
#define PLAINSONG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PS_API __attribute__((visibility("default")))

/* What kind of failure, for a caller that acts on it. */
enum ps_kind {
    PS_FAILED = 0,  /* the world's, or the model's: trying the same again may help or not */
    PS_INVALID,     /* the request is wrong and will be wrong again */
    PS_TOO_LONG,    /* prompt and answer can never fit the context */
    PS_BUSY,        /* not now: the queue is full */
    PS_BROKEN       /* the device failed and stays so: nothing succeeds until the engine is opened anew */
};

struct ps_error {
    char text[512];
    enum ps_kind kind;
};

struct ps_model;
struct ps_engine;
struct ps_stream;

PS_API const char *ps_version(void);

/* The version of the arithmetic (docs/numerics.md): it changes when any bit of any answer does. */
#define PS_CONTRACT 1

/* ---- model ---- */

/* Called while something long runs: what ("loading"), done and total bytes. May come from any thread, one at a time. */
struct ps_progress {
    void (*tell)(void *arg, const char *what, uint64_t done, uint64_t total);
    void *arg;
};

/* Maps and checks the file, opens its tokenizer. Weights are read by ps_engine_open. */
PS_API struct ps_model *ps_model_open(const char *path, struct ps_error *err);
PS_API void ps_model_close(struct ps_model *m);

struct ps_model_info {
    const char *name, *arch;
    uint32_t n_vocab, n_ctx, n_layers, n_experts, n_used;
    uint64_t n_params, file_bytes;
    const char *chat_template; /* not NUL-terminated; NULL when the file has none */
    size_t chat_template_len;
    const char *bos, *eos;     /* texts of those tokens, "" when none */
};
PS_API void ps_model_info(const struct ps_model *m, struct ps_model_info *info);

/* Ids of a UTF-8 text, malloc'd into *ids (the caller frees). parse_special: spelled control tokens become their
 * ids; never for text that a user wrote. add_bos: where the file asks for it. */
PS_API int ps_encode(const struct ps_model *m, const char *text, size_t len, bool parse_special, bool add_bos,
                     uint32_t **ids, size_t *n, struct ps_error *err);

/* Ids -> text, one token at a time, never half a character. */
struct ps_decoder;
PS_API struct ps_decoder *ps_decoder_open(const struct ps_model *m, bool keep_special);
/* The text that id completes, valid until the next call; *len may be 0. */
PS_API const char *ps_decoder_push(struct ps_decoder *d, uint32_t id, size_t *len);
PS_API const char *ps_decoder_end(struct ps_decoder *d, size_t *len);
PS_API void ps_decoder_close(struct ps_decoder *d);

/* Whether the token ends an answer (eos, eot, the template's end mark). */
PS_API bool ps_is_end(const struct ps_model *m, uint32_t id);

/* ---- engine ---- */

struct ps_engine_options { /* zero-initialise; 0 or NULL: the default */
    uint32_t n_slots;      /* 4 */
    uint32_t n_ctx;        /* per slot; the largest that fits, up to the model's own */
    uint32_t n_threads;    /* one for each core */
    uint32_t n_queue;      /* streams that may wait for a slot: 64 */
    uint32_t chunk;        /* prompt rows a step reads at most: the device's, 128 on a CPU */
    const char *device;    /* "cpu" */
    const char *isa;       /* of "cpu" only: the best of this CPU */
    const char *kv;        /* "f16"; "q8_0" */
    bool serialize;        /* one stream in a submission: the oracle fused steps are compared with */
    bool no_setup_cache;   /* prepare each step anew */
    bool experts_per_row;  /* the ablation of grouped experts */
    struct ps_progress progress;
};

PS_API struct ps_engine *ps_engine_open(const struct ps_model *m, const struct ps_engine_options *o,
                                        struct ps_error *err);
/* Every stream was closed before, so no thread waits in one; what closed streams left running is cancelled. */
PS_API void ps_engine_close(struct ps_engine *e);

struct ps_stats { /* counted since open */
    uint64_t steps, submissions, waits, rows, prompt_rows, logit_rows, expert_groups;
    uint64_t bytes_read;       /* weights and kv, by the plan's count */
    double setup_s, submit_s, wait_s, tail_s; /* their sum is the wall time of all steps */
    uint32_t n_slots, n_ctx;
    uint32_t n_threads;        /* of the host that the device works with; 0: none of its own */
    uint64_t setups, copied;   /* steps prepared anew; positions copied from another slot's prefix */
    uint64_t weight_bytes, kv_bytes, scratch_bytes, setup_bytes;
    uint32_t n_active, n_queued; /* now */
    double turn_s;             /* how long the engine's present turn (at most one step) lasts already; 0: it waits for work */
    double load_s;
    double peak_gb_s;          /* what a device's own memory gives at most; 0: not known, or the host's */
    const char *device, *isa, *kv; /* isa: of a GPU the chip's name */
    const char *warning;       /* NULL, or one line: by the device's self-test its results are not the promised bits */
    const char *broken;        /* NULL, or one line: the device failed and stays so; streams end with it, none is opened */
};
PS_API void ps_engine_stats(struct ps_engine *e, struct ps_stats *s);

/* What an engine holds in memory for as long as it is open, in bytes, and what is left beside it. */
struct ps_cost {
    uint64_t weights;
    uint64_t kv;               /* the arena: n_slots x n_ctx (rounded up to 32) x position_bytes */
    uint64_t setup;            /* what is prepared once and kept: cuts of the work, the rotation table */
    uint64_t scratch;
    uint64_t total;            /* of the four */
    uint64_t position_bytes;   /* keys and values of one position of one slot */
    uint32_t n_slots, n_ctx;
    uint64_t opened_bytes;     /* available when the engine was opened, before it took anything: of the device's own
                                * memory, or of the host's, where cgroup limits count; 0: not known */
    uint64_t free_bytes;       /* available now, likewise */
    uint32_t n_others;         /* other processes of this program's name that run now; of the largest: */
    uint32_t other_pid;
    uint64_t other_bytes;      /* resident */
};
/* Reads the system's figures each time (on Linux /proc; of a device's own memory those): for a start or a page of
 * metrics, not for each request. */
PS_API void ps_engine_cost(struct ps_engine *e, struct ps_cost *c);

struct ps_slot {
    enum ps_slot_state { PS_SLOT_FREE, PS_SLOT_PROMPT, PS_SLOT_DECODE } state;
    uint64_t tag;              /* the request's; of a free slot: of the last one it served */
    uint32_t n_kept;           /* positions that hold keys and values, also of a free slot */
    uint32_t n_prompt, n_cached, n_generated; /* of the stream */
    double started_s, first_s; /* CLOCK_MONOTONIC: joined; first token (0: none yet) */
};
/* Fills slots[0..n), n at most the number of slots; returns that number. Any thread. */
PS_API uint32_t ps_engine_slots(struct ps_engine *e, struct ps_slot *slots, uint32_t n);

/* ---- streams ---- */

struct ps_bias {
    uint32_t id;
    float add;
};

struct ps_sampling { /* zero-initialise for greedy */
    float temperature;        /* 0 (or less than 1e-6): greedy */
    uint32_t top_k;           /* 0: off */
    float top_p;              /* 0 or 1: off */
    float min_p;              /* 0: off */
    float repeat_penalty;     /* 0 or 1: off; divides positive, multiplies negative logits of seen tokens */
    uint32_t repeat_last_n;   /* tokens looked back on by the three penalties; 0: the whole text */
    float presence_penalty, frequency_penalty;
    uint64_t seed;
    const struct ps_bias *bias; /* n_bias of them, copied at open */
    uint32_t n_bias;
};

struct ps_logprob {
    uint32_t id;
    float logprob;             /* natural logarithm of the probability under the model: before bias, mask and temperature */
};

/* Which tokens a stream may take. Called on a thread of the engine, for one stream by one thread at a time, between two
 * steps: allowed before a token is chosen, took when it was. */
struct ps_mask {
    void *arg;
    const uint32_t *(*allowed)(void *arg); /* bits, 32 to a word, low bit first, 1 = allowed: (n_vocab), valid until the
                                            * next call; NULL: all */
    void (*took)(void *arg, uint32_t id);  /* end tokens too */
    void (*done)(void *arg);   /* NULL, or called once when the engine will not ask again, which may be a step after
                                * ps_stream_close: arg may go now. By any thread, with locks held, like notify. Not when
                                * ps_stream_open fails */
};

struct ps_request {
    const uint32_t *ids;       /* the prompt, copied; at least one */
    size_t n_ids;
    uint32_t max_tokens;       /* 0: as many as the context holds */
    struct ps_sampling sampling;
    uint32_t choice;           /* 0..n-1 when one prompt has n answers: part of the random counter */
    bool ignore_end;           /* go on past end tokens: for measuring */
    bool want_logits;          /* ps_token.logits is filled: for verify */
    uint64_t domain;           /* kept prefixes are reused among requests of one domain only */
    double deadline_s;         /* seconds from now after which the stream ends with PS_END_DEADLINE; 0: none */
    bool want_logprobs;        /* ps_token.logprob is filled, and */
    uint32_t n_top;            /* the likeliest tokens beside it: at most 20 */
    struct ps_mask mask;       /* allowed NULL: none */
    void (*notify)(void *arg); /* NULL, or called when a token is there and when the stream has ended: on the engine's thread
                                * with its lock held, so it only leaves a note and calls nothing of this header. Never
                                * after ps_stream_close returned */
    void *notify_arg;
    uint64_t tag;              /* the caller's name for it, shown by ps_engine_slots */
    const uint32_t *forced;    /* NULL, or max_tokens ids, copied: the answer is these, whatever the logits say; logits
                                * are made and sampled all the same, and no id ends the stream. For measuring */
};

enum ps_end { PS_END_NONE = 0, PS_END_STOP, PS_END_LENGTH, PS_END_CANCEL, PS_END_DEADLINE, PS_END_ERROR };

struct ps_token {
    uint32_t id;
    uint32_t batch_rows;       /* rows of the step that made it */
    const float *logits;       /* (n_vocab) when asked for; valid until the next call on this stream */
    double time;               /* when it was made, in seconds of CLOCK_MONOTONIC */
    float logprob;             /* of id, when asked for */
    const struct ps_logprob *top; /* (n_top), likeliest first; valid until the stream is closed */
};

/* Queues the request. What can never fit is refused here with both numbers (PS_TOO_LONG), a wrong field by its name
 * (PS_INVALID), with PS_BUSY when as many wait for a slot as may, with PS_BROKEN and its line when the device is
 * broken. */
PS_API struct ps_stream *ps_stream_open(struct ps_engine *e, const struct ps_request *r, struct ps_error *err);
/* Waits for the next token: 1 and *t; 0 at the end (ps_stream_info tells why); -1 when the stream failed (PS_BROKEN: with the
 * device). An end token is not handed out. */
PS_API int ps_stream_next(struct ps_stream *s, struct ps_token *t, struct ps_error *err);
/* The same without waiting: 2 when there is no token yet. */
PS_API int ps_stream_poll(struct ps_stream *s, struct ps_token *t, struct ps_error *err);
/* Takes effect at the next step; ps_stream_next then returns 0. Any thread, also from a signal's thread. */
PS_API void ps_stream_cancel(struct ps_stream *s);

struct ps_stream_info {
    enum ps_end end;
    uint32_t n_prompt, n_cached, n_generated;
    int32_t slot;              /* -1 while queued */
    uint32_t end_id;           /* the end token, when end is PS_END_STOP */
    double queue_s, prompt_s, decode_s;
    uint64_t logits_hash;      /* of the last token's logits, end token or not; 0 unless the stream has ended by itself */
};
PS_API void ps_stream_info(struct ps_stream *s, struct ps_stream_info *info);
/* The engine's counters as they stood when the stream's first token was chosen, however late its reader looked; before that, now. */
PS_API void ps_stream_first(struct ps_stream *s, struct ps_stats *stats);
PS_API void ps_stream_close(struct ps_stream *s); /* cancels when still running */

#ifdef __cplusplus
}
#endif
#endif
