#include "coordinator/limits/rate.h"

#include <assert.h>

#include "wire/msg.h"

/* An honest worker's need, and its limit:
 *
 *   ENTER      HELLO and JOIN, repeated 1 s to 10 s apart; a refused worker needs 2 messages in 5 s
 *   HEARTBEAT  1 a second, and 1 for each change of its state (3 a round) or its versions (1 an update)
 *   OBJECT     1 OFFER and its GETs an update; each is repeated after 2 s or more, and BIND with it
 *   CHUNK      those of its delta, once an update
 *   METRICS    1 a second, 1 at the end of a round, and 1 for each 256 steps; 16 after a new connection
 *   EVAL       1 for each share and each sample, repeated with the heartbeats: with small models 5 in a second, and 3
 *              answers each when its EVAL came again meanwhile
 *   STATUS     2 a second (atoll status); MODEL once a second (atoll follow)
 *   PROBE      a measurement of up to 10 s: 256 KiB each at 1 Gbit/s, and smaller ones before; FETCH of a follower
 *              likewise
 *   INVALID    none; 1 a second tells the other side what is wrong */
void rate_limits(struct rate_limit limits[RATE_CLASSES], const struct rate_needs *needs)
{
    const double f = needs->n_fragments, objects = 1 + needs->gets, chunks = needs->chunks;
    assert(f > 0);
    limits[RATE_ENTER] = (struct rate_limit){2, 0, 20};
    limits[RATE_HEARTBEAT] = (struct rate_limit){10, 16, 64 + 16 * f};
    limits[RATE_OBJECT] = (struct rate_limit){16 + 2 * f, 4 * objects, 64 + 8 * f * objects};
    limits[RATE_CHUNK] = (struct rate_limit){16, 4 * chunks, 64 + 4 * f * chunks};
    limits[RATE_METRICS] = (struct rate_limit){4, 4 + needs->steps / 64.0, 64};
    limits[RATE_EVAL] = (struct rate_limit){16, 8, 64};
    limits[RATE_STATUS] = (struct rate_limit){5, 0, 10};
    limits[RATE_PROBE] = (struct rate_limit){400, 0, 4000};
    limits[RATE_INVALID] = (struct rate_limit){1, 0, 10};
}

enum rate_class rate_class_of(uint8_t type, int lane)
{
    bool bulk = lane == WIRE_BULK;
    switch (type) {
    case MSG_BIND: return bulk ? RATE_OBJECT : RATE_INVALID;
    case MSG_CHUNK: return bulk ? RATE_CHUNK : RATE_INVALID;
    case MSG_PROBE:
    case MSG_FETCH: return bulk ? RATE_PROBE : RATE_INVALID;
    default: break;
    }
    if (bulk) return RATE_INVALID;
    switch (type) {
    case MSG_ENROL:
    case MSG_HELLO:
    case MSG_JOIN:
    case MSG_LEAVE: return RATE_ENTER;
    case MSG_HEARTBEAT: return RATE_HEARTBEAT;
    case MSG_OFFER:
    case MSG_GET: return RATE_OBJECT;
    case MSG_SAVES:
    case MSG_METRICS: return RATE_METRICS;
    case MSG_EVAL_RESULT: return RATE_EVAL;
    case MSG_STATUS:
    case MSG_MODEL: return RATE_STATUS;
    default: return RATE_INVALID;
    }
}

const char *rate_class_name(enum rate_class class)
{
    static const char *const names[] = {"HELLO, JOIN and LEAVE",
                                        "HEARTBEAT",
                                        "OFFER, GET and BIND",
                                        "CHUNK",
                                        "METRICS",
                                        "EVAL_RESULT",
                                        "STATUS",
                                        "PROBE",
                                        "invalid"};
    assert(class < RATE_CLASSES);
    return names[class];
}

