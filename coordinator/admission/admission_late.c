/* Late workers: they joined while the others went on, and lack updates. A late worker never stops the others.
 *
 * - It gets work when it is within reach of the newest versions: at its measured rate the updates that it lacks take no
 *   longer than a usual round, or a second. Until then it follows the log.
 * - A link that cannot keep up with the updates never gets there; then status says so.
 * - A member whose last delta was merged is not late: the round waits for it, on a slow link, too. */
#include <assert.h>
#include <stdio.h>

#include "common/base/minmax.h"
#include "common/base/text.h"
#include "common/base/units.h"
#include "coordinator/admission/admission.h"
#include "coordinator/engine/state/engine_effects.h"

enum { REACH_US = 1000000 };

struct admission_lack admission_lack_of(const struct engine *e, const uint64_t *versions, uint32_t n)
{
    const struct ledger *l = &e->ledger;
    struct admission_lack lack = {0};
    for (uint32_t f = 0; f < n && f < l->layout.n_fragments; f++) {
        uint64_t held = versions[f], now = l->round.versions[f];
        if (held >= now) continue;
        if (now - held > lack.updates) lack.updates = now - held;
        lack.bytes += update_log_bytes(&l->log, f, held, now);
    }
    return lack;
}

bool admission_lacks_update(const struct engine *e, const struct session *s)
{
    const struct round *r = &e->ledger.round;
    for (uint32_t f = 0; f < s->last.n_fragments && f < r->p.n_fragments; f++)
        if (s->last.versions[f] < r->versions[f]) return true;
    return false;
}

uint64_t admission_usual_round_us(const struct engine *e)
{
    const struct round *r = &e->ledger.round;
    uint64_t running = r->opened_us && e->now_us > r->opened_us ? e->now_us - r->opened_us : 0;
    return deadline_of(&r->durations, 0, 0, UINT64_MAX / 8, running).limit_us;
}

bool admission_is_late(const struct engine *e, const struct session *s)
{
    const struct member *m = engine_member(e, s);
    if (!m || m->in_step || m->work.open || !s->beating || e->ledger.done) return false;
    struct admission_lack lack = admission_lack_of(e, s->last.versions, s->last.n_fragments);
    if (!s->last.rate) return lack.updates > 1; /* it has not loaded anything long enough for a measurement */
    uint64_t reach = max_u64(admission_usual_round_us(e), REACH_US);
    return 1e6 * (double)lack.bytes / (double)s->last.rate > (double)reach;
}

const char *admission_late_text(const struct engine *e, const struct session *s, char *out, size_t cap)
{
    struct admission_lack lack = admission_lack_of(e, s->last.versions, s->last.n_fragments);
    double round_s = (double)admission_usual_round_us(e) * 1e-6, rate = (double)s->last.rate;
    assert(lack.updates > 0);
    snprintf(out, cap, "%llu update%s behind", (unsigned long long)lack.updates, lack.updates == 1 ? "" : "s");
    if (!s->last.rate) return out;
    bool keeps_up = (double)lack.bytes / (double)lack.updates < rate * round_s;
    text_add(out, cap, ", %s at %.3g Mbit/s; a round takes %s%s", units_duration((double)lack.bytes / rate).text,
             rate * 8e-6, units_duration(round_s).text, keeps_up ? "" : ": this link cannot keep up");
    return out;
}
