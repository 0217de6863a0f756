/* A queued launch of the emulated runtime (emulate_queue.c) or of the stub of CUDA's runtime (cudart_stub.c). */
#ifndef TESTS_CUDA_EMULATE_LAUNCH_H
#define TESTS_CUDA_EMULATE_LAUNCH_H

#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/kernels/cuda_kernel.h"

struct emulated_launch {
    const char *name;
    void (*thread)(const void *args);
    unsigned x, y, threads;
    size_t bytes; /* size of the arguments */
    max_align_t args[];
};

/* Copy a launch with its arguments; the caller frees it. *size: bytes of the copy, which may be moved in memory. */
static inline struct emulated_launch *emulate_launch_keep(const struct cuda_grid *grid, const char *name,
                                                          void (*thread)(const void *args), const void *args,
                                                          size_t bytes, unsigned threads, size_t *size)
{
    struct emulated_launch *l = calloc(1, *size = sizeof *l + bytes);
    if (!l) abort();
    *l = (struct emulated_launch){
        .name = name, .thread = thread, .x = grid->x, .y = grid->y, .threads = threads, .bytes = bytes};
    memcpy(l->args, args, bytes);
    return l;
}

static inline void emulate_launch_run(const struct emulated_launch *l)
{
    cuda_emulate(l->name, l->thread, l->args, l->bytes, l->x, l->y, l->threads);
}

#endif
