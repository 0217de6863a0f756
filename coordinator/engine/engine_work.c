#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/text.h"
#include "common/config/codec_choice.h"
#include "compress/codec.h"
#include "coordinator/engine/engine_impl.h"

/* --- closing ------------------------------------------------------------------------------------------------------ */

/* Emits the event of a time limit, with the names of the late workers. */
static void emit_late(struct engine *e, const struct round_close *close)
{
    char limit[160], names[300] = "", text[WIRE_TEXT_MAX];
    const struct round *r = &e->ledger.round;
    for_each_member(&r->members, m) {
        if (!member_has(m, close->fragment, PART_WAITED)) continue;
        text_add(names, sizeof names, "%s%s", names[0] ? ", " : "", m->name);
    }
    snprintf(text, sizeof text, "closing round %llu without %s: the quorum has delivered, time limit %s",
             (unsigned long long)r->round + 1, names, deadline_text(&close->limit, limit, sizeof limit));
    engine_emit_text(e, ENGINE_EVENT_FAULT, NULL, text);
}

/* Rejects running uploads of dropped parts, so that their workers stop sending. */
static enum status reject_dropped(struct engine *e, uint32_t fragment, struct err *err)
{
    for_each_session(e, s) {
        const struct member *m = engine_member(e, s);
        if (!m || !s->uploads[fragment].active || m->work.parts[fragment].state != PART_DROPPED) continue;
        session_upload_drop(&e->sessions, fragment, &s->uploads[fragment]);
        TRY(engine_reject(e, s, m->work.round, fragment, REJECT_LATE, "too late: its round closed without it", err));
    }
    return STATUS_OK;
}

static void emit_update(struct engine *e, const struct round_close *close)
{
    const struct ledger *l = &e->ledger;
    bool of_means = layout_is_mean(&l->layout, close->fragment);
    struct engine_event event = {
        .kind = ENGINE_EVENT_UPDATE,
        .update = {.fragment = close->fragment,
                   .version = l->round.versions[close->fragment],
                   .round = round_done(&l->round),
                   .tokens = l->round.tokens,
                   .lr = l->outer.lr,
                   .codec = of_means ? codec_spec(l->outer.fragments[close->fragment].down) : l->down,
                   .update_bytes = l->down_bytes}};
    if (config_down(&e->config) == CONFIG_DOWN_AUTO && !of_means) {
        event.update.compared = true;
        event.update.relay_bytes = l->down_ways[0];
        event.update.union_bytes = l->down_ways[1];
    }
    engine_emit(e, &event);
}

struct closing {
    struct engine *e;
    const struct round_close *close;
    const struct record_clock *clock;
};

static enum status merge_and_journal(void *arg, struct err *err)
{
    const struct closing *c = arg;
    struct engine *e = c->e;
    struct ledger *l = &e->ledger;
    TRY(ledger_close(l, c->close, c->clock, err));
    if (config_syncs_updates(&e->config)) TRY(journal_sync(&l->journal, err));
    return STATUS_OK;
}

/* Bytes that a merge reads and writes: the deltas, theta and the optimizer's state. */
static uint64_t merged_bytes(const struct engine *e, const struct round_close *close)
{
    const struct ledger *l = &e->ledger;
    if (config_syncs_updates(&e->config)) return ENGINE_SYNCS;
    uint64_t bytes = 3 * sizeof(float) * l->layout.fragments[close->fragment].count;
    for (uint32_t i = 0; i < close->n; i++) bytes += round_close_part(&l->round, close, i)->bytes;
    return bytes;
}

static enum status close_one(struct engine *e, const struct round_close *close, struct err *err)
{
    struct ledger *l = &e->ledger;
    struct record_clock clock = engine_clock(e);
    assert(close->n > 0);
    uint64_t version = l->round.versions[close->fragment];
    uint32_t last = close->ids[close->n - 1];
    const struct session *s = session_by_member(&e->sessions, last);
    if (close->late) emit_late(e, close);
    struct closing closing = {e, close, &clock};
    TRY(engine_long(e, merged_bytes(e, close), merge_and_journal, &closing, err));
    assert(l->round.versions[close->fragment] == version + 1);
    TRY(engine_updated(e, close, err));
    if (e->config.train.method == METHOD_ASYNC && s) engine_eval_prefer(e, s->id);
    for_each_session(e, other) admission_refresh_ready(e, other);
    return STATUS_OK;
}

