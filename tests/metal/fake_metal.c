/* See fake_metal.h: the device, its buffers, the library and the pipelines. */
#include "fake_metal.h"

#include "device/gpu_host.h"
#include "device/metal_objc.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- options ---- */

static struct fake_options options = {.ram = 16ull << 30, .working_set = 10ull << 30, .largest = 8ull << 30, .group_memory = 32 << 10, .seed = 1};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void tell_leaks(void)
{
    u32 n;
    const struct fake_class *c = fake_class_of_live(&n);
    if (c)
        fake_fail("%u objects are left over, most of them %s: %u", fake_live(), c->name, n);
}

static void read_options(void)
{
    static const struct {
        const char *name;
        size_t at;
    } WORDS[] = {
#define WORD(name) {#name, offsetof(struct fake_options, name)}
        WORD(ram), WORD(working_set), WORD(largest), WORD(fail_at), WORD(seed), WORD(threads), WORD(none), WORD(foreign), WORD(old), WORD(broken),
        WORD(narrow), WORD(single), WORD(group_memory), WORD(compile_ms),
#undef WORD
    };
    const char *text = getenv("PLAINSONG_FAKE_METAL");
    atexit(tell_leaks);
    while (text && *text) {
        size_t n = strcspn(text, ","), name = strcspn(text, "=,");
        bool known = false;
        for (u32 i = 0; i < COUNT(WORDS); i++)
            if (strlen(WORDS[i].name) == name && !strncmp(WORDS[i].name, text, name)) {
                *(u64 *)(void *)((u8 *)&options + WORDS[i].at) = text[name] == '=' ? strtoull(text + name + 1, NULL, 10) : 1;
                known = true;
            }
        if (!known)
            fake_fail("PLAINSONG_FAKE_METAL: \"%s\" is not known", text);
        text += n + (text[n] == ',');
    }
}

struct fake_options *fake_options(void)
{
    pthread_once(&once, read_options);
    return &options;
}

/* ---- NSError, NSProcessInfo ---- */

struct error {
    struct fake head;
    struct fake *text;
};

struct fake *fake_error_of(const char *text)
{
    struct error *e = (struct error *)fake_new(&fake_error);
    e->text = fake_text(text);
    return &e->head;
}

static struct fake *error_description(struct error *self, struct sel *name)
{
    (void)name;
    return fake_autorelease(fake_retain(self->text));
}

static void error_end(struct fake *self)
{
    fake_release(((struct error *)self)->text);
}

static const struct fake_method ERROR[] = {FAKE_METHOD("localizedDescription", error_description), {0}};
const struct fake_class fake_error = {.head = {.isa = &fake_root_class}, .name = "NSError", .super = &fake_root, .methods = ERROR,
                                      .bytes = sizeof(struct error), .end = error_end};

static void set_error(struct fake **error, const char *text)
{
    if (error)
        *error = fake_autorelease(fake_error_of(text));
}

static const struct fake_class process;

static struct fake *process_info(const struct fake *class, struct sel *name)
{
    (void)class, (void)name;
    return fake_autorelease(fake_new(&process));
}

static unsigned long long process_memory(struct fake *self, struct sel *name)
{
    (void)self, (void)name;
    return options.ram;
}

static const struct fake_method PROCESS[] = {FAKE_METHOD("physicalMemory", process_memory), {0}};
static const struct fake_method PROCESS_CLASS[] = {FAKE_METHOD("processInfo", process_info), {0}};
static const struct fake_class process_class = {.name = "NSProcessInfo's class", .super = &fake_root_class, .methods = PROCESS_CLASS};
static const struct fake_class process = {.head = {.isa = &process_class}, .name = "NSProcessInfo", .super = &fake_root, .methods = PROCESS,
                                          .bytes = sizeof(struct fake)};

/* ---- MTLBuffer ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_buffer *buffers; /* that live */
static u64 allocated;
static struct sigaction before; /* the one that had the signal */
static bool watched;

