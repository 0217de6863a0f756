/* The round event: the ledger's numbers at the end of the round, emitted when its evaluation has finished.
 *
 * - It follows the journal record by record, live and in recovery. If the process ends before the event, the next
 *   process finds the round in the journal and emits it (unless engine_options.rounds_reported includes it).
 * - No checkpoint is written while an event is pending (engine_checkpoint_due), so the records after the newest
 *   checkpoint are enough.
 * - Exception: a checkpoint inside a later round (async, or after a crash). The sums of that round cover only the
 *   records after the checkpoint.
 * - async: training continues during an evaluation, and newer versions exist when it ends. Rounds are therefore
 *   reported at once, and the evaluation by its own event. Only the last round waits for its evaluation. */
#include "coordinator/engine/state/engine_round.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "coordinator/engine/state/engine_alert.h"
#include "coordinator/engine/state/engine_effects.h"
#include "coordinator/engine/state/engine_notes.h"

static void begin(struct engine *e)
{
    e->ledger.round.recent = (struct round_tally){0};
    e->round_begun_us = e->ledger.clock.elapsed_us;
    e->slowest[0] = 0;
    e->norm_ratio = 0;
    e->norm_worker[0] = 0;
}

/* barrier: round `round` opened, or more members were assigned to it */
static void opened(struct engine *e, uint64_t round)
{
    if (e->config.train.method == METHOD_ASYNC || e->rounds_begun > round) return;
    e->rounds_begun = round + 1;
    engine_flush_round(e, NAN, NAN);
    begin(e);
}

static void delivered(struct engine *e, uint32_t id)
{
    memcpy(e->slowest, member_by_id(&e->ledger.round.members, id)->name, sizeof e->slowest);
}

/* Transfers of the worker that delivered last. It received the previous update inside this round. async: unknown,
 * because other workers do not wait for it. */
static void note_link(struct engine *e)
{
    const struct session *s = session_by_name(&e->sessions, e->slowest);
    if (!s || !s->up_us || e->config.train.method == METHOD_ASYNC) return;
    e->info.up_us = s->up_us;
    e->info.down_us = s->down_us;
    e->info.event.link_s = (double)(s->up_us + s->down_us) * 1e-6;
}

/* A step longer than twice the distance to the minimum along D moves away from it. */
static void note_overshoot(struct engine *e, double length)
{
    if (!(length > 2)) {
        engine_note_end(e, ENGINE_NOTE_OVERSHOOT);
        return;
    }
    engine_note(e, ENGINE_NOTE_OVERSHOOT, !e->info.pending,
                "the outer step of round %llu overshoots: rate times gain is %.3g, more than 2; lower "
                "outer.learning_rate or outer.momentum",
                (unsigned long long)e->info.event.round, length);
}

