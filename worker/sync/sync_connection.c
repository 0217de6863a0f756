/* The connection: handshake, refusals, and the end of a session. */
#include "worker/sync/sync.h"

#include <assert.h>
#include <stdio.h>

#include "common/base/backoff.h"
#include "worker/sync/sync_flow.h"
#include "worker/sync/sync_impl.h"

enum {
    REFUSED_WAIT_US = 5000000,    /* retry delay after "full" and "name taken" */
    NAME_WAIT_LAST_US = 15000000, /* longest retry delay after "name taken" */
    STALE_REFUSE_US = 1000000,    /* and two round trips: a REFUSE this soon after WELCOME answers a message of the
                                   previous    session */
};

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
    s->retries = 0;
}

void sync_configured(struct sync *s, bool async, uint32_t n_fragments, const uint64_t *versions, uint64_t now_us)
{
    if (s->phase != SYNC_CONFIGURING) return;
    assert(n_fragments > 0 && n_fragments <= LAYOUT_FRAGMENTS_MAX);
    if (s->n_fragments == 0) {
        s->async = async;
        s->n_fragments = n_fragments;
        s->holds = versions != NULL;
        for (uint32_t i = 0; i < n_fragments; i++) {
            s->f[i].loading = !versions;
            s->f[i].version = s->f[i].target = versions ? versions[i] : 0;
        }
    }
    s->phase = SYNC_JOINING;
    s->text[0] = '\0';
    retry_start(s, now_us);
}

/* A resent JOIN may list older versions than the worker holds when its WELCOME arrives. */
static bool covers(const struct sync *s, const struct msg_welcome *w)
{
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (s->f[i].version < w->snapshot[i].version || s->f[i].version > w->current[i].version) return false;
    return s->phase == SYNC_JOINED;
}

/* An earlier session loaded this snapshot while other fragments were still loading. */
static bool is_loaded(const struct sync *s, uint32_t fragment, struct wire_version snapshot)
{
    const struct sync_fragment *f = &s->f[fragment];
    return !s->holds && !f->loading && f->version == snapshot.version && f->snapshot_hash == snapshot.hash;
}

/* Starts or continues the download of the snapshots. Updates are applied once all snapshots are loaded. */
static void load_snapshots(struct sync *s, const struct wire_version *snapshots, uint64_t now_us)
{
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (!is_loaded(s, i, snapshots[i])) sync_flow_load(s, i, snapshots[i], now_us);
    s->holds = false;
}

