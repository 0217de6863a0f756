#include "cli/launch/supervisor.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/terminal.h"
#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/interrupt.h"
#include "common/os/std_streams.h"
#include "coordinator/run_folder.h"

enum {
    BACKOFF_FIRST_US = 250000,
    BACKOFF_MAX_US = 10000000,
    SHORT_LIFE_MS = 5000, /* a failure within this time of its start counts as consecutive */
    HOPELESS_FAILURES = 3,
    FOLLOW_MS = 30000,    /* time for workers to exit after the coordinator */
    ADDRESS_POLL_MS = 20, /* between two looks at the timers and for the address */
    TICK_MS = 50,         /* the same when all have started */
    RELAY_END_MS = 2000   /* time for relays to exit after SIGTERM */
};

static void print_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void print_line(const char *fmt, ...)
{
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    terminal_line("launch: ", line, strlen(line));
}

enum status supervisor_init(struct supervisor *s, struct err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (std_streams_hang_up()) sigaddset(&set, SIGHUP); /* signalfd would also read an ignored signal */
    sigaddset(&set, SIGCHLD);
    signal(SIGCHLD, SIG_DFL); /* if the parent ignored SIGCHLD, children would be reaped without notice */
    if (sigprocmask(SIG_BLOCK, &set, NULL)) return err_set(err, STATUS_IO, "cannot block signals: %s", strerror(errno));
    setenv(EXIT_PERMANENT_ENV, "1", 1); /* children may exit with EXIT_PERMANENT */
    s->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->signal_fd < 0) return err_set(err, STATUS_IO, "cannot read signals: %s", strerror(errno));
    return STATUS_OK;
}

void supervisor_finish(struct supervisor *s)
{
    if (s->signal_fd >= 0) close(s->signal_fd);
    s->signal_fd = -1;
}

static bool is_relay(const struct supervisor *s, const struct child *child)
{
    return child > &s->children[s->n_workers];
}

/* The children that stop need their relays, so only SIGKILL is for relays, too. */
static void signal_all(struct supervisor *s, int sig)
{
    for (size_t i = 0; i < (sig == SIGKILL ? s->n : 1 + s->n_workers); i++) child_signal(&s->children[i], sig);
}

/* Stops restarts and sends SIGTERM once, because a second one could kill a child while it saves. SIGKILL follows after
 * stop_timeout_s. */
static void stop_all(struct supervisor *s, uint64_t now_us)
{
    if (s->stopping) return;
    s->kill_at_us = now_us + (uint64_t)(s->stop_timeout_s * 1e6);
    s->stopping = true;
    for (size_t i = 0; i < s->n; i++)
        if (s->children[i].state == CHILD_BACKOFF || s->children[i].state == CHILD_IDLE)
            s->children[i].state = CHILD_ENDED;
    signal_all(s, SIGTERM);
}

static void exit_code_max(struct supervisor *s, int code)
{
    static const int worst[] = {EXIT_FAILED, EXIT_USAGE, EXIT_RESUMABLE};
    int i = 0;
    while (i < 3 && code != worst[i] && s->exit_code != worst[i]) i++;
    s->exit_code = i < 3 ? worst[i] : EXIT_DONE;
}

static void on_signal(struct supervisor *s, int sig, uint64_t now_us)
{
    if (sig == SIGCHLD) return;
    exit_code_max(s, EXIT_RESUMABLE);
    if (s->stop_requested && now_us - s->stop_requested_us < INTERRUPT_SAME_US) return;
    if (s->stop_requested) {
        print_line("killing all: second signal");
        signal_all(s, SIGKILL);
        return;
    }
    s->stop_requested = true;
    s->stop_requested_us = now_us;
    print_line("stopping: %s (a second signal kills all)", sig == SIGINT ? "interrupted" : "terminated");
    stop_all(s, now_us);
}

