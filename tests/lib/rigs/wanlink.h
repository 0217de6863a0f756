/* A slow link on one machine: a TCP relay with rate, one-way delay, jitter, stalls, cuts and flipped bits. It runs in
 * user space without privileges.
 * - All connections through one relay share its rate, like one access line.
 * - Each direction is a separate line: a bounded FIFO queue, then the delay. */
#ifndef TESTS_LIB_WANLINK_H
#define TESTS_LIB_WANLINK_H

#include <signal.h>
#include <stdint.h>

#include "common/base/status.h"

struct wanlink_options {
    const char *listen, *to;     /* IPv4 HOST:PORT; port 0 of `listen`: any free port */
    double rate_mbit;            /* each direction; 0: unlimited */
    double delay_ms;             /* one way */
    double jitter_ms;            /* additional delay, uniform in [0, jitter_ms]; bytes of a connection never overtake
                                  * each other */
    double queue_ms;             /* longest wait in the queue before the line */
    double flip_bytes;           /* mean distance of flipped bits; 0: none */
    int control_fd;              /* commands, one per line; -1: none */
    volatile sig_atomic_t *stop; /* set: the relay ends (NULL: ends only by command) */
};

struct wanlink_totals {
    uint64_t flips;
    uint64_t connections, up, down; /* bytes delivered to the far end and back */
};

struct wanlink;

/* Listen; sets *port_p to the port. */
enum status wanlink_create(struct wanlink **w_p, const struct wanlink_options *options, uint16_t *port_p,
                           struct err *err) MUST_CHECK;
/* Relay until stopped. Commands:
 *     rate MBIT | delay MS | jitter MS   from now on
 *     flip BYTES                         flip one bit in so many bytes, on average
 *     stall [SECONDS] | go               no byte moves, connections stay open
 *     cut                                reset every connection
 *     down | up                          cut, and refuse new connections; accept again
 *     quit */
enum status wanlink_run(struct wanlink *w, struct err *err) MUST_CHECK;
struct wanlink_totals wanlink_totals(const struct wanlink *w);
void wanlink_destroy(struct wanlink *w);

#endif
