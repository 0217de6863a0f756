/* Publishes an outer step: encodes it, decodes it as every worker will, and applies only the decoded values to theta.
 * The coding error stays in the residual, which is added to the next update. */
#ifndef COORDINATOR_PUBLISH_H
#define COORDINATOR_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "compress/codec.h"
#include "coordinator/outer/outer_half.h"

struct pool;

struct publish {
    struct codec *codec; /* the fragment's downlink codec */
    bool replace;        /* x is the new theta, not an increment: lossless codecs only */
    float *theta;        /* [n] floats of the codec */
    float *residual;     /* [n], or NULL */
    uint16_t *owed;      /* [n] the residual in bf16, or NULL; without both the coding error is dropped */
    struct half_noise noise;
    uint64_t first;      /* of owed: index of theta[0] among the run's parameters */
    struct pool *pool;   /* NULL: the calling thread works alone */
    float *scratch;      /* [threads][scratch_part] */
    size_t scratch_part; /* floats, >= the codec's largest part */
};

/* x[i] += decay * residual[i]; residual[i] = x[i]. publish_step later subtracts the decoded values from the residual.
 * x[n], residual[n], skip[n]: any range of the fragment. If skip[i] is 1, the value is not published: x[i] becomes 0
 * and residual[i] stays. skip NULL: all values are published. */
void publish_add_residual(float *x, float *residual, float decay, const uint8_t *skip, size_t n);

/* The same with a residual in bf16: x[i] += decay * owed[i]. owed[i] of a published value becomes HALF_OPEN, from which
 * publish_step knows it. */
void publish_add_owed(float *x, uint16_t *owed, float decay, const uint8_t *skip, size_t n);

/* Encodes and applies x[n], which is the increment with the residual added, or the new theta.
 * - OK: payload[*size_p] is the update's payload, theta and residual are updated, *hash_p is hash_floats of theta.
 * - NONFINITE: an element of theta would not be finite.
 * - After an error the caller must not use theta and residual: the run stops and restarts from its journal. */
enum status publish_step(const struct publish *p, const float *x, uint8_t *payload, size_t cap, size_t *size_p,
                         uint64_t *hash_p) MUST_CHECK;

#endif
