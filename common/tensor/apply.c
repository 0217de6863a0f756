#include "common/tensor/apply.h"

#include <string.h>

void apply_update(float *theta, bool replace, const float *x, size_t n)
{
    if (replace) {
        memcpy(theta, x, n * sizeof *theta);
        return;
    }
    for (size_t i = 0; i < n; i++) theta[i] += x[i];
}

void apply_sgd(const float *theta, float *x, size_t n, double lr, bool parameters, bool increment)
{
    if (parameters && !increment && lr == 1) return; /* exact; theta - (theta - x) would round */
    for (size_t i = 0; i < n; i++) {
        double g = parameters ? (double)theta[i] - (double)x[i] : (double)x[i], step = lr * g;
        x[i] = increment ? (float)-step : (float)((double)theta[i] - step);
    }
}