/* Writes the last error of the child, or "the same" if it was already printed. Returns text. */
static const char *last_error(struct child *child, char *text, size_t cap)
{
    bool reported = !strcmp(child->reported, child->error);
    snprintf(text, cap, "%s%s", child->error[0] ? "; its error: " : "",
             reported && child->error[0] ? "the same" : child->error);
    memcpy(child->reported, child->error, sizeof child->reported);
    return text;
}

/* Keeps the first failure for the end of the output, because lines of stopping children follow. */
static void give_up(struct supervisor *s, const struct child *child, const char *how, int code, uint64_t now_us)
{
    if (!s->failure[0])
        snprintf(s->failure, sizeof s->failure, "%s%s%s: %s", child->name, how[0] ? " " : "", how,
                 child->error[0] ? child->error : "see its log");
    exit_code_max(s, code);
    stop_all(s, now_us);
}

static void count_worker(struct supervisor *s)
{
    char text[32];
    struct err err = {0};
    int n = snprintf(text, sizeof text, "%" PRIu64 "\n", ++s->worker_restarts);
    if (file_write(s->count_path, text, (size_t)n, &err) != STATUS_OK) print_line("%s", err.msg);
}

/* Restarts a failed child after a pause, or gives up. */
static void on_failure(struct supervisor *s, struct child *child, uint64_t now_us)
{
    char how[64], text[CHILD_ERROR_MAX + 32];
    child_ending(child->code, how, sizeof how);
    assert(!s->stopping && child->state == CHILD_ENDED);
    bool quick = now_us - child->started_us < SHORT_LIFE_MS * (uint64_t)1000;
    child->failures = quick ? child->failures + 1 : 1;
    bool hopeless = child->code < CHILD_SIGNALLED && quick && child->failures >= HOPELESS_FAILURES;
    if (hopeless || s->restarts >= s->max_restarts) {
        if (hopeless)
            print_line("giving up: %s %s right after its start, %u times in a row", child->name, how, child->failures);
        else
            print_line("giving up: %s %s, and all %" PRIu64 " restarts are used", child->name, how, s->max_restarts);
        give_up(s, child, how, EXIT_FAILED, now_us);
        return;
    }
    uint64_t pause_us = backoff_us(BACKOFF_FIRST_US, child->failures - 1, BACKOFF_MAX_US);
    s->restarts++;
    if (child != s->children && !is_relay(s, child)) count_worker(s);
    child->state = CHILD_BACKOFF;
    child->restart_at_us = now_us + pause_us;
    print_line("%s %s: restarting in %s (restart %" PRIu64 " of %" PRIu64 ")%s", child->name, how,
               units_duration((double)pause_us / 1e6).text, s->restarts, s->max_restarts,
               last_error(child, text, sizeof text));
}

/* A restart would fail in the same way. If several children fail, only the first one is printed. */
static void on_permanent_failure(struct supervisor *s, const struct child *child, uint64_t now_us)
{
    if (!s->stopping) print_line("stopping: %s failed, and a restart would not help", child->name);
    give_up(s, child, "", child->code == EXIT_USAGE ? EXIT_USAGE : EXIT_FAILED, now_us);
}

/* Kills all children if the run folder was removed, which ends the coordinator: nothing is left to save, and a restart
 * would begin another run. Returns true if it was. */
static bool end_if_removed(struct supervisor *s)
{
    if (s->removed || !file_is_gone(s->lock_path, s->lock_fd)) return s->removed;
    s->removed = true;
    snprintf(s->failure, sizeof s->failure,
             "%.300s is gone: the run folder was removed or moved; move it back to continue the run", s->lock_path);
    exit_code_max(s, EXIT_FAILED);
    stop_all(s, 0);
    signal_all(s, SIGKILL);
    return true;
}

