#include "coordinator/engine/state/engine_effects.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/rng.h"

enum { DRAW_STREAM = 1000 };

uint64_t engine_draw(struct engine *e)
{
    uint64_t value;
    do value = rng_u64(e->entropy, DRAW_STREAM, e->draws++);
    while (!value);
    return value;
}

struct record_clock engine_clock(const struct engine *e)
{
    struct record_clock clock = e->clock_base;
    struct engine_bytes bytes = {0};
    if (e->io.bytes) e->io.bytes(e->io.ctx, &bytes);
    assert(e->now_us >= e->start_us);
    clock.elapsed_us += e->now_us - e->start_us;
    clock.bytes_up += bytes.up;
    clock.bytes_down += bytes.down;
    clock.other_up += bytes.other_up;
    clock.other_down += bytes.other_down;
    return clock;
}

/* One call of engine_long. */
struct long_work {
    engine_long_fn *work;
    void *arg;
    struct err *err;
    enum status status;
};

static void run_long(void *arg)
{
    struct long_work *w = arg;
    w->status = w->work(w->arg, w->err);
}

enum status engine_long(struct engine *e, uint64_t bytes, engine_long_fn *work, void *arg, struct err *err)
{
    struct long_work w = {work, arg, err, STATUS_OK};
    if (e->io.meanwhile)
        e->io.meanwhile(e->io.ctx, bytes, run_long, &w);
    else
        run_long(&w);
    return w.status;
}

static enum status sync_journal(void *arg, struct err *err)
{
    return journal_sync(arg, err);
}

enum status engine_sync(struct engine *e, struct err *err)
{
    struct journal *journal = &e->ledger.journal;
    return journal->dirty ? engine_long(e, ENGINE_SYNCS, sync_journal, journal, err) : STATUS_OK;
}

enum status engine_send(struct engine *e, uint64_t peer, enum wire_lane lane, const struct msg *m)
{
    assert(msg_lane(m->type) == lane);
    return peer == SESSION_NO_PEER ? STATUS_CLOSED : e->io.send(e->io.ctx, peer, lane, m);
}

void engine_send_control(struct engine *e, const struct session *s, const struct msg *m)
{
    if (engine_send(e, s->control, WIRE_CONTROL, m) != STATUS_OK)
        log_debug("cannot send %s to %s: the worker will request it again", msg_name(m->type), s->name);
}

void engine_tell(struct engine *e, const char *text)
{
    struct msg m = {.type = MSG_NOTE};
    snprintf(m.note.text, sizeof m.note.text, "%s", text);
    for_each_session(e, s) engine_send_control(e, s, &m);
}

/* A refused worker retries: log one line a minute for each text, and at most ENGINE_REFUSALS lines a minute in all. */
bool engine_logged_recently(struct engine *e, const char *text)
{
    uint64_t hash = hash64(text, strlen(text));
    struct logged_text *place = NULL;
    for (size_t i = 0; i < ENGINE_REFUSALS; i++) {
        struct logged_text *r = &e->logged[i];
        bool live = r->hash && e->now_us < r->logged_us + ENGINE_REFUSAL_US;
        if (live && r->hash == hash) return true;
        if (!live) place = r;
    }
    if (!place) return true;
    *place = (struct logged_text){hash, e->now_us};
    return false;
}

void engine_refuse(struct engine *e, uint64_t peer, const char *name, enum refuse_code code, const char *fmt, ...)
{
    struct msg m = {.type = MSG_REFUSE, .refuse = {.code = (uint16_t)code}};
    char line[WIRE_TEXT_MAX + WIRE_NAME_MAX + 16];
    va_list args;
    va_start(args, fmt);
    vsnprintf(m.refuse.text, sizeof m.refuse.text, fmt, args);
    va_end(args);
    snprintf(line, sizeof line, "refused %s: %s", name ? name : "a worker", m.refuse.text);
    if (code != REFUSE_UNKNOWN_SESSION && !engine_logged_recently(e, line)) {
        log_info("%s", line);
        if (code == REFUSE_LAYOUT || code == REFUSE_DATASET) engine_tell(e, line); /* they may be waiting for it */
    }
    if (engine_send(e, peer, WIRE_CONTROL, &m) != STATUS_OK) log_debug("cannot send REFUSE");
}

void engine_emit(struct engine *e, const struct engine_event *event)
{
    if (e->io.event) e->io.event(e->io.ctx, event);
}

void engine_emit_text(struct engine *e, enum engine_event_kind kind, const char *worker, const char *text)
{
    struct engine_event event = {.kind = kind, .line = {.worker = worker, .text = text}};
    assert(engine_event_is_line(&event) && text);
    bool same_text = kind != ENGINE_EVENT_LEAVE; /* the worker chooses that text */
    if (kind != ENGINE_EVENT_WAITING && !repeat_note(&e->repeat, kind, worker, text, same_text, e->now_us)) return;
    engine_emit(e, &event);
}

static uint64_t notice_after(const struct engine *e)
{
    struct deadline_limit limit =
        deadline_of(&e->ledger.round.durations, 4, ENGINE_NOTICE_US, 600000000u, ENGINE_NOTICE_US);
    return limit.limit_us;
}

void engine_progress(struct engine *e)
{
    e->progress_us = e->now_us;
    e->notice_us = e->now_us + notice_after(e);
    assert(e->notice_us > e->progress_us);
}
