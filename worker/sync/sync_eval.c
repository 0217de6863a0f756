/* Evaluations: run at exactly the requested versions, and before other work. */
#include "worker/sync/sync.h"

#include <assert.h>
#include <string.h>

#include "worker/sync/sync_impl.h"

static bool same_eval(const struct msg_eval *a, const struct msg_eval *b)
{
    return a->eval_id == b->eval_id && a->start == b->start && a->count == b->count && a->part == b->part &&
           a->n_fragments == b->n_fragments && !memcmp(a->versions, b->versions, a->n_fragments * sizeof *a->versions);
}

/* parts: loss_sum of each part; NULL with tokens 0 */
static void answer_eval(struct sync *s, double loss_sum, uint64_t tokens, const double *parts)
{
    struct sync_eval *e = &s->eval;
    assert(e->pending != e->running);
    e->pending = e->running = false;
    e->answer = true;
    e->result = (struct msg_eval_result){.eval_id = e->task.eval_id,
                                         .start = e->task.start,
                                         .count = e->task.count,
                                         .loss_sum = loss_sum,
                                         .tokens = tokens};
    if (!tokens) return;
    e->result.n_parts = (uint32_t)msg_eval_parts(e->task.count, e->task.part);
    assert(parts && e->result.n_parts <= WIRE_PARTS_MAX);
    memcpy(e->result.parts, parts, e->result.n_parts * sizeof *parts);
}

void sync_on_eval(struct sync *s, const struct msg_eval *m, uint64_t now_us)
{
    (void)now_us;
    struct sync_eval *e = &s->eval;
    if (s->phase != SYNC_JOINED || m->n_fragments != s->n_fragments || s->done || e->running) return;
    if (same_eval(&e->task, m)) {
        e->answer = e->answer || (!e->pending && e->result.eval_id == m->eval_id);
        return;
    }
    e->task = *m;
    e->pending = true;
    /* With a barrier, evaluations run between rounds: a task at older versions missed its round, and so did the one
     * that WELCOME announced. */
    s->expects_task = false;
    for (uint32_t i = 0; i < s->n_fragments && s->has_task && !s->async; i++)
        s->has_task = s->task.versions[i] >= m->versions[i];
    bool versions_passed = s->state == WORKER_TRAINING && !s->overlaps; /* with overlap: after this segment */
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        versions_passed = versions_passed || (s->holds && s->f[i].version > m->versions[i]);
        if (s->f[i].target < m->versions[i]) s->f[i].target = m->versions[i];
    }
    if (versions_passed) answer_eval(s, 0, 0, NULL);
    sync_settle(s);
}

bool sync_wants_eval(const struct sync *s)
{
    if (s->phase == SYNC_STOPPED || !s->eval.pending || !s->holds || s->computing) return false;
    if (s->state == WORKER_EVALUATING || s->state == WORKER_FINISHED) return false;
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (s->f[i].version != s->eval.task.versions[i]) return false;
    return true;
}

void sync_eval_begin(struct sync *s, uint64_t now_us)
{
    (void)now_us;
    assert(s->eval.pending && !s->eval.running && s->holds);
    assert(!s->computing && s->state != WORKER_EVALUATING && s->state != WORKER_FINISHED);
    s->eval.pending = false;
    s->eval.running = true;
    s->state = WORKER_EVALUATING;
}

void sync_eval_done(struct sync *s, double loss_sum, uint64_t tokens, const double *parts, uint64_t now_us)
{
    (void)now_us;
    assert(!s->eval.running || s->state == WORKER_EVALUATING || s->state == WORKER_FINISHED);
    if (s->state == WORKER_EVALUATING) s->state = WORKER_READY;
    if (s->eval.running) answer_eval(s, loss_sum, tokens, parts);
    sync_settle(s);
}
