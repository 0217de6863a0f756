#include "worker/session/worker_session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "wire/path_watch.h"
#include "worker/session/session_impl.h"

enum {
    POLL_US = 100000,        /* longest delay before a signal is seen */
    WAIT_LINE_US = 10000000, /* log a wait of this length, and again when it has doubled */
    LONG_RTT_US = 500000,    /* the line names a longer round trip */
    ADDRESS_US = 3000000,    /* without an answer for this long, read the address again */
    FLUSH_US = 2000000,      /* time to send queued messages at the end */
};

enum status session_check_stop(const struct worker_session *s, struct err *err)
{
    return s->options->check_stop ? s->options->check_stop(err) : STATUS_OK;
}

/* --- callbacks of the outer loop ---------------------------------------------------------------------------------- */

static enum status send_message(void *ctx, enum wire_lane lane, const struct msg *m)
{
    struct worker_session *s = ctx;
    if (m->type == MSG_LEAVE && m->leave.finished) link_expect_end(s->link); /* the coordinator may exit first */
    return link_send(s->link, lane, m);
}

static enum status on_config(void *ctx, const struct msg_config *config, struct outer_model *model, struct err *err)
{
    struct worker_session *s = ctx;
    enum status status = s->options->on_config(s->options->host_ctx, config, model, &s->host_err);
    if (status != STATUS_OK && err) *err = s->host_err;
    return status;
}

static bool on_update(void *ctx, const uint8_t *object, size_t size, bool taken, bool named)
{
    const struct worker_session_options *o = ((struct worker_session *)ctx)->options;
    return o->on_update(o->host_ctx, object, size, taken, named);
}

static enum status on_settings(void *ctx, const struct msg_config *config, struct err *err)
{
    struct worker_session *s = ctx;
    enum status status = s->options->on_settings(s->options->host_ctx, config, &s->host_err);
    if (status != STATUS_OK && err) *err = s->host_err;
    return status;
}

static uint64_t stopwatch(void)
{
    return clock_monotonic_us();
}

/* --- connection --------------------------------------------------------------------------------------------------- */

/* Only the secret of a join line enrols another key. */
static bool may_rename(const struct worker_session *s)
{
    struct transport_address address;
    return s->options->unnamed && transport_address_parse(&address, s->join, NULL) == STATUS_OK && address.has_secret;
}

enum status worker_session_open(struct worker_session **s_p, struct worker_session_options *options, struct err *err)
{
    struct worker_session *s = mem_alloc(1, sizeof *s);
    if (!s) return err_set(err, STATUS_NOMEM, "out of memory");
    s->options = options;
    s->reported_round = UINT64_MAX;
    snprintf(s->join, sizeof s->join, "%s", options->join);
    struct outer_setup setup = {.io_ctx = s,
                                .send = send_message,
                                .host_ctx = s,
                                .on_config = on_config,
                                .on_settings = on_settings,
                                .on_update = options->on_update ? on_update : NULL,
                                .stopwatch_us = stopwatch};
    memcpy(setup.uuid, options->self.key.public_key, WIRE_UUID);
    memcpy(setup.run_id, options->run_id, WIRE_UUID);
    snprintf(setup.name, sizeof setup.name, "%s", options->self.name);
    setup.may_rename = may_rename(s);
    state_dir_init(&s->dir, options->dir);
    state_dir_attach(&s->dir, &setup);
    enum status status = outer_loop_create(&s->loop, &setup, clock_monotonic_us());
    if (status != STATUS_OK) {
        mem_free(s);
        return err_set(err, status, "out of memory");
    }
    pthread_mutex_init(&s->pump.lock, NULL);
    pthread_cond_init(&s->pump.changed, NULL);
    *s_p = s;
    return STATUS_OK;
}

enum status worker_session_dial(struct worker_session *s, struct err *err)
{
    struct transport_address address;
    struct transport *transport;
    struct link *link;
    TRY(transport_address_parse(&address, s->join, err));
    address.quiet = !session_is_launched(s); /* session_check_join says why */
    TRY(transport_zmq_dial(&transport, &address, &s->options->self, err));
    TRY(link_open(&link, transport, outer_loop_heartbeat(s->loop), err));
    s->link = link;
    return STATUS_OK;
}

