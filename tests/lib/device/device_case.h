/* Devices under test: every instruction-set level of this CPU, with one and several threads, against references in
 * double. */
#ifndef TESTS_LIB_DEVICE_CASE_H
#define TESTS_LIB_DEVICE_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/device.h"

/* Run `check` on each level with 1 and 2 threads (and 3 for the best level). */
void device_case_each(void (*check)(struct device *dev));

/* N(0, sigma^2) floats; `stream` names the tensor, so that two tensors differ. The caller frees them with mem_free. */
float *case_normal(size_t n, uint64_t stream, float sigma);
/* Return n floats full of NaN: an element that is not written, or is read by mistake, shows. case_free_poisoned
 * checks that the `slack` floats past the end are unchanged. */
float *case_poisoned(size_t n);
void case_free_poisoned(float *p, size_t n);

/* Fail the test unless ||got - want|| <= tol * ||want|| (zero must be zero) and every element is finite. */
void case_close(const char *what, const float *got, const double *want, size_t n, double tol);
void case_equal(const char *what, const float *a, const float *b, size_t n);

/* Check grad against central differences of a loss in double at x[n], relative to the norm over the checked
 * elements. Checks every element, or `most` of them, evenly chosen. x is restored. */
void case_gradient(const char *what, double (*loss)(void *ctx), void *ctx, double *x, size_t n, const float *grad,
                   double tol, size_t most);
double *case_widen(const float *x, size_t n);

/* Allocate memory of the device, with these values unless NULL; `values` may change afterwards. */
void *case_put(struct device *dev, const void *values, size_t bytes);
/* Wait for the device and copy from its memory. */
void case_get(struct device *dev, void *values, const void *from, size_t bytes);

#endif