/* A fault that has a name ends with a line: the host touched what the GPU works on; a kernel left its buffers (one bound at another's index, say, which
 * is shorter). Any other fault is for whoever had the signal. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    const u8 *at = info->si_addr;
    const char *kernel = fake_kernel, *what = kernel ? ": a kernel touches memory that is no buffer's" : NULL;
    char line[160];
    (void)number, (void)context;
    for (const struct fake_buffer *b = buffers; b; b = b->next) {
        if (at >= b->host_map && at < b->host_map + b->map_bytes && b->in_flight)
            what = "the host touches a buffer while the GPU works on it", kernel = NULL;
        if (at >= b->gpu_map && at < b->gpu_map + b->map_bytes)
            what = ": a kernel touches what lies before or behind a buffer";
    }
    if (what) {
        int n = snprintf(line, sizeof line, "fake Metal: %s%s\n", kernel ? kernel : "", what);
        _exit(write(STDERR_FILENO, line, (size_t)n) < 0 ? 85 : 86);
    }
    sigaction(SIGSEGV, &before, NULL);
}

/* The memory ends at an unmapped page, and begins as what nobody wrote. */
static void map_buffer(struct fake_buffer *b)
{
    u64 page = (u64)sysconf(_SC_PAGESIZE), bytes = round_up_u64(b->bytes, page);
    int fd = memfd_create("buffer", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        fake_fail("no memory for a buffer of %llu bytes", (unsigned long long)b->bytes);
    b->map_bytes = bytes + page;
    for (u32 side = 0; side < 2; side++) {
        u8 *at = mmap(NULL, b->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED || mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
            fake_fail("no room for a buffer of %llu bytes", (unsigned long long)b->bytes);
        *(side ? &b->gpu_map : &b->host_map) = at;
        *(side ? &b->gpu : &b->host) = at + (bytes - b->bytes);
    }
    close(fd);
    for (u64 i = 0; i < b->bytes; i += 4096)
        memset(b->host + i, 0xA5, b->bytes - i < 64 ? b->bytes - i : 64);
}

static struct fake *device_new_buffer(struct fake *self, struct sel *name, u64 bytes, u64 how)
{
    (void)self, (void)name;
    if (how != 0)
        fake_fail("a buffer with options %llu; expected shared storage", (unsigned long long)how);
    if (bytes == 0 || bytes > options.largest)
        fake_fail("a buffer of %llu bytes; the largest has %llu", (unsigned long long)bytes, (unsigned long long)options.largest);
    struct fake_buffer *b = (struct fake_buffer *)fake_new(&fake_buffer);
    b->bytes = bytes;
    map_buffer(b);
    pthread_mutex_lock(&lock);
    if (!watched) {
        struct sigaction mine = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
        watched = !sigaction(SIGSEGV, &mine, &before);
    }
    allocated += bytes;
    b->next = buffers;
    buffers = b;
    pthread_mutex_unlock(&lock);
    return &b->head;
}

static void buffer_gone(struct fake *self)
{
    struct fake_buffer *b = (struct fake_buffer *)self, **at = &buffers;
    pthread_mutex_lock(&lock);
    if (b->in_flight)
        fake_fail("a buffer is released while the GPU works on it");
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    allocated -= b->bytes;
    pthread_mutex_unlock(&lock);
    munmap(b->host_map, b->map_bytes);
    munmap(b->gpu_map, b->map_bytes);
}

static void protect(const struct fake_buffer *b, int how)
{
    if (mprotect(b->host_map, b->map_bytes - (u64)sysconf(_SC_PAGESIZE), how))
        fake_fail("mprotect");
}

void fake_buffer_begin(struct fake_buffer *b)
{
    pthread_mutex_lock(&lock);
    if (!b->in_flight++)
        protect(b, PROT_NONE);
    pthread_mutex_unlock(&lock);
}

void fake_buffer_end(struct fake_buffer *b)
{
    pthread_mutex_lock(&lock);
    if (!--b->in_flight)
        protect(b, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&lock);
}

static void *buffer_contents(struct fake_buffer *self, struct sel *name)
{
    (void)name;
    return self->host;
}

static const struct fake_method BUFFER[] = {FAKE_METHOD("contents", buffer_contents), {0}};
const struct fake_class fake_buffer = {.head = {.isa = &fake_root_class}, .name = "MTLBuffer", .super = &fake_root, .methods = BUFFER,
                                       .bytes = sizeof(struct fake_buffer), .end = buffer_gone};

/* ---- MTLResidencySet ---- */

static const struct fake_class residency_how = {.head = {.isa = &fake_root_class}, .name = "MTLResidencySetDescriptor", .super = &fake_root,
                                                .bytes = sizeof(struct fake)};

static struct fake *device_new_residency(struct fake *self, struct sel *name, struct fake *how, struct fake **error)
{
    (void)self, (void)name, (void)error;
    fake_check(how, &residency_how, "newResidencySetWithDescriptor:error:");
    return fake_new(&fake_residency);
}

static void residency_add(struct fake_residency *self, struct sel *name, struct fake *b)
{
    (void)name;
    fake_check(b, &fake_buffer, "addAllocation:");
    if (self->n == COUNT(self->added))
        fake_fail("more buffers in a residency set than a test has");
    self->added[self->n++] = (struct fake_buffer *)fake_retain(b);
    self->committed = false;
}

static void residency_commit(struct fake_residency *self, struct sel *name)
{
    (void)name;
    self->committed = true;
    for (u32 i = 0; i < self->n; i++)
        self->added[i]->resident = self->on_queue;
}

static void residency_request(struct fake_residency *self, struct sel *name)
{
    (void)name;
    if (!self->committed)
        fake_fail("requestResidency before commit: what was added last is not in it");
    self->requested = true;
}

static void residency_end_request(struct fake_residency *self, struct sel *name)
{
    (void)name;
    self->requested = false;
}

static void residency_gone(struct fake *self)
{
    struct fake_residency *r = (struct fake_residency *)self;
    if (r->requested)
        fake_fail("a residency set is released and its request stands");
    for (u32 i = 0; i < r->n; i++) {
        r->added[i]->resident = false;
        fake_release(&r->added[i]->head);
    }
}

static const struct fake_method RESIDENCY[] = {FAKE_METHOD("addAllocation:", residency_add),
                                               FAKE_METHOD("commit", residency_commit),
                                               FAKE_METHOD("requestResidency", residency_request),
                                               FAKE_METHOD("endResidency", residency_end_request),
                                               {0}};
const struct fake_class fake_residency = {.head = {.isa = &fake_root_class}, .name = "MTLResidencySet", .super = &fake_root,
                                          .methods = RESIDENCY, .bytes = sizeof(struct fake_residency), .end = residency_gone};

/* ---- MTLCompileOptions, MTLLibrary, MTLFunction, MTLComputePipelineState ---- */

struct compile {
    struct fake head;
    i64 math, functions;
    u64 language;
    bool fast;
};

static struct fake *compile_init(struct compile *self, struct sel *name)
{
    (void)name;
    self->fast = true; /* as Metal's own defaults are */
    self->math = 2;
    self->functions = 0;
    return &self->head;
}

static void compile_math(struct compile *self, struct sel *name, i64 v) { (void)name, self->math = v; }
static void compile_functions(struct compile *self, struct sel *name, i64 v) { (void)name, self->functions = v; }
static void compile_fast(struct compile *self, struct sel *name, bool v) { (void)name, self->fast = v; }
static void compile_language(struct compile *self, struct sel *name, u64 v) { (void)name, self->language = v; }

static const struct fake_method COMPILE_OLD[] = {FAKE_METHOD("init", compile_init),
                                                 FAKE_METHOD("setFastMathEnabled:", compile_fast),
                                                 FAKE_METHOD("setLanguageVersion:", compile_language),
                                                 {0}};
static const struct fake_class compile_old = {.head = {.isa = &fake_root_class}, .name = "MTLCompileOptions", .super = &fake_root,
                                              .methods = COMPILE_OLD, .bytes = sizeof(struct compile)};
static const struct fake_method COMPILE[] = {FAKE_METHOD("setMathMode:", compile_math),
                                             FAKE_METHOD("setMathFloatingPointFunctions:", compile_functions),
                                             {0}};
static const struct fake_class compile_new = {.head = {.isa = &fake_root_class}, .name = "MTLCompileOptions of macOS 15", .super = &compile_old,
                                              .methods = COMPILE, .bytes = sizeof(struct compile)};

/* objc_getClass finds the name in compile_old; what it makes is of the system's age. */
static struct fake *compile_alloc(const struct fake *class, struct sel *name)
{
    (void)class, (void)name;
    return fake_new(options.old ? &compile_old : &compile_new);
}

static const struct fake_method COMPILE_CLASS[] = {FAKE_METHOD("alloc", compile_alloc), {0}};
static const struct fake_class compile_class = {.name = "MTLCompileOptions' class", .super = &fake_root_class, .methods = COMPILE_CLASS};
static const struct fake_class compile_found = {.head = {.isa = &compile_class}, .name = "MTLCompileOptions", .super = &compile_old};

struct library {
    struct fake head;
    char *text;
};

static const struct fake_class library, function;

static struct fake *device_new_library(struct fake *self, struct sel *name, struct fake *text, struct compile *o, struct fake **error)
{
    (void)self, (void)name;
    const char *source = fake_text_of(text);
    fake_check(o, options.old ? &compile_old : &compile_new, "options:");
    if (options.old ? o->fast : o->math != 0 || o->functions != 1)
        fake_fail("the kernels are compiled with fast arithmetic");
    if (o->language < 3 << 16)
        fake_fail("language version %llx has no simdgroup_matrix we can count on", (unsigned long long)o->language);
    const char *pragma = strstr(source, "#pragma METAL fp contract(off)"), *first = strstr(source, "kernel void");
    if (!pragma || (first && first < pragma))
        fake_fail("the kernels' text does not turn contraction off before them");
    usleep((useconds_t)options.compile_ms * 1000);
    if (options.broken) {
        set_error(error, "program_source:1:2: warning: no matter\nprogram_source:7:9: error: use of undeclared identifier 'tonus'\nint tonus;\n");
        return NULL;
    }
    struct library *l = (struct library *)fake_new(&library);
    l->text = strdup(source);
    return &l->head;
}

static void library_gone(struct fake *self)
{
    free(((struct library *)self)->text);
}

struct function {
    struct fake head;
    enum gpu_kernel kernel;
    u32 n_bufs;
};

/* The text's entry points are made by its own macros: the pattern must be there, and the kernel in its list. */
static bool has_kernel(const char *text, const char *name)
{
    char entry[80];
    snprintf(entry, sizeof entry, "X(%s, ", name + strlen("plainsong_"));
    return strstr(text, "kernel void plainsong_##name(") && strstr(text, entry);
}

static struct fake *library_function(struct library *self, struct sel *name, struct fake *wish)
{
    static const char *const NAMES[] = {
#define X(kernel, args) "plainsong_" #kernel,
        GPU_KERNELS(X)
#undef X
    };
    (void)name;
    for (u32 k = 0; k < GK_COUNT; k++)
        if (!strcmp(NAMES[k], fake_text_of(wish))) {
            if (!has_kernel(self->text, NAMES[k]))
                return NULL;
            struct function *f = (struct function *)fake_new(&function);
            f->kernel = (enum gpu_kernel)k;
            f->n_bufs = (u32)strlen(gpu_access((enum gpu_kernel)k));
            return &f->head;
        }
    return NULL;
}

static struct fake *device_new_pipeline(struct fake *self, struct sel *name, struct fake *f, struct fake **error)
{
    (void)self, (void)name, (void)error;
    fake_check(f, &function, "newComputePipelineStateWithFunction:error:");
    struct fake_pipeline *p = (struct fake_pipeline *)fake_new(&fake_pipeline);
    p->kernel = ((struct function *)f)->kernel;
    p->n_bufs = ((struct function *)f)->n_bufs;
    return &p->head;
}

static u64 pipeline_threads(struct fake *self, struct sel *name)
{
    (void)self, (void)name;
    return options.narrow ? 128 : 1024;
}

static u64 pipeline_width(struct fake *self, struct sel *name)
{
    (void)self, (void)name;
    return 32;
}

static const struct fake_method LIBRARY[] = {FAKE_METHOD("newFunctionWithName:", library_function), {0}};
static const struct fake_class library = {.head = {.isa = &fake_root_class}, .name = "MTLLibrary", .super = &fake_root, .methods = LIBRARY,
                                          .bytes = sizeof(struct library), .end = library_gone};
static const struct fake_class function = {.head = {.isa = &fake_root_class}, .name = "MTLFunction", .super = &fake_root,
                                           .bytes = sizeof(struct function)};
static const struct fake_method PIPELINE[] = {FAKE_METHOD("maxTotalThreadsPerThreadgroup", pipeline_threads),
                                              FAKE_METHOD("threadExecutionWidth", pipeline_width),
                                              {0}};
const struct fake_class fake_pipeline = {.head = {.isa = &fake_root_class}, .name = "MTLComputePipelineState", .super = &fake_root,
                                         .methods = PIPELINE, .bytes = sizeof(struct fake_pipeline)};

/* ---- MTLDevice ---- */

static struct fake *device_name(struct fake *self, struct sel *name)
{
    (void)self, (void)name;
    return fake_autorelease(fake_text("Fake Metal"));
}

static bool device_family(struct fake *self, struct sel *name, i64 family)
{
    (void)self, (void)name;
    return !options.foreign && family <= 1007;
}

static u64 device_group_memory(struct fake *self, struct sel *name) { return (void)self, (void)name, options.group_memory; }
static u64 device_largest(struct fake *self, struct sel *name) { return (void)self, (void)name, options.largest; }
static u64 device_working_set(struct fake *self, struct sel *name) { return (void)self, (void)name, options.working_set; }
static u64 device_allocated(struct fake *self, struct sel *name) { return (void)self, (void)name, allocated; }
static struct fake *device_new_queue(struct fake *self, struct sel *name) { return (void)self, (void)name, fake_new(&fake_queue); }

static const struct fake_method DEVICE_OLD[] = {FAKE_METHOD("name", device_name),
                                                FAKE_METHOD("supportsFamily:", device_family),
                                                FAKE_METHOD("maxThreadgroupMemoryLength", device_group_memory),
                                                FAKE_METHOD("maxBufferLength", device_largest),
                                                FAKE_METHOD("recommendedMaxWorkingSetSize", device_working_set),
                                                FAKE_METHOD("currentAllocatedSize", device_allocated),
                                                FAKE_METHOD("newCommandQueue", device_new_queue),
                                                FAKE_METHOD("newBufferWithLength:options:", device_new_buffer),
                                                FAKE_METHOD("newLibraryWithSource:options:error:", device_new_library),
                                                FAKE_METHOD("newComputePipelineStateWithFunction:error:", device_new_pipeline),
                                                {0}};
static const struct fake_class device_old = {.head = {.isa = &fake_root_class}, .name = "MTLDevice", .super = &fake_root,
                                             .methods = DEVICE_OLD, .bytes = sizeof(struct fake)};
static const struct fake_method DEVICE[] = {FAKE_METHOD("newResidencySetWithDescriptor:error:", device_new_residency), {0}};
static const struct fake_class device_new = {.head = {.isa = &fake_root_class}, .name = "MTLDevice of macOS 15", .super = &device_old,
                                             .methods = DEVICE, .bytes = sizeof(struct fake)};

struct objc *MTLCreateSystemDefaultDevice(void)
{
    const struct fake_options *o = fake_options();
    if (o->none)
        return NULL;
    return (struct objc *)fake_new(o->old ? &device_old : &device_new);
}

const struct fake_class *const fake_classes[] = {&fake_root,      &fake_string, &fake_error,    &process,    &fake_buffer, &residency_how,
                                                 &fake_residency, &compile_found, &compile_new, &compile_old, &library,    &function,
                                                 &fake_pipeline,  &device_old,  &device_new,    &fake_queue, &fake_commands, &fake_encoder,
                                                 NULL};
