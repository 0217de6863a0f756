#include "coordinator/server.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/config/config_keys.h"
#include "common/config/options.h"
#include "common/os/fileio.h"
#include "common/os/log_file.h"
#include "common/os/std_streams.h"
#include "coordinator/admission/roster.h"
#include "coordinator/engine/engine.h"
#include "coordinator/ledger/store.h"
#include "coordinator/long_call.h"
#include "coordinator/outer/held.h"
#include "coordinator/region.h"
#include "coordinator/report/report.h"
#include "coordinator/run_dir.h"
#include "wire/endpoint.h"
#include "wire/transport.h"

enum {
    BATCH = 64,
    SLEEP_MAX_US = 250000,
    POLL_US = 250000, /* between looks at the list of workers */
    DROPS_MAX = 64,
    RECOVERING_LINE_US = 3000000,
    LOOK_US = 1000000,       /* between two checks that the run folder is still there */
    ANSWER_US = 100000,      /* work that takes longer is interrupted by answers */
    LEAVE_US = 5000000,      /* for workers to hear that the budget is used up, and to go */
    LEAVE_EVERY_US = 200000, /* between two messages about it */
    KNOCK_US = 1200000,      /* a worker without a session says HELLO within this */
    LONG_BYTES = 4 << 20,    /* work on fewer bytes takes milliseconds, a thread for it some 50 us */
};

struct server {
    const struct server_options *options;
    int lock;
    struct run_dir_before before;
    bool started;       /* it listens, and RUN/address says where */
    uint64_t answer_us; /* when all workers get an answer, if no message is read until then */
    uint64_t look_us;   /* time of the next check that the run folder is still there */
    struct store *store;
    struct engine *engine;
    struct transport *transport;
    struct roster *roster;
    struct run_keys keys;
    uint64_t drops[DROPS_MAX]; /* [n_drops] peers whose connections end with the next poll */
    size_t n_drops;
    uint64_t polled_us;
    uint64_t run_up, run_down; /* bytes of the run, of those that the transport has counted */
    struct report report;
    uint8_t *buffer;    /* one encoded message */
    uint64_t logged_us; /* time of the last line about recovery; 0: none */
};

/* --- signals ------------------------------------------------------------------------------------------------------ */

static volatile sig_atomic_t stop_signal;
static struct transport *volatile signal_transport;

static void on_signal(int number)
{
    int saved = errno;
    stop_signal = number;
    struct transport *t = signal_transport;
    if (t) t->ops->wake(t);
    errno = saved;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (std_streams_hang_up()) sigaction(SIGHUP, &action, NULL);
}

static enum status stopped(struct err *err)
{
    return err_set(err, STATUS_INTERRUPTED, "stopped by a signal");
}

/* --- the engine's io ---------------------------------------------------------------------------------------------- */

/* Messages of the training itself: of workers that have joined, and the initial model. Joining, STATUS, PROBE and
 * refusals are not: anyone with the join line may cause them. */
static bool is_of_run(uint8_t type)
{
    switch (type) {
    case MSG_BIND:
    case MSG_HEARTBEAT:
    case MSG_HEARTBEAT_ACK:
    case MSG_ASSIGN:
    case MSG_EVAL:
    case MSG_EVAL_RESULT:
    case MSG_OFFER:
    case MSG_CREDIT:
    case MSG_REJECT:
    case MSG_GET:
    case MSG_CHUNK:
    case MSG_METRICS:
    case MSG_LEAVE:
    case MSG_DONE:
    case MSG_NOTE:
    case MSG_SAVES:
    case MSG_UPLOAD: return true;
    default: return false;
    }
}

static enum status io_send(void *ctx, uint64_t peer, enum wire_lane lane, const struct msg *m)
{
    struct server *s = ctx;
    size_t size;
    enum status status = msg_encode(m, s->buffer, WIRE_HEADER + WIRE_BODY_MAX, &size);
    if (status != STATUS_OK) {
        log_error("cannot encode %s: %s", msg_name(m->type), status_text(status));
        return status;
    }
    TRY(s->transport->ops->send(s->transport, peer, lane, s->buffer, size));
    bool unasked =
        m->type == MSG_HEARTBEAT_ACK && !m->heartbeat_ack.sent_us; /* to silent workers, and during long work */
    if (is_of_run(m->type) && !unasked) s->run_down += transport_wire_bytes(size);
    return STATUS_OK;
}

