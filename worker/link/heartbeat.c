#include "worker/link/heartbeat.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/backoff.h"

void heartbeat_init(struct heartbeat *p)
{
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->beat.state = WORKER_CATCHING_UP;
    p->beat.round = UINT64_MAX;
    p->beat.workers = 1;
}

void heartbeat_finish(struct heartbeat *p)
{
    pthread_mutex_destroy(&p->lock);
}

void heartbeat_join(struct heartbeat *p, uint64_t session, uint32_t heartbeat_ms)
{
    pthread_mutex_lock(&p->lock);
    p->joined = p->changed = true;
    p->beat.session = session;
    p->every_us = (uint64_t)heartbeat_ms * 1000;
    p->acked_us = 0;
    pthread_mutex_unlock(&p->lock);
}

void heartbeat_leave(struct heartbeat *p)
{
    pthread_mutex_lock(&p->lock);
    p->joined = false;
    pthread_mutex_unlock(&p->lock);
}

void heartbeat_set_state(struct heartbeat *p, enum worker_state state, uint64_t round, uint32_t steps, uint64_t eval_id,
                         uint32_t n_fragments, const uint64_t *versions)
{
    pthread_mutex_lock(&p->lock);
    struct msg_heartbeat *b = &p->beat;
    assert(n_fragments <= LAYOUT_FRAGMENTS_MAX);
    if (b->state != state || b->round != round || b->eval_id != eval_id || b->n_fragments != n_fragments ||
        memcmp(b->versions, versions, n_fragments * sizeof *versions) != 0)
        p->changed = true;
    if (b->round != round || b->state != state) b->step = state == WORKER_TRAINING ? 0 : steps;
    b->state = (uint8_t)state;
    b->round = round;
    b->steps = steps;
    b->eval_id = eval_id;
    b->n_fragments = n_fragments;
    memcpy(b->versions, versions, n_fragments * sizeof *versions);
    pthread_mutex_unlock(&p->lock);
}

void heartbeat_set_received(struct heartbeat *p, uint64_t received, uint64_t expected, uint64_t rate)
{
    pthread_mutex_lock(&p->lock);
    p->beat.received = received;
    p->beat.expected = expected;
    p->beat.rate = rate;
    pthread_mutex_unlock(&p->lock);
}

void heartbeat_set_step(struct heartbeat *p, uint32_t step, uint64_t step_us)
{
    pthread_mutex_lock(&p->lock);
    double s = (double)step_us / 1e6;
    assert(p->beat.state != WORKER_TRAINING || step >= p->beat.step);
    p->beat.step = step;
    p->beat.step_s = p->beat.step_s > 0 ? 0.8 * p->beat.step_s + 0.2 * s : s;
    pthread_mutex_unlock(&p->lock);
}

void heartbeat_set_workers(struct heartbeat *p, uint32_t workers)
{
    pthread_mutex_lock(&p->lock);
    assert(workers > 0 && workers <= WIRE_REGION_MAX);
    p->changed = p->changed || p->beat.workers != workers;
    p->beat.workers = workers;
    pthread_mutex_unlock(&p->lock);
}

void heartbeat_set_data(struct heartbeat *p, uint64_t train_hash, uint64_t val_hash)
{
    pthread_mutex_lock(&p->lock);
    p->beat.train_hash = train_hash;
    p->beat.val_hash = val_hash;
    p->changed = true;
    pthread_mutex_unlock(&p->lock);
}

bool heartbeat_take(struct heartbeat *p, uint64_t now_us, struct msg *m)
{
    pthread_mutex_lock(&p->lock);
    assert(p->beat.sent_us <= now_us);
    bool due = p->joined && (p->changed || now_us >= p->next_us);
    if (due) {
        p->changed = false;
        p->next_us = now_us + p->every_us;
        p->beat.sent_us = now_us;
        m->type = MSG_HEARTBEAT;
        m->heartbeat = p->beat;
    }
    pthread_mutex_unlock(&p->lock);
    return due;
}

uint64_t heartbeat_deadline_us(struct heartbeat *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t at = !p->joined ? UINT64_MAX : p->changed ? 0 : p->next_us;
    pthread_mutex_unlock(&p->lock);
    return at;
}

void heartbeat_on_message(struct heartbeat *p, const struct msg *m, uint64_t now_us)
{
    pthread_mutex_lock(&p->lock);
    p->heard_us = now_us;
    if (!p->joined || (m && m->type == MSG_HEARTBEAT_ACK)) {
        p->alive_us = now_us;
        p->redials = 0;
    }
    if (m && m->type == MSG_HEARTBEAT_ACK) {
        uint64_t sent = m->heartbeat_ack.sent_us;
        if (!sent) p->busy_us = now_us;
        if (sent > p->busy_us && sent <= now_us) { /* an earlier one waited for the coordinator, not for the path */
            uint64_t rtt = now_us - sent + 1;
            p->rtt_us = p->rtt_us ? (7 * p->rtt_us + rtt) / 8 : rtt;
        }
        if (sent > p->acked_us) p->acked_us = sent;
        snprintf(p->waiting_for, sizeof p->waiting_for, "%s", m->heartbeat_ack.waiting_for);
    }
    pthread_mutex_unlock(&p->lock);
}

void heartbeat_connected(struct heartbeat *p, uint64_t rtt_us, uint64_t now_us)
{
    pthread_mutex_lock(&p->lock);
    p->alive_us = now_us;
    p->dialled_rtt_us = rtt_us;
    pthread_mutex_unlock(&p->lock);
}

uint64_t heartbeat_lost_us(struct heartbeat *p, uint64_t now_us)
{
    pthread_mutex_lock(&p->lock);
    uint64_t limit = HEARTBEAT_LOST_RTTS * p->rtt_us, lost = 0;
    if (limit < HEARTBEAT_LOST_US) limit = HEARTBEAT_LOST_US;
    limit = backoff_us(limit, p->redials, HEARTBEAT_LOST_MAX_US);
    if (!p->alive_us) p->alive_us = now_us;
    if (now_us - p->alive_us >= limit) {
        lost = now_us - p->alive_us;
        p->alive_us = now_us;
        p->redials++;
    }
    pthread_mutex_unlock(&p->lock);
    return lost;
}

uint64_t heartbeat_rtt_us(struct heartbeat *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t rtt = p->rtt_us ? p->rtt_us : p->dialled_rtt_us;
    pthread_mutex_unlock(&p->lock);
    return rtt;
}

bool heartbeat_joined(struct heartbeat *p)
{
    pthread_mutex_lock(&p->lock);
    bool joined = p->joined;
    pthread_mutex_unlock(&p->lock);
    return joined;
}

uint64_t heartbeat_heard_us(struct heartbeat *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t at = p->heard_us;
    pthread_mutex_unlock(&p->lock);
    return at;
}

uint64_t heartbeat_acked_us(struct heartbeat *p)
{
    pthread_mutex_lock(&p->lock);
    uint64_t at = p->acked_us;
    pthread_mutex_unlock(&p->lock);
    return at;
}

void heartbeat_waiting_for(struct heartbeat *p, uint64_t now_us, char out[WIRE_TEXT_MAX])
{
    pthread_mutex_lock(&p->lock);
    memcpy(out, p->waiting_for, WIRE_TEXT_MAX);
    if (now_us > p->heard_us + HEARTBEAT_SILENT_US) out[0] = '\0';
    pthread_mutex_unlock(&p->lock);
}
