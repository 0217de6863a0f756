/* atoll status: queries a running coordinator, or prints the summary of a finished run. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/json_table.h"
#include "cli/run_folder.h"
#include "cli/verbs.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "wire/join_target.h"
#include "wire/transport.h"

enum { SUMMARY_MAX = 1 << 20, ASK_EVERY_US = 500000, ASK_S = 5, ASK_REMOTE_S = 1, ADDRESS_MAX = 1024 };

struct question {
    const char *run;                /* run folder; NULL: the argument is an address */
    char run_id[2 * WIRE_UUID + 1]; /* id of the run in the folder; "": unknown */
    double timeout_s;               /* NAN: not given */
    bool raw;
};

static enum status show(const char *json, const char *where, bool raw, struct err *err)
{
    if (!raw) return json_table_print(json, where, stdout, err);
    json_error_t error;
    json_t *root = json_loads(json, 0, &error);
    if (!root) return err_set(err, STATUS_CORRUPT, "%s is not valid JSON: %s", where, error.text);
    json_decref(root);
    size_t n = strlen(json);
    printf("%s%s", json, n && json[n - 1] == '\n' ? "" : "\n");
    return STATUS_OK;
}

/* The folder keeps the address of a killed coordinator, and another run may use that address now. */
static enum status check_run(const struct question *q, const char *address, const char *json, struct err *err)
{
    const char *id, *name;
    json_t *root = json_loads(json, 0, NULL);
    enum status status = STATUS_OK;
    if (q->run_id[0] && !json_unpack(root, "{s:s, s:s}", "run_id", &id, "run", &name) && strcmp(id, q->run_id) != 0)
        status = err_set(err, STATUS_MISMATCH,
                         "the coordinator of %s is not running: its address %s now serves another run, %s", q->run,
                         address, name);
    json_decref(root);
    return status;
}

/* Sends the question repeatedly until an answer arrives, because messages may be lost. */
static enum status ask(struct transport *t, const char *address, const struct question *q, struct err *err)
{
    uint8_t frame[WIRE_HEADER + 64];
    const struct msg question = {.type = MSG_STATUS};
    size_t question_size, size;
    TRY(msg_encode(&question, frame, sizeof frame, &question_size));
    uint64_t now = clock_monotonic_us(), deadline = now + (uint64_t)(q->timeout_s * 1e6), ask_at = now;
    for (; now < deadline; now = clock_monotonic_us()) {
        uint64_t peer;
        enum wire_lane lane;
        const uint8_t *data;
        struct msg answer;
        if (now >= ask_at && t->ops->send(t, 0, WIRE_CONTROL, frame, question_size) == STATUS_OK)
            ask_at = now + ASK_EVERY_US;
        uint64_t wait = deadline - now < 50000 ? deadline - now : 50000;
        if (t->ops->recv(t, wait, &peer, &lane, &data, &size) != STATUS_OK) continue;
        TRY(msg_decode(&answer, data, size, err));
        if (answer.type == MSG_STATUS_REPLY) {
            TRY(check_run(q, address, answer.status_reply.json, err));
            return show(answer.status_reply.json, address, q->raw, err);
        }
        if (answer.type == MSG_REFUSE)
            return err_set(err, STATUS_REFUSED, "the coordinator at %s refused: %s", address, answer.refuse.text);
    }
    return err_set(err, STATUS_CLOSED,
                   "no answer from %s within %g s: check that the coordinator runs, that the firewall opens its port, "
                   "and that this is the whole join line",
                   address, q->timeout_s);
}

static enum status status_of_address(const char *address, const struct question *q, struct err *err)
{
    struct transport_address parsed;
    struct transport *t;
    TRY(transport_address_parse(&parsed, address, err));
    parsed.fail_fast = true; /* otherwise close waits a minute or more for name resolution */
    TRY(transport_zmq_dial(&t, &parsed, NULL, err));
    enum status status = ask(t, parsed.endpoint, q, err);
    t->ops->close(t);
    return status;
}

static bool has_file(const char *run, const char *file)
{
    char path[FILEIO_PATH_MAX];
    return run_folder_path(path, sizeof path, run, file, NULL) == STATUS_OK && file_exists(path);
}

/* Returns true if a live coordinator or atoll launch holds the lock. */
static bool is_locked(const char *run, const char *lock)
{
    char path[FILEIO_PATH_MAX];
    return run_folder_path(path, sizeof path, run, lock, NULL) == STATUS_OK && file_is_locked(path);
}

/* Reports the progress of a stopped run from its metrics. */
static enum status report_stopped(const struct question *q, const char *program, struct err *err)
{
    json_t *round = run_folder_last_round(q->run);
    char progress[128] = "no round is done";
    double loss = NAN; /* stays NAN if the loss in the metrics is no number */
    json_int_t at, of;
    if (!json_unpack(round, "{s:I, s:I, s?:F}", "round", &at, "rounds", &of, "loss", &loss))
        snprintf(progress, sizeof progress, "%lld of %lld rounds are done, loss %.4f", (long long)at, (long long)of,
                 loss);
    if (q->raw && round) {
        json_object_del(round, "event");
        json_object_set_new(round, "state", json_string("stopped"));
        if (!json_dumpf(round, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17))) putchar('\n');
    }
    json_decref(round);
    return err_set(err, STATUS_CLOSED, "the run in %s is stopped, %s: continue it with %s --dir %s", q->run, progress,
                   program, q->run);
}

