/* Rounds in segments: a segment ends where a fragment is sent or applied. */
#include <assert.h>
#include <string.h>

#include "worker/sync/sync.h"
#include "worker/sync/sync_impl.h"

void sync_set_schedule(struct sync *s, const struct config *config)
{
    s->config = config;
    s->overlaps = sync_overlaps(config);
}

static void start_round(struct sync *s, const struct msg_assign *task, uint32_t step)
{
    bool whole = !s->config || sync_points_whole(s->config, task->step0, task->step_rate, task->steps);
    if (task != &s->current) s->current = *task;
    s->round = task->round;
    s->step = step;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        s->points[i] = (struct sync_points){task->steps, task->steps};
        if (s->config) s->points[i] = sync_points_of(s->config, i, s->n_fragments, task->steps, whole);
    }
}

/* The next point of the round, at most its end. */
static uint32_t next_point(const struct sync *s)
{
    uint32_t next = s->current.steps;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct sync_points *p = &s->points[i];
        if (p->sent > s->step && p->sent < next) next = p->sent;
        if (p->applied > s->step && p->applied < next) next = p->applied;
    }
    return next;
}

bool sync_wants_training(const struct sync *s)
{
    if (s->phase == SYNC_STOPPED || s->computing || s->done) return false;
    return s->state == WORKER_TRAINING || (s->has_task && s->state == WORKER_READY && !s->eval.pending);
}

void sync_train_begin(struct sync *s, uint64_t now_us)
{
    (void)now_us;
    assert(sync_wants_training(s) && s->holds && (!s->unsaved || s->overlaps) && !s->eval.running);
    if (s->state == WORKER_READY) {
        assert(s->round == SYNC_NO_ROUND);
        start_round(s, &s->task, 0);
        s->has_task = false;
    }
    s->segment = next_point(s) - s->step;
    assert(s->segment > 0);
    s->computing = true;
    s->state = WORKER_TRAINING;
}

void sync_segment_task(const struct sync *s, struct msg_assign *segment)
{
    uint64_t samples = 0, skip, take;
    *segment = s->current;
    segment->steps = s->segment;
    segment->step0 += s->step * s->current.step_rate;
    if (s->segment == s->current.steps) return;
    for (uint32_t i = 0; i < s->current.n_ranges; i++) samples += s->current.ranges[i].count;
    samples /= s->current.steps; /* of one step */
    skip = s->step * samples;
    take = s->segment * samples;
    segment->n_ranges = 0;
    for (uint32_t i = 0; i < s->current.n_ranges && take; i++) {
        struct wire_range range = s->current.ranges[i];
        uint64_t passed = skip < range.count ? skip : range.count;
        skip -= passed;
        range.start += passed;
        range.count -= passed;
        if (range.count > take) range.count = take;
        take -= range.count;
        if (range.count) segment->ranges[segment->n_ranges++] = range;
    }
    assert(!take && segment->n_ranges);
}

void sync_segment_done(struct sync *s)
{
    assert(s->computing && s->state == WORKER_TRAINING && s->round != SYNC_NO_ROUND);
    s->computing = false;
    s->step += s->segment;
    assert(s->step <= s->current.steps);
}

bool sync_is_sent(const struct sync *s, uint32_t fragment)
{
    return s->points[fragment].sent == s->step;
}

static uint32_t last_sent(const struct sync *s)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (s->points[i].sent > last) last = s->points[i].sent;
    return last;
}

bool sync_is_last_sent(const struct sync *s)
{
    return last_sent(s) == s->step;
}

bool sync_all_sent(const struct sync *s)
{
    return last_sent(s) <= s->step;
}

bool sync_sends_next(const struct sync *s, bool *last_p)
{
    uint32_t last = 0, reached = s->computing ? s->step + s->segment : 0;
    bool any = false;
    *last_p = false;
    if (!s->computing && !(s->has_task && s->state == WORKER_READY)) return false;
    const struct msg_assign *task = s->computing ? &s->current : &s->task;
    bool whole = !s->config || sync_points_whole(s->config, task->step0, task->step_rate, task->steps);
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        struct sync_points p = {task->steps, task->steps};
        if (s->config) p = sync_points_of(s->config, i, s->n_fragments, task->steps, whole);
        any = any || p.sent == reached;
        if (p.sent > last) last = p.sent;
    }
    *last_p = any && last == reached;
    return any;
}

bool sync_is_applied(const struct sync *s, uint32_t fragment)
{
    return s->points[fragment].applied <= s->step;
}

void sync_resume_round(struct sync *s, const struct msg_assign *task, uint32_t step)
{
    start_round(s, task, step);
    s->state = WORKER_TRAINING;
}

void sync_train_abandon(struct sync *s, uint64_t now_us)
{
    (void)now_us;
    if (s->state != WORKER_TRAINING) return;
    assert(s->round != SYNC_NO_ROUND);
    s->computing = false;
    s->round = SYNC_NO_ROUND;
    s->state = WORKER_READY;
    sync_settle(s);
}
