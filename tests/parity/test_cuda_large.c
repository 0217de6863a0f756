/* Tests models of billions of parameters on the CUDA device: offsets above 2^33 in theta and rows.
 * ctest: timeout=240 */
#include "tests/lib/device/device_pair.h"
#include "tests/lib/device/large_case.h"
#include "tests/lib/test.h"

static void *take(struct device *of, uint64_t bytes)
{
    return of->ops->alloc(of, bytes);
}

static void give(struct device *of, void *p, uint64_t bytes)
{
    (void)bytes;
    of->ops->release(of, p);
}

TEST(test_operations)
{
    struct device *dev = cuda_begin(false);
    large_case_check(dev, take, give);
    cuda_end(dev);
}

TEST_MAIN(NULL, NULL)
