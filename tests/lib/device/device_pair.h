/* The CUDA device against the CPU device: the inputs of both, and the allowed difference.
 * The emulation (tests/cuda/emulator/emulate.h) or a GPU (tests/gpu/true_device.c) runs the kernels. */
#ifndef TESTS_LIB_DEVICE_PAIR_H
#define TESTS_LIB_DEVICE_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/device.h"

/* The CPU device and the CUDA device, open during a check, and the precision of the CUDA device. */
struct device_pair {
    struct device *devs[2];
    bool bf16;
};
extern struct device_pair pair;

/* The same operation on either device: ON(d, norm_fwd, n, c, x.at[d], ...) for d = 0, 1. */
#define ON(which, op, ...) pair.devs[which]->ops->op(pair.devs[which], __VA_ARGS__)

/* Open the CUDA device alone. Fails the test on errors. */
struct device *cuda_begin(bool bf16);
/* Close it. Fails the test if an operation failed or memory is left. */
void cuda_end(struct device *dev);

/* Runs `check` on both devices, in fp32 and bf16, with threads in forward, reverse and shuffled order. Under a
 * checker, which does not depend on the order, it runs once each. */
void pair_each(void (*check)(void));

/* test_NAME, a cmocka test: check_NAME on both devices. */
#define PAIR_TEST(name)                                                                                                \
    TEST(test_##name)                                                                                                  \
    {                                                                                                                  \
        pair_each(check_##name);                                                                                       \
    }

/* The tolerance in fp32 and in bf16. */
static inline double tol(double fp32, double half)
{
    return pair.bf16 ? half : fp32;
}

/* A vector in the memory of both, until the next vecs_free() or the end of the check. An activation is bf16 on a CUDA
 * device that computes in bf16; the CPU gets the same rounded values. */
struct vec {
    size_t n;
    bool act;
    float *at[2];
};

struct vec vec_of(size_t n, const float *values, bool act);
struct vec vec_random(size_t n, uint64_t stream, float sigma, bool act); /* case_normal */
struct vec vec_nan(size_t n, bool act);
/* Parameters of matrix products: already rounded if the device rounds them. */
struct vec vec_params(size_t n, uint64_t stream, float sigma);
/* Free all vectors. */
void vecs_free(void);
/* Return one device's values in fp32, allocated with mem_alloc. */
float *vec_host(const struct vec *v, int which);
/* Fail the test if the CUDA device's values differ from the CPU's by more than allowed (case_close). */
void vec_same(const char *what, const struct vec *v, double allowed);

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