static enum status io_send_block(void *ctx, uint64_t peer, enum wire_lane lane, enum msg_type type,
                                 struct wire_block *block)
{
    struct server *s = ctx;
    const struct transport_ops *ops = s->transport->ops;
    TRY(ops->send_block ? ops->send_block(s->transport, peer, lane, block)
                        : ops->send(s->transport, peer, lane, block->data, block->size));
    if (is_of_run((uint8_t)type)) s->run_down += transport_wire_bytes(block->size);
    return STATUS_OK;
}

static void io_bytes(void *ctx, struct engine_bytes *out)
{
    struct server *s = ctx;
    uint64_t up = s->run_up, down = s->run_down;
    if (s->transport) s->transport->ops->bytes(s->transport, &down, &up);
    assert(up >= s->run_up && down >= s->run_down);
    *out = (struct engine_bytes){s->run_up, s->run_down, up - s->run_up, down - s->run_down};
}

static bool io_peer(void *ctx, uint64_t peer, struct engine_peer *out)
{
    struct server *s = ctx;
    if (!s->transport->ops->key(s->transport, peer, out->key)) return false;
    out->right = roster_right(s->roster, out->key, out->name);
    return true;
}

static bool io_path(void *ctx, uint64_t peer, struct transport_path *out)
{
    const struct server *s = ctx;
    return s->transport->ops->path && s->transport->ops->path(s->transport, peer, out);
}

static bool worker_has_place(void *engine, const uint8_t key[WIRE_KEY])
{
    return engine_has_place(engine, key);
}

static enum status io_enrol(void *ctx, const uint8_t key[WIRE_KEY], const char *name, struct err *err)
{
    struct server *s = ctx;
    struct worker_places places = {worker_has_place, s->engine};
    return roster_enrol(s->roster, key, name, &places, err);
}

/* Later: closing a connection loses the messages that were just sent to it. */
static void io_drop(void *ctx, uint64_t peer)
{
    struct server *s = ctx;
    if (s->n_drops < DROPS_MAX)
        s->drops[s->n_drops++] = peer;
    else
        s->transport->ops->drop(s->transport, peer);
}

static void io_event(void *ctx, const struct engine_event *event)
{
    struct server *s = ctx;
    report_bytes(&s->report, s->run_up, s->run_down);
    report_event(&s->report, event);
}

static void reassure(void *ctx)
{
    engine_reassure(((struct server *)ctx)->engine);
}

/* Large merges, checkpoints and snapshots take seconds, and a worker whose heartbeats get no answer redials. */
static void io_meanwhile(void *ctx, uint64_t bytes, void (*work)(void *arg), void *arg)
{
    struct server *s = ctx;
    if (bytes >= LONG_BYTES && s->started) {
        long_call(work, arg, &s->answer_us, reassure, s);
        return;
    }
    work(arg);
    if (s->started) long_call_passed(&s->answer_us, reassure, s);
}

/* Recovery of a large run takes long: log its start at once, and its progress every RECOVERING_LINE_US. */
static enum status io_recovering(void *ctx, uint64_t round, uint64_t records, struct err *err)
{
    struct server *s = ctx;
    uint64_t now = clock_monotonic_us();
    if (stop_signal) return stopped(err);
    if (s->logged_us && now - s->logged_us < RECOVERING_LINE_US) return STATUS_OK;
    if (!s->logged_us)
        log_info("recovering the run in this folder: reading the checkpoint and the journal after it");
    else
        log_info("recovering: read %" PRIu64 " journal records, at round %" PRIu64, records, round);
    s->logged_us = now;
    return STATUS_OK;
}

/* --- start -------------------------------------------------------------------------------------------------------- */

static enum status start_engine(struct server *s, struct err *err)
{
    const struct config *config = s->options->config;
    struct engine_io io = {.ctx = s,
                           .send = io_send,
                           .send_block = io_send_block,
                           .event = io_event,
                           .peer = io_peer,
                           .enrol = io_enrol,
                           .drop = io_drop,
                           .path = io_path,
                           .bytes = io_bytes,
                           .meanwhile = io_meanwhile,
                           .recovering = io_recovering};
    struct engine_options options = {.config = config,
                                     .changes = s->options->changes,
                                     .n_changes = s->options->n_changes,
                                     .rounds_reported = s->report.metrics.rounds_in_file,
                                     .region = s->options->region != NULL,
                                     .held_most = HELD_MOST,
                                     .chunks_most = CHUNKS_MOST};
    if (strcmp(config->model.init_from, "scratch") != 0) options.init_dir = config->model.init_from;
    if (getrandom(&options.entropy, sizeof options.entropy, 0) != sizeof options.entropy)
        return err_set(err, STATUS_IO, "cannot draw random numbers: %s", strerror(errno));
    return engine_create(&s->engine, &options, s->store, &io, clock_monotonic_us(), err);
}

