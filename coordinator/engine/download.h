/* What one worker has asked for: objects on their way out, chunk by chunk, and requests parked until an update exists.
 * Pure. Requests are the only backlog: bytes are read when the transport takes them. */
#ifndef COORDINATOR_SERVE_H
#define COORDINATOR_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/msg.h"

enum {
    DOWNLOAD_MAX = 16,
    DOWNLOAD_CHUNK = 256 << 10,
    DOWNLOAD_WAIT_US = 5000, /* a full lane is tried again after this, then after twice as long, ... */
    DOWNLOAD_WAIT_MAX_US = 200000,
};

struct download_item {
    bool used, parked;
    uint8_t kind; /* enum object_kind */
    uint32_t fragment;
    uint64_t version, total;     /* of the object; total 0 while parked */
    uint64_t at, end;            /* bytes still to be sent: [at, end) */
    uint64_t hole_from, hole_to; /* without these; 0, 0: all */
    uint64_t order;              /* of arrival */
};

struct download {
    struct download_item items[DOWNLOAD_MAX];
    uint64_t orders;
    uint64_t wait_us, again_us; /* its lane was full: for how long it was left alone, until when */
};

/* Take a request; one for the same object replaces the older, or prolongs it when it begins where that ends, or later
 * (so that a worker can ask for the next window before it has this one). total 0: parked. False: nothing to send, or
 * too many. */
bool download_add(struct download *s, const struct msg_get *get, uint64_t total);
/* An update exists now: a parked request for it wakes up. */
void download_wake(struct download *s, uint32_t fragment, uint64_t version, uint64_t total);
/* The worker has bytes [from, to) of this update, and 0 < from: they are left out of the request for it, unless that
 * begins inside of them or with them: then it does not have them after all. */
void download_leave_out(struct download *s, uint32_t fragment, uint64_t version, uint64_t from, uint64_t to);
/* The chunk to send next (oldest request first), or false. */
bool download_next(const struct download *s, struct download_item *item, uint64_t *size_p);
/* It was sent (size), or cannot be (size 0: forget the request). */
void download_sent(struct download *s, const struct download_item *item, uint64_t size);

/* The lane did not take the chunk. To try costs reading and checking it, so it is left alone until again_us: twice as
 * long each time, half as long after each chunk that it takes, and at first no longer than it has been full already:
 * what is queued there lasts. */
void download_full(struct download *s, uint64_t now_us);
/* Its worker has a new connection. */
void download_resume(struct download *s);

#endif
