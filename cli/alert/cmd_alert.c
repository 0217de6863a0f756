/* atoll alert: follows a run, and runs a command for each alert (cli/alert/alert_follow.h). */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/alert/alert_command.h"
#include "cli/alert/alert_follow.h"
#include "cli/status/status_query.h"
#include "cli/verbs.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/config/options.h"
#include "common/os/interrupt.h"
#include "worker/session/worker_dir.h"

enum { NAP_US = 100000 };

struct arguments {
    char **command; /* ends with NULL; NULL: no -- was given */
    double every_s, limit_s, away_s;
    struct status_question question;
};

/* One line on standard output, whether the command works or not. */
static void print_message(const struct alert_message *m)
{
    char more[48] = "";
    if (m->more) snprintf(more, sizeof more, " (and %u earlier)", m->more);
    log_info("%s %s: %s%s", m->starts ? "alert" : "end of", m->rule, m->text, more);
}

/* Runs the command for all messages that may go now. INTERRUPTED: a signal. */
static enum status send_messages(struct alert_follow *f, const struct arguments *a, struct err *err)
{
    struct alert_message m;
    while (alert_follow_next(f, clock_monotonic_us(), &m)) {
        struct err why = {0};
        print_message(&m);
        enum status status = alert_command_run(a->command, &m, f->run, a->limit_s, interrupt_check, &why);
        if (status == STATUS_INTERRUPTED) return err->code = status;
        alert_follow_sent(f, &m, status == STATUS_OK, clock_monotonic_us());
        if (status != STATUS_OK)
            log_warn("%s: %s%s", m.rule, why.msg, alert_follow_waits(f) ? "; trying again in a minute" : "");
    }
    return STATUS_OK;
}

static enum status nap(double s, struct err *err)
{
    uint64_t end = clock_monotonic_us() + (uint64_t)(s * 1e6);
    do {
        TRY(interrupt_check(err));
        usleep(NAP_US);
    } while (clock_monotonic_us() < end);
    return STATUS_OK;
}

/* Until the run is done. INTERRUPTED: a signal. Other errors: the target holds no such run. */
static enum status follow(struct arguments *a, const struct join_target *target, struct err *err)
{
    static struct alert_follow f; /* large */
    f.away_after_us = (uint64_t)(a->away_s * 1e6);
    for (;;) {
        json_t *o = NULL;
        struct err why = {0};
        enum status status = status_query(&a->question, target, &o, &why);
        /* A coordinator that starts has no address or folder yet; a name service may be away, too. */
        bool waits = status == STATUS_OK || status == STATUS_CLOSED ||
                     (f.answer_us && (status == STATUS_NOTFOUND || status == STATUS_REFUSED));
        if (!waits) {
            *err = why;
            json_decref(o);
            return status;
        }
        if (status == STATUS_REFUSED)
            alert_follow_refused(&f, why.msg, clock_monotonic_us());
        else
            alert_follow_answer(&f, o, why.msg, clock_monotonic_us());
        json_decref(o);
        TRY(send_messages(&f, a, err));
        while (f.done && alert_follow_waits(&f)) { /* the end is told, also after a failure */
            TRY(nap(1, err));
            TRY(send_messages(&f, a, err));
        }
        if (f.done) break;
        TRY(nap(a->every_s, err));
    }
    log_info("the run is done");
    return STATUS_OK;
}

static enum status check_seconds(const char *option, double s, double least, struct err *err)
{
    if (s >= least && s <= 1e6) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "--%s is %g: give seconds, %g or more", option, s, least);
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    static struct join_target target;
    struct arguments *a = ctx;
    struct status_question *q = &a->question;
    TRY(check_seconds("every", a->every_s, 1, err));
    TRY(check_seconds("limit", a->limit_s, 1, err));
    TRY(check_seconds("away", a->away_s, 1, err));
    if (!a->command || !a->command[0])
        return err_set(err, STATUS_INVALID,
                       "the command is missing: give it after --, as in atoll alert RUN -- mail ME");
    TRY(alert_command_check(a->command[0], err));
    enum status status = join_target_read(&target, o->n_args ? o->args[0] : NULL, err);
    if (status == STATUS_NOTFOUND)
        return err_set(err, STATUS_INVALID, "too few arguments: give a run folder, a join line, or " JOIN_ENV);
    TRY(status);
    if (q->dir) TRY(worker_dir_read_key(&q->self.key, q->dir, err));
    q->keep = true;
    interrupt_catch();
    status = follow(a, &target, err);
    status_query_end(q);
    if (status != STATUS_INTERRUPTED) return status;
    log_info("stopped by a signal");
    return STATUS_OK;
}

int cmd_alert(int argc, char **argv)
{
    struct arguments a = {.every_s = 5, .limit_s = 30, .away_s = 60, .question.timeout_s = NAN};
    const struct option_spec specs[] = {
        {"every", OPTION_REAL, &a.every_s, "S", "seconds between two looks at the run (default 5)"},
        {"away", OPTION_REAL, &a.away_s, "S",
         "seconds without a running coordinator before that is an alert (default 60)"},
        {"limit", OPTION_REAL, &a.limit_s, "S", "seconds after which the command is killed (default 30)"},
        {"dir", OPTION_TEXT, &a.question.dir, "DIR",
         "folder of an enrolled worker: ask with its key, not with the secret of the join line"},
    };
    struct options o = {
        .program = "atoll alert",
        .usage = "[RUN|WHERE] [options] -- COMMAND [ARG ...]",
        .about = "Run a command when an alert of a run starts or ends, when its coordinator is away, and when it is\n"
                 "done: at most one a minute for each rule. The command gets the text on standard input, in place of\n"
                 "each ARG {}, and in ATOLL_ALERT_TEXT; see also ATOLL_ALERT_RUN, _RULE, _STATE (start or end) and\n"
                 "_WORKER. RUN is a run folder; WHERE a file with the join line, - for standard input, or the line\n"
                 "itself (default: ATOLL_JOIN). Ends with the run, or after Ctrl-C, with 0.",
        OPTION_SPECS(specs),
        .args_max = 1,
    };
    for (int i = 1; i < argc && !a.command; i++) {
        if (strcmp(argv[i], "--") != 0) continue;
        a.command = argv + i + 1;
        argc = i;
    }
    return options_main(&o, argc, argv, run, &a);
}
