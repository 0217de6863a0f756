/* Notes: warnings about the training of the run that hold until their cause ends. A note is logged, told to the
 * workers, and becomes an event when it begins; the status shows it while it holds. */
#ifndef COORDINATOR_ENGINE_NOTES_H
#define COORDINATOR_ENGINE_NOTES_H

#include "coordinator/engine/state/engine_state.h"

/* The note holds, with this text. When it begins, it is logged, told to the workers, and becomes an event, unless it
 * was `told` by an earlier process. */
void engine_note(struct engine *e, enum engine_note note, bool told, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void engine_note_end(struct engine *e, enum engine_note note);
/* Follows the agreement of the deltas of a round (from 0); NaN: unknown. */
void engine_note_agreement(struct engine *e, uint64_t round, double agreement, bool told);
/* Mean learning rate of the workers in the newest merged round before `round`; NaN: not known. async: of each worker's
 * last round. */
double engine_run_lr(const struct engine *e, uint64_t round);
/* Takes the learning rate of a reported step. last: of its round; the rate is then compared with those of the others.
 */
void engine_note_step(struct engine *e, struct session *s, const struct metrics_step *step, bool last);

#endif
