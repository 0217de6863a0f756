#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/tensor/sum_squares.h"
#include "compress/codec.h"
#include "compress/relay.h"
#include "coordinator/engine/engine_impl.h"
#include "coordinator/outer/arrival.h"
#include "coordinator/outer/delta_measure.h"

/* --- incoming deltas ---------------------------------------------------------------------------------------------- */

static void send_credit(struct engine *e, const struct session *s, uint64_t round, uint32_t fragment, uint64_t have,
                        uint64_t upto)
{
    struct msg m = {.type = MSG_CREDIT, .credit = {.round = round, .fragment = fragment, .have = have, .upto = upto}};
    engine_send_control(e, s, &m);
}

enum status engine_reject(struct engine *e, const struct session *s, uint64_t round, uint32_t fragment, uint16_t code,
                          const char *reason, struct err *err)
{
    struct msg m = {.type = MSG_REJECT, .reject = {.round = round, .fragment = fragment, .code = code}};
    assert(code && code <= REJECT_LAST);
    e->rejected[code]++;
    TRY(engine_sync(e, err));
    assert(!e->ledger.journal.dirty);
    snprintf(m.reject.text, sizeof m.reject.text, "%s", reason);
    engine_send_control(e, s, &m);
    return STATUS_OK;
}

/* Refuses an offered delta and emits an event. */
static enum status refuse(struct engine *e, const struct session *s, const struct msg_offer *offer, uint16_t code,
                          const char *reason, struct err *err)
{
    char text[WIRE_TEXT_MAX];
    TRY(engine_reject(e, s, offer->round, offer->fragment, code, reason, err));
    snprintf(text, sizeof text, "refused the delta of round %llu, fragment %u: %s",
             (unsigned long long)offer->round + 1, offer->fragment, reason);
    engine_emit_text(e, ENGINE_EVENT_FAULT, s->name, text);
    return STATUS_OK;
}

/* The offset of an upload's bytes in the spool. */
static uint64_t spool_offset(const struct engine *e, const struct upload *u)
{
    assert(u->active);
    return outer_state_spool_at(&e->ledger.outer, u->slot, u->offer.fragment, SPOOL_ALIGN);
}

static void drop_upload(struct engine *e, struct upload *u)
{
    if (u->active) e->store->ops->spool_forget(e->store, spool_offset(e, u), u->have);
    session_upload_drop(&e->sessions, u->offer.fragment, u);
}

enum status engine_drop(struct engine *e, const struct member *m, uint32_t fragment, uint16_t code, struct err *err)
{
    assert(m && m->work.open);
    struct record_drop drop = {.id = m->id, .fragment = fragment, .round = m->work.round, .code = code};
    return engine_write(e, RECORD_DROP, &drop, NULL, err);
}

/* Refuses a delta that the round waits for: drops the part in the journal, sends REJECT and emits the events. */
static enum status refuse_part(struct engine *e, struct session *s, const struct msg_offer *offer, uint16_t code,
                               const char *reason, struct err *err)
{
    struct member *m = engine_member(e, s);
    uint32_t strikes = m->strikes;
    assert(m->work.round == offer->round);
    drop_upload(e, &s->uploads[offer->fragment]);
    TRY(engine_drop(e, m, offer->fragment, code, err));
    snprintf(m->refused, sizeof m->refused, "%s", reason);
    TRY(refuse(e, s, offer, code, reason, err));
    if (m->strikes > strikes && admission_is_aside(e, m)) {
        char text[WIRE_TEXT_MAX];
        engine_emit_text(e, ENGINE_EVENT_FAULT, m->name, admission_aside_text(e, m, text, sizeof text));
    }
    admission_refresh_ready(e, s);
    return STATUS_OK;
}

