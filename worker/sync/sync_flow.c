/* Timeouts of both directions: a transfer restarts at the last byte known to have arrived if no byte moves for longer
 * than round trip and bytes in flight explain. Each further timeout is twice as long. A slow link does not time out:
 * the rates are measured, and start pessimistic. */
#include "worker/sync/sync_flow.h"

#include <assert.h>
#include <string.h>

#include "common/base/minmax.h"
#include "worker/sync/sync_impl.h"

enum {
    FIRST_OBJECT_BYTES = 64 << 10, /* assumed size of the first object, for its deadline */
    BLOCKED_US = 5000,             /* delay after a full queue */
    DELIVERED_US = 30000000,       /* delay before a delivered delta is offered again, in case its REJECT was lost */
};

/* Longest timeout of an upload on a line that has moved. */
#define UP_RETRY_MAX_US ((uint64_t)3600 * 1000000)

/* --- download ----------------------------------------------------------------------------------------------------- */

static void restart_download(struct sync_fragment *f, uint64_t version, uint64_t now_us)
{
    f->complete = f->get_again = false;
    f->get_version = version;
    f->have = f->total = f->requested = f->own_from = f->own_to = 0;
    f->get_at = now_us;
    f->get_wait = 0;
}

static void request_rest(struct sync_fragment *f, uint64_t now_us)
{
    f->get_again = false;
    f->requested = f->have;
    f->get_at = now_us;
    f->get_wait = 0;
}

void sync_flow_load(struct sync *s, uint32_t fragment, struct wire_version snapshot, uint64_t now_us)
{
    struct sync_fragment *f = &s->f[fragment];
    bool same = f->loading && f->get_version == snapshot.version && f->snapshot_hash == snapshot.hash;
    f->loading = true;
    f->snapshot_hash = snapshot.hash;
    if (same)
        request_rest(f, now_us);
    else
        restart_download(f, snapshot.version, now_us);
}

void sync_flow_next(struct sync *s, uint32_t fragment, uint64_t now_us)
{
    restart_download(&s->f[fragment], s->f[fragment].version + 1, now_us);
}

void sync_flow_rejoin(struct sync *s, uint32_t fragment, uint64_t now_us)
{
    struct sync_fragment *f = &s->f[fragment];
    /* The coordinator may have a newer snapshot; an update never changes. */
    if (f->get_version != f->version + 1 || f->loading) sync_flow_next(s, fragment, now_us);
    f->loading = false;
    request_rest(f, now_us);
    if (sync_flow_pending(f)) sync_flow_offer(s, fragment, f->bytes, now_us);
}

bool sync_expects(const struct sync *s, uint8_t kind, uint32_t fragment, uint64_t version)
{
    if (fragment >= s->n_fragments || s->phase != SYNC_JOINED) return false;
    const struct sync_fragment *f = &s->f[fragment];
    return !f->complete && f->requested && f->get_version == version &&
           kind == (f->loading ? OBJECT_SNAPSHOT : OBJECT_UPDATE);
}

/* Bytes in [from, to) that must be downloaded, without the local range. */
static uint64_t missing_bytes(const struct sync_fragment *f, uint64_t from, uint64_t to)
{
    assert(f->own_from <= f->own_to);
    if (to <= from) return 0;
    uint64_t a = f->own_from > from ? f->own_from : from, b = f->own_to < to ? f->own_to : to;
    return to - from - (b > a ? b - a : 0);
}

/* Bytes requested and known to exist, summed over fragments: they share one connection. */
static uint64_t bytes_requested(const struct sync *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct sync_fragment *f = &s->f[i];
        if (!f->complete) bytes += missing_bytes(f, f->have, f->requested < f->total ? f->requested : f->total);
    }
    return bytes;
}

/* Bytes of one fragment postpone the deadlines of all: a GET sent while the object is on its way would download a
 * second copy of it. */
static void extend_get_deadlines(struct sync *s, uint64_t now_us)
{
    uint64_t before = bytes_requested(s);
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        struct sync_fragment *f = &s->f[i];
        uint64_t at =
            now_us + sync_timeout_us(&s->down, s->rtt_us, f->usual > before ? f->usual : before, SYNC_RETRY_MAX_US);
        if (f->requested > f->have && f->get_at < at) f->get_at = at;
    }
}

