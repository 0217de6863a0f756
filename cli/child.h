/* One child process of `atoll launch`: its command line, its log file and its lines on the terminal.
 *
 * A child runs in its own process group (Ctrl-C reaches only launch, which decides), gets SIGKILL from the kernel when
 * launch dies for whatever reason, and writes stdout and stderr into one pipe that launch reads. */
#ifndef CLI_CHILD_H
#define CLI_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/status.h"

enum { CHILD_ARGS_MAX = 160, CHILD_LINE_MAX = 4096, CHILD_ERROR_MAX = 512 };

enum child_state {
    CHILD_IDLE, /* not started yet */
    CHILD_RUNNING,
    CHILD_BACKOFF, /* died, will be started again at restart_at_us */
    CHILD_ENDED,   /* will not be started again; code says how it ended */
};

struct child {
    char name[32];   /* "coordinator", "worker-3": also the name of its log */
    char prefix[32]; /* before its lines on the terminal: "[w3] " */
    bool shown;      /* its lines appear on the terminal */

    const char *env_name; /* a variable of its own in its environment; NULL: none */
    uint32_t env_value;
    char *argv[CHILD_ARGS_MAX + 1]; /* owned; argv[0] is the program's path */
    size_t argc;

    enum child_state state;
    pid_t pid;
    int pipe_fd, log_fd; /* -1 when closed */
    int code;            /* exit code, or 128 + signal */
    uint64_t started_us, restart_at_us;
    unsigned failures; /* in a row, each after a short life */

    char line[CHILD_LINE_MAX]; /* the unfinished line */
    size_t line_used;
    char error[CHILD_ERROR_MAX]; /* what its last "atoll: ..." said, of this life; "": it said none */
    char told[CHILD_ERROR_MAX];  /* the one that a line of the supervisor told last */
};

/* Zeroes the child. */
void child_init(struct child *child, const char *name, const char *prefix, bool shown);
/* Closes descriptors and frees the command line; the process is left alone. */
void child_finish(struct child *child);
/* Append one word to the command line. */
enum status child_arg(struct child *child, const char *fmt, ...) __attribute__((format(printf, 2, 3))) MUST_CHECK;

/* Open LOGS/NAME.log for appending. */
enum status child_log_open(struct child *child, const char *logs, struct err *err) MUST_CHECK;
/* Fork and exec. NOTFOUND when the program is not there, IO when the system refuses. */
enum status child_start(struct child *child, uint64_t now_us, struct err *err) MUST_CHECK;
/* Read what the pipe holds, of a child that prints without end a part: whole lines go to the log and, when shown, to
 * the terminal. False at its end. */
bool child_read(struct child *child);
/* Reap without waiting. True when the child has just ended: code is set, its last output was read. */
bool child_reap(struct child *child);
void child_signal(const struct child *child, int sig);

/* It has ended by this signal. */
bool child_killed_by(const struct child *child, int sig);
/* "exit code 3", "signal 9 (Killed)". Returns out. */
const char *child_ending(int code, char *out, size_t cap);

#endif
