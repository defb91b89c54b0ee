/* Linux: MemAvailable and the limits of the cgroups this process is in (v2 and v1). macOS: sysmem_macos.c. Elsewhere
 * nothing is known. */
#include "base/sysmem.h"

#if !defined(__APPLE__)
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__linux__)
#include <dirent.h>
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

/* Both versions of cgroups: the files of a group, and the line of memory.stat that counts clean and dirty pages of
 * files. */
static const struct version {
    const char *folder, *max, *used, *inactive, *active;
} V2 = {"", "memory.max", "memory.current", "inactive_file", "active_file"},
  V1 = {"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};

static long long group_number(const char *group, const char *file)
{
    char path[640];
    return snprintf(path, sizeof path, "%s/%s", group, file) < (int)sizeof path ? number_in(path) : -1;
}

/* Pages of files that a group holds. They count as used but are given up when memory is asked for: a model file that
 * was read once would else fill a group for good. */
static u64 group_files(const char *group, const struct version *v)
{
    char path[640], line[128], name[64];
    unsigned long long n, sum = 0;
    FILE *f = snprintf(path, sizeof path, "%s/memory.stat", group) < (int)sizeof path ? fopen(path, "r") : NULL;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "%63s %llu", name, &n) == 2 && (!strcmp(name, v->inactive) || !strcmp(name, v->active)))
            sum += n;
    if (f)
        fclose(f);
    return sum;
}

static u64 group_limit(const char *group, const struct version *v, u64 avail)
{
    long long max = group_number(group, v->max), used = group_number(group, v->used);
    if (max <= 0 || used < 0)
        return avail;
    u64 files = min_u64(group_files(group, v), (u64)used), hard = (u64)used - files;
    u64 left = (u64)max > hard ? (u64)max - hard : 1; /* 0 would say: not known */
    return avail == 0 || left < avail ? left : avail;
}

u64 sysmem_grouped(const char *root, const char *self, u64 avail)
{
    char line[512], group[576];
    FILE *f = fopen(self, "r");
    while (f && fgets(line, sizeof line, f)) { /* ID:CONTROLLERS:/PATH */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *controllers++ = 0;
        *path++ = 0;
        const struct version *v = !*controllers ? &V2 : !strcmp(controllers, "memory") ? &V1 : NULL;
        if (!v || snprintf(group, sizeof group, "%s%s%s", root, v->folder, path) >= (int)sizeof group)
            continue;
        /* The group and all above it, up to the root: each has a limit of its own. A container may show its own group as
         * the root, then the path is not there. */
        size_t top = strlen(root) + strlen(v->folder);
        for (char *end = group + strlen(group);; end = strrchr(group, '/')) {
            *end = 0;
            avail = group_limit(group, v, avail);
            if ((size_t)(end - group) <= top)
                break;
        }
    }
    if (f)
        fclose(f);
    return avail;
}

u64 sysmem_available(void)
{
    long long n = meminfo_available();
    return sysmem_grouped("/sys/fs/cgroup", "/proc/self/cgroup", n > 0 ? (u64)n : 0);
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

u32 sysmem_others(u32 *pid, u64 *bytes, u64 *all)
{
    char own[64], name[64], statm[128];
    u64 sum = 0;
    u32 found = 0;
    *pid = 0;
    *bytes = 0;
    if (all)
        *all = 0;
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
        sum += resident;
        if (resident >= *bytes) {
            *bytes = resident;
            *pid = (u32)id;
        }
    }
    closedir(dir);
    if (all)
        *all = sum;
    return found;
}
#else
u64 sysmem_available(void)
{
    return 0;
}

u64 sysmem_grouped(const char *root, const char *self, u64 avail)
{
    (void)root;
    (void)self;
    return avail;
}

u32 sysmem_others(u32 *pid, u64 *bytes, u64 *all)
{
    *pid = 0;
    *bytes = 0;
    if (all)
        *all = 0;
    return 0;
}
#endif

u64 sysmem_resident(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f)
        return 0;
    if (fscanf(f, "%*s %llu", &pages) != 1)
        pages = 0;
    fclose(f);
    return pages * (u64)sysconf(_SC_PAGESIZE);
}
#endif