void sync_on_chunk(struct sync *s, uint64_t bytes, bool again, uint64_t now_us)
{
    if (again) sync_rate_too_high(&s->down);
    sync_rate_add(&s->down, bytes);
    extend_get_deadlines(s, now_us);
}

static void skip_local_bytes(struct sync_fragment *f)
{
    if (f->have >= f->own_from && f->have < f->own_to) f->have = f->own_to;
}

void sync_on_local_bytes(struct sync *s, uint32_t fragment, uint64_t from, uint64_t to)
{
    struct sync_fragment *f = &s->f[fragment];
    if (!from || from >= to || to >= f->total || f->complete) return;
    f->own_from = from;
    f->own_to = to;
    skip_local_bytes(f);
    assert(f->have < f->total);
}

void sync_receiving(const struct sync *s, uint64_t *received, uint64_t *expected)
{
    *received = *expected = 0;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        *received += s->f[i].total ? s->f[i].have : 0;
        *expected += s->f[i].total;
    }
}

void sync_on_progress(struct sync *s, uint32_t fragment, uint64_t have, uint64_t total, uint64_t now_us)
{
    struct sync_fragment *f = &s->f[fragment];
    assert(fragment < s->n_fragments && !f->complete);
    assert(f->have < have && have <= total && (!f->total || f->total == total));
    f->have = have;
    skip_local_bytes(f);
    f->total = total;
    if (!f->loading) f->usual = total;
    f->complete = have == total;
    f->get_again = false;
    f->get_wait = 0;
    f->get_at = now_us;
    extend_get_deadlines(s, now_us);
}

void sync_on_damaged(struct sync *s, uint32_t fragment, uint64_t now_us)
{
    struct sync_fragment *f = &s->f[fragment];
    restart_download(f, f->get_version, now_us);
    f->get_at = now_us + SYNC_RETRY_MIN_US;
}

/* The window belongs to the connection: objects whose bytes arrive share it, in order. When half of it has arrived, the
 * rest is requested, so that the link is not idle for a round trip. */
struct room {
    uint64_t window;
    uint64_t more; /* bytes to request now; 0: half of the window is still in flight */
};

static struct room room_of(const struct sync *s)
{
    uint64_t window = sync_window(&s->down, s->rtt_us), flying = bytes_requested(s);
    return (struct room){.window = window, .more = flying > window / 2 ? 0 : window - flying};
}

/* An update has about as many bytes as the one before it. */
static uint64_t first_bytes(const struct sync_fragment *f, uint64_t part)
{
    return f->loading || !f->usual ? part : f->usual + f->usual / 8 + SYNC_CHUNK;
}

/* Bytes to ask for first: the size is not known, and an update often does not exist yet. All first requests together
 * ask for at most a window: for whole updates if they fit, else for equal parts. */
static uint64_t first_request(const struct sync *s, const struct sync_fragment *f, uint64_t window)
{
    uint64_t sum = 0, part = window / min_u64(s->n_fragments, SYNC_GETS_MAX);
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (!s->f[i].complete && !s->f[i].total) sum += first_bytes(&s->f[i], part);
    return sum <= window ? first_bytes(f, part) : part;
}

static bool extends_request(const struct sync_fragment *f, uint64_t more)
{
    return more && f->requested > f->have && f->requested < f->total;
}

/* When the fragment's next GET is due; UINT64_MAX: it needs none. */
static uint64_t get_due(const struct sync *s, const struct sync_fragment *f, uint32_t open, uint64_t more)
{
    if (f->complete || (s->state == WORKER_TRAINING && !s->async && !s->overlaps)) return UINT64_MAX;
    /* With overlap: an update that does not exist before this worker's delta is not requested before it. */
    bool later = s->overlaps && !s->async && s->round != SYNC_NO_ROUND && f->upload == SYNC_UPLOAD_NONE;
    if (later && f->version >= f->target && !f->loading) return UINT64_MAX;
    if (!f->loading && !s->holds) return UINT64_MAX; /* snapshots first: updates need all fragments loaded */
    if (extends_request(f, more)) return 0;
    if (f->requested > f->have) return f->get_at;
    if (open >= SYNC_GETS_MAX || (f->total && !more)) return UINT64_MAX;
    return f->have ? 0 : f->get_at;
}

