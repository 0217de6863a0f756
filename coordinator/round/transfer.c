#include "coordinator/round/transfer.h"

#include <assert.h>
#include <stdio.h>

#include "common/base/text.h"

enum { MEASURE_US = 500000 }; /* a shorter time measures queues, not the link */

void transfer_note(struct transfer *t, uint64_t have, uint64_t total, uint64_t now_us)
{
    assert(have <= total && now_us >= t->moved_us);
    if (total != t->total || have < t->have) {
        *t = (struct transfer){
            .have = have, .total = total, .from = have, .from_us = now_us, .moved_us = now_us, .rate = t->rate};
        return;
    }
    if (have == t->have) return;
    t->have = have;
    t->moved_us = now_us;
    uint64_t us = now_us - t->from_us;
    if (us >= MEASURE_US) t->rate = (double)(have - t->from) * 1e6 / (double)us;
}

const char *transfer_text(const struct transfer *t, char *out, size_t cap)
{
    assert(cap > 0);
    out[0] = '\0';
    if (!t->total) return out;
    snprintf(out, cap, ", %u %%", (unsigned)(100.0 * (double)t->have / (double)t->total));
    if (t->rate > 0) text_add(out, cap, t->rate * 8e-6 < 10 ? " at %.2g Mbit/s" : " at %.0f Mbit/s", t->rate * 8e-6);
    return out;
}
