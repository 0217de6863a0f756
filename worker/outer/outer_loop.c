#include "worker/outer/outer_loop.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/units.h"
#include "worker/outer/outer_loop_impl.h"

enum status outer_loop_create(struct outer_loop **loop_p, const struct outer_setup *setup, uint64_t now_us)
{
    struct outer_loop *loop = mem_alloc(1, sizeof *loop);
    uint64_t jitter;
    if (!loop) return STATUS_NOMEM;
    loop->setup = *setup;
    memcpy(&jitter, setup->uuid, sizeof jitter);
    heartbeat_init(&loop->heartbeat);
    sync_init(&loop->sync, jitter, now_us);
    loop->sync.lockstep = setup->on_update != NULL;
    loop->save.saved_round = SYNC_NO_ROUND;
    loop->times.round = loop->running.round = SYNC_NO_ROUND;
    outer_saved_run_id(loop, loop->run_id);
    loop->stateless = !memcmp(loop->run_id, (uint8_t[WIRE_UUID]){0}, WIRE_UUID);
    *loop_p = loop;
    return STATUS_OK;
}

void outer_loop_destroy(struct outer_loop *loop)
{
    if (!loop) return;
    outer_save_finish(loop);
    outer_memory_finish(loop);
    heartbeat_finish(&loop->heartbeat);
    mem_free(loop);
}

double outer_wait_seconds(struct outer_loop *loop, uint64_t since_us, uint64_t now_us)
{
    double span = now_us > since_us ? (double)(now_us - since_us) / 1e6 : 0, applied = loop->applied_s;
    loop->applied_s = loop->running.apply_s;
    span -= loop->applied_s - applied;
    return span > 0 ? span : 0;
}

uint64_t outer_stopwatch(const struct outer_loop *loop)
{
    return loop->setup.stopwatch_us ? loop->setup.stopwatch_us() : 0;
}

