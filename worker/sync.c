/* Connection and events of the work. What follows from the state is in worker/sync_poll.c; downloads and uploads of
 * objects, which are offsets and deadlines, are in worker/sync_flow.c; evaluations in worker/sync_eval.c. */
#include "worker/sync.h"

#include <stdio.h>
#include <string.h>

#include "worker/sync_flow.h"
#include "worker/sync_impl.h"

enum {
    REFUSED_WAIT_US = 5000000, /* "full", "stopping" and "name taken" are asked again after this */
    NAME_WAIT_LAST_US = 15000000,
    STALE_REFUSE_US = 1000000, /* a REFUSE this soon after WELCOME answers a message of the session before */
};

void sync_init(struct sync *s, uint64_t jitter, uint64_t now_us)
{
    memset(s, 0, sizeof *s);
    s->jitter = jitter;
    s->retry_at = now_us;
    s->state = WORKER_CATCHING_UP;
    s->worker_id = UINT32_MAX;
    s->round = s->last_round = SYNC_NO_ROUND;
    s->up_rate = s->down_rate = SYNC_RATE_FIRST;
}

/* ---- the state of the work ----------------------------------------------------------------------------------------
 */

/* A round ends when every fragment is named or refused. */
static void end_round(struct sync *s)
{
    bool rejected = false;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        rejected = rejected || s->f[i].upload == SYNC_UPLOAD_REJECTED;
        s->f[i].upload = SYNC_UPLOAD_NONE;
        s->f[i].passed = false;
    }
    s->last_round = s->round;
    s->last_rejected = rejected;
    s->round = SYNC_NO_ROUND;
}

static bool behind(const struct sync *s)
{
    if (!s->holds) return true;
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
    if (s->state == WORKER_TRAINING || s->state == WORKER_EVALUATING) return;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        enum sync_upload u = s->f[i].upload;
        sending = sending || u == SYNC_UPLOAD_OFFERED || u == SYNC_UPLOAD_SENDING;
        waiting = waiting || u == SYNC_UPLOAD_DELIVERED;
    }
    if (s->round != SYNC_NO_ROUND && !sending && !waiting) end_round(s);
    if (sending)
        s->state = WORKER_SENDING;
    else if (waiting)
        s->state = WORKER_WAITING;
    else
        s->state = behind(s) ? WORKER_CATCHING_UP : WORKER_READY;
}

/* Forget every piece of work; what is held is kept. */
static void drop_work(struct sync *s)
{
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        s->f[i].upload = SYNC_UPLOAD_NONE;
        s->f[i].passed = s->f[i].lost = false;
    }
    s->round = s->last_round = SYNC_NO_ROUND; /* the run may have lost the last round, too (journal.sync snapshot) */
    s->has_task = false;
    s->eval.pending = s->eval.running = s->eval.answer = false;
    s->state = WORKER_CATCHING_UP;
}

/* ---- connection ---------------------------------------------------------------------------------------------------
 */

bool sync_on_config(struct sync *s, uint64_t now_us)
{
    (void)now_us;
    if (s->phase != SYNC_HELLO) return false;
    s->phase = SYNC_CONFIGURING;
    return true;
}

static void retry_start(struct sync *s, uint64_t at_us)
{
    s->retry_at = at_us;
    s->retry_wait = 0;
}

void sync_configured(struct sync *s, bool async, uint32_t n_fragments, const uint64_t *versions, uint64_t now_us)
{
    if (s->phase != SYNC_CONFIGURING) return;
    if (s->n_fragments == 0) {
        s->async = async;
        s->n_fragments = n_fragments;
        s->holds = versions != NULL;
        for (uint32_t i = 0; versions && i < n_fragments; i++) s->f[i].version = s->f[i].target = versions[i];
    }
    s->phase = SYNC_JOINING;
    s->text[0] = '\0';
    retry_start(s, now_us);
}

/* A JOIN that was repeated while its answer was on the way says less than what is held by now. */
static bool covers(const struct sync *s, const struct msg_welcome *w)
{
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (s->f[i].version < w->snapshot[i].version || s->f[i].version > w->current[i].version) return false;
    return s->phase == SYNC_JOINED;
}

