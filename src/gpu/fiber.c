/* Switching stacks. See fiber.h. The kept registers lie on the suspended stack, sp points at them; a new stack is laid out as if it had
 * been suspended just before it enters fiber_enter. All lanes of a kernel suspend at the same call, so the processor's
 * prediction of the return that ends a switch is right although the stack is another one. */
#include "gpu/fiber.h"

#include <string.h>

#if FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if FIBER_TSAN
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
#endif

#if defined(__APPLE__)
#define C_NAME(name) "_" name
#define BEGIN(name) ".text\n.private_extern " name "\n.globl " name "\n.p2align 4\n" name ":\n"
#define END(name)
#else
#define C_NAME(name) name
#define BEGIN(name) ".text\n.globl " name "\n.hidden " name "\n.type " name ", %function\n.p2align 4\n" name ":\n"
#define END(name) ".size " name ", . - " name "\n"
#endif
#if FIBER_ASAN || FIBER_TSAN || FIBER_UCONTEXT /* the switch has more to do: fiber_switch is at the end of this file */
#define SWITCH C_NAME("fiber_jump")
#else
#define SWITCH C_NAME("fiber_switch")
#endif
#define ENTER C_NAME("fiber_enter")
void fiber_jump(struct fiber *from, struct fiber *to);
void fiber_enter(void);

static void begin(void *p)
{
    struct fiber *f = p;
#if FIBER_ASAN
    __sanitizer_finish_switch_fiber(NULL, (const void **)&f->before->stack, &f->before->stack_bytes);
#endif
    f->fn(f->arg);
    __builtin_trap();
}

#if FIBER_UCONTEXT

static void enter(unsigned high, unsigned low)
{
    struct fiber *f = (struct fiber *)(((uintptr_t)high << 16 << 16) | low);
    begin(f);
}

#else

#if defined(__x86_64__)
__asm__(BEGIN(SWITCH)
        "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n"
        "movq (%rsi), %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
        "ret\n" END(SWITCH));
__asm__(BEGIN(ENTER) "movq %rbx, %rdi\n call *%r12\n ud2\n" END(ENTER));

static void *first_frame(struct fiber *f, u8 *top, void (*fn)(void *))
{
    /* r15 r14 r13 r12 rbx rbp, the return to fiber_enter, and a zero that ends a debugger's walk; behind the return the
     * stack is aligned to 16 as before any call. */
    uintptr_t frame[9] = {0, 0, 0, (uintptr_t)fn, (uintptr_t)f, 0, (uintptr_t)fiber_enter, 0, 0};
    return memcpy(top - sizeof frame, frame, sizeof frame);
}
#else /* aarch64 */
__asm__(BEGIN(SWITCH)
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
        "mov x9, sp\n str x9, [x0]\n ldr x9, [x1]\n mov sp, x9\n"
        "ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
        "add sp, sp, #160\n"
        "ret\n" END(SWITCH));
__asm__(BEGIN(ENTER) "mov x0, x19\n blr x20\n brk #0\n" END(ENTER));

static void *first_frame(struct fiber *f, u8 *top, void (*fn)(void *))
{
    uintptr_t frame[20] = {[0] = (uintptr_t)f, [1] = (uintptr_t)fn, [11] = (uintptr_t)fiber_enter};
    return memcpy(top - sizeof frame, frame, sizeof frame);
}
#endif
#endif

void fiber_host(struct fiber *f)
{
    memset(f, 0, sizeof *f);
#if FIBER_TSAN
    f->shadow = __tsan_get_current_fiber();
#endif
}

void fiber_unset(struct fiber *f)
{
#if FIBER_ASAN
    if (f->stack)
        __asan_unpoison_memory_region(f->stack, f->stack_bytes);
#endif
#if FIBER_TSAN
    if (f->shadow) { /* what it did comes before what its stack will be used for */
        void *here = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(f->shadow, 0);
        __tsan_switch_to_fiber(here, 0);
        __tsan_destroy_fiber(f->shadow);
    }
#endif
    memset(f, 0, sizeof *f);
}

void fiber_set(struct fiber *f, u8 *stack, size_t stack_bytes, void (*fn)(void *), void *arg)
{
    fiber_unset(f);
    f->stack = stack;
    f->stack_bytes = stack_bytes;
    f->fn = fn;
    f->arg = arg;
#if FIBER_UCONTEXT
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = stack_bytes;
    makecontext(&f->context, (void (*)(void))enter, 2, (unsigned)((uintptr_t)f >> 16 >> 16), (unsigned)(uintptr_t)f);
#else
    f->sp = first_frame(f, stack + stack_bytes, begin);
#endif
#if FIBER_TSAN
    f->shadow = __tsan_create_fiber(0);
#endif
}

#if FIBER_ASAN || FIBER_TSAN || FIBER_UCONTEXT
void fiber_switch(struct fiber *from, struct fiber *to)
{
#if FIBER_ASAN
    to->before = from;
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#if FIBER_TSAN
    __tsan_switch_to_fiber(to->shadow, 1); /* 1: orders nothing */
#endif
#if FIBER_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    fiber_jump(from, to);
#endif
#if FIBER_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, (const void **)&from->before->stack, &from->before->stack_bytes);
#endif
}
#endif
