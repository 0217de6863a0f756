/* Where the updates of each fragment lie and what theta hashed to after each: from the oldest kept snapshot to now. */
#ifndef COORDINATOR_UPDATE_LOG_H
#define COORDINATOR_UPDATE_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"
#include "coordinator/round/member.h"

struct update_entry {
    uint64_t hash;         /* hash_floats of theta_f at this version */
    struct journal_ref at; /* of the update object that made it */
    uint64_t size;         /* 0: no object, the log starts here */
};

struct update_log {
    struct {
        uint64_t base; /* version of entries[0] */
        struct update_entry *entries;
        size_t n, cap;
    } f[LAYOUT_FRAGMENTS_MAX];
};

void update_log_finish(struct update_log *log);
/* Forget what was there: the log of this fragment starts at `version`. */
enum status update_log_start(struct update_log *log, uint32_t fragment, uint64_t version, uint64_t hash) MUST_CHECK;
/* STATE unless `version` is the next one. */
enum status update_log_add(struct update_log *log, uint32_t fragment, uint64_t version,
                           const struct update_entry *entry) MUST_CHECK;
/* NULL when the log does not reach there. */
const struct update_entry *update_log_find(const struct update_log *log, uint32_t fragment, uint64_t version);
/* Drop everything below `version`, whose hash stays known. */
void update_log_trim(struct update_log *log, uint32_t fragment, uint64_t version);

#endif
