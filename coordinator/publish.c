#include "coordinator/publish.h"

#include <string.h>

#include "common/apply.h"
#include "common/hash.h"
#include "coordinator/outer_opt.h"

/* Would every element of theta + x (or x) be finite? */
static bool stays_finite(const float *theta, const float *x, size_t n, bool replace)
{
    if (replace) return outer_finite(x, n);
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        float sum = theta[i] + x[i];
        uint32_t bits;
        memcpy(&bits, &sum, sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

enum status publish_step(struct codec *codec, struct feedback *fb, bool replace, float *x, float *theta, size_t n,
                         uint8_t *payload, size_t cap, size_t *size_p, uint64_t *hash_p)
{
    if (replace)
        TRY(codec_encode(codec, x, payload, cap, size_p, NULL));
    else
        TRY(feedback_encode(fb, codec, x, payload, cap, size_p));
    TRY(codec_decode(codec, payload, *size_p, x));
    if (!stays_finite(theta, x, n, replace)) return STATUS_NONFINITE;
    apply_update(theta, replace, x, n);
    if (!replace) feedback_commit(fb);
    *hash_p = hash64(theta, n * sizeof *theta);
    return STATUS_OK;
}
