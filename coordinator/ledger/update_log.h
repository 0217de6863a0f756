/* The update log: journal position of each fragment's updates and the hash of theta after each, from the oldest kept
 * checkpoint to the current version. */
#ifndef COORDINATOR_UPDATE_LOG_H
#define COORDINATOR_UPDATE_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"
#include "coordinator/round/member.h"

struct update_entry {
    uint64_t hash;         /* hash_floats of theta_f at this version */
    struct journal_ref at; /* position of the update object that produced this version */
    uint64_t size;         /* bytes of that object; 0: the log starts here, without an object */
};

struct update_log {
    struct {
        uint64_t base; /* version of entries[0] */
        struct update_entry *entries;
        size_t n, cap;
    } f[LAYOUT_FRAGMENTS_MAX];
};

void update_log_finish(struct update_log *log);
/* Clears the log of this fragment and starts it at `version`. NOMEM. */
enum status update_log_start(struct update_log *log, uint32_t fragment, uint64_t version, uint64_t hash) MUST_CHECK;
/* Appends an entry. STATE: `version` is not the next version. NOMEM. */
enum status update_log_add(struct update_log *log, uint32_t fragment, uint64_t version,
                           const struct update_entry *entry) MUST_CHECK;
/* NULL: the version is outside the log. */
const struct update_entry *update_log_find(const struct update_log *log, uint32_t fragment, uint64_t version);
/* Bytes of the updates after version `held`, up to `to`. Half of UINT64_MAX / LAYOUT_FRAGMENTS_MAX if some are gone. */
uint64_t update_log_bytes(const struct update_log *log, uint32_t fragment, uint64_t held, uint64_t to);
/* Removes all entries before `version`; the entry of `version` stays. */
void update_log_trim(struct update_log *log, uint32_t fragment, uint64_t version);

#endif
