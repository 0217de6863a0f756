/* Where theta and the outer state go: into memory; or, if that is short, into a file of the run folder that is mapped.
 * The system then keeps in memory what is in use, and writes the rest to the file. Results are the same.
 *
 * The file is unlinked at once: the disk gets it back when the process ends, also when it is killed. */
#ifndef COORDINATOR_STATE_FILE_H
#define COORDINATOR_STATE_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/config.h"
#include "common/tensor/layout.h"

/* Opens the file if less memory is free than the coordinator needs for this layout, and says so in one line of the log.
 * -1: memory suffices; or there can be no file, which a warning tells, and memory has to do. The caller closes it. */
int state_file_open(const char *folder, const struct config *config, const struct layout *layout);

#endif
