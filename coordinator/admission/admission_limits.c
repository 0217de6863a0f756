/* Limits on messages: which message is read at all, and the lines about ignored ones. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/minmax.h"
#include "common/base/units.h"
#include "compress/codec.h"
#include "coordinator/admission/admission.h"
#include "coordinator/engine/state/engine_effects.h"
#include "coordinator/outer/arrival.h"

enum {
    TYPE_AT = 5,            /* offset of the type in a header (wire/frame.h) */
    WINDOW_BYTES = 4 << 20, /* bytes that a worker requests at once, over at most WINDOW_GETS fragments */
    WINDOW_GETS = 8,
    LINES_MAX = 4, /* lines about ignored messages in one second */
};

void admission_limits_size(struct engine *e)
{
    const struct layout *layout = &e->ledger.layout;
    uint64_t bytes = 0;
    struct rate_needs needs = {.n_fragments = 1, .chunks = 1, .gets = 1, .steps = e->config.train.sync_every};
    for (uint32_t f = 0; e->ledger.modelled && f < layout->n_fragments; f++) {
        uint64_t theta = layout->fragments[f].count * sizeof(float);
        uint64_t delta = arrival_bound(&e->ledger.outer.fragments[f]);
        bytes = max_u64(bytes, max_u64(theta, delta));
    }
    if (e->ledger.modelled) {
        uint32_t at_once = layout->n_fragments < WINDOW_GETS ? layout->n_fragments : WINDOW_GETS;
        needs.n_fragments = layout->n_fragments;
        needs.chunks = (uint32_t)(2 + bytes / RATE_CHUNK_BYTES);
        needs.gets = (uint32_t)(2 + 2 * at_once * bytes / WINDOW_BYTES);
    }
    rate_limits(e->rate.limits, &needs);
    e->rate_needs = needs;
}

void admission_limits_grant(struct engine *e, const struct msg_welcome *m, const struct msg_join *join)
{
    uint64_t replays = 0;
    for (uint32_t f = 0; f < m->n_fragments; f++) {
        uint64_t from = m->resume ? join->held[f].version : m->snapshot[f].version;
        replays += m->current[f].version - from;
    }
    double objects = (double)(replays + (m->resume ? 0 : m->n_fragments));
    rate_grant(&e->rate, e->speaker, RATE_HEARTBEAT, 4 * (double)replays);
    rate_grant(&e->rate, e->speaker, RATE_OBJECT, 4 * objects * e->rate_needs.gets);
}

static struct session *session_of_peer(const struct engine *e, uint64_t peer)
{
    for_each_session(e, s) {
        if (s->control == peer || s->bulk == peer) return s;
    }
    return NULL;
}

static enum admission_verdict verdict_of(struct engine *e, uint64_t peer, enum rate_class class,
                                         enum rate_verdict verdict)
{
    if (verdict == RATE_ALLOW) return ADMISSION_ADMIT;
    if (verdict == RATE_IGNORE) return ADMISSION_IGNORE;
    if (verdict == RATE_CLOSE) {
        struct session *s = session_of_peer(e, peer);
        char text[160];
        if (s) {
            s->flooded = true;
            e->watch_us = 0;
        }
        snprintf(text, sizeof text, "%s %s messages arrive far above their limit: refused for %d s",
                 s ? "closed its connection, because its" : "closed a connection, because its", rate_class_name(class),
                 RATE_REFUSED_US / 1000000);
        engine_emit_text(e, ENGINE_EVENT_FAULT, s ? s->name : NULL, text);
    }
    return ADMISSION_CLOSE;
}

enum admission_verdict admission_message(struct engine *e, uint64_t who, uint64_t peer, enum wire_lane lane,
                                         const uint8_t *data, size_t size, uint64_t now_us)
{
    enum rate_class class = size < WIRE_HEADER ? RATE_INVALID : rate_class_of(data[TYPE_AT], lane);
    e->speaker = who;
    return verdict_of(e, peer, class, rate_admit(&e->rate, who, peer, class, size, now_us));
}

