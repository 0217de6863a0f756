/* How fast bytes go one way, and so how long nothing may come. Measured by somebody who looks at them now and then: a
 * worker trains for seconds between two looks and finds all that came meanwhile at once. So bytes are counted from look
 * to look, never from message to message. */
#ifndef WORKER_SYNC_RATE_H
#define WORKER_SYNC_RATE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SYNC_RETRY_MIN_US = 2000000, /* silence before anything is sent again */
    SYNC_RETRY_MAX_US = 30000000,
};

/* Bytes per second assumed before anything was measured: 1 Mbit/s. */
#define SYNC_RATE_FIRST 125000.0

struct sync_rate {
    double per_s;      /* smoothed, pessimistic at first */
    uint64_t since_us; /* `bytes` came since this look */
    uint64_t bytes;
    enum { SYNC_RATE_STILL, SYNC_RATE_BEGUN, SYNC_RATE_MOVING } state;
};

void sync_rate_init(struct sync_rate *r, uint64_t now_us);
/* Bytes came. How long the first ones of a transfer were on their way nobody knows: they only begin it. */
void sync_rate_add(struct sync_rate *r, uint64_t bytes);
/* more: the transfer goes on. */
void sync_rate_look(struct sync_rate *r, bool more, uint64_t now_us);
/* Silence that a round trip and so many bytes under way do not explain, and the wait after one that did not help. */
uint64_t sync_timeout_us(const struct sync_rate *r, uint64_t rtt_us, uint64_t bytes);
uint64_t sync_backoff_us(uint64_t wait_us);

#endif
