/* The budget of a run: run.max_hours and run.max_gb. When one is used up, no further work opens; the open round ends,
 * and the process stops like after SIGTERM (engine_spent). The counters are those of the journal's clock. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/minmax.h"
#include "common/base/units.h"
#include "coordinator/engine/engine_impl.h"

enum {
    CLOCK_US = 60000000,        /* what a crash may take from the counters */
    GRACE_LEAST_US = 60000000,  /* for the open round after the limit, or three rounds */
    GRACE_FIRST_US = 600000000, /* the same before a round is measured */
};

double engine_hours(const struct engine *e)
{
    return (double)engine_clock(e).elapsed_us / 3.6e9;
}

double engine_gb(const struct engine *e)
{
    struct record_clock clock = engine_clock(e);
    return (double)(clock.bytes_up + clock.bytes_down + clock.other_up + clock.other_down) * 1e-9;
}

enum status engine_budget_keep(struct engine *e, struct err *err)
{
    struct record_clock clock = engine_clock(e);
    if (e->ledger.done || !memcmp(&clock, &e->ledger.clock, sizeof clock)) return STATUS_OK;
    return ledger_write(&e->ledger, RECORD_CLOCK, &clock, NULL, err);
}

/* One of the two limits. */
struct limit {
    const char *key, *unit;
    double used, most; /* most 0: none */
};

static void reach(struct engine *e, const struct limit *l)
{
    struct engine_budget *b = &e->budget;
    b->reached = true;
    b->reached_us = e->now_us;
    snprintf(b->text, sizeof b->text, "%s is used up (%.3g of %g %s): continue with a larger one, such as --%s=%g",
             l->key, l->used, l->most, l->unit, l->key, 2 * l->most);
    if (!e->ledger.modelled || !round_busy(&e->ledger.round)) return;
    log_info("%s is used up: the run stops after round %llu", l->key,
             (unsigned long long)round_done(&e->ledger.round) + 1);
}

static void look(struct engine *e)
{
    const struct limit limits[] = {{"run.max_hours", "h", engine_hours(e), e->config.run.max_hours},
                                   {"run.max_gb", "GB", engine_gb(e), e->config.run.max_gb}};
    if (e->ledger.done) return;
    for (int i = 0; i < 2; i++) {
        const struct limit *l = &limits[i];
        struct engine_alert alert = {.rule = ALERT_BUDGET, .subject = i, .fires = alert_budget(l->used, l->most)};
        if (alert.fires)
            engine_alert(e, &alert, "%s of %s is used: %.3g of %g %s; at the limit the run stops with a checkpoint",
                         units_percent(l->used / l->most).text, l->key, l->used, l->most, l->unit);
        if (l->most > 0 && l->used >= l->most && !e->budget.reached) reach(e, l);
    }
}

bool engine_budget_closes(struct engine *e)
{
    look(e);
    return e->budget.reached && (e->config.train.method == METHOD_ASYNC || !round_busy(&e->ledger.round));
}

enum status engine_budget_watch(struct engine *e, struct err *err)
{
    look(e);
    if (engine_clock(e).elapsed_us - e->ledger.clock.elapsed_us >= CLOCK_US) TRY(engine_budget_keep(e, err));
    return STATUS_OK;
}

/* The open round may end, for as long as three usual ones take. */
static bool is_patient(const struct engine *e)
{
    double round_s = pace_round_s(&e->pace);
    uint64_t grace = isnan(round_s) ? GRACE_FIRST_US : max_u64(GRACE_LEAST_US, (uint64_t)(3e6 * round_s));
    return e->now_us - e->budget.reached_us < grace;
}

const char *engine_spent(const struct engine *e)
{
    const struct ledger *l = &e->ledger;
    if (!e->budget.reached || l->done) return NULL;
    if (!l->modelled || !e->sessions.sessions || !admission_anyone_here(e) || !is_patient(e)) return e->budget.text;
    if (round_busy(&l->round) || l->round.region.sealed || engine_eval_blocks(e)) return NULL;
    return round_over(&l->round) ? NULL : e->budget.text; /* only its last evaluation is missing */
}

bool engine_dismiss(struct engine *e, const char *text)
{
    struct msg m = {.type = MSG_REFUSE, .refuse.code = REFUSE_SPENT};
    bool any = false;
    snprintf(m.refuse.text, sizeof m.refuse.text, "%s", text);
    for_each_session(e, s) {
        if (s->closed) continue;
        s->closed = engine_send(e, s->control, WIRE_CONTROL, &m) == STATUS_CLOSED;
        any = any || !s->closed;
    }
    return any;
}
