/* Faults, shared by the stubs of NVIDIA's libraries: a test makes one call fail, and objects are counted. A failed call
 * has no effect, unless it frees something or ends a group. It leaves an invalid result, because the documentation does
 * not promise a valid one. */
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
    const char *call;      /* function that fails; NULL: any */
    unsigned long after;   /* its `after`th call from now fails; 0: none */
    int status;            /* result of the failed call */
    const char *failed_in; /* name of the last failed call */
    struct {
        const char *call;
        unsigned long n;
    } seen[STUB_CALLS]; /* called functions, up to the first without a name */
    size_t left;        /* objects created and not destroyed */
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

/* Invalid object that a failed call returns. */
#define STUB_NOTHING ((void *)(uintptr_t)0x5757575757575757)

#endif
