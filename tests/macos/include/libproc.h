#pragma once
#include <stdint.h>
#include <sys/param.h>
#include <sys/resource.h>
int proc_listallpids(void *, int);
int proc_name(int, void *, uint32_t);
int proc_pid_rusage(int, int, rusage_info_t *);
