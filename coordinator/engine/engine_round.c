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
#include <assert.h>
#include <math.h>
#include <string.h>

#include "coordinator/engine/engine_impl.h"

static void begin(struct engine *e)
{
    e->ledger.round.recent = (struct round_tally){0};
    e->round_begun_us = e->ledger.clock.elapsed_us;
    e->slowest[0] = 0;
}

/* barrier: round `round` opened, or more members were assigned to it */
static void opened(struct engine *e, uint64_t round)
{
    if (e->config.train.method == METHOD_ASYNC || e->rounds_begun > round) return;
    e->rounds_begun = round + 1;
    engine_flush_round(e, NAN);
    begin(e);
}

static void delivered(struct engine *e, const uint8_t *body, size_t size)
{
    struct record_delta delta;
    assert(body);
    if (record_delta_decode(&delta, body, size) != STATUS_OK) return;
    memcpy(e->slowest, member_by_id(&e->ledger.round.members, delta.id)->name, sizeof e->slowest);
}

static void note(struct engine *e, uint64_t round)
{
    const struct round *r = &e->ledger.round;
    const struct round_tally *sum = &r->recent;
    struct engine_event_round *event = &e->info.event;
    *event = (struct engine_event_round){.round = round,
                                         .rounds = round_total(r),
                                         .tokens = r->tokens,
                                         .version = r->versions[0],
                                         .loss = NAN,
                                         .compute_s = NAN,
                                         .wait_s = NAN};
    if (sum->tokens) event->loss = sum->loss_sum / (double)sum->tokens;
    event->delivered = sum->merged;
    event->workers = r->n_assigned ? r->n_assigned : member_count_active(&r->members);
    assert(!e->info.pending);
    event->round_s = (double)(e->ledger.clock.elapsed_us - e->round_begun_us) * 1e-6;
    if (sum->merged) event->compute_s = (double)sum->compute_us * 1e-6 / sum->merged;
    if (event->round_s > 0 && sum->merged)
        event->wait_s = event->round_s > event->compute_s ? event->round_s - event->compute_s : 0;
    memcpy(e->info.slowest, e->slowest, sizeof e->info.slowest);
    memcpy(e->info.down, e->ledger.down, sizeof e->info.down);
    e->info.pending = event->round > e->rounds_reported;
}

/* async: one delta may end two rounds; its work counts for the first of them. */
static void closed(struct engine *e)
{
    uint64_t done = round_done(&e->ledger.round);
    assert(e->seen_rounds <= done); /* rounds only grow */
    while (e->seen_rounds < done) {
        engine_flush_round(e, NAN);
        note(e, ++e->seen_rounds);
        begin(e);
    }
    if (e->config.train.method == METHOD_ASYNC && !round_over(&e->ledger.round)) engine_flush_round(e, NAN);
}

static void evaluated(struct engine *e)
{
    const struct ledger *l = &e->ledger;
    if (e->info.event.round == l->eval_round) engine_flush_round(e, l->eval_loss_sum / (double)l->eval_tokens);
}

void engine_round_follow(struct engine *e, uint16_t type, const uint8_t *body, size_t size)
{
    switch (type) {
    case RECORD_OPEN: opened(e, e->ledger.round.round); break;
    case RECORD_DELTA: delivered(e, body, size); break;
    case RECORD_EVAL: evaluated(e); break;
    case RECORD_MEMBER: /* async: the merged part of a delta counts when the rest is dropped */
    case RECORD_DROP:
    case RECORD_UPDATE: closed(e); break;
    default: break;
    }
}

enum status engine_write(struct engine *e, enum record_type type, const uint8_t *body, size_t size,
                         const struct store_part *payload, struct err *err)
{
    TRY(ledger_write(&e->ledger, type, body, size, payload, err));
    engine_round_follow(e, (uint16_t)type, body, size);
    return STATUS_OK;
}

void engine_flush_round(struct engine *e, double val_loss)
{
    struct engine_event event = {.kind = ENGINE_EVENT_ROUND, .round = e->info.event};
    if (!e->info.pending) return;
    e->info.pending = false;
    struct record_clock clock = engine_clock(e);
    event.round.bytes_up = clock.bytes_up;
    event.round.bytes_down = clock.bytes_down;
    event.round.val_loss = val_loss;
    event.round.slowest = e->info.slowest[0] ? e->info.slowest : NULL;
    event.round.codec = e->info.down[0] ? e->info.down : NULL;
    engine_emit(e, &event);
}