bool sync_on_welcome(struct sync *s, const struct msg_welcome *w, uint64_t now_us)
{
    bool known = w->worker_id != UINT32_MAX; /* otherwise ids are given later, and ASSIGN brings ours */
    if (s->phase == SYNC_JOINED && w->session == s->session) {
        if (known) s->worker_id = w->worker_id;
        return false;
    }
    /* A repeated JOIN makes another session, which replaces the one before: the later WELCOME counts. */
    if (s->phase != SYNC_JOINING && s->phase != SYNC_JOINED) return false;
    if (w->n_fragments != s->n_fragments) {
        sync_fail(s, "the coordinator counts fragments differently: both sides must run the same version of atoll");
        return false;
    }
    bool resume = s->holds && (w->resume || covers(s, w));
    s->phase = SYNC_JOINED;
    s->session = w->session;
    if (known) s->worker_id = w->worker_id;
    s->joined_at = now_us;
    s->bind_due = true;
    s->name_since = 0;
    s->text[0] = '\0';
    if (!resume) {
        drop_work(s);
        s->holds = false;
    }
    /* What was asked of us before belongs to the other session; the coordinator may have lost it and asks again. */
    s->has_task = s->eval.pending = false;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        struct sync_fragment *f = &s->f[i];
        f->target = w->current[i].version;
        if (resume)
            sync_flow_again(s, i, now_us);
        else
            sync_flow_load(s, i, w->snapshot[i].version, now_us);
    }
    sync_settle(s);
    return true;
}

void sync_rejoin(struct sync *s, uint64_t now_us)
{
    if (s->phase == SYNC_STOPPED) return;
    s->phase = SYNC_HELLO;
    s->session = 0;
    s->bind_due = false;
    retry_start(s, now_us < s->joined_at + SYNC_CONNECT_US ? s->joined_at + SYNC_CONNECT_US : now_us);
}

void sync_drop(struct sync *s, uint64_t now_us)
{
    if (s->phase == SYNC_STOPPED) return;
    drop_work(s);
    s->holds = false;
    for (uint32_t i = 0; i < s->n_fragments; i++) sync_flow_load(s, i, 0, now_us);
    sync_rejoin(s, now_us);
    s->retry_at = now_us + ((uint64_t)SYNC_CONNECT_US << s->drops);
    if (++s->drops > SYNC_DROPS_MAX)
        sync_fail(s, "the run's updates do not lead to the run's parameters on this machine, again and again: test its "
                     "memory, and use the same version of atoll on both sides");
}

void sync_fail(struct sync *s, const char *text)
{
    s->phase = SYNC_STOPPED;
    if (!s->refused) s->refused = SYNC_FAILED_HERE;
    snprintf(s->text, sizeof s->text, "%s", text);
}

/* Perhaps by an earlier life of this worker, on a machine that was restarted: its session ends with silence, and a
 * minute later at most its place. Who has the name after that is another one. */
static void refused_name(struct sync *s, const struct msg_refuse *m, uint64_t now_us)
{
    char text[WIRE_TEXT_MAX];
    if (!s->name_since) s->name_since = now_us;
    if (now_us - s->name_since >= SYNC_NAME_US) {
        snprintf(text, sizeof text, "%.900s (for %u s now)", m->text, (unsigned)((now_us - s->name_since) / 1000000));
        s->refused = m->code;
        sync_fail(s, text);
        return;
    }
    uint64_t wait = REFUSED_WAIT_US + (now_us - s->name_since) / 2;
    s->retry_at = now_us + (wait < NAME_WAIT_LAST_US ? wait : NAME_WAIT_LAST_US);
    snprintf(s->text, sizeof s->text, "%s", m->text);
}

void sync_on_refuse(struct sync *s, const struct msg_refuse *m, uint64_t now_us)
{
    bool joining = s->phase == SYNC_HELLO || s->phase == SYNC_JOINING;
    if (s->phase == SYNC_STOPPED || s->phase == SYNC_CONFIGURING) return;
    switch (m->code) {
    case REFUSE_UNKNOWN_SESSION:
        if (!joining && now_us >= s->joined_at + STALE_REFUSE_US) sync_rejoin(s, now_us);
        break;
    case REFUSE_GONE:
        if (!joining) sync_rejoin(s, now_us);
        break;
    case REFUSE_NAME:
        if (joining) refused_name(s, m, now_us);
        break;
    case REFUSE_FULL:
    case REFUSE_STOPPING:
        if (joining) {
            s->retry_at = now_us + REFUSED_WAIT_US;
            snprintf(s->text, sizeof s->text, "%s", m->text);
        }
        break;
    default: /* version, run, config, layout, data set, malformed: asking again would not help */
        if (!joining) break;
        s->refused = m->code;
        sync_fail(s, m->text);
        break;
    }
}

