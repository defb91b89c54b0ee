/* The CUDA backend (gpu_backend.h), a shared library of its own: libplainsong-cuda.so, opened at run time by dev_cuda.c, so that
 * the program runs where there is no CUDA. Links the CUDA runtime statically, and no library of arithmetic.
 *
 * A program is a list of launches, run in one of two ways (PLAINSONG_CUDA_MODE):
 *   graph  the launches as a CUDA graph, handed over by one call between the copies of inputs and outputs. The default
 *   plain  launches one by one; always so for programs prepared one_by_one
 * behind a comma: apart a kernel is placed when the one before it has ended, as GPUs before compute capability 9.0 do it; else programmatic
 *                       dependent launch: it may be placed before, and waits (IN_TURN, gpu/gpu.h)
 *                 ring  steps of at most 8 rows without the kernels of gpu/k_few.h: for measuring
 *                 clock a table of each program's launches in its last step goes to stderr when it is discarded: for measuring
 * All work of a backend goes to one stream, so everything is in order. After a device error CUDA answers every call with it: calls
 * fail at once, and what cannot be freed any more is left to the process's end. */
#include "base/base.h"
#include "device/cuda_clock.h"
#include "device/cuda_entry.h"
#include "device/device.h"
#include "device/gpu_backend.h"
#include "gpu/layout.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGE_BYTES = 16 << 20, STAGES = 2, PINNED_LEAST = 1 << 16 };
#define WAIT_LIMIT_S 60.0 /* a step takes a second at most; a kernel that never ends must not hang the server */

static const void *cuda_entry(enum gpu_kernel kernel)
{
    static const void *(*const PARTS[CUDA_PARTS])(enum gpu_kernel) = {cuda_entry_0, cuda_entry_1, cuda_entry_2,
                                                                      cuda_entry_3, cuda_entry_4, cuda_entry_5, cuda_entry_6};
    const void *found = NULL;
    for (u32 i = 0; i < CUDA_PARTS && !found; i++)
        found = PARTS[i](kernel);
    return found;
}

enum mode { MODE_GRAPH, MODE_PLAIN };

struct program {
    struct program *next, *before; /* the backend's list */
    struct gpu_launch *list;
    u32 n;
    bool one_by_one;
    cudaGraphExec_t exec; /* NULL: launched singly */
    u64 *clock; /* with CLOCK: in device memory, CUDA_CLOCK_WORDS of each group, clock_groups of them a launch */
    u32 clock_groups;
    bool ran;
};

struct pinned { /* host memory the device reads and writes */
    u8 *at;
    u64 bytes;
};

struct cuda {
    int index;
    enum mode mode;
    bool apart, clock, ring;
    u32 n_sms, shm_bytes;
    cudaStream_t stream;
    struct pinned stage[STAGES];
    cudaEvent_t staged[STAGES]; /* the copy out of it is done */
    u32 turn;
    struct pinned in, out;
    void *to; /* of the last submission: where its output goes */
    u64 n_out;
    bool pending, lost; /* lost: it did not answer in time */
    void **blocks;
    u32 n_blocks, cap_blocks;
    struct program *programs;
};

/* ---- errors ---- */

/* 0, or -1 with the call and CUDA's words. */
static int check(cudaError_t e, const char *call, struct err *err)
{
    if (e == cudaSuccess)
        return 0;
    cudaGetLastError(); /* one that is not sticky is not met again */
    return err_set(err, "CUDA: %s: %s (%s)", call, cudaGetErrorString(e), cudaGetErrorName(e));
}

static double gigabytes(u64 bytes)
{
    return (double)bytes / 1e9;
}

/* Every call's first: the calling thread works with this GPU, which still answers. */
static int enter(const struct cuda *c, struct err *err)
{
    if (c->lost)
        return err_set(err, "CUDA: GPU %d did not answer within %.0f s and is given up", c->index, WAIT_LIMIT_S);
    return check(cudaSetDevice(c->index), "cudaSetDevice", err);
}

