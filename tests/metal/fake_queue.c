/* See fake_metal.h: command queues, command buffers, encoders, and the thread that runs what was committed. A command buffer goes from being
 * encoded to committed to done; what comes in another order fails. */
#include "fake_metal.h"

#include "device/gpu_host.h"
#include "device/metal_objc.h"
#include "gpu/emu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    DELAY_US = 100,      /* a GPU's start and end: who does not wait reads too early */
    MAX_GROUPS = 1024,   /* more would be threads taken for groups */
    WINDOW = 128, GROWTH = 32 /* of command buffers; objects that may come to live from one to the next */
};

struct place {
    struct fake_buffer *buffer;
    u64 offset;
};

struct command {
    enum gpu_kernel kernel;
    u32 n_groups, shm_bytes, n_bufs;
    bool barrier; /* before it */
    struct place at[GPU_BUFS];
    union gpu_args args;
};

struct queue {
    struct fake head;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct commands *first, *last; /* committed, not begun */
    bool stop;
    u32 n_flying; /* committed, not done */
    struct emu *emu;
    struct emu_opts emu_opts;
    u64 state; /* of the order */
};

struct commands {
    struct fake head;
    struct queue *queue;
    struct commands *next;
    struct command *list;
    u32 n, cap;
    bool encoding, committed;
    atomic_ullong status;
    struct fake *error;
    struct fake_buffer **uses;
    u32 n_uses;
};

struct encoder {
    struct fake head;
    struct commands *of;
    bool ended;
    struct fake_pipeline *pipeline;
    struct place at[GPU_BUFS];
    u32 fresh;        /* bit i: buffer i was bound since the last dispatch */
    bool barrier;
    u32 shm_bytes, arg_bytes;
    union gpu_args args;
};

static pthread_mutex_t count_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_counts counts;
static u32 least[2]; /* objects alive in this window and the last */

void fake_count(struct fake_counts *c)
{
    pthread_mutex_lock(&count_lock);
    *c = counts;
    pthread_mutex_unlock(&count_lock);
}

static void count(u64 *what)
{
    pthread_mutex_lock(&count_lock);
    (*what)++;
    pthread_mutex_unlock(&count_lock);
}

/* The fewest objects that live in a window of command buffers may not rise from one to the next. */
static u64 count_commit(void)
{
    u32 now = fake_live();
    pthread_mutex_lock(&count_lock);
    u64 n = ++counts.command_buffers;
    least[0] = n % WINDOW == 1 || now < least[0] ? now : least[0];
    u32 before = least[1];
    if (n % WINDOW == 0)
        least[1] = least[0];
    u32 least_now = least[0];
    pthread_mutex_unlock(&count_lock);
    if (n % WINDOW == 0 && n > 2 * WINDOW && least_now > before + GROWTH) {
        u32 most;
        const struct fake_class *c = fake_class_of_live(&most);
        fake_fail("%u objects more after %d command buffers; of %u there are %u %s", least_now - before, WINDOW, now, most, c ? c->name : "");
    }
    return n;
}

/* ---- the GPU's thread ---- */

static u32 draw(u64 *state, u32 below)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (u32)((*state >> 33) % below);
}

const char *_Atomic fake_kernel;

static void run_command(struct queue *q, const struct command *c)
{
    struct bufs b = {{0}};
    struct err err;
    for (u32 i = 0; i < c->n_bufs; i++)
        b.p[i] = c->at[i].buffer->gpu + c->at[i].offset;
    q->emu_opts.seed++;
    emu_set(q->emu, &q->emu_opts);
    fake_kernel = gpu_kernel_name(c->kernel);
    if (emu_launch(q->emu, c->kernel, &c->args, &b, c->n_groups, c->shm_bytes, &err))
        fake_fail("%s", err.text);
    fake_kernel = NULL;
}

/* Launches without a barrier between them, backwards or in an order that the seed picks. */
static void run_section(struct queue *q, const struct command *list, u32 n)
{
    u32 order[512];
    bool backwards = draw(&q->state, 2);
    if (n > COUNT(order))
        fake_fail("%u launches without a barrier", n);
    for (u32 i = 0; i < n; i++)
        order[i] = n - 1 - i;
    for (u32 i = n; i > 1 && !backwards; i--) {
        u32 k = draw(&q->state, i), swap = order[i - 1];
        order[i - 1] = order[k];
        order[k] = swap;
    }
    for (u32 i = 0; i < n; i++)
        run_command(q, &list[order[i]]);
}

