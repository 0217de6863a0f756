/* The downloads of one worker: requested objects, sent chunk by chunk, and requests parked until an update exists.
 * Pure. Only requests are queued: the caller reads bytes when the transport accepts them. */
#ifndef COORDINATOR_SERVE_H
#define COORDINATOR_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/msg.h"

enum {
    DOWNLOAD_MAX = 16,
    DOWNLOAD_CHUNK = 256 << 10,
    DOWNLOAD_WAIT_US = 5000, /* the first wait for a full lane; each further wait is twice as long */
    DOWNLOAD_WAIT_MAX_US = 200000,
};

struct download_item {
    bool used, parked;
    uint8_t kind; /* enum object_kind */
    uint32_t fragment;
    uint64_t version, total;     /* version and size of the object; total 0 while parked */
    uint64_t at, end;            /* bytes left to send: [at, end) */
    uint64_t hole_from, hole_to; /* except [hole_from, hole_to); 0, 0: no exception */
    uint64_t order;              /* order of arrival */
};

struct download {
    struct download_item items[DOWNLOAD_MAX];
    uint64_t orders;
    uint64_t wait_us, again_us; /* the lane was full: the current wait, and the time of the next try */
};

/* Adds a request. total 0: the object does not exist yet, the request is parked.
 * A request for the same object replaces the older one. If it begins at the end of the older one or later, it extends
 * it, so a worker can request the next window early. False: nothing to send, or too many requests. */
bool download_add(struct download *s, const struct msg_get *get, uint64_t total);
/* Activates a parked request: its update exists now. False: there is none. */
bool download_wake(struct download *s, uint32_t fragment, uint64_t version, uint64_t total);
/* Skips bytes [from, to) of this update, 0 < from, because the worker has them. A request that begins inside these
 * bytes is sent completely: the worker does not have them after all. */
void download_leave_out(struct download *s, uint32_t fragment, uint64_t version, uint64_t from, uint64_t to);
/* The next chunk to send, of the oldest request: up to a multiple of DOWNLOAD_CHUNK. False: nothing to send. */
bool download_next(const struct download *s, struct download_item *item, uint64_t *size_p);
/* The caller sent `size` bytes of the chunk. Size 0: the object cannot be sent, the request is removed. */
void download_sent(struct download *s, const struct download_item *item, uint64_t size);

/* The lane was full: the next try waits until again_us. The wait doubles with each failure and halves with each sent
 * chunk. */
void download_full(struct download *s, uint64_t now_us);
/* The worker has a new connection: ends the wait. */
void download_resume(struct download *s);

#endif
