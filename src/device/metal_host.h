/* The Metal backend's insides, shared by its files: the device and its buffers (metal_memory.c), the kernels' pipelines and a list of
 * launches made ready (metal_program.c), the submission (dev_metal.c). Nothing of it has run on a Mac; tests/metal runs it over a fake.
 * One thread owns a backend. */
#ifndef PS_METAL_HOST_H
#define PS_METAL_HOST_H

#include "device/dev_gpu.h"
#include "device/metal_objc.h"

extern const char gpu_metal_text[]; /* the kernels, one text with all that they include (metal_text.c) */

enum { METAL_BUFFERS = 64 };

struct metal_buffer { /* memory that host and GPU share */
    struct objc *object;
    u8 *at;
    u64 bytes;
};

struct metal {
    struct metal_words words;
    struct objc *device, *queue;
    struct objc *residency; /* keeps the buffers wired; NULL before macOS 15 */
    struct objc *pipelines[GK_COUNT];
    struct metal_buffer buffers[METAL_BUFFERS]; /* [0] stands where a launch names none; a gpu_ref's base is the number, from 1 on */
    u32 n_buffers;

    /* the submission that is not waited for */
    struct objc **flight; /* its command buffers, in the program; NULL: there is none */
    u32 n_flight;
    void *out;
    const u8 *out_from;
    u64 n_out;
};

/* Why, for an err: Metal's own words. The text is the object's (NULL: none was given). */
const char *metal_why(const struct metal *m, struct objc *error);

/* ---- metal_memory.c ---- */

/* The Mac's GPU, retained, and the words to speak to it. -1 with err: there is none, or none that we can use. */
int metal_find(struct metal *m, struct err *err);
void metal_describe(const struct metal *m, struct gpu_info *info);
int metal_memory(u32 index, u64 *free_bytes, struct err *err);
void metal_advise(u64 need, char *text, size_t n);

/* A buffer of so many bytes, zeros, wired where the system can. Its number, or -1 with err. */
i32 metal_new_buffer(struct metal *m, u64 bytes, struct err *err);
void metal_free_buffers(struct metal *m);
u8 *metal_address(const struct metal *m, struct gpu_ref r);

/* ---- metal_program.c ---- */

/* Compiles the text and makes a pipeline for each kernel. -1 with err: Metal's first line of complaint. */
int metal_compile(struct metal *m, struct err *err);

struct metal_bind { /* of a buffer to an index, where it is not bound as it was before */
    struct objc *buffer; /* NULL: the same, at another offset */
    u64 offset;
    u32 index;
};

struct metal_launch { /* all that can be known before the step */
    struct objc *pipeline;  /* NULL: the one before */
    u32 n_groups, shm_bytes; /* shm_bytes 0: as before */
    u32 arg_bytes, first_bind, n_binds;
    bool barrier;
    union gpu_args args;
};

struct metal_program {
    struct metal_launch *list;
    struct metal_bind *binds;
    struct objc **flight; /* one command buffer, or one a launch */
    u32 n, n_flight;
};

int metal_prepare(struct metal *m, const struct gpu_launch *list, u32 n, bool one_by_one, struct metal_program **program, struct err *err);
void metal_discard(struct metal_program *p);

/* Launches [from, to) by one encoder of the command buffer. -1 with err. */
int metal_encode(const struct metal *m, const struct metal_program *p, u32 from, u32 to, struct objc *command_buffer, struct err *err);

#endif
