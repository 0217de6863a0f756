#include "cli/alert/alert_follow.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"
#include "common/base/units.h"
#include "common/os/run_status.h"
#include "common/os/run_text.h"

/* --- messages ----------------------------------------------------------------------------------------------------- */

/* NULL: too many rules. */
static struct alert_slot *slot_of(struct alert_follow *f, const char *rule)
{
    for (unsigned i = 0; i < f->n_slots; i++)
        if (!strcmp(f->slots[i].message.rule, rule)) return &f->slots[i];
    if (f->n_slots == ALERT_FOLLOW_RULES) return NULL;
    struct alert_slot *slot = &f->slots[f->n_slots++];
    *slot = (struct alert_slot){.due = false};
    snprintf(slot->message.rule, sizeof slot->message.rule, "%s", rule);
    return slot;
}

/* The rule has something to tell; what it had not told yet is replaced. */
static void tell(struct alert_follow *f, const char *rule, const char *worker, bool starts, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

static void tell(struct alert_follow *f, const char *rule, const char *worker, bool starts, const char *fmt, ...)
{
    struct alert_slot *slot = slot_of(f, rule);
    va_list args;
    if (!slot) return;
    struct alert_message *m = &slot->message;
    m->more = slot->due ? m->more + 1 : 0;
    m->starts = starts;
    snprintf(m->worker, sizeof m->worker, "%s", worker);
    va_start(args, fmt);
    vsnprintf(m->text, sizeof m->text, fmt, args);
    va_end(args);
    text_make_clean(m->text);
    slot->due = true;
    slot->tries = 0;
}

bool alert_follow_next(struct alert_follow *f, uint64_t now_us, struct alert_message *message)
{
    for (unsigned i = 0; i < f->n_slots; i++) {
        struct alert_slot *slot = &f->slots[i];
        if (!slot->due || (slot->sent_us && now_us - slot->sent_us < ALERT_FOLLOW_US)) continue;
        *message = slot->message;
        return true;
    }
    return false;
}

void alert_follow_sent(struct alert_follow *f, const struct alert_message *message, bool success, uint64_t now_us)
{
    struct alert_slot *slot = slot_of(f, message->rule);
    assert(slot && now_us > 0);
    slot->sent_us = now_us;
    slot->due = !success && ++slot->tries < ALERT_TRIES;
    if (!slot->due) slot->message.more = 0;
}

bool alert_follow_waits(const struct alert_follow *f)
{
    for (unsigned i = 0; i < f->n_slots; i++)
        if (f->slots[i].due) return true;
    return false;
}

/* --- alerts of the coordinator ------------------------------------------------------------------------------------ */

static void take_text(const json_t *o, const char *key, char *out, size_t cap)
{
    const char *value = json_string_value(json_object_get(o, key));
    snprintf(out, cap, "%s", value ? value : "");
    text_make_clean(out);
}

static unsigned count_of(const struct alert_fires *list, unsigned n, const struct alert_fires *like)
{
    unsigned count = 0;
    for (unsigned i = 0; i < n; i++)
        count += !strcmp(list[i].rule, like->rule) && !strcmp(list[i].worker, like->worker);
    return count;
}

/* A rule may fire more than once for the same worker, or for none: their number decides. The list is in order of time,
 * so the last ones are new. */
static void compare(struct alert_follow *f, const struct alert_fires *now, unsigned n_now)
{
    for (unsigned i = 0; i < n_now; i++) {
        unsigned before = count_of(f->fires, f->n_fires, &now[i]);
        if (count_of(now, i + 1, &now[i]) > before) tell(f, now[i].rule, now[i].worker, true, "%s", now[i].text);
    }
    for (unsigned i = 0; i < f->n_fires; i++) {
        const struct alert_fires *old = &f->fires[i];
        if (count_of(f->fires, i + 1, old) > count_of(now, n_now, old))
            tell(f, old->rule, old->worker, false, "over: %s", old->text);
    }
}

static void take_alerts(struct alert_follow *f, const json_t *status)
{
    static struct alert_fires now[ALERT_FOLLOW_MOST]; /* large */
    const json_t *alerts = json_object_get(status, "alerts");
    unsigned n = 0;
    size_t i;
    json_t *alert;
    if (!json_is_array(alerts)) return;
    json_array_foreach(alerts, i, alert)
    {
        if (n == ALERT_FOLLOW_MOST) break;
        take_text(alert, "rule", now[n].rule, sizeof now[n].rule);
        take_text(alert, "worker", now[n].worker, sizeof now[n].worker);
        take_text(alert, "text", now[n].text, sizeof now[n].text);
        n += now[n].rule[0] != '\0';
    }
    compare(f, now, n);
    memcpy(f->fires, now, n * sizeof *now);
    f->n_fires = n;
}

/* --- seen from outside -------------------------------------------------------------------------------------------- */

/* stopped: its folder says so. */
static void note_away(struct alert_follow *f, bool stopped, const char *why, uint64_t now_us)
{
    const char *budget = "";
    if (!f->away_us) f->away_us = now_us;
    if (f->away || now_us - f->away_us < f->away_after_us) return;
    f->away = true;
    bool was_due = f->answer_us && f->eta_s * 1e6 <= (double)(now_us - f->answer_us);
    if (was_due && !stopped) {
        f->done = true;
        tell(f, "done", "", true,
             "the coordinator is gone, as expected at the end of the run; its last answer was at round %lld of %lld, "
             "%s before the end",
             f->round, f->rounds, units_whole_seconds(f->eta_s).text);
        return;
    }
    for (unsigned i = 0; i < f->n_fires; i++)
        if (!strcmp(f->fires[i].rule, "budget")) budget = f->fires[i].text;
    tell(f, "away", "", true, "%s%s%s", why, budget[0] ? "; before: " : "", budget);
}

static void note_back(struct alert_follow *f, uint64_t now_us)
{
    if (f->away)
        tell(f, "away", "", false, "over: the coordinator answers again, after %s",
             units_whole_seconds((double)(now_us - f->away_us) * 1e-6).text);
    f->away = false;
    f->away_us = 0;
}

static void note_done(struct alert_follow *f, const json_t *status)
{
    const json_t *rounds = json_object_get(status, "rounds"), *loss = json_object_get(status, "final_val_loss");
    char losses[64] = "";
    f->done = true;
    for (unsigned i = 0; i < f->n_slots; i++) f->slots[i].due = f->slots[i].due && f->slots[i].message.starts;
    if (json_is_number(loss))
        snprintf(losses, sizeof losses, ", final validation loss %s", run_text_loss(json_number_value(loss)).text);
    if (f->answer_us) /* otherwise it was done before anybody watched */
        tell(f, "done", "", true, "the run is done: %lld rounds%s", (long long)json_integer_value(rounds), losses);
}

void alert_follow_answer(struct alert_follow *f, const json_t *status, const char *why, uint64_t now_us)
{
    assert(now_us > 0 && !f->done);
    if (status) take_text(status, "run", f->run, sizeof f->run);
    if (!status || run_status_is(status, "stopped")) {
        note_away(f, status != NULL, why, now_us);
        return;
    }
    note_back(f, now_us);
    const json_t *eta = json_object_get(status, "eta_s");
    f->eta_s = json_is_number(eta) ? json_number_value(eta) : NAN;
    f->round = json_integer_value(json_object_get(status, "round"));
    f->rounds = json_integer_value(json_object_get(status, "rounds"));
    if (run_status_is(status, "done"))
        note_done(f, status);
    else
        take_alerts(f, status);
    f->answer_us = now_us;
}

void alert_follow_refused(struct alert_follow *f, const char *why, uint64_t now_us)
{
    assert(now_us > 0 && !f->done);
    if (!f->away_us) f->away_us = now_us;
    if (!f->away) tell(f, "away", "", true, "%s", why);
    f->away = true;
}
