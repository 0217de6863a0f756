/* Events in order of time: a block of a transfer leaves, a transfer ends, or the coordinator looks for something to
 * merge. What a worker does between two events follows from the schedule, and is computed at once (advance). */
#include "cli/plan/plan_rounds.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "cli/plan/plan_line.h"
#include "common/base/mem.h"
#include "common/config/codec_choice.h"
#include "common/config/sync_points.h"
#include "compress/relay.h"
#include "coordinator/round/round.h"
#include "coordinator/round/round_form.h"
#include "coordinator/round/upload.h"
#include "wire/object.h"
#include "worker/sync/sync.h"

enum { START_US = 1000000 };

struct worker_fragment {
    struct plan_flow up, down;
    struct sync_points points;
    bool applied;             /* the update of this round */
    uint64_t have, base, own; /* updates downloaded; when the round began; the one that names the delta */
    double offer_s;           /* the coordinator gets the offer of the delta; INFINITY: none under way */
    double get_s;             /* the worker requests the next update */
    double update_s;          /* the update that names the delta arrives; INFINITY: not known */
};

struct worker {
    struct plan_line up, down;
    struct sync_rate rate; /* that it assumes for downloads of one chunk */
    struct worker_fragment f[LAYOUT_FRAGMENTS_MAX];
    double next_s;                /* its next event */
    double now_s;                 /* it has worked until then */
    double task_s;                /* its next assignment arrives; INFINITY: it has none */
    double ready_s;               /* the coordinator hears that it is ready; INFINITY: it did, or the worker is not */
    bool told;                    /* it is ready, and has said so */
    double offered_s;             /* its last delta was made */
    double delivered_s;           /* it knows that its last delta has arrived */
    double heard_s;               /* its last update arrived */
    double saved_s;               /* its last save ends */
    double foreign_s;             /* time to apply updates that do not name it */
    double step_s;                /* of one inner step */
    uint32_t id, step;            /* step: of the running round */
    struct round_grant now, next; /* the running round, and the next assignment */
    double parts_s[PLAN_PARTS];
};

struct model {
    const struct plan_setup *setup;
    struct config config;
    uint32_t n_fragments;
    struct worker *workers;
    struct round round;                        /* decides what is merged when, and who gets which steps */
    struct round_grant *grants;                /* [workers] */
    double update_bytes[LAYOUT_FRAGMENTS_MAX]; /* of the newest update */
    double busy_s;                             /* the coordinator works until then */
    double batch_s;  /* it reads what arrived until then before it looks; -INFINITY: nothing has arrived */
    double look_s;   /* it looks for something to merge; INFINITY: when the next delta arrives */
    double unsynced; /* bytes of the journal that are not fsynced */
    enum status status;
    struct plan_mark *marks; /* [rounds + 1]; the first is the start */
    size_t n, n_max;         /* rounds that have ended; all of them */
};

/* The run begins after a second: to the round machine 0 is no time. */
static uint64_t plan_us(double seconds)
{
    return (uint64_t)(seconds * 1e6 + 0.5) + START_US;
}

static const struct plan_fragment *cost_of(const struct model *m, uint32_t fragment)
{
    return &m->setup->costs->fragments[fragment];
}

/* --- a worker ----------------------------------------------------------------------------------------------------- */

static void spend(struct worker *w, enum plan_part part, double seconds)
{
    w->parts_s[part] += seconds;
    w->now_s += seconds;
}

static void idle(struct worker *w, double until_s)
{
    if (until_s <= w->now_s) return;
    double sending = fmin(fmax(0, w->delivered_s - w->now_s), until_s - w->now_s);
    spend(w, PLAN_SEND, sending);
    spend(w, PLAN_WAIT, until_s - w->now_s);
}

/* A message that arrives during training is read after the step. */
static double heard_s(const struct worker *w, double at_s)
{
    if (at_s >= w->now_s) return at_s;
    return fmax(at_s, w->now_s - floor((w->now_s - at_s) / w->step_s + 1e-6) * w->step_s);
}

/* Fsyncs the journal, if this run does so at updates. */
static void sync_journal(struct model *m)
{
    const struct plan_costs *costs = m->setup->costs;
    if (config_syncs_updates(&m->config)) m->busy_s += costs->sync_s + m->unsynced * costs->sync_byte_s;
    m->unsynced = 0;
}