static int pinned_room(struct pinned *p, u64 bytes, struct err *err)
{
    if (p->bytes >= bytes)
        return 0;
    void *at = NULL;
    if (p->at && check(cudaFreeHost(p->at), "cudaFreeHost", err))
        return -1;
    *p = (struct pinned){0};
    if (check(cudaHostAlloc(&at, bytes, cudaHostAllocDefault), "cudaHostAlloc", err))
        return -1;
    *p = (struct pinned){.at = at, .bytes = bytes};
    return 0;
}

/* ---- open and close ---- */

static int find_gpu(u32 index, struct err *err)
{
    int driver = 0, n = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return err_set(err, "--device cuda: no NVIDIA driver on this machine (libcuda.so.1 is not found)");
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaErrorInsufficientDriver)
        return err_set(err, "--device cuda: the NVIDIA driver is for CUDA %d.%d; expected %d.%d or later", driver / 1000, driver % 1000 / 10,
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0))
        return err_set(err, "--device cuda: the NVIDIA driver sees no GPU");
    if (check(e, "cudaGetDeviceCount", err))
        return -1;
    if (index >= (u32)n)
        return err_set(err, "--device cuda: there is no GPU %u; this machine has %d, counted from 0", index, n);
    int major = 0, minor = 0;
    if (check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)index), "cudaDeviceGetAttribute", err) ||
        check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, (int)index), "cudaDeviceGetAttribute", err))
        return -1;
    if (major < 8)
        return err_set(err, "--device cuda: GPU %u has compute capability %d.%d; expected 8.0 or later", index, major, minor);
    return check(cudaSetDevice((int)index), "cudaSetDevice", err);
}

static int cuda_memory(u32 index, u64 *free_bytes, struct err *err)
{
    size_t left = 0, total = 0;
    if (find_gpu(index, err) || check(cudaMemGetInfo(&left, &total), "cudaMemGetInfo", err))
        return -1;
    *free_bytes = left;
    return 0;
}

static int read_mode(struct cuda *c, struct err *err)
{
    const char *s = getenv("PLAINSONG_CUDA_MODE");
    char text[64];
    while (s && *s) {
        size_t n = strcspn(s, ",");
        if (n == 5 && !memcmp(s, "graph", n))
            c->mode = MODE_GRAPH;
        else if (n == 5 && !memcmp(s, "plain", n))
            c->mode = MODE_PLAIN;
        else if (n == 5 && !memcmp(s, "apart", n))
            c->apart = true;
        else if (n == 4 && !memcmp(s, "ring", n))
            c->ring = true;
        else if (n == 5 && !memcmp(s, "clock", n))
            c->clock = true;
        else
            return err_set(err, "PLAINSONG_CUDA_MODE: \"%s\"; expected graph or plain, and apart, ring or clock, with commas between",
                           err_quote(text, sizeof text, s, n));
        s += n + (s[n] == ',');
    }
    return 0;
}

static int attribute(const struct cuda *c, enum cudaDeviceAttr which, int *value, struct err *err)
{
    return check(cudaDeviceGetAttribute(value, which, c->index), "cudaDeviceGetAttribute", err);
}

/* The name, sizes and rates of the chip. */
static int read_info(struct cuda *c, struct gpu_info *info, struct err *err)
{
    struct cudaDeviceProp prop;
    size_t left = 0, total = 0;
    int sms = 0, shm = 0, khz = 0, bits = 0;
    if (check(cudaGetDeviceProperties(&prop, c->index), "cudaGetDeviceProperties", err) ||
        check(cudaMemGetInfo(&left, &total), "cudaMemGetInfo", err) || attribute(c, cudaDevAttrMultiProcessorCount, &sms, err) ||
        attribute(c, cudaDevAttrMaxSharedMemoryPerBlockOptin, &shm, err))
        return -1;
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, c->index) ||
        cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, c->index)) {
        cudaGetLastError();
        khz = bits = 0; /* a rate nobody knows */
    }
    c->apart |= prop.major < 9; /* has no dependent launch */
    c->n_sms = (u32)sms;
    c->shm_bytes = (u32)shm - 1024; /* what the driver keeps */
    const char *per_sm = getenv("PLAINSONG_CUDA_GROUPS"); /* groups an SM, for measuring */
    u32 groups = per_sm ? (u32)strtoul(per_sm, NULL, 10) : 0;
    *info = (struct gpu_info){.total_bytes = total,
                              .free_bytes = left,
                              .n_groups = c->n_sms * (groups >= 1 && groups <= 8 ? groups : 2),
                              .shm_bytes = c->shm_bytes,
                              .few_rows = c->ring ? DEVICE_NO_FEW : 0,
                              .peak_gb_s = (double)khz * 2e3 * bits / 8 / 1e9}; /* two words a clock */
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, prop.name);
    return 0;
}

