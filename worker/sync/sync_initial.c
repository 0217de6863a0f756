/* The upload of an initial model: while the worker joins a run that has no model yet. JOIN is repeated after silence,
 * as OFFER is for a delta, and UPLOAD is its CREDIT. */
#include <assert.h>
#include <stdio.h>

#include "common/base/minmax.h"
#include "worker/sync/sync_flow.h"
#include "worker/sync/sync_impl.h"

enum { UPLOAD_WAIT_US = 2000000 }; /* until the next JOIN while another worker uploads */

uint64_t sync_initial_in_flight(const struct sync *s)
{
    const struct sync_initial *u = &s->initial;
    return s->phase == SYNC_JOINING && u->id ? u->sent - u->held : 0;
}

static uint64_t timeout_us(const struct sync *s)
{
    return sync_timeout_us(&s->up, s->rtt_us, sync_initial_in_flight(s), SYNC_RETRY_MAX_US);
}

void sync_on_upload(struct sync *s, const struct msg_upload *m, uint64_t total, uint64_t now_us)
{
    struct sync_initial *u = &s->initial;
    if (s->phase != SYNC_JOINING) return;
    s->text[0] = '\0';
    if (!m->upload) {
        *u = (struct sync_initial){0};
        snprintf(s->text, sizeof s->text, "%s", m->text);
        s->retry_at = now_us + UPLOAD_WAIT_US;
        s->retries = 0;
        return;
    }
    if (m->have > total || m->upto < m->have) return;
    bool begins = u->id != m->upload || u->total != total, moved = begins || m->have > u->held;
    if (begins) *u = (struct sync_initial){.id = m->upload, .total = total, .sent = m->have, .held = m->have};
    if (u->probing && m->have == u->probe) u->sent = m->have; /* the bytes after it were lost */
    if (m->have > u->held) sync_rate_add(&s->up, m->have - u->held);
    if (m->have > u->held) u->held = m->have;
    if (u->sent < u->held) u->sent = u->held;
    if (m->upto > u->upto) u->upto = m->upto < total ? m->upto : total;
    u->probing = false;
    if (moved) s->retries = 0;
    /* The coordinator reads and checks all of it before it answers. */
    s->retry_at = now_us + (u->held < total ? timeout_us(s) : SYNC_RETRY_MAX_US);
    assert(u->held <= u->sent && u->sent <= total && u->upto <= total);
}

uint64_t sync_initial_action(const struct sync *s, struct sync_action *a)
{
    const struct sync_initial *u = &s->initial;
    uint64_t end = min_u64(u->upto, u->held + sync_window(&s->up, s->rtt_us));
    if (s->phase != SYNC_JOINING || !u->id || u->sent >= end) return UINT64_MAX;
    uint64_t left = end - u->sent;
    *a = (struct sync_action){.type = SYNC_SEND_INITIAL,
                              .kind = OBJECT_INITIAL,
                              .version = u->id,
                              .offset = u->sent,
                              .length = left < SYNC_CHUNK ? left : SYNC_CHUNK};
    return s->blocked_until;
}

void sync_initial_sent(struct sync *s, const struct sync_action *a, uint64_t now_us)
{
    struct sync_initial *u = &s->initial;
    assert(a->offset == u->sent && a->version == u->id && a->length);
    u->sent += a->length;
    assert(u->sent <= u->upto);
    uint64_t at = now_us + timeout_us(s);
    if (s->retry_at < at) s->retry_at = at;
}

void sync_initial_join_sent(struct sync *s)
{
    struct sync_initial *u = &s->initial;
    if (!u->id) return;
    u->probing = true;
    u->probe = u->held;
}