/* Copies state, round, versions and the progress of downloads to the heartbeat. */
static void update_heartbeat(struct outer_loop *loop)
{
    const struct sync *s = &loop->sync;
    uint64_t versions[LAYOUT_FRAGMENTS_MAX], received, expected;
    uint64_t round = s->round != SYNC_NO_ROUND ? s->round : s->last_round;
    uint64_t eval_id = s->eval.pending || s->eval.running ? s->eval.task.eval_id : s->eval.result.eval_id;
    for (uint32_t i = 0; i < s->n_fragments; i++) versions[i] = s->f[i].version;
    heartbeat_set_state(&loop->heartbeat, s->state, round, s->round != SYNC_NO_ROUND ? s->current.steps : s->task.steps,
                        eval_id, s->n_fragments, versions);
    sync_receiving(s, &received, &expected);
    heartbeat_set_received(&loop->heartbeat, received, expected, sync_rate_measured(&s->down));
    if (s->phase != SYNC_JOINED) heartbeat_leave(&loop->heartbeat);
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static void fail_other_run(struct outer_loop *loop)
{
    sync_fail(&loop->sync, "the coordinator's address now serves another run: start the worker again to join that run");
}

/* The operator may have changed settings while the coordinator was stopped. */
static enum status take_settings(struct outer_loop *loop, const struct msg_config *m, struct err *err)
{
    uint64_t text_hash = hash64(m->text, strlen(m->text));
    if (text_hash != loop->text_hash) TRY(loop->setup.on_settings(loop->setup.host_ctx, m, err));
    loop->text_hash = text_hash;
    loop->config_hash = m->config_hash;
    return STATUS_OK;
}

static void repeated_config(struct outer_loop *loop, const struct msg_config *m, uint64_t now_us)
{
    struct err err = {0};
    if (memcmp(m->run_id, loop->run_id, WIRE_UUID) != 0) {
        fail_other_run(loop);
        return;
    }
    if (take_settings(loop, m, &err) != STATUS_OK) {
        sync_fail(&loop->sync, err.msg);
        return;
    }
    sync_configured(&loop->sync, loop->async, loop->n_fragments, NULL, now_us);
}

static void on_config(struct outer_loop *loop, const struct msg_config *m, uint64_t now_us)
{
    struct err err = {0};
    if (!sync_on_config(&loop->sync, now_us)) return;
    if (loop->configured) {
        repeated_config(loop, m, now_us);
        return;
    }
    memcpy(loop->run_id, m->run_id, WIRE_UUID);
    loop->config_hash = m->config_hash;
    loop->text_hash = hash64(m->text, strlen(m->text));
    enum status status = loop->setup.on_config(loop->setup.host_ctx, m, &loop->model, &err);
    if (status == STATUS_OK) status = outer_memory_init(loop, &err);
    if (status != STATUS_OK) {
        sync_fail(&loop->sync, err.msg[0] ? err.msg : status_text(status));
        return;
    }
    loop->configured = true;
    outer_restore(loop, now_us);
}

static void log_joined(const struct outer_loop *loop, const struct msg_welcome *m)
{
    const struct config *config = loop->model.config;
    char number[48] = "; it gets its number in the first round";
    if (m->worker_id != UINT32_MAX) snprintf(number, sizeof number, " as worker %" PRIu32, m->worker_id);
    log_info("joined %s (%s)%s", config->run.name, config_method_name(config->train.method), number);
}

/* Says why this worker, which holds `version`, loads a snapshot. */
static void log_reload(const struct msg_welcome *m, uint64_t version)
{
    if (m->taken_back)
        log_warn(
            "loading a snapshot, with fresh moments: the run was taken back (atoll rollback or atoll exclude), and "
            "version %" PRIu64 " of this worker belongs to its old history",
            version);
    else if (version > m->current[0].version)
        log_warn("loading a snapshot: this worker is at version %" PRIu64 ", but the run's log ends at %" PRIu64
                 " (power cut at the coordinator, or an older copy of its folder)",
                 version, m->current[0].version);
    else if (m->shorter)
        log_info("loading a snapshot: it is shorter than the updates since this worker's version %" PRIu64, version);
    else
        log_warn("loading a snapshot: the run's log no longer has the updates after this worker's version");
}

static void on_welcome(struct outer_loop *loop, const struct msg_welcome *m, uint64_t now_us)
{
    bool held = loop->sync.holds;
    uint64_t version = loop->sync.f[0].version;
    if (!sync_on_welcome(&loop->sync, m, now_us)) return;
    heartbeat_join(&loop->heartbeat, m->session, m->heartbeat_ms);
    log_joined(loop, m);
    outer_initial_close(loop->initial);
    loop->initial = NULL;
    if (loop->sync.holds) {
        log_debug("joined: continuing at version %" PRIu64, loop->sync.f[0].version);
        return;
    }
    if (held) log_reload(m, version);
    if (held && m->taken_back) loop->reset_inner = true;
    if (m->shorter)
        outer_return_deltas(loop);
    else
        outer_drop_deltas(loop);
    outer_make_version0(loop, m, now_us);
}

/* The run of model.family external has no model yet. */
static void on_upload(struct outer_loop *loop, const struct msg_upload *m, uint64_t now_us)
{
    struct err err = {0};
    bool mine = m->upload != 0, begins = mine && !loop->initial;
    if (loop->sync.phase != SYNC_JOINING) return;
    if (mine && !loop->initial && outer_initial_open(&loop->initial, &loop->model, &err) != STATUS_OK) {
        loop->fault = err.code;
        sync_fail(&loop->sync, err.msg);
        return;
    }
    uint64_t total = mine ? outer_initial_total(loop->initial) : 0;
    if (begins) log_info("uploading the initial model, %s: the run has none yet", units_bytes((double)total).text);
    sync_on_upload(&loop->sync, m, total, now_us);
}

static void on_refuse(struct outer_loop *loop, const struct msg_refuse *m, uint64_t now_us)
{
    enum sync_phase before = loop->sync.phase;
    bool logged = !strcmp(loop->sync.text, m->text);
    sync_on_refuse(&loop->sync, m, now_us);
    if (m->code == REFUSE_RUN && loop->configured && loop->sync.phase == SYNC_STOPPED)
        fail_other_run(loop); /* m->text blames the saved state */
    else if (before == SYNC_JOINED && loop->sync.phase == SYNC_HELLO)
        log_info("joining again: %s", m->text);
    else if (before == SYNC_JOINED && m->code == REFUSE_MALFORMED)
        log_warn("the coordinator refused a message: %s", m->text);
    else if (loop->setup.may_rename && outer_loop_name_refused(loop))
        return;
    else if (!logged && m->code == REFUSE_NAME && loop->sync.phase != SYNC_STOPPED)
        log_warn("%s: retrying for %d s (it may be this worker's previous session)", m->text, SYNC_NAME_US / 1000000);
    else if (!logged && loop->sync.phase != SYNC_STOPPED && !strcmp(loop->sync.text, m->text))
        log_warn("refused, retrying: %s", m->text);
}

static void note_delivered(struct outer_loop *loop, uint64_t now_us)
{
    if (loop->sync.state != WORKER_WAITING || loop->delivered_us) return;
    assert(loop->sync.round != SYNC_NO_ROUND);
    loop->delivered_us = now_us;
    loop->running.send_s = outer_wait_seconds(loop, loop->sent_us, now_us);
}

static void on_credit(struct outer_loop *loop, const struct msg_credit *m, uint64_t now_us)
{
    uint32_t lost;
    sync_on_credit(&loop->sync, m, now_us);
    while (sync_take_rollback(&loop->sync, &lost)) {
        log_warn("round %" PRIu64 " closed without the delta of fragment %u: adding it to the next round's delta",
                 m->round + 1, lost);
        outer_rollback(loop, lost);
    }
    note_delivered(loop, now_us);
}

static void on_reject(struct outer_loop *loop, const struct msg_reject *m, uint64_t now_us)
{
    if (!sync_on_reject(&loop->sync, m, now_us)) return;
    log_warn("delta of round %" PRIu64 ", fragment %u refused: %s", m->round + 1, m->fragment, m->text);
    if (m->code == REJECT_NONFINITE)
        outer_drop_nonfinite_delta(loop, m->fragment, m->round);
    else
        outer_rollback(loop, m->fragment);
    for (uint32_t lost; sync_take_rollback(&loop->sync, &lost);) outer_rollback(loop, lost);
}

void outer_loop_on_message(struct outer_loop *loop, enum wire_lane lane, const struct msg *m, uint64_t now_us)
{
    struct sync *s = &loop->sync;
    if (s->phase == SYNC_STOPPED || lane != msg_lane(m->type)) return;
    heartbeat_on_message(&loop->heartbeat, m, now_us);
    switch (m->type) {
    case MSG_CONFIG: on_config(loop, &m->config, now_us); break;
    case MSG_WELCOME:
        on_welcome(loop, &m->welcome, now_us);
        loop->save.tell = true;
        break;
    case MSG_REFUSE: on_refuse(loop, &m->refuse, now_us); break;
    case MSG_UPLOAD: on_upload(loop, &m->upload, now_us); break;
    case MSG_ASSIGN: sync_on_assign(s, &m->assign, now_us); break;
    case MSG_EVAL: sync_on_eval(s, &m->eval, now_us); break;
    case MSG_CREDIT: on_credit(loop, &m->credit, now_us); break;
    case MSG_REJECT: on_reject(loop, &m->reject, now_us); break;
    case MSG_CHUNK: outer_on_chunk(loop, &m->chunk, now_us); break;
    case MSG_NOTE: log_warn("coordinator: %s", m->note.text); break;
    case MSG_DONE: sync_on_done(s, &m->done, now_us); break;
    default: break;
    }
    sync_set_rtt(s, heartbeat_rtt_us(&loop->heartbeat));
    outer_apply_ready(loop, now_us);
    outer_save_refusal(loop, now_us);
    update_heartbeat(loop);
}

void outer_loop_reconnected(struct outer_loop *loop, uint64_t now_us)
{
    sync_reconnected(&loop->sync, now_us);
    loop->save.tell = true;
}

void outer_loop_tick(struct outer_loop *loop, uint64_t now_us)
{
    outer_save_tick(loop, now_us);
    outer_apply_ready(loop, now_us);
    outer_save_refusal(loop, now_us);
    outer_send_due(loop, now_us);
    outer_save_tell(loop);
    update_heartbeat(loop);
}

uint64_t outer_loop_deadline_us(const struct outer_loop *loop)
{
    uint64_t due = sync_deadline_us(&loop->sync);
    return loop->save.running && loop->save.look_us < due ? loop->save.look_us : due;
}

/* --- public state ------------------------------------------------------------------------------------------------- */

enum outer_want outer_loop_want(const struct outer_loop *loop)
{
    const struct sync *s = &loop->sync;
    if (s->phase == SYNC_STOPPED) return s->refused ? OUTER_FAILED : OUTER_DONE;
    if (s->done) return OUTER_WAIT; /* outer_loop_tick sends LEAVE */
    if (s->state == WORKER_EVALUATING || sync_wants_eval(s)) return OUTER_EVAL;
    if (s->state == WORKER_TRAINING || sync_wants_training(s)) return OUTER_TRAIN;
    return OUTER_WAIT;
}

bool outer_loop_configured(const struct outer_loop *loop)
{
    return loop->configured;
}

bool outer_loop_name_refused(const struct outer_loop *loop)
{
    const struct sync *s = &loop->sync;
    return s->name_since && (s->phase == SYNC_HELLO || s->phase == SYNC_JOINING) && loop->stateless && !s->holds;
}

void outer_loop_rename(struct outer_loop *loop, const uint8_t uuid[WIRE_UUID], const char *name, uint64_t now_us)
{
    assert(outer_loop_name_refused(loop));
    memcpy(loop->setup.uuid, uuid, WIRE_UUID);
    snprintf(loop->setup.name, sizeof loop->setup.name, "%s", name);
    sync_renamed(&loop->sync, now_us);
}

enum status outer_loop_fault(const struct outer_loop *loop)
{
    return loop->fault ? loop->fault : STATUS_STATE;
}

uint16_t outer_loop_refused(const struct outer_loop *loop)
{
    const struct sync *s = &loop->sync;
    return s->phase == SYNC_STOPPED && s->refused != SYNC_FAILED_HERE ? s->refused : 0;
}

const char *outer_loop_text(struct outer_loop *loop, uint64_t now_us)
{
    char what[WIRE_TEXT_MAX] = "";
    if (loop->sync.phase == SYNC_STOPPED) return loop->sync.text;
    sync_waits_for(&loop->sync, what, sizeof what);
    uint64_t heard = heartbeat_heard_us(&loop->heartbeat);
    if (heard && now_us > heard + HEARTBEAT_SILENT_US)
        snprintf(loop->text, sizeof loop->text, "the coordinator (no answer for %s)%s%s",
                 units_whole_seconds((double)(now_us - heard) / 1e6).text,
                 loop->sync.phase == SYNC_JOINED ? ", then for " : "", loop->sync.phase == SYNC_JOINED ? what : "");
    else
        snprintf(loop->text, sizeof loop->text, "%s", what);
    return loop->text;
}

struct heartbeat *outer_loop_heartbeat(struct outer_loop *loop)
{
    return &loop->heartbeat;
}

const struct msg_assign *outer_loop_assignment(const struct outer_loop *loop)
{
    const struct sync *s = &loop->sync;
    if (s->computing) return &loop->segment;
    return s->state == WORKER_TRAINING ? &s->current : s->has_task ? &s->task : NULL;
}

const struct msg_eval *outer_loop_evaluation(const struct outer_loop *loop)
{
    return loop->sync.eval.pending || loop->sync.eval.running ? &loop->sync.eval.piece : NULL;
}

uint32_t outer_loop_first_step(const struct outer_loop *loop)
{
    return loop->sync.step;
}

const float *outer_loop_params(const struct outer_loop *loop)
{
    return loop->live && loop->sync.computing ? loop->live : loop->theta;
}

const float *outer_loop_theta(const struct outer_loop *loop)
{
    return loop->theta;
}

bool outer_loop_holds(const struct outer_loop *loop)
{
    return loop->configured && loop->sync.holds;
}

uint64_t outer_loop_version(const struct outer_loop *loop, uint32_t fragment)
{
    return fragment < loop->n_fragments ? loop->sync.f[fragment].version : 0;
}

const struct outer_times *outer_loop_times(const struct outer_loop *loop)
{
    return &loop->times;
}

bool outer_loop_on_device(const struct outer_loop *loop)
{
    return loop->delta_device != NULL;
}

const float *outer_loop_device_params(const struct outer_loop *loop)
{
    return loop->delta_device ? delta_device_base(loop->delta_device) : NULL;
}

void outer_loop_train_begin(struct outer_loop *loop, uint64_t now_us)
{
    if (!sync_wants_training(&loop->sync)) return;
    bool new_round = loop->sync.round == SYNC_NO_ROUND;
    sync_train_begin(&loop->sync, now_us);
    assert(!loop->save.running || outer_save_is_beside(loop));
    sync_segment_task(&loop->sync, &loop->segment);
    if (new_round && loop->reset_inner) outer_reset_inner_opt(loop);
    outer_segment_begin(loop, new_round);
    for (uint32_t i = 0; loop->adds && i < loop->n_fragments; i++) feedback_ready(&loop->f[i].fb, loop->model.pool);
    if (new_round)
        outer_anchor_all(loop);
    else if (loop->idle_us)
        loop->running.wait_s += outer_wait_seconds(loop, loop->idle_us, now_us);
    loop->idle_us = 0;
    if (new_round && sync_is_sent(&loop->sync, 0)) outer_send_at_start(loop, now_us);
    update_heartbeat(loop);
}

bool outer_loop_computing(const struct outer_loop *loop)
{
    const struct sync *s = &loop->sync;
    return s->computing && !s->done && s->phase != SYNC_STOPPED;
}

bool outer_loop_exchanges(const struct outer_loop *loop)
{
    return outer_loop_computing(loop) && (loop->sync.overlaps || loop->async) && !loop->initial;
}

void outer_loop_train_step(struct outer_loop *loop, uint32_t step, uint64_t step_us)
{
    heartbeat_set_step(&loop->heartbeat, loop->sync.step + step, step_us);
}

void outer_loop_eval_begin(struct outer_loop *loop, uint64_t now_us)
{
    if (!sync_wants_eval(&loop->sync)) return;
    sync_eval_begin(&loop->sync, now_us);
    outer_anchor_all(loop);
    update_heartbeat(loop);
}

void outer_loop_eval_done(struct outer_loop *loop, double loss_sum, const struct wire_part *parts, uint64_t now_us)
{
    sync_eval_done(&loop->sync, loss_sum, parts, now_us);
    outer_loop_tick(loop, now_us);
}

uint64_t outer_loop_session(const struct outer_loop *loop)
{
    return loop->sync.phase == SYNC_JOINED ? loop->sync.session : 0;
}

enum status outer_loop_metrics(struct outer_loop *loop, const struct msg_metrics *metrics)
{
    uint64_t session = outer_loop_session(loop);
    if (!session) return STATUS_CLOSED;
    loop->out.type = MSG_METRICS;
    loop->out.metrics = *metrics;
    loop->out.metrics.session = session;
    return outer_send(loop, WIRE_CONTROL);
}

void outer_loop_leave(struct outer_loop *loop, const char *text, uint64_t now_us)
{
    const struct sync *s = &loop->sync;
    outer_save_finish(loop);
    bool training = s->state == WORKER_TRAINING || (s->round != SYNC_NO_ROUND && !sync_all_sent(s));
    /* An abandoned step of ddp changed no state: it can be saved as the end of the previous round. */
    bool whole = !training || (loop->configured && loop->model.config->train.method == METHOD_DDP);
    uint64_t round = s->round != SYNC_NO_ROUND && !training ? s->round : s->last_round;
    bool boundary = loop->configured && s->holds && whole && round != SYNC_NO_ROUND;
    if (boundary && loop->save.saved_round != round && config_worker_every(loop->model.config)) {
        loop->save.pace.asked = true; /* no copy: nothing changes the state now */
        loop->save.pace.beside = false;
        outer_save_begin(loop, round, now_us);
        outer_save_finish(loop);
    }
    sync_leave(&loop->sync, text, now_us);
    outer_loop_tick(loop, now_us);
}
