/* Metal for plain C: the few functions of Apple's Objective-C runtime that we call, and every message we send, each through
 * objc_msgSend cast to that message's exact prototype (which arm64 demands). No header of an SDK is read, so this compiles anywhere and
 * tests/metal runs it on Linux. Selectors are looked up once and kept in the caller's struct.
 *
 * Ownership is Objective-C's: new... and alloc give an object that the caller releases; all others live until the pool in force is
 * popped. Nothing here takes a block. Signatures: Apple's documentation of Foundation and Metal. */
#ifndef PS_METAL_OBJC_H
#define PS_METAL_OBJC_H

#include "base/base.h"

struct objc; /* any object, a class too */
struct sel;

void objc_msgSend(void); /* never called as it is declared */
struct objc *objc_getClass(const char *name); /* NULL: there is none */
struct sel *sel_registerName(const char *name);
void *objc_autoreleasePoolPush(void);
void objc_autoreleasePoolPop(void *pool); /* same thread, in order */

#if defined(__APPLE__)
struct objc *MTLCreateSystemDefaultDevice(void) __attribute__((weak_import));
#else
struct objc *MTLCreateSystemDefaultDevice(void) __attribute__((weak));
#endif

struct metal_size { /* MTLSize: three NSUIntegers, passed by value */
    u64 width, height, depth;
};

/* Values of Metal's enumerations that we name. */
enum {
    MTL_STORAGE_SHARED = 0,       /* MTLResourceStorageModeShared, tracked, default cache */
    MTL_DISPATCH_CONCURRENT = 1,  /* MTLDispatchType */
    MTL_BARRIER_BUFFERS = 1,      /* MTLBarrierScope */
    MTL_STATUS_COMPLETED = 4,     /* MTLCommandBufferStatus */
    MTL_STATUS_ERROR = 5,
    MTL_MATH_SAFE = 0,            /* MTLMathMode, macOS 15 */
    MTL_FUNCTIONS_PRECISE = 1,    /* MTLMathFloatingPointFunctions, macOS 15 */
    MTL_LANGUAGE_3_0 = 3 << 16,   /* MTLLanguageVersion: macOS 13 */
    MTL_FAMILY_APPLE_7 = 1007     /* MTLGPUFamily: M1 */
};

/* Messages: X<arguments>(result, name here, selector, argument types). */
#define METAL_MESSAGES(X0, X1, X2, X3)                                                                                       \
    /* NSObject */                                                                                                           \
    X0(struct objc *, alloc, "alloc")                                                                                        \
    X0(struct objc *, init, "init")                                                                                          \
    X0(struct objc *, retain, "retain")                                                                                      \
    X0(void, release, "release")                                                                                             \
    X1(bool, responds, "respondsToSelector:", struct sel *)                                                                  \
    /* NSString, NSError, NSProcessInfo */                                                                                   \
    X1(struct objc *, string, "stringWithUTF8String:", const char *)                                                         \
    X0(const char *, utf8, "UTF8String")                                                                                     \
    X0(struct objc *, description, "localizedDescription")                                                                   \
    X0(struct objc *, process_info, "processInfo")                                                                           \
    X0(unsigned long long, physical_memory, "physicalMemory")                                                                \
    /* MTLDevice */                                                                                                          \
    X0(struct objc *, name, "name")                                                                                          \
    X1(bool, supports_family, "supportsFamily:", i64)                                                                        \
    X0(u64, max_group_memory, "maxThreadgroupMemoryLength")                                                                  \
    X0(u64, max_buffer, "maxBufferLength")                                                                                   \
    X0(u64, working_set, "recommendedMaxWorkingSetSize")                                                                     \
    X0(u64, allocated, "currentAllocatedSize")                                                                               \
    X0(struct objc *, new_queue, "newCommandQueue")                                                                          \
    X2(struct objc *, new_buffer, "newBufferWithLength:options:", u64, u64)                                                  \
    X3(struct objc *, new_library, "newLibraryWithSource:options:error:", struct objc *, struct objc *, struct objc **)      \
    X2(struct objc *, new_pipeline, "newComputePipelineStateWithFunction:error:", struct objc *, struct objc **)             \
    X2(struct objc *, new_residency, "newResidencySetWithDescriptor:error:", struct objc *, struct objc **)                  \
    /* MTLCompileOptions */                                                                                                  \
    X1(void, set_math_mode, "setMathMode:", i64)                                                                             \
    X1(void, set_math_functions, "setMathFloatingPointFunctions:", i64)                                                      \
    X1(void, set_fast_math, "setFastMathEnabled:", bool)                                                                     \
    X1(void, set_language, "setLanguageVersion:", u64)                                                                       \
    /* MTLLibrary, MTLComputePipelineState */                                                                                \
    X1(struct objc *, new_function, "newFunctionWithName:", struct objc *)                                                   \
    X0(u64, max_threads, "maxTotalThreadsPerThreadgroup")                                                                    \
    X0(u64, simd_width, "threadExecutionWidth")                                                                              \
    /* MTLBuffer */                                                                                                          \
    X0(void *, contents, "contents")                                                                                         \
    /* MTLResidencySet (macOS 15), MTLCommandQueue; commit is a command buffer's too */                                      \
    X1(void, add_allocation, "addAllocation:", struct objc *)                                                                \
    X0(void, request_residency, "requestResidency")                                                                          \
    X0(void, end_residency, "endResidency")                                                                                  \
    X1(void, add_residency, "addResidencySet:", struct objc *)                                                               \
    X0(struct objc *, command_buffer, "commandBufferWithUnretainedReferences")                                               \
    /* MTLCommandBuffer */                                                                                                   \
    X1(struct objc *, encoder, "computeCommandEncoderWithDispatchType:", u64)                                                \
    X0(void, commit, "commit")                                                                                               \
    X0(u64, status, "status")                                                                                                \
    X0(void, wait, "waitUntilCompleted")                                                                                     \
    X0(struct objc *, error, "error")                                                                                        \
    /* MTLComputeCommandEncoder */                                                                                           \
    X1(void, set_pipeline, "setComputePipelineState:", struct objc *)                                                        \
    X3(void, set_bytes, "setBytes:length:atIndex:", const void *, u64, u64)                                                  \
    X3(void, set_buffer, "setBuffer:offset:atIndex:", struct objc *, u64, u64)                                               \
    X2(void, set_offset, "setBufferOffset:atIndex:", u64, u64)                                                               \
    X2(void, set_group_memory, "setThreadgroupMemoryLength:atIndex:", u64, u64)                                              \
    X1(void, barrier, "memoryBarrierWithScope:", u64)                                                                        \
    X2(void, dispatch, "dispatchThreadgroups:threadsPerThreadgroup:", struct metal_size, struct metal_size)                  \
    X0(void, end_encoding, "endEncoding")

