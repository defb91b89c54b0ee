/* The Mac's GPU and its memory. Host and GPU share it, so a buffer is filled and read through its contents, and what the GPU may
 * wire is a part of the machine's memory: recommendedMaxWorkingSetSize, which `sysctl iogpu.wired_limit_mb` moves. What another
 * plainsong holds comes off it, since Metal tells of this process alone. */
#include "device/metal_host.h"

#include "base/sysmem.h"

#include <stdio.h>
#include <string.h>

enum { MIB = 1 << 20, GROUP_MEMORY = 32 << 10 /* what a group of Apple's GPUs has */ };

/* What Apple published of a chip's memory and of its largest variant's GPU. Only grids and shares of the peak depend on it, never a result. */
static const struct chip {
    const char *name;
    u32 cores;
    u32 gb_s;
} CHIPS[] = {{"Apple M1", 8, 68},      {"Apple M1 Pro", 16, 200}, {"Apple M1 Max", 32, 400},   {"Apple M1 Ultra", 64, 800},
             {"Apple M2", 10, 100},    {"Apple M2 Pro", 19, 200}, {"Apple M2 Max", 38, 400},   {"Apple M2 Ultra", 76, 800},
             {"Apple M3", 10, 100},    {"Apple M3 Pro", 18, 150}, {"Apple M3 Max", 40, 400},   {"Apple M3 Ultra", 80, 819},
             {"Apple M4", 10, 120},    {"Apple M4 Pro", 20, 273}, {"Apple M4 Max", 40, 546},   {"Apple M5", 10, 153}};

enum { GROUPS_A_CORE = 2 /* of 256 threads and up to 32 KB: about what a core holds at once (estimate) */, GROUPS_UNKNOWN = 8 };

const char *metal_why(const struct metal *m, struct objc *error)
{
    struct objc *text = error ? mtl_description(&m->words, error) : NULL;
    const char *why = text ? mtl_utf8(&m->words, text) : NULL;
    return why && *why ? why : "Metal gave no reason";
}

/* ---- the device ---- */

int metal_find(struct metal *m, struct err *err)
{
    if (!MTLCreateSystemDefaultDevice)
        return err_set(err, "--device metal: this system has no Metal");
    metal_words_fill(&m->words);
    m->device = MTLCreateSystemDefaultDevice();
    if (!m->device)
        return err_set(err, "--device metal: this machine has no GPU that Metal can use");
    if (!mtl_supports_family(&m->words, m->device, MTL_FAMILY_APPLE_7) || mtl_max_group_memory(&m->words, m->device) < GROUP_MEMORY) {
        mtl_release(&m->words, m->device);
        m->device = NULL;
        return err_set(err, "--device metal: this GPU is not Apple's own; expected an M1 or a later one");
    }
    return 0;
}

static const struct chip *chip_of(const char *name)
{
    for (u32 i = 0; i < COUNT(CHIPS); i++)
        if (!strcmp(CHIPS[i].name, name))
            return &CHIPS[i];
    return NULL;
}

struct memory { /* all in bytes */
    u64 ram;    /* of the machine */
    u64 limit;  /* the GPU may wire */
    u64 held;   /* this process and other plainsongs hold; more than the limit, where that was lowered or theirs is not the GPU's */
    u64 free;   /* 1 rather than 0, which would say: not known */
};

static struct memory memory_of(const struct metal *m)
{
    const struct metal_words *w = &m->words;
    struct objc *info = objc_getClass("NSProcessInfo"), *process = info ? mtl_process_info(w, info) : NULL;
    struct memory y = {.ram = process ? mtl_physical_memory(w, process) : 0, .limit = mtl_working_set(w, m->device)};
    u32 pid;
    u64 largest;
    sysmem_others(&pid, &largest, &y.held);
    y.held += mtl_allocated(w, m->device);
    y.free = y.limit > y.held ? y.limit - y.held : 1;
    return y;
}

void metal_describe(const struct metal *m, struct gpu_info *info)
{
    struct objc *text = mtl_name(&m->words, m->device);
    const char *name = text ? mtl_utf8(&m->words, text) : NULL;
    name = name ? name : "a GPU without a name";
    const struct chip *chip = chip_of(name);
    struct memory y = memory_of(m);
    *info = (struct gpu_info){.total_bytes = y.limit,
                              .free_bytes = y.free,
                              .max_buffer_bytes = mtl_max_buffer(&m->words, m->device),
                              .n_groups = chip ? chip->cores * GROUPS_A_CORE : GROUPS_UNKNOWN,
                              .shm_bytes = (u32)mtl_max_group_memory(&m->words, m->device),
                              .peak_gb_s = chip ? chip->gb_s : 0};
    snprintf(info->name, sizeof info->name, "%s", name);
}

