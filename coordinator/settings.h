/* A run's configuration as its coordinator takes it: file, environment, command line, everything checked. The programs
 * that look at a configuration before a run (atoll launch, atoll config print) read it the same way. */
#ifndef COORDINATOR_SETTINGS_H
#define COORDINATOR_SETTINGS_H

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/options.h"

/* path NULL: no file. Resolved on success; INVALID otherwise, also for a file that is not there: nothing has begun. */
enum status settings_read(struct config *config, struct config_sources *sources, const char *path,
                          const struct options *options, struct err *err) MUST_CHECK;

/* Log what is allowed and hardly meant, and what was set and does nothing here. For one program of a run: workers take
 * the coordinator's configuration. */
void settings_warn(const struct config *config, const struct config_sources *sources);

#endif