static void cuda_close(void *self);

static int load(const struct cuda *c, const void *kernel, struct err *err)
{
    return check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)c->shm_bytes), "cudaFuncSetAttribute", err);
}

static int begin(struct cuda *c, struct err *err)
{
    if (check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "cudaStreamCreate", err))
        return -1;
    for (u32 i = 0; i < STAGES; i++)
        if (pinned_room(&c->stage[i], STAGE_BYTES, err) ||
            check(cudaEventCreateWithFlags(&c->staged[i], cudaEventDisableTiming), "cudaEventCreate", err))
            return -1;
    if (pinned_room(&c->in, PINNED_LEAST, err) || pinned_room(&c->out, PINNED_LEAST, err))
        return -1;
    /* Loads every kernel too: loading one while a graph is captured would break the capture. */
    for (u32 k = 0; k < GK_COUNT; k++)
        if (load(c, cuda_entry((enum gpu_kernel)k), err))
            return -1;
    return check(cudaStreamSynchronize(c->stream), "cudaStreamSynchronize", err);
}

static int cuda_open(void **self, u32 index, const struct device_opts *opts, struct gpu_info *info, struct err *err)
{
    (void)opts;
    *self = NULL;
    if (find_gpu(index, err))
        return -1;
    struct cuda *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(err, "out of memory");
    c->index = (int)index;
    if (read_mode(c, err) || read_info(c, info, err) || begin(c, err)) {
        cuda_close(c);
        return -1;
    }
    *self = c;
    return 0;
}

static u64 clock_bytes(const struct program *p)
{
    return (u64)p->n * p->clock_groups * CUDA_CLOCK_WORDS * sizeof *p->clock;
}

/* Of the program's last step. */
static void print_clock(const struct program *p)
{
    u64 *at = mem_alloc(clock_bytes(p));
    if (at && cudaMemcpy(at, p->clock, clock_bytes(p), cudaMemcpyDeviceToHost) == cudaSuccess)
        cuda_clock_print(p->list, p->n, p->clock_groups, at);
    mem_free(at, clock_bytes(p));
}

static int make_clock(struct program *p, struct err *err)
{
    void *at = NULL;
    for (u32 i = 0; i < p->n; i++)
        p->clock_groups = p->list[i].n_groups > p->clock_groups ? p->list[i].n_groups : p->clock_groups;
    if (check(cudaMalloc(&at, clock_bytes(p)), "cudaMalloc", err))
        return -1;
    p->clock = at;
    return check(cudaMemset(at, 0, clock_bytes(p)), "cudaMemset", err);
}

static void program_free(struct cuda *c, struct program *p)
{
    if (!p)
        return;
    if (p->clock && !c->lost) {
        if (p->ran)
            print_clock(p);
        cudaFree(p->clock);
    }
    if (p->exec && !c->lost)
        cudaGraphExecDestroy(p->exec);
    free(p->list);
    free(p);
}

