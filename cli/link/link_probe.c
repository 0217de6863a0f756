#include "cli/link/link_probe.h"

#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

#include "cli/link/link_target.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/median.h"
#include "common/base/units.h"
#include "wire/dial_failure.h"

enum {
    WINDOW_MAX = 32,    /* PROBEs under way; with PROBE_SIZE_MAX less than the coordinator queues */
    SIZE_MIN = 8 << 10, /* bytes of a PROBE or its reply */
    COUNT_US = 1000000, /* length of a measurement */
    COUNT_MIN = 4,      /* replies of a measurement */
    START_US = 300000,  /* before a measurement, and 8 round trips, or START_MAX_US */
    START_MAX_US = 5000000,
    TRIPS_US = 4000000,        /* no further round trip after this time */
    WAITING_US = 50000,        /* a reply that is so much later than two round trips has waited in a queue */
    PATIENCE_US = 8000000,     /* for any reply */
    CONNECT_RTTS = 8,          /* added for the first reply, which waits for the connection */
    CONNECT_AGAIN_US = 500000, /* between two attempts */
    RESTS_MAX = 2,             /* waits until the coordinator measures again */
    REST_MAX_S = 60,           /* longest of them */
};

struct prober {
    struct transport *t;
    uint32_t wait_s;                  /* of the last reply */
    uint64_t id;                      /* of the last PROBE */
    uint64_t first_id;                /* replies to smaller ids are late */
    uint64_t sent_us[2 * WINDOW_MAX]; /* by id */
    size_t sizes[2 * WINDOW_MAX];     /* by id: bytes of it that count */
    uint8_t frame[WIRE_HEADER + WIRE_PROBE_MAX + 64];
};

/* Sends a PROBE with `up` bytes that asks for `down` bytes. AGAIN: the queue is full. */
static enum status send_probe(struct prober *p, size_t up, size_t down)
{
    static const uint8_t filling[WIRE_PROBE_MAX];
    const struct msg m = {.type = MSG_PROBE,
                          .probe = {.id = p->id + 1, .want = (uint32_t)down, .data = filling, .size = up}};
    size_t size;
    TRY(msg_encode(&m, p->frame, sizeof p->frame, &size));
    uint64_t now = clock_monotonic_us(); /* the reply may come before `send` returns */
    TRY(p->t->ops->send(p->t, 0, WIRE_BULK, p->frame, size));
    p->id++;
    p->sent_us[p->id % (2 * WINDOW_MAX)] = now;
    p->sizes[p->id % (2 * WINDOW_MAX)] = up + down;
    return STATUS_OK;
}

/* Receives the next reply. AGAIN: none until timeout_us. */
static enum status receive_reply(struct prober *p, uint64_t timeout_us, uint64_t *id_p, struct err *err)
{
    uint64_t peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    struct msg m;
    if (p->t->ops->recv(p->t, timeout_us, &peer, &lane, &data, &size) != STATUS_OK) return STATUS_AGAIN;
    TRY(msg_decode(&m, data, size, err));
    if (m.type == MSG_REFUSE) return err_set(err, STATUS_REFUSED, "the coordinator refused: %s", m.refuse.text);
    if (m.type != MSG_PROBE_REPLY || m.probe_reply.id < p->first_id) return STATUS_AGAIN;
    p->wait_s = m.probe_reply.wait_s;
    if (p->wait_s)
        return err_set(err, STATUS_LIMIT, "the coordinator rests after other probes: try again in %u s", p->wait_s);
    *id_p = m.probe_reply.id;
    return STATUS_OK;
}

/* Sends one small PROBE, again after again_us, and waits for a reply. */
static enum status round_trip(struct prober *p, uint64_t patience_us, uint64_t again_us, double *ms_p, struct err *err)
{
    uint64_t begin = clock_monotonic_us(), now = begin, again = begin, id = 0;
    p->first_id = p->id + 1;
    for (; now < begin + patience_us + CONNECT_RTTS * (uint64_t)atomic_load(&p->t->rtt_us);
         now = clock_monotonic_us()) {
        if (now >= again && send_probe(p, 0, 0) == STATUS_OK) again = now + again_us;
        enum status status = receive_reply(p, 20000, &id, err);
        if (status < 0) return status;
        if (status != STATUS_OK) continue;
        *ms_p = (double)(clock_monotonic_us() - p->sent_us[id % (2 * WINDOW_MAX)]) / 1e3;
        return STATUS_OK;
    }
    return err_set(err, STATUS_CLOSED, "no answer within %s", units_duration((double)patience_us / 1e6).text);
}

static enum status measure_round_trip(struct link_probe *result, struct prober *p, uint64_t connect_us, struct err *err)
{
    double trips[PROBE_TRIPS];
    TRY(round_trip(p, connect_us, CONNECT_AGAIN_US, &trips[0], err)); /* it may wait for the connection */
    uint64_t begin = clock_monotonic_us();
    int n = 0;
    while (n < PROBE_TRIPS && (!n || clock_monotonic_us() < begin + TRIPS_US))
        TRY(round_trip(p, PATIENCE_US, PATIENCE_US, &trips[n++], err));
    result->trips = n;
    result->median_ms = median_of(trips, (size_t)n);
    result->least_ms = trips[0]; /* sorted */
    return STATUS_OK;
}

