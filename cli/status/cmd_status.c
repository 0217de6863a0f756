/* atoll status: queries a running coordinator, or reads the folder of a stopped or finished run. All three give an
 * object with the keys of common/os/run_status.h. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/status/status_view.h"
#include "cli/verbs.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "common/config/config.h"
#include "common/config/options.h"
#include "common/os/columns.h"
#include "common/os/fileio.h"
#include "common/os/run_status.h"
#include "common/os/run_text.h"
#include "coordinator/run_folder.h"
#include "wire/dial_failure.h"
#include "wire/join_target.h"
#include "wire/transport.h"
#include "worker/session/worker_dir.h"

enum {
    SUMMARY_MAX = 1 << 20,
    ASK_EVERY_US = 500000, /* and two round trips */
    ASK_S = 5,
    ASK_REMOTE_S = 1,
    ADDRESS_MAX = 1024,
    WATCH_US = 1000000,
    MISSED_MAX = 3,
    SOON_US = 2000000,
    SLOW_S = 30, /* a handshake over a long path */
};

struct question {
    const char *run;                /* run folder; NULL: the argument is an address */
    char run_id[2 * WIRE_UUID + 1]; /* id of the run in the folder; "": unknown */
    double timeout_s;               /* NAN: not given */
    const char *dir;                /* a worker's folder: ask with its key; NULL: with the secret of the join line */
    struct transport_worker self;   /* if dir is set */
    bool raw, watch;
    bool soon; /* end early if there is no connection */
};

/* Parses the answer. *out is set on success only. The folder keeps the address of a killed coordinator, and another run
 * may use that address now. */
static enum status take_answer(const struct question *q, const char *address, const char *json, json_t **out,
                               struct err *err)
{
    json_error_t error;
    const char *id, *name;
    json_t *root = json_loads(json, 0, &error);
    enum status status = STATUS_OK;
    if (!json_is_object(root))
        status = err_set(err, STATUS_CORRUPT, "the answer of %s is not valid JSON: %s", address, error.text);
    else if (q->run_id[0] && !json_unpack(root, "{s:s, s:s}", "run_id", &id, "run", &name) && strcmp(id, q->run_id))
        status = err_set(err, STATUS_MISMATCH,
                         "the coordinator of %s is not running: its address %s now serves another run, %s", q->run,
                         address, name);
    if (status == STATUS_OK)
        *out = root;
    else
        json_decref(root);
    return status;
}

/* Sends the question over each connection, and repeatedly until an answer arrives, because messages may be lost. */
static enum status ask(struct transport *t, const char *address, const struct question *q, json_t **out,
                       struct err *err)
{
    uint8_t frame[WIRE_HEADER + 64];
    const struct msg question = {.type = MSG_STATUS};
    size_t question_size, size;
    TRY(msg_encode(&question, frame, sizeof frame, &question_size));
    uint64_t now = clock_monotonic_us(), deadline = now + (uint64_t)(q->timeout_s * 1e6), ask_at = now, begin = now;
    unsigned asked = 0; /* number of the connection */
    for (; now < deadline; now = clock_monotonic_us()) {
        uint64_t peer;
        enum wire_lane lane;
        const uint8_t *data;
        struct msg answer;
        unsigned connected = atomic_load(&t->connected);
        if (q->soon && !connected && atomic_load(&t->failure) && now >= begin + SOON_US) break;
        bool due = connected && (connected != asked || now >= ask_at);
        if (due && t->ops->send(t, 0, WIRE_CONTROL, frame, question_size) == STATUS_OK) {
            ask_at = now + ASK_EVERY_US + 2 * atomic_load(&t->rtt_us);
            asked = connected;
        }
        uint64_t wait = deadline - now < 50000 ? deadline - now : 50000;
        if (t->ops->recv(t, wait, &peer, &lane, &data, &size) != STATUS_OK) continue;
        TRY(msg_decode(&answer, data, size, err));
        if (answer.type == MSG_STATUS_REPLY) return take_answer(q, address, answer.status_reply.json, out, err);
        if (answer.type == MSG_REFUSE)
            return err_set(err, STATUS_REFUSED, "the coordinator at %s refused: %s", address, answer.refuse.text);
    }
    return err_set(err, STATUS_CLOSED,
                   "no answer from %s within %s: check that the coordinator runs, that the firewall opens its port, "
                   "and that this is the whole join line",
                   address, units_duration(q->timeout_s).text);
}

