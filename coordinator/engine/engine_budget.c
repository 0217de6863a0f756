/* The budget of a run: run.max_hours and run.max_gb. When one is used up, no further work opens; the open round ends,
 * and the process stops like after SIGTERM (engine_spent). The counters are those of the journal's clock. */
#include <stdio.h>
#include <string.h>

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

enum status engine_budget_watch(struct engine *e, struct err *err)
{
    if (engine_clock(e).elapsed_us - e->ledger.clock.elapsed_us >= CLOCK_US) TRY(engine_budget_keep(e, err));
    return STATUS_OK;
}