/* Measures the upload of this round's delta: delivered fragments, and those in transfer. */
static void note_upload(const struct engine *e, struct session *s)
{
    const struct member *m = engine_member(e, s);
    uint64_t have = 0, total = 0;
    bool waited = false;
    for (uint32_t f = 0; m && m->work.open && f < e->ledger.layout.n_fragments; f++) {
        const struct part *part = &m->work.parts[f];
        const struct upload *u = &s->uploads[f];
        uint64_t done = part->state == PART_HELD ? part->bytes : 0;
        waited = waited || part->state == PART_WAITED;
        have += u->active ? u->have : done;
        total += u->active ? u->offer.bytes : done;
    }
    transfer_note(&s->up, have, total, e->now_us);
    if (waited && !s->up_from_us) s->up_from_us = e->now_us;
    if (waited || !s->up_from_us) return;
    s->up_us = e->now_us - s->up_from_us;
    s->up_from_us = 0;
}

static struct round_offer offer_of(const struct msg_offer *m)
{
    return (struct round_offer){.round = m->round,
                                .base_version = m->base_version,
                                .bytes = m->bytes,
                                .tokens = m->tokens,
                                .fragment = m->fragment,
                                .steps = m->steps,
                                .form = m->form};
}

enum status engine_on_offer(struct engine *e, struct session *s, const struct msg_offer *m, struct err *err)
{
    const struct member *member = engine_member(e, s);
    struct round_offer offer = offer_of(m);
    uint16_t code = REJECT_UNASSIGNED;
    const char *reason = "this worker has no such assignment";
    if (m->fragment >= e->ledger.layout.n_fragments || !member) return refuse(e, s, m, code, reason, err);
    switch (round_judge(&e->ledger.round, member, &offer, &code, &reason)) {
    case ROUND_HAVE: send_credit(e, s, m->round, m->fragment, m->bytes, m->bytes); return STATUS_OK;
    case ROUND_REJECT: return refuse(e, s, m, code, reason, err);
    case ROUND_DROP: return refuse_part(e, s, m, code, reason, err);
    case ROUND_ACCEPT: round_note_offer(&e->ledger.round, member, e->now_us); break;
    }
    if (m->bytes > arrival_bound(&e->ledger.outer.fragments[m->fragment]))
        return refuse_part(e, s, m, REJECT_CORRUPT, "larger than any payload of this codec", err);
    const struct upload *u = session_upload(&e->sessions, s, m);
    note_upload(e, s);
    send_credit(e, s, m->round, m->fragment, u->have, u->upto);
    return STATUS_OK;
}

static enum status write_delta(struct engine *e, const struct member *m, const struct msg_offer *o, double norm,
                               struct err *err)
{
    struct record_delta delta = {.id = m->id,
                                 .fragment = o->fragment,
                                 .round = o->round,
                                 .part = {.base_version = o->base_version,
                                          .tokens = o->tokens,
                                          .bytes = o->bytes,
                                          .compute_us = o->compute_us,
                                          .steps = o->steps,
                                          .crc = o->crc,
                                          .loss_sum = o->loss_sum,
                                          .norm = (float)norm}};
    struct store_part payload = {e->ledger.outer.payload, o->bytes};
    return engine_write(e, RECORD_DELTA, &delta, &payload, err);
}

/* Checks the payload of a complete delta. Returns 0 with its norm and its form in the journal, which lies in the outer
 * state's payload buffer, or the code and reason of a refusal. */
static uint16_t check_payload(struct engine *e, const struct upload *u, const uint8_t *delta, double *norm_p,
                              struct msg_offer *stored, char reason[WIRE_TEXT_MAX])
{
    const struct msg_offer *offer = &u->offer;
    snprintf(reason, WIRE_TEXT_MAX, "its bytes differ from its checksum");
    if (!upload_intact(u, delta)) return REJECT_CORRUPT;
    struct codec_view view; /* codec_open checks all bytes that decoding reads */
    enum status status = arrival_open(&e->ledger.outer.fragments[offer->fragment], delta, offer->bytes, &view);
    snprintf(reason, WIRE_TEXT_MAX, "%s",
             status == STATUS_NONFINITE     ? "it contains NaN or infinity"
             : status == STATUS_UNSUPPORTED ? "its codec is not codec.up or one of codec.up_allowed"
                                            : "it cannot be decoded");
    if (status != STATUS_OK) return status == STATUS_NONFINITE ? REJECT_NONFINITE : REJECT_CORRUPT;
    struct delta_measure m = delta_measure(&e->ledger.outer, offer->fragment, &view);
    snprintf(reason, WIRE_TEXT_MAX, "it contains values of 2^64 or more");
    if (!m.in_range) return REJECT_NONFINITE;
    *norm_p = m.norm;
    *stored = *offer;
    if (!e->ledger.outer.fragments[offer->fragment].n_arriving) return 0;
    snprintf(reason, WIRE_TEXT_MAX, "it cannot be stored");
    size_t size;
    if (arrival_store(&e->ledger.outer, offer->fragment, &view, &size) != STATUS_OK) return REJECT_CORRUPT;
    stored->bytes = size;
    stored->crc = crc32c(0, e->ledger.outer.payload, size);
    return 0;
}

