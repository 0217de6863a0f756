/* Error feedback: what a lossy codec did not send this time is kept and added to what it sends next time
 * (Seide et al. 2014; Karimireddy et al. 2019, "Error feedback fixes SignSGD"). With decay beta (SparseLoCo uses 0.95):
 *
 *     x = delta + beta * residual;  payload = encode(x);  residual' = x - decode(payload)
 *
 * residual' is tentative until the coordinator names the delta in an update (commit) or refuses it (rollback, which
 * puts everything back: residual = residual' + decode(payload) = x, so that sent + new residual = delta + old residual
 * with sent = 0). At most one encoding is pending. */
#ifndef COMPRESS_FEEDBACK_H
#define COMPRESS_FEEDBACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct codec;
struct pool;

struct feedback {
    float *residual; /* (count), owned; NULL when feedback is off */
    size_t count;
    float decay;
    bool pending; /* an encoding awaits commit or rollback */
};

/* enabled = false: encode drops what the codec loses, and residual stays NULL. */
enum status feedback_init(struct feedback *fb, size_t count, float decay, bool enabled) MUST_CHECK;
void feedback_finish(struct feedback *fb);
/* Encode delta[count] (overwritten: it holds x afterwards), by the threads of a pool (NULL: the caller alone): the same
 * bytes and residual with any number. STATE when an encoding is pending. On any error residual is unchanged and nothing
 * is pending. */
enum status feedback_encode(struct feedback *fb, struct codec *codec, struct pool *pool, float *delta, uint8_t *dst,
                            size_t cap, size_t *size_p) MUST_CHECK;
/* The pending encoding was merged. No effect when nothing is pending. */
void feedback_commit(struct feedback *fb);
/* The pending encoding was refused: payload (the bytes that encode made) is put back. */
enum status feedback_rollback(struct feedback *fb, struct codec *codec, const uint8_t *payload, size_t size) MUST_CHECK;
/* Forget everything (a worker that joins with a foreign anchor). */
void feedback_reset(struct feedback *fb);

#endif
