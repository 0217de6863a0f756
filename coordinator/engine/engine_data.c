#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "compress/codec.h"
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
    if (code != REJECT_LATE) memcpy(e->watch.refused_name, s->name, sizeof s->name);
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
    if (u->active && !u->place) e->store->ops->spool_forget(e->store, spool_offset(e, u), u->have);
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

static enum status write_delta(struct engine *e, const struct member *m, const struct msg_offer *o,
                               const uint8_t *bytes, double norm, struct err *err)
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
    struct store_part payload = {bytes, o->bytes};
    return engine_write(e, RECORD_DELTA, &delta, &payload, err);
}

/* Checks the payload of a complete delta. Returns 0 with its norm and its form in the journal, or the code and reason
 * of a refusal. */
static uint16_t check_payload(struct engine *e, const struct upload *u, const uint8_t *delta, double *norm_p,
                              struct msg_offer *stored, char reason[WIRE_TEXT_MAX])
{
    const struct msg_offer *offer = &u->offer;
    snprintf(reason, WIRE_TEXT_MAX, "its bytes differ from its checksum");
    bool changed = !u->place && crc32c(0, delta, offer->bytes) != offer->crc; /* on the disk */
    if (!upload_intact(u) || changed) return REJECT_CORRUPT;
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

/* The delta is journaled in a form of its own, which lies in the outer state's payload buffer. */
static bool is_stored_anew(const struct engine *e, const struct upload *u)
{
    return e->ledger.outer.fragments[u->offer.fragment].n_arriving > 0;
}

/* Checks a payload and journals it. A spooled one is read into the outer state's payload buffer, which is free between
 * merges. */
static enum status take_payload(void *arg, struct err *err)
{
    struct payload *p = arg;
    struct engine *e = p->e;
    uint8_t *buffer = e->ledger.outer.payload, *delta = p->u->place ? held_bytes(&e->ledger.held, p->u->place) : buffer;
    struct msg_offer stored;
    double norm = 0;
    assert(p->u->have == p->u->offer.bytes && p->u->have <= e->ledger.outer.payload_cap);
    if (!p->u->place) TRY(e->store->ops->spool_read(e->store, spool_offset(e, p->u), delta, p->u->have, err));
    p->code = check_payload(e, p->u, delta, &norm, &stored, p->reason);
    if (p->code) return STATUS_OK;
    return write_delta(e, p->m, &stored, is_stored_anew(e, p->u) ? buffer : delta, norm, err);
}

/* The upload is in the journal. If its bytes in memory are the same, they stay for the merge. */
static void end_upload(struct engine *e, struct upload *u, struct part *part)
{
    if (!u->place || is_stored_anew(e, u)) {
        drop_upload(e, u);
        return;
    }
    held_keep(&e->ledger.held, u->place, part->at);
    part->place = u->place;
    u->place = 0;
    session_upload_drop(&e->sessions, u->offer.fragment, u);
}

/* Takes a complete payload and acknowledges it. */
static enum status deliver(struct engine *e, struct session *s, struct upload *u, struct err *err)
{
    const struct msg_offer offer = u->offer;
    struct round *round = &e->ledger.round;
    struct member *m = member_by_id(&round->members, s->member);
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
    end_upload(e, u, &m->work.parts[offer.fragment]);
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
    case STATUS_OK: s->moved_us = e->now_us; break;
    case STATUS_AGAIN: /* a chunk was lost or repeated: the worker times out and offers again */ return STATUS_OK;
    default: log_warn("ignored a damaged chunk of %s", s->name); return STATUS_OK;
    }
    if (u->place)
        memcpy(held_bytes(&e->ledger.held, u->place) + m->offset, m->data, m->size);
    else
        TRY(e->store->ops->spool_write(e->store, spool_offset(e, u) + m->offset, m->data, m->size, err));
    note_upload(e, s);
    if (upload_complete(u)) return deliver(e, s, u, err);
    if (upload_extend(u, &e->sessions.uploads)) send_credit(e, s, u->offer.round, m->fragment, u->have, u->upto);
    return STATUS_OK;
}