/* A complete payload. */
struct payload {
    struct engine *e;
    const struct member *m;
    const struct upload *u;
    uint16_t code; /* enum reject_code with its reason; 0: it was journaled */
    char reason[WIRE_TEXT_MAX];
};

/* Checks a payload and journals it. The outer state's payload buffer is free between merges, so it is read into it. */
static enum status take_payload(void *arg, struct err *err)
{
    struct payload *p = arg;
    struct engine *e = p->e;
    uint8_t *delta = e->ledger.outer.payload;
    struct msg_offer stored;
    double norm = 0;
    assert(p->u->have == p->u->offer.bytes && p->u->have <= e->ledger.outer.payload_cap);
    TRY(e->store->ops->spool_read(e->store, spool_offset(e, p->u), delta, p->u->have, err));
    p->code = check_payload(e, p->u, delta, &norm, &stored, p->reason);
    return p->code ? STATUS_OK : write_delta(e, p->m, &stored, norm, err);
}

/* Takes a complete payload and acknowledges it. */
static enum status deliver(struct engine *e, struct session *s, struct upload *u, struct err *err)
{
    const struct msg_offer offer = u->offer;
    struct round *round = &e->ledger.round;
    const struct member *m = member_by_id(&round->members, s->member);
    struct round_offer o = offer_of(&offer);
    uint16_t code = 0;
    const char *reason = "";
    /* The state may have changed during the upload. */
    enum round_verdict verdict = m ? round_judge(round, m, &o, &code, &reason) : ROUND_REJECT;
    if (verdict == ROUND_DROP) return refuse_part(e, s, &offer, code, reason, err);
    if (verdict != ROUND_ACCEPT) {
        drop_upload(e, u);
        if (verdict == ROUND_HAVE) send_credit(e, s, offer.round, offer.fragment, offer.bytes, offer.bytes);
        return STATUS_OK;
    }
    struct payload p = {.e = e, .m = m, .u = u};
    TRY(engine_long(e, offer.bytes, take_payload, &p, err));
    if (p.code) return refuse_part(e, s, &offer, p.code, p.reason, err);
    drop_upload(e, u);
    s->own[offer.fragment] = (struct session_own){.round = offer.round + 1};
    s->idle_us = e->now_us;
    round_note_delivery(round, m, offer.fragment, e->now_us);
    note_upload(e, s);
    send_credit(e, s, offer.round, offer.fragment, offer.bytes, offer.bytes);
    engine_progress(e);
    return STATUS_OK;
}

enum status engine_on_chunk(struct engine *e, uint64_t peer, const struct msg_chunk *m, struct err *err)
{
    struct session *s = e->ledger.modelled ? session_by_bulk(&e->sessions, peer) : NULL;
    if (!s || m->kind != OBJECT_DELTA || m->fragment >= e->ledger.layout.n_fragments) return STATUS_OK;
    struct upload *u = &s->uploads[m->fragment];
    admission_hear(e, s);
    switch (upload_chunk(u, &e->sessions.uploads, m)) {
    case STATUS_OK:
        TRY(e->store->ops->spool_write(e->store, spool_offset(e, u) + m->offset, m->data, m->size, err));
        s->moved_us = e->now_us;
        break;
    case STATUS_AGAIN: /* a chunk was lost or repeated: the worker times out and offers again */ return STATUS_OK;
    default: log_warn("ignored a damaged chunk of %s", s->name); return STATUS_OK;
    }
    note_upload(e, s);
    if (upload_complete(u)) return deliver(e, s, u, err);
    if (upload_extend(u, &e->sessions.uploads)) send_credit(e, s, u->offer.round, m->fragment, u->have, u->upto);
    return STATUS_OK;
}

