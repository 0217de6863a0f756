/* Names the workers whose deltas the merge clips (merge.clip), and readmits members that were put aside.
 *
 * - A clipped delta counts, with the norm of the others. It costs its worker nothing that the operator must know at
 *   once, so a line appears at the 8th round in a row, and at the 64th, the 512th, ...
 * - GATE_STRIKES deltas in a row that are not finite put the member aside: it gets no work (engine_is_aside). */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "coordinator/engine/engine_impl.h"

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

void engine_gate(struct engine *e, const struct round_close *close)
{
    const struct merge_bounds *bounds = &e->ledger.outer.merger.bounds;
    for (uint32_t i = 0; i < close->n; i++) {
        struct member *m = member_by_id(&e->ledger.round.members, close->ids[i]);
        double ratio = round_excess(&e->ledger.round, close, i);
        if (!(ratio > 0)) continue;
        m->norm_ratio = ratio;
        if (bounds->least != UINT32_MAX && ratio > fmax(bounds->whole, told_least)) count_clipped(e, m);
        if (ratio <= e->norm_ratio) continue;
        e->norm_ratio = ratio;
        memcpy(e->norm_worker, m->name, sizeof e->norm_worker);
    }
}

enum status engine_readmit(struct engine *e, struct member *m, struct err *err)
{
    assert(engine_is_aside(e, m));
    TRY(engine_write_member(e, RECORD_MEMBER_READMIT, m->id, m->uuid, m->name, err));
    m->refused[0] = 0;
    struct session *s = session_by_member(&e->sessions, m->id);
    if (s) engine_refresh_ready(e, s);
    log_info("readmitted %s", m->name);
    return STATUS_OK;
}
