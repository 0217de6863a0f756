/* Evaluations: run at exactly the requested versions, and before other work. The caller evaluates one piece of adjacent
 * parts after another. */
#include "worker/sync/sync.h"

#include <assert.h>
#include <string.h>

#include "worker/sync/sync_impl.h"

static bool same_eval(const struct msg_eval *a, const struct msg_eval *b)
{
    return a->eval_id == b->eval_id && a->start == b->start && a->count == b->count && a->part == b->part &&
           a->wanted == b->wanted && a->n_fragments == b->n_fragments &&
           !memcmp(a->versions, b->versions, a->n_fragments * sizeof *a->versions);
}

/* Takes the first of the parts that are left, and those next to it. */
static void take_piece(struct sync_eval *e)
{
    uint64_t first = 0, n = 1;
    assert(e->left);
    while (!(e->left >> first & 1)) first++;
    while (first + n < WIRE_PARTS_MAX && e->left >> (first + n) & 1) n++;
    bool last = first + n == msg_eval_parts(e->task.count, e->task.part); /* may be shorter */
    e->piece = e->task;
    e->piece.start += first * e->task.part;
    e->piece.count = last ? e->task.count - first * e->task.part : n * e->task.part;
    e->piece.wanted = msg_eval_all(n);
}

static void answer_eval(struct sync_eval *e)
{
    assert(e->pending != e->running);
    e->pending = e->running = false;
    e->answer = true;
    e->result = e->sums;
}

static void begin_sums(struct sync_eval *e)
{
    e->sums = (struct msg_eval_result){.eval_id = e->task.eval_id, .start = e->task.start, .count = e->task.count};
    e->left = e->task.wanted;
    take_piece(e);
}

static void add_piece(struct sync_eval *e, double loss_sum, const struct wire_part *parts)
{
    uint64_t n = msg_eval_parts(e->piece.count, e->piece.part), first = (e->piece.start - e->task.start) / e->task.part;
    assert(e->sums.n_parts + n <= WIRE_PARTS_MAX);
    e->left &= ~(msg_eval_all(n) << first);
    e->sums.loss_sum += loss_sum;
    for (uint64_t i = 0; i < n; i++) {
        e->sums.tokens += parts[i].tokens;
        e->sums.parts[e->sums.n_parts++] = parts[i];
    }
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
    begin_sums(e);
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
    if (versions_passed) answer_eval(e);
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

void sync_eval_done(struct sync *s, double loss_sum, const struct wire_part *parts, uint64_t now_us)
{
    (void)now_us;
    struct sync_eval *e = &s->eval;
    assert(!e->running || s->state == WORKER_EVALUATING || s->state == WORKER_FINISHED);
    if (e->running && !parts) {
        begin_sums(e);
        answer_eval(e);
    } else if (e->running) {
        add_piece(e, loss_sum, parts);
        if (e->left)
            take_piece(e);
        else
            answer_eval(e);
    }
    if (s->state == WORKER_EVALUATING && !e->running) s->state = WORKER_READY;
    sync_settle(s);
}
