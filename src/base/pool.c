/* The team of threads. See pool.h.
 *
 * A job is published by one word, `state`: odd while open. A worker that sees it open enters (`inside` + 1), looks
 * again, and claims tasks until none is left; the owner works likewise, closes the job and waits until nobody is
 * inside. Owner and worker each write their own word before reading the other's, so no worker can touch a job that
 * is over. Waiting spins for a short while (decode publishes a job every few microseconds), then sleeps. */
#include "base/pool.h"

#include "base/thread.h"

#include <pthread.h>
#if defined(__APPLE__)
#include <pthread/qos.h>
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sched.h>
#endif
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SPIN = 4000,      /* looks before sleeping: some 20 us, a few times the gap between two jobs of a step */
    MAX_THREADS = 256
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    u32 index;
};

struct pool {
    u32 n_threads;
    pool_fn *fn;
    void *arg;
    u32 n_tasks;
    _Alignas(64) atomic_uint state;  /* odd: a job is open */
    _Alignas(64) atomic_uint next;   /* task to claim */
    _Alignas(64) atomic_uint inside; /* workers that may touch the job */
    atomic_uint sleepers;
    atomic_bool quit;
    bool owner_sleeps; /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    u32 n_workers; /* started */
    struct worker workers[];
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void work(struct pool *p, u32 thread)
{
    u32 n = p->n_tasks, task;
    while ((task = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < n)
        p->fn(p->arg, task, thread);
}

/* Returns when state differs from seen. */
static void await_change(struct pool *p, u32 seen)
{
    for (u32 i = 0; i < SPIN; i++) {
        if (atomic_load(&p->state) != seen)
            return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->state) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void leave(struct pool *p)
{
    if (atomic_fetch_sub(&p->inside, 1) != 1)
        return;
    pthread_mutex_lock(&p->lock);
    if (p->owner_sleeps)
        pthread_cond_signal(&p->idle);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    u32 seen = 0;
    pool_hurry();
    for (;;) {
        u32 state = atomic_load(&p->state); /* before quit: pool_close writes them the other way round, so that a
                                             * worker that misses the one waits for a change yet to come */
        if (atomic_load(&p->quit))
            return NULL;
        if (state == seen || !(state & 1)) {
            await_change(p, state);
            continue;
        }
        atomic_fetch_add(&p->inside, 1);
        if (atomic_load(&p->state) == state)
            work(p, w->index);
        leave(p);
        seen = state;
    }
}

static void set_state(struct pool *p, u32 state)
{
    atomic_store(&p->state, state);
    if (atomic_load(&p->sleepers) == 0)
        return;
    pthread_mutex_lock(&p->lock); /* a worker between its look and its wait holds the lock */
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void await_idle(struct pool *p)
{
    for (u32 i = 0; i < SPIN; i++) {
        if (atomic_load(&p->inside) == 0)
            return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    p->owner_sleeps = true;
    while (atomic_load(&p->inside) != 0)
        pthread_cond_wait(&p->idle, &p->lock);
    p->owner_sleeps = false;
    pthread_mutex_unlock(&p->lock);
}

void pool_run(struct pool *p, u32 n_tasks, pool_fn *fn, void *arg)
{
    if (p->n_threads == 1 || n_tasks <= 1) {
        for (u32 t = 0; t < n_tasks; t++)
            fn(arg, t, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n_tasks = n_tasks;
    atomic_store(&p->next, 0);
    u32 state = atomic_load_explicit(&p->state, memory_order_relaxed);
    set_state(p, state + 1);
    work(p, 0);
    atomic_store(&p->state, state + 2); /* closed; sleepers need not wake for that */
    await_idle(p);
}

u32 pool_threads(const struct pool *p)
{
    return p->n_threads;
}

#if defined(__APPLE__)
/* By Apple's documentation, on no Mac tried. The efficiency cores are left out: a step would wait for its slowest thread. */
u32 pool_cores(void)
{
    int n = 0;
    size_t bytes = sizeof n;
    if (sysctlbyname("hw.perflevel0.physicalcpu", &n, &bytes, NULL, 0) || n < 1) /* not on Apple's chips: one kind of core */
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (u32)n;
}

/* The scheduler has no affinity; a thread of this class is run on performance cores whenever one is free. */
void pool_hurry(void)
{
    pthread_set_qos_class_self_np(QOS_CLASS_USER_INTERACTIVE, 0);
}
#else
/* Cores of a cgroup v2 or v1 quota; 0 when there is none. */
static u32 quota_cores(void)
{
    long long quota = -1, period = 0;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (f) {
        if (fscanf(f, "%lld %lld", &quota, &period) != 2) /* "max 100000" */
            quota = -1;
        fclose(f);
    } else if ((f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r"))) {
        if (fscanf(f, "%lld", &quota) != 1)
            quota = -1;
        fclose(f);
        f = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r");
        if (f && fscanf(f, "%lld", &period) != 1)
            period = 0;
        if (f)
            fclose(f);
    }
    return quota > 0 && period > 0 ? (u32)((quota + period - 1) / period) : 0;
}

u32 pool_cores(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
#endif
    u32 cores = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (u32)n;
    u32 quota = quota_cores();
    return quota && quota < cores ? quota : cores;
}

void pool_hurry(void)
{
}
#endif

int pool_open(struct pool **out, u32 n_threads, struct err *err)
{
    *out = NULL;
    if (n_threads == 0)
        n_threads = pool_cores();
    if (n_threads > MAX_THREADS)
        return err_set(err, "threads: %u is too many, at most %d", n_threads, MAX_THREADS);
    struct pool *p = mem_alloc(sizeof *p + n_threads * sizeof p->workers[0]);
    if (!p)
        return err_set(err, "threads: no memory for %u", n_threads);
    p->n_threads = n_threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->idle, NULL);
    for (u32 i = 1; i < n_threads; i++) {
        struct worker *w = &p->workers[p->n_workers];
        *w = (struct worker){.pool = p, .index = i};
        int rc = thread_start(&w->thread, worker_main, w);
        if (rc) {
            pool_close(p);
            return err_set(err, "threads: cannot start number %u: %s; try --threads %u", i, strerror(rc), i);
        }
        p->n_workers++;
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    atomic_store(&p->quit, true);
    set_state(p, atomic_load(&p->state) + 2);
    for (u32 i = 0; i < p->n_workers; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->idle);
    pthread_mutex_destroy(&p->lock);
    mem_free(p, sizeof *p + p->n_threads * sizeof p->workers[0]);
}