struct metal_words { /* a selector for each message */
#define X0(result, name, selector) struct sel *name;
#define X1(result, name, selector, a) X0(result, name, selector)
#define X2(result, name, selector, a, b) X0(result, name, selector)
#define X3(result, name, selector, a, b, c) X0(result, name, selector)
    METAL_MESSAGES(X0, X1, X2, X3)
#undef X0
#undef X1
#undef X2
#undef X3
};

static inline void metal_words_fill(struct metal_words *w)
{
#define X0(result, name, selector) w->name = sel_registerName(selector);
#define X1(result, name, selector, a) X0(result, name, selector)
#define X2(result, name, selector, a, b) X0(result, name, selector)
#define X3(result, name, selector, a, b, c) X0(result, name, selector)
    METAL_MESSAGES(X0, X1, X2, X3)
#undef X0
#undef X1
#undef X2
#undef X3
}

/* By way of a pointer: gcc takes a cast at the call itself for a mistake. */
static inline void (*metal_send(void))(void)
{
    return objc_msgSend;
}

/* mtl_<name>(words, receiver, arguments): the receiver is never NULL. */
#define X0(result, name, selector)                                                                                           \
    static inline result mtl_##name(const struct metal_words *w, struct objc *to)                                            \
    {                                                                                                                        \
        return ((result(*)(struct objc *, struct sel *))metal_send())(to, w->name);                                          \
    }
#define X1(result, name, selector, A)                                                                                        \
    static inline result mtl_##name(const struct metal_words *w, struct objc *to, A a)                                       \
    {                                                                                                                        \
        return ((result(*)(struct objc *, struct sel *, A))metal_send())(to, w->name, a);                                    \
    }
#define X2(result, name, selector, A, B)                                                                                     \
    static inline result mtl_##name(const struct metal_words *w, struct objc *to, A a, B b)                                  \
    {                                                                                                                        \
        return ((result(*)(struct objc *, struct sel *, A, B))metal_send())(to, w->name, a, b);                              \
    }
#define X3(result, name, selector, A, B, C)                                                                                  \
    static inline result mtl_##name(const struct metal_words *w, struct objc *to, A a, B b, C c)                             \
    {                                                                                                                        \
        return ((result(*)(struct objc *, struct sel *, A, B, C))metal_send())(to, w->name, a, b, c);                        \
    }
METAL_MESSAGES(X0, X1, X2, X3)
#undef X0
#undef X1
#undef X2
#undef X3

#endif
