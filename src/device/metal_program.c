/* Kernels compiled from the embedded text, and lists of launches made ready. What a step sends is found ahead: pipelines, buffers and
 * offsets resolved, and only what differs from the launch before, since an encoder remembers. That is the setup cache; a step only encodes.
 *
 * Compiled without contraction (a pragma in the text), with safe math and precise functions: docs/gpu.md, Metal. */
#include "device/metal_host.h"

#include "device/gpu_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIMD_WIDTH = 32, LEAST_SHM = 16 /* lengths are multiples of it, and a kernel's argument needs one */ };

/* ---- the kernels ---- */

static const u32 ARG_BYTES[GK_COUNT] = {
#define X(name, args) [GK_##name] = sizeof(struct args##_args),
    GPU_KERNELS(X)
#undef X
};

/* mathMode came with macOS 15; before it fastMathEnabled says both. */
static struct objc *compile_options(const struct metal *m)
{
    const struct metal_words *w = &m->words;
    struct objc *class = objc_getClass("MTLCompileOptions"), *o = class ? mtl_init(w, mtl_alloc(w, class)) : NULL;
    if (!o)
        return NULL;
    if (mtl_responds(w, o, w->set_math_mode) && mtl_responds(w, o, w->set_math_functions)) {
        mtl_set_math_mode(w, o, MTL_MATH_SAFE);
        mtl_set_math_functions(w, o, MTL_FUNCTIONS_PRECISE);
    } else {
        mtl_set_fast_math(w, o, false);
    }
    mtl_set_language(w, o, MTL_LANGUAGE_3_0);
    return o;
}

static struct objc *text_of(const struct metal *m, const char *text)
{
    return mtl_string(&m->words, objc_getClass("NSString"), text);
}

/* Of a compiler's report the first line that names an error, else its first. */
static const char *first_error(const char *report, int *n)
{
    const char *at = strstr(report, "error:");
    for (at = at ? at : report; at > report && at[-1] != '\n'; at--)
        ;
    *n = (int)strcspn(at, "\n");
    return at;
}

static int make_pipeline(struct metal *m, struct objc *library, enum gpu_kernel k, struct err *err)
{
    const struct metal_words *w = &m->words;
    struct objc *error = NULL;
    char name[64];
    snprintf(name, sizeof name, "plainsong_%s", gpu_kernel_name(k));
    struct objc *function = mtl_new_function(w, library, text_of(m, name));
    if (!function)
        return err_set(err, "--device metal: the kernels' text has no %s", name);
    m->pipelines[k] = mtl_new_pipeline(w, m->device, function, &error);
    mtl_release(w, function);
    if (!m->pipelines[k])
        return err_set(err, "--device metal: kernel %s: %.300s", gpu_kernel_name(k), metal_why(m, error));
    u64 threads = mtl_max_threads(w, m->pipelines[k]), width = mtl_simd_width(w, m->pipelines[k]);
    if (threads < GPU_THREADS || width != SIMD_WIDTH)
        return err_set(err, "--device metal: kernel %s: groups of at most %llu threads in SIMD groups of %llu; expected %d and %d",
                       gpu_kernel_name(k), (unsigned long long)threads, (unsigned long long)width, GPU_THREADS, SIMD_WIDTH);
    return 0;
}

int metal_compile(struct metal *m, struct err *err)
{
    const struct metal_words *w = &m->words;
    struct objc *error = NULL, *options = compile_options(m);
    if (!options)
        return err_set(err, "--device metal: this system's Metal does not compile");
    struct objc *library = mtl_new_library(w, m->device, text_of(m, gpu_metal_text), options, &error);
    mtl_release(w, options);
    if (!library) {
        int n;
        const char *line = first_error(metal_why(m, error), &n);
        return err_set(err, "--device metal: the kernels do not compile: %.*s", n < 300 ? n : 300, line);
    }
    int rc = 0;
    for (u32 k = 0; k < GK_COUNT && !rc; k++)
        rc = make_pipeline(m, library, (enum gpu_kernel)k, err);
    mtl_release(w, library);
    return rc;
}

/* ---- making ready ---- */

struct state { /* an encoder's */
    struct objc *pipeline;
    u32 shm_bytes;
    bool bound[GPU_BUFS];
    struct gpu_ref at[GPU_BUFS];
};

