#include "worker/sync/sync_rate.h"

#include <assert.h>

#include "common/base/backoff.h"

enum {
    SAMPLE_US = 100000, /* a shorter sample measures queues, not the link */
    MIN_US = 1000,      /* assumed duration of a shorter transfer */
};

static const double LEAST_PER_S = SYNC_RATE_FIRST / 16; /* no slower link is assumed */

void sync_rate_init(struct sync_rate *r, uint64_t now_us)
{
    *r = (struct sync_rate){.per_s = SYNC_RATE_FIRST, .since_us = now_us};
}

void sync_rate_add(struct sync_rate *r, uint64_t bytes)
{
    if (r->state == SYNC_RATE_IDLE)
        r->state = SYNC_RATE_BEGUN;
    else
        r->bytes += bytes;
}

void sync_rate_sample(struct sync_rate *r, bool more, uint64_t now_us)
{
    assert(now_us >= r->since_us);
    uint64_t us = now_us - r->since_us;
    bool began = r->state == SYNC_RATE_BEGUN && !r->bytes, enough = r->bytes && (us >= SAMPLE_US || !more);
    if (us < MIN_US) us = MIN_US;
    if (enough) {
        double seen = 1e6 * (double)r->bytes / (double)(us < SAMPLE_US ? SAMPLE_US : us);
        r->best = seen > r->best ? seen : r->best - (r->best - seen) / 8;
    }
    r->measured = r->measured || enough;
    if (enough) r->per_s = 0.75 * r->per_s + 0.25 * 1e6 * (double)r->bytes / (double)us;
    if (began || enough || !more) {
        r->since_us = now_us;
        r->bytes = 0;
    }
    if (r->state != SYNC_RATE_IDLE) r->state = more ? SYNC_RATE_MOVING : SYNC_RATE_IDLE;
}

uint64_t sync_rate_measured(const struct sync_rate *r)
{
    return r->measured ? (uint64_t)r->per_s + 1 : 0;
}

uint64_t sync_window(const struct sync_rate *r, uint64_t rtt_us)
{
    double bytes = 2e-6 * r->best * (double)rtt_us;
    if (bytes < SYNC_WINDOW_LEAST) return SYNC_WINDOW_LEAST;
    return bytes > SYNC_WINDOW_MOST ? SYNC_WINDOW_MOST : (uint64_t)bytes;
}

void sync_rate_too_high(struct sync_rate *r)
{
    if (!r->measured && r->per_s > LEAST_PER_S) r->per_s /= 2;
}

uint64_t sync_timeout_us(const struct sync_rate *r, uint64_t rtt_us, uint64_t bytes, uint64_t most_us)
{
    assert(r->per_s > 0);
    double us = 4.0 * (double)rtt_us + 2e6 * (double)bytes / r->per_s;
    if (us < SYNC_RETRY_MIN_US) return SYNC_RETRY_MIN_US;
    return us > (double)most_us ? most_us : (uint64_t)us;
}

uint64_t sync_backoff_us(uint64_t wait_us)
{
    return wait_us >= SYNC_RETRY_MAX_US ? wait_us : backoff_us(wait_us, 1, SYNC_RETRY_MAX_US);
}
