#include "common/apply.h"

#include <string.h>

void apply_update(float *theta, bool replace, const float *x, size_t n)
{
    if (replace) {
        memcpy(theta, x, n * sizeof *theta);
        return;
    }
    for (size_t i = 0; i < n; i++) theta[i] += x[i];
}
