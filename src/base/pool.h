/* A team of threads that divides one loop at a time. The caller is one of them. Tasks are claimed one by one from a
 * shared counter, so a thread that the system took away holds up one task, not its share; who runs which task never
 * shows in a result. One owner thread calls pool_run; not re-entrant. */
#ifndef PS_POOL_H
#define PS_POOL_H

#include "base/base.h"

struct pool;

/* fn(arg, task, thread): task < n_tasks, thread < pool_threads. */
typedef void pool_fn(void *arg, u32 task, u32 thread);

/* n_threads 0: one for each core this process may use. */
int pool_open(struct pool **out, u32 n_threads, struct err *err);
void pool_close(struct pool *p);
u32 pool_threads(const struct pool *p);

/* Runs every task once and returns when all are done. */
void pool_run(struct pool *p, u32 n_tasks, pool_fn *fn, void *arg);

/* Cores this process may use (affinity and cgroup quota counted; on a Mac the performance cores), at least 1. */
u32 pool_cores(void);

/* The calling thread computes and others wait for it: on a Mac it is run on performance cores. The team's own threads
 * say so themselves; the thread that calls pool_run for good says it once. */
void pool_hurry(void);

#endif
