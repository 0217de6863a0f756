#include "cli/page/page_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "common/os/run_status.h"

const char *const page_fault_names[PAGE_FAULTS] = {"fault", "evict", "leave"};

double page_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

void page_run_init(struct page_run *run)
{
    memset(run, 0, sizeof *run);
    page_run_forget(run);
}

void page_run_finish(struct page_run *run)
{
    json_t **const owned[] = {&run->status, &run->events, &run->times, &run->sent, &run->alerts};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        json_decref(*owned[i]);
        *owned[i] = NULL;
    }
}

void page_run_forget(struct page_run *run)
{
    page_run_finish(run);
    curve_reset(&run->train);
    curve_reset(&run->validation);
    run->events = json_array();
    run->times = json_object();
    run->sent = json_object();
    run->alerts = json_object();
    run->place = (struct curve_place){0};
    run->totals = (struct page_totals){0};
    run->refused = (struct page_sum){0};
    memset(run->kept, 0, sizeof run->kept);
    run->round_s = run->validation_loss = NAN;
    run->round = run->round_us = run->answered_us = 0;
    run->replaced = false;
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

/* NaN is not above. */
static void raise_to(double *total, double value)
{
    if (value > *total) *total = value;
}

/* A smaller value: its owner began again at 0. */
static void sum_take(struct page_sum *s, double value)
{
    if (!(value >= 0)) return;
    s->sum += value >= s->last ? value - s->last : value;
    s->last = value;
    s->known = true;
}

/* The coordinator counts alerts since its start: [its last value, sum] by rule. */
static void take_alerts(struct page_run *run, const json_t *status)
{
    const char *rule;
    json_t *count;
    json_object_foreach(json_object_get(status, "alerts_total"), rule, count)
    {
        const json_t *old = json_object_get(run->alerts, rule);
        if (!old && json_object_size(run->alerts) >= PAGE_TIMES_MAX) continue;
        struct page_sum s = {.last = json_number_value(json_array_get(old, 0)),
                             .sum = json_number_value(json_array_get(old, 1))};
        sum_take(&s, json_number_value(count));
        json_object_set_new(run->alerts, rule, json_pack("[f, f]", s.last, s.sum));
    }
}

/* --- events of metrics.jsonl -------------------------------------------------------------------------------------- */

/* An event that repeats within a second says so: "text (12 times in 1 s)". */
static uint64_t times_of(const json_t *event)
{
    const char *text = json_string_value(json_object_get(event, "text"));
    const char *open = text ? strrchr(text, '(') : NULL;
    char *end;
    unsigned long long n = open ? strtoull(open + 1, &end, 10) : 0;
    return n && !strncmp(end, " times in ", 10) && n < UINT32_MAX ? n : 1;
}

/* Events for people, in the page's list. */
static void keep_event(struct page_run *run, const json_t *event, const char *kind)
{
    static const char *const kinds[] = {"join",    "leave",  "evict", "fault", "link",     "note",
                                        "restart", "change", "alert", "done",  "rollback", "exclude"};
    static const char *const keys[] = {"time", "worker", "text", "round", "key", "from", "to", "rule"};
    bool shown = false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) shown |= !strcmp(kind, kinds[i]);
    if (!shown) return;
    json_t *o = json_pack("{s:s}", "kind", kind);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(event, keys[i]);
        if (value) json_object_set(o, keys[i], value);
    }
    json_array_append_new(run->events, o);
    if (json_array_size(run->events) > PAGE_EVENTS_MAX) json_array_remove(run->events, 0);
    run->n_events++;
}

static uint64_t round_of(const json_t *event)
{
    json_int_t round = json_integer_value(json_object_get(event, "round"));
    return round > 0 ? (uint64_t)round : 0;
}

/* The file that was read again goes on with an old one if its rounds do; otherwise it replaces its events. */
static void judge_replaced(struct page_run *run, uint64_t round)
{
    if (run->replaced && round <= run->round) memset(run->kept, 0, sizeof run->kept);
    run->replaced = false;
}

static void take_round(struct page_run *run, const json_t *event)
{
    uint64_t round = round_of(event);
    double round_s = page_number(event, "round_s"), eval_s = page_number(event, "eval_s"),
           up = page_number(event, "bytes_up"), down = page_number(event, "bytes_down");
    if (!round) return;
    judge_replaced(run, round);
    if (round <= run->round) { /* taken back, or repeated */
        curve_cut(&run->train, round);
        curve_cut(&run->validation, round);
        const struct page_curve *c = &run->train;
        run->place.seconds = c->n ? c->points[c->n - 1].place.seconds : 0;
        run->totals.rounds = run->totals.tokens = run->totals.bytes_up = run->totals.bytes_down = 0;
        run->totals.other_up = run->totals.other_down = 0;
    }
    run->round = round;
    run->round_s = round_s;
    run->place.seconds += (isfinite(round_s) ? round_s : 0) + (isfinite(eval_s) ? eval_s : 0);
    run->place.tokens = page_number(event, "tokens");
    run->place.bytes = up + down;
    curve_add(&run->train, round, &run->place, page_number(event, "loss"));
    raise_to(&run->totals.rounds, (double)round);
    raise_to(&run->totals.tokens, run->place.tokens);
    raise_to(&run->totals.bytes_up, up);
    raise_to(&run->totals.bytes_down, down);
    raise_to(&run->totals.other_up, page_number(event, "other_bytes_up"));
    raise_to(&run->totals.other_down, page_number(event, "other_bytes_down"));
}

