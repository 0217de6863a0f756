/* A child process of `atoll launch`: command line, log file and output on the terminal.
 *
 * - A child runs in its own process group, so Ctrl-C reaches only launch, which then decides.
 * - The kernel sends the child SIGKILL when launch dies.
 * - stdout and stderr of the child go into one pipe that launch reads. */
#ifndef CLI_CHILD_H
#define CLI_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"
#include "common/os/fileio.h"

enum { CHILD_ARGS_MAX = 160, CHILD_LINE_MAX = 4096, CHILD_ERROR_MAX = 512, CHILD_SIGNALLED = 128 };

enum child_state {
    CHILD_IDLE, /* not yet started */
    CHILD_RUNNING,
    CHILD_BACKOFF, /* failed; restarts at restart_at_us */
    CHILD_ENDED,   /* ended and is not restarted; see code */
};

struct child {
    char name[32];   /* "coordinator", "worker-3"; its log is NAME.log */
    char prefix[32]; /* prefix of its lines on the terminal: "[w3] " */
    bool shown;      /* print its lines on the terminal */

    char ready_path[FILEIO_PATH_MAX]; /* of a relay: file that it writes when it is ready */

    const char *env_name; /* environment variable set for this child; NULL: none */
    uint32_t env_value;
    char *argv[CHILD_ARGS_MAX + 1]; /* owned; argv[0] is the program's path */
    size_t argc;
    enum status args; /* OK: the command line is complete; otherwise LIMIT, NOMEM */

    enum child_state state;
    pid_t pid;
    int pipe_fd, log_fd; /* -1 when closed */
    int code;            /* exit code, or CHILD_SIGNALLED + signal */
    uint64_t started_us, restart_at_us;
    unsigned failures; /* consecutive failures soon after a start */

    char line[CHILD_LINE_MAX]; /* the unfinished line */
    size_t line_used;
    char error[CHILD_ERROR_MAX];    /* text of the last "atoll: ..." line since its start; "": none */
    char reported[CHILD_ERROR_MAX]; /* the last error that the supervisor printed */
};

/* Initialises the child to CHILD_IDLE with an empty command line. */
void child_init(struct child *child, const char *name, const char *prefix, bool shown);
/* Closes descriptors and frees the command line; a running process continues. */
void child_finish(struct child *child);
/* Appends one word to the command line. A failure stays in child->args. */
void child_arg(struct child *child, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Opens LOGS/NAME.log for appending. LIMIT, IO. */
enum status child_log_open(struct child *child, const char *logs, struct err *err) MUST_CHECK;
/* Forks and execs. NOTFOUND if the program is missing, IO for any other failure. */
enum status child_start(struct child *child, uint64_t now_us, struct err *err) MUST_CHECK;
/* Reads the pipe, at most 256 KiB per call, and writes whole lines to the log and, if shown, to the terminal. Returns
 * false at end of file. */
bool child_read(struct child *child);
/* Reaps without waiting. Returns true if the child has just ended; code is then set and its last output read. */
bool child_reap(struct child *child);
void child_signal(const struct child *child, int sig);

/* Writes "exited with code 3" or "was killed by signal 9 (Killed)". Returns out. */
const char *child_ending(int code, char *out, size_t cap);

#endif