static void run_commands(struct queue *q, struct commands *c)
{
    usleep(DELAY_US);
    for (u32 i = 0, end; i < c->n && !c->error; i = end) {
        for (end = i + 1; end < c->n && !c->list[end].barrier; end++)
            ;
        run_section(q, &c->list[i], end - i);
    }
    usleep(DELAY_US);
    for (u32 i = 0; i < c->n_uses; i++)
        fake_buffer_end(c->uses[i]);
    pthread_mutex_lock(&q->lock);
    q->n_flying--;
    c->status = c->error ? MTL_STATUS_ERROR : MTL_STATUS_COMPLETED;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    fake_release(&c->head);
}

static void *run_queue(void *arg)
{
    struct queue *q = arg;
    for (;;) {
        pthread_mutex_lock(&q->lock);
        while (!q->first && !q->stop)
            pthread_cond_wait(&q->changed, &q->lock);
        struct commands *c = q->first;
        if (c)
            q->first = c->next;
        pthread_mutex_unlock(&q->lock);
        if (!c)
            return NULL;
        run_commands(q, c);
    }
}

/* ---- MTLCommandQueue ---- */

static void queue_open(struct queue *q)
{
    const struct fake_options *o = fake_options();
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    q->emu_opts = (struct emu_opts){.n_threads = o->threads ? (u32)o->threads : (u32)cores, .seed = o->seed, .poison = true};
    q->state = o->seed;
    q->emu = emu_open(&q->emu_opts);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    if (!q->emu || pthread_create(&q->thread, NULL, run_queue, q))
        fake_fail("no thread for a queue");
}

static struct fake *queue_commands(struct queue *self, struct sel *name)
{
    (void)name;
    if (!self->emu)
        queue_open(self);
    struct commands *c = (struct commands *)fake_new(&fake_commands);
    c->queue = self;
    return fake_autorelease(&c->head);
}

static void queue_add_residency(struct queue *self, struct sel *name, struct fake *set)
{
    (void)self, (void)name;
    fake_check(set, &fake_residency, "addResidencySet:");
    ((struct fake_residency *)set)->on_queue = true;
}

static void queue_gone(struct fake *self)
{
    struct queue *q = (struct queue *)self;
    if (!q->emu)
        return;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    emu_close(q->emu);
}

static const struct fake_method QUEUE[] = {FAKE_METHOD("commandBufferWithUnretainedReferences", queue_commands),
                                               FAKE_METHOD("addResidencySet:", queue_add_residency),
                                               {0}};
const struct fake_class fake_queue = {.head = {.isa = &fake_root_class}, .name = "MTLCommandQueue", .super = &fake_root,
                                      .methods = QUEUE, .bytes = sizeof(struct queue), .end = queue_gone};

/* ---- MTLCommandBuffer ---- */

static struct fake *commands_encoder(struct commands *self, struct sel *name, u64 how)
{
    (void)name;
    if (self->committed)
        fake_fail("an encoder of a command buffer that is committed");
    if (self->encoding)
        fake_fail("an encoder while another one is not ended");
    if (how != MTL_DISPATCH_CONCURRENT)
        fake_fail("a serial encoder; expected a concurrent one");
    struct encoder *e = (struct encoder *)fake_new(&fake_encoder);
    e->of = (struct commands *)fake_retain(&self->head);
    self->encoding = true;
    count(&counts.encoders);
    return fake_autorelease(&e->head);
}

/* The buffers it uses are the GPU's from here on. */
static void take_buffers(struct commands *c)
{
    c->uses = malloc(64 * sizeof(struct fake_buffer *));
    for (u32 i = 0; i < c->n; i++)
        for (u32 k = 0; k < c->list[i].n_bufs; k++) {
            struct fake_buffer *b = c->list[i].at[k].buffer;
            u32 n = 0;
            fake_check(b, &fake_buffer, "a buffer of a command buffer that is committed");
            while (n < c->n_uses && c->uses[n] != b)
                n++;
            if (n == 64)
                fake_fail("more than 64 buffers in one command buffer");
            if (n < c->n_uses)
                continue;
            if (!fake_options()->old && !b->resident)
                fake_fail("a buffer of %llu bytes is in no residency set", (unsigned long long)b->bytes);
            c->uses[c->n_uses++] = b;
            fake_buffer_begin(b);
        }
}

