#include "cli/follow/follow_link.h"

#include <assert.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/minmax.h"
#include "common/base/units.h"
#include "common/os/interrupt.h"
#include "wire/dial_failure.h"

enum {
    RECV_US = 50000,
    ASK_EVERY_US = 2000000, /* and four round trips */
    SILENT_US = 15000000,   /* without any reply for this long the coordinator is away */
    UNREACHED_US = 3000000, /* the same before the first connection */
    WANT_MIN = 16 << 10,
    WANT_FIRST = 64 << 10,
    SHORT_US = 100000, /* a reply that is so much later than two round trips has waited a little in the line */
    LONG_US = 400000,  /* or much */
};

static uint64_t rtt_us(const struct follow_link *l)
{
    return atomic_load(&l->t->rtt_us);
}

enum status follow_link_open(struct follow_link *l, const struct transport_address *address, struct err *err)
{
    *l = (struct follow_link){.address = *address, .want = WANT_FIRST};
    l->address.quiet = true;
    l->address.fail_fast = true;
    return transport_zmq_dial(&l->t, &l->address, NULL, err);
}

void follow_link_close(struct follow_link *l)
{
    if (l->t) l->t->ops->close(l->t);
    l->t = NULL;
}

static enum status send(struct follow_link *l, const struct msg *m)
{
    size_t size;
    TRY(msg_encode(m, l->frame, sizeof l->frame, &size));
    return l->t->ops->send(l->t, 0, msg_lane(m->type), l->frame, size);
}

/* AGAIN: no message for a moment. */
static enum status receive(struct follow_link *l, uint64_t timeout_us, struct msg *m, struct err *err)
{
    uint64_t peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    TRY(interrupt_check(err));
    if (l->t->ops->recv(l->t, timeout_us, &peer, &lane, &data, &size) != STATUS_OK) {
        TRY(interrupt_check(err));
        return STATUS_AGAIN;
    }
    TRY(msg_decode(m, data, size, err));
    if (m->type == MSG_REFUSE && m->refuse.code == REFUSE_SPENT)
        return err_set(err, STATUS_SPENT, "%s", m->refuse.text);
    if (m->type == MSG_REFUSE) return err_set(err, STATUS_REFUSED, "the coordinator refused: %s", m->refuse.text);
    return STATUS_OK;
}

static enum status silent(const struct follow_link *l, uint64_t us, struct err *err)
{
    return err_set(err, STATUS_CLOSED, "%s does not answer for %s", l->address.endpoint,
                   units_whole_seconds((double)us / 1e6).text);
}

/* Never connected: the reason that a plain connection shows. */
static enum status explain(const struct follow_link *l, struct err *err)
{
    struct err why = {0};
    enum dial_failure seen = (enum dial_failure)atomic_load(&l->t->failure);
    if (dial_failure_explain(&l->address, seen, DIAL_EXPLAIN_US, &why) >= 0) return silent(l, UNREACHED_US, err);
    return err_set(err, why.code, "%s", why.msg);
}

enum status follow_link_ask(struct follow_link *l, struct msg_model_reply *out, struct err *err)
{
    static struct msg answer; /* large */
    const struct msg question = {.type = MSG_MODEL};
    uint64_t begin = clock_monotonic_us(), now = begin, again = begin;
    for (; now < begin + SILENT_US; now = clock_monotonic_us()) {
        unsigned connected = atomic_load(&l->t->connected);
        if (!connected && now >= begin + UNREACHED_US) return explain(l, err);
        if (connected && (now >= again || connected != l->connected) && send(l, &question) == STATUS_OK) {
            again = now + ASK_EVERY_US + 4 * rtt_us(l);
            l->connected = connected;
        }
        enum status status = receive(l, RECV_US, &answer, err);
        if (status < 0) return status;
        if (status != STATUS_OK || answer.type != MSG_MODEL_REPLY) continue;
        *out = answer.model_reply;
        return STATUS_OK;
    }
    return silent(l, SILENT_US, err);
}

/* --- objects ------------------------------------------------------------------------------------------------------ */

/* A read of one object. */
struct reading {
    enum fetch_kind kind;
    uint32_t index;
    uint64_t version;
    follow_sink_fn *sink;
    void *ctx;
    uint64_t have, next, total; /* bytes taken; offset of the next FETCH; total 0: not known yet */
    uint64_t heard_us;
};

