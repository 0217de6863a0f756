#include "cli/supervisor.h"

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

#include "cli/run_folder.h"
#include "cli/terminal.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/interrupt.h"
#include "common/os/std_streams.h"

enum {
    BACKOFF_FIRST_MS = 250,
    BACKOFF_MAX_MS = 10000,
    SHORT_LIFE_MS = 5000, /* a failure so soon after the start counts as one more in a row */
    HOPELESS_FAILURES = 3,
    FOLLOW_MS = 30000, /* workers' time to end after the coordinator did */
    ADDRESS_POLL_MS = 20,
};

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *fmt, ...)
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
    if (std_streams_hang_up()) sigaddset(&set, SIGHUP); /* a signal that is ignored would be read all the same */
    sigaddset(&set, SIGCHLD);
    signal(SIGCHLD, SIG_DFL); /* whoever started us may have ignored it, and children would end without a trace */
    if (sigprocmask(SIG_BLOCK, &set, NULL)) return err_set(err, STATUS_IO, "cannot block signals: %s", strerror(errno));
    setenv(EXIT_PERMANENT_ENV, "1", 1); /* children may tell what will pass from what will not */
    s->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->signal_fd < 0) return err_set(err, STATUS_IO, "cannot read signals: %s", strerror(errno));
    return STATUS_OK;
}

void supervisor_finish(struct supervisor *s)
{
    if (s->signal_fd >= 0) close(s->signal_fd);
    s->signal_fd = -1;
}

/* Child i of all: 0 is the coordinator. */
static struct child *child_at(struct supervisor *s, size_t i)
{
    assert(i <= s->n_workers);
    return i == 0 ? &s->coordinator : &s->workers[i - 1];
}

static void signal_all(struct supervisor *s, int sig)
{
    for (size_t i = 0; i <= s->n_workers; i++) child_signal(child_at(s, i), sig);
}

/* Nothing is restarted from here on; what runs gets SIGTERM now, once, for a second one could kill it while it saves,
 * and SIGKILL when its time is over. */
static void stop_all(struct supervisor *s, uint64_t now_us)
{
    if (s->stopping) return;
    s->kill_at_us = now_us + (uint64_t)(s->stop_timeout_s * 1e6);
    s->stopping = true;
    for (size_t i = 0; i <= s->n_workers; i++)
        if (child_at(s, i)->state == CHILD_BACKOFF || child_at(s, i)->state == CHILD_IDLE)
            child_at(s, i)->state = CHILD_ENDED;
    signal_all(s, SIGTERM);
}

static void exit_code_max(struct supervisor *s, int code)
{
    /* A failure outweighs wrong usage, which outweighs "resumable", which outweighs success. */
    static const int order[] = {EXIT_DONE, EXIT_RESUMABLE, EXIT_USAGE, EXIT_FAILED};
    int mine = 0, other = 3;
    for (int i = 0; i < 4; i++) {
        if (order[i] == s->exit_code) mine = i;
        if (order[i] == code) other = i;
    }
    assert(order[mine] == s->exit_code);
    if (other > mine) s->exit_code = order[other];
}

static void on_signal(struct supervisor *s, int sig, uint64_t now_us)
{
    if (sig == SIGCHLD) return;
    exit_code_max(s, EXIT_RESUMABLE);
    if (s->asked && now_us - s->asked_us < INTERRUPT_SAME_US) return;
    if (s->asked) {
        say("second signal: killing all");
        signal_all(s, SIGKILL);
        return;
    }
    s->asked = true;
    s->asked_us = now_us;
    say("%s: stopping; once more kills", sig == SIGINT ? "interrupted" : "asked to stop");
    stop_all(s, now_us);
}

/* What it said last, unless that was told when it ended before. */
static const char *reason(struct child *child, char *text, size_t cap)
{
    bool told = !strcmp(child->told, child->error);
    snprintf(text, cap, "%s%s", child->error[0] ? "; its error: " : "",
             told && child->error[0] ? "the same" : child->error);
    memcpy(child->told, child->error, sizeof child->told);
    return text;
}

/* Lines of children that stop follow on the screen, so the cause is told at the end. The first one is it. */
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
    if (file_write(s->count_path, text, (size_t)n, &err) != STATUS_OK) say("%s", err.msg);
}