static uint64_t next_get(const struct sync *s, struct sync_action *a)
{
    uint64_t best = UINT64_MAX;
    uint32_t open = 0;
    struct room room = room_of(s);
    for (uint32_t i = 0; i < s->n_fragments; i++) open += s->f[i].requested > s->f[i].have;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct sync_fragment *f = &s->f[i];
        uint64_t due = get_due(s, f, open, room.more);
        if (due >= best) continue;
        best = due;
        bool extends = extends_request(f, room.more), again = f->requested > f->have && !extends;
        uint64_t from = extends ? f->requested : f->have;
        uint64_t end = from + (!f->total ? first_request(s, f, room.window)
                               : again   ? missing_bytes(f, f->have, f->requested)
                                         : room.more);
        if (from >= f->own_from && from < f->own_to) {
            end += f->own_to - from;
            from = f->own_to;
        } else if (from < f->own_from && end > f->own_from) {
            end += f->own_to - f->own_from;
        }
        if (f->total && end > f->total) end = f->total;
        assert(end > from);
        *a = (struct sync_action){.type = SYNC_SEND_GET,
                                  .fragment = i,
                                  .kind = f->loading ? OBJECT_SNAPSHOT : OBJECT_UPDATE,
                                  .version = f->get_version,
                                  .offset = from,
                                  .length = end - from};
    }
    return best;
}

static void get_sent(struct sync *s, const struct sync_action *a, uint64_t now_us)
{
    struct sync_fragment *f = &s->f[a->fragment];
    bool again = f->requested > f->have;
    assert(!f->complete && a->version == f->get_version && a->length);
    assert(a->offset >= f->have && (!f->total || a->offset + a->length <= f->total));
    f->requested = a->offset + a->length;
    if (a->offset > f->have) return; /* the window was extended: the deadline of the bytes in flight stays */
    f->get_again = again;
    if (again) s->bind_due = true; /* the coordinator may not know the bulk connection */
    uint64_t expect = f->total ? missing_bytes(f, a->offset, f->requested) : f->usual ? f->usual : FIRST_OBJECT_BYTES;
    f->get_wait =
        f->get_wait ? sync_backoff_us(f->get_wait) : sync_timeout_us(&s->down, s->rtt_us, expect, SYNC_RETRY_MAX_US);
    f->get_at = now_us + f->get_wait;
}

/* --- upload ------------------------------------------------------------------------------------------------------- */

void sync_flow_offer(struct sync *s, uint32_t fragment, uint64_t bytes, uint64_t now_us)
{
    struct sync_fragment *f = &s->f[fragment];
    f->upload = bytes ? SYNC_UPLOAD_OFFERED : SYNC_UPLOAD_NONE;
    f->bytes = bytes;
    f->held = f->upto = f->sent = 0;
    f->probing = f->up_again = false;
    f->up_at = now_us;
    f->up_wait = 0;
}

/* Bytes sent and not yet acknowledged, summed over fragments: they share one connection. */
static uint64_t bytes_in_flight(const struct sync *s)
{
    uint64_t bytes = sync_initial_in_flight(s);
    for (uint32_t i = 0; i < s->n_fragments; i++)
        if (s->f[i].upload == SYNC_UPLOAD_SENDING && s->f[i].sent > s->f[i].held) bytes += s->f[i].sent - s->f[i].held;
    return bytes;
}

/* CREDIT comes for every 2 MiB of a fragment, behind the windows of the others: at 1 Mbit/s that takes minutes without
 * a loss. Chunks, which come one by one, extend the deadlines of downloads instead. */
static uint64_t up_timeout_us(const struct sync *s)
{
    uint64_t most = s->up_moved ? UP_RETRY_MAX_US : SYNC_RETRY_MAX_US;
    return sync_timeout_us(&s->up, s->rtt_us, bytes_in_flight(s), most);
}

static void mark_delivered(struct sync *s, struct sync_fragment *f, uint64_t now_us)
{
    if (f->upload != SYNC_UPLOAD_DELIVERED) extend_get_deadlines(s, now_us); /* the update may arrive next */
    f->held = f->bytes;
    f->upload = f->passed ? SYNC_UPLOAD_REJECTED : SYNC_UPLOAD_DELIVERED;
    f->lost = f->passed;
    f->up_again = false;
    f->up_wait = DELIVERED_US;
    f->up_at = now_us + DELIVERED_US;
}