/* Makes the deltas whose sync point the round has reached, and offers them behind `before` bytes of other messages. */
static void send_deltas(struct model *m, struct worker *w, double before)
{
    const struct plan_costs *costs = m->setup->costs;
    uint64_t every = config_saves_auto(&m->config) ? 0 : config_save_every(&m->config); /* auto: beside the training */
    uint32_t last = 0;
    bool any = false;
    for (uint32_t i = 0; i < m->n_fragments; i++) {
        if (w->f[i].points.sent > last) last = w->f[i].points.sent;
        if (w->f[i].points.sent != w->step) continue;
        spend(w, PLAN_COMPRESS, cost_of(m, i)->compress_s);
        any = true;
    }
    if (!any) return;
    if (last == w->step && w->saved_s <= w->now_s && every && w->now.round % every == 0)
        w->saved_s = w->now_s + costs->save_s;
    w->offered_s = w->now_s;
    for (uint32_t i = 0; i < m->n_fragments; i++) {
        struct worker_fragment *f = &w->f[i];
        if (f->points.sent != w->step) continue;
        before += plan_message_bytes(MSG_OFFER, 0);
        f->offer_s = plan_line_pass(&w->up, w->now_s, before);
    }
}

/* Applies the updates that are due at this step. False: one of them is not known yet. */
static bool take_updates(struct model *m, struct worker *w)
{
    for (uint32_t i = 0; i < m->n_fragments; i++) {
        const struct worker_fragment *f = &w->f[i];
        if (!f->applied && f->points.applied <= w->step && f->update_s == INFINITY) return false;
    }
    for (uint32_t i = 0; i < m->n_fragments; i++) {
        struct worker_fragment *f = &w->f[i];
        if (f->applied || f->points.applied > w->step) continue;
        idle(w, sync_overlaps(&m->config) ? f->update_s : fmax(f->update_s, w->saved_s));
        spend(w, PLAN_APPLY, cost_of(m, i)->apply_s);
        f->applied = true;
    }
    return true;
}

static bool begin_round(struct model *m, struct worker *w)
{
    if (w->task_s == INFINITY && !w->told)
        w->ready_s = plan_line_pass(&w->up, w->now_s, plan_message_bytes(MSG_HEARTBEAT, m->n_fragments));
    w->told = true;
    if (w->task_s == INFINITY) return false;
    const struct member *member = member_by_id(&m->round.members, w->id);
    for (uint32_t i = 0; i < m->n_fragments; i++)
        if (w->f[i].have < member->work.versions[i]) return false;
    idle(w, fmax(w->task_s, w->heard_s));
    w->now = w->next;
    w->told = false;
    w->task_s = INFINITY;
    w->step = 0;
    bool whole = sync_points_whole(&m->config, w->now.step0, w->now.step_rate, w->now.steps);
    for (uint32_t i = 0; i < m->n_fragments; i++) {
        struct worker_fragment *f = &w->f[i];
        f->applied = false;
        f->update_s = INFINITY;
        f->base = f->have;
        f->points = sync_points_of(&m->config, i, m->n_fragments, w->now.steps, whole);
    }
    /* Its state changes four times a round. */
    (void)plan_line_pass(&w->up, w->now_s, 4 * plan_message_bytes(MSG_HEARTBEAT, m->n_fragments));
    send_deltas(m, w, 0); /* train.overlap is H */
    return true;
}

/* Trains to the next point of the round. */
static void train(struct model *m, struct worker *w)
{
    uint32_t next = w->now.steps;
    for (uint32_t i = 0; i < m->n_fragments; i++) {
        const struct sync_points *p = &w->f[i].points;
        if (p->sent > w->step && p->sent < next) next = p->sent;
        if (p->applied > w->step && p->applied < next) next = p->applied;
    }
    uint32_t steps = next - w->step;
    w->now_s += m->setup->costs->place_s;
    spend(w, PLAN_APPLY, w->foreign_s);
    w->foreign_s = 0;
    spend(w, PLAN_COMPUTE, steps * w->step_s);
    w->step = next;
    send_deltas(m, w, plan_message_bytes(MSG_METRICS, steps));
}

/* Of times that are numbers, so that it is one instruction: models of billions of parameters have 240 fragments. */
static double earlier(double a, double b)
{
    return a < b ? a : b;
}

static void find_next(const struct model *m, struct worker *w)
{
    w->next_s = w->ready_s;
    for (uint32_t i = 0; i < m->n_fragments; i++)
        w->next_s = earlier(earlier(w->next_s, w->f[i].offer_s), earlier(w->f[i].up.at_s, w->f[i].down.at_s));
}

