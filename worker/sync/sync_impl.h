/* Private to worker/sync*.c. */
#ifndef WORKER_SYNC_IMPL_H
#define WORKER_SYNC_IMPL_H

#include "worker/sync/sync.h"

/* Derive the state that no event sets by itself. Training and evaluating end by their own events only. */
void sync_settle(struct sync *s);
/* Versions that it needs are not here. */
bool sync_is_behind(const struct sync *s);
/* Forget every piece of work; what is held is kept. */
void sync_drop_work(struct sync *s);

#endif