static void note(struct engine *e, uint64_t round)
{
    const struct round *r = &e->ledger.round;
    const struct round_tally *sum = &r->recent;
    struct engine_event_round *event = &e->info.event;
    struct outer_signs signs = outer_report_end(&e->outer_report, &e->config);
    *event = (struct engine_event_round){.round = round,
                                         .rounds = round_total(r),
                                         .tokens = r->tokens,
                                         .version = r->versions[0],
                                         .loss = NAN,
                                         .compute_s = NAN,
                                         .wait_s = NAN,
                                         .link_s = NAN,
                                         .norm_ratio = e->norm_ratio > 0 ? e->norm_ratio : NAN,
                                         .rho = signs.rho,
                                         .gain = signs.gain,
                                         .agreement = signs.agreement,
                                         .noise_tokens = signs.noise_tokens};
    bool together = e->config.train.method == METHOD_ASYNC && !sum->merged; /* with the round before, by one update */
    if (sum->loss_tokens) e->train_loss = sum->loss_sum / (double)sum->loss_tokens;
    if (sum->loss_tokens || together) event->loss = e->train_loss;
    event->delivered = sum->merged;
    event->workers = r->n_assigned ? r->n_assigned : member_count_active(&r->members);
    assert(!e->info.pending);
    note_link(e);
    event->round_s = (double)(e->ledger.clock.elapsed_us - e->round_begun_us) * 1e-6;
    if (sum->merged) event->compute_s = (double)sum->compute_us * 1e-6 / sum->merged;
    if (event->round_s > 0 && sum->merged)
        event->wait_s = event->round_s > event->compute_s ? event->round_s - event->compute_s : 0;
    memcpy(e->info.slowest, e->slowest, sizeof e->info.slowest);
    memcpy(e->info.norm_worker, e->norm_worker, sizeof e->info.norm_worker);
    memcpy(e->info.down, e->ledger.down, sizeof e->info.down);
    memcpy(e->info.stale, sum->stale, sizeof e->info.stale);
    for (uint32_t i = 0; i < ROUND_STALENESS; i++) e->stale[i] += sum->stale[i];
    e->info.pending = event->round > e->rounds_reported;
    note_overshoot(e, signs.length);
    engine_alert_round(e, round, e->train_loss, e->info.pending);
    engine_note_agreement(e, round - 1, signs.agreement, !e->info.pending);
}

/* async: one update may end two rounds; its work counts for the first of them, and its loss for both. */
static void closed(struct engine *e)
{
    uint64_t done = round_done(&e->ledger.round);
    assert(e->seen_rounds <= done); /* rounds only grow */
    if (e->seen_rounds < done) {
        uint64_t start = e->ledger.round.p.start_step;
        if (start && e->seen_rounds == start) pace_restart(&e->pace);
        double s = (double)(e->ledger.clock.elapsed_us - e->round_begun_us) * 1e-6;
        pace_rounds(&e->pace, (uint32_t)(done - e->seen_rounds), s, (double)e->ledger.round.recent.tokens);
    }
    while (e->seen_rounds < done) {
        engine_flush_round(e, NAN, NAN);
        note(e, ++e->seen_rounds);
        begin(e);
    }
    if (e->config.train.method == METHOD_ASYNC && !round_over(&e->ledger.round)) engine_flush_round(e, NAN, NAN);
}

static void evaluated(struct engine *e)
{
    const struct ledger *l = &e->ledger;
    double eval_s = e->eval.begun_us ? (double)(e->now_us - e->eval.begun_us) * 1e-6 : NAN; /* 0: in recovery */
    if (e->info.event.round != l->eval_round) return;
    engine_flush_round(e, l->eval_loss_sum / (double)l->eval_tokens, eval_s);
}

void engine_round_follow(struct engine *e, uint16_t type, uint32_t id)
{
    switch (type) {
    case RECORD_OPEN: opened(e, e->ledger.round.round); break;
    case RECORD_DELTA: delivered(e, id); break;
    case RECORD_EVAL: evaluated(e); break;
    case RECORD_UPDATE:
        outer_report_add(&e->outer_report, &e->config, &e->ledger.outer.sums);
        closed(e);
        break;
    case RECORD_MEMBER: /* async: the merged part of a delta counts when the rest is dropped */
    case RECORD_DROP: closed(e); break;
    default: break;
    }
}

enum status engine_write(struct engine *e, enum record_type type, const void *record, const struct store_part *payload,
                         struct err *err)
{
    TRY(ledger_write(&e->ledger, type, record, payload, err));
    engine_round_follow(e, (uint16_t)type, type == RECORD_DELTA ? ((const struct record_delta *)record)->id : 0);
    return STATUS_OK;
}

uint64_t engine_eval_points(const struct engine *e, uint64_t rounds)
{
    bool by_steps;
    uint32_t every = config_eval_every(&e->config, &by_steps);
    return every ? (by_steps ? round_span(&e->ledger.round, rounds).first : rounds) / every : 0;
}

/* The evaluations that the run still waits for, in units of one. The last one covers the whole validation set. async
 * trains during all others. */