void sync_flow_credit(struct sync *s, uint32_t fragment, uint64_t have, uint64_t upto, uint64_t now_us)
{
    struct sync_fragment *f = &s->f[fragment];
    assert(sync_flow_pending(f) && f->bytes);
    bool moved = have > f->held;
    if (moved && f->up_again) sync_rate_too_high(&s->up);
    if (have >= f->bytes) {
        mark_delivered(s, f, now_us);
    } else {
        bool first = f->upload == SYNC_UPLOAD_OFFERED, lost = have < f->held;
        bool silent = f->probing && have == f->probe && s->up_moved == f->probe_moved;
        if (first || lost || silent) f->sent = have; /* resume there */
        f->upload = SYNC_UPLOAD_SENDING;
        f->upto = upto < f->bytes ? upto : f->bytes;
        f->probing = false;
    }
    s->up_moved += moved;
    if (have > f->held)
        sync_rate_add(&s->up, f->held ? have - f->held : 0); /* the first CREDIT reports bytes of earlier sessions */
    if (f->upload == SYNC_UPLOAD_SENDING) {
        f->held = have;
        if (f->sent < have) f->sent = have;
        f->up_at = now_us + up_timeout_us(s);
        if (moved) {
            f->up_wait = 0;
            f->up_again = false;
        }
        assert(f->held <= f->sent && f->sent <= f->bytes && f->upto <= f->bytes);
    }
    /* Progress of one fragment postpones the deadlines of those queued behind it. */
    for (uint32_t i = 0; moved && i < s->n_fragments; i++)
        if (i != fragment && s->f[i].upload == SYNC_UPLOAD_SENDING) s->f[i].up_at = now_us + up_timeout_us(s);
}

/* End of the payload bytes that may be sent: a save holds the last byte back. */
static uint64_t sendable_end(const struct sync *s, const struct sync_fragment *f)
{
    return s->unsaved ? f->bytes - 1 : f->bytes;
}

static uint64_t next_offer(const struct sync *s, struct sync_action *a)
{
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct sync_fragment *f = &s->f[i];
        if (!sync_flow_pending(f) || f->up_at >= best) continue;
        if (s->unsaved && f->upload == SYNC_UPLOAD_SENDING && f->held == f->sent)
            continue; /* everything sent is acknowledged */
        best = f->up_at;
        *a = (struct sync_action){.type = SYNC_SEND_OFFER, .fragment = i, .kind = OBJECT_DELTA};
    }
    return best;
}

static void offer_sent(struct sync *s, uint32_t fragment, uint64_t now_us)
{
    struct sync_fragment *f = &s->f[fragment];
    assert(sync_flow_pending(f) && f->bytes && s->round != SYNC_NO_ROUND);
    if (f->up_wait) s->bind_due = f->up_again = true;
    if (f->upload == SYNC_UPLOAD_SENDING) {
        f->probing = true;
        f->probe = f->held;
        f->probe_moved = s->up_moved;
    }
    f->up_wait = f->up_wait ? sync_backoff_us(f->up_wait) : up_timeout_us(s);
    f->up_at = now_us + f->up_wait;
}

/* During a save, a fragment starts when the fragments before it should be sent: bytes already in the transport's queue
 * would delay the last byte of each. */
static uint64_t fragment_start_us(const struct sync *s, uint32_t fragment)
{
    uint64_t before = 0;
    for (uint32_t i = 0; i < fragment && s->unsaved; i++)
        if (sync_flow_pending(&s->f[i])) before += s->f[i].bytes;
    return before ? s->unsaved_us + (uint64_t)(1e6 * (double)before / s->up.per_s) : 0;
}

/* Fragments in order, so that the first is complete, and can be merged, early. Each has a window of its own: during a
 * save the last byte of each waits, and CREDIT may come only for the whole. */
static uint64_t next_chunk(const struct sync *s, struct sync_action *a)
{
    uint64_t window = sync_window(&s->up, s->rtt_us);
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct sync_fragment *f = &s->f[i];
        uint64_t end = min_u64(min_u64(f->upto, f->held + window), sendable_end(s, f));
        if (f->upload != SYNC_UPLOAD_SENDING || f->sent >= end) continue;
        uint64_t length = end - f->sent;
        *a = (struct sync_action){.type = SYNC_SEND_CHUNK,
                                  .fragment = i,
                                  .kind = OBJECT_DELTA,
                                  .version = s->round,
                                  .offset = f->sent,
                                  .length = length < SYNC_CHUNK ? length : SYNC_CHUNK};
        uint64_t begins = fragment_start_us(s, i);
        return begins > s->blocked_until ? begins : s->blocked_until;
    }
    return UINT64_MAX;
}

