/* Tests models of billions of parameters on the CUDA device: offsets above 2^33 in theta and rows.
 * ctest: timeout=240 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/lib/device/device_pair.h"
#include "tests/lib/device/large_case.h"

static void *take(struct device *of, uint64_t bytes)
{
    return of->ops->alloc(of, bytes);
}

static void give(struct device *of, void *p, uint64_t bytes)
{
    (void)bytes;
    of->ops->release(of, p);
}

static void test_operations(void **state)
{
    (void)state;
    struct device *dev = cuda_begin(false);
    large_case_check(dev, take, give);
    cuda_end(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_operations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
