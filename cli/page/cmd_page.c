/* atoll page: a web page about a run, for browsers and Prometheus. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/page/page_access.h"
#include "cli/page/page_listen.h"
#include "cli/page/page_server.h"
#include "cli/page/page_source.h"
#include "cli/verbs.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/interrupt.h"
#include "coordinator/run_folder.h"
#include "worker/session/worker_dir.h"

#define LISTEN_DEFAULT "127.0.0.1:9600"
static const double interval_default_s = 2, interval_min_s = 0.2, interval_max_s = 3600;

enum { SWEEP_US = 1000000 };

struct page {
    const char *listen, *token, *dir;
    double interval_s;
    struct page_listener listener;
    struct page_access access;
    struct page_source source;
    struct page_hub hub;
    struct page_server server;
};

/* Which file holds the token: the given one, or on an address that others reach one in the run folder. */
static enum status read_token(struct page *p, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    const char *run = p->source.target.run_dir;
    if (!p->token && p->listener.loopback) return STATUS_OK;
    if (!p->token && !run[0])
        return err_set(err, STATUS_INVALID,
                       "others can reach %s: give --token FILE, which holds the token that viewers need; a missing "
                       "FILE is created with one",
                       p->listen);
    if (!p->token && !run_folder_has(run, "."))
        return err_set(err, STATUS_INVALID,
                       "others can reach %s, and %s, which would hold the page-token, does not exist yet: give "
                       "--token FILE",
                       p->listen, run);
    if (!p->token) TRY(run_folder_path(path, sizeof path, run, "page-token", err));
    return page_access_read(&p->access, p->token ? p->token : path, err);
}

/* The token is shown on a terminal only, like a join line. */
static void tell_address(const struct page *p)
{
    const char *a = p->listener.address;
    if (!p->access.token[0])
        log_info("serving %s/", a);
    else if (isatty(STDERR_FILENO))
        log_info("serving %s/?token=%s", a, p->access.token);
    else
        log_info("serving %s/?token=TOKEN; TOKEN is the first line of %s", a,
                 p->token ? p->token : "page-token in the run folder");
}

static void wait_until(uint64_t until_us, struct page *p)
{
    for (uint64_t now = clock_monotonic_us(); now < until_us && interrupt_check(NULL) == STATUS_OK;
         now = clock_monotonic_us()) {
        uint64_t us = until_us - now < SWEEP_US ? until_us - now : SWEEP_US;
        struct timespec pause = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
        nanosleep(&pause, NULL); /* a signal ends it early */
        page_server_sweep(&p->server);
    }
}

/* Serves until a signal. */
static enum status serve(struct page *p, struct err *err)
{
    page_hub_init(&p->hub);
    snprintf(p->hub.run.reason, sizeof p->hub.run.reason, "the page has just started");
    enum status status = page_server_start(&p->server, p->listener.fd, &p->access, &p->hub, err);
    if (status != STATUS_OK) {
        close(p->listener.fd);
        page_hub_finish(&p->hub);
        return status;
    }
    tell_address(p);
    page_source_init(&p->source, &p->hub);
    while (interrupt_check(NULL) == STATUS_OK) {
        uint64_t next_us = clock_monotonic_us() + (uint64_t)(p->interval_s * 1e6);
        page_source_poll(&p->source);
        wait_until(next_us, p);
        page_server_sweep(&p->server);
    }
    page_server_stop(&p->server);
    page_source_finish(&p->source);
    page_hub_finish(&p->hub);
    return STATUS_OK;
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct page *p = ctx;
    struct status_question *q = &p->source.question;
    if (!(p->interval_s >= interval_min_s && p->interval_s <= interval_max_s))
        return err_set(err, STATUS_INVALID, "--interval is %g: give %g to %g seconds", p->interval_s, interval_min_s,
                       interval_max_s);
    enum status status = join_target_read(&p->source.target, o->n_args ? o->args[0] : NULL, err);
    if (status == STATUS_NOTFOUND)
        return err_set(err, STATUS_INVALID, "too few arguments: give a run folder, a join line, or " JOIN_ENV);
    TRY(status);
    q->timeout_s = NAN;
    q->dir = p->dir;
    if (q->dir) TRY(worker_dir_read_key(&q->self.key, q->dir, err));
    TRY(page_listen(&p->listener, p->listen, err));
    snprintf(p->access.host, sizeof p->access.host, "%s", p->listener.host);
    snprintf(p->access.cookie, sizeof p->access.cookie, "atoll_page_%u", p->listener.port);
    status = read_token(p, err);
    if (status != STATUS_OK) {
        close(p->listener.fd);
        return status;
    }
    interrupt_catch();
    return serve(p, err);
}

int cmd_page(int argc, char **argv)
{
    static struct page p = {.listen = LISTEN_DEFAULT}; /* large */
    p.interval_s = interval_default_s;
    const struct option_spec specs[] = {
        {"listen", OPTION_TEXT, &p.listen, "HOST:PORT", "where to serve (default " LISTEN_DEFAULT "); port 0: any"},
        {"token", OPTION_TEXT, &p.token, "FILE",
         "file with the token that viewers need; a missing one is created. Without it, an address that other machines "
         "reach takes RUN/page-token"},
        {"interval", OPTION_REAL, &p.interval_s, "S",
         "seconds between two questions to the coordinator, for all viewers together (default 2)"},
        {"dir", OPTION_TEXT, &p.dir, "DIR",
         "folder of an enrolled worker: ask with its key, not with the secret of the join line"},
    };
    struct options o = {
        .program = "atoll page",
        .usage = "[RUN|WHERE] [options]",
        .about = "Serve a web page about a run: curves, workers, what it waits for; also /metrics for Prometheus,\n"
                 "/healthz and /status.json. WHERE is a file with the join line, - for standard input, or the line\n"
                 "itself (default: ATOLL_JOIN). It waits for a run that does not exist yet, and ends on Ctrl-C.",
        OPTION_SPECS(specs),
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, &p);
}
