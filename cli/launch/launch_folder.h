/* The run folder of atoll launch: checks that it is free or holds this run, and the initial parameters of a new run. */
#ifndef CLI_LAUNCH_FOLDER_H
#define CLI_LAUNCH_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/resume.h"
#include "coordinator/run_dir.h"

struct launch_folder {
    const char *dir;              /* --dir; borrowed */
    struct resume resume;         /* --resume */
    struct run_dir_before before; /* set by take, as the next two */
    bool had_lock, had_workers;   /* launch.lock and workers/ existed before */
    bool taken;                   /* `take` succeeded */
    int lock_fd;                  /* -1: not locked */
};

/* Checks the initial parameters of a new run; `from` is model.init_from. launch checks early because the coordinator
 * opens them only after the first worker has joined. INVALID if the folder or its model is missing. */
enum status launch_folder_check_init(const struct launch_folder *l, const char *from, struct err *err) MUST_CHECK;
/* Creates the folder and locks it until `release`. INVALID, STATE or EXISTS if it holds something else, is in use, or
 * holds a run that --resume does not allow. */
enum status launch_folder_take(struct launch_folder *l, uint64_t n_workers, struct err *err) MUST_CHECK;
/* Removes what launch and its n_workers workers made in a folder in which no run began. */
void launch_folder_undo(const struct launch_folder *l, size_t n_workers);
void launch_folder_release(struct launch_folder *l);

/* The number of workers that the last launch in the folder had; 0: unknown. Call it before launch_folder_take. */
uint64_t launch_folder_workers(const struct launch_folder *l);

#endif
