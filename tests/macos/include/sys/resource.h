#pragma once
#include <sys/types.h>
typedef uint64_t rlim_t;
struct rlimit {
    rlim_t rlim_cur, rlim_max;
};
#define RLIMIT_NOFILE 8
#define RLIMIT_FSIZE 1
#define RLIMIT_CORE 4
#define RLIMIT_AS 5
int getrlimit(int, struct rlimit *);
int setrlimit(int, const struct rlimit *);
typedef void *rusage_info_t;
#define RUSAGE_INFO_V2 2
struct rusage_info_v2 {
    uint8_t ri_uuid[16];
    uint64_t ri_user_time, ri_system_time, ri_pkg_idle_wkups, ri_interrupt_wkups, ri_pageins, ri_wired_size, ri_resident_size;
    uint64_t ri_phys_footprint, ri_proc_start_abstime, ri_proc_exit_abstime, ri_child[6], ri_diskio_bytesread, ri_diskio_byteswritten;
};