/* For a question asked before a device is open. */
static int look(struct memory *y, struct err *err)
{
    struct metal m = {0};
    void *pool = MTLCreateSystemDefaultDevice ? objc_autoreleasePoolPush() : NULL;
    int rc = metal_find(&m, err);
    if (!rc) {
        *y = memory_of(&m);
        mtl_release(&m.words, m.device);
    }
    if (pool)
        objc_autoreleasePoolPop(pool);
    return rc;
}

int metal_memory(u32 index, u64 *free_bytes, struct err *err)
{
    struct memory y;
    if (index)
        return err_set(err, "--device metal: there is one GPU");
    if (look(&y, err))
        return -1;
    *free_bytes = y.free;
    return 0;
}

/* The limit that would do is worth a word only where it leaves the system enough to live on: a tenth of the memory and 4 GiB at least. */
void metal_advise(u64 need, char *text, size_t n)
{
    struct memory y;
    text[0] = 0;
    if (look(&y, NULL))
        return;
    u64 wish = round_up_u64(need + y.held, 256ull * MIB);
    u64 system = y.ram / 10 > 4096ull * MIB ? y.ram / 10 : 4096ull * MIB;
    if (wish > y.limit && wish + system <= y.ram)
        snprintf(text, n, "; `sudo sysctl iogpu.wired_limit_mb=%llu` lets the GPU have so much until the next start",
                 (unsigned long long)(wish / MIB));
}

/* ---- buffers ---- */

/* A set of all buffers, asked for at once and kept: the system then does not unwire them between two steps. */
static void open_residency(struct metal *m)
{
    const struct metal_words *w = &m->words;
    struct objc *class = objc_getClass("MTLResidencySetDescriptor"), *error = NULL;
    if (!class || !mtl_responds(w, m->device, w->new_residency))
        return;
    struct objc *how = mtl_init(w, mtl_alloc(w, class));
    m->residency = mtl_new_residency(w, m->device, how, &error); /* NULL: served all the same */
    mtl_release(w, how);
    if (m->residency)
        mtl_add_residency(w, m->queue, m->residency);
}

i32 metal_new_buffer(struct metal *m, u64 bytes, struct err *err)
{
    const struct metal_words *w = &m->words;
    u64 most = mtl_max_buffer(w, m->device);
    struct metal_buffer b = {.bytes = round_up_u64(bytes ? bytes : 1, 256)};
    if (m->n_buffers == METAL_BUFFERS)
        return err_set(err, "--device metal: more than %d buffers", METAL_BUFFERS);
    if (b.bytes > most)
        return err_set(err, "--device metal: %.1f GB were asked for in one piece; the largest buffer here has %.1f", (double)b.bytes / 1e9,
                       (double)most / 1e9);
    b.object = mtl_new_buffer(w, m->device, b.bytes, MTL_STORAGE_SHARED);
    b.at = b.object ? mtl_contents(w, b.object) : NULL;
    if (!b.at) {
        if (b.object)
            mtl_release(w, b.object);
        return err_set(err, "--device metal: out of memory: %.1f GB", (double)b.bytes / 1e9);
    }
    memset(b.at, 0, b.bytes);
    if (!m->n_buffers)
        open_residency(m);
    if (m->residency) {
        mtl_add_allocation(w, m->residency, b.object);
        mtl_commit(w, m->residency);
        mtl_request_residency(w, m->residency);
    }
    m->buffers[m->n_buffers] = b;
    return (i32)m->n_buffers++;
}

void metal_free_buffers(struct metal *m)
{
    if (m->residency) {
        mtl_end_residency(&m->words, m->residency);
        mtl_release(&m->words, m->residency);
    }
    for (u32 i = 0; i < m->n_buffers; i++)
        mtl_release(&m->words, m->buffers[i].object);
}

u8 *metal_address(const struct metal *m, struct gpu_ref r)
{
    return m->buffers[r.base].at + r.offset;
}