/* The worker goes on until it waits for an update or an assignment. */
static void advance(struct model *m, struct worker *w)
{
    while (take_updates(m, w)) {
        if (w->step == w->now.steps && !begin_round(m, w)) break;
        train(m, w);
    }
    find_next(m, w);
}

/* --- the coordinator ---------------------------------------------------------------------------------------------- */

static void keep(struct model *m, enum status status)
{
    if (m->status == STATUS_OK) m->status = status;
}

static void note_end(struct model *m)
{
    round_note_close(&m->round, plan_us(m->busy_s));
    struct plan_mark *mark = &m->marks[++m->n];
    *mark = (struct plan_mark){.at_s = m->busy_s};
    for (uint32_t i = 0; i < m->setup->workers; i++) {
        const struct worker *w = &m->workers[i];
        mark->up += w->up.bytes;
        mark->down += w->down.bytes;
        for (int p = 0; p < PLAN_PARTS; p++) mark->parts_s[p] += w->parts_s[p];
    }
}

static void deliver(struct model *m, struct worker *w, uint32_t fragment)
{
    struct worker_fragment *f = &w->f[fragment];
    if (m->batch_s > -INFINITY && f->up.at_s > m->batch_s) {
        f->up.at_s = m->busy_s + 1e-9;
        return;
    }
    if (m->batch_s == -INFINITY) m->batch_s = fmax(m->busy_s, f->up.at_s);
    const struct config *c = &m->config;
    uint64_t bytes = cost_of(m, fragment)->up_bytes, samples = (uint64_t)w->now.steps * m->round.p.step_samples;
    struct round_offer offer = {.round = w->now.round,
                                .base_version = f->base,
                                .bytes = bytes,
                                .tokens = samples * c->model.block_size,
                                .fragment = fragment,
                                .steps = w->now.steps,
                                .form = round_delta_form(c, false)};
    struct part part = {.base_version = f->base,
                        .tokens = offer.tokens,
                        .bytes = bytes,
                        .steps = w->now.steps,
                        .compute_us = (uint64_t)(1e6 * w->now.steps * w->step_s),
                        .norm = 1};
    const struct member *member = member_by_id(&m->round.members, w->id);
    uint16_t code = 0;
    const char *reason;
    /* The payload was written to the spool; it is read, and written to the journal. */
    m->busy_s =
        fmax(m->busy_s, f->up.at_s) + cost_of(m, fragment)->deliver_s + 3 * (double)bytes * m->setup->costs->byte_s;
    m->unsynced += (double)bytes;
    f->up.at_s = INFINITY;
    w->delivered_s = plan_line_pass(&w->down, m->busy_s, plan_message_bytes(MSG_CREDIT, 0));
    m->look_s = m->busy_s;
    if (round_judge(&m->round, member, &offer, &code, &reason) == ROUND_ACCEPT) {
        keep(m, round_fold_delta(&m->round, w->id, offer.round, fragment, &part));
        round_note_delivery(&m->round, member, fragment, plan_us(m->busy_s));
    } else { /* stale */
        keep(m, round_fold_drop(&m->round, w->id, offer.round, fragment, code));
        f->update_s = w->delivered_s;
        advance(m, w);
        while (m->n < round_done(&m->round)) note_end(m);
    }
}

/* Gives work to the workers that the round machine names. */
static bool open_work(struct model *m)
{
    struct round_open open = {.grants = m->grants};
    if (round_over(&m->round) || round_plan(&m->round, plan_us(m->busy_s), &open) != STATUS_OK || !open.n) return false;
    sync_journal(m);
    keep(m, round_fold_open(&m->round, &open));
    round_note_open(&m->round, plan_us(m->busy_s));
    for (uint32_t i = 0; i < open.n; i++) {
        struct worker *w = &m->workers[open.grants[i].id];
        member_by_id(&m->round.members, w->id)->ready = false;
        w->next = open.grants[i];
        w->task_s = plan_line_pass(&w->down, m->busy_s, plan_message_bytes(MSG_ASSIGN, m->n_fragments));
    }
    return true;
}

/* The worker's next update carries its own delta, which it does not download. */
static bool leaves_out_own(const struct model *m, const struct worker *w, uint32_t fragment)
{
    return cost_of(m, fragment)->relayed && w->f[fragment].own == w->f[fragment].have + 1;
}

