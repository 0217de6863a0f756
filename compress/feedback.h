/* Error feedback: the residual of a lossy codec is kept and added to the next delta (Seide et al. 2014; Karimireddy et
 * al. 2019, "Error feedback fixes SignSGD"). With decay beta (SparseLoCo uses 0.95):
 *
 *     x = delta + beta * residual;  payload = encode(x);  residual' = x - decode(payload)
 *
 * residual' is tentative until the coordinator answers. At most one encoding is pending.
 * - Commit: an update names the delta.
 * - Rollback: the coordinator refuses the delta. residual = residual' + decode(payload) = x, so that sent + new
 *   residual = delta + old residual, with sent = 0. */
#ifndef COMPRESS_FEEDBACK_H
#define COMPRESS_FEEDBACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct codec;
struct pool;

struct feedback {
    float *residual; /* [count], owned; NULL if feedback is off */
    size_t count;
    float decay;
    bool pending; /* an encoding awaits commit or rollback */
};

/* enabled false: encode drops the quantization error, and residual stays NULL. INVALID: count is 0 or decay is outside
 * 0 to 1. NOMEM. */
enum status feedback_init(struct feedback *fb, size_t count, float decay, bool enabled) MUST_CHECK;
void feedback_finish(struct feedback *fb);
/* Encodes delta[count] (overwritten: it holds x afterwards) with the threads of a pool (NULL: the caller alone). The
 * bytes and the residual are the same with any number of threads. STATE: an encoding is pending. After any other
 * error, residual is unchanged and nothing is pending. */
enum status feedback_encode(struct feedback *fb, struct codec *codec, struct pool *pool, float *delta, uint8_t *dst,
                            size_t cap, size_t *size_p) MUST_CHECK;
/* The pending encoding was merged. No effect if nothing is pending. */
void feedback_commit(struct feedback *fb);
/* The pending encoding was refused: adds the payload (the bytes that encode made) back to the residual. STATE: nothing
 * is pending. */
enum status feedback_rollback(struct feedback *fb, struct codec *codec, const uint8_t *payload, size_t size) MUST_CHECK;
/* Sets the residual to 0 and forgets the pending encoding (for a worker that joins with a foreign anchor). */
void feedback_reset(struct feedback *fb);

#endif