enum status engine_updated(struct engine *e, const struct round_close *close, struct err *err)
{
    round_note_update(&e->ledger.round, close->fragment, e->now_us);
    e->rate.updates++;
    e->updated_us = e->now_us;
    emit_update(e, close);
    uint64_t done = e->seen_rounds;
    engine_round_follow(e, RECORD_UPDATE, 0);
    if (round_done(&e->ledger.round) > done) engine_snapshot_note_round(e);
    engine_wake_gets(e, close);
    return reject_dropped(e, close->fragment, err);
}

/* A region: the deltas of the round are fixed. Durable before one byte of their merge goes upstream: after a crash this
 * region offers the same bytes. */
static enum status seal_round(struct engine *e, const struct round_close *close, struct err *err)
{
    struct record_seal seal = {.round = e->ledger.round.round};
    if (close->late) emit_late(e, close);
    TRY(engine_write(e, RECORD_SEAL, &seal, NULL, err));
    TRY(engine_sync(e, err));
    for (uint32_t f = 0; f < e->ledger.layout.n_fragments; f++) TRY(reject_dropped(e, f, err));
    return STATUS_OK;
}

enum status engine_close_fragments(struct engine *e, bool *any_p, struct err *err)
{
    struct round *r = &e->ledger.round;
    struct round_close close;
    while (round_next_close(r, e->now_us, &close)) {
        uint64_t done = round_done(r);
        *any_p = true;
        if (e->ledger.region) return seal_round(e, &close, err);
        admission_gate(e, &close);
        TRY(close_one(e, &close, err));
        assert(round_done(r) >= done);
        if (round_done(r) == done) continue;
        round_note_close(r, e->now_us);
        TRY(engine_checkpoint_due(e, err));
    }
    return STATUS_OK;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Epochs that work before the outstanding one got. */
static double run_epoch(const struct engine *e)
{
    const struct lease_book *book = &e->ledger.round.leases;
    uint64_t samples = e->ledger.model.train_samples;
    return samples ? (double)(book->cursor - lease_outstanding(book)) / (double)samples : 0;
}

/* What ASSIGN says of the run. It costs a pass over all workers: once for a round. */
struct run_pace {
    double lr, epoch;
};

static struct run_pace run_pace(const struct engine *e, uint64_t round)
{
    return (struct run_pace){engine_run_lr(e, round), run_epoch(e)};
}

static void send_assign(struct engine *e, struct session *s, const struct member *m, const struct run_pace *pace)
{
    const struct assignment *work = &m->work;
    assert(work->open && work->n_ranges > 0 && work->n_ranges <= WIRE_RANGES_MAX);
    struct msg msg = {.type = MSG_ASSIGN,
                      .assign = {.round = work->round,
                                 .worker_id = m->id,
                                 .steps = work->steps,
                                 .step0 = work->step0,
                                 .step_rate = work->step_rate,
                                 .lr = pace->lr,
                                 .epoch = pace->epoch,
                                 .n_ranges = work->n_ranges,
                                 .n_fragments = e->ledger.layout.n_fragments}};
    memcpy(msg.assign.ranges, work->ranges, sizeof msg.assign.ranges);
    memcpy(msg.assign.versions, work->versions, e->ledger.layout.n_fragments * sizeof *work->versions);
    engine_send_control(e, s, &msg);
}

void engine_send_assign(struct engine *e, struct session *s, const struct member *m)
{
    struct run_pace pace = run_pace(e, m->work.round);
    send_assign(e, s, m, &pace);
}

static enum status write_open(struct engine *e, const struct round_open *open, struct err *err)
{
    struct record_open record = {.clock = engine_clock(e), .n_fragments = e->ledger.layout.n_fragments, .open = *open};
    enum status status = engine_write(e, RECORD_OPEN, &record, NULL, err);
    /* Sync before the worker sees its assignment: after a power cut the same ranges must not be handed out again. */
    return status == STATUS_OK && config_syncs_updates(&e->config) ? engine_sync(e, err) : status;
}

/* Gives places to all sessions when min_workers are ready for the first round. */
static enum status seat_first(struct engine *e, struct err *err)
{
    uint32_t ready = 0;
    if (e->ledger.round.members.n) return STATUS_OK;
    for_each_session(e, s) ready += s->ready_us > 0;
    return ready >= e->config.coordinator.min_workers ? engine_seat_all(e, err) : STATUS_OK;
}

enum status engine_open_work(struct engine *e, bool *any_p, struct err *err)
{
    struct ledger *l = &e->ledger;
    struct round_open open;
    if (l->done || engine_eval_blocks(e) || engine_budget_closes(e)) return STATUS_OK;
    TRY(seat_first(e, err));
    if (ledger_room(l) != STATUS_OK) return err_set(err, STATUS_NOMEM, "no memory for assignments");
    open.grants = l->grants;
    enum status status = round_plan(&l->round, e->now_us, &open);
    if (status != STATUS_OK) return err_set(err, status, "all positions of the sample order are used");
    if (!open.n) return STATUS_OK;
    uint32_t ids[WIRE_NAMED_MAX], n = open.n < WIRE_NAMED_MAX ? open.n : WIRE_NAMED_MAX;
    for (uint32_t i = 0; i < n; i++) ids[i] = open.grants[i].id;
    TRY(write_open(e, &open, err));
    assert(round_busy(&l->round));
    round_note_open(&l->round, e->now_us);
    struct run_pace pace = run_pace(e, member_by_id(&l->round.members, ids[0])->work.round); /* the same for all */
    for (uint32_t i = 0; i < n; i++) {
        struct session *s = session_by_member(&e->sessions, ids[i]);
        if (!s) continue;
        send_assign(e, s, member_by_id(&l->round.members, ids[i]), &pace);
        if (s->last.state == WORKER_READY) s->last.state = WORKER_TRAINING; /* until its next heartbeat */
        admission_refresh_ready(e, s);
    }
    *any_p = true;
    return STATUS_OK;
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

bool engine_awaits_last(const struct engine *e, const struct session *s)
{
    uint64_t since = s->moved_us > e->done_us ? s->moved_us : e->done_us;
    const struct member *m = engine_member(e, s);
    assert(e->ledger.done);
    if (m && !m->in_step && !e->found_done && admission_lack_of(e, s->last.versions, s->last.n_fragments).updates > 1)
        return false; /* it had no part in the end of the run */
    if (s->closed || s->silent || s->last.state == WORKER_TRAINING || s->last.state == WORKER_EVALUATING) return false;
    return (!s->beating || admission_lacks_update(e, s)) && e->now_us - since < ENGINE_LAST_US;
}

void engine_send_done(struct engine *e, const struct session *s)
{
    struct ledger *l = &e->ledger;
    struct msg m = {.type = MSG_DONE, .done.n_fragments = l->layout.n_fragments};
    for (uint32_t f = 0; f < l->layout.n_fragments; f++)
        m.done.final[f] = (struct wire_version){l->round.versions[f], l->outer.fragments[f].hash};
    snprintf(m.done.text, sizeof m.done.text, "the run is complete: %llu rounds, %llu tokens",
             (unsigned long long)round_total(&l->round), (unsigned long long)l->round.tokens);
    engine_send_control(e, s, &m);
}

enum status engine_finish_run(struct engine *e, bool *any_p, struct err *err)
{
    struct ledger *l = &e->ledger;
    bool over = l->region ? e->region.done : round_over(&l->round) && !round_busy(&l->round);
    if (l->done || !over || !engine_eval_complete(e)) return STATUS_OK;
    engine_flush_round(e, NAN, NAN); /* pending only if the run has no validation data */
    if (engine_newest(e)->round != round_done(&l->round)) TRY(engine_checkpoint(e, err));
    struct record_clock clock = engine_clock(e);
    TRY(ledger_write(l, RECORD_DONE, &clock, NULL, err));
    TRY(engine_sync(e, err));
    assert(l->done && engine_newest(e)->round == round_done(&l->round));
    e->done_us = e->now_us;
    struct engine_event event = {.kind = ENGINE_EVENT_DONE,
                                 .done = {.round = round_done(&l->round), .tokens = l->round.tokens, .val_loss = NAN}};
    if (l->eval_tokens) event.done.val_loss = l->eval_loss_sum / (double)l->eval_tokens;
    engine_emit(e, &event);
    for_each_session(e, s) {
        if (!engine_awaits_last(e, s)) engine_send_done(e, s);
    }
    *any_p = true;
    return STATUS_OK;
}