static double evaluations_left(const struct engine *e, uint64_t done, uint64_t total)
{
    const struct ledger *l = &e->ledger;
    uint64_t windows = l->model.val_samples;
    uint64_t part = e->config.train.eval_tokens / l->model.sample_tokens;
    if (!windows) return 0;
    double n = part && part < windows ? (double)windows / (double)part : 1;
    if (total && e->config.train.method != METHOD_ASYNC)
        n += (double)(engine_eval_points(e, total - 1) - engine_eval_points(e, done));
    return n;
}

/* Seconds of the rounds that are left. A round after train.start_step takes longer than the measured ones before it, by
 * the time of the other steps. */
static double rounds_left_s(const struct engine *e, uint64_t done, uint64_t total)
{
    const struct round *r = &e->ledger.round;
    uint64_t start = r->p.start_step;
    double s = (double)(total - done) * pace_round_s(&e->pace);
    if (!start || done > start || !r->worker_steps) return s;
    double step_s = (double)r->compute_us * 1e-6 / (double)r->worker_steps;
    return s + (double)(total - start) * (r->p.sync_every - 1) * step_s;
}

double engine_eta_s(const struct engine *e)
{
    if (e->ledger.done) return 0;
    if (!e->ledger.modelled) return NAN;
    uint64_t done = round_done(&e->ledger.round), total = round_total(&e->ledger.round);
    double eval_s = pace_eval_s(&e->pace), s = done < total ? rounds_left_s(e, done, total) : 0;
    return isnan(eval_s) ? s : s + evaluations_left(e, done < total ? done : total - 1, total) * eval_s;
}

/* Reports a change: the link becomes the bottleneck, or no longer is. */
static void judge_link(struct engine *e, const struct engine_event_round *round)
{
    const struct round_info *info = &e->info;
    if (!pace_link(&e->pace, round->link_s, round->round_s)) return;
    if (!e->pace.link_bound) {
        e->link_text[0] = '\0';
        engine_emit_text(e, ENGINE_EVENT_LINK, e->info.slowest, "transfers no longer take half of a round");
        return;
    }
    snprintf(e->link_text, sizeof e->link_text,
             "transfers take %s of a round (sending %s, receiving %s of %s): %s, or use fewer bits in "
             "codec.up (%s) and codec.down (%s)",
             units_percent(round->link_s / round->round_s).text, units_us(info->up_us).text,
             units_us(info->down_us).text, units_duration(round->round_s).text,
             e->config.train.method == METHOD_DDP ? "set train.method to diloco" : "raise train.sync_every",
             e->config.codec.up, e->config.codec.down);
    engine_emit_text(e, ENGINE_EVENT_LINK, e->info.slowest, e->link_text);
}

void engine_flush_round(struct engine *e, double val_loss, double eval_s)
{
    struct engine_event event = {.kind = ENGINE_EVENT_ROUND, .round = e->info.event};
    if (!e->info.pending) return;
    e->info.pending = false;
    struct record_clock clock = engine_clock(e);
    event.round.bytes_up = clock.bytes_up;
    event.round.bytes_down = clock.bytes_down;
    event.round.other_up = clock.other_up;
    event.round.other_down = clock.other_down;
    event.round.val_loss = val_loss;
    event.round.val_by_one = !isnan(val_loss) && e->ledger.eval_by_one;
    event.round.eval_s = eval_s;
    event.round.eta_s = engine_eta_s(e);
    event.round.slowest = e->info.slowest[0] ? e->info.slowest : NULL;
    event.round.norm_worker = e->info.norm_worker[0] ? e->info.norm_worker : NULL;
    event.round.codec = e->info.down[0] ? e->info.down : NULL;
    event.round.stale = e->config.train.method == METHOD_ASYNC ? e->info.stale : NULL;
    event.round.n_stale = ROUND_STALENESS;
    engine_emit(e, &event);
    judge_link(e, &event.round);
}
