/* The state of the work and the events that change it. Other parts of the state machine:
 *   sync_connection.c   handshake, refusals, end of a session
 *   sync_poll.c         actions, their times, and what the worker waits for
 *   sync_flow.c         downloads and uploads: offsets and deadlines
 *   sync_segment.c      rounds in segments: sync points and apply points
 *   sync_initial.c      upload of the initial model
 *   sync_eval.c         evaluations */
#include "worker/sync/sync.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "worker/sync/sync_flow.h"
#include "worker/sync/sync_impl.h"

void sync_init(struct sync *s, uint64_t jitter, uint64_t now_us)
{
    memset(s, 0, sizeof *s);
    s->jitter = jitter;
    s->retry_at = now_us;
    s->state = WORKER_CATCHING_UP;
    s->worker_id = UINT32_MAX;
    s->round = s->last_round = SYNC_NO_ROUND;
    sync_rate_init(&s->up, now_us);
    sync_rate_init(&s->down, now_us);
}

/* --- state of the work -------------------------------------------------------------------------------------------- */

/* A round ends when every fragment is merged or refused. */
static void end_round(struct sync *s)
{
    bool rejected = false;
    assert(s->round != SYNC_NO_ROUND);
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        assert(!sync_flow_pending(&s->f[i]));
        rejected = rejected || s->f[i].upload == SYNC_UPLOAD_REJECTED;
        s->f[i].upload = SYNC_UPLOAD_NONE;
        s->f[i].passed = false;
    }
    s->last_round = s->round;
    s->last_again = rejected;
    s->round = SYNC_NO_ROUND;
}

bool sync_is_behind(const struct sync *s)
{
    if (!s->holds) return true;
    if (s->expects_task && !s->has_task) return false; /* ASSIGN says which versions it needs */
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (s->f[i].version < (s->has_task ? s->task.versions[i] : s->f[i].target)) return true;
    return false;
}

void sync_settle(struct sync *s)
{
    bool sending = false, waiting = false;
    if (s->done) {
        s->state = WORKER_FINISHED;
        return;
    }
    if (s->computing || s->state == WORKER_EVALUATING) return;
    bool in_round = s->round != SYNC_NO_ROUND, end = s->step >= s->current.steps;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        enum sync_upload u = s->f[i].upload;
        if (in_round && !end && s->points[i].applied > s->step) continue;
        sending = sending || u == SYNC_UPLOAD_OFFERED || u == SYNC_UPLOAD_SENDING;
        waiting = waiting || u == SYNC_UPLOAD_DELIVERED;
    }
    assert((!sending && !waiting) || in_round);
    if (sending || waiting) {
        s->state = sending ? WORKER_SENDING : WORKER_WAITING;
        return;
    }
    if (in_round && !end) {
        s->state = WORKER_TRAINING;
        return;
    }
    if (in_round) end_round(s);
    /* A worker that is READY gets a task, and must not restart from an older state after that. With overlap it may have
     * its task before. */
    bool saving = s->unsaved && !(s->overlaps && s->has_task);
    s->state = sync_is_behind(s) || saving ? WORKER_CATCHING_UP : WORKER_READY;
}

void sync_drop_work(struct sync *s)
{
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        s->f[i].upload = SYNC_UPLOAD_NONE;
        s->f[i].passed = s->f[i].lost = false;
    }
    s->round = s->last_round = SYNC_NO_ROUND; /* the run may have lost the last round too (config_syncs_updates) */
    s->has_task = s->computing = s->expects_task = false;
    s->eval.pending = s->eval.running = s->eval.answer = false;
    s->state = WORKER_CATCHING_UP;
}

/* --- objects applied ---------------------------------------------------------------------------------------------- */

void sync_loaded(struct sync *s, uint32_t fragment, uint64_t version, uint64_t now_us)
{
    bool all = true;
    struct sync_fragment *f = &s->f[fragment];
    assert(fragment < s->n_fragments && f->loading);
    f->loading = false;
    f->version = version;
    if (f->target < version) f->target = version;
    sync_flow_next(s, fragment, now_us);
    for (uint32_t i = 0; i < s->n_fragments; i++) all = all && !s->f[i].loading;
    s->holds = all;
    sync_settle(s);
}

enum sync_verdict sync_applied(struct sync *s, uint32_t fragment, uint64_t round, uint64_t named_round, uint64_t now_us)
{
    struct sync_fragment *f = &s->f[fragment];
    enum sync_verdict verdict = SYNC_NOT_MINE;
    assert(fragment < s->n_fragments && s->holds && !f->loading);
    assert(f->complete && f->get_version == f->version + 1);
    assert(!s->unsaved || s->overlaps); /* the save reads the parameters */
    f->version++;
    sync_flow_next(s, fragment, now_us);
    if (named_round != SYNC_NO_ROUND) {
        uint64_t known = s->round != SYNC_NO_ROUND ? s->round : s->last_round;
        if (sync_flow_pending(f) && named_round == s->round) {
            f->upload = SYNC_UPLOAD_NAMED;
            s->drops = 0;
            verdict = SYNC_NAMED;
        } else if (known == SYNC_NO_ROUND || named_round > known) {
            verdict = SYNC_NAMED_LATER;
        }
    }
    /* The round closed without this worker, but the coordinator may hold the delta: offer it again to get CREDIT or
     * REJECT. */
    if (verdict != SYNC_NAMED && !s->async && sync_flow_pending(f) && round >= s->round) {
        f->passed = true;
        f->upload = SYNC_UPLOAD_OFFERED;
        f->up_at = now_us;
    }
    sync_settle(s);
    return verdict;
}