/* Listens on the previous port if it can, so that workers find a restarted coordinator. */
static enum status listen_on(struct server *s, struct err *err)
{
    const char *listen = s->options->config->coordinator.listen, *dir = s->options->run_dir;
    const char *advertise = s->options->config->coordinator.advertise;
    char endpoint[256], bound[256], line[1024];
    struct endpoint parsed;
    struct endpoint_found found;
    struct transport_access access = {.admits = roster_admits, .ctx = s->roster};
    TRY(endpoint_parse(&parsed, listen, true, err));
    TRY(endpoint_find(&found, &parsed, err));
    if (found.loopback && strcmp(advertise, "auto") != 0)
        return err_set(err, STATUS_INVALID,
                       "coordinator.advertise: other machines cannot reach %s: also set coordinator.listen, for "
                       "example to tcp://0.0.0.0:29600",
                       listen);
    memcpy(access.server_secret, s->keys.server_secret, WIRE_KEY);
    run_dir_last_endpoint(dir, listen, endpoint, sizeof endpoint);
    enum status status = transport_zmq_listen(&s->transport, endpoint, &access, bound, sizeof bound, err);
    if (status != STATUS_OK && strcmp(endpoint, listen) != 0)
        status = transport_zmq_listen(&s->transport, listen, &access, bound, sizeof bound, err);
    if (status != STATUS_OK) return status;
    TRY(run_dir_write_address(dir, bound, advertise, &s->keys, line, sizeof line, err));
    report_line(&s->report, "listening on %s", bound);
    bool external = config_is_external(s->options->config);
    report_line(&s->report,
                external ? "join with: python -m atoll.join %s PROGRAM.py"
                         : "join with: atoll-worker --join %s --data.train GLOB",
                dir);
    if (found.loopback) return STATUS_OK;
    report_line(&s->report, "join from other machines with: --join FILE, which holds the last line of %s/address", dir);
    /* The line holds a secret, and other output than a terminal is a log. */
    if (s->report.terminal) report_line(&s->report, "join line (secret): %s", line);
    return STATUS_OK;
}

static enum status tell_engine(void *ctx, const struct listed_worker *w, struct err *err)
{
    struct server *s = ctx;
    uint64_t now_s = (uint64_t)time(NULL), ago_s = now_s > w->readmit_s ? now_s - w->readmit_s - 1 : 0;
    struct engine_worker worker = {.revoked = w->revoked, .readmitted_us = w->readmit_s ? ago_s * 1000000 : UINT64_MAX};
    memcpy(worker.key, w->key, WIRE_KEY);
    return engine_on_worker_listed(s->engine, &worker, clock_monotonic_us(), err);
}

/* RUN/config.yaml holds the settings of the run now, of which --change may have changed some. */
static enum status write_config(struct server *s, struct err *err)
{
    const struct server_options *o = s->options;
    const struct config *now = engine_config(s->engine);
    struct config_sources sources = *o->sources;
    for (int i = 0; i < config_keys_count; i++) {
        char given[CONFIG_VALUE_MAX], value[CONFIG_VALUE_MAX];
        if (!config_key_of_run(i)) continue;
        if (strcmp(config_value_text(o->config, i, given), config_value_text(now, i, value)) != 0)
            sources.of[i] = CONFIG_RUN;
    }
    return run_dir_write_config(o->run_dir, now, &sources, err);
}

static void open_log(const char *run_dir)
{
    char logs[FILEIO_PATH_MAX];
    snprintf(logs, sizeof logs, "%s/logs", run_dir);
    log_file_open(logs, "coordinator.log");
}

static void wake(void *ctx)
{
    struct server *s = ctx;
    s->transport->ops->wake(s->transport);
}

/* --- the budget --------------------------------------------------------------------------------------------------- */

static void dismiss_peer(struct server *s, uint64_t peer, const char *text)
{
    struct msg m = {.type = MSG_REFUSE, .refuse.code = REFUSE_SPENT};
    snprintf(m.refuse.text, sizeof m.refuse.text, "%s", text);
    if (io_send(s, peer, WIRE_CONTROL, &m) != STATUS_OK) log_debug("cannot send REFUSE");
}

/* The workers end with this process: without it they would wait, and cost money. All is stored before; so a LEAVE that
 * is not read takes no place away. */