enum admission_verdict admission_malformed(struct engine *e, uint64_t peer, enum wire_lane lane, const struct err *why,
                                           uint64_t now_us)
{
    enum rate_verdict rate = rate_admit(&e->rate, e->speaker, peer, RATE_INVALID, 0, now_us);
    if (rate != RATE_ALLOW) return verdict_of(e, peer, RATE_INVALID, rate);
    const struct session *s = session_of_peer(e, peer);
    struct msg m = {.type = MSG_REFUSE, .refuse.code = REFUSE_MALFORMED};
    char line[WIRE_TEXT_MAX + WIRE_NAME_MAX + 64];
    if (why->code == STATUS_UNSUPPORTED) m.refuse.code = REFUSE_VERSION;
    snprintf(m.refuse.text, sizeof m.refuse.text, "%s", why->msg);
    snprintf(line, sizeof line, "refused a malformed message of %s: %s", s ? s->name : "a connection", why->msg);
    if (!engine_logged_recently(e, line)) log_warn("%s", line);
    if (lane == WIRE_CONTROL && engine_send(e, peer, lane, &m) != STATUS_OK) log_debug("cannot send REFUSE");
    return ADMISSION_ADMIT;
}

/* "w1: ignored 11995 STATUS messages in 1 s above the limit of 5 per second" */
static void log_ignored(const struct engine *e, const struct rate_sender *sender)
{
    const struct session *s = session_of_peer(e, sender->peer);
    for (int c = 0; c < RATE_CLASSES; c++) {
        const struct rate_limit *limit = &e->rate.limits[c];
        if (!sender->ignored[c]) continue;
        log_warn("%s: ignored %u %s messages in %s, above the limit of %g per second%s", s ? s->name : "a connection",
                 sender->ignored[c], rate_class_name((enum rate_class)c), units_duration(RATE_REPORT_US * 1e-6).text,
                 limit->per_s, limit->per_update > 0 ? " (more in fast runs)" : "");
    }
}

static void report_ignored(struct engine *e)
{
    struct rate_sender *s;
    size_t at = 0;
    uint32_t others = 0;
    for (uint32_t n = 0; (s = rate_report(&e->rate, &at)); n++) {
        if (n < LINES_MAX)
            log_ignored(e, s);
        else
            others++;
        memset(s->ignored, 0, sizeof s->ignored);
    }
    if (others) log_warn("ignored messages of %u more connections", others);
}

void admission_limits_report(struct engine *e)
{
    struct repeat_line line;
    char text[sizeof line.text + 64];
    if (e->rate.report_us && e->now_us >= e->rate.report_us) report_ignored(e);
    while (repeat_take(&e->repeat, e->now_us, &line)) {
        snprintf(text, sizeof text, "%s%s(%u times in 1 s)", line.text, line.text[0] ? " " : "", line.more);
        struct engine_event event = {.kind = (enum engine_event_kind)line.kind,
                                     .line = {.worker = line.worker[0] ? line.worker : NULL, .text = text}};
        engine_emit(e, &event);
    }
    uint32_t lost = repeat_take_lost(&e->repeat, e->now_us);
    if (lost) log_warn("left out %u more lines about workers", lost);
}

uint64_t admission_limits_deadline_us(const struct engine *e)
{
    uint64_t at = repeat_deadline_us(&e->repeat);
    return e->rate.report_us ? min_u64(e->rate.report_us, at) : at;
}

/* --- probes ------------------------------------------------------------------------------------------------------- */

/* `atoll probe` measures a link: the coordinator answers PROBE with as many bytes as it asks for. All probes together
 * get 10 s, then none for 20 s, so that they never slow a run down for long. */
enum { PROBING_US = 10 * 1000 * 1000, RESTING_US = 20 * 1000 * 1000 };

void admission_probe(struct engine *e, uint64_t peer, const struct msg_probe *m)
{
    static const uint8_t filling[WIRE_PROBE_MAX];
    struct msg reply = {.type = MSG_PROBE_REPLY, .probe_reply = {.id = m->id, .data = filling, .size = m->want}};
    uint64_t rested_us = e->probing_until_us + RESTING_US;
    if (!e->probing_until_us || e->now_us >= rested_us) {
        e->probing_until_us = e->now_us + PROBING_US;
        log_info("a client measures its link");
    } else if (e->now_us >= e->probing_until_us) {
        reply.probe_reply.wait_s = (uint32_t)((rested_us - e->now_us) / 1000000 + 1);
        reply.probe_reply.size = 0;
    }
    /* A full queue drops the reply: the client has more under way than it needs. */
    if (engine_send(e, peer, WIRE_BULK, &reply) != STATUS_OK) log_debug("cannot send PROBE_REPLY");
}
