/* The supervisor of `atoll launch`: one coordinator, N workers, their relays, restarts, signals, one exit code.
 *
 * Start: the relays follow when the coordinator has written its address, the workers when all relays are ready.
 *
 * Exit codes of a child:
 *   - 0: done.
 *   - 2: wrong usage. Everything stops.
 *   - 75: stopped on request; the run can be resumed.
 *   - EXIT_PERMANENT: a failure that a restart would repeat (no driver, no NCCL, a damaged file, a refusal). Everything
 *     stops with exit code 1.
 *   - Anything else: a failure. The child restarts after a pause that doubles from 0.25 s to 10 s, at most max_restarts
 *     times in total. Three failures in a row, each within five seconds of its start, stop everything.
 *
 * Errors: the final "atoll: ..." line of a child goes to its log. The terminal shows it once: with the first restart,
 * or at the end for the child that stopped everything.
 *
 * Shutdown:
 *   - Relays serve until all other children have ended, then get SIGTERM. A relay that ends earlier has failed.
 *   - If the run folder is removed, the coordinator ends, and SIGKILL ends all others.
 *   - The coordinator's exit ends the run. Workers get 30 s to follow, then SIGTERM, then SIGKILL. If it exits with 0,
 *     the run is complete, even if a signal arrived just before.
 *   - The first SIGINT, SIGTERM or SIGHUP sends SIGTERM to all children, which save and exit with 75. The second sends
 *     SIGKILL.
 *   - If the supervisor is killed, the kernel kills the children (cli/launch/child.h). */
#ifndef CLI_SUPERVISOR_H
#define CLI_SUPERVISOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/launch/child.h"
#include "common/base/status.h"

enum { SUPERVISOR_WORKERS_MAX = 256, SUPERVISOR_ADDRESS_MAX = 512 };

struct supervisor {
    struct child children[1 + 2 * SUPERVISOR_WORKERS_MAX]; /* [n]: the coordinator, the workers, their relays */
    size_t n, n_workers;
    const char *address_path; /* file with the join address, written by the coordinator */
    bool show_join_line;      /* print the last line of that file once, if stdout is a terminal */
    const char *lock_path;    /* file that launch locked in the run folder */
    int lock_fd;
    const char *count_path; /* file that keeps worker_restarts for later launches */
    uint64_t max_restarts;
    double stop_timeout_s;      /* time between SIGTERM and SIGKILL */
    const char *resume_command; /* printed after a stop: the command that continues the run */

    /* Results. */
    uint64_t restarts;        /* restarts in this launch */
    uint64_t worker_restarts; /* worker restarts in the run; the caller sets the count of earlier launches */
    int exit_code;
    bool finished;                       /* the coordinator ended with 0: the run is complete */
    char failure[CHILD_ERROR_MAX + 128]; /* error of the first child that stopped everything; empty: none */

    /* Private. */
    int signal_fd;
    char address[SUPERVISOR_ADDRESS_MAX];
    bool workers_started;
    bool stopping;              /* no more restarts */
    bool stop_requested;        /* a signal asked launch to stop */
    uint64_t stop_requested_us; /* time of the first signal */
    bool removed;               /* the run folder was removed: all are killed */
    uint64_t kill_at_us;        /* while stopping: time of SIGKILL */
    uint64_t term_at_us;        /* after the coordinator's exit: time of SIGTERM to the workers; 0: not set */
};

/* Blocks the signals that the supervisor reads. Call before anything starts. IO. */
enum status supervisor_init(struct supervisor *supervisor, struct err *err) MUST_CHECK;
void supervisor_finish(struct supervisor *supervisor);
/* Starts all processes and returns when all have ended. `err` holds a failure to start; exit_code tells how the run
 * ended. */
enum status supervisor_run(struct supervisor *supervisor, struct err *err) MUST_CHECK;

#endif
