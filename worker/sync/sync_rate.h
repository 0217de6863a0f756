/* The measured rate of one direction, and the window and the timeouts that follow from it. A worker trains for seconds
 * between two polls and then finds many messages at once. The rate is therefore measured from poll to poll, never from
 * message to message.
 */
#ifndef WORKER_SYNC_RATE_H
#define WORKER_SYNC_RATE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    SYNC_RETRY_MIN_US = 2000000,  /* shortest timeout before a resend */
    SYNC_RETRY_MAX_US = 30000000, /* longest without a measured rate */
    SYNC_WINDOW_LEAST = 4 << 20,
    SYNC_WINDOW_MOST = 32 << 20,
    SYNC_ARRIVING_MOST = 2 * SYNC_WINDOW_MOST, /* a window of objects that arrive, and one of first requests */
};

/* Bytes per second assumed before the first measurement: 1 Mbit/s. */
#define SYNC_RATE_FIRST 125000.0

struct sync_rate {
    double per_s;      /* bytes per second, smoothed, pessimistic at first */
    uint64_t since_us; /* `bytes` arrived since this poll */
    uint64_t bytes;
    bool measured; /* per_s holds at least one sample */
    double best;   /* for the window: rises to each larger sample at once and falls slowly; 0: not measured */
    enum { SYNC_RATE_IDLE, SYNC_RATE_BEGUN, SYNC_RATE_MOVING } state;
};

void sync_rate_init(struct sync_rate *r, uint64_t now_us);
/* Bytes arrived. The first ones of a transfer start the measurement and are not counted: their sending time is unknown.
 */
void sync_rate_add(struct sync_rate *r, uint64_t bytes);
/* Takes a sample at a poll. more: the transfer continues. */
void sync_rate_sample(struct sync_rate *r, bool more, uint64_t now_us);
/* Bytes per second; 0: not measured. */
uint64_t sync_rate_measured(const struct sync_rate *r);
/* Bytes of this direction that may be in flight: twice rate x round trip, between SYNC_WINDOW_LEAST and
 * SYNC_WINDOW_MOST. A transfer that its window limits moves a window in a round trip, so the next window is twice as
 * large, until the link is the limit. */
uint64_t sync_window(const struct sync_rate *r, uint64_t rtt_us);
/* Bytes were sent again that were still on their way, so the timeout was too short: halves the assumed rate, until a
 * sample replaces it. An object of one chunk gives no sample. */
void sync_rate_too_high(struct sync_rate *r);
/* Timeout for `bytes` in flight: 4 rtt_us + 2 bytes / rate, between SYNC_RETRY_MIN_US and most_us. */
uint64_t sync_timeout_us(const struct sync_rate *r, uint64_t rtt_us, uint64_t bytes, uint64_t most_us);
/* The timeout after wait_us: twice as long up to SYNC_RETRY_MAX_US, a longer one again. */
uint64_t sync_backoff_us(uint64_t wait_us);

#endif
