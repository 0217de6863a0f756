/* Reads and checks a run's configuration from file, environment and command line. The coordinator, atoll launch and
 * atoll config print read it with these functions. */
#ifndef COORDINATOR_SETTINGS_H
#define COORDINATOR_SETTINGS_H

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/options.h"

/* Reads and resolves the configuration; path NULL: no file. All errors are INVALID, also a missing file: the program
 * then ends with EXIT_USAGE.
 *
 * With model.init_from, keys of the model that no source sets come from the folder's config.json. A run in `run_dir`
 * (NULL: none) may continue without that folder: then they come from its config.yaml. The same file gives
 * the workers of inner.scaling to a run that continues, if no source sets them. */
enum status settings_read(struct config *config, struct config_sources *sources, const char *path, const char *run_dir,
                          const struct options *options, struct err *err) MUST_CHECK;

/* The configuration file of a program that is called as `PROGRAM [CONFIG] --dir RUN`: CONFIG, or without it
 * RUN/config.yaml, with which a run continues. Writes it to out[cap]. INVALID: there is neither. */
enum status settings_find(const struct options *options, const char *run_dir, char *out, size_t cap,
                          struct err *err) MUST_CHECK;

/* The budget of an async run is train.max_steps x coordinator.min_workers inner steps. A run that has begun keeps the
 * number of its first start, from its config.yaml; another one is logged. */
void settings_keep_budget(struct config *config, const char *run_dir);
/* That number: coordinator.min_workers of a run that has begun; 0: unknown. */
uint32_t settings_begun_workers(const char *run_dir);

/* Logs a scaled learning rate, settings that are allowed but probably unintended, and settings without effect. Only one
 * program of a run calls it, because workers get the coordinator's configuration. */
void settings_warn(const struct config *config, const struct config_sources *sources);

#endif
