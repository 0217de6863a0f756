/* A launch that is kept to be run later, by the emulated runtime (emulate_queue.c) or by the stub of CUDA's
 * (cudart_stub_queue.c). */
#ifndef TESTS_CUDA_EMULATE_LAUNCH_H
#define TESTS_CUDA_EMULATE_LAUNCH_H

#include <stddef.h>

#include "gpu/cuda/kernels/cuda_args.h"

struct emulated_launch {
    const char *name;
    void (*thread)(const void *args);
    unsigned x, y, threads;
    size_t bytes; /* of the arguments */
    max_align_t args[];
};

/* With its arguments copied now, as a launch does; the caller frees it. *size: bytes of all of it, which may be
 * moved. */
struct emulated_launch *emulate_launch_keep(const struct cuda_grid *grid, const char *name,
                                            void (*thread)(const void *args), const void *args, size_t bytes,
                                            unsigned threads, size_t *size);
void emulate_launch_run(const struct emulated_launch *l);

#endif