static void chunk_sent(struct sync *s, const struct sync_action *a, uint64_t now_us)
{
    struct sync_fragment *f = &s->f[a->fragment];
    assert(f->upload == SYNC_UPLOAD_SENDING && a->offset == f->sent && a->version == s->round);
    assert(a->length && a->length <= SYNC_CHUNK);
    f->sent = a->offset + a->length;
    assert(f->sent <= f->upto && f->upto <= f->bytes);
    assert(!s->unsaved || f->sent < f->bytes); /* the last byte waits for the save */
    uint64_t at = now_us + up_timeout_us(s);
    if (f->up_at < at) f->up_at = at;
}

void sync_blocked(struct sync *s, const struct sync_action *a, uint64_t now_us)
{
    uint64_t *sent = a->type == SYNC_SEND_INITIAL ? &s->initial.sent : &s->f[a->fragment].sent;
    assert((a->type == SYNC_SEND_CHUNK || a->type == SYNC_SEND_INITIAL) && *sent == a->offset + a->length);
    *sent = a->offset;
    s->blocked_until = now_us + BLOCKED_US;
}

void sync_unsaved(struct sync *s, uint64_t now_us)
{
    s->unsaved = true;
    s->unsaved_us = now_us;
    sync_settle(s);
}

void sync_saved(struct sync *s, uint64_t now_us)
{
    s->unsaved = false;
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        if (s->f[i].upload != SYNC_UPLOAD_SENDING) continue;
        s->f[i].up_wait = 0;
        s->f[i].up_at = now_us + up_timeout_us(s);
    }
    sync_settle(s);
}

uint64_t sync_held_back_us(const struct sync *s)
{
    uint64_t left = bytes_in_flight(s);
    bool held_back = false;
    for (uint32_t i = 0; i < s->n_fragments && s->unsaved; i++) {
        const struct sync_fragment *f = &s->f[i];
        if (!sync_flow_pending(f)) continue;
        uint64_t unsent = sendable_end(s, f) - f->sent;
        if (f->upload != SYNC_UPLOAD_SENDING || (unsent && f->sent != f->held)) return UINT64_MAX;
        left += unsent;
        held_back = true;
    }
    return held_back ? (uint64_t)(1e6 * (double)left / s->up.per_s) : UINT64_MAX;
}

void sync_flow_reconnected(struct sync *s, uint32_t fragment, uint64_t now_us)
{
    struct sync_fragment *f = &s->f[fragment];
    /* The back-off stays as it is, because on a slow link the answer takes as long as before. BIND goes first: the
     * coordinator may not know the new bulk connection. */
    if (sync_flow_pending(f) && f->up_again) {
        s->bind_due = true;
        f->up_at = now_us;
        f->up_wait /= 2;
    }
    if (f->requested > f->have && f->get_again) {
        s->bind_due = true;
        f->get_at = now_us;
        f->get_wait /= 2;
    }
    f->up_again = f->get_again = false; /* a second copy of the answer would only delay the first */
}

/* --- both directions ---------------------------------------------------------------------------------------------- */

void sync_flow_check_timeouts(struct sync *s, uint64_t now_us)
{
    bool more = false;
    for (uint32_t i = 0; i < s->n_fragments; i++) more = more || (s->f[i].have && !s->f[i].complete);
    sync_rate_sample(&s->down, more, now_us);
    sync_rate_sample(&s->up, bytes_in_flight(s) != 0, now_us);
}

uint64_t sync_flow_action(const struct sync *s, struct sync_action *a)
{
    uint64_t (*const all[])(const struct sync *, struct sync_action *) = {next_offer, next_get, next_chunk};
    uint64_t best = UINT64_MAX;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct sync_action one;
        uint64_t at = all[i](s, &one);
        if (at >= best) continue;
        best = at;
        *a = one;
    }
    return best;
}

void sync_flow_sent(struct sync *s, const struct sync_action *a, uint64_t now_us)
{
    assert(s->phase == SYNC_JOINED && a->fragment < s->n_fragments);
    if (a->type == SYNC_SEND_OFFER) offer_sent(s, a->fragment, now_us);
    if (a->type == SYNC_SEND_CHUNK) chunk_sent(s, a, now_us);
    if (a->type == SYNC_SEND_GET) get_sent(s, a, now_us);
}