void sync_leave(struct sync *s, const char *text, uint64_t now_us)
{
    (void)now_us;
    if (s->phase == SYNC_STOPPED) return;
    snprintf(s->text, sizeof s->text, "%s", text);
    s->leave_due = s->phase == SYNC_JOINED;
    if (!s->leave_due) s->phase = SYNC_STOPPED;
}

void sync_set_rtt(struct sync *s, uint64_t rtt_us)
{
    s->rtt_us = rtt_us;
}

/* ---- objects applied ----------------------------------------------------------------------------------------------
 */

void sync_loaded(struct sync *s, uint32_t fragment, uint64_t version, uint64_t now_us)
{
    bool all = true;
    struct sync_fragment *f = &s->f[fragment];
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
    /* Closed without us although our delta may be there: ask for the verdict. */
    if (verdict != SYNC_NAMED && !s->async && sync_flow_pending(f) && round >= s->round) {
        f->passed = true;
        f->upload = SYNC_UPLOAD_OFFERED;
        f->up_at = now_us;
    }
    sync_settle(s);
    return verdict;
}

bool sync_apply(const struct sync *s, uint32_t *fragment_p)
{
    bool frozen = s->unsaved || s->state == WORKER_EVALUATING || (s->state == WORKER_TRAINING && !s->async);
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct sync_fragment *f = &s->f[i];
        if (!f->complete || s->phase == SYNC_STOPPED) continue;
        if (!f->loading) {
            if (frozen || !s->holds) continue;
            if (s->eval.pending && f->version >= s->eval.task.versions[i]) continue;
            if (s->has_task && !s->async && f->version >= s->task.versions[i]) continue;
        }
        *fragment_p = i;
        return true;
    }
    return false;
}

/* ---- work ---------------------------------------------------------------------------------------------------------
 */

bool sync_on_assign(struct sync *s, const struct msg_assign *m, uint64_t now_us)
{
    (void)now_us;
    if (s->phase != SYNC_JOINED || m->n_fragments != s->n_fragments || s->done) return false;
    s->worker_id = m->worker_id;
    /* The next assignment overtakes the update that ends this round: the update is larger. */
    if (s->state == WORKER_TRAINING || (s->round != SYNC_NO_ROUND && m->round <= s->round)) return false;
    if (s->has_task && m->round <= s->task.round) return false;
    if (s->last_round != SYNC_NO_ROUND &&
        (m->round < s->last_round || (m->round == s->last_round && !s->last_rejected)))
        return false;
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (!s->async && s->holds && s->f[i].version > m->versions[i]) return false;
    s->task = *m;
    s->has_task = true;
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (s->f[i].target < m->versions[i]) s->f[i].target = m->versions[i];
    sync_settle(s); /* READY at exactly these versions, however far the run has come */
    return true;
}

bool sync_wants_training(const struct sync *s)
{
    return s->phase != SYNC_STOPPED && s->has_task && s->state == WORKER_READY && !s->eval.pending && !s->unsaved;
}

void sync_train_begin(struct sync *s, uint64_t now_us)
{
    (void)now_us;
    s->round = s->task.round;
    s->has_task = false;
    s->state = WORKER_TRAINING;
}

void sync_train_abandon(struct sync *s, uint64_t now_us)
{
    (void)now_us;
    if (s->state != WORKER_TRAINING) return;
    s->round = SYNC_NO_ROUND;
    s->state = WORKER_READY;
    sync_settle(s);
}

void sync_work_ready(struct sync *s, uint64_t round, const uint64_t *bytes, uint64_t now_us)
{
    s->round = round;
    s->state = WORKER_SENDING;
    for (uint32_t i = 0; i < s->n_fragments; i++) sync_flow_offer(s, i, bytes[i], now_us);
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
    /* The coordinator never gave out this round, or lost it in a crash: no other fragment of it counts either. */
    for (uint32_t i = 0; i < s->n_fragments && m->code == REJECT_UNASSIGNED; i++) {
        if (!sync_flow_pending(&s->f[i])) continue;
        s->f[i].upload = SYNC_UPLOAD_REJECTED;
        s->f[i].lost = true;
    }
    sync_settle(s);
    return true;
}

bool sync_take_lost(struct sync *s, uint32_t *fragment_p)
{
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        if (!s->f[i].lost) continue;
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
}
