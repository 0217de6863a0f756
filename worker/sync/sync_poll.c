/* What follows from the state of worker/sync/sync.c: what to do next and when, and what a worker waits for. */
#include "worker/sync/sync.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "worker/sync/sync_flow.h"
#include "worker/sync/sync_impl.h"

enum { CONNECT_LAST_US = 10000000 };

/* Spread retries by up to a quarter, differently for each worker and each attempt. */
static uint64_t jittered(const struct sync *s, uint64_t wait_us)
{
    assert(wait_us);
    uint64_t mixed = (s->jitter ^ s->retry_at) * 0x9e3779b97f4a7c15u;
    return wait_us - wait_us / 8 + (mixed >> 33) % (wait_us / 4 + 1);
}

/* The earliest thing to do: its time (0: at once), UINT64_MAX when there is none. */
static uint64_t next_action(const struct sync *s, struct sync_action *a)
{
    memset(a, 0, sizeof *a);
    if (s->phase == SYNC_HELLO || s->phase == SYNC_JOINING) {
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
        if (s->retry_wait)
            s->retry_wait += s->retry_wait / 2;
        else /* the first JOIN of a run is answered when its first snapshot is on disk */
            s->retry_wait = s->phase == SYNC_JOINING ? 3 * SYNC_CONNECT_US : SYNC_CONNECT_US;
        if (s->retry_wait > CONNECT_LAST_US) s->retry_wait = CONNECT_LAST_US;
        s->retry_at = now_us + jittered(s, s->retry_wait);
        break;
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

static void waits_for_upload(const struct sync *s, char *out, size_t cap)
{
    uint64_t held = 0, bytes = 0, back = 0; /* back: held back */
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        if (s->f[i].upload == SYNC_UPLOAD_NONE) continue;
        bytes += s->f[i].bytes;
        held += sync_flow_pending(&s->f[i]) ? s->f[i].held : s->f[i].bytes;
        back += s->unsaved && sync_flow_pending(&s->f[i]);
    }
    bool only_save = back && held + back == bytes, save = back && sync_held_back_us(s) != UINT64_MAX;
    if (only_save)
        snprintf(out, cap, "its state of round %llu to be saved", (unsigned long long)s->round + 1);
    else
        snprintf(out, cap, "its delta of round %llu to arrive (%.1f of %.1f MB)%s", (unsigned long long)s->round + 1,
                 (double)held / 1e6, (double)bytes / 1e6, save ? " and its state to be saved" : "");
}

/* There is work that waits for the save and nothing else. */
static bool waits_for_save(const struct sync *s)
{
    bool complete = false;
    for (uint32_t i = 0; i < s->n_fragments; i++) complete = complete || s->f[i].complete;
    return s->unsaved && s->state == WORKER_CATCHING_UP && (complete || !sync_is_behind(s));
}

static void waits_for_download(const struct sync *s, char *out, size_t cap)
{
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct sync_fragment *f = &s->f[i];
        if (f->loading) {
            snprintf(out, cap, "the snapshot of fragment %u at version %llu (%.1f of %.1f MB)", i,
                     (unsigned long long)f->get_version, (double)f->have / 1e6, (double)f->total / 1e6);
            return;
        }
        if (f->version < f->target) {
            snprintf(out, cap, "updates of fragment %u (at version %llu of %llu)", i, (unsigned long long)f->version,
                     (unsigned long long)f->target);
            return;
        }
    }
    snprintf(out, cap, "the versions it needs");
}

void sync_waits_for(const struct sync *s, char *out, size_t cap)
{
    out[0] = '\0';
    if (s->phase != SYNC_JOINED) {
        if (s->phase == SYNC_STOPPED) return;
        snprintf(out, cap, "the coordinator%s%s", s->text[0] ? ": " : "", s->text);
        return;
    }
    if (waits_for_save(s)) {
        snprintf(out, cap, "its state to be saved");
        return;
    }
    switch (s->state) {
    case WORKER_CATCHING_UP: waits_for_download(s, out, cap); break;
    case WORKER_READY: snprintf(out, cap, "work"); break;
    case WORKER_SENDING: waits_for_upload(s, out, cap); break;
    case WORKER_WAITING: snprintf(out, cap, "the update of round %llu", (unsigned long long)s->round + 1); break;
    default: break;
    }
}