/* Not connected. Without a reason the text in err stays. A coordinator whose greeting arrives gets more time: the path
 * is long. */
static enum status explain_or_ask(struct transport *t, const struct transport_address *address,
                                  const struct question *q, json_t **out, struct err *err)
{
    struct err why = {0};
    struct question patient = *q;
    enum dial_failure seen = (enum dial_failure)atomic_load(&t->failure);
    enum status reason = dial_failure_explain(address, seen, DIAL_EXPLAIN_US, &why);
    if (reason == STATUS_OK && q->soon) {
        patient.soon = false;
        patient.timeout_s = SLOW_S;
        return ask(t, address->endpoint, &patient, out, err);
    }
    if (reason >= 0) return STATUS_CLOSED;
    *err = why;
    if (seen == DIAL_REFUSED_KEY && !q->dir)
        return err_set(err, reason, "%s; on a worker's machine: --dir with the worker's folder", why.msg);
    return reason;
}

static enum status status_of_address(const char *address, const struct question *q, json_t **out, struct err *err)
{
    struct transport_address parsed;
    struct transport *t;
    TRY(transport_address_parse(&parsed, address, err));
    parsed.quiet = true;
    parsed.fail_fast = true;               /* otherwise close waits a minute or more for name resolution */
    if (q->dir) parsed.has_secret = false; /* it would enrol an unknown key */
    TRY(transport_zmq_dial(&t, &parsed, q->dir ? &q->self : NULL, err));
    enum status status = ask(t, parsed.endpoint, q, out, err);
    if (status == STATUS_CLOSED && !atomic_load(&t->connected) && !q->run)
        status = explain_or_ask(t, &parsed, q, out, err);
    t->ops->close(t);
    return status;
}

/* Copies `from`'s value of `key` to the key `to` of the status. */
static void copy(json_t *status, const char *to, json_t *from, const char *key)
{
    json_t *value = json_object_get(from, key);
    if (value) run_status_set(status, to, json_incref(value));
}

/* A status from the files that the folders of stopped and finished runs have. */
static json_t *status_of_files(const struct question *q, const char *state)
{
    static struct config config; /* large */
    static struct config_sources sources;
    char path[FILEIO_PATH_MAX];
    json_t *o = run_status_new(), *round = run_folder_last_event(q->run, "round");
    run_status_set(o, "state", json_string(state));
    if (q->run_id[0]) run_status_set(o, "run_id", json_string(q->run_id));
    config_defaults(&config, &sources);
    if (run_folder_path(path, sizeof path, q->run, "config.yaml", NULL) == STATUS_OK &&
        config_load(&config, &sources, path, NULL) == STATUS_OK) {
        run_status_set(o, "run", json_string(config.run.name));
        run_status_set(o, "method", json_string(config_method_name(config.train.method)));
    }
    json_int_t at = 0, of = 0;
    if (!json_unpack(round, "{s:I, s:I}", "round", &at, "rounds", &of)) run_status_progress(o, at, of);
    static const char *const same[] = {"tokens", "bytes_up", "bytes_down", "other_bytes_up", "other_bytes_down"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) copy(o, same[i], round, same[i]);
    copy(o, "train_loss", round, "loss");
    json_decref(round);
    double gb = 0;
    for (size_t i = 1; i < sizeof same / sizeof *same; i++) gb += json_number_value(json_object_get(o, same[i])) * 1e-9;
    run_status_budget(o, NAN, config.run.max_hours, gb, config.run.max_gb);
    return o;
}

/* Reports the progress of a stopped run from its metrics. *out is set although the status is CLOSED. */
static enum status report_stopped(const struct question *q, const char *program, json_t **out, struct err *err)
{
    char progress[128] = "no round is done";
    double loss = NAN; /* stays NAN if the loss in the metrics is no number */
    json_int_t at, of;
    *out = status_of_files(q, "stopped");
    json_t *eval = run_folder_last_event(q->run, "eval");
    copy(*out, "val_loss", eval, "val_loss");
    if (eval)
        run_status_set(*out, "val_by_one_worker",
                       json_boolean(json_is_true(json_object_get(eval, "val_by_one_worker"))));
    json_decref(eval);
    if (!json_unpack(*out, "{s:I, s:I}", "round", &at, "rounds", &of)) {
        json_unpack(*out, "{s:F}", "train_loss", &loss);
        snprintf(progress, sizeof progress, "%lld of %lld rounds are done, loss %s", (long long)at, (long long)of,
                 run_text_loss(loss).text);
    }
    return err_set(err, STATUS_CLOSED, "the run in %s is stopped, %s: continue it with %s --dir %s", q->run, progress,
                   program, q->run);
}