static void dismiss(struct server *s, const char *text)
{
    uint64_t now = clock_monotonic_us(), least = now + KNOCK_US, end = now + LEAVE_US, at = 0, peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    for (; now < end && !stop_signal; now = clock_monotonic_us()) {
        if (now >= at && !engine_dismiss(s->engine, text) && now >= least) return;
        if (now >= at) at = now + LEAVE_EVERY_US;
        enum status status = s->transport->ops->recv(s->transport, at - now, &peer, &lane, &data, &size);
        if (status == STATUS_OK && lane == WIRE_CONTROL) dismiss_peer(s, peer, text);
    }
}

/* The budget of the run is used up, or that of the run upstream. */
static enum status end_early(struct server *s, const char *text, struct err *err)
{
    struct engine_summary summary;
    char line[400];
    TRY(engine_stop(s->engine, err));
    engine_summary(s->engine, &summary);
    snprintf(line, sizeof line, "stopped after round %" PRIu64 ": %.300s", summary.rounds, text);
    if (s->transport) dismiss(s, line);
    return err_set(err, STATUS_SPENT, "%s", line);
}

/* --- life of the server --------------------------------------------------------------------------------------------
 */

static enum status start(struct server *s, struct err *err)
{
    const struct server_options *o = s->options;
    run_dir_look(&s->before, o->run_dir);
    TRY(run_dir_lock(o->run_dir, &s->lock, err));
    open_log(o->run_dir);
    TRY(endpoint_check_own(o->config->coordinator.listen, err)); /* before the journal counts this start */
    s->buffer = mem_alloc(1, WIRE_HEADER + WIRE_BODY_MAX);
    if (!s->buffer) return err_set(err, STATUS_NOMEM, "no memory for messages");
    TRY(store_disk_open(&s->store, o->run_dir, err));
    TRY(report_open(&s->report, o->config, o->run_dir, stdout, err));
    TRY(run_keys_read(o->run_dir, &s->keys, err));
    TRY(roster_open(&s->roster, o->run_dir, s->keys.enrol_public, err));
    TRY(start_engine(s, err));
    if (engine_spent(s->engine)) return end_early(s, engine_spent(s->engine), err);
    /* Scripts would take the unfinished run for complete. */
    if (!engine_done(s->engine)) run_dir_forget(o->run_dir, "summary.json");
    TRY(write_config(s, err));
    TRY(run_dir_write_id(o->run_dir, engine_run_id(s->engine), err));
    TRY(listen_on(s, err));
    TRY(roster_each(s->roster, tell_engine, s, err));
    signal_transport = s->transport;
    s->started = true;
    if (!o->region) return STATUS_OK;
    return o->upstream->start(o->region, engine_config(s->engine), wake, s, err);
}

static void finish(struct server *s, enum status status)
{
    bool began = s->engine && engine_modelled(s->engine),
         stays = began || (s->started && status == STATUS_INTERRUPTED) || status == STATUS_SPENT;
    signal_transport = NULL;
    if (s->options->region) s->options->upstream->close(s->options->region); /* its thread uses engine and transport */
    engine_destroy(s->engine);
    if (s->transport) s->transport->ops->close(s->transport);
    roster_close(s->roster);
    explicit_bzero(&s->keys, sizeof s->keys);
    if (s->store) s->store->ops->close(s->store);
    if (s->report.metrics.file) report_close(&s->report);
    mem_free(s->buffer);
    if (s->lock < 0) return;
    if (s->started) run_dir_forget(s->options->run_dir, "address");
    if (status != STATUS_OK && !stays) run_dir_undo(&s->before, s->options->run_dir);
    close(s->lock);
}

/* --- loop --------------------------------------------------------------------------------------------------------- */

/* Whose limits a message counts against: a worker's, also after it has connected again, or those of the connection. */
static uint64_t sender_of(struct server *s, uint64_t peer, bool *worker_p)
{
    struct engine_peer p;
    uint64_t who;
    *worker_p = io_peer(s, peer, &p) && p.right == ENGINE_RIGHT_WORKER;
    if (!*worker_p) return peer + 1;
    memcpy(&who, p.key, sizeof who);
    return who ? who : 1;
}

static void obey(struct server *s, uint64_t peer, enum admission_verdict verdict)
{
    if (verdict == ADMISSION_CLOSE) s->transport->ops->drop(s->transport, peer);
}

static enum status handle(struct server *s, uint64_t peer, enum wire_lane lane, const uint8_t *data, size_t size,
                          struct err *err)
{
    static struct msg m; /* large; one thread */
    struct err why = {0};
    uint64_t now = clock_monotonic_us();
    bool worker;
    uint64_t sender = sender_of(s, peer, &worker);
    enum admission_verdict verdict = admission_message(s->engine, sender, peer, lane, data, size, now);
    if (verdict != ADMISSION_ADMIT) {
        obey(s, peer, verdict);
        return STATUS_OK;
    }
    if (msg_decode(&m, data, size, &why) != STATUS_OK) {
        obey(s, peer, admission_malformed(s->engine, peer, lane, &why, now));
        return STATUS_OK;
    }
    if (worker && is_of_run(m.type)) s->run_up += transport_wire_bytes(size);
    return engine_on_message(s->engine, peer, lane, &m, now, err);
}

