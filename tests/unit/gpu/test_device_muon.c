/* Muon at every instruction-set level of this CPU, with one and with several threads:
 * - the values of PyTorch,
 * - singular values near 1,
 * - a refused step changes no value,
 * - the same bits for any number of threads. */
#include "common/base/mem.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/device/muon_case.h"
#include "tests/lib/test.h"

static void check_golden(struct device *dev)
{
    muon_case_golden(dev, 1e-5);
}

TEST(test_step_matches_pytorch)
{
    device_case_each(check_golden);
}

TEST(test_singular_values_are_near_1)
{
    device_case_each(muon_case_directions);
}

TEST(test_refused_step_changes_nothing)
{
    device_case_each(muon_case_edges);
}

static void check_bf16_momentum(struct device *dev)
{
    muon_case_bf16_momentum(dev, 2e-2);
}

TEST(test_bf16_momentum_is_rounded_by_rule)
{
    device_case_each(check_bf16_momentum);
}

/* The bits of the level with one thread, which runs first. */
static uint64_t bits_of_one;

static void check_bits(struct device *dev)
{
    uint64_t bits = muon_case_bits(dev);
    if (dev->threads == 1) bits_of_one = bits;
    if (bits != bits_of_one) fail_msg("%s: the bits differ from those of one thread", dev->name);
}

TEST(test_bits_are_independent_of_threads)
{
    device_case_each(check_bits);
}

TEST(test_out_of_memory_is_reported)
{
    static const struct muon_matrix matrix = {.rows = 3, .cols = 5, .ld = 5};
    struct device *dev;
    struct muon_plan *plan;
    assert_int_equal(device_open("cpu", 1, &dev, NULL), STATUS_OK);
    size_t before = mem_live_bytes();
    for (int n = 1; n <= 3; n++) {
        mem_fail_after(n);
        assert_int_equal(dev->ops->muon_plan(dev, &matrix, 1, &plan), STATUS_NOMEM);
        assert_int_equal(mem_live_bytes(), before);
    }
    mem_fail_after(0);
    struct attn_plan *other;
    const struct attn_shape shape = {.batch = 1, .seq = 2, .heads = 1, .head_dim = 4};
    assert_int_equal(dev->ops->attn_plan(dev, &shape, &other), STATUS_OK);
    dev->ops->muon(dev, (void *)other, NULL, NULL, NULL, NULL, NULL);
    assert_int_equal(dev->ops->sync(dev, NULL), STATUS_INVALID);
    device_close(dev);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