/* Takes a half-open backend. A lost GPU's memory is not touched: freeing would wait for it. */
static void cuda_close(void *self)
{
    struct cuda *c = self;
    if (!c)
        return;
    if (!c->lost) {
        cudaSetDevice(c->index);
        if (c->stream)
            cudaStreamSynchronize(c->stream);
    }
    while (c->programs) {
        struct program *p = c->programs;
        c->programs = p->next;
        program_free(c, p);
    }
    if (!c->lost) {
        for (u32 i = 0; i < c->n_blocks; i++)
            cudaFree(c->blocks[i]);
        for (u32 i = 0; i < STAGES; i++) {
            cudaFreeHost(c->stage[i].at);
            if (c->staged[i])
                cudaEventDestroy(c->staged[i]);
        }
        cudaFreeHost(c->in.at);
        cudaFreeHost(c->out.at);
        if (c->stream)
            cudaStreamDestroy(c->stream);
        cudaGetLastError();
    }
    free(c->blocks);
    free(c);
}

/* ---- memory ---- */

static int cuda_alloc(void *self, u64 bytes, u64 *base, struct err *err)
{
    struct cuda *c = self;
    if (enter(c, err))
        return -1;
    if (c->n_blocks == c->cap_blocks) {
        u32 cap = c->cap_blocks ? 2 * c->cap_blocks : 16;
        void **more = realloc(c->blocks, cap * sizeof *more);
        if (!more)
            return err_set(err, "out of memory");
        c->blocks = more;
        c->cap_blocks = cap;
    }
    void *at = NULL;
    cudaError_t e = cudaMalloc(&at, bytes);
    if (e == cudaErrorMemoryAllocation) {
        size_t left = 0, total = 0;
        cudaGetLastError();
        cudaMemGetInfo(&left, &total);
        return err_set(err, "GPU %d is out of memory (cudaErrorMemoryAllocation): %.2f GB wanted, %.2f of %.2f GB free", c->index,
                       gigabytes(bytes), gigabytes(left), gigabytes(total));
    }
    if (check(e, "cudaMalloc", err))
        return -1;
    c->blocks[c->n_blocks++] = at;
    *base = (u64)(uintptr_t)at;
    return check(cudaMemsetAsync(at, 0, bytes, c->stream), "cudaMemset", err);
}

static void *place(struct gpu_ref r)
{
    return (void *)(uintptr_t)(r.base + r.offset);
}

/* Through two pinned buffers by turns: while one is on its way, the caller makes the next bytes and they are laid into the other. */
static int send(struct cuda *c, void *to, const void *from, u64 bytes, struct err *err)
{
    for (u64 o = 0; o < bytes; o += STAGE_BYTES) {
        u32 s = c->turn++ % STAGES;
        u64 n = min_u64(bytes - o, STAGE_BYTES);
        if (check(cudaEventSynchronize(c->staged[s]), "cudaEventSynchronize", err)) /* one never recorded is done */
            return -1;
        memcpy(c->stage[s].at, (const u8 *)from + o, n);
        if (check(cudaMemcpyAsync((u8 *)to + o, c->stage[s].at, n, cudaMemcpyHostToDevice, c->stream), "copy to the GPU", err) ||
            check(cudaEventRecord(c->staged[s], c->stream), "cudaEventRecord", err))
            return -1;
    }
    return 0;
}

static int cuda_upload(void *self, struct gpu_ref to, const void *from, u64 bytes, struct err *err)
{
    struct cuda *c = self;
    return enter(c, err) ? -1 : send(c, place(to), from, bytes, err);
}

static int cuda_download(void *self, void *to, struct gpu_ref from, u64 bytes, struct err *err)
{
    struct cuda *c = self;
    if (enter(c, err))
        return -1;
    for (u64 o = 0; o < bytes; o += STAGE_BYTES) {
        u64 n = min_u64(bytes - o, STAGE_BYTES);
        u8 *stage = c->stage[0].at; /* free again once all before this copy is done */
        if (check(cudaMemcpyAsync(stage, (const u8 *)place(from) + o, n, cudaMemcpyDeviceToHost, c->stream), "copy from the GPU", err) ||
            check(cudaStreamSynchronize(c->stream), "cudaStreamSynchronize", err))
            return -1;
        memcpy((u8 *)to + o, stage, n);
    }
    return 0;
}

