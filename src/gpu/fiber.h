/* A thread of control with a stack of its own, run by whoever switches to it: the emulator's lanes (emu.c). A switch saves the registers
 * that a callee must keep and costs a few nanoseconds; x86-64 and aarch64 have it as assembly, other machines use ucontext. The
 * sanitizers are told of every switch.
 *
 * Owner: a fiber, and the fiber it is switched from, stay with one host thread while a fiber is suspended between two switches. */
#ifndef PS_FIBER_H
#define PS_FIBER_H

#include "base/exact.h" /* integer names */

#if defined(__has_feature)
#define FIBER_HAS(x) __has_feature(x)
#else
#define FIBER_HAS(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || FIBER_HAS(address_sanitizer)
#define FIBER_ASAN 1
#else
#define FIBER_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || FIBER_HAS(thread_sanitizer)
#define FIBER_TSAN 1
#elif !defined(FIBER_TSAN) /* the Makefile says it of files that TSan must not look into */
#define FIBER_TSAN 0
#endif
#if (!defined(__x86_64__) && !defined(__aarch64__)) || defined(FIBER_PORTABLE)
#define FIBER_UCONTEXT 1
#include <ucontext.h>
#else
#define FIBER_UCONTEXT 0
#endif

struct fiber {
    void *sp; /* first: the assembly writes here */
    u8 *stack;
    size_t stack_bytes;
    void (*fn)(void *);
    void *arg;
#if FIBER_UCONTEXT
    ucontext_t context;
#endif
#if FIBER_ASAN
    void *fake_stack;
    struct fiber *before; /* whence the switch came */
#endif
#if FIBER_TSAN
    void *shadow;
#endif
};

/* The host thread itself, as a place to switch from and back to. To be called anew on the thread before its first switch. */
void fiber_host(struct fiber *f);

/* The next switch to f calls fn(arg) on stack[0, stack_bytes), 16-byte aligned; fn never returns. A fiber that was suspended in the midst
 * of something may be set anew: what it was about is forgotten. f: zeroed before the first time. */
void fiber_set(struct fiber *f, u8 *stack, size_t stack_bytes, void (*fn)(void *), void *arg);

/* Forgets what the sanitizers keep; the stack is the caller's. */
void fiber_unset(struct fiber *f);

/* For TSan, to which a switch by itself orders nothing: what the running fiber did before fiber_before(place) comes before what any
 * does after a later fiber_after(place). */
#if FIBER_TSAN
void __tsan_release(void *place);
void __tsan_acquire(void *place);
static inline void fiber_before(void *place) { __tsan_release(place); }
static inline void fiber_after(void *place) { __tsan_acquire(place); }
#else
static inline void fiber_before(void *place) { (void)place; }
static inline void fiber_after(void *place) { (void)place; }
#endif

/* Suspends from, which is running, and goes on where `to` was suspended. Returns when someone switches to from. */
void fiber_switch(struct fiber *from, struct fiber *to);

#endif