static struct rate_sender *set_of(struct rate_table *t, uint64_t who)
{
    return &t->senders[RATE_WAYS * ((who * 0x9e3779b97f4a7c15u >> 32) % RATE_SETS)];
}

/* Refused senders are kept as long as any other can go. */
static bool goes_before(const struct rate_sender *a, const struct rate_sender *b, uint64_t now_us)
{
    bool a_stays = a->refused_us > now_us, b_stays = b->refused_us > now_us;
    return a_stays != b_stays ? b_stays : a->heard_us < b->heard_us;
}

static struct rate_sender *find(struct rate_table *t, uint64_t who, uint64_t now_us)
{
    struct rate_sender *set = set_of(t, who), *out = set;
    assert(who);
    for (int i = 0; i < RATE_WAYS; i++) {
        if (set[i].who == who) return &set[i];
        if (out->who && (!set[i].who || goes_before(&set[i], out, now_us))) out = &set[i];
    }
    *out = (struct rate_sender){.who = who, .heard_us = now_us, .updates = t->updates};
    for (int c = 0; c < RATE_CLASSES; c++) out->left[c] = t->limits[c].burst;
    return out;
}

static void refill(const struct rate_table *t, struct rate_sender *s, uint64_t now_us)
{
    double seconds = now_us > s->heard_us ? (double)(now_us - s->heard_us) * 1e-6 : 0;
    double updates = (double)(t->updates - s->updates);
    for (int c = 0; c < RATE_CLASSES; c++) {
        const struct rate_limit *limit = &t->limits[c];
        if (s->left[c] >= limit->burst) continue; /* more than that was granted */
        s->left[c] += seconds * limit->per_s + updates * limit->per_update;
        if (s->left[c] > limit->burst) s->left[c] = limit->burst;
    }
    s->excess -= seconds * RATE_EXCESS_PER_S;
    if (s->excess < 0) s->excess = 0;
    if (now_us > s->heard_us) s->heard_us = now_us;
    s->updates = t->updates;
}

enum rate_verdict rate_admit(struct rate_table *t, uint64_t who, uint64_t peer, enum rate_class class, size_t size,
                             uint64_t now_us)
{
    struct rate_sender *s = find(t, who, now_us);
    assert(class < RATE_CLASSES);
    refill(t, s, now_us);
    s->peer = peer;
    if (s->refused_us > now_us) return RATE_REFUSED;
    if (s->left[class] >= 1) {
        s->left[class] -= 1;
        return RATE_ALLOW;
    }
    s->ignored[class]++;
    s->excess += 1 + (double)(size >> 13);
    if (!t->report_us) t->report_us = now_us + RATE_REPORT_US;
    if (s->excess <= RATE_EXCESS_MAX) return RATE_IGNORE;
    s->excess = 0;
    s->refused_us = now_us + RATE_REFUSED_US;
    return RATE_CLOSE;
}

void rate_grant(struct rate_table *t, uint64_t who, enum rate_class class, double n)
{
    struct rate_sender *set = set_of(t, who);
    assert(n >= 0);
    for (int i = 0; i < RATE_WAYS; i++)
        if (who && set[i].who == who) set[i].left[class] += n;
}

void rate_note_pause(struct rate_table *t, uint64_t gap_us)
{
    for (size_t i = 0; i < RATE_SETS * RATE_WAYS; i++) {
        if (!t->senders[i].who) continue;
        for (int c = 0; c < RATE_CLASSES; c++) t->senders[i].left[c] += (double)gap_us * 1e-6 * t->limits[c].per_s;
    }
}

struct rate_sender *rate_report(struct rate_table *t, size_t *at_p)
{
    for (; *at_p < RATE_SETS * RATE_WAYS; ++*at_p) {
        struct rate_sender *s = &t->senders[*at_p];
        if (!s->who) continue;
        for (int c = 0; c < RATE_CLASSES; c++)
            if (s->ignored[c]) return ++*at_p, s;
    }
    t->report_us = 0;
    return NULL;
}