/* Explains why no coordinator answered for an unfinished run. `coordinator_here`: a live coordinator holds the lock. */
static enum status explain_no_answer(const struct question *q, bool coordinator_here, bool asked, struct err *err)
{
    if (coordinator_here && asked)
        return err_set(
            err, STATUS_CLOSED,
            "the coordinator of %s did not answer within %g s: it is busy, suspended or unreachable; try again", q->run,
            q->timeout_s);
    if (coordinator_here) return err_set(err, STATUS_CLOSED, "the coordinator of %s is starting: try again", q->run);
    if (is_locked(q->run, "launch.lock"))
        return err_set(err, STATUS_CLOSED, "atoll launch runs in %s, and its coordinator is restarting: try again",
                       q->run);
    if (has_file(q->run, "launch.lock")) return report_stopped(q, "atoll launch", err);
    if (has_file(q->run, "lock")) return report_stopped(q, "atoll-coordinator", err);
    return err_set(err, STATUS_NOTFOUND,
                   "%s is not a run folder: give the --dir of a run, or a join line tcp://HOST:PORT/SERVERKEY/SECRET",
                   q->run);
}

static enum status show_summary(const char *path, bool raw, struct err *err)
{
    void *summary;
    size_t size;
    TRY(file_read(path, SUMMARY_MAX, &summary, &size, err));
    enum status status = show(summary, path, raw, err);
    mem_free(summary);
    return status;
}

/* Reads the address of the coordinator from the run folder. NOTFOUND without an address, CORRUPT if the file holds
 * something else, or the error of reading it. */
static enum status address_of_run(struct question *q, char *address, size_t cap, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct transport_address parsed;
    TRY(run_folder_path(path, sizeof path, q->run, "run_id", err));
    if (run_folder_read_line(path, q->run_id, sizeof q->run_id, NULL) != STATUS_OK)
        q->run_id[0] = 0; /* without an id the answer is not checked */
    TRY(run_folder_path(path, sizeof path, q->run, "address", err));
    enum status status = run_folder_read_line(path, address, cap, err);
    if (status != STATUS_OK && status != STATUS_LIMIT) return status;
    if (status == STATUS_OK && transport_address_parse(&parsed, address, NULL) == STATUS_OK) return STATUS_OK;
    return err_set(err, STATUS_CORRUPT, "%s holds no address: restart the coordinator, which writes it", path);
}

static enum status status_of_run(struct question *q, struct err *err)
{
    char address[ADDRESS_MAX], path[FILEIO_PATH_MAX];
    struct stat st;
    if (stat(q->run, &st))
        return errno == ENOENT ? err_set(err, STATUS_NOTFOUND,
                                         "run folder %s does not exist: give a run folder, or a join line "
                                         "tcp://HOST:PORT/SERVERKEY/SECRET",
                                         q->run)
                               : err_set(err, STATUS_IO, "cannot read %s: %s", q->run, strerror(errno));
    TRY(run_folder_path(path, sizeof path, q->run, "summary.json", err));
    bool coordinator_here = is_locked(q->run, "lock");
    if (!coordinator_here && file_exists(path)) return show_summary(path, q->raw, err);
    enum status known = address_of_run(q, address, sizeof address, err), asked = STATUS_CLOSED;
    /* Without a coordinator, the progress of the run is more useful than the error of a damaged address. */
    bool damaged = known == STATUS_CORRUPT && !coordinator_here;
    if (known != STATUS_OK && known != STATUS_NOTFOUND && !damaged) return known;
    log_set_level(LOG_ERROR); /* the final error replaces connection warnings */
    /* Without the lock here the address is probably stale, or the coordinator runs on another machine that shares the
     * folder: wait only briefly. */
    if (isnan(q->timeout_s)) q->timeout_s = coordinator_here ? ASK_S : ASK_REMOTE_S;
    if (known == STATUS_OK) asked = status_of_address(address, q, err);
    if (asked == STATUS_OK) return asked;
    /* The run may have finished meanwhile. The coordinator writes the summary before it releases the lock, so check the
     * lock first. */
    coordinator_here = is_locked(q->run, "lock");
    if (file_exists(path)) return show_summary(path, q->raw, err);
    return asked == STATUS_CLOSED ? explain_no_answer(q, coordinator_here, known == STATUS_OK, err)
                                  : asked; /* a refusal has its own reason */
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct question *q = ctx;
    if (!isnan(q->timeout_s) && !(q->timeout_s > 0 && q->timeout_s < 1e6))
        return err_set(err, STATUS_INVALID, "--timeout is %g: give seconds above 0", q->timeout_s);
    static struct join_target target;
    enum status status = join_target_read(&target, o->n_args ? o->args[0] : NULL, err);
    if (status == STATUS_NOTFOUND)
        return err_set(err, STATUS_INVALID, "too few arguments: give a run folder, a join line, or " JOIN_ENV);
    TRY(status);
    if (target.line[0]) {
        if (isnan(q->timeout_s)) q->timeout_s = ASK_S;
        return status_of_address(target.line, q, err);
    }
    q->run = target.run_dir;
    return status_of_run(q, err);
}

int cmd_status(int argc, char **argv)
{
    struct question q = {.timeout_s = NAN};
    const struct option_spec specs[] = {
        {"json", OPTION_FLAG, &q.raw, NULL, "print the answer as JSON"},
        {"timeout", OPTION_REAL, &q.timeout_s, "S",
         "seconds to wait for an answer (default 5; 1 if RUN has no coordinator on this machine)"},
    };
    struct options o = {
        .program = "atoll status",
        .usage = "[RUN|WHERE] [options]",
        .about =
            "Show the state of a run: query its coordinator, or print the summary of a finished run. WHERE is a file\n"
            "with the join line, - for standard input, or the line itself (default: ATOLL_JOIN).",
        .specs = specs,
        .n_specs = sizeof specs / sizeof *specs,
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, &q);
}
