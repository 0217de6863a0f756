/* From an outer step to bytes and back: encodes what is to be published, decodes it again as every worker will, and
 * moves theta by the decoded values only. What the codec lost stays in the residual and goes into the next update. */
#ifndef COORDINATOR_PUBLISH_H
#define COORDINATOR_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "compress/codec.h"
#include "compress/feedback.h"

/* codec, fb: of the fragment, downwards. x[n] holds the increment (or, `replace`, the new theta: lossless codecs only)
 * and is overwritten with the decoded values. On OK payload[*size_p] is the update's payload, theta has moved, and
 * *hash_p is hash64 of it. NONFINITE, and theta unchanged, when an element of theta would not be finite. After an error
 * the residual is not to be used again. */
enum status publish_step(struct codec *codec, struct feedback *fb, bool replace, float *x, float *theta, size_t n,
                         uint8_t *payload, size_t cap, size_t *size_p, uint64_t *hash_p) MUST_CHECK;

#endif
