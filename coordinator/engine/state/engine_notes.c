#include "coordinator/engine/state/engine_notes.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/text.h"
#include "coordinator/engine/state/engine_effects.h"

enum { AGREEING_ROUNDS = 3, NAMES_MAX = 4 };

static const double agreement_most = 0.999; /* deltas of other samples differ more than that */
static const double rates_differ = 0.2, positions_differ = 0.05;

void engine_note(struct engine *e, enum engine_note note, bool told, const char *fmt, ...)
{
    bool begins = !e->notes[note][0];
    va_list args;
    va_start(args, fmt);
    vsnprintf(e->notes[note], sizeof e->notes[note], fmt, args);
    va_end(args);
    text_make_clean(e->notes[note]);
    assert(e->notes[note][0]);
    if (!begins || told) return;
    log_warn("%s", e->notes[note]);
    engine_tell(e, e->notes[note]);
    engine_emit_text(e, ENGINE_EVENT_NOTE, NULL, e->notes[note]);
}

void engine_note_end(struct engine *e, enum engine_note note)
{
    e->notes[note][0] = '\0';
}

/* --- agreement ---------------------------------------------------------------------------------------------------- */

/* Writes "a, b and 3 others": the members whose deltas of the round were merged. */
static void write_names(const struct engine *e, uint64_t round, char *out, size_t cap)
{
    const struct member *named[NAMES_MAX];
    uint32_t all = 0, n = 0;
    for_each_member(&e->ledger.round.members, m) {
        if (m->work.round != round || !m->work.merged) continue;
        if (n < NAMES_MAX) named[n++] = m;
        all++;
    }
    out[0] = '\0';
    for (uint32_t i = 0; i < n; i++)
        text_add(out, cap, "%s%s", !i ? "" : i + 1 == all ? " and " : ", ", named[i]->name);
    if (all > n) text_add(out, cap, " and %u others", all - n);
}

void engine_note_agreement(struct engine *e, uint64_t round, double agreement, bool told)
{
    char names[NAMES_MAX * WIRE_NAME_MAX + 32];
    if (isnan(agreement)) return; /* one delta, async, or another rule than the mean */
    if (!(agreement > agreement_most)) {
        e->agreeing = 0;
        engine_note_end(e, ENGINE_NOTE_AGREEMENT);
        return;
    }
    if (++e->agreeing < AGREEING_ROUNDS) return;
    write_names(e, round, names, sizeof names);
    engine_note(e, ENGINE_NOTE_AGREEMENT, told,
                "%s send nearly the same delta (agreement %.4f in %u rounds): do they train on the same samples? Give "
                "each worker its own seed or data",
                names, agreement, e->agreeing);
}

/* --- learning rates ----------------------------------------------------------------------------------------------- */

/* The schedule may change the rate between two positions by about as much as they differ, from its start or its end. */
static bool same_position(const struct engine *e, double a, double b)
{
    double left = (double)e->config.train.max_steps - fmax(a, b), least = fmin(fmin(a, b), left);
    double apart = fabs(a - b);
    return apart == 0 || (apart <= e->config.train.sync_every && apart <= positions_differ * least);
}

/* Compares the rate of a finished round with those of the other workers. */
static void compare_rates(struct engine *e, const struct session *s)
{
    bool compared = false;
    for_each_session(e, other) {
        if (other == s || !other->rate.known || !same_position(e, other->rate.position, s->rate.position)) continue;
        double larger = fmax(other->rate.lr, s->rate.lr);
        compared = true;
        if (!(fabs(other->rate.lr - s->rate.lr) > rates_differ * larger)) continue;
        const struct session *a = other->member < s->member ? other : s, *b = a == s ? other : s;
        e->differing[0] = a->id;
        e->differing[1] = b->id;
        engine_note(e, ENGINE_NOTE_RATES, false,
                    "%s trains with learning rate %.3g, %s with %.3g at position %.0f: let the schedule follow "
                    "worker.position",
                    a->name, a->rate.lr, b->name, b->rate.lr, s->rate.position);
        return;
    }
    bool differed = s->id == e->differing[0] || s->id == e->differing[1];
    if (compared && differed) engine_note_end(e, ENGINE_NOTE_RATES);
}

void engine_note_step(struct engine *e, struct session *s, const struct metrics_step *step, bool last)
{
    struct session_rates *sum = &s->rates;
    if (step->round != sum->round || !step->step) *sum = (struct session_rates){.round = step->round};
    if (step->lr >= 0) {
        sum->lr += (double)step->lr;
        sum->position += step->position;
        sum->n++;
    }
    if (!last || !sum->n) return;
    s->rate = (struct session_rate){true, step->round, sum->lr / sum->n, sum->position / sum->n};
    bool gone = !session_by_id(&e->sessions, e->differing[0]) || !session_by_id(&e->sessions, e->differing[1]);
    if (gone) engine_note_end(e, ENGINE_NOTE_RATES);
    compare_rates(e, s);
}

double engine_run_lr(const struct engine *e, uint64_t round)
{
    bool async = e->config.train.method == METHOD_ASYNC;
    uint64_t newest = 0;
    double sum = 0;
    uint32_t n = 0;
    for_each_session(e, s) {
        if (!s->rate.known || (!async && (s->rate.round >= round || s->rate.round < newest))) continue;
        if (!async && s->rate.round > newest) sum = n = 0;
        newest = s->rate.round;
        sum += s->rate.lr;
        n++;
    }
    return n ? sum / n : NAN;
}
