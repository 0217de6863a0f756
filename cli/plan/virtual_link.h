/* A worker's link in virtual time: the relay of `atoll launch --link` (cli/link/link_relay.h) with sizes in place of
 * bytes. Each direction is the same line as in the relay (cli/link/link_line.h). The worker's two connections take
 * turns in front of it, one piece each. A message arrives with its last piece. */
#ifndef CLI_VIRTUAL_LINK_H
#define CLI_VIRTUAL_LINK_H

#include <stddef.h>
#include <stdint.h>

#include "cli/link/link_line.h"
#include "cli/plan/event_queue.h"
#include "common/config/link_spec.h"
#include "wire/msg.h"

/* The part of a message that decides what follows. */
struct virtual_message {
    struct virtual_message *next;
    size_t size, left; /* bytes on the wire; of them in front of the line */
    uint64_t at_us;    /* time at which it is sent, later at which it arrives */
    enum msg_type type;
    /* Of a chunk of an update: what the worker would read from its bytes. */
    uint64_t round, named_round; /* of the update; for which it names this worker, SYNC_NO_ROUND: it does not */
    uint64_t own_from, own_to;   /* bytes of this worker's own delta; 0, 0: none */
    union {
        struct msg_assign assign;
        struct msg_offer offer;
        struct msg_credit credit;
        struct msg_reject reject;
        struct msg_get get;
        struct msg_chunk chunk; /* without data */
        struct {
            uint8_t state; /* enum worker_state */
        } heartbeat;
    };
};

struct virtual_queue {
    struct virtual_message *first, *last;
};

void virtual_queue_put(struct virtual_queue *q, struct virtual_message *m);
/* Passes the message to the caller, who frees it with mem_free; NULL: the queue is empty. */
struct virtual_message *virtual_queue_take(struct virtual_queue *q);
void virtual_queue_clear(struct virtual_queue *q);

/* Seconds in microseconds of the virtual clock. */
static inline uint64_t virtual_us(double seconds)
{
    return (uint64_t)(seconds * 1e6 + 0.5);
}

/* One direction. */
struct virtual_line {
    struct event_queue *clock;
    const struct link_spec *spec; /* for its outages */
    struct line line;
    void (*arrive)(void *ctx, struct virtual_message *m); /* takes the message */
    void *ctx;
    bool *failed; /* of the run: set when memory runs out */

    struct virtual_queue later;    /* to be sent, in order of time */
    struct virtual_queue lanes[2]; /* in front of the line, by enum wire_lane */
    struct virtual_queue flight;   /* on the line, in order of arrival */
    int turn;                      /* the lane whose piece is next */
    uint64_t wake_us;              /* of the event that looks again; 0: none */
    uint64_t bytes;
};

void virtual_line_init(struct virtual_line *line, struct event_queue *clock, const struct link_spec *spec, bool down);
void virtual_line_finish(struct virtual_line *line);
/* Sends a message of this content at `at_us`, not before the one sent last. Its size is that of the encoded message.
 * The caller may add to what it returns. NULL, and *line->failed is set: no memory. */
struct virtual_message *virtual_line_send(struct virtual_line *line, struct msg *m, uint64_t at_us);

#endif
