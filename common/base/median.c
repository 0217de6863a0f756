#include "common/base/median.h"

#include <assert.h>
#include <stdlib.h>

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_of(double *v, size_t n)
{
    assert(n > 0);
    qsort(v, n, sizeof *v, by_size);
    return v[(n - 1) / 2];
}
