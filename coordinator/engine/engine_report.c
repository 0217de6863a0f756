#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/number.h"
#include "common/base/text.h"
#include "common/base/units.h"
#include "common/os/json_file.h"
#include "common/os/run_status.h"
#include "coordinator/engine/engine_impl.h"
#include "coordinator/outer/outer_arrays.h"

enum { WAITING_KEPT_US = 100000 };

/* --- waiting line ------------------------------------------------------------------------------------------------- */

struct line {
    char *out;
    size_t cap;
    int n;
    const char *rule; /* of the eviction that the line announces; NULL: none */
};

/* No more text fits. */
static bool is_full(const struct line *line)
{
    return strlen(line->out) + 1 >= line->cap;
}

static struct units_text whole_seconds(uint64_t us)
{
    return units_whole_seconds((double)us * 1e-6);
}

/* Adds the time until an absent member is evicted. The line ends with the rule of the last one. */
static void add_eviction(const struct engine *e, struct line *line, const struct session *s, const struct member *m)
{
    if (m && m->active && admission_anyone_here(e)) {
        uint64_t at = m->heard_us + admission_evict_after_us(e, s);
        text_add(line->out, line->cap, ", evicted in %s", whole_seconds(at > e->now_us ? at - e->now_us : 0).text);
        line->rule = admission_evict_rule(e, s);
    }
    text_add(line->out, line->cap, ")");
}

/* Adds the time without progress. Heartbeats continue while a disk or device hangs, and only the operator can tell that
 * from a long step. */
static void add_standstill(const struct engine *e, struct line *line, const struct session *s)
{
    uint64_t still = e->now_us - s->moved_us;
    if (still >= admission_evict_after_us(e, NULL))
        text_add(line->out, line->cap, ", no progress for %s", whole_seconds(still).text);
    text_add(line->out, line->cap, ")");
}

/* The worker sends a delta or receives an object: its bytes must move. */
static bool is_moving(const struct engine *e, const struct session *s)
{
    if (!s->beating || s->last.state == WORKER_FINISHED) return false;
    if (s->last.state == WORKER_SENDING || s->last.expected) return true;
    return s->last.state == WORKER_WAITING && admission_lacks_update(e, s);
}

/* "training, step 12/30", "receiving update, 43 % at 9.8 Mbit/s": its state, and what its link does meanwhile. */
static const char *activity_of(const struct engine *e, const struct session *s, char *out, size_t cap)
{
    char progress[48], late[160];
    uint8_t state = s->last.state;
    if (!s->beating)
        snprintf(out, cap, "joining");
    else if (state == WORKER_READY && admission_is_late(e, s))
        snprintf(out, cap, "catching up, %s", admission_late_text(e, s, late, sizeof late));
    else if (state == WORKER_TRAINING)
        snprintf(out, cap, "training, step %u/%u", s->last.step, s->last.steps);
    else if (state == WORKER_SENDING)
        snprintf(out, cap, "sending delta%s", transfer_text(&s->up, progress, sizeof progress));
    else if (is_moving(e, s))
        snprintf(out, cap, "receiving %s%s", state == WORKER_CATCHING_UP ? "parameters" : "update",
                 transfer_text(&s->down, progress, sizeof progress));
    else
        snprintf(out, cap, "%s", session_state_name(state));
    if (s->path_stuck) text_add(out, cap, ", the path " PATH_WATCH_TEXT);
    return out;
}

