/* Threads of this program. */
#ifndef COMMON_THREAD_H
#define COMMON_THREAD_H

#include <pthread.h>

/* As pthread_create, with all signals blocked: they are for the thread that main runs in, and would cut short what is
 * done in others. */
int thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg);

#endif