/* An evaluation comes after its round: it belongs to the place of that round. */
static void take_evaluation(struct page_run *run, const json_t *event)
{
    uint64_t round = round_of(event);
    struct curve_place place = run->place;
    double tokens = page_number(event, "tokens");
    if (isfinite(tokens)) place.tokens = tokens;
    curve_add(&run->validation, round, &place, page_number(event, "val_loss"));
}

/* The last step of a round has the times of a worker's round. */
static void take_times(struct page_run *run, const json_t *event)
{
    static const char *const same[] = {"tokens_per_s", "compute_s", "send_s", "wait_s"};
    const char *name = json_string_value(json_object_get(event, "worker"));
    if (!name || (!json_object_get(run->times, name) && json_object_size(run->times) >= PAGE_TIMES_MAX)) return;
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *value = json_object_get(event, same[i]);
        if (json_is_number(value)) json_object_set(o, same[i], value);
    }
    double sent = page_number(event, "bytes_up"), before = page_number(run->sent, name),
           send_s = page_number(event, "send_s");
    if (sent > before && send_s > 0) json_object_set_new(o, "mbit", json_real((sent - before) * 8e-6 / send_s));
    if (isfinite(sent)) json_object_set_new(run->sent, name, json_real(sent));
    json_object_set_new(run->times, name, o);
}

void page_run_event(struct page_run *run, const json_t *event, const char *kind)
{
    if (!strcmp(kind, "step"))
        take_times(run, event);
    else if (!strcmp(kind, "round"))
        take_round(run, event);
    else if (!strcmp(kind, "eval"))
        take_evaluation(run, event);
    else if (!strcmp(kind, "restart"))
        json_object_clear(run->sent); /* workers may be new processes, which count from 0 */
    for (size_t i = 0; i < PAGE_FAULTS; i++)
        if (!strcmp(kind, page_fault_names[i])) run->totals.faults[i] += times_of(event);
    keep_event(run, event, kind);
}

void page_run_again(struct page_run *run)
{
    for (size_t i = 0; i < PAGE_FAULTS; i++) {
        run->kept[i] += run->totals.faults[i];
        run->totals.faults[i] = 0;
    }
    run->replaced = true;
    json_array_clear(run->events);
}

/* --- the status --------------------------------------------------------------------------------------------------- */

/* Without metrics.jsonl: a new round in the status is a point of the curves. */
static void take_rounds_of_status(struct page_run *run, const json_t *status, uint64_t now_us)
{
    uint64_t round = round_of(status);
    double wall_s = page_number(status, "wall_s"), val = page_number(status, "val_loss"),
           up = page_number(status, "bytes_up"), down = page_number(status, "bytes_down");
    if (round && round < run->round) { /* rolled back */
        curve_cut(&run->train, round + 1);
        curve_cut(&run->validation, round + 1);
        run->totals = (struct page_totals){0};
        run->round = round;
    }
    struct curve_place place = {page_number(status, "tokens"), wall_s, up + down};
    if (round > run->round) {
        double rounds = (double)(round - run->round);
        if (run->round && run->round_us) run->round_s = (double)(now_us - run->round_us) * 1e-6 / rounds;
        run->round = round;
        run->round_us = now_us;
        run->place = place;
        curve_add(&run->train, round, &place, page_number(status, "train_loss"));
    }
    if (round && isfinite(val) && val != run->validation_loss) curve_add(&run->validation, round, &place, val);
    run->validation_loss = val;
    raise_to(&run->totals.rounds, (double)round);
    raise_to(&run->totals.tokens, place.tokens);
    raise_to(&run->totals.bytes_up, up);
    raise_to(&run->totals.bytes_down, down);
    raise_to(&run->totals.other_up, page_number(status, "other_bytes_up"));
    raise_to(&run->totals.other_down, page_number(status, "other_bytes_down"));
}

static bool is_other_run(const json_t *old, const json_t *new)
{
    const char *before = json_string_value(json_object_get(old, "run_id")),
               *now = json_string_value(json_object_get(new, "run_id"));
    return before && now && strcmp(before, now) != 0;
}

bool page_run_status(struct page_run *run, json_t *status, const char *reason, uint64_t now_us)
{
    run->asked++;
    run->current = status && !reason[0];
    run->unanswered += !run->current;
    snprintf(run->reason, sizeof run->reason, "%s", reason);
    text_make_clean(run->reason); /* it may name a path that is no UTF-8 */
    if (!status) return false;
    bool other = is_other_run(run->status, status);
    if (other) page_run_forget(run);
    if (!run->from_file) take_rounds_of_status(run, status, now_us);
    raise_to(&run->totals.restarts, page_number(status, "restarts"));
    sum_take(&run->refused, page_number(status, "deltas_refused"));
    take_alerts(run, status);
    json_decref(run->status);
    run->status = json_incref(status);
    run->answered_us = now_us;
    return other;
}
