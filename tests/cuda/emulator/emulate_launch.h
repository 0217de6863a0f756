/* A queued launch of the emulated runtime (emulate_queue.c) or of the stub of CUDA's runtime (cudart_stub_queue.c). */
#ifndef TESTS_CUDA_EMULATE_LAUNCH_H
#define TESTS_CUDA_EMULATE_LAUNCH_H

#include <stddef.h>

#include "gpu/cuda/kernels/cuda_args.h"

struct emulated_launch {
    const char *name;
    void (*thread)(const void *args);
    unsigned x, y, threads;
    size_t bytes; /* size of the arguments */
    max_align_t args[];
};

/* Copy a launch with its arguments; the caller frees it. *size: bytes of the copy, which may be moved in memory. */
struct emulated_launch *emulate_launch_keep(const struct cuda_grid *grid, const char *name,
                                            void (*thread)(const void *args), const void *args, size_t bytes,
                                            unsigned threads, size_t *size);
void emulate_launch_run(const struct emulated_launch *l);

#endif
