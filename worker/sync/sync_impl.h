/* Shared by the files of worker/sync only. */
#ifndef WORKER_SYNC_IMPL_H
#define WORKER_SYNC_IMPL_H

#include "worker/sync/sync.h"

/* Derives `state` from uploads and versions. TRAINING and EVALUATING end by their own events only. */
void sync_settle(struct sync *s);
/* A fragment is below the version that the task needs, or below the newest known one. */
bool sync_is_behind(const struct sync *s);
/* Drops task, evaluation and deltas; keeps the versions held. */
void sync_drop_work(struct sync *s);

#endif
