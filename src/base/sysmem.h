/* How much memory this process may still take: what the system calls available, or less where a cgroup limits it. */
#ifndef PS_SYSMEM_H
#define PS_SYSMEM_H

#include "base/base.h"

/* Bytes; 0 when the system does not tell. */
u64 sysmem_available(void);

#endif
