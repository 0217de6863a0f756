#include "cli/page/page_messages.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

enum {
    DIGITS = 7,      /* of numbers in curves: more than a screen shows */
    RETRY_MS = 2000, /* after which a browser connects again */
};

struct page_text *page_text_make(char *data, size_t size)
{
    struct page_text *text = data ? mem_alloc(1, sizeof *text) : NULL;
    if (!text) return free(data), NULL;
    atomic_store(&text->holders, 1);
    text->size = size;
    text->data = data;
    return text;
}

struct page_text *page_text_hold(struct page_text *text)
{
    if (text) atomic_fetch_add(&text->holders, 1);
    return text;
}

void page_text_drop(struct page_text *text)
{
    if (!text || atomic_fetch_sub(&text->holders, 1) > 1) return;
    free(text->data);
    mem_free(text);
}

/* --- one message -------------------------------------------------------------------------------------------------- */

/* JSON has no line ends outside its strings, and escapes those inside: one line of "data:" holds it. */
static struct page_text *message(const char *name, json_t *curves, json_t *rest)
{
    char *data = NULL;
    size_t size = 0;
    FILE *out = curves && rest ? open_memstream(&data, &size) : NULL;
    bool good = out;
    if (out) {
        fprintf(out, "retry: %d\nevent: %s\ndata: {\"curves\":", RETRY_MS, name);
        good = !json_dumpf(curves, out, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
        fputs(",\"page\":", out);
        good = good && !json_dumpf(rest, out, JSON_COMPACT | JSON_REAL_PRECISION(2 * DIGITS));
        fputs("}\n\n", out);
        good = !fclose(out) && good;
    }
    json_decref(curves);
    json_decref(rest);
    if (good) return page_text_make(data, size);
    free(data);
    return NULL;
}

static json_t *curves_of(const struct page_run *run, size_t train_from, size_t validation_from)
{
    json_t *train = curve_json(&run->train, train_from), *validation = curve_json(&run->validation, validation_from);
    return json_pack("{s:o, s:o}", "train", train, "validation", validation);
}

/* The last n events, oldest first. */
static json_t *events_of(const struct page_run *run, uint64_t n)
{
    json_t *list = json_array();
    size_t all = json_array_size(run->events), from = n < all ? all - (size_t)n : 0;
    for (size_t i = from; i < all; i++) json_array_append(list, json_array_get(run->events, i));
    return list;
}

static json_t *now_of(const struct page_run *run, uint64_t n_events)
{
    json_t *status = run->status ? json_incref(run->status) : json_null();
    json_t *age = run->answered_us ? json_real((double)(clock_monotonic_us() - run->answered_us) * 1e-6) : json_null();
    return json_pack("{s:b, s:s, s:o, s:o, s:O, s:o}", "current", run->current, "reason", run->reason, "age_s", age,
                     "status", status, "times", run->times, "events", events_of(run, n_events));
}

/* --- interface ---------------------------------------------------------------------------------------------------- */

struct page_text *page_message_full(const struct page_run *run)
{
    return message("full", curves_of(run, 0, 0), now_of(run, PAGE_EVENTS_MAX));
}

struct page_text *page_message_tick(const struct page_run *run, uint64_t *shown)
{
    uint64_t fresh = run->n_events - *shown;
    *shown = run->n_events;
    return message("tick", curves_of(run, run->train.changed, run->validation.changed), now_of(run, fresh));
}

void page_message_sent(struct page_run *run)
{
    run->train.changed = run->train.n;
    run->validation.changed = run->validation.n;
}

struct page_text *page_message_status(const struct page_run *run)
{
    char *data = NULL;
    size_t size = 0;
    FILE *out = run->status ? open_memstream(&data, &size) : NULL;
    if (!out) return NULL;
    bool good = !json_dumpf(run->status, out, JSON_COMPACT | JSON_REAL_PRECISION(17)) && fputc('\n', out) != EOF;
    good = !fclose(out) && good;
    if (good) return page_text_make(data, size);
    free(data);
    return NULL;
}
