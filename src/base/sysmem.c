/* Linux: MemAvailable and the cgroup's limit (v2, then v1). macOS: free, inactive and purgeable pages (not tried). */
#include "base/sysmem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <dirent.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <mach/mach.h>
#endif

#if defined(__linux__)
/* The first number of a file, or -1: absent, or "max". */
static long long number_in(const char *path)
{
    long long n = -1;
    FILE *f = fopen(path, "r");
    if (!f)
        return -1;
    if (fscanf(f, "%lld", &n) != 1)
        n = -1;
    fclose(f);
    return n;
}

static long long meminfo_available(void)
{
    char line[128];
    long long kib = -1;
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f)
        return -1;
    while (kib < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, "MemAvailable:", 13))
            kib = strtoll(line + 13, NULL, 10);
    fclose(f);
    return kib < 0 ? -1 : kib * 1024;
}

static u64 limit(u64 avail, const char *max_path, const char *used_path)
{
    long long max = number_in(max_path), used = number_in(used_path);
    if (max <= 0 || used < 0)
        return avail;
    u64 left = max > used ? (u64)(max - used) : 0;
    return avail == 0 || left < avail ? left : avail;
}

u64 sysmem_available(void)
{
    long long n = meminfo_available();
    u64 avail = n > 0 ? (u64)n : 0;
    avail = limit(avail, "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    return limit(avail, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes");
}

/* The first line of /proc/PID/FILE, without its newline; false when it cannot be read. */
static bool proc_line(const char *pid, const char *file, char *line, size_t n)
{
    char path[64];
    if (snprintf(path, sizeof path, "/proc/%s/%s", pid, file) >= (int)sizeof path)
        return false;
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    bool ok = fgets(line, (int)n, f) != NULL;
    fclose(f);
    if (ok)
        line[strcspn(line, "\n")] = 0;
    return ok;
}

u32 sysmem_others(u32 *pid, u64 *bytes)
{
    char own[64], name[64], statm[128];
    u32 found = 0;
    *pid = 0;
    *bytes = 0;
    DIR *dir = proc_line("self", "comm", own, sizeof own) ? opendir("/proc") : NULL;
    if (!dir)
        return 0;
    for (struct dirent *e; (e = readdir(dir));) {
        unsigned long id = strtoul(e->d_name, NULL, 10);
        unsigned long long pages;
        if (id == 0 || id == (unsigned long)getpid() || !proc_line(e->d_name, "comm", name, sizeof name) ||
            strcmp(name, own) || !proc_line(e->d_name, "statm", statm, sizeof statm) ||
            sscanf(statm, "%*u %llu", &pages) != 1)
            continue;
        found++;
        u64 resident = pages * (u64)sysconf(_SC_PAGESIZE);
        if (resident >= *bytes) {
            *bytes = resident;
            *pid = (u32)id;
        }
    }
    closedir(dir);
    return found;
}
#elif defined(__APPLE__)
u64 sysmem_available(void)
{
    vm_statistics64_data_t vm;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    if (host_statistics64(mach_host_self(), HOST_VM_INFO64, (host_info64_t)&vm, &n) != KERN_SUCCESS)
        return 0;
    return ((u64)vm.free_count + vm.inactive_count + vm.purgeable_count) * vm_kernel_page_size;
}
#else
u64 sysmem_available(void)
{
    return 0;
}
#endif

#if !defined(__linux__)
u32 sysmem_others(u32 *pid, u64 *bytes)
{
    *pid = 0;
    *bytes = 0;
    return 0;
}
#endif
