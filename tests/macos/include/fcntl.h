#pragma once
#include <sys/types.h>
#define O_RDONLY 0x0
#define O_WRONLY 0x1
#define O_RDWR 0x2
#define O_NONBLOCK 0x4
#define O_APPEND 0x8
#define O_CREAT 0x200
#define O_TRUNC 0x400
#define O_EXCL 0x800
#define O_CLOEXEC 0x1000000
#define F_DUPFD 0
#define F_GETFD 1
#define F_SETFD 2
#define F_GETFL 3
#define F_SETFL 4
#define F_RDADVISE 44
#define F_NOCACHE 48
#define F_FULLFSYNC 51
#define FD_CLOEXEC 1
int open(const char *, int, ...);
int fcntl(int, int, ...);
