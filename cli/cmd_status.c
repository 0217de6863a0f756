/* atoll status: asks a running coordinator, or reads the summary of a run that is over. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "cli/json_table.h"
#include "cli/run_folder.h"
#include "cli/verbs.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "wire/transport.h"

enum { SUMMARY_MAX = 1 << 20, ASK_EVERY_US = 500000, ASK_S = 5, ASK_AFAR_S = 1, ADDRESS_MAX = 1024 };

struct question {
    const char *run;                /* the folder asked about; NULL: an address */
    char run_id[2 * WIRE_UUID + 1]; /* of the run it holds; "": not known */
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

/* A folder keeps the address of a coordinator that was killed, and another run may have that by now. */
static enum status check_run(const struct question *q, const char *address, const char *json, struct err *err)
{
    const char *id, *name;
    json_t *root = json_loads(json, 0, NULL);
    enum status status = STATUS_OK;
    if (q->run_id[0] && !json_unpack(root, "{s:s, s:s}", "run_id", &id, "run", &name) && strcmp(id, q->run_id) != 0)
        status = err_set(err, STATUS_MISMATCH,
                         "the coordinator of %s is not running: its address %s now serves "
                         "another run, %s",
                         q->run, address, name);
    json_decref(root);
    return status;
}

/* One answer, asked for again and again until it comes: any message may be lost. */
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
                   "no answer from %s within %g s: is the coordinator running there, its port open "
                   "in the firewall, and is this its whole join line?",
                   address, q->timeout_s);
}

static enum status status_of_address(const char *address, const struct question *q, struct err *err)
{
    struct transport_address parsed;
    struct transport *t;
    uint8_t uuid[WIRE_UUID];
    TRY(transport_address_parse(&parsed, address, err));
    parsed.fail_fast = true; /* else closing waits for the name service, for a minute and longer */
    if (getrandom(uuid, sizeof uuid, 0) != sizeof uuid) return err_set(err, STATUS_IO, "no random numbers to be had");
    TRY(transport_zmq_dial(&t, &parsed, uuid, err));
    enum status status = ask(t, parsed.endpoint, q, err);
    t->ops->close(t);
    return status;
}

static bool holds(const char *run, const char *file)
{
    char path[FILEIO_PATH_MAX];
    return run_folder_path(path, sizeof path, run, file, NULL) == STATUS_OK && file_exists(path);
}

/* A process that is there has it: of the coordinator, or of atoll launch. */
static bool held(const char *run, const char *lock)
{
    char path[FILEIO_PATH_MAX];
    return run_folder_path(path, sizeof path, run, lock, NULL) == STATUS_OK && file_is_locked(path);
}

/* How far a run came that nobody serves, as its metrics have it. */
static enum status tell_stopped(const struct question *q, const char *program, struct err *err)
{
    json_t *round = run_folder_last_round(q->run);
    char far[128] = "no round of it is done";
    double loss = NAN; /* a loss that is no number is left out */
    json_int_t at, of;
    if (!json_unpack(round, "{s:I, s:I, s?:F}", "round", &at, "rounds", &of, "loss", &loss))
        snprintf(far, sizeof far, "%lld of %lld rounds are done, loss %.4f", (long long)at, (long long)of, loss);
    if (q->raw && round) {
        json_object_del(round, "event");
        json_object_set_new(round, "state", json_string("stopped"));
        if (!json_dumpf(round, stdout, JSON_COMPACT | JSON_REAL_PRECISION(17))) putchar('\n');
    }
    json_decref(round);
    return err_set(err, STATUS_CLOSED,
                   "the run in %s is neither running nor finished, %s: %s with --dir %s continues "
                   "it",
                   q->run, far, program, q->run);
}