/* Adds "worker-1 (training, step 12/30)". m NULL: it has no place yet. */
static void add_worker(const struct engine *e, struct line *line, const char *name, const struct session *s,
                       const struct member *m)
{
    char activity[192];
    text_add(line->out, line->cap, "%s%s (", line->n++ ? ", " : "", name);
    if (!s) {
        text_add(line->out, line->cap, "not connected");
        add_eviction(e, line, s, m);
    } else if (m && admission_is_aside(e, m)) {
        char text[WIRE_TEXT_MAX];
        text_add(line->out, line->cap, "%s)", admission_aside_text(e, m, text, sizeof text));
    } else if (s->closed || admission_is_silent(e, s)) {
        text_add(line->out, line->cap, "%s for %s", s->closed ? "connection closed, silent" : "silent",
                 whole_seconds(e->now_us - s->heard_us).text);
        add_eviction(e, line, s, m);
    } else if (s->last.state == WORKER_TRAINING || is_moving(e, s)) {
        text_add(line->out, line->cap, "%s", activity_of(e, s, activity, sizeof activity));
        add_standstill(e, line, s);
    } else {
        text_add(line->out, line->cap, "%s)", activity_of(e, s, activity, sizeof activity));
    }
}

static void waiting_eval(const struct engine *e, struct line *line)
{
    text_add(line->out, line->cap, "the evaluation: ");
    for (uint32_t i = 0; i < e->eval.n; i++) {
        const struct eval_share *share = &e->eval.shares[i];
        const struct session *s = session_by_id(&e->sessions, share->holder);
        if (is_full(line)) return;
        if (share->done) continue;
        if (s)
            add_worker(e, line, s->name, s, engine_member(e, s));
        else
            text_add(line->out, line->cap, "%sa free worker", line->n++ ? ", " : "");
    }
}

static void waiting_work(const struct engine *e, struct line *line)
{
    const struct round *r = &e->ledger.round;
    bool async = e->config.train.method == METHOD_ASYNC;
    uint32_t missing = 0, all = 0; /* members whose delta the round waits for; members with a place in the round */
    for_each_member(&r->members, m) {
        missing += member_waits(m);
        all += m->active && m->next_round == r->round + 1;
    }
    if (async)
        text_add(line->out, line->cap, "the next delta%s", missing ? ": " : "");
    else
        text_add(line->out, line->cap, "round %llu: %u of %u deltas are in%s", (unsigned long long)r->round + 1,
                 all > missing ? all - missing : 0, all, missing ? ", missing: " : "");
    for_each_member(&r->members, m) {
        if (is_full(line)) return;
        if (member_waits(m)) add_worker(e, line, m->name, session_by_member(&e->sessions, m->id), m);
    }
}

static void waiting_ready(const struct engine *e, struct line *line)
{
    uint32_t ready = 0, need = e->config.coordinator.min_workers;
    for_each_session(e, s) ready += s->ready_us > 0;
    text_add(line->out, line->cap, "workers: %u of %u are ready", ready, need);
    for_each_session(e, s) {
        if (is_full(line)) return;
        if (s->ready_us) continue;
        text_add(line->out, line->cap, "%s", line->n ? "" : "; ");
        add_worker(e, line, s->name, s, engine_member(e, s));
    }
}

/* The last delta of every member was refused: without this the line would only call its workers ready, or aside. */
static void add_refused(const struct engine *e, struct line *line)
{
    const struct round *r = &e->ledger.round;
    const char *why = NULL;
    for_each_member(&r->members, m) {
        if (!m->active) continue;
        if (!m->strikes) return;
        if (!why || !why[0]) why = m->refused;
    }
    if (why) text_add(line->out, line->cap, "; all deltas refused%s%s", why[0] ? ": " : "", why);
}

/* A region waits for upstream: for its model, a grant, or an update with its delta. */
static bool waits_upstream(const struct engine *e)
{
    const struct round *r = &e->ledger.round;
    if (!e->ledger.region || !e->ledger.modelled) return false;
    return e->ledger.absent || r->region.sealed || (!round_busy(r) && r->region.granted != r->round + 1);
}

static void waiting_upstream(const struct engine *e, struct line *line)
{
    const char *what = e->ledger.absent ? "the model of the run upstream" : "the run upstream";
    text_add(line->out, line->cap, "%s%s%s", what, e->region.waits[0] ? ": " : "", e->region.waits);
}

