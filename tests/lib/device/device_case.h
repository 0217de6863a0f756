/* Devices under test: every instruction-set level this CPU has, with one and with several threads, against references
 * written in double. */
#ifndef TESTS_LIB_DEVICE_CASE_H
#define TESTS_LIB_DEVICE_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/device.h"

/* Run `check` on each level with 1 and 2 threads (and 3 for the best level). */
void device_case_each(void (*check)(struct device *dev));

/* N(0, sigma^2) floats; `stream` names the tensor, so that two tensors differ. Freed by the caller with mem_free. */
float *case_normal(size_t n, uint64_t stream, float sigma);
/* Full of NaN: whoever forgets to write an element, or reads one it should not, shows. `slack` floats behind the n are
 * checked by case_free_poisoned to be untouched. */
float *case_poisoned(size_t n);
void case_free_poisoned(float *p, size_t n);

/* ||got - want|| <= tol * ||want|| (plus nothing: zero must be zero), and every element finite. The test fails
 * otherwise. */
void case_close(const char *what, const float *got, const double *want, size_t n, double tol);
void case_equal(const char *what, const float *a, const float *b, size_t n);

/* Derivative by central differences of a loss in double at x[n], for every element (or `most` of them, evenly chosen),
 * held against grad: relative to the norm over the checked elements. x is restored. */
void case_gradient(const char *what, double (*loss)(void *ctx), void *ctx, double *x, size_t n, const float *grad,
                   double tol, size_t most);
double *case_widen(const float *x, size_t n);

#endif