/* With a barrier and overlap, the fragment's base must not change before its delta of this round is made, and one
 * update belongs to each round. */
static bool is_early(const struct sync *s, uint32_t fragment)
{
    if (!s->overlaps || s->async) return false;
    if (s->round == SYNC_NO_ROUND) return s->expects_task;
    return s->f[fragment].upload == SYNC_UPLOAD_NONE || s->f[fragment].version > s->current.versions[fragment];
}

/* A region's round ends with the updates of all fragments. */
static bool is_ahead(const struct sync *s, uint32_t fragment)
{
    for (uint32_t i = 0; s->lockstep && i < s->n_fragments; i++)
        if (s->f[i].version < s->f[fragment].version) return true;
    return false;
}

bool sync_apply(const struct sync *s, uint32_t *fragment_p)
{
    bool frozen =
        s->state == WORKER_EVALUATING || (!s->overlaps && (s->unsaved || (s->state == WORKER_TRAINING && !s->async)));
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct sync_fragment *f = &s->f[i];
        if (!f->complete || s->phase == SYNC_STOPPED) continue;
        if (!f->loading) {
            if (frozen || !s->holds || is_early(s, i) || is_ahead(s, i)) continue;
            if (s->eval.pending && f->version >= s->eval.task.versions[i]) continue;
            if (s->has_task && !s->async && f->version >= s->task.versions[i]) continue;
        }
        *fragment_p = i;
        return true;
    }
    return false;
}

/* --- work --------------------------------------------------------------------------------------------------------- */

bool sync_on_assign(struct sync *s, const struct msg_assign *m, uint64_t now_us)
{
    (void)now_us;
    if (s->phase != SYNC_JOINED || m->n_fragments != s->n_fragments || s->done) return false;
    s->worker_id = m->worker_id;
    /* The next ASSIGN may arrive before the update that ends this round, because the update is larger. */
    if ((s->state == WORKER_TRAINING && !s->overlaps) || (s->round != SYNC_NO_ROUND && m->round <= s->round))
        return false;
    if (s->has_task && m->round <= s->task.round) return false;
    /* With a barrier, a round is assigned again when one of its fragments was refused, possibly to an earlier process
     * of this worker. A stale ASSIGN has versions below the current ones and is ignored. */
    bool again = s->last_again || !s->async;
    if (s->last_round != SYNC_NO_ROUND && (m->round < s->last_round || (m->round == s->last_round && !again)))
        return false;
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (!s->async && s->holds && s->f[i].version > m->versions[i]) return false;
    s->task = *m;
    s->has_task = true;
    s->expects_task = false;
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (s->f[i].target < m->versions[i]) s->f[i].target = m->versions[i];
    sync_settle(s); /* READY at exactly these versions, even if the log is longer */
    return true;
}

void sync_work_ready(struct sync *s, uint64_t round, const uint64_t *bytes, uint64_t now_us)
{
    assert(round != SYNC_NO_ROUND && (s->round == round || s->round == SYNC_NO_ROUND));
    s->round = round;
    if (!s->computing) s->state = WORKER_SENDING;
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (bytes[i]) sync_flow_offer(s, i, bytes[i], now_us);
    sync_settle(s);
}

void sync_on_credit(struct sync *s, const struct msg_credit *m, uint64_t now_us)
{
    if (m->fragment >= s->n_fragments || m->round != s->round || !sync_flow_pending(&s->f[m->fragment])) return;
    sync_flow_credit(s, m->fragment, m->have, m->upto, now_us);
    sync_settle(s);
}

bool sync_on_reject(struct sync *s, const struct msg_reject *m, uint64_t now_us)
{
    (void)now_us;
    if (m->fragment >= s->n_fragments || m->round != s->round || !sync_flow_pending(&s->f[m->fragment])) return false;
    s->f[m->fragment].upload = SYNC_UPLOAD_REJECTED;
    /* The coordinator never assigned this round, or lost it in a crash: its other fragments are lost too. */
    for (uint32_t i = 0; i < s->n_fragments && m->code == REJECT_UNASSIGNED; i++) {
        if (!sync_flow_pending(&s->f[i])) continue;
        s->f[i].upload = SYNC_UPLOAD_REJECTED;
        s->f[i].lost = true;
    }
    sync_settle(s);
    return true;
}

bool sync_take_rollback(struct sync *s, uint32_t *fragment_p)
{
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        if (!s->f[i].lost) continue;
        assert(s->f[i].upload == SYNC_UPLOAD_REJECTED || s->f[i].upload == SYNC_UPLOAD_NONE);
        s->f[i].lost = false;
        *fragment_p = i;
        return true;
    }
    return false;
}

void sync_on_done(struct sync *s, const struct msg_done *m, uint64_t now_us)
{
    (void)now_us;
    if (s->phase != SYNC_JOINED || s->done) return;
    s->done = s->leave_due = s->finished = true;
    snprintf(s->text, sizeof s->text, "%s", m->text);
    sync_settle(s);
    assert(s->state == WORKER_FINISHED);
}
