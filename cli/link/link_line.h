/* One direction of an emulated link: when does a piece of bytes reach the far end? A pure function of its arguments.
 *
 * A piece waits in a queue until the bytes before it have left, then it takes size / rate to leave, then the delay. The
 * caller keeps pieces that arrive while the queue is full, and hands them over when line_wait_us is 0. Their arrival
 * counts, so neither the wait nor a late caller adds to the delay. */
#ifndef CLI_LINK_LINE_H
#define CLI_LINK_LINE_H

#include <stddef.h>
#include <stdint.h>

struct line {
    double rate_mbit;           /* 0: no limit */
    double delay_ms, jitter_ms; /* jitter: additional delay, uniform in [0, jitter_ms] */
    uint64_t seed;              /* of the jitter */
    double free_us;             /* time at which the last accepted byte leaves */
    uint64_t in_transit;        /* accepted bytes that the caller has not delivered; the caller subtracts them */
    uint64_t drawn;             /* number of jitter values used */
};

/* Bytes that a connection may hand over before it is the turn of the next one: 2 ms of the line, at least a TCP
 * segment, at most LINE_PIECE_MAX. */
enum { LINE_PIECE_MAX = 65536 };
size_t line_piece(const struct line *line);
/* Returns the time until the queue has room; 0: now. The queue holds the bytes of a round trip, and at least those of
 * 50 ms, so that it never makes the line slower than its rate. */
double line_wait_us(const struct line *line, uint64_t now_us);
/* Accepts size bytes that arrived at arrival_us. Returns the time at which the far end receives the last of them. */
double line_accept(struct line *line, uint64_t arrival_us, size_t size);

#endif