/* --- outgoing objects --------------------------------------------------------------------------------------------- */

/* Bytes of an object; 0: it does not exist. */
static uint64_t object_size(const struct engine *e, uint8_t kind, uint32_t fragment, uint64_t version)
{
    const struct ledger *l = &e->ledger;
    if (kind == OBJECT_UPDATE) {
        const struct update_entry *entry = update_log_find(&l->log, fragment, version);
        return entry ? entry->size : 0;
    }
    if (!engine_snapshot_find(e, fragment, version)) return 0;
    return SNAPSHOT_HEAD_BYTES + l->layout.fragments[fragment].count * sizeof(float);
}

/* Skips the bytes of the worker's own delta in an update: the worker still has them. */
static void leave_out_own(struct session *s, uint32_t fragment, uint64_t version)
{
    const struct session_own *own = &s->own[fragment];
    if (own->version == version) download_leave_out(&s->download, fragment, version, own->from, own->to);
}

/* Notes for each session where its delta lies in the update that relays it. The ledger still has the sizes. */
static void note_own(struct engine *e, const struct round_close *close)
{
    const struct ledger *l = &e->ledger;
    uint64_t at = l->down_relay + relay_head_size(close->n);
    for (uint32_t i = 0; i < close->n; i++) {
        uint64_t end = at + l->outer.deltas[i].size;
        struct session *s = session_by_member(&e->sessions, close->ids[i]);
        struct session_own *own = s ? &s->own[close->fragment] : NULL;
        if (own && own->round == l->named[i].round + 1) {
            own->version = l->round.versions[close->fragment];
            own->from = at;
            own->to = end;
        }
        at = end;
    }
    assert(at + sizeof(uint32_t) == l->down_bytes); /* the checksum follows the last delta */
}

void engine_on_get(struct engine *e, struct session *s, const struct msg_get *m)
{
    bool update = m->kind == OBJECT_UPDATE;
    if (m->fragment >= e->ledger.layout.n_fragments || (!update && m->kind != OBJECT_SNAPSHOT)) {
        engine_refuse(e, s->control, s->name, REFUSE_MALFORMED, "a request for an unknown kind of object or fragment");
        return;
    }
    uint64_t size = object_size(e, m->kind, m->fragment, m->version);
    bool later = update && m->version > e->ledger.round.versions[m->fragment];
    if (!size && !later) {
        engine_refuse(e, s->control, s->name, REFUSE_GONE, "%s %llu of fragment %u was removed: join again",
                      update ? "update" : "snapshot", (unsigned long long)m->version, m->fragment);
        return;
    }
    if (update && m->version && engine_member(e, s)) /* it asks for the next update when it has the one before */
        round_note_have(&e->ledger.round, s->member, m->fragment, m->version - 1);
    if (update && !later && engine_snapshot_renews(e, s)) return;
    download_add(&s->download, m, size);
    session_serve(&e->sessions, s, true);
    if (update) leave_out_own(s, m->fragment, m->version);
}

void engine_wake_gets(struct engine *e, const struct round_close *close)
{
    uint64_t version = e->ledger.round.versions[close->fragment];
    uint64_t size = object_size(e, OBJECT_UPDATE, close->fragment, version);
    if (e->ledger.down_relay) note_own(e, close);
    for_each_session(e, s) {
        if (download_wake(&s->download, close->fragment, version, size)) session_serve(&e->sessions, s, true);
        if (!s->down_from_us) s->down_from_us = e->now_us;
        leave_out_own(s, close->fragment, version);
    }
}

