/* Counts the bytes of device memory that each kernel reads and writes, each byte once per launch. This is the traffic
 * of a GPU without cache hits, which dominates the time of most kernels. It replaces races.h for kernels compiled in
 * the same way; one device, one thread. Products, copies and attention do not count. */
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

/* Reset all counts to zero. */
void traffic_reset(void);
/* Write the counts since the reset to out[TRAFFIC_KERNELS], in any order. Returns the number of kernels. */
size_t traffic_of(struct traffic *out);

#endif
