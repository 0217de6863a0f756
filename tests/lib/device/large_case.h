/* Vectors of a model of billions of parameters on a machine with a few gigabytes. Only touched pages use memory;
 * values past 2^33 must equal the same values at the front. */
#ifndef TESTS_LIB_LARGE_CASE_H
#define TESTS_LIB_LARGE_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "gpu/device.h"

#define LARGE_FAR (((uint64_t)1 << 33) + 24) /* floats: more than 32 bits can count, in bytes and in floats */
#define LARGE_FLOATS (LARGE_FAR + ((uint64_t)1 << 22))

/* Map zeros; pages are allocated on first access. Skips the test if the machine refuses. */
void *large_map(uint64_t bytes);
void large_unmap(void *p, uint64_t bytes);

/* Check every operation that takes positions in theta or row distances. `alloc`: memory like large_map's that the
 * device can access; `release` frees it. */
void large_case_check(struct device *dev, void *(*alloc)(struct device *dev, uint64_t bytes),
                      void (*release)(struct device *dev, void *p, uint64_t bytes));

#endif