static int cuda_copy(void *self, struct gpu_ref to, struct gpu_ref from, u64 bytes, struct err *err)
{
    struct cuda *c = self;
    if (enter(c, err))
        return -1;
    return check(cudaMemcpyAsync(place(to), place(from), bytes, cudaMemcpyDeviceToDevice, c->stream), "copy on the GPU", err);
}

/* ---- programs ---- */

static struct bufs buffers(const struct gpu_launch *l)
{
    struct bufs b = {0};
    for (u32 i = 0; i < l->n_bufs; i++)
        b.p[i] = place(l->bufs[i]);
    return b;
}

/* Launch i of p. */
static int launch(struct cuda *c, const struct program *p, u32 i, struct err *err)
{
    const struct gpu_launch *l = &p->list[i];
    union gpu_args args = l->args;
    struct bufs b = buffers(l);
    u64 *clock = p->clock ? p->clock + (u64)i * p->clock_groups * CUDA_CLOCK_WORDS : NULL;
    void *params[] = {&args, &b, &clock};
    cudaLaunchAttribute early = {.id = cudaLaunchAttributeProgrammaticStreamSerialization,
                                 .val.programmaticStreamSerializationAllowed = 1};
    cudaLaunchConfig_t config = {.gridDim = {l->n_groups, 1, 1},
                                 .blockDim = {GPU_THREADS, 1, 1},
                                 .dynamicSmemBytes = l->shm_bytes,
                                 .stream = c->stream,
                                 .attrs = &early,
                                 .numAttrs = !c->apart && i > 0};
    return check(cudaLaunchKernelExC(&config, cuda_entry(l->kernel), params), "launch", err);
}

static int launch_all(struct cuda *c, const struct program *p, struct err *err)
{
    for (u32 i = 0; i < p->n; i++)
        if (launch(c, p, i, err))
            return -1;
    return 0;
}

/* The launches alone: the copies of inputs and outputs stand before and behind the graph in the stream, since their places and sizes
 * differ from step to step. */