/* The window that the worker reaches on this link. */
static double window(const struct worker *w, const struct plan_line *line)
{
    double rtt_us = 1e6 * (w->up.delay_s + w->down.delay_s);
    struct sync_rate rate = {.best = line->byte_s > 0 ? 1 / line->byte_s : 1e12};
    return (double)sync_window(&rate, (uint64_t)rtt_us);
}

/* The first bytes of the update come too late: the worker asks again, and gets them twice. It does not know the rate of
 * a link that brings each object in one chunk, and assumes half of it each time. */
static void ask_again(struct worker *w, const struct worker_fragment *f, double started_s, double bytes)
{
    const double least_s = 1e-6 * SYNC_RETRY_MIN_US, most_s = 1e-6 * SYNC_RETRY_MAX_US;
    double first_s = fmax(least_s, 4 * (w->up.delay_s + w->down.delay_s) + 2 * bytes / w->rate.per_s);
    double wait_s = first_s, at_s = wait_s + fmax(f->get_s, w->offered_s);
    for (; at_s + w->up.delay_s < started_s; at_s += wait_s) wait_s = fmin(2 * wait_s, most_s); /* parked */
    at_s = fmax(at_s, fmax(w->delivered_s, w->heard_s) + first_s);
    if (at_s >= f->down.last_s) return;
    plan_line_send(&w->down, at_s, bytes);
    sync_rate_too_high(&w->rate);
}

/* Sends the next block of an update. */
static void send_block(struct model *m, struct worker *w, uint32_t fragment)
{
    struct plan_flow *down = &w->f[fragment].down;
    uint32_t open = 0; /* objects whose bytes arrive share the window */
    for (uint32_t i = 0; i < m->n_fragments; i++) open += w->f[i].down.left > 0;
    double started_s = down->at_s, bytes = down->left;
    plan_flow_block(down, &w->down, window(w, &w->down) / 2 / open);
    if (!(down->left > 0) && down->before_s == -INFINITY && bytes <= SYNC_CHUNK && !leaves_out_own(m, w, fragment))
        ask_again(w, &w->f[fragment], started_s, bytes);
    if (!(down->left > 0) || down->before_s == -INFINITY) return;
    double get_s = plan_line_pass(&w->up, heard_s(w, down->before_s), plan_message_bytes(MSG_GET, 0));
    down->at_s = fmax(down->at_s, get_s);
}

/* Starts the downloads of updates, and continues those whose next request waits for the coordinator. */
static void serve(struct model *m, struct worker *w)
{
    for (uint32_t i = 0; i < m->n_fragments; i++) {
        struct worker_fragment *f = &w->f[i];
        if (f->down.at_s == INFINITY && f->have < m->round.versions[i]) {
            double bytes = m->update_bytes[i] - (leaves_out_own(m, w, i) ? (double)cost_of(m, i)->up_bytes : 0);
            double asked_s = plan_line_pass(&w->up, f->get_s, plan_message_bytes(MSG_GET, 0));
            plan_flow_start(&f->down, asked_s, plan_object_bytes(bytes));
        }
        while (f->down.left > 0 && f->down.at_s <= m->busy_s) {
            f->down.at_s = m->busy_s;
            send_block(m, w, i);
        }
    }
}

static double object_bytes(const struct model *m, uint32_t fragment, uint32_t named)
{
    const struct plan_fragment *cost = cost_of(m, fragment);
    struct update u = {.n_named = named, .codec = "relay"};
    if (!cost->relayed) config_down_spec(&m->config, false, u.codec);
    double head = (double)update_encoded_size(&u);
    if (!cost->relayed) return head + (double)cost->down_bytes;
    return head + (double)relay_head_size(named) + (double)named * (double)cost->up_bytes;
}

static void merge(struct model *m, const struct round_close *close)
{
    struct round_named named[PLAN_WORKERS_MAX];
    const struct plan_fragment *cost = cost_of(m, close->fragment);
    double byte_s = m->setup->costs->byte_s, bytes = object_bytes(m, close->fragment, close->n);
    uint64_t version = m->round.versions[close->fragment] + 1;
    m->update_bytes[close->fragment] = bytes;
    m->unsynced += bytes;
    m->busy_s += close->n * (cost->merge_s + (double)cost->up_bytes * byte_s) + cost->outer_s + bytes * byte_s;
    sync_journal(m);
    for (uint32_t i = 0; i < close->n; i++) {
        m->workers[close->ids[i]].f[close->fragment].own = version;
        named[i] = (struct round_named){close->ids[i], m->workers[close->ids[i]].now.round};
    }
    keep(m, round_fold_update(&m->round, close->fragment, version, named, close->n));
    round_note_update(&m->round, close->fragment, plan_us(m->busy_s));
    while (m->n < round_done(&m->round)) note_end(m);
}