/* Explains why no coordinator answered for an unfinished run. `coordinator_here`: a live coordinator holds the lock. */
static enum status explain_no_answer(const struct question *q, bool coordinator_here, bool asked, json_t **out,
                                     struct err *err)
{
    if (coordinator_here && asked)
        return err_set(
            err, STATUS_CLOSED,
            "the coordinator of %s did not answer within %s: it is busy, suspended or unreachable; try again", q->run,
            units_duration(q->timeout_s).text);
    if (coordinator_here) return err_set(err, STATUS_CLOSED, "the coordinator of %s is starting: try again", q->run);
    if (run_folder_locked(q->run, "launch.lock"))
        return err_set(err, STATUS_CLOSED, "atoll launch runs in %s, and its coordinator is restarting: try again",
                       q->run);
    if (run_folder_has(q->run, "launch.lock")) return report_stopped(q, "atoll launch", out, err);
    if (run_folder_has(q->run, "lock")) return report_stopped(q, "atoll-coordinator", out, err);
    return err_set(err, STATUS_NOTFOUND,
                   "%s is not a run folder: give the --dir of a run, or a join line tcp://HOST:PORT/SERVERKEY/SECRET",
                   q->run);
}

/* The status of a finished run: its summary, with the number of its workers as "workers_gone". */
static enum status read_summary(const struct question *q, json_t **out, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    void *text;
    size_t size;
    json_error_t error;
    TRY(run_folder_path(path, sizeof path, q->run, "summary.json", err));
    TRY(file_read(path, SUMMARY_MAX, &text, &size, err));
    json_t *summary = json_loadb(text, size, 0, &error);
    mem_free(text);
    if (!json_is_object(summary)) {
        json_decref(summary);
        return err_set(err, STATUS_CORRUPT, "%s is not valid JSON: %s", path, error.text);
    }
    json_t *o = status_of_files(q, "done"), *value, *rounds = json_object_get(summary, "rounds");
    const char *key;
    json_object_foreach(summary, key, value)
    {
        if (strcmp(key, "workers") != 0 && json_object_get(o, key)) copy(o, key, summary, key);
    }
    copy(o, "workers_gone", summary, "workers");
    copy(o, "val_loss", summary, "final_val_loss");
    if (json_is_integer(rounds)) run_status_progress(o, json_integer_value(rounds), json_integer_value(rounds));
    run_status_real(o, "percent", 100);
    run_status_real(o, "eta_s", 0);
    json_decref(summary);
    *out = o;
    return STATUS_OK;
}

/* Reads the address of the coordinator from the run folder. NOTFOUND without an address, CORRUPT if the file holds
 * something else, or the error of reading it. */
static enum status address_of_run(const struct question *q, char *address, size_t cap, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct transport_address parsed;
    TRY(run_folder_path(path, sizeof path, q->run, "address", err));
    enum status status = run_folder_read_line(path, address, cap, err);
    if (status != STATUS_OK && status != STATUS_LIMIT) return status;
    if (status == STATUS_OK && transport_address_parse(&parsed, address, NULL) == STATUS_OK) return STATUS_OK;
    return err_set(err, STATUS_CORRUPT, "%s holds no address: restart the coordinator, which writes it", path);
}

