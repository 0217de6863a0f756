/* From an outer step to bytes and back: encodes what is to be published, decodes it again as every worker will, and
 * moves theta by the decoded values only. What the codec lost stays in the residual and goes into the next update. */
#ifndef COORDINATOR_PUBLISH_H
#define COORDINATOR_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "compress/codec.h"

struct pool;

struct publish {
    struct codec *codec; /* of the fragment, downwards */
    bool replace;        /* x is the new theta, not an increment: lossless codecs only */
    float *residual;     /* [n], or NULL: what is lost is dropped */
    struct pool *pool;   /* NULL: the calling thread alone */
    float *scratch;      /* [threads][scratch_part] */
    size_t scratch_part; /* >= the codec's largest part */
};

/* x[i] += decay * residual[i], and the residual takes x over: what will be decoded is subtracted from it later. Any
 * range of the fragment. Values with `skip` (NULL: none) are not published: x becomes 0, the residual stays. */
void publish_add_residual(float *x, float *residual, float decay, const uint8_t *skip, size_t n);

/* x[n]: the increment, residual added, or the new theta. On OK payload[*size_p] is the update's payload, theta and
 * residual have moved, and *hash_p is hash_floats of theta. NONFINITE when an element of theta would not be finite.
 * After an error neither theta nor residual may be used again: the run stops, and starts from its journal. */
enum status publish_step(const struct publish *p, const float *x, float *theta, size_t n, uint8_t *payload, size_t cap,
                         size_t *size_p, uint64_t *hash_p) MUST_CHECK;

#endif
