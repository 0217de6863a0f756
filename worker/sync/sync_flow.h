/* The object transfers of the sync machine: what to ask for, what to offer, which bytes to send, and when silence means
 * that something was lost. Used by worker/sync*.c only. */
#ifndef WORKER_SYNC_FLOW_H
#define WORKER_SYNC_FLOW_H

#include "worker/sync/sync.h"

/* Download: start on a snapshot, or go on with this very one; go on to the next update; ask again where it stopped (a
 * new session), and offer again what is not settled. */
void sync_flow_load(struct sync *s, uint32_t fragment, struct wire_version snapshot, uint64_t now_us);
void sync_flow_next(struct sync *s, uint32_t fragment, uint64_t now_us);
void sync_flow_rejoin(struct sync *s, uint32_t fragment, uint64_t now_us);
/* Upload: a payload of `bytes` is ready (0: nothing); credit for it came. */
void sync_flow_offer(struct sync *s, uint32_t fragment, uint64_t bytes, uint64_t now_us);
void sync_flow_credit(struct sync *s, uint32_t fragment, uint64_t have, uint64_t upto, uint64_t now_us);

/* A payload was offered, and neither an update nor a REJECT has answered it. */
static inline bool sync_flow_pending(const struct sync_fragment *f)
{
    return f->upload == SYNC_UPLOAD_OFFERED || f->upload == SYNC_UPLOAD_SENDING || f->upload == SYNC_UPLOAD_DELIVERED;
}

/* Time has passed, and all that came was taken in. */
void sync_flow_check_timeouts(struct sync *s, uint64_t now_us);
/* The earliest OFFER, CHUNK or GET and its time; UINT64_MAX: none. */
uint64_t sync_flow_action(const struct sync *s, struct sync_action *a);
void sync_flow_sent(struct sync *s, const struct sync_action *a, uint64_t now_us);

#endif