static void commands_commit(struct commands *self, struct sel *name)
{
    (void)name;
    if (self->committed)
        fake_fail("a command buffer is committed twice");
    if (self->encoding)
        fake_fail("a command buffer is committed before its encoder is ended");
    self->committed = true;
    self->status = 2;
    if (count_commit() == fake_options()->fail_at)
        self->error = fake_error_of("Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)");
    take_buffers(self);
    fake_retain(&self->head);
    struct queue *q = self->queue;
    pthread_mutex_lock(&q->lock);
    if (q->n_flying++ && fake_options()->single)
        fake_fail("more than one command buffer for a step");
    self->next = NULL;
    if (q->first)
        q->last->next = self;
    else
        q->first = self;
    q->last = self;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

static u64 commands_status(struct commands *self, struct sel *name)
{
    (void)name;
    return self->status;
}

static void commands_wait(struct commands *self, struct sel *name)
{
    (void)name;
    if (!self->committed)
        fake_fail("waitUntilCompleted of a command buffer that is not committed: it never ends");
    pthread_mutex_lock(&self->queue->lock);
    while (self->status < MTL_STATUS_COMPLETED)
        pthread_cond_wait(&self->queue->changed, &self->queue->lock);
    pthread_mutex_unlock(&self->queue->lock);
}

static struct fake *commands_error(struct commands *self, struct sel *name)
{
    (void)name;
    if (self->status < MTL_STATUS_COMPLETED)
        fake_fail("a command buffer's error is asked for before it is done");
    return self->error ? fake_autorelease(fake_retain(self->error)) : NULL;
}

static void commands_gone(struct fake *self)
{
    struct commands *c = (struct commands *)self;
    if (!c->committed)
        fake_fail("a command buffer with %u launches is dropped before it is committed", c->n);
    if (c->error)
        fake_release(c->error);
    free(c->list);
    free(c->uses);
}

static const struct fake_method COMMANDS[] = {FAKE_METHOD("computeCommandEncoderWithDispatchType:", commands_encoder),
                                              FAKE_METHOD("commit", commands_commit),
                                              FAKE_METHOD("status", commands_status),
                                              FAKE_METHOD("waitUntilCompleted", commands_wait),
                                              FAKE_METHOD("error", commands_error),
                                              {0}};
const struct fake_class fake_commands = {.head = {.isa = &fake_root_class}, .name = "MTLCommandBuffer", .super = &fake_root,
                                         .methods = COMMANDS, .bytes = sizeof(struct commands), .end = commands_gone};

/* ---- MTLComputeCommandEncoder ---- */

static void open_only(const struct encoder *e)
{
    if (e->ended)
        fake_fail("an encoder is used after endEncoding");
}

static void encoder_pipeline(struct encoder *self, struct sel *name, struct fake *p)
{
    (void)name;
    open_only(self);
    fake_check(p, &fake_pipeline, "setComputePipelineState:");
    self->pipeline = (struct fake_pipeline *)p;
}

static void encoder_bytes(struct encoder *self, struct sel *name, const void *bytes, u64 n, u64 index)
{
    (void)name;
    open_only(self);
    if (index != 0)
        fake_fail("setBytes at index %llu; arguments are at 0", (unsigned long long)index);
    if (!bytes || !n || n > sizeof self->args)
        fake_fail("setBytes of %llu bytes", (unsigned long long)n);
    memset(&self->args, 0xA5, sizeof self->args);
    memcpy(&self->args, bytes, n);
    self->arg_bytes = (u32)n;
}

/* Index 0 is the arguments'. */
static struct place *place_of(struct encoder *e, u64 index)
{
    open_only(e);
    if (index < 1 || index > GPU_BUFS)
        fake_fail("a buffer at index %llu; expected 1 to %d", (unsigned long long)index, GPU_BUFS);
    e->fresh |= 1u << (index - 1);
    return &e->at[index - 1];
}

static void set_place(struct place *p, u64 offset)
{
    if (offset >= p->buffer->bytes)
        fake_fail("offset %llu of a buffer of %llu bytes", (unsigned long long)offset, (unsigned long long)p->buffer->bytes);
    if (offset % 16)
        fake_fail("offset %llu: kernels load 16 bytes at once", (unsigned long long)offset);
    p->offset = offset;
}

static void encoder_buffer(struct encoder *self, struct sel *name, struct fake *b, u64 offset, u64 index)
{
    (void)name;
    struct place *p = place_of(self, index);
    fake_check(b, &fake_buffer, "setBuffer:offset:atIndex:");
    p->buffer = (struct fake_buffer *)b;
    set_place(p, offset);
}

static void encoder_offset(struct encoder *self, struct sel *name, u64 offset, u64 index)
{
    (void)name;
    struct place *p = place_of(self, index);
    if (!p->buffer)
        fake_fail("setBufferOffset at index %llu, where there is no buffer", (unsigned long long)index);
    set_place(p, offset);
}

static void encoder_group_memory(struct encoder *self, struct sel *name, u64 bytes, u64 index)
{
    (void)name;
    open_only(self);
    if (index != 0 || bytes == 0 || bytes % 16 || bytes > fake_options()->group_memory)
        fake_fail("threadgroup memory of %llu bytes at index %llu; expected a multiple of 16 up to %llu at 0", (unsigned long long)bytes,
                  (unsigned long long)index, (unsigned long long)fake_options()->group_memory);
    self->shm_bytes = (u32)bytes;
}

static void encoder_barrier(struct encoder *self, struct sel *name, u64 scope)
{
    (void)name;
    open_only(self);
    if (scope != MTL_BARRIER_BUFFERS)
        fake_fail("a barrier of scope %llu; expected buffers", (unsigned long long)scope);
    self->barrier = true;
    count(&counts.barriers);
}

/* What a driver reads before it runs a kernel, against what that kernel takes. */
static void check_dispatch(struct encoder *e, struct metal_size groups, struct metal_size threads)
{
    static const u32 ARG_BYTES[] = {
#define X(kernel, args) sizeof(struct args##_args),
        GPU_KERNELS(X)
#undef X
    };
    if (!e->pipeline)
        fake_fail("a dispatch without a pipeline");
    fake_check(e->pipeline, &fake_pipeline, "a dispatch's pipeline");
    enum gpu_kernel k = e->pipeline->kernel;
    const char *name = gpu_kernel_name(k);
    if (e->arg_bytes != ARG_BYTES[k])
        fake_fail("%s: %u bytes of arguments; its struct has %u", name, e->arg_bytes, ARG_BYTES[k]);
    if (e->fresh >> e->pipeline->n_bufs)
        fake_fail("%s: a buffer is bound beyond its %u", name, e->pipeline->n_bufs);
    for (u32 i = 0; i < e->pipeline->n_bufs; i++)
        if (!e->at[i].buffer)
            fake_fail("%s: no buffer at index %u", name, i + 1);
    if (e->shm_bytes < gpu_shm_bytes(k, &e->args))
        fake_fail("%s: %u bytes of threadgroup memory; it takes %u", name, e->shm_bytes, gpu_shm_bytes(k, &e->args));
    if (threads.width != GPU_THREADS || threads.height != 1 || threads.depth != 1)
        fake_fail("%s: groups of %llu x %llu x %llu threads", name, (unsigned long long)threads.width, (unsigned long long)threads.height,
                  (unsigned long long)threads.depth);
    if (groups.width < 1 || groups.width > MAX_GROUPS || groups.height != 1 || groups.depth != 1)
        fake_fail("%s: a grid of %llu x %llu x %llu groups", name, (unsigned long long)groups.width, (unsigned long long)groups.height,
                  (unsigned long long)groups.depth);
}

static void encoder_dispatch(struct encoder *self, struct sel *name, struct metal_size groups, struct metal_size threads)
{
    (void)name;
    struct commands *c = self->of;
    open_only(self);
    check_dispatch(self, groups, threads);
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        c->list = realloc(c->list, c->cap * sizeof *c->list);
    }
    struct command *to = &c->list[c->n++];
    *to = (struct command){.kernel = self->pipeline->kernel, .n_groups = (u32)groups.width, .shm_bytes = self->shm_bytes,
                           .n_bufs = self->pipeline->n_bufs, .barrier = self->barrier, .args = self->args};
    memcpy(to->at, self->at, sizeof to->at);
    self->barrier = false;
    self->fresh = 0;
    count(&counts.dispatches);
}

