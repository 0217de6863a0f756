/* --resume of the coordinator and of atoll launch: whether the run in the folder continues, or a new one starts from a
 * checkpoint. */
#ifndef COORDINATOR_RESUME_H
#define COORDINATOR_RESUME_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/options.h"
#include "common/os/fileio.h"

#define RESUME_HELP                                                                                                    \
    "auto: continue the run in RUN (default); never: RUN must be new;\n"                                               \
    "                           a checkpoint or run folder: start a new run from its parameters"

struct resume {
    const char *how, *dir;              /* --resume and --dir; borrowed */
    char init_dir[FILEIO_PATH_MAX];     /* the checkpoint that `how` names; empty: auto or never */
    char setting[FILEIO_PATH_MAX + 32]; /* --model.init_from=init_dir */
    bool begun;                         /* the run in `dir` started from init_dir, so it continues */
};

/* Checks `how`, finds the checkpoint that it names, and adds it to the settings of the command line as model.init_from.
 * It overrides the configuration file and the environment, but conflicts with the option --model.init_from. INVALID:
 * there is no such checkpoint. *r must outlive the options. */
enum status resume_find(struct resume *r, struct options *o, struct err *err) MUST_CHECK;
/* STATE if the folder holds a run that `how` does not allow to continue. */
enum status resume_check(const struct resume *r, struct err *err) MUST_CHECK;
/* A run has begun in the folder: its model was read. Before that the coordinator accepts other settings. */
bool resume_holds_run(const char *dir);

#endif
