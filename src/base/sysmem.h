/* How much memory this process may still take: what the system calls available, or less where a cgroup limits it;
 * and who else of our kind is there. */
#ifndef PS_SYSMEM_H
#define PS_SYSMEM_H

#include "base/base.h"

/* Bytes; 0 when the system does not tell. */
u64 sysmem_available(void);

/* Other running processes of this program (by the name of the executable), seen by this user. Returns how many, and of the largest its
 * process id and resident bytes. 0 where the system does not tell. */
u32 sysmem_others(u32 *pid, u64 *bytes);

#endif
