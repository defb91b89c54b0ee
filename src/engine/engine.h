/* The engine's insides: what the scheduler thread and the callers of the public API share.
 *
 * One thread (sched.c) owns the device, the slots and every stream's sampler. Callers meet it at `lock`: they add
 * streams to a queue, read finished tokens and set flags. The lock is never held while the device works. */
#ifndef PS_ENGINE_H
#define PS_ENGINE_H

#include "device/device.h"
#include "engine/kv.h"
#include "engine/logprob.h"
#include "engine/pace.h"
#include "engine/sample.h"
#include "plainsong.h"

#include <pthread.h>
#include <stdatomic.h>

struct made { /* how a token came about */
    double time;
    u32 batch_rows; /* of its step */
};

enum phase { PHASE_QUEUED, PHASE_PROMPT, PHASE_DECODE, PHASE_DONE };

struct ps_stream {
    struct ps_engine *engine;
    struct ps_stream *next;     /* in the queue or the list of active streams; scheduler's, under lock */
    /* fixed at open */
    u32 *ids;                   /* prompt, then what was generated; room for n_prompt + max_tokens */
    u32 n_prompt, max_tokens;
    bool ignore_end;
    bool forced;                /* the answer's ids stand in ids already */
    u64 domain, tag;
    struct ps_mask mask;
    void (*notify)(void *arg);
    void *notify_arg;
    double deadline;            /* on time_now's clock; 0: none */
    float *logits;              /* (max_tokens, n_vocab), or NULL */
    float *logprobs;            /* (max_tokens), or NULL */
    struct ps_logprob *top;     /* (max_tokens, n_top), or NULL */
    u32 n_top;
    struct sampler *sampler;    /* scheduler's after open */
    /* scheduler's */
    i32 slot;
    i32 copy_from;              /* slot whose prefix is still to be copied, or -1 */
    u32 n_run;                  /* tokens of ids whose keys and values are in the slot */
    double opened, started, first, last;
    u32 step_row, step_rows;    /* of the step being made: first logits row, rows */
    bool step_logits;           /* what came of it: logits, and the token chosen, or -1 */
    i32 step_id;
    i32 step_head;              /* the token by the head of the row, or -1 */
    const float *step_row_at;   /* the row, or NULL: not needed */
    u64 step_hash;
    /* both, under engine->lock */
    enum phase phase;
    enum ps_end end;
    u32 n_generated, n_read, n_cached, end_id;
    struct made *made;          /* [max_tokens] of each token */
    u64 logits_hash;
    struct ps_stats at_first;   /* once `first` is set */
    struct err error;
    pthread_cond_t changed;
    atomic_bool cancel;         /* set without the lock, also from a signal handler */
    bool abandoned;             /* closed by its owner while running: the scheduler frees it */
};

struct ps_engine {
    const struct ps_model *model;
    struct plan plan;
    struct device *device;
    struct kv *kv;
    struct pace pace;
    u32 turn;                   /* whose prompt is served first: rotates */
    u32 n_slots, n_ctx, n_queue, chunk;
    bool serialize;
    u32 *end_ids;
    u32 n_end_ids;
    struct row *rows;           /* of the step being made */
    struct ps_stream **step;    /* streams that take part in it */
    struct ps_stream **choosing; /* those of them that get a token */

    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t lock;
    pthread_cond_t work;        /* the queue has something, or quit */
    struct ps_stream *queue, **queue_end, *active;
    u32 n_queued, n_active;
    bool quit;
    bool held;                  /* the queue waits although there are slots */
    u64 steps, prompt_rows;     /* counted by the scheduler */
    double turn_began;          /* on time_now's clock; 0: waits for work */
    u64 *slot_tag;              /* [n_slots] of the last stream there */
    double tail_s;              /* of all steps: what the device did not take */
    struct device_stats stats;  /* copied after each step */
    char kv_name[8];
    char device_name[16];
    u64 opened_bytes;           /* available before anything was taken, where the device's memory is */
};

/* sched.c: the engine thread's main function. */
void *sched_main(void *engine);

/* Waits until no stream is there and lends out the device until engine_give_back; nothing else of the engine may be
 * called in between. The slots' tokens are forgotten, since the borrower writes over them. For measuring. */
struct device *engine_borrow(struct ps_engine *e);
void engine_give_back(struct ps_engine *e);

/* While held no queued stream gets a slot: those opened meanwhile start in one step. Any thread. For measuring. */
void engine_hold(struct ps_engine *e, bool hold);

/* ps_engine_stats, under the lock. */
void engine_stats(const struct ps_engine *e, struct ps_stats *s);

/* A hash of a row of logits (FNV-1a over its words, in eight sums): ps_stream_info.logits_hash. */
u64 engine_hash(const float *x, u32 n);

/* Frees a stream nobody uses any more. */
void stream_free(struct ps_stream *s);

#endif
