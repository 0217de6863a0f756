/* Object transfers of the state machine: requests, offers, chunks, and the timeouts that detect lost messages. Used by
 * worker/sync only. */
#ifndef WORKER_SYNC_FLOW_H
#define WORKER_SYNC_FLOW_H

#include "worker/sync/sync.h"

/* Download: start this snapshot, or continue it if it is the one being loaded. */
void sync_flow_load(struct sync *s, uint32_t fragment, struct wire_version snapshot, uint64_t now_us);
/* Download: start the update after `version`. */
void sync_flow_next(struct sync *s, uint32_t fragment, uint64_t now_us);
/* A new session resumes: request the rest of the update and offer a pending payload again. */
void sync_flow_rejoin(struct sync *s, uint32_t fragment, uint64_t now_us);
/* The transport connected again: offer a pending payload and request missing bytes now. */
void sync_flow_reconnected(struct sync *s, uint32_t fragment, uint64_t now_us);
/* Upload: a payload of `bytes` is ready (0: none); CREDIT arrived. */
void sync_flow_offer(struct sync *s, uint32_t fragment, uint64_t bytes, uint64_t now_us);
void sync_flow_credit(struct sync *s, uint32_t fragment, uint64_t have, uint64_t upto, uint64_t now_us);

/* The initial model (sync_initial.c): bytes sent and not acknowledged; its next chunk and the time of it, UINT64_MAX:
 * none; the chunk, or JOIN, was sent. */
uint64_t sync_initial_in_flight(const struct sync *s);
uint64_t sync_initial_action(const struct sync *s, struct sync_action *a);
void sync_initial_sent(struct sync *s, const struct sync_action *a, uint64_t now_us);
void sync_initial_join_sent(struct sync *s);

/* A payload was offered, and neither an update nor a REJECT has settled it. */
static inline bool sync_flow_pending(const struct sync_fragment *f)
{
    return f->upload == SYNC_UPLOAD_OFFERED || f->upload == SYNC_UPLOAD_SENDING || f->upload == SYNC_UPLOAD_DELIVERED;
}

/* Updates the measured rates. The caller has handled every message that arrived before now_us. */
void sync_flow_check_timeouts(struct sync *s, uint64_t now_us);
/* Fills *a with the earliest OFFER, CHUNK or GET; returns its time, UINT64_MAX: none. */
uint64_t sync_flow_action(const struct sync *s, struct sync_action *a);
/* The action was sent. */
void sync_flow_sent(struct sync *s, const struct sync_action *a, uint64_t now_us);

#endif