struct outer_loop *worker_session_loop(struct worker_session *s)
{
    return s->loop;
}

void session_tick(struct worker_session *s)
{
    unsigned both_connected = link_both_connected(s->link);
    if (both_connected != s->both_connected) outer_loop_reconnected(s->loop, clock_monotonic_us());
    s->both_connected = both_connected;
    outer_loop_tick(s->loop, clock_monotonic_us());
}

void worker_session_receive(struct worker_session *s, uint64_t timeout_us)
{
    enum wire_lane lane = s->held_lane;
    enum status status = s->held ? STATUS_OK : link_recv(s->link, timeout_us, &lane, &s->in);
    s->held = false;
    while (status != STATUS_AGAIN) {
        if (status == STATUS_OK) outer_loop_on_message(s->loop, lane, &s->in, clock_monotonic_us());
        status = link_recv(s->link, 0, &lane, &s->in);
    }
    session_tick(s);
}

void worker_session_bytes(struct worker_session *s, uint64_t *sent_p, uint64_t *received_p)
{
    *sent_p = *received_p = 0;
    if (s->link) link_bytes(s->link, sent_p, received_p);
}

bool worker_session_connected(struct worker_session *s)
{
    return s->link && link_connected(s->link);
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

/* Time without an answer of the coordinator, within this wait. */
static uint64_t silent_us(const struct worker_session *s, uint64_t now)
{
    uint64_t heard = heartbeat_heard_us(outer_loop_heartbeat(s->loop)),
             last = heard > s->wait.since ? heard : s->wait.since;
    return now > last ? now - last : 0;
}

static void log_wait(struct worker_session *s, uint64_t now)
{
    char others[WIRE_TEXT_MAX];
    const char *unanswered = "";
    if (!s->wait.since) s->wait.since = now;
    uint64_t next = s->wait.logged_after ? 2 * s->wait.logged_after : WAIT_LINE_US;
    if (now - s->wait.since < next) return;
    s->wait.logged_after = next;
    struct heartbeat *heartbeat = outer_loop_heartbeat(s->loop);
    uint64_t rtt_us = heartbeat_rtt_us(heartbeat);
    char rtt[48] = "";
    heartbeat_waiting_for(heartbeat, now, others);
    if (!heartbeat_joined(heartbeat) && link_connected(s->link) && silent_us(s, now) >= PATH_STUCK_US)
        unanswered = "; it is connected, but does not answer: it is busy, or the path drops large packets (MTU)";
    if (rtt_us >= LONG_RTT_US) snprintf(rtt, sizeof rtt, " (round trip %s)", units_duration((double)rtt_us / 1e6).text);
    log_info("waiting for %s, %s so far%s%s%s%s", outer_loop_text(s->loop, now),
             units_duration((double)(now - s->wait.since) / 1e6).text, rtt, unanswered,
             others[0] ? "; the run waits for " : "", others);
}

/* A coordinator on this machine may restart at another port, which its run folder gives. If the worker cannot connect
 * there, it leaves over the old connection, as after any error. END: the run is complete, and the coordinator has
 * exited. */
static enum status follow_address(struct worker_session *s, struct err *err)
{
    const struct worker_session_options *o = s->options;
    char current[JOIN_LINE_MAX];
    struct link *before = s->link;
    if (session_run_is_over(o->run_dir)) return err_set(err, STATUS_END, "the run in %s is complete", o->run_dir);
    if (session_join_line(o->address_file, current, sizeof current, NULL) != STATUS_OK) return STATUS_OK;
    if (!strcmp(current, s->join)) return STATUS_OK;
    log_info("reconnecting: the coordinator's address changed");
    snprintf(s->join, sizeof s->join, "%s", current);
    TRY(worker_session_dial(s, err));
    session_pump_stop(s);
    link_close(before, 0);
    return STATUS_OK;
}

static enum status take_next_name(struct worker_session *s, struct err *err)
{
    struct transport_worker *self = &s->options->self;
    char before[WIRE_NAME_MAX];
    struct link *link = s->link;
    memcpy(before, self->name, sizeof before);
    TRY(worker_dir_rename(s->options->unnamed, self->name, err));
    log_info("another worker has the name %s: this one is %s now, as %.300s/name says", before, self->name,
             s->options->dir);
    log_set_name(self->name);
    self->key = s->options->unnamed->key;
    self->fresh = true;
    outer_loop_rename(s->loop, self->key.public_key, self->name, clock_monotonic_us());
    TRY(worker_session_dial(s, err));
    session_pump_stop(s);
    link_close(link, 0);
    return STATUS_OK;
}

enum status worker_session_wait(struct worker_session *s, uint64_t timeout_us, struct err *err)
{
    const struct worker_session_options *o = s->options;
    uint64_t now = clock_monotonic_us(), due = outer_loop_deadline_us(s->loop);
    uint64_t wait = timeout_us < POLL_US ? timeout_us : POLL_US;
    worker_session_send_metrics(s, false);
    log_wait(s, now);
    if (due <= now)
        wait = 0;
    else if (due - now < wait)
        wait = due - now;
    worker_session_receive(s, wait);
    if (may_rename(s) && outer_loop_name_refused(s->loop)) return take_next_name(s, err);
    TRY(session_check_join(s, err));
    uint64_t silent = silent_us(s, now);
    bool usual = o->max_wait_us == UINT64_MAX;
    if (silent >= worker_session_limit_us(o, heartbeat_heard_us(outer_loop_heartbeat(s->loop)) > 0))
        return err_set(err, STATUS_INTERRUPTED, "the coordinator has not answered for %s (%s%s)",
                       units_whole_seconds((double)silent / 1e6).text, usual ? "the default of " : "", o->max_wait_by);
    return o->address_file[0] && silent >= ADDRESS_US ? follow_address(s, err) : STATUS_OK;
}

void worker_session_worked(struct worker_session *s)
{
    s->wait.since = s->wait.logged_after = 0;
}

enum status worker_session_failure(struct worker_session *s, struct err *err)
{
    uint16_t code = outer_loop_refused(s->loop);
    if (s->host_err.msg[0]) {
        *err = s->host_err;
        return s->host_err.code;
    }
    /* The coordinator does not know the folder. Once configured, the coordinator serves another run now. */
    if (code == REFUSE_RUN && s->options->dir[0] && !outer_loop_configured(s->loop))
        return err_set(err, STATUS_REFUSED,
                       "%.300s holds the saved state of another run: use another --dir, or remove this folder",
                       s->options->dir);
    /* A refused key is a matter of the join line or the operator. */
    return err_set(err,
                   code == REFUSE_KEY     ? STATUS_INVALID
                   : code == REFUSE_SPENT ? STATUS_SPENT
                   : code                 ? STATUS_REFUSED
                                          : outer_loop_fault(s->loop),
                   "%s", outer_loop_text(s->loop, 0));
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

void worker_session_expect_end(struct worker_session *s)
{
    struct link *link = s->link;
    if (link) link_expect_end(link);
}

void worker_session_leave(struct worker_session *s, const char *text)
{
    bool refused = outer_loop_want(s->loop) == OUTER_FAILED && outer_loop_refused(s->loop);
    if (!s->link || refused) return;
    worker_session_send_metrics(s, true);
    outer_loop_leave(s->loop, text, clock_monotonic_us());
}

void worker_session_disconnect(struct worker_session *s)
{
    struct link *link = s->link;
    session_pump_stop(s);
    s->held = false;
    s->link = NULL; /* before it is freed: a signal handler may read it */
    link_close(link, link && link_connected(link) ? FLUSH_US : 0); /* without a connection nothing can be sent */
}

void worker_session_close(struct worker_session *s)
{
    if (!s) return;
    worker_session_disconnect(s);
    outer_loop_destroy(s->loop);
    pthread_cond_destroy(&s->pump.changed);
    pthread_mutex_destroy(&s->pump.lock);
    mem_free(s);
}
