#pragma once
#include <stddef.h>
#include <stdint.h>
typedef long ssize_t;
typedef long long off_t;
typedef int pid_t;
typedef unsigned int uid_t, gid_t;
typedef uint16_t mode_t, nlink_t;
typedef int dev_t;
typedef unsigned long long ino_t;
typedef long time_t, clock_t;
typedef int suseconds_t;
typedef unsigned int useconds_t;
typedef long long blkcnt_t;
typedef int blksize_t;
typedef unsigned int u_int;
typedef struct {
    int32_t fds_bits[32];
} fd_set;
