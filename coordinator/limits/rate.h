/* Limits on the messages of one sender: a token bucket for each class of messages. Pure: no clock, no allocation.
 *
 * - rate_limits holds the table. Each limit is the need of an honest worker times a factor of 4 or more: a rate per
 *   second, and messages per published update, because a fast run needs more of them.
 * - A message above its limit is ignored: it gets no answer, and it is neither decoded nor journaled.
 * - A sender whose ignored messages weigh more than RATE_EXCESS_MAX is closed and stays refused for RATE_REFUSED_US.
 * - A sender is a number that the caller chooses: a worker's key, or one connection.
 * - The table has a fixed size. A new sender replaces the one of its set that was heard least recently; a quiet
 *   sender's buckets are full again anyway. */
#ifndef COORDINATOR_RATE_H
#define COORDINATOR_RATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rate_class {
    RATE_ENTER,     /* HELLO, JOIN, LEAVE */
    RATE_HEARTBEAT, /* HEARTBEAT */
    RATE_OBJECT,    /* OFFER, GET, BIND */
    RATE_CHUNK,     /* CHUNK */
    RATE_METRICS,   /* METRICS */
    RATE_EVAL,      /* EVAL_RESULT */
    RATE_STATUS,    /* STATUS, MODEL */
    RATE_PROBE,     /* PROBE, FETCH */
    RATE_INVALID,   /* malformed messages, other types, messages on the wrong lane */
    RATE_CLASSES,
};

enum {
    RATE_SETS = 256,
    RATE_WAYS = 8,
    RATE_EXCESS_MAX = 500,       /* ignored messages; each 8 KiB of a message count as one more */
    RATE_EXCESS_PER_S = 50,      /* of them are forgiven in a second */
    RATE_REFUSED_US = 60000000,  /* a closed sender is refused for this long */
    RATE_REPORT_US = 1000000,    /* interval of the lines about ignored messages */
    RATE_CHUNK_BYTES = 256 << 10 /* bytes of one CHUNK of a worker */
};

/* What a run needs of each worker. */
struct rate_needs {
    uint32_t n_fragments;
    uint32_t chunks; /* CHUNKs of the largest delta */
    uint32_t gets;   /* GETs for the largest object */
    uint32_t steps;  /* inner steps of a round */
};

struct rate_limit {
    double per_s, per_update, burst;
};

enum rate_verdict {
    RATE_ALLOW,
    RATE_IGNORE,
    RATE_CLOSE,  /* close the connection: refused from now on */
    RATE_REFUSED /* close the connection: it was refused before */
};

struct rate_sender {
    uint64_t who;               /* 0: free */
    uint64_t peer;              /* its last connection */
    uint64_t heard_us, updates; /* time of its last message, and published updates until then */
    uint64_t refused_us;        /* refused until then; 0: not refused */
    double excess;              /* weight of its ignored messages */
    double left[RATE_CLASSES];
    uint32_t ignored[RATE_CLASSES]; /* since the last report */
};

struct rate_table {
    struct rate_limit limits[RATE_CLASSES];
    uint64_t updates;   /* updates published by this process */
    uint64_t report_us; /* time of the next report; 0: no message was ignored since the last one */
    struct rate_sender senders[RATE_SETS * RATE_WAYS];
};

void rate_limits(struct rate_limit limits[RATE_CLASSES], const struct rate_needs *needs);
/* The class of a message type on a lane (enum wire_lane). Unknown types are RATE_INVALID. */
enum rate_class rate_class_of(uint8_t type, int lane);
const char *rate_class_name(enum rate_class class);

/* A message of `size` bytes arrived. who > 0. A zeroed table with limits has heard nothing yet. */
enum rate_verdict rate_admit(struct rate_table *t, uint64_t who, uint64_t peer, enum rate_class class, size_t size,
                             uint64_t now_us);
/* The sender needs n more messages of this class than its limit: it replays a log, for example. */
void rate_grant(struct rate_table *t, uint64_t who, enum rate_class class, double n);
/* No message was read for gap_us: those of all senders wait, and arrive at once. */
void rate_note_pause(struct rate_table *t, uint64_t gap_us);
/* The next sender with ignored messages, from *at_p on; NULL: no more. The caller clears its counts. */
struct rate_sender *rate_report(struct rate_table *t, size_t *at_p);

#endif