static void on_end(struct supervisor *s, struct child *child, uint64_t now_us)
{
    char how[64], text[CHILD_ERROR_MAX + 32];
    if (end_if_removed(s)) return;
    bool coordinator = child == s->children;
    /* SIGTERM before the child installed its handler loses nothing and counts as stopped. */
    bool stopped = child->code == EXIT_RESUMABLE || (s->stopping && child->code == CHILD_SIGNALLED + SIGTERM);
    if (child->code == EXIT_DONE && is_relay(s, child) && !s->stopping && !s->finished) {
        on_failure(s, child, now_us); /* a relay serves until the other children have ended */
    } else if (child->code == EXIT_DONE || stopped) {
        if (stopped && !s->finished) exit_code_max(s, EXIT_RESUMABLE);
        if (coordinator && child->code == EXIT_DONE) s->finished = true;
    } else if (child->code == EXIT_USAGE || (child->code == EXIT_PERMANENT && !(s->finished && !coordinator))) {
        on_permanent_failure(s, child, now_us);
    } else if (!s->stopping && !(s->finished && !coordinator)) {
        on_failure(s, child, now_us);
    } else {
        /* Failed while everything stops: print it, and count it as a failure unless the user asked to stop. */
        print_line("%s %s%s", child->name, child_ending(child->code, how, sizeof how),
                   last_error(child, text, sizeof text));
        if (!s->stop_requested) exit_code_max(s, EXIT_FAILED);
    }
    if (!coordinator || child->state != CHILD_ENDED || s->stopping) return;
    if (s->finished) {
        s->term_at_us = now_us + FOLLOW_MS * (uint64_t)1000;
        for (size_t i = 1; i <= s->n_workers; i++)
            if (s->children[i].state != CHILD_RUNNING) s->children[i].state = CHILD_ENDED;
    } else {
        stop_all(s, now_us); /* another process stopped the coordinator */
    }
}

/* The join line holds a secret, so it is not in the coordinator's output, which goes to a log. */
static void print_join_line(const struct supervisor *s)
{
    void *text;
    size_t size;
    if (!s->show_join_line || !isatty(STDOUT_FILENO)) return;
    if (file_read(s->address_path, SUPERVISOR_ADDRESS_MAX * 2, &text, &size, NULL) != STATUS_OK) return;
    char *line = text;
    if (size && line[size - 1] == '\n') line[size - 1] = 0;
    char *last = strrchr(line, '\n');
    print_line("join line (secret): %s", last ? last + 1 : line);
    mem_free(text);
}

static enum status start_all(struct supervisor *s, size_t from, size_t end, uint64_t now_us, struct err *err)
{
    for (size_t i = from; i < end; i++) TRY(child_start(&s->children[i], now_us, err));
    return STATUS_OK;
}

/* Starts the relays, then the workers, when what they need is there. */
static enum status followers_start(struct supervisor *s, uint64_t now_us, struct err *err)
{
    if (s->workers_started || s->stopping) return STATUS_OK;
    if (!s->address[0]) {
        if (s->children[0].state != CHILD_RUNNING ||
            run_folder_read_line(s->address_path, s->address, sizeof s->address, NULL) != STATUS_OK)
            return STATUS_OK; /* not yet */
        print_join_line(s);
        TRY(start_all(s, 1 + s->n_workers, s->n, now_us, err));
    }
    for (size_t i = 1 + s->n_workers; i < s->n; i++)
        if (!file_exists(s->children[i].ready_path)) return STATUS_OK;
    s->workers_started = true;
    return start_all(s, 1, 1 + s->n_workers, now_us, err);
}

static enum status timers(struct supervisor *s, uint64_t now_us, struct err *err)
{
    if (s->stopping && now_us >= s->kill_at_us) {
        print_line("killing all: still running after %s", units_duration(s->stop_timeout_s).text);
        signal_all(s, SIGKILL);
        s->kill_at_us = UINT64_MAX;
    }
    if (s->term_at_us && now_us >= s->term_at_us) {
        s->term_at_us = 0;
        print_line("stopping workers: still running %d s after the coordinator exited", FOLLOW_MS / 1000);
        stop_all(s, now_us);
    }
    for (size_t i = 0; i < s->n; i++) {
        struct child *child = &s->children[i];
        if (child->state == CHILD_BACKOFF && now_us >= child->restart_at_us) TRY(child_start(child, now_us, err));
    }
    return followers_start(s, now_us, err);
}

