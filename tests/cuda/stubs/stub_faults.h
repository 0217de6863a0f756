/* What stubs of NVIDIA's libraries have in common: one of their calls fails when a test wants it, and what they made is
 * counted. A call that fails does nothing, but for those that free something or end a group; what it leaves where its
 * result belongs is of no use, as no documentation promises more. */
#ifndef TESTS_CUDA_STUB_FAULTS_H
#define TESTS_CUDA_STUB_FAULTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STUB_CALLS = 24 };

struct stub_faults {
    const char *call;      /* only this one; NULL: any */
    unsigned long after;   /* it fails when it is called for the `after`th time from now; 0: never */
    int status;            /* what it returns then */
    const char *failed_in; /* the last one that did */
    struct {
        const char *call;
        unsigned long n;
    } seen[STUB_CALLS]; /* all that were called, up to the first without a name */
    size_t left;        /* objects that were made and not destroyed */
    pthread_mutex_t lock;
};

static inline bool stub_fault(struct stub_faults *f, const char *call)
{
    int i = 0;
    pthread_mutex_lock(&f->lock);
    while (i < STUB_CALLS - 1 && f->seen[i].call && strcmp(f->seen[i].call, call) != 0) i++;
    f->seen[i].call = call;
    f->seen[i].n++;
    bool fails = f->after && (!f->call || !strcmp(f->call, call)) && --f->after == 0;
    if (fails) f->failed_in = call;
    pthread_mutex_unlock(&f->lock);
    return fails;
}

static inline void stub_made(struct stub_faults *f, int n)
{
    pthread_mutex_lock(&f->lock);
    f->left = (size_t)((long)f->left + n);
    pthread_mutex_unlock(&f->lock);
}

/* Who does this is wrong, and not unlucky. */
static inline _Noreturn void stub_wrong(const char *stub, const char *what, const char *call)
{
    fprintf(stderr, "%s: %s: %s\n", stub, what, call);
    abort();
}

/* What a call that failed left in the place of an object. */
#define STUB_NOTHING ((void *)(uintptr_t)0x5757575757575757)

#endif
