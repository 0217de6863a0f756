#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/plan/plan.h"
#include "common/base/units.h"
#include "common/config/config.h"

/* A run whose workers compute for this share of the time is not slowed by its link. */
static const double busy_enough = 0.9;
/* A further change must shorten the run by this share to be worth its effect on the loss. */
static const double worth = 0.05;

enum { STEPS_OF_CHANGES = 3 };

/* Codecs by bits per parameter, the most first: later ones cost more loss (docs/results.md). */
static const struct {
    const char *up, *down;
} codecs[] = {
    {"fp32", "fp32"},
    {"int8:256", "int8:256"},
    {"int4:256+huff", "int4:256+huff"},
    {"2bit:256+huff", "2bit:256+huff"},
    {"1bit:256", "2bit:256+huff"},
    {"topk:64/4096+sign", "auto"},
};
enum { N_CODECS = sizeof codecs / sizeof *codecs };

static void change(struct plan_neighbour *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void change(struct plan_neighbour *n, const char *fmt, ...)
{
    va_list args;
    assert(n->changes.n < PLAN_CHANGES_MAX);
    va_start(args, fmt);
    vsnprintf(n->changes.words[n->changes.n++], PLAN_CHANGE_MAX, fmt, args);
    va_end(args);
}

/* Lists a neighbour of the configuration that consists of `changes`. */
static struct plan_neighbour *add(struct plan_choice *choice, const struct plan_changes *changes)
{
    assert(choice->n < PLAN_NEIGHBOURS_MAX);
    struct plan_neighbour *n = &choice->neighbours[choice->n++];
    n->changes = *changes;
    return n;
}

static void add_number(struct plan_choice *choice, const struct plan_changes *changes, const char *name,
                       const char *key, uint32_t value)
{
    struct plan_neighbour *n = add(choice, changes);
    snprintf(n->what, sizeof n->what, "%s %u", name, value);
    change(n, "--train.%s=%u", key, value);
}

/* In the order in which they are recommended: those that cost the least loss first. */
static void list_neighbours(struct plan_choice *choice, const struct config *c, const struct plan_changes *changes)
{
    uint32_t h = c->train.sync_every;
    bool ddp = c->train.method == METHOD_DDP;
    choice->n = 0;
    for (int i = 0; i < N_CODECS && !ddp; i++) {
        if (!strcmp(codecs[i].up, c->codec.up)) continue;
        struct plan_neighbour *n = add(choice, changes);
        snprintf(n->what, sizeof n->what, "codec %s, down %s", codecs[i].up, codecs[i].down);
        change(n, "--codec.up=%s", codecs[i].up);
        change(n, "--codec.down=%s", codecs[i].down);
        /* SparseLoCo (2508.15706) has no outer momentum. */
        if (c->train.method == METHOD_DILOCO && !strncmp(codecs[i].up, "topk", 4))
            change(n, "--train.method=local-sgd");
    }
    if (!ddp && h >= 8 && c->train.overlap != h / 4) add_number(choice, changes, "overlap", "overlap", h / 4);
    if (!ddp && c->train.overlap) add_number(choice, changes, "overlap", "overlap", 0);
    for (uint32_t by = 2; by <= 8 && !ddp && h <= UINT32_MAX / 8; by *= 2)
        if ((uint64_t)h * by <= c->train.max_steps / 4) add_number(choice, changes, "H", "sync_every", h * by);
    for (uint32_t by = 2; by <= 4 && !ddp; by *= 2)
        if (h / by) add_number(choice, changes, "H", "sync_every", h / by);
    for (enum train_method m = METHOD_DDP; m <= METHOD_ASYNC; m++) {
        if (m == c->train.method) continue;
        struct plan_neighbour *n = add(choice, changes);
        snprintf(n->what, sizeof n->what, "method %s", config_method_name(m));
        change(n, "--train.method=%s", config_method_name(m));
    }
}

/* Plans the neighbours of a configuration that itself consists of `changes`. */
static enum status plan_all(struct plan_choice *choice, const struct config *of, const struct plan_changes *changes,
                            const struct plan_request *request, struct err *err)
{
    struct err ignored;
    uint32_t kept = 0;
    list_neighbours(choice, of, changes);
    for (uint32_t i = 0; i < choice->n; i++) {
        struct plan_neighbour *n = &choice->neighbours[i];
        progress_show(request->progress, "planning %u of %u other settings: %s", i + 1, choice->n, n->what);
        enum status status = plan_make(&n->plan, request, &n->changes, NULL, &ignored);
        if (status == STATUS_NOMEM) return err_set(err, status, "%s", ignored.msg);
        if (status == STATUS_OK) choice->neighbours[kept++] = *n;
    }
    choice->n = kept;
    return STATUS_OK;
}

/* The neighbour is faster because it sends less, or because workers train during transfers. */
static bool saves(const struct plan_neighbour *n, const struct plan *than)
{
    uint64_t bytes = n->plan.run.bytes_up + n->plan.run.bytes_down, before = than->run.bytes_up + than->run.bytes_down;
    bool overlaps = n->plan.config.train.overlap > than->config.train.overlap;
    return n->plan.run.seconds < than->run.seconds && (bytes < before || overlaps);
}

/* The first neighbour in the list that makes the workers busy enough; if there is none, the fastest one. */
static const struct plan_neighbour *pick(const struct plan_choice *choice, const struct plan *than)
{
    const struct plan_neighbour *best = NULL;
    for (uint32_t i = 0; i < choice->n; i++) {
        const struct plan_neighbour *n = &choice->neighbours[i];
        if (!saves(n, than) || n->plan.config.train.method == METHOD_ASYNC) continue;
        if (n->plan.run.utilization >= busy_enough) return n;
        if (!best || n->plan.run.seconds < best->plan.run.seconds) best = n;
    }
    return best && best->plan.run.seconds <= (1 - worth) * than->run.seconds ? best : NULL;
}

static void explain(struct plan_choice *choice, const struct plan *base)
{
    const double *p = base->run.parts_s;
    struct units_text transfers = units_percent((p[PLAN_SEND] + p[PLAN_WAIT]) / base->run.round_s);
    struct units_text busy = units_percent(base->run.utilization);
    const struct plan_run *run = &choice->recommended.run;
    if (base->run.utilization >= busy_enough)
        snprintf(choice->reason, sizeof choice->reason,
                 "keep this configuration: workers compute for %s of the time, so the link hardly slows the run",
                 busy.text);
    else if (!choice->changes.n)
        snprintf(choice->reason, sizeof choice->reason,
                 "keep this configuration: transfers and waiting take %s of a round, and no change of codec, H, "
                 "overlap or method shortens the run by 5 %%",
                 transfers.text);
    else
        snprintf(choice->reason, sizeof choice->reason,
                 "transfers and waiting take %s of a round; these settings shorten the run from %s to %s and raise "
                 "utilization from %s to %s. Fewer bits and rarer rounds can cost loss: `atoll compare` measures how "
                 "much",
                 transfers.text, units_duration(base->run.seconds).text, units_duration(run->seconds).text, busy.text,
                 units_percent(run->utilization).text);
}

/* Changes one thing after the other until the workers are busy enough. */
enum status plan_choose(struct plan_choice *choice, const struct plan *base, const struct plan_request *request,
                        struct err *err)
{
    static struct plan_choice more; /* large */
    const struct plan *so_far = base;
    *choice = (struct plan_choice){.n = 0};
    TRY(plan_all(choice, &base->config, &choice->changes, request, err));
    for (int step = 0; step < STEPS_OF_CHANGES && so_far->run.utilization < busy_enough; step++) {
        if (step) TRY(plan_all(&more, &so_far->config, &choice->changes, request, err));
        const struct plan_neighbour *next = pick(step ? &more : choice, so_far);
        if (!next) break;
        choice->changes = next->changes;
        choice->recommended = next->plan;
        so_far = &choice->recommended;
    }
    explain(choice, base);
    return STATUS_OK;
}
