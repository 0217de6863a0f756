/* Vectors of a model of billions of parameters on a machine with a few gigabytes: of their memory only what is touched
 * is taken, and what lies behind 2^33 numbers has to come out as the same numbers in front do. */
#ifndef TESTS_LIB_LARGE_CASE_H
#define TESTS_LIB_LARGE_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "gpu/device.h"

#define LARGE_FAR (((uint64_t)1 << 33) + 24) /* floats: past what 32 bits count, in bytes and in floats */
#define LARGE_FLOATS (LARGE_FAR + ((uint64_t)1 << 22))

/* Zeros, of which no page is there before it is touched; the test is skipped where a machine does not give them. */
void *large_map(uint64_t bytes);
void large_unmap(void *p, uint64_t bytes);

/* Every operation that is told of places in theta, or of rows by their distance. `alloc`: memory as large_map's, where
 * the device reaches it; `release` gives it back. */
void large_case_check(struct device *dev, void *(*alloc)(struct device *dev, uint64_t bytes),
                      void (*release)(struct device *dev, void *p, uint64_t bytes));

#endif
