#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "coordinator/engine/engine_impl.h"

enum { BEHIND_MAX = 32 }; /* checkpoints beyond checkpoint.keep that are kept for those behind */

/* --- closing ------------------------------------------------------------------------------------------------------ */

/* Who is being left behind, for the line that says a time limit fired. */
static void say_late(struct engine *e, const struct round_close *close)
{
    char limit[160], names[300] = "", text[WIRE_TEXT_MAX];
    const struct round *r = &e->ledger.round;
    for (uint32_t i = 0; i < r->members.n; i++) {
        const struct member *m = r->members.members[i];
        if (!m->work.open || m->work.parts[close->fragment].state != PART_WAITED) continue;
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", m->name);
    }
    snprintf(text, sizeof text, "round %llu closes without %s: a quorum is in, and the time limit of %s has passed",
             (unsigned long long)r->round + 1, names, deadline_text(&close->limit, limit, sizeof limit));
    engine_emit_text(e, ENGINE_EVENT_FAULT, NULL, text);
}

/* Workers that are still sending what can no longer be merged stop at once. */
static enum status reject_dropped(struct engine *e, uint32_t fragment, struct err *err)
{
    for (uint32_t i = 0; i < e->sessions.cap; i++) {
        struct session *s = &e->sessions.sessions[i];
        const struct member *m = s->id ? member_by_id(&e->ledger.round.members, s->member) : NULL;
        if (!m || !s->uploads[fragment].active || m->work.parts[fragment].state != PART_DROPPED) continue;
        upload_drop(&s->uploads[fragment]);
        TRY(engine_reject(e, s, m->work.round, fragment, REJECT_LATE, "the round closed without it", err));
    }
    return STATUS_OK;
}

static void emit_update(struct engine *e, const struct round_close *close)
{
    struct engine_event event;
    engine_event_init(&event, ENGINE_EVENT_UPDATE);
    event.fragment = close->fragment;
    event.version = e->ledger.round.versions[close->fragment];
    event.round = round_done(&e->ledger.round);
    event.tokens = e->ledger.round.tokens;
    event.workers = close->n;
    event.lr = outer_state_lr(&e->ledger.outer, e->ledger.round.round);
    event.codec = e->ledger.down;
    event.update_bytes = e->ledger.down_bytes;
    if (config_down_of(&e->config, close->fragment) == CONFIG_DOWN_AUTO) {
        event.relay_bytes = e->ledger.down_ways[0];
        event.union_bytes = e->ledger.down_ways[1];
    }
    engine_emit(e, &event);
}

static enum status close_one(struct engine *e, const struct round_close *close, struct err *err)
{
    struct ledger *l = &e->ledger;
    struct record_clock clock = engine_clock(e);
    uint32_t last = close->ids[close->n - 1];
    const struct session *s = session_by_member(&e->sessions, last);
    if (close->late) say_late(e, close);
    TRY(ledger_close(l, close, &clock, err));
    if (engine_syncs_updates(e)) TRY(journal_sync(&l->journal, err));
    emit_update(e, close);
    engine_round_follow(e, RECORD_UPDATE, NULL, 0);
    engine_wake_gets(e, close);
    TRY(reject_dropped(e, close->fragment, err));
    if (e->config.train.method == METHOD_ASYNC && s) engine_eval_prefer(e, s->id);
    for (uint32_t i = 0; i < e->sessions.cap; i++)
        if (e->sessions.sessions[i].id) engine_refresh_ready(e, &e->sessions.sessions[i]);
    return STATUS_OK;
}

