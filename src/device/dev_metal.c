/* The Metal backend: one command buffer a step, one concurrent encoder in it, barriers where a launch says so. Inputs are written to and
 * results read from memory that the GPU shares, between two submissions, of which one at most is in flight. A pool of
 * Objective-C's stands around everything, so that nothing is left over from a step. */
#include "device/metal_host.h"

#include <stdlib.h>
#include <string.h>

static const double SPIN_S = 50e-6; /* a thread that sleeps is woken some tens of microseconds late */

/* ---- opening ---- */

static int open_parts(struct metal *m, struct gpu_info *info, struct err *err)
{
    if (metal_find(m, err))
        return -1;
    metal_describe(m, info);
    m->queue = mtl_new_queue(&m->words, m->device);
    if (!m->queue)
        return err_set(err, "--device metal: no command queue is to be had");
    return metal_compile(m, err) || metal_new_buffer(m, 256, err) < 0 ? -1 : 0;
}

static void close_parts(struct metal *m)
{
    metal_free_buffers(m);
    for (u32 k = 0; k < GK_COUNT; k++)
        if (m->pipelines[k])
            mtl_release(&m->words, m->pipelines[k]);
    if (m->queue)
        mtl_release(&m->words, m->queue);
    if (m->device)
        mtl_release(&m->words, m->device);
}

static void land(struct metal *m);

static void metal_close(void *self)
{
    struct metal *m = self;
    if (!m)
        return;
    void *pool = objc_autoreleasePoolPush();
    land(m);
    close_parts(m);
    objc_autoreleasePoolPop(pool);
    free(m);
}

static int metal_open(void **self, u32 index, const struct device_opts *opts, struct gpu_info *info, struct err *err)
{
    (void)opts;
    if (index)
        return err_set(err, "--device metal: there is one GPU");
    struct metal *m = mem_array(1, sizeof *m);
    if (!m)
        return err_set(err, "out of memory");
    void *pool = MTLCreateSystemDefaultDevice ? objc_autoreleasePoolPush() : NULL;
    int rc = open_parts(m, info, err);
    if (rc)
        close_parts(m);
    if (pool)
        objc_autoreleasePoolPop(pool);
    if (rc)
        free(m);
    else
        *self = m;
    return rc;
}

/* ---- memory ---- */

static int metal_alloc(void *self, u64 bytes, u64 *base, struct err *err)
{
    void *pool = objc_autoreleasePoolPush();
    i32 number = metal_new_buffer(self, bytes, err);
    objc_autoreleasePoolPop(pool);
    *base = number < 0 ? 0 : (u64)number;
    return number < 0 ? -1 : 0;
}

static int metal_wait(void *self, struct err *err);

static int metal_upload(void *self, struct gpu_ref to, const void *from, u64 bytes, struct err *err)
{
    if (metal_wait(self, err))
        return -1;
    memcpy(metal_address(self, to), from, bytes);
    return 0;
}

static int metal_download(void *self, void *to, struct gpu_ref from, u64 bytes, struct err *err)
{
    if (metal_wait(self, err))
        return -1;
    memcpy(to, metal_address(self, from), bytes);
    return 0;
}

static int metal_copy(void *self, struct gpu_ref to, struct gpu_ref from, u64 bytes, struct err *err)
{
    if (metal_wait(self, err))
        return -1;
    memcpy(metal_address(self, to), metal_address(self, from), bytes);
    return 0;
}

/* ---- the step ---- */

static int prepare(void *self, const struct gpu_launch *list, u32 n, bool one_by_one, void **program, struct err *err)
{
    struct metal_program *p;
    if (metal_prepare(self, list, n, one_by_one, &p, err))
        return -1;
    *program = p;
    return 0;
}

static void discard(void *self, void *program)
{
    (void)self;
    metal_discard(program);
}

/* Command buffers are the pool's; we keep them until they are done. */
static int commit_all(struct metal *m, const struct metal_program *p, struct err *err)
{
    m->flight = p->flight;
    for (u32 i = 0; i < p->n_flight; i++) {
        struct objc *c = mtl_command_buffer(&m->words, m->queue);
        if (!c)
            return err_set(err, "--device metal: no command buffer is to be had");
        if (metal_encode(m, p, p->n_flight == 1 ? 0 : i, p->n_flight == 1 ? p->n : i + 1, c, err))
            return -1;
        m->flight[m->n_flight++] = mtl_retain(&m->words, c);
        mtl_commit(&m->words, c);
    }
    return 0;
}

static int metal_submit(void *self, void *program, struct gpu_ref to, const void *inputs, u64 n_bytes, void *out, struct gpu_ref out_from,
                        u64 n_out, struct err *err)
{
    struct metal *m = self;
    if (metal_wait(m, err))
        return -1;
    void *pool = objc_autoreleasePoolPush();
    memcpy(metal_address(m, to), inputs, n_bytes);
    m->out = out;
    m->out_from = n_out ? metal_address(m, out_from) : NULL;
    m->n_out = n_out;
    int rc = commit_all(m, program, err);
    if (rc)
        land(m);
    objc_autoreleasePoolPop(pool);
    return rc;
}

/* Until the command buffer is done, well or not. */
static void await(const struct metal *m, struct objc *c)
{
    double until = time_now() + SPIN_S;
    while (mtl_status(&m->words, c) < MTL_STATUS_COMPLETED)
        if (time_now() > until) {
            mtl_wait(&m->words, c);
            return;
        }
}

/* The submission in flight comes down and is forgotten, whatever it brought. */
static void land(struct metal *m)
{
    for (u32 i = 0; i < m->n_flight; i++) {
        await(m, m->flight[i]);
        mtl_release(&m->words, m->flight[i]);
    }
    m->flight = NULL;
    m->n_flight = 0;
}

static int metal_wait(void *self, struct err *err)
{
    struct metal *m = self;
    int rc = 0;
    if (!m->flight)
        return 0;
    void *pool = objc_autoreleasePoolPush();
    for (u32 i = 0; i < m->n_flight && !rc; i++) {
        await(m, m->flight[i]);
        if (mtl_status(&m->words, m->flight[i]) != MTL_STATUS_COMPLETED)
            rc = err_set(err, "metal: the GPU gave a step up: %.300s", metal_why(m, mtl_error(&m->words, m->flight[i])));
    }
    land(m);
    if (!rc && m->n_out)
        memcpy(m->out, m->out_from, m->n_out);
    objc_autoreleasePoolPop(pool);
    return rc;
}

const struct gpu_backend gpu_backend_metal = {
    .name = "metal",
    .memory = metal_memory,
    .advise = metal_advise,
    .open = metal_open,
    .close = metal_close,
    .alloc = metal_alloc,
    .upload = metal_upload,
    .download = metal_download,
    .copy = metal_copy,
    .prepare = prepare,
    .discard = discard,
    .submit = metal_submit,
    .wait = metal_wait,
};