static enum status status_of_run(struct question *q, json_t **out, struct err *err)
{
    char address[ADDRESS_MAX], path[FILEIO_PATH_MAX];
    struct stat st;
    if (stat(q->run, &st))
        return errno == ENOENT ? err_set(err, STATUS_NOTFOUND,
                                         "run folder %s does not exist: give a run folder, or a join line "
                                         "tcp://HOST:PORT/SERVERKEY/SECRET",
                                         q->run)
                               : err_set(err, STATUS_IO, "cannot read %s: %s", q->run, strerror(errno));
    TRY(run_folder_path(path, sizeof path, q->run, "run_id", err));
    if (run_folder_read_line(path, q->run_id, sizeof q->run_id, NULL) != STATUS_OK)
        q->run_id[0] = 0; /* without an id the answer is not checked */
    bool coordinator_here = run_folder_locked(q->run, "lock");
    if (!coordinator_here && run_folder_has(q->run, "summary.json")) return read_summary(q, out, err);
    enum status known = address_of_run(q, address, sizeof address, err), asked = STATUS_CLOSED;
    /* Without a coordinator, the progress of the run is more useful than the error of a damaged address. */
    bool damaged = known == STATUS_CORRUPT && !coordinator_here;
    if (known != STATUS_OK && known != STATUS_NOTFOUND && !damaged) return known;
    log_set_level(LOG_ERROR); /* the final error replaces connection warnings */
    /* Without the lock here the address is probably stale, or the coordinator runs on another machine that shares the
     * folder: wait only briefly. */
    struct question now = *q;
    if (isnan(now.timeout_s)) now.timeout_s = coordinator_here ? ASK_S : ASK_REMOTE_S;
    if (known == STATUS_OK) asked = status_of_address(address, &now, out, err);
    if (asked == STATUS_OK) return asked;
    /* The run may have finished meanwhile. The coordinator writes the summary before it releases the lock, so check the
     * lock first. */
    coordinator_here = run_folder_locked(q->run, "lock");
    if (run_folder_has(q->run, "summary.json")) return read_summary(q, out, err);
    return asked == STATUS_CLOSED ? explain_no_answer(&now, coordinator_here, known == STATUS_OK, out, err)
                                  : asked; /* a refusal has its own reason */
}

/* *out may also be set if the status is CLOSED: the run is stopped. */
static enum status query(struct question *q, const struct join_target *target, json_t **out, struct err *err)
{
    if (target->line[0]) {
        if (isnan(q->timeout_s)) {
            q->soon = true;
            q->timeout_s = ASK_S;
        }
        return status_of_address(target->line, q, out, err);
    }
    q->run = target->run_dir;
    return status_of_run(q, out, err);
}

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
static enum status draw(const struct question *q, const json_t *o, char *last, size_t cap, struct err *err)
{
    char key[256], line[2048];
    if (!q->raw && isatty(STDOUT_FILENO)) return draw_screen(o), STATUS_OK;
    change_key(o, key, sizeof key);
    if (!strcmp(key, last)) return STATUS_OK;
    snprintf(last, cap, "%s", key);
    if (q->raw) return print_json(o, err);
    status_view_line(o, line, sizeof line);
    printf("%s\n", line);
    fflush(stdout);
    return STATUS_OK;
}

/* Draws the status once a second until the run is done or stopped. A coordinator that restarts or is busy may miss
 * answers. */
static enum status watch(struct question *q, const struct join_target *target, struct err *err)
{
    char last[256] = "";
    bool answered = false;
    for (int missed = 0;;) {
        json_t *o = NULL;
        struct err why = {0};
        enum status status = query(q, target, &o, &why);
        bool over = o && (status != STATUS_OK || run_status_is(o, "done"));
        enum status drawn = o ? draw(q, o, last, sizeof last, err) : STATUS_OK;
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
    struct question *q = ctx;
    if (!isnan(q->timeout_s) && !(q->timeout_s > 0 && q->timeout_s < 1e6))
        return err_set(err, STATUS_INVALID, "--timeout is %g: give seconds above 0", q->timeout_s);
    static struct join_target target;
    enum status result = join_target_read(&target, o->n_args ? o->args[0] : NULL, err);
    if (result == STATUS_NOTFOUND)
        return err_set(err, STATUS_INVALID, "too few arguments: give a run folder, a join line, or " JOIN_ENV);
    TRY(result);
    if (q->dir) TRY(worker_dir_read_key(&q->self.key, q->dir, err));
    if (q->watch) return watch(q, &target, err);
    json_t *status = NULL;
    result = query(q, &target, &status, err);
    if (status) {
        struct err why;
        if (!q->raw)
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
    struct question q = {.timeout_s = NAN};
    const struct option_spec specs[] = {
        {"json", OPTION_FLAG, &q.raw, NULL, "print the answer as JSON (keys: docs/run-folder.md)"},
        {"watch", OPTION_FLAG, &q.watch, NULL,
         "repeat until the run ends: each second on a terminal, a line per round otherwise"},
        {"dir", OPTION_TEXT, &q.dir, "DIR",
         "folder of an enrolled worker: ask with its key, not with the secret of the join line"},
        {"timeout", OPTION_REAL, &q.timeout_s, "S",
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
    return options_main(&o, argc, argv, run, &q);
}
