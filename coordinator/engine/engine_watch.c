/* Alerts that follow time: rounds that do not end, the disk, refused deltas. engine_alert_round has those
 * of a finished round. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "coordinator/engine/engine_impl.h"

enum { DISK_US = 10000000 }; /* between two looks at the disk */
enum { LATE_ROUND, LATE_EVAL, LATE_WORKERS };

/* --- no round ----------------------------------------------------------------------------------------------------- */

/* A region waits for upstream while its own round is closed. */
static bool is_working(const struct engine *e)
{
    return round_busy(&e->ledger.round) || e->ledger.round.region.sealed || (e->ledger.region && e->ledger.absent);
}

/* Adds the time since the last look to what the run waits for. A pause of this process counts as none of it. */
static void count_time(struct engine *e)
{
    struct engine_watch *w = &e->watch;
    uint64_t rounds = round_done(&e->ledger.round), gap = w->at_us ? e->now_us - w->at_us : 0;
    double s = gap < ENGINE_PAUSE_US ? (double)gap * 1e-6 : 0;
    bool evaluates = e->eval.open && engine_eval_blocks(e);
    w->at_us = e->now_us;
    if (w->rounds != rounds) {
        w->round_s = w->workers_s = 0;
        w->late[LATE_ROUND] = w->late[LATE_WORKERS] = false;
    }
    w->rounds = rounds;
    w->eval_s = evaluates ? w->eval_s + s : 0;
    if (evaluates || e->budget.reached || !rounds) return; /* before the first round the machines are being started */
    if (is_working(e))
        w->round_s += s;
    else
        w->workers_s += s;
}

static void watch_rounds(struct engine *e)
{
    struct engine_watch *w = &e->watch;
    char waits[ALERT_TEXT_MAX / 2] = "", usual[64] = "";
    double round_s = pace_round_s(&e->pace), eval_s = pace_eval_s(&e->pace);
    count_time(e);
    w->late[LATE_ROUND] = alert_no_round(w->late[LATE_ROUND], w->round_s, round_s);
    w->late[LATE_EVAL] = alert_no_round(w->late[LATE_EVAL], w->eval_s, eval_s);
    w->late[LATE_WORKERS] = alert_no_workers(w->late[LATE_WORKERS], w->workers_s, round_s);
    bool fires = w->late[LATE_ROUND] || w->late[LATE_EVAL] || w->late[LATE_WORKERS];
    struct engine_alert alert = {.rule = ALERT_NO_ROUND, .subject = ALERT_NO_SUBJECT, .fires = fires};
    if (alert.fires) engine_waiting(e, waits, sizeof waits);
    double s = w->late[LATE_EVAL] ? w->eval_s : w->round_s + w->workers_s,
           usual_s = w->late[LATE_EVAL] ? eval_s : round_s;
    if (!isnan(usual_s)) snprintf(usual, sizeof usual, " (usually %s)", units_duration(usual_s).text);
    engine_alert(e, &alert, "no %s for %s%s: waiting for %s", w->late[LATE_EVAL] ? "evaluation" : "round",
                 units_whole_seconds(s).text, usual, waits);
}

/* --- other rules -------------------------------------------------------------------------------------------------- */

static void watch_disk(struct engine *e)
{
    const struct store_ops *ops = e->store->ops;
    uint64_t checkpoint = UINT64_MAX, state;
    if (e->now_us < e->watch.disk_us) return;
    e->watch.disk_us = e->now_us + DISK_US;
    uint64_t free = ops->free_bytes(e->store), total = ops->total_bytes(e->store);
    if (e->n_kept && ops->checkpoint_state_size(e->store, engine_newest(e)->round, &state, NULL) == STATUS_OK)
        checkpoint = state + e->ledger.layout.n_params * sizeof(float);
    struct engine_alert alert = {
        .rule = ALERT_DISK,
        .subject = ALERT_NO_SUBJECT,
        .fires = alert_disk(engine_alert_fires(e, ALERT_DISK, ALERT_NO_SUBJECT), free, total, checkpoint)};
    char part[48] = "", size[64] = "";
    if (total && total != UINT64_MAX)
        snprintf(part, sizeof part, ", %s of it", units_percent((double)free / (double)total).text);
    if (checkpoint != UINT64_MAX)
        snprintf(size, sizeof size, "; a checkpoint takes %s", units_bytes((double)checkpoint).text);
    engine_alert(e, &alert, "the disk of the run folder has %s left%s%s", units_bytes((double)free).text, part, size);
}

static void watch_refused(struct engine *e)
{
    struct engine_watch *w = &e->watch;
    uint64_t recent = engine_refused(e) - w->refused[w->next];
    struct engine_alert alert = {.rule = ALERT_REFUSED,
                                 .subject = ALERT_NO_SUBJECT,
                                 .fires =
                                     alert_refused(engine_alert_fires(e, ALERT_REFUSED, ALERT_NO_SUBJECT), recent)};
    engine_alert(e, &alert,
                 "%llu deltas were refused within %d rounds, the last one from %s: see the faults in the log",
                 (unsigned long long)recent, ALERT_ROUNDS, w->refused_name);
}

static void watch_training(struct engine *e)
{
    bool val = e->kept_round != UINT64_MAX;
    struct engine_alert loss = {
        .rule = ALERT_LOSS, .subject = ALERT_NO_SUBJECT, .fires = val || e->watch.loss_jumps, .told = val};
    engine_alert(e, &loss, "%s", e->watch.loss_text);
    const char *note = e->notes[ENGINE_NOTE_AGREEMENT];
    struct engine_alert agreement = {
        .rule = ALERT_AGREEMENT, .subject = ALERT_NO_SUBJECT, .fires = note[0], .told = true};
    engine_alert(e, &agreement, "%s", note);
}

void engine_watch(struct engine *e)
{
    if (e->ledger.done || !engine_serves(e)) return;
    watch_rounds(e);
    watch_disk(e);
    watch_refused(e);
    watch_training(e);
}
