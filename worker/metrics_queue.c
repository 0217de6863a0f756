#include "worker/metrics_queue.h"

static struct step_record *record(struct metrics_queue *log, uint64_t place)
{
    return &log->records[place % METRICS_QUEUE_MAX];
}

void metrics_queue_add(struct metrics_queue *log, const struct metrics_step *step)
{
    if (log->end - log->first == METRICS_QUEUE_MAX) {
        if (log->first == log->next) {
            log->lost++;
        } else {
            log->dropped++;
            log->dropped_us = record(log, log->first)->sent_us;
        }
        log->first++;
        if (log->next < log->first) log->next = log->first;
        if (log->fresh < log->first) log->fresh = log->first;
    }
    *record(log, log->end++) = (struct step_record){.step = *step, .times.round = UINT64_MAX};
}

bool metrics_queue_times(struct metrics_queue *log, const struct step_times *times)
{
    if (log->end == log->fresh) return false;
    record(log, log->end - 1)->times = *times;
    return true;
}

uint64_t metrics_queue_waiting(const struct metrics_queue *log)
{
    return log->end - log->next;
}

/* A message tells the times of one round, with its last record: there it ends. */
void metrics_queue_batch(const struct metrics_queue *log, struct msg_metrics *m)
{
    struct step_times times = {.round = UINT64_MAX};
    m->n_steps = 0;
    for (uint64_t at = log->next; at < log->end && m->n_steps < WIRE_METRICS_MAX && times.round == UINT64_MAX; at++) {
        const struct step_record *r = &log->records[at % METRICS_QUEUE_MAX];
        m->steps[m->n_steps++] = r->step;
        times = r->times;
    }
    m->round = times.round;
    m->compute_s = times.compute_s;
    m->compress_s = times.compress_s;
    m->send_s = times.send_s;
    m->wait_s = times.wait_s;
    m->apply_s = times.apply_s;
}

void metrics_queue_sent(struct metrics_queue *log, uint32_t n, uint64_t now_us)
{
    for (uint32_t i = 0; i < n; i++) record(log, log->next++)->sent_us = now_us;
    if (log->fresh < log->next) log->fresh = log->next;
}

void metrics_queue_acked(struct metrics_queue *log, uint64_t acked_us)
{
    if (log->dropped_us + METRICS_QUEUE_SAFE_US <= acked_us) log->dropped = 0;
    while (log->first < log->next && record(log, log->first)->sent_us + METRICS_QUEUE_SAFE_US <= acked_us) log->first++;
}

void metrics_queue_again(struct metrics_queue *log)
{
    log->next = log->first;
    log->lost += log->dropped;
    log->dropped = 0;
}