static int capture(struct cuda *c, struct program *p, cudaGraph_t *graph, struct err *err)
{
    if (check(cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture", err))
        return -1;
    int status = launch_all(c, p, err);
    cudaError_t e = cudaStreamEndCapture(c->stream, graph); /* always, so that the stream works on */
    if (status)
        cudaGetLastError();
    return status ? -1 : check(e, "cudaStreamEndCapture", err);
}

static int make_graph(struct cuda *c, struct program *p, struct err *err)
{
    cudaGraph_t graph = NULL;
    int status = -1;
    if (!capture(c, p, &graph, err) && !check(cudaGraphInstantiate(&p->exec, graph, 0), "cudaGraphInstantiate", err))
        status = check(cudaGraphUpload(p->exec, c->stream), "cudaGraphUpload", err);
    if (graph)
        cudaGraphDestroy(graph);
    return status;
}

static int check_list(const struct cuda *c, const struct gpu_launch *list, u32 n, struct err *err)
{
    for (u32 i = 0; i < n; i++) {
        const struct gpu_launch *l = &list[i];
        if (l->kernel >= GK_COUNT || l->n_bufs > GPU_BUFS || l->n_groups == 0 || l->shm_bytes > c->shm_bytes)
            return err_set(err, "CUDA: launch %u of %u: kernel %u, %u buffers, %u groups, %u bytes of shared memory; at most %u kernels, %d, any, %u",
                           i, n, l->kernel, l->n_bufs, l->n_groups, l->shm_bytes, GK_COUNT, GPU_BUFS, c->shm_bytes);
    }
    return 0;
}

static int cuda_prepare(void *self, const struct gpu_launch *list, u32 n, bool one_by_one, void **program, struct err *err)
{
    struct cuda *c = self;
    *program = NULL;
    if (enter(c, err) || check_list(c, list, n, err))
        return -1;
    struct program *p = calloc(1, sizeof *p);
    if (!p)
        return err_set(err, "out of memory");
    p->n = n;
    p->one_by_one = one_by_one || c->mode == MODE_PLAIN;
    p->list = mem_array(n, sizeof *p->list);
    if (!p->list) {
        err_set(err, "out of memory");
        goto fail;
    }
    memcpy(p->list, list, n * sizeof *list);
    if (c->clock && make_clock(p, err))
        goto fail;
    if (!p->one_by_one && make_graph(c, p, err))
        goto fail;
    p->next = c->programs;
    if (p->next)
        p->next->before = p;
    c->programs = p;
    *program = p;
    return 0;
fail:
    program_free(c, p);
    return -1;
}

static void cuda_discard(void *self, void *program)
{
    struct cuda *c = self;
    struct program *p = program;
    if (!p)
        return;
    if (p->before)
        p->before->next = p->next;
    else
        c->programs = p->next;
    if (p->next)
        p->next->before = p->before;
    if (!c->lost)
        cudaSetDevice(c->index);
    program_free(c, p);
}

/* ---- the step ---- */

static int cuda_wait(void *self, struct err *err);

static int run(struct cuda *c, struct program *p, void *to, u64 n_bytes, const void *out_from, u64 n_out, struct err *err)
{
    if (n_bytes && check(cudaMemcpyAsync(to, c->in.at, n_bytes, cudaMemcpyHostToDevice, c->stream), "copy to the GPU", err))
        return -1;
    p->ran = true;
    if (p->exec ? check(cudaGraphLaunch(p->exec, c->stream), "cudaGraphLaunch", err) : launch_all(c, p, err))
        return -1;
    return n_out ? check(cudaMemcpyAsync(c->out.at, out_from, n_out, cudaMemcpyDeviceToHost, c->stream), "copy from the GPU", err) : 0;
}

static int cuda_submit(void *self, void *program, struct gpu_ref to, const void *inputs, u64 n_bytes, void *out,
                       struct gpu_ref out_from, u64 n_out, struct err *err)
{
    struct cuda *c = self;
    struct program *p = program;
    if (enter(c, err) || (c->pending && cuda_wait(c, err)))
        return -1;
    if (pinned_room(&c->in, n_bytes, err) || pinned_room(&c->out, n_out, err))
        return -1;
    memcpy(c->in.at, inputs, n_bytes);
    int status = run(c, p, place(to), n_bytes, place(out_from), n_out, err);
    c->to = out;
    c->n_out = n_out;
    c->pending = !status;
    return status ? -1 : 0;
}

/* Asks again and again: the answer is there within a microsecond of the end. */
static int cuda_wait(void *self, struct err *err)
{
    struct cuda *c = self;
    if (!c->pending)
        return 0;
    if (enter(c, err))
        return -1;
    double begin_s = 0;
    cudaError_t e;
    for (u32 asked = 0; (e = cudaStreamQuery(c->stream)) == cudaErrorNotReady; asked++) {
        if (asked % 1024)
            continue;
        double now = time_now();
        if (begin_s == 0)
            begin_s = now;
        if (now - begin_s > WAIT_LIMIT_S) {
            c->lost = true;
            return enter(c, err);
        }
    }
    c->pending = false;
    if (check(e, "step", err))
        return -1;
    memcpy(c->to, c->out.at, c->n_out);
    return 0;
}

static const struct gpu_backend BACKEND = {
    .name = "cuda",
    .memory = cuda_memory,
    .open = cuda_open,
    .close = cuda_close,
    .alloc = cuda_alloc,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy = cuda_copy,
    .prepare = cuda_prepare,
    .discard = cuda_discard,
    .submit = cuda_submit,
    .wait = cuda_wait,
};

/* What the program looks up. PS_GPU_ABI: a sum over the headers that both are compiled from. */
__attribute__((visibility("default"))) const u32 plainsong_cuda_abi = PS_GPU_ABI;
__attribute__((visibility("default"))) const struct gpu_backend *plainsong_cuda_backend(void);

const struct gpu_backend *plainsong_cuda_backend(void)
{
    return &BACKEND;
}
