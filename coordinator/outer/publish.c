#include "coordinator/outer/publish.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/pool.h"
#include "common/tensor/apply.h"
#include "coordinator/outer/outer_opt.h"

struct publish_job {
    const struct publish *p;
    const float *all; /* what is published: the decoded values and what stays owed */
    struct codec_view view;
    size_t parts;
    bool bad[POOL_THREADS_MAX]; /* by thread: a value was not finite */
};

void publish_add_residual(float *restrict x, float *restrict residual, float decay, const uint8_t *skip, size_t n)
{
    if (!skip) {
        for (size_t i = 0; i < n; i++) residual[i] = x[i] = x[i] + decay * residual[i];
        return;
    }
    for (size_t i = 0; i < n; i++) { /* masks instead of branches, so that the compiler vectorizes the loop */
        float sum = x[i] + decay * residual[i];
        uint32_t new_bits, old_bits, keep = 0u - skip[i];
        memcpy(&new_bits, &sum, sizeof new_bits);
        memcpy(&old_bits, &residual[i], sizeof old_bits);
        old_bits = (old_bits & keep) | (new_bits & ~keep);
        new_bits &= ~keep;
        memcpy(&residual[i], &old_bits, sizeof old_bits);
        memcpy(&x[i], &new_bits, sizeof new_bits);
    }
}

void publish_add_owed(float *restrict x, uint16_t *restrict owed, float decay, const uint8_t *skip, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t old_bits = (uint32_t)owed[i] << 16, new_bits, keep = skip ? 0u - skip[i] : 0u;
        float before;
        memcpy(&before, &old_bits, sizeof before);
        before = x[i] + decay * before;
        memcpy(&new_bits, &before, sizeof new_bits);
        new_bits &= ~keep;
        memcpy(&x[i], &new_bits, sizeof new_bits);
        owed[i] = (uint16_t)((owed[i] & keep) | (HALF_OPEN & ~keep));
    }
}

/* owed = x - sent, rounded, where publish_add_owed has left it open. at: index of the part in the fragment. */
static void store_owed(const struct publish *p, size_t at, const float *x, const float *sent, size_t n)
{
    enum { BLOCK = 1024 };
    float left[BLOCK];
    uint16_t rounded[BLOCK];
    for (size_t from = 0; from < n; from += BLOCK) {
        size_t count = n - from < BLOCK ? n - from : BLOCK;
        uint16_t *owed = p->owed + at + from;
        for (size_t i = 0; i < count; i++) left[i] = x[from + i] - sent[from + i];
        half_round(left, count, &p->noise, p->first + at + from, HALF_RESIDUAL, rounded);
        for (size_t i = 0; i < count; i++) owed[i] = owed[i] == HALF_OPEN ? rounded[i] : owed[i];
    }
}

static void apply_parts(void *ctx, int thread, int threads)
{
    struct publish_job *job = ctx;
    const struct publish *p = job->p;
    float *x = p->scratch + (size_t)thread * p->scratch_part;
    size_t first, end;
    pool_share(job->parts, 1, thread, threads, &first, &end);
    for (size_t i = first; i < end; i++) {
        struct codec_part part = codec_part(p->codec, i);
        size_t n = part.to - part.from;
        assert(part.from <= part.to && n <= p->scratch_part);
        codec_view_decode(&job->view, i, x);
        for (size_t k = 0; p->residual && k < n; k++) p->residual[part.from + k] = p->residual[part.from + k] - x[k];
        if (p->owed) store_owed(p, part.from, job->all + part.from, x, n);
        apply_update(p->theta + part.from, p->replace, x, n);
        if (!outer_finite(p->theta + part.from, n)) job->bad[thread] = true;
    }
}

enum status publish_step(const struct publish *p, const float *x, uint8_t *payload, size_t cap, size_t *size_p,
                         uint64_t *hash_p)
{
    struct publish_job job = {.p = p, .all = x, .parts = codec_parts(p->codec)};
    assert(!p->replace || (!p->residual && !p->owed)); /* a lossless codec has no residual */
    TRY(codec_encode_pool(p->codec, p->pool, x, payload, cap, size_p, NULL));
    assert(*size_p <= cap);
    TRY(codec_open(p->codec, payload, *size_p, NULL, &job.view));
    pool_run_if(p->pool, job.parts > 1, apply_parts, &job);
    for (int i = 0; i < POOL_THREADS_MAX; i++)
        if (job.bad[i]) return STATUS_NONFINITE;
    *hash_p = hash_floats(p->pool, p->theta, codec_count(p->codec));
    return STATUS_OK;
}
