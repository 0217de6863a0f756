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
    float *residual; /* [count]; NULL if feedback is off */
    size_t count;
    float decay;
    bool pending; /* an encoding awaits commit or rollback */
    bool lent;    /* the residual lies in the caller's memory */
    bool decayed; /* residual is beta * residual already */
};

/* enabled false: encode drops the quantization error, and residual stays NULL. INVALID: count is 0 or decay is outside
 * 0 to 1. NOMEM. */
enum status feedback_init(struct feedback *fb, size_t count, float decay, bool enabled) MUST_CHECK;
/* The same with a residual in the caller's memory[count], which outlives *fb; sets it to 0. The caller adds its delta
 * there: it calls feedback_ready, then memory[i] += delta[i], then feedback_encode_in_place. INVALID. */
enum status feedback_init_lent(struct feedback *fb, size_t count, float decay, float *memory) MUST_CHECK;
void feedback_finish(struct feedback *fb);
/* Encodes delta[count] (overwritten: it holds x afterwards) with the threads of a pool (NULL: the caller alone). The
 * bytes and the residual are the same with any number of threads. STATE: an encoding is pending. After any other
 * error, residual is unchanged and nothing is pending. */
enum status feedback_encode(struct feedback *fb, struct codec *codec, struct pool *pool, float *delta, uint8_t *dst,
                            size_t cap, size_t *size_p) MUST_CHECK;
/* Before the caller adds its delta: residual = beta * residual, once until the next encoding. Nothing is pending. */
void feedback_ready(struct feedback *fb, struct pool *pool);
/* Encodes the residual, to which the caller has added its delta: x[i] = residual[i]. It needs no other memory. The bits
 * are those of feedback_encode for the same delta. On an error the residual stays as it was, the delta included. STATE:
 * an encoding is pending, or feedback_ready was not called. */
enum status feedback_encode_in_place(struct feedback *fb, struct codec *codec, struct pool *pool, uint8_t *dst,
                                     size_t cap, size_t *size_p) MUST_CHECK;
/* Without a residual: encodes values[count] as they are, without a copy. Errors as feedback_encode. */
enum status feedback_encode_plain(struct feedback *fb, struct codec *codec, struct pool *pool, const float *values,
                                  uint8_t *dst, size_t cap, size_t *size_p) MUST_CHECK;
/* The pending encoding was merged. No effect if nothing is pending. */
void feedback_commit(struct feedback *fb);
/* The pending encoding was refused: adds the payload (the bytes that encode made) back to the residual. STATE: nothing
 * is pending. */
enum status feedback_rollback(struct feedback *fb, struct codec *codec, const uint8_t *payload, size_t size) MUST_CHECK;
/* Sets the residual to 0 and forgets the pending encoding (for a worker that joins with a foreign anchor). */
void feedback_reset(struct feedback *fb);

#endif
