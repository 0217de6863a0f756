#include "cli/launch/child.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/terminal.h"
#include "common/base/mem.h"
#include "common/base/text.h"
#include "common/os/fileio.h"

/* READS_MAX: four times the capacity of a pipe, so that the last output of an ended child is read completely. */
enum { CODE_EXEC_FAILED = 127, READS_MAX = 16 };

void child_init(struct child *child, const char *name, const char *prefix, bool shown)
{
    memset(child, 0, sizeof *child);
    snprintf(child->name, sizeof child->name, "%s", name);
    snprintf(child->prefix, sizeof child->prefix, "%s", prefix);
    child->shown = shown;
    child->pid = child->pipe_fd = child->log_fd = -1;
}

void child_finish(struct child *child)
{
    if (child->pipe_fd >= 0) close(child->pipe_fd);
    if (child->log_fd >= 0) close(child->log_fd);
    child->pipe_fd = child->log_fd = -1;
    for (size_t i = 0; i < child->argc; i++) mem_free(child->argv[i]);
    child->argc = 0;
}

void child_arg(struct child *child, const char *fmt, ...)
{
    char word[2048];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(word, sizeof word, fmt, args);
    va_end(args);
    if (n >= (int)sizeof word || child->argc == CHILD_ARGS_MAX)
        child->args = STATUS_LIMIT;
    else if (!(child->argv[child->argc] = mem_strdup(word)))
        child->args = STATUS_NOMEM;
    else
        child->argv[++child->argc] = NULL;
}

enum status child_log_open(struct child *child, const char *logs, struct err *err)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s.log", logs, child->name) >= (int)sizeof path)
        return err_set(err, STATUS_LIMIT, "the path %s is too long for a run folder: choose a shorter --dir", logs);
    return file_open_plain(path, O_WRONLY | O_CREAT | O_APPEND, FILE_PUBLIC, &child->log_fd, err);
}

/* Runs in the child between fork and exec, so it makes only async-signal-safe calls. */
static void exec_child(const struct child *child, pid_t parent, int out, int exec_error)
{
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(CODE_EXEC_FAILED); /* launch died before prctl */
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(child->argv[0], child->argv);
    int error = errno;
    ssize_t put = write(exec_error, &error, sizeof error);
    (void)put;
    _exit(CODE_EXEC_FAILED);
}

/* Returns the errno of a failed exec, or 0: a successful exec closes the pipe. */
static int exec_result(int fd)
{
    int error = 0;
    ssize_t got;
    do got = read(fd, &error, sizeof error);
    while (got < 0 && errno == EINTR);
    return got == sizeof error ? error : 0;
}

enum status child_start(struct child *child, uint64_t now_us, struct err *err)
{
    int out[2], result[2];
    assert(child->state != CHILD_RUNNING && child->pid < 0 && child->argc > 0 && child->args == STATUS_OK);
    if (pipe2(out, O_CLOEXEC)) return err_set(err, STATUS_IO, "cannot create a pipe: %s", strerror(errno));
    if (pipe2(result, O_CLOEXEC)) {
        close(out[0]), close(out[1]);
        return err_set(err, STATUS_IO, "cannot create a pipe: %s", strerror(errno));
    }
    char value[16];
    snprintf(value, sizeof value, "%" PRIu32, child->env_value);
    if (child->env_name) setenv(child->env_name, value, 1); /* setenv is not safe after fork */
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) exec_child(child, parent, out[1], result[1]);
    int error = errno;
    if (child->env_name) unsetenv(child->env_name);
    close(out[1]), close(result[1]);
    if (pid > 0) error = exec_result(result[0]);
    close(result[0]);
    if (pid < 0 || error) {
        close(out[0]);
        if (pid > 0) waitpid(pid, NULL, 0);
        return err_set(err, error == ENOENT ? STATUS_NOTFOUND : STATUS_IO, "cannot start %s: %s%s", child->argv[0],
                       strerror(error), error == ENOENT ? "; build it, or set ATOLL_BIN_DIR to its folder" : "");
    }
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    if (child->pipe_fd >= 0) close(child->pipe_fd); /* still open if the previous process left a child behind */
    child->pid = pid;
    child->pipe_fd = out[0];
    child->state = CHILD_RUNNING;
    child->started_us = now_us;
    child->line_used = 0;
    child->error[0] = '\0';
    return STATUS_OK;
}

/* Every program prints its error as one "atoll: ..." line; the supervisor prints it on the terminal. */
static bool record_error(struct child *child)
{
    static const char mark[] = "atoll: ";
    size_t skip = sizeof mark - 1;
    if (child->line_used <= skip || memcmp(child->line, mark, skip) != 0) return false;
    snprintf(child->error, sizeof child->error, "%.*s", (int)(child->line_used - skip), child->line + skip);
    return true;
}

/* A line that ends with '\r' is a progress bar: it is shown on the terminal until the next line and not logged. */
static void emit(struct child *child, char ending)
{
    bool error = ending != '\r' && record_error(child);
    if (child->shown && (ending == '\r' || !error)) text_make_clean_n(child->line, child->line_used, true);
    if (child->shown && ending == '\r')
        terminal_bar(child->line, child->line_used);
    else if (child->shown && !error)
        terminal_line(child->prefix, child->line, child->line_used);
    if (ending != '\r' && child->log_fd >= 0) {
        child->line[child->line_used] = '\n';
        ssize_t put = write(child->log_fd, child->line, child->line_used + 1);
        (void)put; /* a full disk must not stop the run */
    }
    child->line_used = 0;
}

static void append_output(struct child *child, const char *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (data[i] == '\n' || data[i] == '\r' || child->line_used == CHILD_LINE_MAX - 1)
            emit(child, data[i] == '\r' ? '\r' : '\n');
        if (data[i] != '\n' && data[i] != '\r') child->line[child->line_used++] = data[i];
    }
}

bool child_read(struct child *child)
{
    char data[16384];
    for (int reads = 0; reads < READS_MAX; reads++) {
        ssize_t got = read(child->pipe_fd, data, sizeof data);
        if (got > 0)
            append_output(child, data, (size_t)got);
        else if (got < 0 && errno == EINTR)
            continue;
        else
            return got < 0 && errno == EAGAIN;
    }
    return true;
}

bool child_reap(struct child *child)
{
    int wait_status;
    siginfo_t info = {0};
    if (child->state != CHILD_RUNNING) return false;
    if (waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid != child->pid) return false;
    kill(-child->pid, SIGKILL); /* kill its own children before waitpid frees the group's number */
    if (waitpid(child->pid, &wait_status, 0) != child->pid) return false;
    child->code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : CHILD_SIGNALLED + WTERMSIG(wait_status);
    if (child->pipe_fd >= 0) {
        child_read(child);
        close(child->pipe_fd);
        child->pipe_fd = -1;
    }
    if (child->line_used) emit(child, '\n');
    child->pid = -1;
    child->state = CHILD_ENDED;
    return true;
}

void child_signal(const struct child *child, int sig)
{
    if (child->state == CHILD_RUNNING) kill(child->pid, sig);
}

const char *child_ending(int code, char *out, size_t cap)
{
    if (code > CHILD_SIGNALLED)
        snprintf(out, cap, "was killed by signal %d (%s)", code - CHILD_SIGNALLED, strsignal(code - CHILD_SIGNALLED));
    else
        snprintf(out, cap, "exited with code %d", code == EXIT_PERMANENT ? EXIT_FAILED : code);
    return out;
}
