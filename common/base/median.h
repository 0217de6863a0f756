/* The median of measured values. */
#ifndef COMMON_MEDIAN_H
#define COMMON_MEDIAN_H

#include <stddef.h>

/* Sorts v[n], n >= 1, and returns the lower of its middle values, so the result is always one of them. No NaN. */
double median_of(double *v, size_t n);

#endif
