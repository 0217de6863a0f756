/* atoll status: shows what cli/status/status_query.h answers. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/status/status_query.h"
#include "cli/status/status_view.h"
#include "cli/verbs.h"
#include "common/base/log.h"
#include "common/config/options.h"
#include "common/os/columns.h"
#include "common/os/run_status.h"
#include "wire/join_target.h"
#include "worker/session/worker_dir.h"

enum { WATCH_US = 1000000, MISSED_MAX = 3 };

struct view {
    struct status_question question;
    bool raw, watch;
};

/* --- output ------------------------------------------------------------------------------------------------------- */

static enum status print_json(const json_t *status, struct err *err)
{
    size_t plain = isatty(STDOUT_FILENO) ? JSON_ENSURE_ASCII : 0; /* a terminal obeys U+0080..U+009F */
    char *text = json_dumps(status, JSON_COMPACT | JSON_REAL_PRECISION(17) | plain);
    if (!text) return err_set(err, STATUS_NOMEM, "no memory for the status");
    printf("%s\n", text);
    free(text);
    fflush(stdout);
    return STATUS_OK;
}

/* Draws the status over the one before: the terminal is not empty in between. */
static void draw_screen(const json_t *status)
{
    fputs("\033[H", stdout);
    status_view_print(status, columns_of(STDOUT_FILENO), "\033[K\n", stdout);
    fputs("\033[J", stdout);
    fflush(stdout);
}

/* What makes two statuses different for --watch into a pipe. */
static void change_key(const json_t *o, char *key, size_t cap)
{
    const json_t *round = json_object_get(o, "round"), *val = json_object_get(o, "val_loss");
    const char *state = json_string_value(json_object_get(o, "state"));
    snprintf(key, cap, "%s %lld %.17g", state ? state : "?", json_is_integer(round) ? json_integer_value(round) : -1LL,
             json_is_number(val) ? json_number_value(val) : NAN);
}

/* Draws a changed status. On a terminal every status is drawn, in place of the one before. */
static enum status draw(const struct view *v, const json_t *o, char *last, size_t cap, struct err *err)
{
    char key[256], line[2048];
    if (!v->raw && isatty(STDOUT_FILENO)) return draw_screen(o), STATUS_OK;
    change_key(o, key, sizeof key);
    if (!strcmp(key, last)) return STATUS_OK;
    snprintf(last, cap, "%s", key);
    if (v->raw) return print_json(o, err);
    status_view_line(o, line, sizeof line);
    printf("%s\n", line);
    fflush(stdout);
    return STATUS_OK;
}

/* Draws the status once a second until the run is done or stopped. A coordinator that restarts or is busy may miss
 * answers. */
static enum status watch(struct view *v, const struct join_target *target, struct err *err)
{
    char last[256] = "";
    bool answered = false;
    for (int missed = 0;;) {
        json_t *o = NULL;
        struct err why = {0};
        enum status status = status_query(&v->question, target, &o, &why);
        bool over = o && (status != STATUS_OK || run_status_is(o, "done"));
        enum status drawn = o ? draw(v, o, last, sizeof last, err) : STATUS_OK;
        json_decref(o);
        if (drawn != STATUS_OK) return drawn;
        missed = o ? 0 : missed + 1;
        if (over || (status != STATUS_OK && status != STATUS_CLOSED) ||
            (missed && (!answered || missed > MISSED_MAX))) {
            *err = why;
            return status;
        }
        answered = true;
        usleep(WATCH_US);
    }
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct view *v = ctx;
    struct status_question *q = &v->question;
    if (!isnan(q->timeout_s) && !(q->timeout_s > 0 && q->timeout_s < 1e6))
        return err_set(err, STATUS_INVALID, "--timeout is %g: give seconds above 0", q->timeout_s);
    static struct join_target target;
    enum status result = join_target_read(&target, o->n_args ? o->args[0] : NULL, err);
    if (result == STATUS_NOTFOUND)
        return err_set(err, STATUS_INVALID, "too few arguments: give a run folder, a join line, or " JOIN_ENV);
    TRY(result);
    if (target.run_dir[0]) log_set_level(LOG_ERROR); /* the final error replaces connection warnings */
    if (q->dir) TRY(worker_dir_read_key(&q->self.key, q->dir, err));
    if (v->watch) return watch(v, &target, err);
    json_t *status = NULL;
    result = status_query(q, &target, &status, err);
    if (status) {
        struct err why;
        if (!v->raw)
            status_view_print(status, columns_of(STDOUT_FILENO), "\n", stdout);
        else if (print_json(status, &why) != STATUS_OK)
            *err = why, result = why.code;
        fflush(stdout);
    }
    json_decref(status);
    return result;
}

int cmd_status(int argc, char **argv)
{
    struct view v = {.question.timeout_s = NAN};
    const struct option_spec specs[] = {
        {"json", OPTION_FLAG, &v.raw, NULL, "print the answer as JSON (keys: docs/run-folder.md)"},
        {"watch", OPTION_FLAG, &v.watch, NULL,
         "repeat until the run ends: each second on a terminal, a line per round otherwise"},
        {"dir", OPTION_TEXT, &v.question.dir, "DIR",
         "folder of an enrolled worker: ask with its key, not with the secret of the join line"},
        {"timeout", OPTION_REAL, &v.question.timeout_s, "S",
         "seconds to wait for an answer (default 5; 1 if RUN has no coordinator on this machine)"},
    };
    struct options o = {
        .program = "atoll status",
        .usage = "[RUN|WHERE] [options]",
        .about =
            "Show the state of a run: query its coordinator, or read the folder of a stopped or finished run. WHERE\n"
            "is a file with the join line, - for standard input, or the line itself (default: ATOLL_JOIN).",
        OPTION_SPECS(specs),
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, &v);
}
