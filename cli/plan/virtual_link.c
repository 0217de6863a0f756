#include "cli/plan/virtual_link.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

void virtual_queue_put(struct virtual_queue *q, struct virtual_message *m)
{
    m->next = NULL;
    *(q->last ? &q->last->next : &q->first) = m;
    q->last = m;
}

struct virtual_message *virtual_queue_take(struct virtual_queue *q)
{
    struct virtual_message *m = q->first;
    if (!m) return NULL;
    q->first = m->next;
    if (!q->first) q->last = NULL;
    return m;
}

void virtual_queue_clear(struct virtual_queue *q)
{
    for (struct virtual_message *m; (m = virtual_queue_take(q));) mem_free(m);
}

static struct virtual_message *message_of(struct msg *m)
{
    static const uint8_t none;
    if (m->type == MSG_CHUNK) m->chunk.data = &none; /* msg_encoded_size does not read it */
    struct virtual_message *v = mem_alloc(1, sizeof *v);
    if (!v) return NULL;
    v->size = v->left = msg_encoded_size(m);
    v->type = m->type;
    switch (m->type) {
    case MSG_ASSIGN: v->assign = m->assign; break;
    case MSG_OFFER: v->offer = m->offer; break;
    case MSG_CREDIT: v->credit = m->credit; break;
    case MSG_REJECT: v->reject = m->reject; break;
    case MSG_GET: v->get = m->get; break;
    case MSG_CHUNK: v->chunk = m->chunk; break;
    case MSG_HEARTBEAT: v->heartbeat.state = m->heartbeat.state; break;
    default: break; /* its size is all that matters */
    }
    assert(v->size);
    return v;
}

void virtual_line_init(struct virtual_line *line, struct event_queue *clock, const struct link_spec *spec, bool down)
{
    *line = (struct virtual_line){.clock = clock,
                                  .spec = spec,
                                  .line = {.rate_mbit = down ? spec->down_mbit : spec->up_mbit,
                                           .delay_ms = spec->delay_ms,
                                           .jitter_ms = spec->jitter_ms,
                                           .seed = down}};
}

void virtual_line_finish(struct virtual_line *line)
{
    virtual_queue_clear(&line->later);
    virtual_queue_clear(&line->lanes[WIRE_CONTROL]);
    virtual_queue_clear(&line->lanes[WIRE_BULK]);
    virtual_queue_clear(&line->flight);
}

/* The end of the outage at this time; `now_us`: there is none. */
static uint64_t outage_end_us(const struct link_spec *spec, uint64_t now_us)
{
    for (size_t i = 0; i < spec->n_outages; i++) {
        double from = spec->outages[i].start_s * 1e6, to = from + spec->outages[i].seconds * 1e6;
        if ((double)now_us >= from && (double)now_us < to) return (uint64_t)to + 1;
    }
    return now_us;
}

static void line_deliver(void *ctx, uint64_t arg)
{
    struct virtual_line *line = ctx;
    (void)arg;
    uint64_t now = line->clock->now_us, end = outage_end_us(line->spec, now);
    if (end > now) {
        event_queue_at(line->clock, end, line_deliver, line, 0);
        return;
    }
    while (line->flight.first && line->flight.first->at_us <= now)
        line->arrive(line->ctx, virtual_queue_take(&line->flight));
}

/* Moves one piece of the next lane to the line; false: nothing waits. */
static bool take_piece(struct virtual_line *line)
{
    if (!line->lanes[line->turn].first) line->turn = !line->turn;
    struct virtual_queue *lane = &line->lanes[line->turn];
    struct virtual_message *m = lane->first;
    if (!m) return false;
    size_t piece = line_piece(&line->line);
    if (piece > m->left) piece = m->left;
    m->left -= piece;
    line->bytes += piece;
    line->turn = !line->turn;
    double arrives = line_accept(&line->line, line->clock->now_us, piece);
    line->line.in_transit = 0; /* the receiver is never too slow */
    if (m->left) return true;
    (void)virtual_queue_take(lane);
    m->at_us = (uint64_t)arrives;
    if (line->flight.last && line->flight.last->at_us > m->at_us) m->at_us = line->flight.last->at_us; /* jitter */
    virtual_queue_put(&line->flight, m);
    event_queue_at(line->clock, m->at_us, line_deliver, line, 0);
    return true;
}

static void line_run(void *ctx, uint64_t at_us)
{
    struct virtual_line *line = ctx;
    if (at_us != line->wake_us) return;
    line->wake_us = 0;
    for (;;) {
        uint64_t now = line->clock->now_us, again = outage_end_us(line->spec, now);
        double wait = line_wait_us(&line->line, now);
        if ((double)now + wait > (double)again) again = now + (uint64_t)wait + 1;
        if (again > now) {
            line->wake_us = again;
            event_queue_at(line->clock, again, line_run, line, again);
            return;
        }
        if (!take_piece(line)) return;
    }
}

static void line_enter(void *ctx, uint64_t arg)
{
    struct virtual_line *line = ctx;
    (void)arg;
    struct virtual_message *m = virtual_queue_take(&line->later);
    assert(m && m->at_us <= line->clock->now_us);
    virtual_queue_put(&line->lanes[msg_lane(m->type) == WIRE_BULK ? WIRE_BULK : WIRE_CONTROL], m);
    if (line->wake_us) return;
    line->wake_us = line->clock->now_us;
    line_run(line, line->wake_us);
}

struct virtual_message *virtual_line_send(struct virtual_line *line, struct msg *m, uint64_t at_us)
{
    struct virtual_message *v = message_of(m);
    assert(at_us >= line->clock->now_us && (!line->later.last || line->later.last->at_us <= at_us));
    if (!v) {
        *line->failed = true;
        return NULL;
    }
    v->at_us = at_us;
    virtual_queue_put(&line->later, v);
    event_queue_at(line->clock, at_us, line_enter, line, 0);
    return v;
}
