#include "tests/lib/rigs/toy.h"

#include <stdio.h>

#include "common/base/rng.h"

enum status toy_layout(const struct toy *toy, const struct config *config, struct layout *layout)
{
    layout_init(layout);
    for (uint32_t i = 0; i < toy->n_tensors; i++) {
        char name[32];
        snprintf(name, sizeof(name), "toy.%u", (unsigned)i);
        uint64_t shape[2] = {(uint64_t)(5 + 7 * (i % 3)) * toy->scale, 1}; /* sparse codecs send vectors whole */
        TRY(layout_add(layout, name, i % 3 ? 2 : 1, shape, LAYOUT_INIT_NORMAL, 1.0f, false));
    }
    return layout_split(layout, config->train.fragments);
}

/* Returns the target of parameter i for sample `index` of stream `stream`: small noise around a point that depends
 * on i. */
static double toy_target(const struct toy *toy, uint32_t stream, uint64_t index, size_t i)
{
    uint32_t word[4];
    rng_block(toy->seed, stream, index << 24 | i / 4, word);
    return 3.0 + (double)(i % 64) / 8.0 + ((double)word[i % 4] * 0x1p-32 - 0.5);
}

static double toy_pull(const struct toy *toy, uint32_t stream, uint64_t index, const float *theta, size_t n_params,
                       double *grad)
{
    double loss = 0.0;
    for (size_t i = 0; i < n_params; i++) {
        double d = (double)theta[i] - toy_target(toy, stream, index, i);
        loss += 0.5 * d * d;
        if (grad) grad[i] += d;
    }
    return loss;
}

double toy_gradient_add(const struct toy *toy, const float *theta, size_t n_params, uint64_t position, uint64_t count,
                        double *grad)
{
    double loss = 0.0;
    for (uint64_t p = position; p < position + count; p++) {
        uint64_t n = toy->train_samples, sample = rng_permute(toy->seed, p / n, p % n, n);
        loss += toy_pull(toy, RNG_TEST + 1, sample, theta, n_params, grad);
    }
    return loss * toy->sample_tokens;
}

double toy_val_loss(const struct toy *toy, const float *theta, size_t n_params, uint64_t start, uint64_t count)
{
    double loss = 0.0;
    for (uint64_t w = start; w < start + count; w++) loss += toy_pull(toy, RNG_TEST + 2, w, theta, n_params, NULL);
    return loss * toy->sample_tokens;
}
