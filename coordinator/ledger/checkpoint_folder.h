/* Checks the folder of one checkpoint, wherever it lies, without a run.
 *
 * coordinator_state.bin records hashes of the model beside it (coordinator/ledger/checkpoint.h). */
#ifndef COORDINATOR_CHECKPOINT_FOLDER_H
#define COORDINATOR_CHECKPOINT_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

/* Checks all that the coordinator checks when it loads the checkpoint. *recorded_p: the folder has a
 * coordinator_state.bin; without it, or with one of
 * another release, nothing is checked here. CORRUPT names the file; other errors as for reading. */
enum status checkpoint_folder_check(const char *folder, bool *recorded_p, struct err *err) MUST_CHECK;
/* Reads the versions and hashes that the folder of checkpoint `round` records, without checking the model. NOTFOUND: it
 * has no coordinator_state.bin. */
struct checkpoint_info;
enum status checkpoint_folder_look(const char *folder, uint64_t round, struct checkpoint_info *info,
                                   struct err *err) MUST_CHECK;

#endif
