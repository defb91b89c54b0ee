#pragma once
#include <time.h>
struct stat {
    dev_t st_dev;
    mode_t st_mode;
    nlink_t st_nlink;
    ino_t st_ino;
    uid_t st_uid;
    gid_t st_gid;
    dev_t st_rdev;
    struct timespec st_atimespec, st_mtimespec, st_ctimespec, st_birthtimespec; /* not st_mtim */
    off_t st_size;
    blkcnt_t st_blocks;
    blksize_t st_blksize;
};
#define S_IFMT 0170000
#define S_ISREG(m) (((m) & S_IFMT) == 0100000)
#define S_ISDIR(m) (((m) & S_IFMT) == 0040000)
int fstat(int, struct stat *);
int stat(const char *, struct stat *);
int lstat(const char *, struct stat *);
int mkdir(const char *, mode_t);
int mkfifo(const char *, mode_t);
int chmod(const char *, mode_t);
mode_t umask(mode_t);