const char *engine_waiting(const struct engine *e, char *out, size_t cap)
{
    struct line line = {.out = out, .cap = cap};
    out[0] = 0;
    if (e->ledger.done) return out;
    if (e->initial.id)
        engine_initial_text(e, out, cap);
    else if (!e->ledger.modelled)
        text_add(line.out, line.cap, "the first worker to join");
    else if (e->eval.open && (engine_eval_blocks(e) || e->eval.final))
        waiting_eval(e, &line);
    else if (waits_upstream(e))
        waiting_upstream(e, &line);
    else if (round_busy(&e->ledger.round))
        waiting_work(e, &line);
    else
        waiting_ready(e, &line);
    add_refused(e, &line);
    if (line.rule) text_add(line.out, line.cap, "; eviction: %s", line.rule);
    text_make_clean(out); /* the text may end inside a UTF-8 character */
    return out;
}

const char *engine_waiting_kept(struct engine *e)
{
    if (e->waiting_us && e->now_us - e->waiting_us < WAITING_KEPT_US) return e->waiting;
    e->waiting_us = e->now_us;
    return engine_waiting(e, e->waiting, sizeof e->waiting);
}

void engine_emit_restart(struct engine *e)
{
    char text[WIRE_TEXT_MAX] = "continuing the run in this folder";
    const struct round *r = &e->ledger.round;
    struct line line = {.out = text, .cap = sizeof text};
    bool waits = e->config.train.method != METHOD_ASYNC && !e->ledger.done;
    for_each_member(&r->members, m) {
        if (!waits || !m->active || (!m->in_step && !m->work.open)) continue;
        if (!line.n)
            text_add(line.out, line.cap, " at round %llu of %llu; waiting for ", (unsigned long long)r->round + 1,
                     (unsigned long long)round_total(r));
        text_add(line.out, line.cap, "%s%s", line.n++ ? ", " : "", m->name);
    }
    if (line.n > 1)
        text_add(line.out, line.cap, "; after the first of them is here, the others have %s (%s)",
                 whole_seconds(admission_evict_after_us(e, NULL)).text, admission_evict_rule(e, NULL));
    text_make_clean(text);
    struct engine_event event = {.kind = ENGINE_EVENT_RESTART, .restart.text = text};
    if (e->ledger.modelled) event.restart = (struct engine_event_restart){text, true, round_done(r), round_total(r)};
    engine_emit(e, &event);
}

/* Fills the summary except theta_hash, which needs a pass over theta. */
static void totals(const struct engine *e, struct engine_summary *out)
{
    const struct ledger *l = &e->ledger;
    struct record_clock clock = e->ledger.done ? e->ledger.clock : engine_clock(e);
    *out = (struct engine_summary){.done = l->done,
                                   .restarts = l->starts,
                                   .final_val_loss = NAN,
                                   .wall_s = (double)clock.elapsed_us * 1e-6,
                                   .bytes_up = clock.bytes_up,
                                   .bytes_down = clock.bytes_down,
                                   .other_up = clock.other_up,
                                   .other_down = clock.other_down};
    if (!l->modelled) return;
    out->params = l->layout.n_params;
    out->tokens = l->round.tokens;
    out->worker_steps = l->round.worker_steps;
    out->rounds = round_done(&l->round);
    out->compute_s = (double)l->round.compute_us * 1e-6;
    for_each_member(&l->round.members, m) out->workers += m->tokens > 0;
    out->steps = round_span(&l->round, out->rounds).first;
    if (l->eval_final && l->eval_tokens) out->final_val_loss = l->eval_loss_sum / (double)l->eval_tokens;
    out->val_tokens = l->eval_tokens;
    out->val_by_one = l->eval_by_one;
}

/* --- status ------------------------------------------------------------------------------------------------------- */

/* Details of a status, from most to least; the largest one that fits is sent:
 * - ALL: all workers; HERE: only workers that are not gone; STATES: only their names and states; NONE: no worker. */
enum detail { DETAIL_ALL, DETAIL_HERE, DETAIL_STATES, DETAIL_NONE };