/* No coordinator answered, and the run is not over. `here`: one has it. */
static enum status why_nothing(const struct question *q, bool here, bool asked, struct err *err)
{
    if (here && asked)
        return err_set(err, STATUS_CLOSED,
                       "a coordinator serves %s and does not answer within %g s: it is busy, "
                       "stopped, or not reached from here; ask again",
                       q->run, q->timeout_s);
    if (here) return err_set(err, STATUS_CLOSED, "a coordinator of %s is starting: ask again", q->run);
    if (held(q->run, "launch.lock"))
        return err_set(err, STATUS_CLOSED,
                       "atoll launch is at work in %s, and its coordinator is not there right now: "
                       "ask again",
                       q->run);
    if (holds(q->run, "launch.lock")) return tell_stopped(q, "atoll launch", err);
    if (holds(q->run, "lock")) return tell_stopped(q, "atoll-coordinator", err);
    return err_set(err, STATUS_NOTFOUND,
                   "%s holds no run: give the folder that was a run's --dir, or an address "
                   "tcp://HOST:PORT",
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

/* The address that the folder has for its coordinator. NOTFOUND: none; CORRUPT: something else is in its file; another
 * error when that cannot be read. */
static enum status address_of_run(struct question *q, char *address, size_t cap, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct transport_address parsed;
    TRY(run_folder_path(path, sizeof path, q->run, "run_id", err));
    if (run_folder_read_line(path, q->run_id, sizeof q->run_id, NULL) != STATUS_OK)
        q->run_id[0] = 0; /* of an older version */
    TRY(run_folder_path(path, sizeof path, q->run, "address", err));
    enum status status = run_folder_read_line(path, address, cap, err);
    if (status != STATUS_OK && status != STATUS_LIMIT) return status;
    if (status == STATUS_OK && transport_address_parse(&parsed, address, NULL) == STATUS_OK) return STATUS_OK;
    return err_set(err, STATUS_CORRUPT, "%s holds no address: start the coordinator again, which writes it", path);
}

static enum status status_of_run(struct question *q, struct err *err)
{
    char address[ADDRESS_MAX], path[FILEIO_PATH_MAX];
    struct stat st;
    if (stat(q->run, &st))
        return errno == ENOENT ? err_set(err, STATUS_NOTFOUND,
                                         "there is no run folder %s: give one, or an address "
                                         "tcp://HOST:PORT",
                                         q->run)
                               : err_set(err, STATUS_IO, "cannot look at %s: %s", q->run, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return err_set(err, STATUS_NOTFOUND, "%s is a file: give a run folder, or an address tcp://HOST:PORT", q->run);
    TRY(run_folder_path(path, sizeof path, q->run, "summary.json", err));
    bool here = held(q->run, "lock");
    if (!here && file_exists(path)) return show_summary(path, q->raw, err);
    enum status known = address_of_run(q, address, sizeof address, err), asked = STATUS_CLOSED;
    bool damaged = known == STATUS_CORRUPT && !here; /* of a run that is not served: how far that came says more */
    if (known != STATUS_OK && known != STATUS_NOTFOUND && !damaged) return known;
    log_set_level(LOG_ERROR); /* why nobody answers is said in the end */
    /* Not served, it is most likely an old address, if not one of a machine that shares the folder. */
    if (isnan(q->timeout_s)) q->timeout_s = here ? ASK_S : ASK_AFAR_S;
    if (known == STATUS_OK) asked = status_of_address(address, q, err);
    if (asked == STATUS_OK) return asked;
    /* It may have ended meanwhile, and lets go of its lock when the summary is there: looked for in this order. */
    here = held(q->run, "lock");
    if (file_exists(path)) return show_summary(path, q->raw, err);
    return asked == STATUS_CLOSED ? why_nothing(q, here, known == STATUS_OK, err) : asked; /* a refusal says why */
}

static enum status run(struct options *o, void *ctx, struct err *err)
{
    struct question *q = ctx;
    if (!isnan(q->timeout_s) && !(q->timeout_s > 0 && q->timeout_s < 1e6))
        return err_set(err, STATUS_INVALID, "--timeout is %g: give seconds above 0", q->timeout_s);
    if (strstr(o->args[0], "://")) {
        if (isnan(q->timeout_s)) q->timeout_s = ASK_S;
        return status_of_address(o->args[0], q, err);
    }
    q->run = o->args[0];
    return status_of_run(q, err);
}

int cmd_status(int argc, char **argv)
{
    struct question q = {.timeout_s = NAN};
    const struct option_spec specs[] = {
        {"json", OPTION_FLAG, &q.raw, NULL, "the answer as it came"},
        {"timeout", OPTION_REAL, &q.timeout_s, "S", "seconds to wait for an answer (5)"},
    };
    struct options o = {
        .program = "atoll status",
        .usage = "RUN|ADDRESS [options]",
        .about = "How a run is doing: asks its coordinator, or prints the summary when the run is over.",
        .specs = specs,
        .n_specs = sizeof specs / sizeof *specs,
        .args_min = 1,
        .args_max = 1,
    };
    return options_main(&o, argc, argv, run, &q);
}