/* Merges what can be merged, gives work, and sends updates. */
static void look(struct model *m)
{
    struct round_close close;
    bool any = true, changed = false;
    m->busy_s = fmax(m->busy_s, m->look_s);
    m->batch_s = -INFINITY;
    for (; any && m->status == STATUS_OK; changed = changed || any) {
        any = false;
        for (; m->status == STATUS_OK && round_next_close(&m->round, plan_us(m->busy_s), &close); any = true)
            merge(m, &close);
        round_note_idle(&m->round, plan_us(m->busy_s));
        any = open_work(m) || any;
        for (uint32_t i = 0; any && i < m->setup->workers; i++) serve(m, &m->workers[i]);
    }
    uint64_t next_us = round_deadline_us(&m->round);
    m->look_s = next_us == UINT64_MAX ? INFINITY : fmax(1e-6 * ((double)next_us - START_US), m->busy_s + 1e-6);
    for (uint32_t i = 0; changed && i < m->setup->workers; i++) advance(m, &m->workers[i]);
}

/* --- events ------------------------------------------------------------------------------------------------------- */

static void updated(struct model *m, struct worker *w, uint32_t fragment)
{
    struct worker_fragment *f = &w->f[fragment];
    double at_s = heard_s(w, f->down.at_s), apply_s = cost_of(m, fragment)->apply_s;
    f->have++;
    round_note_have(&m->round, w->id, fragment, f->have);
    if (f->have == f->own)
        f->update_s = f->down.at_s;
    else
        w->foreign_s += apply_s;
    f->down.at_s = INFINITY;
    f->get_s = at_s + apply_s;
    w->heard_s = at_s;
    serve(m, w);
    advance(m, w);
}

/* The coordinator grants the first window. */
static void offered(struct model *m, struct worker *w, uint32_t fragment)
{
    struct worker_fragment *f = &w->f[fragment];
    double at_s = f->offer_s;
    f->offer_s = m->busy_s;
    if (at_s < m->busy_s) return;
    f->offer_s = INFINITY;
    round_note_offer(&m->round, member_by_id(&m->round.members, w->id), plan_us(at_s));
    double credit_s = plan_line_pass(&w->down, at_s, plan_message_bytes(MSG_CREDIT, 0));
    plan_flow_start(&f->up, credit_s, plan_object_bytes((double)cost_of(m, fragment)->up_bytes));
}

static void upload_goes_on(struct model *m, struct worker *w, uint32_t fragment)
{
    struct plan_flow *up = &w->f[fragment].up;
    double at_s = heard_s(w, up->at_s);
    if (!(up->left > 0)) {
        deliver(m, w, fragment);
        return;
    }
    /* During a save the fragments start one after the other (worker/sync/sync.h: sync_unsaved). */
    if (w->saved_s > at_s && up->last_s == -INFINITY) at_s = fmax(at_s, w->up.free_s);
    if (at_s > up->at_s) {
        up->at_s = at_s;
        return;
    }
    plan_flow_block(up, &w->up, window(w, &w->up) / 2);
    if (up->left > 0 && up->before_s > -INFINITY) {
        double credit_s = plan_line_pass(&w->down, fmax(up->before_s, m->busy_s), plan_message_bytes(MSG_CREDIT, 0));
        up->at_s = fmax(up->at_s, credit_s);
    } else if (!(up->left > 0) && w->saved_s > w->up.free_s) { /* the last byte waits for the save */
        plan_flow_start(up, w->saved_s, plan_object_bytes(1));
    }
}

static void download_goes_on(struct model *m, struct worker *w, uint32_t fragment)
{
    struct plan_flow *down = &w->f[fragment].down;
    if (!(down->left > 0))
        updated(m, w, fragment);
    else if (down->at_s < m->busy_s)
        down->at_s = m->busy_s;
    else
        send_block(m, w, fragment);
}

/* The worker's next event. */
static void worker_event(struct model *m, struct worker *w)
{
    if (w->ready_s == w->next_s) {
        member_by_id(&m->round.members, w->id)->ready = true;
        m->look_s = fmin(m->look_s, fmax(m->busy_s, w->ready_s));
        w->ready_s = INFINITY;
    }
    bool any = false;
    for (uint32_t i = 0; i < m->n_fragments && !any; i++) { /* one event: the first fragment goes first */
        struct worker_fragment *f = &w->f[i];
        any = earlier(f->offer_s, earlier(f->up.at_s, f->down.at_s)) == w->next_s;
        if (f->offer_s == w->next_s)
            offered(m, w, i);
        else if (f->up.at_s == w->next_s)
            upload_goes_on(m, w, i);
        else if (f->down.at_s == w->next_s)
            download_goes_on(m, w, i);
    }
    find_next(m, w);
}

