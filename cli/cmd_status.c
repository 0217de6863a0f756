/* atoll status: asks a running coordinator, or reads the summary of a run that is over. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/json_table.h"
#include "cli/run_folder.h"
#include "cli/verbs.h"
#include "common/clock.h"
#include "common/fileio.h"
#include "common/mem.h"
#include "common/options.h"
#include "wire/transport.h"

enum { SUMMARY_MAX = 1 << 20, ASK_EVERY_US = 500000, ADDRESS_MAX = 1024 };

static enum status show(const char *json, const char *where, bool raw, struct err *err)
{
    if (!raw) return json_table_print(json, where, stdout, err);
    size_t n = strlen(json);
    printf("%s%s", json, n && json[n - 1] == '\n' ? "" : "\n");
    return STATUS_OK;
}

/* One answer, asked for again and again until it comes: any message may be lost. */
static enum status ask(struct transport *t, const char *address, double timeout_s, bool raw, struct err *err)
{
    uint8_t frame[WIRE_HEADER + 64];
    const struct msg question = {.type = MSG_STATUS};
    size_t question_size, size;
    TRY(msg_encode(&question, frame, sizeof frame, &question_size));
    uint64_t now = clock_monotonic_us(), deadline = now + (uint64_t)(timeout_s * 1e6), ask_at = now;
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
        if (answer.type == MSG_STATUS_REPLY) return show(answer.status_reply.json, address, raw, err);
        if (answer.type == MSG_REFUSE)
            return err_set(err, STATUS_REFUSED, "the coordinator at %s refused: %s", address, answer.refuse.text);
    }
    return err_set(err, STATUS_CLOSED, "no answer from %s within %g s: is the coordinator running there?", address,
                   timeout_s);
}

static enum status status_of_address(const char *address, double timeout_s, bool raw, struct err *err)
{
    struct transport_address parsed;
    struct transport *t;
    uint8_t uuid[WIRE_UUID];
    TRY(transport_address_parse(&parsed, address, err));
    if (getrandom(uuid, sizeof uuid, 0) != sizeof uuid) return err_set(err, STATUS_IO, "no random numbers to be had");
    TRY(transport_zmq_dial(&t, &parsed, uuid, err));
    enum status status = ask(t, parsed.endpoint, timeout_s, raw, err);
    t->ops->close(t);
    return status;
}

static bool holds(const char *run, const char *file)
{
    char path[FILEIO_PATH_MAX];
    return run_path(path, sizeof path, run, file, NULL) == STATUS_OK && file_exists(path);
}

/* A coordinator holds the lock of its folder as long as it lives; here it is had for a moment, to see. */
static bool served(const char *run)
{
    char path[FILEIO_PATH_MAX];
    if (run_path(path, sizeof path, run, "lock", NULL) != STATUS_OK) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool taken = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(fd);
    return taken;
}

/* No coordinator answered, and the run is not over. */
static enum status why_nothing(const char *run, bool asked, double timeout_s, struct err *err)
{
    bool here = served(run);
    if (here && asked)
        return err_set(err, STATUS_CLOSED, "a coordinator serves %s and does not answer within %g s: it is busy, "
                       "stopped, or not reached from here; ask again", run, timeout_s);
    if (here) return err_set(err, STATUS_CLOSED, "a coordinator of %s is starting: ask again", run);
    if (holds(run, "launch.lock"))
        return err_set(err, STATUS_CLOSED, "the run in %s is neither running nor finished: atoll launch with --dir %s "
                       "continues it", run, run);
    if (holds(run, "lock"))
        return err_set(err, STATUS_CLOSED, "the run in %s is neither running nor finished: atoll-coordinator with "
                       "--dir %s continues it", run, run);
    return err_set(err, STATUS_NOTFOUND, "%s holds no run: give the folder that was a run's --dir, or an address "
                   "tcp://HOST:PORT", run);
}

static enum status status_of_run(const char *run, double timeout_s, bool raw, struct err *err)
{
    char address[ADDRESS_MAX], address_path[FILEIO_PATH_MAX], path[FILEIO_PATH_MAX];
    void *summary;
    size_t size;
    struct stat st;
    if (stat(run, &st) || !S_ISDIR(st.st_mode))
        return err_set(err, STATUS_NOTFOUND, "there is no run folder %s: give one, or an address tcp://HOST:PORT", run);
    TRY(run_path(path, sizeof path, run, "summary.json", err));
    bool over = file_exists(path);
    TRY(run_path(address_path, sizeof address_path, run, "address", err));
    bool known = run_line(address_path, address, sizeof address, NULL) == STATUS_OK;
    enum status asked = known ? status_of_address(address, over ? 1 : timeout_s, raw, err) : STATUS_CLOSED;
    if (asked == STATUS_OK || (!over && asked != STATUS_CLOSED)) return asked; /* a refusal says why itself */
    if (!over) return why_nothing(run, known, timeout_s, err);
    TRY(file_read(path, SUMMARY_MAX, &summary, &size, err));
    enum status status = show(summary, path, raw, err);
    mem_free(summary);
    return status;
}

int cmd_status(int argc, char **argv)
{
    bool raw = false;
    double timeout_s = 5;
    const struct option_spec specs[] = {
        {"json", OPTION_FLAG, &raw, NULL, "the answer as it came"},
        {"timeout", OPTION_REAL, &timeout_s, "S", "seconds to wait for an answer (5)"},
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
    struct err err = {0};
    enum status status = options_parse(&o, argc, argv, &err);
    if (status == STATUS_END) return EXIT_DONE;
    if (status == STATUS_OK && !(timeout_s > 0 && timeout_s < 1e6))
        status = err_set(&err, STATUS_INVALID, "--timeout is %g: give seconds above 0", timeout_s);
    if (status == STATUS_OK)
        status = strstr(o.args[0], "://") ? status_of_address(o.args[0], timeout_s, raw, &err)
                                          : status_of_run(o.args[0], timeout_s, raw, &err);
    return status == STATUS_OK ? EXIT_DONE : options_fail("atoll", &err);
}
