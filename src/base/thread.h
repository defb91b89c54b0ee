/* A thread whose stack is as large on every system. */
#ifndef PS_THREAD_H
#define PS_THREAD_H

#include <pthread.h>

/* pthread_create with a stack of 8 MiB, which is what Linux gives. macOS gives 512 KiB: too little for JSON that is
 * nested 2,048 deep, as jansson allows. Returns 0 or an error number. */
int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);

#endif