/* Everything that is under way is forgotten: asked again from what is here. */
static void restart(struct follow_link *l, struct reading *r)
{
    l->n = 0;
    r->next = r->have;
}

/* Sends FETCHes up to the window. Before the size of the object is known, only one. */
static void ask_more(struct follow_link *l, struct reading *r, uint64_t now)
{
    while (l->n < FOLLOW_WINDOW && (r->total ? r->next < r->total : !l->n)) {
        const struct msg m = {.type = MSG_FETCH,
                              .fetch = {.id = ++l->ids,
                                        .kind = (uint8_t)r->kind,
                                        .index = r->index,
                                        .version = r->version,
                                        .offset = r->next,
                                        .want = l->want}};
        if (send(l, &m) != STATUS_OK) return;
        l->asked[l->n++] = (struct follow_asked){l->ids, r->next, now};
        r->next += l->want;
    }
}

/* Larger requests as long as replies come at once, smaller ones when they wait: a worker's next transfer shares the
 * line. */
static void adapt(struct follow_link *l, uint64_t id, uint64_t waited_us)
{
    if (id <= l->grown_id) return;
    l->grown_id = l->ids;
    if (waited_us > 2 * rtt_us(l) + LONG_US && l->want > WANT_MIN) l->want /= 2;
    if (waited_us < 2 * rtt_us(l) + SHORT_US && l->want < WIRE_FETCH_MAX) l->want *= 2;
}

/* Takes the answer to the oldest FETCH; after a lost one everything is asked again. */
static enum status take(struct follow_link *l, struct reading *r, const struct msg_fetch_reply *m, struct err *err)
{
    uint64_t now = clock_monotonic_us();
    if (!l->n || m->id < l->asked[0].id || m->id > l->asked[l->n - 1].id) return STATUS_OK; /* of an earlier attempt */
    r->heard_us = now;
    if (m->wait_ms) {
        restart(l, r);
        return follow_link_idle(l, m->wait_ms * (uint64_t)1000, err);
    }
    if (m->id != l->asked[0].id || (r->total && m->total != r->total && m->total)) {
        restart(l, r);
        return STATUS_OK;
    }
    if (!m->total || !m->size) return err_set(err, STATUS_NOTFOUND, "the coordinator has removed a part of the model");
    assert(l->asked[0].offset == r->have);
    adapt(l, m->id, now - l->asked[0].sent_us);
    if (m->size > m->total - r->have) return err_set(err, STATUS_CORRUPT, "a reply is longer than its object");
    r->total = m->total;
    TRY(r->sink(r->ctx, r->have, m->data, m->size, m->total, err));
    r->have += m->size;
    l->received += m->size;
    l->n--;
    for (uint32_t i = 0; i < l->n; i++) l->asked[i] = l->asked[i + 1];
    if (l->n ? l->asked[0].offset != r->have : r->next != r->have) restart(l, r); /* the first one was cut to the end */
    return STATUS_OK;
}

enum status follow_link_fetch(struct follow_link *l, enum fetch_kind kind, uint32_t index, uint64_t version,
                              follow_sink_fn *sink, void *ctx, struct err *err)
{
    static struct msg m; /* large */
    uint64_t now = clock_monotonic_us();
    struct reading r = {.kind = kind, .index = index, .version = version, .sink = sink, .ctx = ctx, .heard_us = now};
    for (restart(l, &r); !r.total || r.have < r.total; now = clock_monotonic_us()) {
        unsigned connected = atomic_load(&l->t->connected);
        if (now > r.heard_us + SILENT_US) return silent(l, SILENT_US, err);
        bool late = l->n && now > max_u64(l->asked[0].sent_us, r.heard_us) + ASK_EVERY_US + 4 * rtt_us(l);
        if (late || connected != l->connected) restart(l, &r);
        l->connected = connected;
        ask_more(l, &r, now);
        enum status status = receive(l, RECV_US, &m, err);
        if (status < 0) return status;
        if (status == STATUS_OK && m.type == MSG_FETCH_REPLY) TRY(take(l, &r, &m.fetch_reply, err));
    }
    return STATUS_OK;
}

enum status follow_link_idle(struct follow_link *l, uint64_t us, struct err *err)
{
    static struct msg m; /* large */
    uint64_t end = clock_monotonic_us() + us;
    for (uint64_t now; (now = clock_monotonic_us()) < end;) {
        enum status status = receive(l, min_u64(end - now, RECV_US), &m, err);
        if (status < 0) return status;
    }
    return STATUS_OK;
}