static void encoder_end(struct encoder *self, struct sel *name)
{
    (void)name;
    open_only(self);
    self->ended = true;
    self->of->encoding = false;
}

static void encoder_gone(struct fake *self)
{
    struct encoder *e = (struct encoder *)self;
    if (!e->ended)
        fake_fail("an encoder is dropped before endEncoding");
    fake_release(&e->of->head);
}

static const struct fake_method ENCODER[] = {FAKE_METHOD("setComputePipelineState:", encoder_pipeline),
                                             FAKE_METHOD("setBytes:length:atIndex:", encoder_bytes),
                                             FAKE_METHOD("setBuffer:offset:atIndex:", encoder_buffer),
                                             FAKE_METHOD("setBufferOffset:atIndex:", encoder_offset),
                                             FAKE_METHOD("setThreadgroupMemoryLength:atIndex:", encoder_group_memory),
                                             FAKE_METHOD("memoryBarrierWithScope:", encoder_barrier),
                                             FAKE_METHOD("dispatchThreadgroups:threadsPerThreadgroup:", encoder_dispatch),
                                             FAKE_METHOD("endEncoding", encoder_end),
                                             {0}};
const struct fake_class fake_encoder = {.head = {.isa = &fake_root_class}, .name = "MTLComputeCommandEncoder", .super = &fake_root,
                                        .methods = ENCODER, .bytes = sizeof(struct encoder), .end = encoder_gone};