static bool any_child_left(const struct supervisor *s)
{
    bool left = s->children[0].state != CHILD_ENDED;
    for (size_t i = 1; i <= s->n_workers; i++)
        left = left || s->children[i].state == CHILD_RUNNING || s->children[i].state == CHILD_BACKOFF;
    return left;
}

/* Waits for output, signals and exits of children, until it is time to look at the timers. */
static void wait_for_events(struct supervisor *s)
{
    struct pollfd fds[1 + sizeof s->children / sizeof *s->children];
    size_t n = 0;
    fds[n++] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
    for (size_t i = 0; i < s->n; i++)
        fds[n++] = (struct pollfd){.fd = s->children[i].pipe_fd, .events = POLLIN}; /* poll skips -1 */
    if (poll(fds, n, s->workers_started ? TICK_MS : ADDRESS_POLL_MS) <= 0) return;
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        on_signal(s, (int)info.ssi_signo, clock_monotonic_us());
    for (size_t i = 0; i < s->n; i++) {
        struct child *child = &s->children[i];
        if (!fds[i + 1].revents || child->pipe_fd < 0) continue;
        if (!child_read(child)) { /* it closed both outputs; SIGCHLD reports its exit */
            close(child->pipe_fd);
            child->pipe_fd = -1;
        }
    }
}

static void reap(struct supervisor *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (child_reap(&s->children[i])) on_end(s, &s->children[i], clock_monotonic_us());
    /* If all workers were stopped, the coordinator would wait for new ones without limit. */
    bool resumable = s->n_workers > 0;
    for (size_t i = 1; i <= s->n_workers; i++)
        resumable &= s->children[i].state == CHILD_ENDED && s->children[i].code == EXIT_RESUMABLE;
    if (resumable && !s->stopping && !s->finished) stop_all(s, clock_monotonic_us());
}

/* The relays end last. */
static void relays_stop(struct supervisor *s)
{
    uint64_t end_us = clock_monotonic_us() + RELAY_END_MS * (uint64_t)1000;
    s->stopping = true;
    s->kill_at_us = end_us;
    for (size_t i = 1 + s->n_workers; i < s->n; i++) child_signal(&s->children[i], SIGTERM);
    for (size_t i = 1 + s->n_workers; i < s->n; i++) {
        while (s->children[i].state == CHILD_RUNNING) {
            if (clock_monotonic_us() >= end_us) signal_all(s, SIGKILL);
            wait_for_events(s);
            reap(s);
        }
    }
}

enum status supervisor_run(struct supervisor *s, struct err *err)
{
    unlink(s->address_path); /* left by an earlier start */
    for (size_t i = 1 + s->n_workers; i < s->n; i++) unlink(s->children[i].ready_path);
    enum status status = child_start(&s->children[0], clock_monotonic_us(), err);
    if (status != STATUS_OK) s->children[0].state = CHILD_ENDED;
    while (any_child_left(s)) {
        wait_for_events(s);
        reap(s);
        enum status due = timers(s, clock_monotonic_us(), err);
        if (due != STATUS_OK && status == STATUS_OK) {
            status = due;
            stop_all(s, clock_monotonic_us());
        }
    }
    relays_stop(s);
    terminal_bar_clear();
    if (s->finished && s->exit_code == EXIT_RESUMABLE)
        s->exit_code = EXIT_DONE; /* the stop came after the end of the run */
    bool by_itself = !s->stop_requested && s->children[0].code == EXIT_RESUMABLE; /* a budget, or another process */
    if (status == STATUS_OK && s->exit_code == EXIT_RESUMABLE)
        print_line("stopped%s: continue with %s",
                   by_itself ? " for the reason that the coordinator's last line gives" : "", s->resume_command);
    return status;
}
