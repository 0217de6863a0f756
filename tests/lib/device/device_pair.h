/* The CUDA device, its kernels run by the emulation (tests/cuda/emulator/emulate.h) or by a GPU
 * (tests/gpu/true_device.c), against the CPU device: what both are given, and how near their results have to be. */
#ifndef TESTS_LIB_DEVICE_PAIR_H
#define TESTS_LIB_DEVICE_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/device.h"

/* The CPU device and the CUDA device, open while a check runs, and what the latter computes in. */
struct device_pair {
    struct device *devs[2];
    bool bf16;
};
extern struct device_pair pair;

/* The same operation on either: ON(d, norm_fwd, n, c, x.at[d], ...) for d = 0, 1. */
#define ON(which, op, ...) pair.devs[which]->ops->op(pair.devs[which], __VA_ARGS__)

/* Runs `check` on both devices, and threads from first to last, from last to first, and shuffled, then in bf16; where a
 * checker watches, which does not care about the order, once each. */
void pair_each(void (*check)(void));

/* test_NAME, a test of cmocka's: check_NAME on both. */
#define PAIR_TEST(name)                                                                                                \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        pair_each(check_##name);                                                                                       \
    }

/* What is allowed, in fp32 and in bf16. */
static inline double tol(double fp32, double half)
{
    return pair.bf16 ? half : fp32;
}

/* A vector in the memory of both; an activation is bf16 on the CUDA device when that computes in it, and the CPU gets
 * the same rounded numbers. */
struct vec {
    size_t n;
    bool act;
    float *at[2];
};

struct vec vec_of(size_t n, const float *values, bool act);
struct vec vec_random(size_t n, uint64_t stream, float sigma, bool act); /* case_normal */
struct vec vec_nan(size_t n, bool act);
/* Parameters of matrix products: rounded beforehand where the device would round them. */
struct vec vec_params(size_t n, uint64_t stream, float sigma);
void vec_free(struct vec *v);
/* One's numbers in fp32, of mem_alloc. */
float *vec_host(const struct vec *v, int which);
/* The test fails where the CUDA device's numbers are further from the CPU's than allowed (case_close). Frees v, too:
 * every output is compared once. */
void vec_same(const char *what, struct vec *v, double allowed);

static inline struct vec vec_normal(size_t n, uint64_t stream, float sigma)
{
    return vec_random(n, stream, sigma, false);
}

static inline struct vec act_normal(size_t n, uint64_t stream, float sigma)
{
    return vec_random(n, stream, sigma, true);
}

static inline struct vec vec_poisoned(size_t n)
{
    return vec_nan(n, false);
}

static inline struct vec act_poisoned(size_t n)
{
    return vec_nan(n, true);
}

#endif