bool sync_on_welcome(struct sync *s, const struct msg_welcome *w, uint64_t now_us)
{
    if (s->phase == SYNC_JOINED && w->session == s->session) {
        if (w->worker_id != UINT32_MAX) s->worker_id = w->worker_id; /* otherwise ASSIGN brings the id */
        return false;
    }
    /* Each JOIN starts a session that replaces the previous one: the latest WELCOME counts. */
    if (s->phase != SYNC_JOINING && s->phase != SYNC_JOINED) return false;
    if (w->n_fragments != s->n_fragments) {
        sync_fail(s, "the coordinator has another number of fragments: run the same version of atoll on both sides");
        return false;
    }
    bool resume = s->holds && (w->resume || covers(s, w));
    s->phase = SYNC_JOINED;
    s->session = w->session;
    s->worker_id = w->worker_id; /* unknown: an id from before a power cut may belong to another worker now */
    s->joined_at = now_us;
    s->bind_due = true;
    s->name_since = 0;
    s->text[0] = '\0';
    if (!resume) {
        sync_drop_work(s);
        load_snapshots(s, w->snapshot, now_us);
    }
    assert(s->holds == resume);
    /* Only the coordinator knows whether the last round was merged: an earlier process of this worker may have received
     * the refusal. If it was merged, the versions are newer and a stale ASSIGN is ignored. */
    s->last_again = true;
    /* Tasks of the previous session are void: the coordinator may have lost them, and assigns again. */
    s->has_task = s->eval.pending = false;
    uint64_t known = s->round != SYNC_NO_ROUND ? s->round : s->last_round;
    s->expects_task =
        resume && s->overlaps && !s->async && w->assigned && (known == SYNC_NO_ROUND || w->assigned > known + 1);
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        assert(!resume || !s->f[i].loading);
        s->f[i].target = w->current[i].version;
        if (resume) sync_flow_rejoin(s, i, now_us);
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

void sync_reconnected(struct sync *s, uint64_t now_us)
{
    if ((s->phase == SYNC_HELLO || s->phase == SYNC_JOINING) && !s->text[0]) { /* text: the answer was "later" */
        s->retries = 0;
        if (s->retry_at > now_us + SYNC_CONNECT_US) s->retry_at = now_us;
        /* A restarted coordinator does not know the upload: JOIN comes first, and its answer opens the window. */
        s->initial.upto = s->initial.sent;
    }
    for (uint32_t i = 0; s->phase == SYNC_JOINED && i < s->n_fragments; i++) sync_flow_reconnected(s, i, now_us);
}

void sync_drop(struct sync *s, uint64_t now_us)
{
    if (s->phase == SYNC_STOPPED) return;
    assert(s->drops <= SYNC_DROPS_MAX);
    sync_drop_work(s);
    s->holds = false;
    for (uint32_t i = 0; i < s->n_fragments; i++) sync_flow_load(s, i, (struct wire_version){0}, now_us);
    sync_rejoin(s, now_us);
    s->retry_at = now_us + backoff_us(SYNC_CONNECT_US, s->drops, UINT64_MAX);
    if (++s->drops > SYNC_DROPS_MAX)
        sync_fail(
            s, "updates repeatedly gave wrong parameters on this machine: test its memory, and run the same version of "
               "atoll on both sides");
}

void sync_fail(struct sync *s, const char *text)
{
    s->phase = SYNC_STOPPED;
    if (!s->refused) s->refused = SYNC_FAILED_HERE;
    snprintf(s->text, sizeof s->text, "%s", text);
}

/* The name may belong to an earlier process of this worker on a restarted machine. That session times out, and at most
 * a minute later its name is free. After SYNC_NAME_US the name belongs to another worker. */
static void refused_name(struct sync *s, const struct msg_refuse *m, uint64_t now_us)
{
    char text[WIRE_TEXT_MAX];
    if (!s->name_since) s->name_since = now_us;
    if (now_us - s->name_since >= SYNC_NAME_US) {
        snprintf(text, sizeof text, "%.900s (refused for %u s)", m->text,
                 (unsigned)((now_us - s->name_since) / 1000000));
        s->refused = m->code;
        sync_fail(s, text);
        return;
    }
    assert(s->name_since <= now_us);
    uint64_t wait = REFUSED_WAIT_US + (now_us - s->name_since) / 2;
    s->retry_at = now_us + (wait < NAME_WAIT_LAST_US ? wait : NAME_WAIT_LAST_US);
    snprintf(s->text, sizeof s->text, "%s", m->text);
}

void sync_renamed(struct sync *s, uint64_t now_us)
{
    if (s->phase == SYNC_STOPPED) return;
    s->name_since = 0;
    s->text[0] = '\0';
    sync_rejoin(s, now_us);
}

void sync_on_refuse(struct sync *s, const struct msg_refuse *m, uint64_t now_us)
{
    bool joining = s->phase == SYNC_HELLO || s->phase == SYNC_JOINING;
    if (s->phase == SYNC_STOPPED || s->phase == SYNC_CONFIGURING) return;
    switch (m->code) {
    case REFUSE_UNKNOWN_SESSION:
        if (!joining && now_us >= s->joined_at + STALE_REFUSE_US + 2 * s->rtt_us) sync_rejoin(s, now_us);
        break;
    case REFUSE_GONE:
        if (!joining) sync_rejoin(s, now_us);
        break;
    case REFUSE_NAME:
        if (joining) refused_name(s, m, now_us);
        break;
    case REFUSE_SPENT:
    case REFUSE_KEY: /* also while joined: the operator revoked the worker */
        s->refused = m->code;
        sync_fail(s, m->text);
        break;
    case REFUSE_FULL:
        if (joining) {
            s->retry_at = now_us + REFUSED_WAIT_US;
            snprintf(s->text, sizeof s->text, "%s", m->text);
        }
        break;
    default: /* version, run, config, layout, data set, malformed: a retry gives the same answer */
        if (!joining && m->code != REFUSE_DATASET) break; /* the tokens are compared after joining, too */
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
    assert(s->leave_due == (s->phase == SYNC_JOINED));
}

void sync_set_rtt(struct sync *s, uint64_t rtt_us)
{
    s->rtt_us = rtt_us;
}
