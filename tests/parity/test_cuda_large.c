/* Tests models of billions of parameters on the CUDA device: offsets above 2^33 in theta, rows and logits.
 * ctest: timeout=240 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu/cuda/cuda_impl.h"
#include "tests/lib/device/device_pair.h"
#include "tests/lib/device/large_case.h"

static struct device *dev;

static int device_make(void **state)
{
    (void)state;
    dev = cuda_begin(false);
    return 0;
}

static int device_end(void **state)
{
    (void)state;
    cuda_end(dev);
    return 0;
}

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
    large_case_check(dev, take, give);
}

/* Losses of three rows of 8 tokens, 2^32 elements apart. */
static void test_logits(void **state)
{
    (void)state;
    enum { ROWS = 3, WORDS = 8 };
    const uint64_t ld = (uint64_t)1 << 32;
    static const int32_t targets[ROWS] = {1, 7, 3};
    static const float row[WORDS] = {0.5f, -1, 2, 0.25f, 1, 0, -3, 1.5f};
    float near[ROWS], far[ROWS], x[WORDS];
    float *logits = take(dev, ((ROWS - 1) * ld + WORDS) * sizeof *logits);
    float *some = take(dev, ROWS * WORDS * sizeof *some), *loss = take(dev, ROWS * sizeof *loss);
    int32_t *wanted = take(dev, sizeof targets);
    assert_true(logits && some && loss && wanted);
    dev->ops->upload(dev, wanted, targets, sizeof targets);
    for (uint64_t i = 0; i < ROWS; i++) {
        for (int k = 0; k < WORDS; k++) x[k] = (float)(i + 1) * row[k];
        dev->ops->upload(dev, some + i * WORDS, x, sizeof x);
        dev->ops->upload(dev, logits + i * ld, x, sizeof x);
        assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
    }
    LAUNCH(cuda_of(dev), cuda_xent, ROWS, 1, cuda_xent_args, .v = WORDS, .ld = WORDS, .loss_only = 1, .logits = some,
           .loss = loss, .targets = wanted);
    dev->ops->download(dev, near, loss, sizeof near);
    LAUNCH(cuda_of(dev), cuda_xent, ROWS, 1, cuda_xent_args, .v = WORDS, .ld = ld, .loss_only = 1, .logits = logits,
           .loss = loss, .targets = wanted);
    dev->ops->download(dev, far, loss, sizeof far);
    assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
    assert_memory_equal(near, far, sizeof near);
    void *all[] = {logits, some, loss, wanted};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) give(dev, all[i], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_operations, device_make, device_end),
        cmocka_unit_test_setup_teardown(test_logits, device_make, device_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
