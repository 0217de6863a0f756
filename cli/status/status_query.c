#include "cli/status/status_query.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "common/config/config.h"
#include "common/os/fileio.h"
#include "common/os/interrupt.h"
#include "common/os/run_status.h"
#include "common/os/run_text.h"
#include "coordinator/run_folder.h"
#include "wire/dial_failure.h"

enum {
    SUMMARY_MAX = 1 << 20,
    ASK_EVERY_US = 500000, /* and two round trips */
    ASK_S = 5,
    ASK_REMOTE_S = 1,
    ADDRESS_MAX = 1024,
    SOON_US = 2000000,
    SLOW_S = 30, /* a handshake over a long path */
};

/* Parses the answer. *out is set on success only. The folder keeps the address of a killed coordinator, and another run
 * may use that address now. */
static enum status take_answer(const struct status_question *q, const char *address, const char *json, json_t **out,
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
static enum status ask(struct transport *t, const char *address, const struct status_question *q, json_t **out,
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
        TRY(interrupt_check(err));
        bool due = connected && (connected != asked || now >= ask_at);
        if (due && t->ops->send(t, 0, WIRE_CONTROL, frame, question_size) == STATUS_OK) {
            ask_at = now + ASK_EVERY_US + 2 * atomic_load(&t->rtt_us);
            asked = connected;
        }
        uint64_t wait = deadline - now < 50000 ? deadline - now : 50000;
        if (t->ops->recv(t, wait, &peer, &lane, &data, &size) != STATUS_OK) continue;
        TRY(msg_decode(&answer, data, size, err));
        if (answer.type == MSG_STATUS_REPLY) return take_answer(q, address, answer.status_reply.json, out, err);
        if (answer.type == MSG_REFUSE && answer.refuse.code == REFUSE_SPENT)
            return err_set(err, STATUS_REFUSED, "the run is %s", answer.refuse.text);
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
                                  const struct status_question *q, json_t **out, struct err *err)
{
    struct err why = {0};
    struct status_question patient = *q;
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

/* Dials, or takes the connection that was kept for this address. */
static enum status dial(const char *address, struct status_question *q, struct transport_address *parsed,
                        struct transport **t_p, struct err *err)
{
    TRY(transport_address_parse(parsed, address, err));
    parsed->quiet = true;
    parsed->fail_fast = true;               /* otherwise close waits a minute or more for name resolution */
    if (q->dir) parsed->has_secret = false; /* it would enrol an unknown key */
    *t_p = q->kept;
    if (q->kept && !strcmp(address, q->kept_address)) return STATUS_OK;
    status_query_end(q);
    return transport_zmq_dial(t_p, parsed, q->dir ? &q->self : NULL, err);
}

static enum status status_of_address(const char *address, struct status_question *q, json_t **out, struct err *err)
{
    struct transport_address parsed;
    struct transport *t;
    TRY(dial(address, q, &parsed, &t, err));
    enum status status = ask(t, parsed.endpoint, q, out, err);
    if (status == STATUS_CLOSED && !atomic_load(&t->connected) && !q->run)
        status = explain_or_ask(t, &parsed, q, out, err);
    if (status == STATUS_OK && q->keep) {
        q->kept = t;
        snprintf(q->kept_address, sizeof q->kept_address, "%s", address);
        return STATUS_OK;
    }
    q->kept = NULL;
    t->ops->close(t);
    return status;
}

void status_query_end(struct status_question *q)
{
    if (q->kept) q->kept->ops->close(q->kept);
    q->kept = NULL;
    explicit_bzero(q->kept_address, sizeof q->kept_address); /* it holds a secret */
}

/* Copies `from`'s value of `key` to the key `to` of the status. */
static void copy(json_t *status, const char *to, json_t *from, const char *key)
{
    json_t *value = json_object_get(from, key);
    if (value) run_status_set(status, to, json_incref(value));
}

/* A status from the files that the folders of stopped and finished runs have. */
static json_t *status_of_files(const struct status_question *q, const char *state)
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
static enum status report_stopped(const struct status_question *q, const char *program, json_t **out, struct err *err)
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
static enum status explain_no_answer(const struct status_question *q, bool coordinator_here, bool asked, json_t **out,
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
static enum status read_summary(const struct status_question *q, json_t **out, struct err *err)
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
static enum status address_of_run(const struct status_question *q, char *address, size_t cap, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct transport_address parsed;
    TRY(run_folder_path(path, sizeof path, q->run, "address", err));
    enum status status = run_folder_read_line(path, address, cap, err);
    if (status != STATUS_OK && status != STATUS_LIMIT) return status;
    if (status == STATUS_OK && transport_address_parse(&parsed, address, NULL) == STATUS_OK) return STATUS_OK;
    return err_set(err, STATUS_CORRUPT, "%s holds no address: restart the coordinator, which writes it", path);
}

static enum status status_of_run(struct status_question *q, json_t **out, struct err *err)
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
    /* Without the lock here the address is probably stale, or the coordinator runs on another machine that shares the
     * folder: wait only briefly. */
    double given_s = q->timeout_s;
    if (isnan(given_s)) q->timeout_s = coordinator_here ? ASK_S : ASK_REMOTE_S;
    struct status_question now = *q;
    if (known == STATUS_OK) asked = status_of_address(address, q, out, err);
    q->timeout_s = given_s;
    if (asked == STATUS_OK) return asked;
    /* The run may have finished meanwhile. The coordinator writes the summary before it releases the lock, so check the
     * lock first. */
    coordinator_here = run_folder_locked(q->run, "lock");
    if (run_folder_has(q->run, "summary.json")) return read_summary(q, out, err);
    return asked == STATUS_CLOSED ? explain_no_answer(&now, coordinator_here, known == STATUS_OK, out, err)
                                  : asked; /* a refusal has its own reason */
}

enum status status_query(struct status_question *q, const struct join_target *target, json_t **out, struct err *err)
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