/* Every buffer of the kernel's list is bound to something: one that the launch leaves out is not touched, and takes whatever stands there. */
static void make_binds(const struct metal *m, struct metal_program *p, struct metal_launch *to, const struct gpu_launch *from, struct state *s,
                       u32 *n_binds)
{
    u32 n = (u32)strlen(gpu_access(from->kernel));
    to->first_bind = *n_binds;
    for (u32 i = 0; i < n; i++) {
        bool named = i < from->n_bufs && from->bufs[i].base;
        struct gpu_ref at = named ? from->bufs[i] : (struct gpu_ref){0};
        if (s->bound[i] && (!named || (s->at[i].base == at.base && s->at[i].offset == at.offset)))
            continue;
        bool moved = s->bound[i] && s->at[i].base == at.base;
        p->binds[(*n_binds)++] = (struct metal_bind){moved ? NULL : m->buffers[at.base].object, at.offset, i + 1};
        s->bound[i] = true;
        s->at[i] = at;
    }
    to->n_binds = *n_binds - to->first_bind;
}

static void make_launch(const struct metal *m, struct metal_launch *to, const struct gpu_launch *from, struct state *s)
{
    u32 shm = (u32)round_up_u64(from->shm_bytes ? from->shm_bytes : 1, LEAST_SHM);
    struct objc *pipeline = m->pipelines[from->kernel];
    *to = (struct metal_launch){.pipeline = s->pipeline == pipeline ? NULL : pipeline,
                                .n_groups = from->n_groups,
                                .shm_bytes = s->shm_bytes == shm ? 0 : shm,
                                .arg_bytes = ARG_BYTES[from->kernel],
                                .barrier = from->barrier,
                                .args = from->args};
    s->pipeline = pipeline;
    s->shm_bytes = shm;
}

int metal_prepare(struct metal *m, const struct gpu_launch *list, u32 n, bool one_by_one, struct metal_program **program, struct err *err)
{
    struct metal_program *p = mem_array(1, sizeof *p);
    struct state state = {0};
    u32 n_binds = 0;
    if (p) {
        p->n = n;
        p->n_flight = one_by_one ? n : 1;
        p->list = mem_array(n, sizeof *p->list);
        p->binds = mem_array((u64)n * GPU_BUFS, sizeof *p->binds);
        p->flight = mem_array(p->n_flight, sizeof(struct objc *));
    }
    if (!p || !p->list || !p->binds || !p->flight) {
        metal_discard(p);
        return err_set(err, "out of memory: a program of %u launches", n);
    }
    for (u32 i = 0; i < n; i++) {
        if (one_by_one)
            state = (struct state){0};
        make_launch(m, &p->list[i], &list[i], &state);
        make_binds(m, p, &p->list[i], &list[i], &state, &n_binds);
    }
    *program = p;
    return 0;
}

void metal_discard(struct metal_program *p)
{
    if (!p)
        return;
    free(p->list);
    free(p->binds);
    free(p->flight);
    free(p);
}

/* ---- the step's part ---- */

static void encode_launch(const struct metal_words *w, struct objc *to, const struct metal_launch *l, const struct metal_bind *binds)
{
    if (l->barrier)
        mtl_barrier(w, to, MTL_BARRIER_BUFFERS);
    if (l->pipeline)
        mtl_set_pipeline(w, to, l->pipeline);
    mtl_set_bytes(w, to, &l->args, l->arg_bytes, 0);
    for (u32 i = 0; i < l->n_binds; i++) {
        const struct metal_bind *b = &binds[l->first_bind + i];
        if (b->buffer)
            mtl_set_buffer(w, to, b->buffer, b->offset, b->index);
        else
            mtl_set_offset(w, to, b->offset, b->index);
    }
    if (l->shm_bytes)
        mtl_set_group_memory(w, to, l->shm_bytes, 0);
    mtl_dispatch(w, to, (struct metal_size){l->n_groups, 1, 1}, (struct metal_size){GPU_THREADS, 1, 1});
}

int metal_encode(const struct metal *m, const struct metal_program *p, u32 from, u32 to, struct objc *command_buffer, struct err *err)
{
    struct objc *e = mtl_encoder(&m->words, command_buffer, MTL_DISPATCH_CONCURRENT);
    if (!e)
        return err_set(err, "--device metal: no encoder is to be had");
    for (u32 i = from; i < to; i++)
        encode_launch(&m->words, e, &p->list[i], p->binds);
    mtl_end_encoding(&m->words, e);
    return 0;
}
