/* How many bytes of device memory each kernel reads and writes, every byte counted once a launch: what must come from
 * and go to the memory of a GPU when nothing is found in its caches, which is what most kernels' time there is made of.
 * In place of races.h, for kernels compiled like that; one device, one thread. Products and copies are not kernels;
 * attention is left out. */
#ifndef TESTS_CUDA_TRAFFIC_H
#define TESTS_CUDA_TRAFFIC_H

#include <stddef.h>
#include <stdint.h>

struct traffic {
    const char *kernel;
    unsigned long launches;
    uint64_t read, written; /* bytes */
};

enum { TRAFFIC_KERNELS = 80 };

/* From zero again. */
void traffic_reset(void);
/* What was counted since, `out` [TRAFFIC_KERNELS] in no particular order; how many. */
size_t traffic_of(struct traffic *out);

#endif
