#pragma once
struct pollfd {
    int fd;
    short events, revents;
};
typedef unsigned int nfds_t;
#define POLLIN 0x1
#define POLLOUT 0x4
#define POLLERR 0x8
#define POLLHUP 0x10
int poll(struct pollfd *, nfds_t, int);