/* A child failed: restart it after a pause, or give up. */
static void on_failure(struct supervisor *s, struct child *child, uint64_t now_us)
{
    char how[64], text[CHILD_ERROR_MAX + 32];
    child_ending(child->code, how, sizeof how);
    assert(!s->stopping && child->state == CHILD_ENDED);
    bool quick = now_us - child->started_us < SHORT_LIFE_MS * (uint64_t)1000;
    child->failures = quick ? child->failures + 1 : 1;
    bool hopeless = child->code < 128 && quick && child->failures >= HOPELESS_FAILURES;
    if (hopeless || s->restarts >= s->max_restarts) {
        if (hopeless)
            say("%s %s right after its start, %u times in a row: giving up", child->name, how, child->failures);
        else
            say("%s %s and all %" PRIu64 " restarts are used up: giving up", child->name, how, s->max_restarts);
        give_up(s, child, how, EXIT_FAILED, now_us);
        return;
    }
    unsigned shift = child->failures - 1 < 6 ? child->failures - 1 : 6;
    uint64_t pause_ms = (uint64_t)BACKOFF_FIRST_MS << shift;
    if (pause_ms > BACKOFF_MAX_MS) pause_ms = BACKOFF_MAX_MS;
    s->restarts++;
    if (child != &s->coordinator) count_worker(s);
    child->state = CHILD_BACKOFF;
    child->restart_at_us = now_us + pause_ms * 1000;
    say("%s %s: starting it again in %.2f s (restart %" PRIu64 " of %" PRIu64 ")%s", child->name, how,
        (double)pause_ms / 1000, s->restarts, s->max_restarts, reason(child, text, sizeof text));
}

/* Starting it again would end the same way. Of several that fail alike only the first has a line of its own. */
static void on_permanent_failure(struct supervisor *s, const struct child *child, uint64_t now_us)
{
    if (!s->stopping) say("%s cannot run, and starting it again would not help: stopping", child->name);
    give_up(s, child, "", child->code == EXIT_USAGE ? EXIT_USAGE : EXIT_FAILED, now_us);
}

static void on_end(struct supervisor *s, struct child *child, uint64_t now_us)
{
    char how[64], text[CHILD_ERROR_MAX + 32];
    bool coordinator = child == &s->coordinator;
    /* Asked to stop, before it could listen to that: nothing is lost, and nobody need know. */
    bool stopped = child->code == EXIT_RESUMABLE || (s->stopping && child_killed_by(child, SIGTERM));
    if (child->code == EXIT_DONE || stopped) {
        if (stopped && !s->finished) exit_code_max(s, EXIT_RESUMABLE);
        if (coordinator && child->code == EXIT_DONE) s->finished = true;
    } else if (child->code == EXIT_USAGE || (child->code == EXIT_PERMANENT && !(s->finished && !coordinator))) {
        on_permanent_failure(s, child, now_us);
    } else if (!s->stopping && !(s->finished && !coordinator)) {
        on_failure(s, child, now_us);
    } else {
        /* Killed while everything stops anyway: worth a line, and a failure unless we did it. */
        say("%s %s%s", child->name, child_ending(child->code, how, sizeof how), reason(child, text, sizeof text));
        if (!s->asked) exit_code_max(s, EXIT_FAILED);
    }
    if (!coordinator || child->state != CHILD_ENDED || s->stopping) return;
    if (s->finished) {
        s->term_at_us = now_us + FOLLOW_MS * (uint64_t)1000;
        for (size_t i = 0; i < s->n_workers; i++)
            if (s->workers[i].state != CHILD_RUNNING) s->workers[i].state = CHILD_ENDED;
    } else {
        stop_all(s, now_us); /* the coordinator was told to stop by somebody else */
    }
}

static enum status workers_start(struct supervisor *s, uint64_t now_us, struct err *err)
{
    for (size_t i = 0; i < s->n_workers; i++) {
        assert(s->workers[i].state == CHILD_IDLE);
        TRY(child_start(&s->workers[i], now_us, err));
    }
    return STATUS_OK;
}

/* Milliseconds until something is due without an event; -1: nothing is. */
static int next_due_ms(struct supervisor *s, uint64_t now_us)
{
    uint64_t due = UINT64_MAX;
    for (size_t i = 0; i <= s->n_workers; i++)
        if (child_at(s, i)->state == CHILD_BACKOFF && child_at(s, i)->restart_at_us < due)
            due = child_at(s, i)->restart_at_us;
    if (s->stopping && s->kill_at_us < due) due = s->kill_at_us;
    if (s->term_at_us && s->term_at_us < due) due = s->term_at_us;
    if (!s->address[0] && !s->stopping && now_us + ADDRESS_POLL_MS * 1000 < due) due = now_us + ADDRESS_POLL_MS * 1000;
    if (due == UINT64_MAX) return -1;
    return due <= now_us ? 0 : (int)((due - now_us) / 1000 + 1);
}

