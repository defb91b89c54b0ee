/* sysmem.h on macOS, by Apple's documentation: no Mac has run it. What is available is what Activity Monitor does not
 * call used: free pages, and those that can be had without writing anything (of files, and purgeable). What a process
 * holds is its footprint (phys_footprint): unlike resident pages it counts compressed memory and a GPU's buffers, not
 * pages of a mapped file. */
#include "base/sysmem.h"

#if defined(__APPLE__)
#include <libproc.h>
#include <mach/mach.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/sysctl.h>
#include <unistd.h>

u64 sysmem_available(void)
{
    vm_statistics64_data_t vm;
    mach_msg_type_number_t n = HOST_VM_INFO64_COUNT;
    host_t host = mach_host_self();
    kern_return_t rc = host_statistics64(host, HOST_VM_INFO64, (host_info64_t)&vm, &n);
    u64 page = (u64)sysconf(_SC_PAGESIZE), installed = 0;
    size_t bytes = sizeof installed;
    mach_port_deallocate(mach_task_self(), host); /* each call of mach_host_self is a reference more */
    if (rc != KERN_SUCCESS)
        return 0;
    /* free_count holds the speculative pages, which are pages of files too. */
    u64 pages = (u64)vm.free_count - min_u64(vm.speculative_count, vm.free_count);
    pages += (u64)vm.external_page_count + vm.purgeable_count;
    if (sysctlbyname("hw.memsize", &installed, &bytes, NULL, 0) || installed == 0)
        return pages * page;
    return min_u64(pages * page, installed);
}

u64 sysmem_grouped(const char *root, const char *self, u64 avail) /* no cgroups here */
{
    (void)root;
    (void)self;
    return avail;
}

/* 0: another user's process, or gone. */
static u64 footprint(pid_t pid)
{
    struct rusage_info_v2 r;
    return proc_pid_rusage(pid, RUSAGE_INFO_V2, (rusage_info_t *)&r) ? 0 : r.ri_phys_footprint;
}

u32 sysmem_others(u32 *pid, u64 *bytes, u64 *all_bytes)
{
    char own[2 * MAXCOMLEN + 1], name[sizeof own];
    u64 sum = 0;
    u32 found = 0;
    *pid = 0;
    *bytes = 0;
    int room = proc_listallpids(NULL, 0) + 64; /* some may start meanwhile */
    pid_t *all = mem_array(room > 64 ? (u64)room : 64, sizeof *all);
    int n = all && proc_name(getpid(), own, sizeof own) > 0 ? proc_listallpids(all, room * (int)sizeof *all) : 0;
    for (int i = 0; i < n && i < room; i++) {
        if (all[i] == getpid() || proc_name(all[i], name, sizeof name) <= 0 || strcmp(name, own))
            continue;
        u64 held = footprint(all[i]);
        if (!held)
            continue;
        found++;
        sum += held;
        if (held >= *bytes) {
            *bytes = held;
            *pid = (u32)all[i];
        }
    }
    free(all);
    if (all_bytes)
        *all_bytes = sum;
    return found;
}

u64 sysmem_resident(void)
{
    task_vm_info_data_t info;
    mach_msg_type_number_t n = TASK_VM_INFO_COUNT;
    if (task_info(mach_task_self(), TASK_VM_INFO, (task_info_t)&info, &n) != KERN_SUCCESS)
        return 0;
    return info.phys_footprint;
}
#endif