static uint64_t sleep_us(const struct server *s)
{
    uint64_t now = clock_monotonic_us(), at = engine_next_deadline_us(s->engine);
    if (at <= now) return 0;
    return at - now < SLEEP_MAX_US ? at - now : SLEEP_MAX_US;
}

/* Follows `atoll revoke` and `atoll workers`, and closes connections of refused keys. */
static enum status poll_workers(struct server *s, uint64_t now_us, struct err *err)
{
    if (now_us - s->polled_us < POLL_US) return STATUS_OK;
    s->polled_us = now_us;
    for (size_t i = 0; i < s->n_drops; i++) s->transport->ops->drop(s->transport, s->drops[i]);
    s->n_drops = 0;
    return roster_poll(s->roster) ? roster_each(s->roster, tell_engine, s, err) : STATUS_OK;
}

/* Without its folder the run has lost its state, and a restart would begin another one. */
static enum status check_folder(const struct server *s, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/lock", s->options->run_dir);
    if (!file_is_gone(path, s->lock)) return STATUS_OK;
    return err_set(err, STATUS_CORRUPT,
                   "the run folder %.300s was removed or moved while the run used it: move it back to continue the run",
                   s->options->run_dir);
}

/* One turn of the loop: waits for messages, handles up to BATCH of them, ticks the engine, flushes reports. */
static enum status turn(struct server *s, struct err *err)
{
    uint64_t peer, wait = sleep_us(s);
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    /* If the operator stops the whole run, workers send LEAVE. After this process got its own signal, LEAVE must not
     * take their places away, or the run could not continue unchanged. The signal may also arrive during recv. */
    for (int i = 0; i < BATCH; i++) {
        enum status status = s->transport->ops->recv(s->transport, i ? 0 : wait, &peer, &lane, &data, &size);
        if (!i) s->answer_us = clock_monotonic_us() + ANSWER_US;
        if (status == STATUS_AGAIN || stop_signal) break;
        if (status != STATUS_OK) return err_set(err, status, "the socket failed: %s", status_text(status));
        TRY(handle(s, peer, lane, data, size, err));
    }
    uint64_t now = clock_monotonic_us();
    if (now >= s->look_us) {
        TRY(check_folder(s, err));
        s->look_us = now + LOOK_US;
    }
    TRY(poll_workers(s, now, err));
    now = clock_monotonic_us(); /* poll_workers may have told the engine a later time */
    if (now >= engine_next_deadline_us(s->engine)) TRY(engine_tick(s->engine, now, err));
    const struct server_options *o = s->options;
    if (o->region) TRY(o->upstream->turn(o->region, s->engine, clock_monotonic_us(), err));
    return report_flush(&s->report, err);
}

static enum status serve(struct server *s, struct err *err)
{
    while (!engine_finished(s->engine)) {
        const char *spent = engine_spent(s->engine);
        if (spent) return end_early(s, spent, err);
        if (stop_signal && engine_done(s->engine)) break; /* a finished run needs no restart */
        if (stop_signal) {
            TRY(engine_stop(s->engine, err));
            return stopped(err);
        }
        enum status status = turn(s, err);
        if (status == STATUS_SPENT) {
            char text[sizeof err->msg];
            snprintf(text, sizeof text, "the run upstream %.400s", err->msg);
            return end_early(s, text, err);
        }
        TRY(status);
    }
    struct engine_summary summary;
    engine_summary(s->engine, &summary);
    TRY(report_summary(&s->report, &summary, s->options->run_dir, err));
    report_line(&s->report, "done: %" PRIu64 " rounds, %" PRIu64 " tokens, theta %016" PRIx64, summary.rounds,
                summary.tokens, summary.theta_hash);
    return report_flush(&s->report, err);
}

enum exit_code server_run(const struct server_options *options, struct err *err)
{
    struct server s = {.options = options, .lock = -1};
    catch_signals();
    enum status status = start(&s, err);
    if (status == STATUS_OK) status = serve(&s, err);
    /* The removal is the cause of any failure to write. */
    if (status != STATUS_OK && s.lock >= 0 && check_folder(&s, err) != STATUS_OK) status = STATUS_CORRUPT;
    finish(&s, status);
    return exit_code_of(status);
}
