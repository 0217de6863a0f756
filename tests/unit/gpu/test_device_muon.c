/* Muon at every instruction-set level of this CPU, with one and with several threads:
 * - the values of PyTorch,
 * - singular values near 1,
 * - a refused step changes no value,
 * - the same bits for any number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/device/muon_case.h"

static void check_golden(struct device *dev)
{
    muon_case_golden(dev, 1e-5);
}

static void test_step_matches_pytorch(void **state)
{
    (void)state;
    device_case_each(check_golden);
}

static void test_singular_values_are_near_1(void **state)
{
    (void)state;
    device_case_each(muon_case_directions);
}

static void test_refused_step_changes_nothing(void **state)
{
    (void)state;
    device_case_each(muon_case_edges);
}

static void check_bf16_momentum(struct device *dev)
{
    muon_case_bf16_momentum(dev, 2e-2);
}

static void test_bf16_momentum_is_rounded_by_rule(void **state)
{
    (void)state;
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

static void test_bits_are_independent_of_threads(void **state)
{
    (void)state;
    device_case_each(check_bits);
}

static void test_out_of_memory_is_reported(void **state)
{
    (void)state;
    static const struct muon_matrix matrix = {.rows = 3, .cols = 5, .ld = 5};
    struct device *dev;
    struct muon_plan *plan;
    assert_int_equal(device_open("cpu", 1, &dev, NULL), STATUS_OK);
    size_t before = mem_live_bytes();
    for (int n = 1; n <= 7; n++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step_matches_pytorch),         cmocka_unit_test(test_singular_values_are_near_1),
        cmocka_unit_test(test_refused_step_changes_nothing), cmocka_unit_test(test_bits_are_independent_of_threads),
        cmocka_unit_test(test_out_of_memory_is_reported),    cmocka_unit_test(test_bf16_momentum_is_rounded_by_rule),
    };
    return cmocka_run_group_tests_name("device_muon", tests, NULL, NULL);
}
