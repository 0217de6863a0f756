#include "common/base/thread.h"

#include <errno.h>
#include <signal.h>

#include "common/base/mem.h"

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
};

static void *thread_main(void *arg)
{
    struct start start = *(struct start *)arg;
    mem_free(arg);
    uselocale(thread_c_locale());
    return start.fn(start.arg);
}

int thread_start(pthread_t *thread, void *(*fn)(void *arg), void *arg)
{
    sigset_t all, before;
    struct start *start = mem_alloc(1, sizeof *start);
    if (!start) return ENOMEM;
    *start = (struct start){fn, arg};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, thread_main, start);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) mem_free(start);
    return failed;
}