static bool is_gone(const struct member *m, const struct session *s)
{
    return !s && (!m->active || m->left);
}

static const char *worker_state(const struct engine *e, const struct member *m, const struct session *s)
{
    if (!s) return is_gone(m, s) ? "gone" : "lost";
    if (s->closed) return "closed";
    if (admission_is_silent(e, s)) return "silent";
    if (m && admission_is_aside(e, m)) return "aside";
    if (s->beating && s->last.state == WORKER_READY && admission_is_late(e, s))
        return session_state_name(WORKER_CATCHING_UP);
    return s->beating ? session_state_name(s->last.state) : "joining";
}

/* One row of "workers": every row has the same keys, null where the value is unknown. */
static json_t *worker_json(const struct engine *e, const char *name, const struct member *m, const struct session *s,
                           enum detail detail)
{
    char activity[192];
    bool beating = s && s->beating;
    json_t *o = json_object();
    char text[WIRE_TEXT_MAX];
    json_object_set_new(o, "name", json_string(name));
    json_object_set_new(o, "id", m ? json_integer(m->id) : json_null());
    json_object_set_new(o, "connected", json_boolean(s != NULL));
    json_object_set_new(o, "state", json_string(worker_state(e, m, s)));
    if (detail == DETAIL_STATES) return o;
    json_object_set_new(o, "round",
                        beating && s->last.round != UINT64_MAX ? json_integer((json_int_t)s->last.round) : json_null());
    json_object_set_new(o, "step", beating ? json_integer(s->last.step) : json_null());
    json_object_set_new(o, "steps", beating ? json_integer(s->last.steps) : json_null());
    json_object_set_new(o, "step_s", beating ? json_real(s->last.step_s) : json_null());
    json_object_set_new(o, "silent_s", s ? json_real((double)(e->now_us - s->heard_us) * 1e-6) : json_null());
    json_object_set_new(o, "tokens", m ? json_integer((json_int_t)m->tokens) : json_null());
    json_object_set_new(o, "steps_merged", m ? json_integer((json_int_t)m->steps) : json_null());
    json_object_set_new(o, "devices", s ? json_string(s->devices) : json_null());
    json_object_set_new(o, "doing", s ? json_string(activity_of(e, s, activity, sizeof activity)) : json_null());
    json_object_set_new(o, "aside",
                        m && admission_is_aside(e, m) ? json_string(admission_aside_text(e, m, text, sizeof text))
                                                      : json_null());
    json_object_set_new(o, "saves_every", s && s->saves.every ? json_integer(s->saves.every) : json_null());
    json_object_set_new(o, "kill_costs_rounds", s && s->saves.every ? json_integer(s->saves.worst) : json_null());
    json_object_set_new(o, "norm_ratio", m && m->norm_ratio > 0 ? json_real(m->norm_ratio) : json_null());
    return o;
}

/* Adds "workers", and the numbers of omitted workers: "workers_gone", "workers_not_listed". */
static void add_workers(json_t *o, const struct engine *e, enum detail detail)
{
    json_t *list = json_array();
    uint32_t gone = 0, hidden = 0;
    for_each_member(&e->ledger.round.members, m) {
        const struct session *s = session_by_member(&e->sessions, m->id);
        if (is_gone(m, s) && !m->tokens) continue; /* it contributed nothing, and its place is free */
        if (detail != DETAIL_ALL && is_gone(m, s))
            gone++;
        else if (detail == DETAIL_NONE)
            hidden++;
        else
            json_array_append_new(list, worker_json(e, m->name, m, s, detail));
    }
    for_each_session(e, s) {
        if (s->member != SESSION_NO_MEMBER) continue;
        if (detail == DETAIL_NONE)
            hidden++;
        else
            json_array_append_new(list, worker_json(e, s->name, NULL, s, detail));
    }
    run_status_set(o, "workers", list);
    run_status_set(o, "workers_gone", json_integer(gone));
    run_status_set(o, "workers_not_listed", json_integer(hidden));
}

