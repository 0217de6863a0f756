/* Records, and the round event that follows from them. */
#ifndef COORDINATOR_ENGINE_ROUND_H
#define COORDINATOR_ENGINE_ROUND_H

#include "coordinator/engine/state/engine_state.h"

/* ledger_write, then engine_round_follow. */
enum status engine_write(struct engine *e, enum record_type type, const void *record, const struct store_part *payload,
                         struct err *err) MUST_CHECK;
/* Follows a record that was folded in, live or in recovery. id: of the member that delivered, for DELTA only. */
void engine_round_follow(struct engine *e, uint16_t type, uint32_t id);
/* Emits the pending round event, if any. eval_s: seconds of its evaluation; NaN: unknown. */
void engine_flush_round(struct engine *e, double val_loss, double eval_s);
/* Seconds until the end of the run; NaN: unknown. */
double engine_eta_s(const struct engine *e);
/* Periodic evaluations that are due in the first `rounds` rounds: train.eval_every. */
uint64_t engine_eval_points(const struct engine *e, uint64_t rounds);

#endif
