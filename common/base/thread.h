/* Start threads that receive no signals and have the C locale. */
#ifndef COMMON_THREAD_H
#define COMMON_THREAD_H

#include <locale.h>
#include <pthread.h>

/* pthread_create with all signals blocked and the locale of thread_c_locale; returns its error number. Only the main
 * thread handles signals: elsewhere they would interrupt system calls. */
int thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg);

/* For uselocale: numbers are parsed and printed with a point, whatever setlocale the program called. It is never freed.
 */
locale_t thread_c_locale(void);

#endif
