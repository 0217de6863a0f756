/* Start threads that receive no signals. */
#ifndef COMMON_THREAD_H
#define COMMON_THREAD_H

#include <pthread.h>

/* pthread_create with all signals blocked; returns its error number. Only the main thread handles signals: elsewhere
 * they would interrupt system calls. */
int thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg);

#endif
