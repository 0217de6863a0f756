#include "coordinator/engine/state/engine_alert.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/engine/state/engine_effects.h"

static void emit(struct engine *e, const struct alert *alert, bool starts, bool told)
{
    struct engine_event event = {.kind = ENGINE_EVENT_ALERT,
                                 .alert = {.rule = alert_rule_name(alert->rule),
                                           .worker = alert->worker[0] ? alert->worker : NULL,
                                           .text = alert->text,
                                           .starts = starts,
                                           .told = told,
                                           .for_s = (double)(e->now_us - alert->since_us) * 1e-6}};
    engine_emit(e, &event);
}

void engine_alert(struct engine *e, const struct engine_alert *alert, const char *fmt, ...)
{
    char text[ALERT_TEXT_MAX];
    struct alert ended;
    va_list args;
    if (!alert->fires && !engine_alert_fires(e, alert->rule, alert->subject)) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    switch (alerts_set(&e->alerts, alert->rule, alert->subject, alert->fires, alert->worker, text, e->now_us, &ended)) {
    case ALERT_STARTS: emit(e, alerts_find(&e->alerts, alert->rule, alert->subject), true, alert->told); break;
    case ALERT_ENDS: emit(e, &ended, false, false); break;
    case ALERT_SAME: break;
    }
}

bool engine_alert_fires(const struct engine *e, enum alert_rule rule, int64_t subject)
{
    return alerts_find(&e->alerts, rule, subject) != NULL;
}

/* --- rules of a finished round ------------------------------------------------------------------------------------ */

/* async: a round ends without the slow workers, so only one that is away misses it. */
static bool is_missing(const struct engine *e, const struct member *m)
{
    const struct session *s = session_by_member(&e->sessions, m->id);
    bool away = !s || s->closed || s->silent;
    if (!m->expected || m->steps != m->seen_steps) return false;
    return away || e->config.train.method != METHOD_ASYNC;
}

static void watch_worker(struct engine *e, struct member *m)
{
    uint32_t missed = 0;
    m->missed = m->missed << 1 | is_missing(e, m);
    for (int i = 0; i < ALERT_ROUNDS; i++) missed += m->missed >> i & 1;
    if (m->steps != m->seen_steps) m->expected = true;
    struct engine_alert alert = {
        ALERT_WORKER_MISSING, m->id, m->name,
        m->expected && alert_worker_missing(engine_alert_fires(e, ALERT_WORKER_MISSING, m->id), m->missed), false};
    engine_alert(e, &alert, "%s had no part in %u of the last %d rounds", m->name, missed, ALERT_ROUNDS);
}

static void watch_loss(struct engine *e, uint64_t round, double loss, bool known)
{
    struct engine_watch *w = &e->watch;
    if (!known) return;
    bool jumped = w->loss_jumps;
    w->loss_jumps = alert_loss(&w->losses, jumped, loss);
    if (jumped || !w->loss_jumps) return;
    if (isfinite(loss))
        snprintf(w->loss_text, sizeof w->loss_text, "the training loss rose to %.4g in round %llu; its limit is %.4g",
                 loss, (unsigned long long)round, w->losses.limit);
    else
        snprintf(w->loss_text, sizeof w->loss_text, "the training loss of round %llu is not finite",
                 (unsigned long long)round);
}

uint64_t engine_refused(const struct engine *e)
{
    uint64_t all = 0;
    for (int i = REJECT_LATE + 1; i <= REJECT_LAST; i++) all += e->rejected[i];
    return all;
}

void engine_alert_round(struct engine *e, uint64_t round, double loss, bool live)
{
    struct engine_watch *w = &e->watch;
    /* async: a round that ended together with the one before has no deltas of its own */
    bool counts = live && (e->config.train.method != METHOD_ASYNC || e->ledger.round.recent.merged);
    if (counts) {
        for_each_member(&e->ledger.round.members, m) watch_worker(e, m);
        w->refused[w->next] = engine_refused(e);
        w->next = (w->next + 1) % (ALERT_ROUNDS + 1);
    }
    for_each_member(&e->ledger.round.members, m) m->seen_steps = m->steps;
    watch_loss(e, round, loss, e->ledger.round.recent.loss_tokens > 0);
}
