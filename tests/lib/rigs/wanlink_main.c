/* wanlink: a slow link between programs on one machine; see tests/lib/rigs/wanlink.h. Prints the address it listens
 * on, and at the end the totals. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/config/options.h"
#include "tests/lib/rigs/wanlink.h"

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

/* "-": standard input; otherwise a FIFO, created if missing. wanlink holds it open for writing, so that it never
 * ends. */
static int open_control(const char *path, struct err *err)
{
    if (!strcmp(path, "-")) return STDIN_FILENO;
    if (mkfifo(path, 0600) && errno != EEXIST) {
        err_set(err, STATUS_IO, "cannot make the FIFO %s: %s", path, strerror(errno));
        return -1;
    }
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) err_set(err, STATUS_IO, "cannot open the FIFO %s: %s", path, strerror(errno));
    return fd;
}

static enum status relay(struct wanlink_options *o, struct err *err)
{
    struct wanlink *w;
    uint16_t port;
    TRY(wanlink_create(&w, o, &port, err));
    printf("%.*s:%u\n", (int)(strrchr(o->listen, ':') - o->listen), o->listen, port);
    fflush(stdout);
    enum status status = wanlink_run(w, err);
    struct wanlink_totals t = wanlink_totals(w);
    printf("connections %llu, bytes up %llu, bytes down %llu, flipped bits %llu\n", (unsigned long long)t.connections,
           (unsigned long long)t.up, (unsigned long long)t.down, (unsigned long long)t.flips);
    wanlink_destroy(w);
    return status;
}

int main(int argc, char **argv)
{
    struct wanlink_options o = {.listen = "127.0.0.1:0", .queue_ms = 100, .control_fd = -1, .stop = &stop};
    const char *control = NULL;
    const struct option_spec specs[] = {
        {"listen", OPTION_TEXT, &o.listen, "HOST:PORT", "where workers connect; port 0: any free one (127.0.0.1:0)"},
        {"to", OPTION_TEXT, &o.to, "HOST:PORT", "the coordinator"},
        {"rate-mbit", OPTION_REAL, &o.rate_mbit, "MBIT",
         "rate of each direction, shared by all connections (no limit)"},
        {"delay-ms", OPTION_REAL, &o.delay_ms, "MS", "one-way delay (0)"},
        {"jitter-ms", OPTION_REAL, &o.jitter_ms, "MS", "up to so much more delay (0)"},
        {"queue-ms", OPTION_REAL, &o.queue_ms, "MS", "longest wait in the queue before the line (100)"},
        {"flip-bytes", OPTION_REAL, &o.flip_bytes, "BYTES", "flip one bit in so many bytes, on average (none)"},
        {"control", OPTION_TEXT, &control, "FIFO",
         "read commands here, - is standard input: rate, delay, jitter, flip, stall, "
         "go, cut, down, up, quit"},
    };
    struct options options = {
        .program = "wanlink",
        .usage = "--to HOST:PORT [options]",
        .about = "Relay TCP connections over an emulated slow link.",
        .specs = specs,
        .n_specs = sizeof specs / sizeof specs[0],
    };
    struct err err = {0};
    enum status status = options_parse(&options, argc, argv, &err);
    if (status == STATUS_END) return EXIT_DONE;
    if (status == STATUS_OK && !o.to) status = err_set(&err, STATUS_INVALID, "--to HOST:PORT is missing");
    if (status == STATUS_OK && control && (o.control_fd = open_control(control, &err)) < 0) status = err.code;
    if (status != STATUS_OK) return options_fail("wanlink", &err);
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* end with the parent process */
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    log_set_name("wanlink");
    status = relay(&o, &err);
    return status == STATUS_OK ? EXIT_DONE : options_fail("wanlink", &err);
}
