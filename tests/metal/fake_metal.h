/* A Metal for tests: the classes and functions that the host (src/device/metal_*.c) uses, on Linux. Its GPU is the emulator: a command buffer's
 * launches run on a thread of their own after a while, those between two barriers in an order that a seed picks. Everything that
 * Apple's documentation demands and a driver may let pass is checked, and ends the process (fake_fail).
 *
 * PLAINSONG_FAKE_METAL, read once: words with commas between, each a member of fake_options below, as in "working_set=8000000,old". */
#ifndef FAKE_METAL_H
#define FAKE_METAL_H

#include "fake_objc.h"

#include "gpu/args.h"

struct fake_options {
    u64 ram, working_set, largest; /* bytes: of the machine, to be wired, of one buffer */
    u64 group_memory; /* bytes a group has: 32768, as of Apple's GPUs */
    u64 fail_at;  /* the command buffer that fails, counted from 1; 0: none */
    u64 seed;     /* of the order of launches */
    u64 threads;  /* of the emulator; 0: every core */
    u64 none;     /* 1: no device */
    u64 foreign;  /* 1: not Apple's GPU */
    u64 old;      /* 1: macOS 14: no math mode, no residency sets */
    u64 broken;   /* 1: the text does not compile */
    u64 narrow;   /* 1: pipelines take 128 threads a group */
    u64 compile_ms; /* that compiling the text takes */
    u64 single;   /* 1: a second command buffer before the first is done is a failure */
};

struct fake_options *fake_options(void); /* for tests to change between two devices */

struct fake_counts { /* since the process began */
    u64 command_buffers, encoders, dispatches, barriers;
};

void fake_count(struct fake_counts *c);

/* ---- between the fake's files ---- */

struct fake_buffer {
    struct fake head;
    u64 bytes, map_bytes;
    u8 *host_map, *gpu_map, *host, *gpu; /* one memory, mapped twice: the host's side is out of reach while the GPU works */
    u32 in_flight;    /* command buffers that use it */
    bool resident;    /* in a set that was committed */
    struct fake_buffer *next;
};

struct fake_pipeline {
    struct fake head;
    enum gpu_kernel kernel;
    u32 n_bufs;
};

struct fake_residency {
    struct fake head;
    struct fake_buffer *added[64];
    u32 n;
    bool committed, requested, on_queue;
};

extern const struct fake_class fake_buffer, fake_pipeline, fake_residency, fake_queue, fake_commands, fake_encoder, fake_error;
struct fake *fake_error_of(const char *text);

extern const char *_Atomic fake_kernel; /* the one that runs, or NULL */

void fake_buffer_begin(struct fake_buffer *b); /* the GPU has it, until as many ends */
void fake_buffer_end(struct fake_buffer *b);

#endif
