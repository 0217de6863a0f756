/* Names the workers whose deltas the merge clips (merge.clip), and says which members are put aside.
 *
 * - A clipped delta counts, with the norm of the others. It costs its worker nothing that the operator must know at
 *   once, so a line appears at the 8th round in a row, and at the 64th, the 512th, ...
 * - GATE_STRIKES deltas in a row that are not finite put the member aside: it gets no work (admission_is_aside). */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/units.h"
#include "coordinator/admission/admission.h"
#include "coordinator/engine/state/engine_effects.h"

enum { CLIPPED_TOLD = 8 };

static const double told_least = 1.5; /* medians; smaller differences are nothing to look at */

static void count_clipped(struct engine *e, struct member *m)
{
    char text[WIRE_TEXT_MAX];
    uint64_t round = m->work.round + 1;
    uint32_t told = CLIPPED_TOLD;
    if (m->clipped_round == round) return; /* another fragment of the same round */
    m->clipped = m->clipped_round + 1 == round ? m->clipped + 1 : 1;
    m->clipped_round = round;
    while (told < m->clipped) told *= CLIPPED_TOLD;
    if (m->clipped != told) return;
    snprintf(
        text, sizeof text,
        "its delta is clipped, %u rounds in a row: its norm is %.3g times what the other workers send; its learning "
        "rate, codec or data differ, or it lies",
        m->clipped, m->norm_ratio);
    engine_emit_text(e, ENGINE_EVENT_FAULT, m->name, text);
}

void admission_gate(struct engine *e, const struct round_close *close)
{
    const struct merge_bounds *bounds = &e->ledger.outer.merger.bounds;
    struct round_peers peers;
    round_peers_of(&e->ledger.round, close, &peers);
    for (uint32_t i = 0; i < close->n; i++) {
        struct member *m = member_by_id(&e->ledger.round.members, close->ids[i]);
        double ratio = round_excess(&e->ledger.round, &peers, i);
        if (!(ratio > 0)) continue;
        m->norm_ratio = ratio;
        if (bounds->least != UINT32_MAX && ratio > fmax(bounds->whole, told_least)) count_clipped(e, m);
        if (ratio <= e->norm_ratio) continue;
        e->norm_ratio = ratio;
        memcpy(e->norm_worker, m->name, sizeof e->norm_worker);
    }
}

/* A worker that was put aside gets work again after this time. */
static const uint64_t ASIDE_US = 3600ull * 1000000;

static uint64_t aside_left_us(const struct engine *e, const struct member *m)
{
    uint64_t now = e->clock_base.elapsed_us + (e->now_us - e->start_us);
    uint64_t until = m->struck_us + ASIDE_US;
    return until > now ? until - now : 0;
}

bool admission_is_aside(const struct engine *e, const struct member *m)
{
    if (m->strikes < GATE_STRIKES) return false;
    return aside_left_us(e, m) > 0;
}

const char *admission_aside_text(const struct engine *e, const struct member *m, char *out, size_t cap)
{
    snprintf(out, cap, "put aside for %s after %u refused deltas in a row%s%s",
             units_whole_seconds((double)aside_left_us(e, m) * 1e-6).text, m->strikes, m->refused[0] ? ": " : "",
             m->refused);
    return out;
}
