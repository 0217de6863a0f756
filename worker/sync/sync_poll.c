/* What follows from the state: the next action and its time, and what the worker waits for. */
#include "worker/sync/sync.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/backoff.h"
#include "common/base/units.h"
#include "worker/sync/sync_flow.h"
#include "worker/sync/sync_impl.h"

enum { CONNECT_MAX_US = 10000000 };

/* The coordinator answers the first JOIN of a run after it has written the first snapshot. */
static uint64_t retry_after_us(struct sync *s, uint64_t now_us)
{
    uint64_t first = (s->phase == SYNC_JOINING ? 3 * SYNC_CONNECT_US : SYNC_CONNECT_US) + 2 * s->rtt_us;
    uint64_t wait = backoff_us(first, s->retries++, CONNECT_MAX_US);
    return now_us + backoff_spread_us(wait, s->jitter ^ s->retry_at);
}

/* Fills *a with the earliest action; returns its time (0: now, UINT64_MAX: none). */
static uint64_t next_action(const struct sync *s, struct sync_action *a)
{
    memset(a, 0, sizeof *a);
    if (s->phase == SYNC_HELLO || s->phase == SYNC_JOINING) {
        uint64_t chunk = sync_initial_action(s, a);
        if (chunk <= s->retry_at) return chunk;
        memset(a, 0, sizeof *a);
        a->type = s->phase == SYNC_HELLO ? SYNC_SEND_HELLO : SYNC_SEND_JOIN;
        return s->retry_at;
    }
    if (s->phase != SYNC_JOINED) return UINT64_MAX;
    if (s->leave_due) {
        a->type = SYNC_SEND_LEAVE;
        return 0;
    }
    if (s->bind_due) {
        a->type = SYNC_SEND_BIND;
        return 0;
    }
    if (s->eval.answer) {
        a->type = SYNC_SEND_EVAL_RESULT;
        return 0;
    }
    return s->done ? UINT64_MAX : sync_flow_action(s, a);
}

bool sync_poll(struct sync *s, uint64_t now_us, struct sync_action *a)
{
    sync_flow_check_timeouts(s, now_us);
    if (next_action(s, a) > now_us) return false;
    switch (a->type) {
    case SYNC_SEND_HELLO:
    case SYNC_SEND_JOIN:
        s->retry_at = retry_after_us(s, now_us);
        if (a->type == SYNC_SEND_JOIN) sync_initial_join_sent(s);
        break;
    case SYNC_SEND_INITIAL: sync_initial_sent(s, a, now_us); break;
    case SYNC_SEND_LEAVE:
        assert(s->phase == SYNC_JOINED);
        s->leave_due = false;
        s->phase = SYNC_STOPPED;
        break;
    case SYNC_SEND_BIND: s->bind_due = false; break;
    case SYNC_SEND_EVAL_RESULT: s->eval.answer = false; break;
    case SYNC_SEND_OFFER:
    case SYNC_SEND_CHUNK:
    case SYNC_SEND_GET: sync_flow_sent(s, a, now_us); break;
    }
    return true;
}

uint64_t sync_deadline_us(const struct sync *s)
{
    struct sync_action a;
    return next_action(s, &a);
}

static void describe_upload(const struct sync *s, char *out, size_t cap)
{
    uint64_t held = 0, bytes = 0, back = 0; /* back: bytes held back by a save */
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        if (s->f[i].upload == SYNC_UPLOAD_NONE) continue;
        bytes += s->f[i].bytes;
        held += sync_flow_pending(&s->f[i]) ? s->f[i].held : s->f[i].bytes;
        back += s->unsaved && sync_flow_pending(&s->f[i]);
    }
    bool only_save = back && held + back == bytes, save = back && sync_held_back_us(s) != UINT64_MAX;
    if (only_save)
        snprintf(out, cap, "the save of its state of round %llu", (unsigned long long)s->round + 1);
    else
        snprintf(out, cap, "the upload of its delta of round %llu (%s of %s)%s", (unsigned long long)s->round + 1,
                 units_bytes((double)held).text, units_bytes((double)bytes).text,
                 save ? " and the save of its state" : "");
}

/* Only the running save blocks the worker. */
static bool waits_for_save(const struct sync *s)
{
    bool complete = false;
    for (uint32_t i = 0; i < s->n_fragments; i++) complete = complete || s->f[i].complete;
    return s->unsaved && s->state == WORKER_CATCHING_UP && (complete || !sync_is_behind(s));
}

static void describe_download(const struct sync *s, char *out, size_t cap)
{
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct sync_fragment *f = &s->f[i];
        if (f->loading) {
            int n = snprintf(out, cap, "the snapshot of fragment %u at version %llu", i,
                             (unsigned long long)f->get_version);
            if (f->total && n > 0 && (size_t)n < cap) /* known from its first chunk */
                snprintf(out + n, cap - (size_t)n, " (%s of %s)", units_bytes((double)f->have).text,
                         units_bytes((double)f->total).text);
            return;
        }
        if (f->version < f->target) {
            snprintf(out, cap, "updates of fragment %u (version %llu of %llu)", i, (unsigned long long)f->version,
                     (unsigned long long)f->target);
            return;
        }
    }
    snprintf(out, cap, "updates");
}

void sync_waits_for(const struct sync *s, char *out, size_t cap)
{
    out[0] = '\0';
    if (s->phase != SYNC_JOINED) {
        const struct sync_initial *u = &s->initial;
        if (s->phase == SYNC_STOPPED) return;
        if (s->phase == SYNC_JOINING && u->id && u->held == u->total)
            snprintf(out, cap, "the coordinator, which checks the initial model");
        else if (s->phase == SYNC_JOINING && u->id)
            snprintf(out, cap, "the upload of the initial model (%s of %s)", units_bytes((double)u->held).text,
                     units_bytes((double)u->total).text);
        else if (s->phase == SYNC_JOINING && s->text[0])
            snprintf(out, cap, "%s", s->text);
        else
            snprintf(out, cap, "the coordinator%s%s", s->text[0] ? ": " : "", s->text);
        return;
    }
    if (waits_for_save(s)) {
        snprintf(out, cap, "the save of its state");
        return;
    }
    switch (s->state) {
    case WORKER_CATCHING_UP: describe_download(s, out, cap); break;
    case WORKER_READY: snprintf(out, cap, "work"); break;
    case WORKER_SENDING: describe_upload(s, out, cap); break;
    case WORKER_WAITING: snprintf(out, cap, "the update of round %llu", (unsigned long long)s->round + 1); break;
    default: break;
    }
}