/* Bytes to all workers until each has the last update. */
static double whole_down(const struct model *m)
{
    double bytes = 0;
    for (uint32_t i = 0; i < m->setup->workers; i++) {
        const struct worker *w = &m->workers[i];
        bytes += w->down.bytes;
        for (uint32_t f = 0; f < m->n_fragments; f++) {
            uint64_t more = m->round.versions[f] - w->f[f].have;
            bool begun = w->f[f].down.at_s < INFINITY;
            bytes += begun ? w->f[f].down.left : 0;
            if (more > begun) bytes += (double)(more - begun) * plan_object_bytes(m->update_bytes[f]);
            if (more > begun && leaves_out_own(m, w, f)) bytes -= (double)cost_of(m, f)->up_bytes;
        }
    }
    return bytes;
}

static enum status run(struct model *m)
{
    for (uint32_t i = 0; i < m->setup->workers; i++) {
        uint8_t uuid[WIRE_UUID] = {(uint8_t)i, (uint8_t)(i >> 8), 1};
        char name[WIRE_NAME_MAX];
        snprintf(name, sizeof name, "worker-%u", i);
        TRY(round_fold_join(&m->round, i, uuid, name));
        member_by_id(&m->round.members, i)->ready = true;
        for (uint32_t f = 0; f < m->n_fragments; f++) round_note_have(&m->round, i, f, 0);
    }
    look(m);
    while (m->status == STATUS_OK && m->n < m->n_max) {
        struct worker *first = &m->workers[0];
        for (uint32_t i = 1; i < m->setup->workers; i++)
            if (m->workers[i].next_s < first->next_s) first = &m->workers[i];
        if (m->look_s == INFINITY && first->next_s == INFINITY) return STATUS_STATE;
        if (m->look_s < first->next_s)
            look(m);
        else
            worker_event(m, first);
    }
    m->marks[m->n].down = whole_down(m); /* a run ends when they have it */
    return m->status;
}

static enum status model_init(struct model *m, const struct plan_setup *setup, struct plan_mark *marks)
{
    *m = (struct model){
        .setup = setup, .config = *setup->config, .n_fragments = setup->costs->n_fragments, .marks = marks};
    struct sync_rounds rounds = sync_rounds_of(&m->config);
    m->n_max = sync_rounds_count(&rounds);
    m->batch_s = -INFINITY;
    m->config.coordinator.min_workers = setup->workers;
    /* A plan has no late workers, so no round ends before all deltas have arrived. */
    snprintf(m->config.coordinator.quorum, sizeof m->config.coordinator.quorum, "all");
    round_init(&m->round, &m->config, m->n_fragments);
    m->grants = mem_alloc(setup->workers, sizeof *m->grants);
    m->workers = mem_alloc(setup->workers, sizeof *m->workers);
    if (!m->workers || !m->grants) return STATUS_NOMEM;
    for (uint32_t i = 0; i < setup->workers; i++) {
        struct worker *w = &m->workers[i];
        plan_line_init(&w->up, &setup->links[i], false);
        plan_line_init(&w->down, &setup->links[i], true);
        sync_rate_init(&w->rate, 0);
        w->id = i;
        w->step_s = setup->steps_s ? setup->steps_s[i] : setup->costs->step_s;
        w->task_s = w->ready_s = INFINITY;
        w->told = true;
        for (uint32_t f = 0; f < m->n_fragments; f++) {
            w->f[f].applied = true;
            w->f[f].offer_s = w->f[f].up.at_s = w->f[f].down.at_s = INFINITY;
        }
    }
    return STATUS_OK;
}

enum status plan_rounds(struct plan_mark *marks, const struct plan_setup *setup)
{
    assert(setup->workers > 0 && setup->workers <= PLAN_WORKERS_MAX);
    struct model *m = mem_alloc(1, sizeof *m);
    if (!m) return STATUS_NOMEM;
    enum status status = model_init(m, setup, marks);
    if (status == STATUS_OK) status = run(m);
    round_finish(&m->round);
    mem_free(m->workers);
    mem_free(m->grants);
    mem_free(m);
    return status;
}