static const char *state_name(const struct engine *e)
{
    if (e->ledger.done) return "done";
    if (e->eval.open && engine_eval_blocks(e)) return "evaluating";
    return e->ledger.modelled && round_busy(&e->ledger.round) ? "training" : "waiting";
}

/* Adds "deltas_refused", the number of refused deltas, and "refused_for", the number for each reason. */
static void add_refusals(json_t *o, const struct engine *e)
{
    static const char *const reasons[] = {
        [REJECT_LATE] = "late",           [REJECT_STALE] = "stale",     [REJECT_BASE] = "base",
        [REJECT_NONFINITE] = "nonfinite", [REJECT_CORRUPT] = "corrupt", [REJECT_UNASSIGNED] = "unassigned"};
    json_t *by_reason = json_object();
    uint64_t all = 0;
    for (size_t i = REJECT_LATE; i < sizeof reasons / sizeof *reasons; i++) {
        all += e->rejected[i];
        if (e->rejected[i]) json_object_set_new(by_reason, reasons[i], json_integer((json_int_t)e->rejected[i]));
    }
    run_status_set(o, "deltas_refused", json_integer((json_int_t)all));
    run_status_set(o, "refused_for", by_reason);
}

/* Adds losses and speeds. */
static void add_pace(json_t *o, const struct engine *e, const struct engine_summary *sum)
{
    const struct ledger *l = &e->ledger;
    run_status_real(o, "eta_s", engine_eta_s(e));
    run_status_real(o, "train_loss", e->train_loss);
    run_status_real(o, "val_loss", l->eval_tokens ? l->eval_loss_sum / (double)l->eval_tokens : NAN);
    run_status_real(o, "final_val_loss", sum->final_val_loss);
    if (l->eval_tokens) run_status_set(o, "val_by_one_worker", json_boolean(l->eval_by_one));
    run_status_real(o, "tokens_per_s", pace_tokens_per_s(&e->pace));
    run_status_real(o, "wall_s", sum->wall_s);
    if (sum->wall_s > 0 && sum->workers) run_status_real(o, "utilization", sum->compute_s / sum->wall_s / sum->workers);
    if (e->link_text[0]) run_status_set(o, "bottleneck", json_string(e->link_text));
}

/* What the kill of a worker costs that does not save its state each round. */
static void note_saves(json_t *notes, const struct engine *e)
{
    enum { NAMED_MAX = 4 };
    uint32_t n = 0;
    for_each_session(e, s) {
        if (s->saves.every <= 1 || n++ >= NAMED_MAX) continue;
        json_array_append_new(notes, json_sprintf("%s saves its state every %u rounds: a kill costs at most %u rounds "
                                                  "of its optimizer state",
                                                  s->name, s->saves.every, s->saves.worst));
    }
    if (n > NAMED_MAX)
        json_array_append_new(notes, json_sprintf("%u more workers do not save their state each round", n - NAMED_MAX));
}

static void add_notes(json_t *o, const struct engine *e)
{
    json_t *notes = json_array();
    for (int i = 0; i < ENGINE_NOTES; i++)
        if (e->notes[i][0]) json_array_append_new(notes, json_string(e->notes[i]));
    note_saves(notes, e);
    run_status_set(o, "notes", notes);
}

/* Adds "alerts", those that fire, and "alerts_total", the starts of each rule in this process. */
static void add_alerts(json_t *o, const struct engine *e)
{
    json_t *firing = json_array(), *total = json_object();
    for (uint32_t i = 0; i < e->alerts.n; i++) {
        const struct alert *a = &e->alerts.firing[i];
        json_array_append_new(firing, json_pack("{s:s,s:s?,s:s,s:f}", "rule", alert_rule_name(a->rule), "worker",
                                                a->worker[0] ? a->worker : NULL, "text", a->text, "since_s",
                                                (double)(e->now_us - a->since_us) * 1e-6));
    }
    for (int rule = 0; rule < ALERT_RULES; rule++)
        json_object_set_new(total, alert_rule_name((enum alert_rule)rule),
                            json_integer((json_int_t)e->alerts.total[rule]));
    run_status_set(o, "alerts", firing);
    run_status_set(o, "alerts_total", total);
}

