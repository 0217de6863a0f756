/* The supervisor behind `atoll launch`: one coordinator, N workers, restarts, signals, one exit code.
 *
 *   - A child that ends with 0 is done, with 2 it was started wrongly (everything stops), with 75 it was told to stop
 *     and can be resumed, with EXIT_PERMANENT it has met what will be there the next time, too: no driver, no NCCL, a
 *     damaged file, a refusal (everything stops, exit code 1). Anything else is a failure: it is started again after a
 *     pause that doubles from 0.25 s to 10 s, at most max_restarts times in all. A child that fails three times in a
 *     row within five seconds of its start is not going to do better: everything stops.
 *   - The line "atoll: ..." with which a child ends goes to its log, and is told once: with its first restart, or at
 *     the end for the child that everything stopped for.
 *   - The coordinator's end ends the run: workers get a while to follow, then SIGTERM, then SIGKILL. If it ends with 0
 *     the run is complete, whoever was told to stop just before.
 *   - First SIGINT, SIGTERM or SIGHUP: SIGTERM to all, who save and end with 75. Second: SIGKILL.
 *   - When the supervisor itself is killed, the kernel kills the children (cli/child.h). */
#ifndef CLI_SUPERVISOR_H
#define CLI_SUPERVISOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/child.h"
#include "common/base/status.h"

enum { SUPERVISOR_WORKERS_MAX = 256, SUPERVISOR_ADDRESS_MAX = 512 };

struct supervisor {
    struct child coordinator;
    struct child *workers; /* n_workers */
    size_t n_workers;
    const char *address_path; /* file the coordinator writes its join address to */
    const char *count_path;   /* file that worker_restarts is kept in, for the launches to come */
    uint64_t max_restarts;
    double stop_timeout_s; /* from a request to stop to SIGKILL */
    const char *again;     /* what goes on with a run that was stopped, for people */

    /* Results. */
    uint64_t restarts;        /* of this launch */
    uint64_t worker_restarts; /* of the run: those before are the caller's to set */
    int exit_code;
    bool finished;                       /* the coordinator ended with 0: the run is complete */
    char failure[CHILD_ERROR_MAX + 128]; /* the first child given up, and why; empty: none was */

    /* Inside. */
    int signal_fd;
    char address[SUPERVISOR_ADDRESS_MAX];
    bool stopping;       /* nothing is restarted any more */
    bool asked;          /* the user asked to stop */
    uint64_t asked_us;   /* when */
    uint64_t kill_at_us; /* when stopping: SIGTERM has had its time */
    uint64_t term_at_us; /* after the coordinator's end: workers had theirs; 0: not set */
};

/* Block the signals it will read, before anything is started. */
enum status supervisor_init(struct supervisor *supervisor, struct err *err) MUST_CHECK;
void supervisor_finish(struct supervisor *supervisor);
/* Start everything and return when nothing is left running. Failures to start are in `err`; how the run ended is in
 * exit_code. Workers are started once the coordinator has written its address. */
enum status supervisor_run(struct supervisor *supervisor, struct err *err) MUST_CHECK;

#endif
