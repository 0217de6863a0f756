/* Alerts of the engine: coordinator/limits/alerts.h over its state. A start and an end are events; the status shows an
 * alert while it fires. The rules that follow time are in coordinator/engine/engine_watch.c. */
#ifndef COORDINATOR_ENGINE_ALERT_H
#define COORDINATOR_ENGINE_ALERT_H

#include "coordinator/engine/state/engine_state.h"

/* The rule fires, with this text, or no longer does. subject: ALERT_NO_SUBJECT, or what the rule has several alerts of.
 * worker: its name, or NULL. told: another event has brought the text to the log. */
struct engine_alert {
    enum alert_rule rule;
    int64_t subject;
    const char *worker;
    bool fires, told;
};
void engine_alert(struct engine *e, const struct engine_alert *alert, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The alert of this rule and subject fires. */
bool engine_alert_fires(const struct engine *e, enum alert_rule rule, int64_t subject);
/* A round has ended. live: no earlier process has reported it. loss: of its training; NaN: unknown. */
void engine_alert_round(struct engine *e, uint64_t round, double loss, bool live);
/* Refused deltas of this process, without those that were too late: a quorum refuses these as a matter of course. */
uint64_t engine_refused(const struct engine *e);

#endif