/* A stream of PROBEs in one direction. */
struct stream {
    unsigned under_way, window;
    size_t size;
    uint64_t grown_id;           /* last id at the last growth of the size */
    uint64_t start_us, first_us; /* start; time from which replies count, 0: not yet */
    double bytes;                /* since first_us */
    unsigned replies;            /* since first_us */
};

/* More and larger PROBEs, once a round trip, as long as their replies do not wait. */
static void grow(struct stream *s, const struct prober *p, uint64_t id, double waited_us, double rtt_us)
{
    if (waited_us > 2 * rtt_us + WAITING_US) return;
    if (s->window < WINDOW_MAX) {
        s->window++;
    } else if (id > s->grown_id) {
        s->size = 2 * s->size < WIRE_PROBE_MAX ? 2 * s->size : WIRE_PROBE_MAX;
        s->grown_id = p->id;
    }
}

static enum status measure_stream(struct prober *p, bool up, double rtt_ms, double *mbit_p, struct err *err)
{
    const double rtt_us = rtt_ms * 1e3, start_us = fmin(START_US + 8 * rtt_us, START_MAX_US);
    uint64_t now = clock_monotonic_us(), heard = now;
    p->first_id = p->id + 1;
    struct stream s = {.window = 2, .size = SIZE_MIN, .start_us = now};
    for (;;) {
        bool over = s.replies >= COUNT_MIN && now >= s.first_us + COUNT_US;
        if (over && (!s.under_way || now >= heard + COUNT_US)) return STATUS_OK; /* replies may be lost */
        while (!over && s.under_way < s.window && send_probe(p, up ? s.size : 0, up ? 0 : s.size) == STATUS_OK)
            s.under_way++;
        uint64_t id;
        enum status status = receive_reply(p, 1000, &id, err);
        now = clock_monotonic_us();
        if (status < 0) return status;
        if (status == STATUS_AGAIN && now >= heard + PATIENCE_US)
            return err_set(err, STATUS_CLOSED, "no answer within %d s", PATIENCE_US / 1000000);
        if (status == STATUS_AGAIN) continue;
        heard = now;
        s.under_way--;
        if (over) continue;
        grow(&s, p, id, (double)(now - p->sent_us[id % (2 * WINDOW_MAX)]), rtt_us);
        if (s.first_us) {
            s.bytes += (double)p->sizes[id % (2 * WINDOW_MAX)];
            s.replies++;
            *mbit_p = s.bytes * 8 / (double)(now - s.first_us);
        } else if ((double)(now - s.start_us) >= start_us) {
            s.first_us = now;
        }
    }
}

/* The parts of a measurement, in order. The coordinator may rest before each. */
enum part { PART_ROUND_TRIP, PART_UP, PART_DOWN, PARTS };

static enum status measure_part(struct link_probe *result, struct prober *p, enum part part, uint64_t connect_us,
                                struct err *err)
{
    if (part == PART_ROUND_TRIP) return measure_round_trip(result, p, connect_us, err);
    bool up = part == PART_UP;
    return measure_stream(p, up, result->least_ms, up ? &result->up_mbit : &result->down_mbit, err);
}

enum status link_probe_measure(struct link_probe *result, struct transport *t, uint64_t patience_us, struct err *err)
{
    static struct prober p;
    p = (struct prober){.t = t};
    *result = (struct link_probe){0};
    for (enum part part = 0; part < PARTS; part++) {
        enum status status = measure_part(result, &p, part, patience_us, err);
        for (int i = 0; i < RESTS_MAX && status == STATUS_LIMIT && p.wait_s <= REST_MAX_S; i++) {
            log_info("waiting %u s: the coordinator rests after other probes", p.wait_s);
            sleep(p.wait_s);
            status = measure_part(result, &p, part, patience_us, err);
        }
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

/* --- by name ------------------------------------------------------------------------------------------------------ */

enum { CONNECT_US = 5000000, SLOW_US = 30000000 /* a handshake over a long path */ };

enum status link_probe_target(struct link_probe *result, const char *given, struct err *err)
{
    struct transport_address address;
    struct transport *t;
    TRY(link_target_find(&address, given, err));
    address.quiet = true;
    address.fail_fast = true;
    TRY(transport_zmq_dial(&t, &address, NULL, err));
    enum status status = link_probe_measure(result, t, CONNECT_US, err), reason = STATUS_AGAIN;
    enum dial_failure seen = (enum dial_failure)atomic_load(&t->failure);
    struct err why = {0};
    if (status == STATUS_CLOSED && !atomic_load(&t->connected))
        reason = dial_failure_explain(&address, seen, DIAL_EXPLAIN_US, &why);
    if (reason == STATUS_OK) status = link_probe_measure(result, t, SLOW_US, err);
    t->ops->close(t);
    if (reason < 0)
        *err = why;
    else if (status < 0)
        err_prefix(err, "%s", address.endpoint);
    return status < 0 ? err->code : STATUS_OK;
}

/* A measurement has no more than three digits that mean something. */
static double three_digits(double value)
{
    double unit = value > 0 ? pow(10, floor(log10(value)) - 2) : 1;
    return unit >= 1 ? round(value / unit) * unit : round(value / unit) / round(1 / unit);
}

struct link_spec link_probe_spec(const struct link_probe *result)
{
    return (struct link_spec){.up_mbit = three_digits(result->up_mbit),
                              .down_mbit = three_digits(result->down_mbit),
                              .delay_ms = three_digits(result->least_ms) / 2};
}
