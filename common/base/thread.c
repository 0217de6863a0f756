#include "common/base/thread.h"

#include <semaphore.h>
#include <signal.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t c_locale;

/* Without memory the thread keeps its locale: uselocale(NULL) changes nothing. */
static void make_c_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", NULL);
}

locale_t thread_c_locale(void)
{
    pthread_once(&once, make_c_locale);
    return c_locale;
}

struct start {
    void *(*fn)(void *arg);
    void *arg;
    sem_t taken;
};

static void *thread_main(void *arg)
{
    struct start *start = arg;
    void *(*fn)(void *) = start->fn;
    void *fn_arg = start->arg;
    sem_post(&start->taken);
    uselocale(thread_c_locale());
    return fn(fn_arg);
}

int thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg)
{
    sigset_t all, before;
    struct start start = {.fn = fn, .arg = arg};
    sem_init(&start.taken, 0, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, thread_main, &start);
    while (!failed && sem_wait(&start.taken)) continue; /* the thread has read `start` */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sem_destroy(&start.taken);
    return failed;
}