static void add_fragments(json_t *o, const struct engine *e)
{
    const struct ledger *l = &e->ledger;
    char hash[20];
    json_t *versions = json_array();
    for (uint32_t f = 0; l->modelled && f < l->layout.n_fragments; f++) {
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)l->outer.fragments[f].hash);
        json_array_append_new(versions,
                              json_pack("{s:I,s:s}", "version", (json_int_t)l->round.versions[f], "hash", hash));
    }
    run_status_set(o, "fragments", versions);
}

static json_t *status_object(const struct engine *e)
{
    const struct ledger *l = &e->ledger;
    struct engine_summary sum;
    char text[WIRE_TEXT_MAX], id[2 * WIRE_UUID + 1];
    json_t *o = run_status_new();
    totals(e, &sum);
    run_status_set(o, "state", json_string(state_name(e)));
    run_status_set(o, "run", json_string(e->config.run.name));
    run_status_set(o, "run_id", json_string(number_hex_text(l->run_id, WIRE_UUID, id)));
    run_status_set(o, "method", json_string(config_method_name(e->config.train.method)));
    run_status_progress(o, (json_int_t)sum.rounds, l->modelled ? (json_int_t)round_total(&l->round) : 0);
    if (*engine_waiting(e, text, sizeof text)) run_status_set(o, "waiting_for", json_string(text));
    add_pace(o, e, &sum);
    run_status_set(o, "tokens", json_integer((json_int_t)sum.tokens));
    run_status_set(o, "steps", json_integer((json_int_t)sum.steps));
    run_status_set(o, "params", json_integer((json_int_t)sum.params));
    run_status_set(o, "bytes_up", json_integer((json_int_t)sum.bytes_up));
    run_status_set(o, "bytes_down", json_integer((json_int_t)sum.bytes_down));
    run_status_set(o, "other_bytes_up", json_integer((json_int_t)sum.other_up));
    run_status_set(o, "other_bytes_down", json_integer((json_int_t)sum.other_down));
    run_status_set(o, "restarts", json_integer((json_int_t)sum.restarts));
    if (l->down[0]) run_status_set(o, "down", json_string(l->down));
    if (l->modelled && l->state_file >= 0)
        run_status_set(o, "file_bytes", json_integer((json_int_t)outer_arrays_bytes(&e->config, &l->layout)));
    if (e->config.train.method == METHOD_ASYNC) run_status_set(o, "staleness", json_counts(e->stale, ROUND_STALENESS));
    add_refusals(o, e);
    add_notes(o, e);
    add_alerts(o, e);
    run_status_budget(o, engine_hours(e), e->config.run.max_hours, engine_gb(e), e->config.run.max_gb);
    add_fragments(o, e);
    return o;
}

size_t engine_status_json(const struct engine *e, char *out, size_t cap)
{
    json_t *o = status_object(e);
    size_t n = cap;
    for (int detail = DETAIL_ALL; detail <= DETAIL_NONE && n >= cap; detail++) {
        add_workers(o, e, (enum detail)detail);
        n = json_dumpb(o, out, cap - 1, JSON_COMPACT);
    }
    json_decref(o);
    if (n >= cap) return 0;
    out[n] = 0;
    return n;
}

/* --- summary ------------------------------------------------------------------------------------------------------ */

void engine_summary(const struct engine *e, struct engine_summary *out)
{
    const struct ledger *l = &e->ledger;
    totals(e, out);
    if (l->modelled) out->theta_hash = layout_theta_hash(&l->layout, l->outer.theta);
}

const uint8_t *engine_run_id(const struct engine *e)
{
    return e->ledger.run_id;
}

const struct config *engine_config(const struct engine *e)
{
    return &e->config;
}