enum status engine_close_fragments(struct engine *e, bool *any_p, struct err *err)
{
    struct round *r = &e->ledger.round;
    struct round_close close;
    while (round_next_close(r, e->now_us, &close)) {
        uint64_t done = round_done(r);
        TRY(close_one(e, &close, err));
        *any_p = true;
        if (round_done(r) == done) continue;
        round_note_close(r, e->now_us);
        TRY(engine_checkpoint_due(e, err));
    }
    return STATUS_OK;
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

const struct snapshot_info *engine_newest(const struct engine *e)
{
    return e->n_kept ? &e->kept[e->n_kept - 1] : NULL;
}

enum status engine_kept_room(struct engine *e, struct err *err)
{
    if (e->n_kept < e->cap_kept) return STATUS_OK;
    size_t cap = e->cap_kept ? 2 * e->cap_kept : 8;
    struct snapshot_info *grown = mem_resize(e->kept, e->cap_kept * sizeof *grown, cap * sizeof *grown);
    if (!grown) return err_set(err, STATUS_NOMEM, "no memory for the list of checkpoints");
    e->kept = grown;
    e->cap_kept = cap;
    return STATUS_OK;
}

/* With a barrier each round is a version. A worker that finds less of the log than it needs begins with a snapshot, and
 * loses its inner optimizer, which ddp does not have. */
static uint64_t version_of_save(const struct engine *e, uint64_t base_version, uint64_t round)
{
    uint32_t every = e->config.checkpoint.worker_every;
    bool each = every <= 1 || e->config.train.method == METHOD_ASYNC || e->config.train.method == METHOD_DDP;
    uint64_t since = each ? 0 : round % every;
    return base_version > since ? base_version - since : 0;
}

/* The version of a fragment that this member's state on its own disk begins at: it was saved before all of its last
 * delta was sent, or in a round before where not every one is saved. UINT64_MAX: it never delivered one, or its last
 * one was refused: one that is always late would keep all checkpoints since it was in time. Killed, it may have to load
 * a snapshot. */
static uint64_t saved_version(const struct engine *e, const struct member *m, uint32_t fragment)
{
    const struct part *part = &m->work.parts[fragment];
    if (part->state == PART_HELD || part->state == PART_MERGED)
        return version_of_save(e, part->base_version, m->work.round);
    if (part->state == PART_DROPPED || !m->in_step || !m->merged_in[fragment]) return UINT64_MAX;
    return version_of_save(e, m->merged_in[fragment] - 1, m->merged[fragment] - 1);
}

/* Does everybody who has a place hold at least what this snapshot holds, in memory and, in case that is killed, on
 * disk? Who is loading or has not said yet counts as no, so that nobody's next update disappears; who is gone for good
 * is evicted some day. */
static bool everybody_past(const struct engine *e, const struct snapshot_info *info)
{
    for (uint32_t i = 0; i < e->sessions.cap; i++) {
        const struct session *s = &e->sessions.sessions[i];
        if (s->id && (!s->beating || s->last.state == WORKER_CATCHING_UP)) return false;
    }
    for (uint32_t i = 0; i < e->ledger.round.members.n; i++) {
        const struct member *m = e->ledger.round.members.members[i];
        const struct session *s = session_by_member(&e->sessions, i);
        if (!m->active) continue;
        if (!s || s->last.n_fragments != info->n_fragments) return false;
        for (uint32_t f = 0; f < info->n_fragments; f++) {
            bool saved = e->ledger.done || saved_version(e, m, f) >= info->versions[f];
            if (s->last.versions[f] < info->versions[f] || !saved) return false;
        }
    }
    return true;
}

/* A file that cannot be removed costs its room, and nothing else: said once. */
static bool removed(struct engine *e, enum status status, const struct err *why)
{
    if (status == STATUS_OK) return true;
    if (!e->stuck) log_warn("%s: it stays, and the run goes on (said once)", why->msg);
    e->stuck = true;
    return false;
}

enum status engine_collect(struct engine *e, struct err *err)
{
    uint64_t *list;
    size_t n, keep = e->config.checkpoint.keep;
    const struct store_ops *ops = e->store->ops;
    struct err why = {0};
    bool sweep = e->sweep_due;
    e->sweep_due = false;
    e->collect_due = keep && e->n_kept > keep;
    while (keep && e->n_kept > keep && (e->n_kept > keep + BEHIND_MAX || everybody_past(e, &e->kept[1]))) {
        if (!removed(e, ops->snapshot_remove(e->store, e->kept[0].round, &why), &why)) {
            e->collect_due = false; /* a checkpoint still, with all that is behind it, until the next is written */
            break;
        }
        e->n_kept--;
        memmove(e->kept, e->kept + 1, e->n_kept * sizeof *e->kept);
        e->collect_due = e->n_kept > keep;
        sweep = true;
    }
    if (!sweep) return STATUS_OK;
    TRY(store_list(e->store, ops->segment_list, &list, &n, err));
    for (size_t i = 0; i < n && list[i] < e->kept[0].segment; i++)
        if (!removed(e, ops->segment_remove(e->store, list[i], &why), &why)) break;
    mem_free(list);
    for (uint32_t f = 0; f < e->ledger.layout.n_fragments; f++)
        update_log_trim(&e->ledger.log, f, e->kept[0].versions[f]);
    return STATUS_OK;
}

/* The state goes down with the number of the segment that follows; a crash between the two finds the older checkpoint
 * and both segments. */
enum status engine_checkpoint(struct engine *e, struct err *err)
{
    struct ledger *l = &e->ledger;
    uint64_t round = round_done(&l->round), segment = l->journal.segment + 1;
    struct engine_event event;
    TRY(engine_kept_room(e, err));
    TRY(journal_begin(&l->journal, e->store, segment, err));
    l->clock = engine_clock(e);
    TRY(snapshot_save(l, e->store, round, segment, err));
    TRY(snapshot_look(e->store, round, &e->kept[e->n_kept], err));
    e->n_kept++;
    e->collect_due = true;
    engine_event_init(&event, ENGINE_EVENT_CHECKPOINT);
    event.round = round;
    event.version = l->round.versions[0];
    engine_emit(e, &event);
    return STATUS_OK;
}

static bool anything_held(const struct round *r)
{
    for (uint32_t i = 0; i < r->members.n; i++) {
        const struct assignment *work = &r->members.members[i]->work;
        for (uint32_t f = 0; work->open && f < r->p.n_fragments; f++)
            if (work->parts[f].state == PART_HELD) return true;
    }
    return false;
}

enum status engine_checkpoint_due(struct engine *e, struct err *err)
{
    uint64_t every = e->config.checkpoint.every, done = round_done(&e->ledger.round);
    bool due = every && done / every > engine_newest(e)->round / every;
    return due && !e->info.pending && !anything_held(&e->ledger.round) ? engine_checkpoint(e, err) : STATUS_OK;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

void engine_send_assign(struct engine *e, struct session *s, const struct member *m)
{
    const struct assignment *work = &m->work;
    struct msg msg = {.type = MSG_ASSIGN,
                      .assign = {.round = work->round,
                                 .worker_id = m->id,
                                 .steps = work->steps,
                                 .step0 = work->step0,
                                 .step_rate = work->step_rate,
                                 .n_ranges = work->n_ranges,
                                 .n_fragments = e->ledger.layout.n_fragments}};
    memcpy(msg.assign.ranges, work->ranges, sizeof msg.assign.ranges);
    memcpy(msg.assign.versions, work->versions, e->ledger.layout.n_fragments * sizeof *work->versions);
    engine_send_control(e, s, &msg);
}

static enum status write_open(struct engine *e, const struct round_open *open, struct err *err)
{
    struct record_clock clock = engine_clock(e);
    uint32_t n = e->ledger.layout.n_fragments;
    size_t size = record_open_size(open, n);
    uint8_t *body = mem_alloc(1, size);
    if (!body) return err_set(err, STATUS_NOMEM, "no memory to open a round");
    struct writer w = writer_of(body, size);
    record_open_encode(open, n, &clock, &w);
    enum status status = engine_write(e, RECORD_OPEN, body, size, NULL, err);
    mem_free(body);
    /* Ranges must not be handed out twice: a worker sees its assignment when it is safe. */
    return status == STATUS_OK && engine_syncs_updates(e) ? journal_sync(&e->ledger.journal, err) : status;
}

/* Before the first round nobody has a place: enough ready workers make it open. */
static enum status seat_first(struct engine *e, struct err *err)
{
    uint32_t ready = 0;
    if (e->ledger.round.members.n) return STATUS_OK;
    for (uint32_t i = 0; i < e->sessions.cap; i++)
        ready += e->sessions.sessions[i].id && e->sessions.sessions[i].ready_us > 0;
    return ready >= e->config.coordinator.min_workers ? engine_seat_all(e, err) : STATUS_OK;
}

enum status engine_open_work(struct engine *e, bool *any_p, struct err *err)
{
    struct ledger *l = &e->ledger;
    struct round_open open;
    if (l->done || engine_eval_blocks(e)) return STATUS_OK;
    TRY(seat_first(e, err));
    if (ledger_room(l) != STATUS_OK) return err_set(err, STATUS_NOMEM, "no memory for assignments");
    open.grants = l->grants;
    enum status status = round_plan(&l->round, e->now_us, &open);
    if (status != STATUS_OK) return err_set(err, status, "the order of samples is used up");
    if (!open.n) return STATUS_OK;
    uint32_t ids[WIRE_NAMED_MAX], n = open.n < WIRE_NAMED_MAX ? open.n : WIRE_NAMED_MAX;
    for (uint32_t i = 0; i < n; i++) ids[i] = open.grants[i].id;
    TRY(write_open(e, &open, err));
    round_note_open(&l->round, e->now_us);
    for (uint32_t i = 0; i < n; i++) {
        struct session *s = session_by_member(&e->sessions, ids[i]);
        if (!s) continue;
        engine_send_assign(e, s, member_by_id(&l->round.members, ids[i]));
        if (s->last.state == WORKER_READY) s->last.state = WORKER_TRAINING; /* until it says something newer */
        engine_refresh_ready(e, s);
    }
    *any_p = true;
    return STATUS_OK;
}

enum status engine_drop(struct engine *e, const struct member *m, uint32_t fragment, uint16_t code, struct err *err)
{
    struct record_drop drop = {.id = m->id, .fragment = fragment, .round = m->work.round, .code = code};
    uint8_t body[RECORD_SMALL_MAX];
    struct writer w = writer_of(body, sizeof body);
    record_drop_encode(&drop, &w);
    return engine_write(e, RECORD_DROP, body, w.pos, NULL, err);
}

/* --- the end ------------------------------------------------------------------------------------------------------ */

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
    uint8_t body[RECORD_SMALL_MAX];
    struct engine_event event;
    if (l->done || !round_over(&l->round) || round_busy(&l->round) || !engine_eval_complete(e)) return STATUS_OK;
    engine_flush_round(e, NAN); /* no data to evaluate on */
    if (engine_newest(e)->round != round_done(&l->round)) TRY(engine_checkpoint(e, err));
    struct record_clock clock = engine_clock(e);
    struct writer w = writer_of(body, sizeof body);
    record_clock_encode(&clock, &w);
    TRY(ledger_write(l, RECORD_DONE, body, w.pos, NULL, err));
    TRY(journal_sync(&l->journal, err));
    e->done_us = e->now_us;
    engine_event_init(&event, ENGINE_EVENT_DONE);
    event.tokens = l->round.tokens;
    event.round = round_done(&l->round);
    if (l->eval_tokens) event.val_loss = l->eval_loss_sum / (double)l->eval_tokens;
    engine_emit(e, &event);
    for (uint32_t i = 0; i < e->sessions.cap; i++)
        if (e->sessions.sessions[i].id) engine_send_done(e, &e->sessions.sessions[i]);
    *any_p = true;
    return STATUS_OK;
}
