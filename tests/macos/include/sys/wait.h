#pragma once
#include <sys/types.h>
#define WNOHANG 1
#define WTERMSIG(s) ((s) & 0x7f)
#define WIFEXITED(s) (((s) & 0x7f) == 0)
#define WEXITSTATUS(s) (((s) >> 8) & 0xff)
#define WIFSIGNALED(s) (((s) & 0x7f) != 0x7f && ((s) & 0x7f) != 0)
pid_t waitpid(pid_t, int *, int);