/* Reads snapshot bytes: a head, then floats. The range may begin and end inside a float. */
static enum status read_snapshot(struct engine *e, const struct download_item *item, uint64_t size, uint8_t *dst,
                                 struct err *err)
{
    const struct fragment *frag = &e->ledger.layout.fragments[item->fragment];
    const struct checkpoint_info *info = engine_snapshot_find(e, item->fragment, item->version);
    uint64_t at = item->at;
    assert(info && at + size <= item->total);
    if (at < SNAPSHOT_HEAD_BYTES) {
        uint8_t head[SNAPSHOT_HEAD_BYTES];
        struct snapshot_head h = {item->fragment, item->version, info->hashes[item->fragment], frag->count};
        uint64_t n = SNAPSHOT_HEAD_BYTES - at < size ? SNAPSHOT_HEAD_BYTES - at : size;
        snapshot_head_encode(&h, head);
        memcpy(dst, head + at, n);
        dst += n;
        at += n;
        size -= n;
    }
    assert(!size || at >= SNAPSHOT_HEAD_BYTES);
    at -= SNAPSHOT_HEAD_BYTES;
    while (size) {
        float buffer[1024];
        uint64_t first = at / sizeof(float), skip = at % sizeof(float), left = frag->count - first;
        uint64_t count = left < 1024 ? left : 1024, bytes = count * sizeof(float) - skip;
        assert(left > 0);
        if (bytes > size) bytes = size;
        TRY(engine_snapshot_theta(e, info, frag->offset + first, buffer, count, err));
        memcpy(dst, (uint8_t *)buffer + skip, bytes);
        dst += bytes;
        at += bytes;
        size -= bytes;
    }
    return STATUS_OK;
}

static enum status read_object(struct engine *e, const struct download_item *item, uint64_t size, struct err *err)
{
    enum status status;
    assert(size > 0 && size <= DOWNLOAD_CHUNK);
    if (item->kind == OBJECT_SNAPSHOT) {
        status = read_snapshot(e, item, size, e->chunk, err);
    } else {
        const struct update_entry *entry = update_log_find(&e->ledger.log, item->fragment, item->version);
        assert(entry && item->at + size <= entry->size);
        status =
            e->store->ops->segment_read(e->store, entry->at.segment, entry->at.offset + item->at, e->chunk, size, err);
    }
    if (status != STATUS_CORRUPT) return status;
    if (err) err->code = STATUS_IO; /* not permanent: the next start puts aside what the disk cannot read */
    return STATUS_IO;
}

/* Sends requested objects until the worker's lane is full. Otherwise there is no more to send until the next GET, BIND
 * or update. */
static enum status send_downloads(struct engine *e, struct session *s, struct err *err)
{
    struct download_item item;
    uint64_t size;
    if (s->download.again_us > e->now_us) return STATUS_OK;
    session_serve(&e->sessions, s, false);
    while (s->bulk != SESSION_NO_PEER && download_next(&s->download, &item, &size)) {
        /* The object may have been removed since the request. */
        if (object_size(e, item.kind, item.fragment, item.version) != item.total) {
            download_sent(&s->download, &item, 0);
            engine_refuse(e, s->control, s->name, REFUSE_GONE, "version %llu of fragment %u was removed: join again",
                          (unsigned long long)item.version, item.fragment);
            continue;
        }
        TRY(read_object(e, &item, size, err));
        struct msg m = {.type = MSG_CHUNK,
                        .chunk = {.kind = item.kind,
                                  .fragment = item.fragment,
                                  .key = item.version,
                                  .offset = item.at,
                                  .total = item.total,
                                  .crc = crc32c(0, e->chunk, size),
                                  .data = e->chunk,
                                  .size = size}};
        enum status status = engine_send(e, s->bulk, WIRE_BULK, &m);
        if (status == STATUS_AGAIN) {
            download_full(&s->download, e->now_us);
            session_serve(&e->sessions, s, true);
            return STATUS_OK;
        }
        if (status != STATUS_OK) {
            session_bind(&e->sessions, s, SESSION_NO_PEER); /* the worker sends BIND and its request again */
            return STATUS_OK;
        }
        download_sent(&s->download, &item, size);
    }
    return STATUS_OK;
}

enum status engine_serve(struct engine *e, struct err *err)
{
    e->retry_us = UINT64_MAX;
    for (struct session *s = NULL; (s = session_next_to_serve(&e->sessions, s));) {
        TRY(send_downloads(e, s, err));
        if (s->download.again_us > e->now_us && s->download.again_us < e->retry_us) e->retry_us = s->download.again_us;
    }
    return STATUS_OK;
}
