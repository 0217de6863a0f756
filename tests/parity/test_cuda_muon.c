/* Tests Muon on the emulated CUDA device (tests/cuda/emulator/emulate.h), with threads in three orders: the checks of
 * all devices, with all matrices of a shape in one batch and one at a time; the steps equal the CPU's. ctest:
 * timeout=120 */
#include <math.h>

#include "common/base/mem.h"
#include "gpu/cuda/cuda_muon.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/lib/device/device_pair.h"
#include "tests/lib/device/muon_case.h"
#include "tests/lib/test.h"

enum { BATCHES = 2 };

static bool bf16;   /* precision of the device */
static int batches; /* index of the batch mode, below BATCHES */

typedef void (*check_fn)(struct device *dev);

static void on_device(unsigned order, check_fn check)
{
    static const size_t floats[BATCHES] = {CUDA_MUON_FLOATS, 1};
    emulate_order(order);
    struct device *dev = cuda_begin(bf16);
    cuda_of(dev)->muon->floats = floats[batches];
    check(dev);
    cuda_end(dev);
}

/* Run the check with products in fp32 and in bf16; momentum and parameters are fp32. */
static void each(check_fn check)
{
    for (int kind = 0; kind < 2; kind++) {
        bf16 = kind;
        for (unsigned order = 0; order < 3; order++)
            for (batches = 0; batches < BATCHES; batches++) on_device(order, check);
    }
    bf16 = false;
}

static void check_golden(struct device *dev)
{
    muon_case_golden(dev, bf16 ? 5e-2 : 1e-5);
}

static uint64_t first_bits[2][BATCHES]; /* fp32, bf16 */

static void check_bits(struct device *dev)
{
    uint64_t bits = muon_case_bits(dev), *first = &first_bits[bf16][batches];
    if (!*first) *first = bits;
    assert_true(bits == *first);
}

/* A batched product equals the single ones. Only emulated: a library may use another kernel and round differently. */
TEST(test_emulated_batches)
{
    each(check_bits);
    for (int kind = 0; kind < 2; kind++) assert_true(first_bits[kind][0] == first_bits[kind][1]);
}

static void check_same(struct device *dev)
{
    struct device *cpu;
    assert_int_equal(device_open("cpu", 1, &cpu, NULL), STATUS_OK);
    muon_case_same(dev, cpu, bf16 ? 2e-2 : 1e-5);
    device_close(cpu);
}

static void check_bf16_momentum(struct device *dev)
{
    muon_case_bf16_momentum(dev, bf16 ? 4e-2 : 2e-2);
}

TEST(test_emulated_no_memory)
{
    static const struct muon_matrix matrices[] = {{.rows = 3, .cols = 5, .ld = 5},
                                                  {.offset = 15, .rows = 5, .cols = 3, .ld = 3}};
    struct device *dev = cuda_begin(false);
    struct muon_plan *plan;
    size_t before = mem_live_bytes();
    enum status status = STATUS_NOMEM;
    int n = 0;
    while (status == STATUS_NOMEM && n < 100) {
        mem_fail_after(++n);
        status = dev->ops->muon_plan(dev, matrices, 2, &plan);
        if (status != STATUS_OK) assert_int_equal(mem_live_bytes(), before);
    }
    mem_fail_after(0);
    assert_int_equal(status, STATUS_OK);
    assert_true(n > 10);
    struct lin_plan *other;
    assert_int_equal(dev->ops->lin_plan(dev, &(struct lin_shape){.n = 1, .k = 1, .m = 1}, &other), STATUS_OK);
    dev->ops->muon(dev, (void *)other, NULL, NULL, NULL, NULL, NULL);
    assert_int_equal(dev->ops->sync(dev, NULL), STATUS_INVALID);
    device_close(dev);
    assert_int_equal(mem_live_bytes(), 0);
}

#define EACH(name, check)                                                                                              \
    TEST(test_##name)                                                                                                  \
    {                                                                                                                  \
        each(check);                                                                                                   \
    }

EACH(golden, check_golden)
EACH(directions, muon_case_directions)
EACH(edges, muon_case_edges)
EACH(bits, check_bits)
EACH(same, check_same)
EACH(bf16_momentum, check_bf16_momentum)

TEST_MAIN(NULL, NULL)
