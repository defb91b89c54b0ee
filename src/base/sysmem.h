/* How much memory this process may still take: what the system calls available, or less where a cgroup limits it;
 * and who else of our kind is there. */
#ifndef PS_SYSMEM_H
#define PS_SYSMEM_H

#include "base/base.h"

/* Bytes; 0 when the system does not tell. */
u64 sysmem_available(void);

/* The least of avail and what the memory cgroups named in the file `self` (as /proc/self/cgroup) still leave, their
 * files under `root` (as /sys/fs/cgroup). Pages of files count as free. avail 0: not known. sysmem_available calls it. */
u64 sysmem_grouped(const char *root, const char *self, u64 avail);

/* Other running processes of this program (by the name of the executable), seen by this user. Returns how many, and of
 * the largest its process id and resident bytes; all: the bytes of all of them, or NULL. 0 where the system does not tell. */
u32 sysmem_others(u32 *pid, u64 *bytes, u64 *all);

/* Bytes of this process that are in memory now (on macOS its footprint, compressed pages and GPU buffers with it); 0
 * when the system does not tell. */
u64 sysmem_resident(void);

/* Digits behind the point that tell two numbers of bytes apart in GB: 1, or more where they would look alike. */
static inline int sysmem_digits(u64 a, u64 b)
{
    int digits = 1;
    for (u64 unit = 100000000; digits < 9 && a != b && (a + unit / 2) / unit == (b + unit / 2) / unit; unit /= 100)
        digits += 2;
    return digits;
}

#endif
