#include "cli/alert/alert_command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/units.h"

enum { POLL_US = 20000, KILL_US = 2000000, WORDS_MAX = 256, CODE_NOT_STARTED = 127 };

enum status alert_command_check(const char *program, struct err *err)
{
    const char *path = getenv("PATH");
    char file[4096];
    if (strchr(program, '/')) {
        if (!access(program, X_OK)) return STATUS_OK;
        return err_set(err, STATUS_INVALID, "cannot run %.300s: %s", program, strerror(errno));
    }
    for (const char *at = path ? path : ""; *at;) {
        size_t n = strcspn(at, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)n, at, program);
        if (n && !access(file, X_OK)) return STATUS_OK;
        at += n + (at[n] == ':');
    }
    return err_set(err, STATUS_INVALID, "no program %.300s is in PATH", program);
}

/* The line of a message: "atoll first: alert disk: ...". It never begins with a dash. */
static void line_of(const struct alert_message *m, const char *run, char *out, size_t cap)
{
    char more[48] = "";
    if (m->more) snprintf(more, sizeof more, " (and %u earlier)", m->more);
    snprintf(out, cap, "atoll%s%s: %s: %s%s", run[0] ? " " : "", run, m->rule, m->text, more);
}

static void set_environment(const struct alert_message *m, const char *run)
{
    setenv("ATOLL_ALERT_RUN", run, 1);
    setenv("ATOLL_ALERT_RULE", m->rule, 1);
    setenv("ATOLL_ALERT_STATE", m->starts ? "start" : "end", 1);
    setenv("ATOLL_ALERT_WORKER", m->worker, 1);
    setenv("ATOLL_ALERT_TEXT", m->text, 1);
}

/* Runs in the child. The parent has one thread, so all calls are allowed. */
static void exec_command(char *const *command, const struct alert_message *m, const char *run, char *line, int in)
{
    char *words[WORDS_MAX];
    size_t n = 0;
    for (; command[n] && n + 1 < WORDS_MAX; n++) words[n] = strcmp(command[n], "{}") ? command[n] : line;
    words[n] = NULL;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in, STDIN_FILENO);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    set_environment(m, run);
    execvp(words[0], words);
    dprintf(STDERR_FILENO, "atoll: cannot run %s: %s\n", words[0], strerror(errno));
    _exit(CODE_NOT_STARTED);
}

/* A pipe that holds the line: it is shorter than any pipe's buffer, so the write does not wait for a reader. */
static enum status make_input(const char *line, int *in_p, struct err *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC)) return err_set(err, STATUS_IO, "cannot create a pipe: %s", strerror(errno));
    ssize_t put = write(ends[1], line, strlen(line)), newline = write(ends[1], "\n", 1);
    (void)put, (void)newline; /* the buffer has room */
    close(ends[1]);
    *in_p = ends[0];
    return STATUS_OK;
}

/* Also ends what the command left behind in its group. */
static void end_group(pid_t pid, int sig)
{
    kill(-pid, sig);
}

static enum status judge(int wait_status, bool late, double limit_s, struct err *err)
{
    if (late)
        return err_set(err, STATUS_STATE, "the command took longer than %s and was killed",
                       units_whole_seconds(limit_s).text);
    if (WIFSIGNALED(wait_status))
        return err_set(err, STATUS_STATE, "the command was killed by signal %d", WTERMSIG(wait_status));
    if (WEXITSTATUS(wait_status))
        return err_set(err, STATUS_STATE, "the command ended with code %d", WEXITSTATUS(wait_status));
    return STATUS_OK;
}

static enum status await(pid_t pid, double limit_s, enum status (*stopped)(struct err *err), struct err *err)
{
    int wait_status = 0;
    bool late = false;
    uint64_t end = clock_monotonic_us() + (uint64_t)(limit_s * 1e6);
    while (waitpid(pid, &wait_status, WNOHANG) == 0) {
        uint64_t now = clock_monotonic_us();
        if (stopped(err) != STATUS_OK) {
            end_group(pid, SIGKILL);
            waitpid(pid, &wait_status, 0);
            return STATUS_INTERRUPTED;
        }
        if (now >= end) {
            end_group(pid, late ? SIGKILL : SIGTERM);
            end = now + KILL_US;
            late = true;
        }
        usleep(POLL_US);
    }
    if (late) end_group(pid, SIGKILL);
    return judge(wait_status, late, limit_s, err);
}

enum status alert_command_run(char *const *command, const struct alert_message *message, const char *run,
                              double limit_s, enum status (*stopped)(struct err *err), struct err *err)
{
    char line[ALERT_LINE_MAX + 2 * ALERT_NAME_MAX + 64];
    int in = -1;
    line_of(message, run, line, sizeof line);
    TRY(make_input(line, &in, err));
    pid_t pid = fork();
    if (pid == 0) exec_command(command, message, run, line, in);
    int error = errno;
    close(in);
    if (pid < 0) return err_set(err, STATUS_IO, "cannot start the command: %s", strerror(error));
    setpgid(pid, pid); /* the child does the same: one of the two calls comes first */
    return await(pid, limit_s, stopped, err);
}