static enum status timers(struct supervisor *s, uint64_t now_us, struct err *err)
{
    if (s->stopping && now_us >= s->kill_at_us) {
        say("not everything stopped within %.0f s: killing it", s->stop_timeout_s);
        signal_all(s, SIGKILL);
        s->kill_at_us = UINT64_MAX;
    }
    if (s->term_at_us && now_us >= s->term_at_us) {
        s->term_at_us = 0;
        say("workers did not end by themselves within %d s after the run: stopping them", FOLLOW_MS / 1000);
        stop_all(s, now_us);
    }
    for (size_t i = 0; i <= s->n_workers; i++) {
        struct child *child = child_at(s, i);
        if (child->state == CHILD_BACKOFF && now_us >= child->restart_at_us) TRY(child_start(child, now_us, err));
    }
    if (s->address[0] || s->stopping || s->coordinator.state != CHILD_RUNNING) return STATUS_OK;
    if (run_folder_read_line(s->address_path, s->address, sizeof s->address, NULL) != STATUS_OK)
        return STATUS_OK; /* not yet */
    return workers_start(s, now_us, err);
}

static bool anything_left(struct supervisor *s)
{
    if (s->coordinator.state != CHILD_ENDED) return true;
    for (size_t i = 0; i < s->n_workers; i++)
        if (s->workers[i].state == CHILD_RUNNING || s->workers[i].state == CHILD_BACKOFF) return true;
    return false;
}

/* Wait for output, signals, ends of children, or until something is due. */
static void wait_for_events(struct supervisor *s, struct pollfd *fds)
{
    size_t n = 0;
    fds[n++] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
    for (size_t i = 0; i <= s->n_workers; i++)
        fds[n++] = (struct pollfd){.fd = child_at(s, i)->pipe_fd, .events = POLLIN}; /* poll skips -1 */
    if (poll(fds, n, next_due_ms(s, clock_monotonic_us())) <= 0) return;
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        on_signal(s, (int)info.ssi_signo, clock_monotonic_us());
    for (size_t i = 0; i <= s->n_workers; i++) {
        struct child *child = child_at(s, i);
        if (!fds[i + 1].revents || child->pipe_fd < 0) continue;
        if (!child_read(child)) { /* it closed both outputs; its end comes as SIGCHLD */
            close(child->pipe_fd);
            child->pipe_fd = -1;
        }
    }
}

static void reap(struct supervisor *s)
{
    for (size_t i = 0; i <= s->n_workers; i++)
        if (child_reap(child_at(s, i))) on_end(s, child_at(s, i), clock_monotonic_us());
    /* A coordinator whose workers were all told to leave would wait for others for ever. */
    bool resumable = s->n_workers > 0;
    for (size_t i = 0; i < s->n_workers; i++)
        resumable &= s->workers[i].state == CHILD_ENDED && s->workers[i].code == EXIT_RESUMABLE;
    if (resumable && !s->stopping && !s->finished) stop_all(s, clock_monotonic_us());
}

enum status supervisor_run(struct supervisor *s, struct err *err)
{
    struct pollfd *fds = mem_alloc(s->n_workers + 2, sizeof *fds);
    if (!fds) return err_set(err, STATUS_NOMEM, "out of memory");
    unlink(s->address_path); /* of an earlier start */
    enum status status = child_start(&s->coordinator, clock_monotonic_us(), err);
    if (status != STATUS_OK) s->coordinator.state = CHILD_ENDED;
    while (anything_left(s)) {
        wait_for_events(s, fds);
        reap(s);
        enum status due = timers(s, clock_monotonic_us(), err);
        if (due != STATUS_OK && status == STATUS_OK) {
            status = due;
            stop_all(s, clock_monotonic_us());
        }
    }
    terminal_bar_clear();
    mem_free(fds);
    if (s->finished && s->exit_code == EXIT_RESUMABLE) s->exit_code = EXIT_DONE; /* who was to stop came too late */
    if (status == STATUS_OK && s->exit_code == EXIT_RESUMABLE) say("stopped: %s continues the run", s->again);
    return status;
}
