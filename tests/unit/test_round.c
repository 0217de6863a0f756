/* The round machine: membership, acceptance, duplicates, quorum, deadlines, closing, budgets; both policies; folds
 * refuse what does not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "coordinator/policy.h"
#include "coordinator/round.h"

enum { WORKERS = 4 };

static struct round_grant grants[WORKERS + 1];

static void open_machine(struct round *r, const char *const *settings, uint32_t n_fragments)
{
    static const char *const base[] = {"train.max_steps=10", "train.sync_every=4", "train.batch_size=2",
                                       "train.grad_accum=3", "model.block_size=8", "coordinator.min_workers=3",
                                       "codec.up=fp32", "inner.warmup_steps=1", NULL};
    static struct config config;
    struct config_sources sources;
    struct err err = {0};
    config_defaults(&config, &sources);
    for (int pass = 0; pass < 2; pass++)
        for (const char *const *s = pass ? settings : base; s && *s; s++)
            if (config_set(&config, &sources, *s, CONFIG_FLAG, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (config_resolve(&config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
    round_init(r, &config, n_fragments);
    for (uint32_t i = 0; i < 3; i++) {
        uint8_t uuid[WIRE_UUID] = {(uint8_t)(i + 1)};
        char name[16];
        snprintf(name, sizeof name, "w%u", i);
        assert_int_equal(round_fold_join(r, i, uuid, name), STATUS_OK);
    }
}

static void close_machine(struct round *r)
{
    assert_int_equal(lease_check(&r->leases), STATUS_OK);
    round_finish(r);
    assert_int_equal(mem_live_bytes(), 0);
}

static void ready(struct round *r, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i <= last; i++) r->members.members[i]->ready = true;
}

static uint32_t plan(struct round *r, uint64_t now, struct round_open *open)
{
    open->grants = grants;
    assert_int_equal(round_plan(r, now, open), STATUS_OK);
    return open->n;
}

static void open_round(struct round *r, uint64_t now, uint32_t expect)
{
    struct round_open open;
    assert_int_equal(plan(r, now, &open), expect);
    assert_int_equal(round_fold_open(r, &open), STATUS_OK);
    round_note_open(r, now);
    for (uint32_t i = 0; i < expect; i++) r->members.members[open.grants[i].id]->ready = false;
}

/* Three workers at work on a round of two fragments. */
static void open_at_work(struct round *r)
{
    open_machine(r, NULL, 2);
    ready(r, 0, 2);
    open_round(r, 0, 3);
}

static struct round_offer offer_of(const struct round *r, uint32_t id, uint32_t fragment)
{
    const struct assignment *work = &r->members.members[id]->work;
    return (struct round_offer){.round = work->round, .base_version = work->versions[fragment], .bytes = 100,
                                .tokens = work->steps * r->p.step_samples * r->p.sample_tokens, .fragment = fragment,
                                .steps = work->steps, .form = r->p.form};
}

static enum round_verdict judge(const struct round *r, uint32_t id, const struct round_offer *offer, uint16_t *code)
{
    const char *reason;
    *code = 0;
    return round_judge(r, r->members.members[id], offer, code, &reason);
}

static void deliver(struct round *r, uint32_t id, uint32_t fragment, uint64_t now)
{
    struct round_offer offer = offer_of(r, id, fragment);
    struct part part = {.base_version = offer.base_version, .tokens = offer.tokens, .steps = offer.steps};
    uint16_t code;
    assert_int_equal(judge(r, id, &offer, &code), ROUND_ACCEPT);
    assert_int_equal(round_fold_delta(r, id, offer.round, fragment, &part), STATUS_OK);
    assert_int_equal(judge(r, id, &offer, &code), ROUND_HAVE);
    assert_int_equal(round_fold_delta(r, id, offer.round, fragment, &part), STATUS_STATE); /* held once */
    round_note_delivery(r, r->members.members[id], fragment, now);
}

/* Merge what may be merged now; how many fragments closed. */
static int close_all(struct round *r, uint64_t now, struct round_close *last)
{
    struct round_close close;
    int n = 0;
    while (round_next_close(r, now, &close)) {
        struct round_named named[WORKERS];
        for (uint32_t i = 0; i < close.n; i++)
            named[i] = (struct round_named){close.ids[i], r->members.members[close.ids[i]]->work.round};
        assert_int_equal(round_fold_update(r, close.fragment, r->versions[close.fragment] + 1, named, close.n),
                         STATUS_OK);
        assert_int_equal(lease_check(&r->leases), STATUS_OK);
        *last = close;
        n++;
    }
    return n;
}

static void test_barrier_rounds(void **state)
{
    (void)state;
    struct round r;
    struct round_open open;
    struct round_close close;
    open_machine(&r, NULL, 2);
    assert_int_equal(round_total(&r), 3);
    assert_int_equal(plan(&r, 0, &open), 0);
    ready(&r, 0, 1);
    assert_int_equal(plan(&r, 0, &open), 0); /* min_workers is 3 */
    ready(&r, 2, 2);
    uint64_t cursor = 0;
    for (uint64_t round = 0; round < 3; round++) {
        assert_int_equal(plan(&r, 0, &open), 3);
        uint32_t steps = round < 2 ? 4 : 2; /* 10 = 4 + 4 + 2 */
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(grants[i].id, i);
            assert_int_equal(grants[i].round, round);
            assert_int_equal(grants[i].steps, steps);
            assert_true(grants[i].step0 == 4.0 * (double)round && grants[i].step_rate == 1);
            assert_int_equal(grants[i].ranges[0].start, cursor);
            cursor += grants[i].ranges[0].count;
            assert_int_equal(grants[i].ranges[0].count, steps * 6);
        }
        open_round(&r, round, 3);
        assert_int_equal(plan(&r, 0, &open), 0); /* one at a time */
        for (uint32_t i = 0; i < 3; i++) deliver(&r, i, 1, round);
        assert_int_equal(close_all(&r, round, &close), 1); /* fragments close on their own */
        assert_int_equal(close.fragment, 1);
        assert_int_equal(close.n, 3);
        assert_true(close.ids[0] == 0 && close.ids[1] == 1 && close.ids[2] == 2);
        assert_int_equal(round_done(&r), round);
        for (uint32_t i = 3; i-- > 0;) deliver(&r, i, 0, round); /* order of arrival does not matter */
        assert_int_equal(close_all(&r, round, &close), 1);
        assert_true(close.ids[0] == 0 && close.ids[1] == 1 && close.ids[2] == 2);
        assert_false(close.late);
        assert_int_equal(round_done(&r), round + 1);
        for (uint32_t f = 0; f < 2; f++) assert_int_equal(r.versions[f], round + 1);
    }
    assert_true(round_over(&r));
    assert_int_equal(plan(&r, 0, &open), 0);
    assert_int_equal(r.worker_steps, 30);
    assert_int_equal(r.leases.committed, 180);
    close_machine(&r);
}

static void test_judge(void **state)
{
    (void)state;
    struct round r;
    struct round_close close;
    uint16_t code;
    open_at_work(&r);
    struct round_offer good = offer_of(&r, 0, 0), bad;
    assert_int_equal(judge(&r, 0, &good, &code), ROUND_ACCEPT);
    bad = good;
    bad.base_version++;
    assert_int_equal(judge(&r, 0, &bad, &code), ROUND_DROP);
    assert_int_equal(code, REJECT_BASE);
    bad = good;
    bad.tokens--;
    assert_int_equal(judge(&r, 0, &bad, &code), ROUND_DROP);
    assert_int_equal(code, REJECT_CORRUPT);
    bad = good;
    bad.steps++;
    assert_int_equal(judge(&r, 0, &bad, &code), ROUND_DROP);
    bad = good;
    bad.form = DELTA_GRADIENT;
    assert_int_equal(judge(&r, 0, &bad, &code), ROUND_DROP);
    bad = good;
    bad.round = 1;
    assert_int_equal(judge(&r, 0, &bad, &code), ROUND_REJECT);
    assert_int_equal(code, REJECT_UNASSIGNED);
    bad = good;
    bad.fragment = 2;
    assert_int_equal(judge(&r, 0, &bad, &code), ROUND_REJECT);
    assert_int_equal(round_fold_drop(&r, 0, 0, 0, REJECT_NONFINITE), STATUS_OK);
    assert_int_equal(judge(&r, 0, &good, &code), ROUND_REJECT);
    assert_int_equal(code, REJECT_NONFINITE); /* the answer stays */
    for (uint32_t i = 1; i < 3; i++)
        for (uint32_t f = 0; f < 2; f++) deliver(&r, i, f, 0);
    assert_int_equal(round_fold_drop(&r, 0, 0, UINT32_MAX, REJECT_BASE), STATUS_OK);
    assert_int_equal(close_all(&r, 0, &close), 2);
    assert_int_equal(close.n, 2);
    good.round = 0;
    assert_int_equal(judge(&r, 1, &good, &code), ROUND_HAVE); /* merged long ago */
    assert_int_equal(judge(&r, 0, &good, &code), ROUND_REJECT);
    assert_int_equal(r.leases.n_free, 1); /* the dropped work went back */
    assert_false(r.members.members[0]->in_step);
    close_machine(&r);
}

static void test_quorum_and_deadline(void **state)
{
    (void)state;
    const char *const quorums[] = {"coordinator.quorum=2", "coordinator.quorum=60%"};
    for (int q = 0; q < 2; q++) {
        const char *settings[] = {quorums[q], NULL};
        struct round r;
        struct round_close close;
        uint16_t code;
        open_machine(&r, settings, 1);
        assert_int_equal(round_quorum(&r), q ? 1 : 1); /* before a round: at least one */
        ready(&r, 0, 2);
        open_round(&r, 1000, 3);
        assert_int_equal(round_quorum(&r), 2);
        deliver(&r, 2, 0, 1000 + 3000000);
        assert_int_equal(round_deadline_us(&r), UINT64_MAX); /* no quorum, no limit */
        assert_int_equal(close_all(&r, UINT64_MAX - 1, &close), 0);
        deliver(&r, 0, 0, 1000 + 5000000);
        assert_int_equal(round_deadline_us(&r), 1000 + 2 * 5000000); /* nothing measured: as long again */
        round_note_pause(&r, 7000000);
        uint64_t limit = round_deadline_us(&r);
        assert_int_equal(limit, 1000 + 2 * 5000000 + 7000000);
        assert_int_equal(close_all(&r, limit - 1, &close), 0);
        struct round_offer late = offer_of(&r, 1, 0);
        assert_int_equal(close_all(&r, limit, &close), 1);
        assert_true(close.late);
        assert_int_equal(close.n, 2);
        assert_true(close.ids[0] == 0 && close.ids[1] == 2);
        assert_int_equal(judge(&r, 1, &late, &code), ROUND_REJECT);
        assert_int_equal(code, REJECT_LATE);
        assert_int_equal(r.leases.n_free, 1);
        assert_false(r.members.members[1]->in_step);
        open_round(&r, limit, 2); /* at once, without the late one */
        assert_int_equal(grants[0].ranges[0].start, 24); /* whose samples go out first */
        close_machine(&r);
    }
}

/* A new process finds the round with a quorum in: those that were in time before have time to come back, and what they
 * say of old work measures nothing. */
static void test_quorum_of_a_round_that_was_found(void **state)
{
    (void)state;
    const uint64_t start = 1000, minute = 60000000;
    for (int i = 0; i < 3; i++) {
        const char *settings[] = {"coordinator.quorum=2", i == 1 ? "coordinator.evict_after_s=90" : NULL, NULL};
        struct round r;
        struct round_close close;
        open_machine(&r, settings, 1);
        ready(&r, 0, 2);
        open_round(&r, start, 3);
        for (uint32_t id = 0; id < 2; id++) deliver(&r, id, 0, start);
        r.arrivals = r.durations = (struct deadline){0};
        if (i == 2) r.members.members[1]->work.parts[0].compute_us = 50000000;
        round_note_resume(&r, start);
        uint64_t limit = i == 0 ? minute : i == 1 ? 90000000 : 2 * 50000000;
        assert_int_equal(round_deadline_us(&r), start + limit);
        assert_int_equal(close_all(&r, start + limit - 1, &close), 0);
        deliver(&r, 2, 0, start + 2000000);
        assert_int_equal(close_all(&r, start + 2000000, &close), 1);
        assert_false(close.late);
        round_note_close(&r, start + 2000000);
        assert_int_equal(r.arrivals.n, 0);
        assert_int_equal(r.durations.n, 0);
        open_round(&r, start + 2000000, 3);
        for (uint32_t id = 0; id < 3; id++) deliver(&r, id, 0, start + 4000000);
        assert_int_equal(close_all(&r, start + 4000000, &close), 1);
        round_note_close(&r, start + 4000000);
        assert_int_equal(r.arrivals.n, 3);
        assert_int_equal(r.durations.n, 1);
        close_machine(&r);
    }
}

/* Each member's own time, whoever else was given work meanwhile. */
static void test_async_durations(void **state)
{
    (void)state;
    const char *settings[] = {"train.method=async", "train.max_steps=1000", NULL};
    struct round r;
    struct round_close close;
    open_machine(&r, settings, 2);
    ready(&r, 0, 2);
    open_round(&r, 500, 1);
    round_note_resume(&r, 800);
    for (uint32_t i = 0; i < 2; i++) open_round(&r, 1000 + i * 10000000, 1);
    for (uint32_t f = 0; f < 2; f++) {
        deliver(&r, 0, f, 900);
        assert_int_equal(close_all(&r, 900, &close), 1);
    }
    assert_int_equal(r.arrivals.n, 0); /* its work was found at a start */
    for (uint32_t f = 0; f < 2; f++) {
        deliver(&r, 1, f, 1000 + 35000000 + f);
        assert_int_equal(close_all(&r, 1000 + 35000000 + f, &close), 1);
        round_note_close(&r, 1000 + 35000000 + f);
        assert_int_equal(r.durations.n, f);
    }
    assert_int_equal(r.durations.samples_us[0], 35000001);
    close_machine(&r);
}

static void test_member_leaves(void **state)
{
    (void)state;
    struct round r;
    struct round_open open;
    struct round_close close;
    open_at_work(&r);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t f = 0; f < 2; f++) deliver(&r, i, f, 0);
    deliver(&r, 2, 0, 0);
    assert_int_equal(close_all(&r, 0, &close), 1); /* only fragment 0 */
    assert_int_equal(round_fold_leave(&r, 2), STATUS_OK);
    assert_int_equal(round_fold_leave(&r, 2), STATUS_STATE);
    assert_int_equal(close_all(&r, 0, &close), 1);
    assert_int_equal(close.n, 2);
    assert_int_equal(r.leases.n_free, 0); /* half of its work was merged: its samples are used */
    open_round(&r, 0, 2);
    /* everybody leaves in mid-round: the round opens anew when enough are back */
    assert_int_equal(round_fold_leave(&r, 0), STATUS_OK);
    assert_int_equal(round_fold_leave(&r, 1), STATUS_OK);
    assert_int_equal(close_all(&r, UINT64_MAX, &close), 0);
    assert_int_equal(r.leases.n_leases, 0);
    assert_int_equal(r.round, 1);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(round_fold_join(&r, i, r.members.members[i]->uuid, "back"), STATUS_OK);
    const uint64_t hour = 3600000000u, minute = 60000000;
    round_note_idle(&r, 5);
    assert_int_equal(round_deadline_us(&r), UINT64_MAX);
    ready(&r, 1, 1);
    round_note_idle(&r, hour); /* the first one to be ready: the others have a minute from now on */
    ready(&r, 2, 2);
    round_note_idle(&r, hour + 10);
    assert_int_equal(round_deadline_us(&r), hour + minute);
    assert_int_equal(plan(&r, hour + minute - 1, &open), 0);
    assert_int_equal(plan(&r, hour + minute, &open), 2); /* who does not come back is not waited for for ever */
    ready(&r, 0, 0);
    open_round(&r, 10, 3);
    assert_int_equal(r.members.members[0]->work.round, 1);
    assert_int_equal(grants[0].ranges[0].start, 72); /* the same samples again, in order of ids */
    close_machine(&r);
}

/* A fragment closed, then everybody left: the next assignment of that round is only waited for where it counts. */
static void test_reopened_round(void **state)
{
    (void)state;
    struct round r;
    struct round_close close;
    uint16_t code;
    open_at_work(&r);
    for (uint32_t i = 0; i < 3; i++) deliver(&r, i, 0, 0);
    assert_int_equal(close_all(&r, 0, &close), 1);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(round_fold_leave(&r, i), STATUS_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(round_fold_join(&r, i, r.members.members[i]->uuid, "w"), STATUS_OK);
    ready(&r, 0, 2);
    open_round(&r, 0, 3);
    assert_int_equal(r.members.members[0]->work.versions[0], 1);
    assert_int_equal(r.members.members[0]->work.versions[1], 0);
    struct round_offer offer = offer_of(&r, 0, 0);
    assert_int_not_equal(judge(&r, 0, &offer, &code), ROUND_ACCEPT);
    for (uint32_t i = 0; i < 3; i++) deliver(&r, i, 1, 0);
    assert_int_equal(close_all(&r, 0, &close), 1);
    assert_int_equal(round_done(&r), 1);
    assert_int_equal(r.versions[0], 1);
    close_machine(&r);
}

/* Who was away had half of its delta merged: it has no place in what begins again of that round before it has heard
 * that the rest is not wanted. */
static void test_reopened_with_half_a_delta(void **state)
{
    (void)state;
    struct round r;
    struct round_open open;
    struct round_close close;
    open_at_work(&r);
    deliver(&r, 0, 0, 0);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(round_fold_leave(&r, i), STATUS_OK);
    assert_int_equal(round_fold_join(&r, 0, r.members.members[0]->uuid, "w0"), STATUS_OK);
    assert_int_equal(close_all(&r, 0, &close), 1);
    assert_true(r.members.members[0]->in_step);
    assert_int_equal(plan(&r, 0, &open), 0);
    for (uint32_t i = 1; i < 3; i++)
        assert_int_equal(round_fold_join(&r, i, r.members.members[i]->uuid, "w"), STATUS_OK);
    ready(&r, 1, 2);
    assert_int_equal(plan(&r, 0, &open), 0); /* too few */
    ready(&r, 0, 0);
    open_round(&r, 0, 3);
    for (uint32_t i = 0; i < 3; i++) deliver(&r, i, 1, 0);
    assert_int_equal(close_all(&r, 0, &close), 1);
    open_round(&r, 0, 3); /* the next one has a place for all of them at once */
    close_machine(&r);
}

/* One fragment in time, the other one late: the worker has a place in the next round, and hears of what is wanted no
 * more however late it asks. A fragment of which later work was merged it finds out about itself. */
static void test_half_in_time(void **state)
{
    (void)state;
    const char *settings[] = {"coordinator.quorum=2", NULL};
    struct round r;
    struct round_close close;
    uint16_t code;
    open_machine(&r, settings, 2);
    ready(&r, 0, 2);
    open_round(&r, 0, 3);
    struct round_offer late = offer_of(&r, 2, 0), merged = offer_of(&r, 2, 1);
    for (uint32_t i = 0; i < 3; i++) deliver(&r, i, 1, 1000000);
    for (uint32_t i = 0; i < 2; i++) deliver(&r, i, 0, 1000000);
    assert_int_equal(close_all(&r, 60000000, &close), 2);
    open_round(&r, 60000000, 3);
    assert_int_equal(judge(&r, 2, &late, &code), ROUND_REJECT);
    assert_int_equal(code, REJECT_LATE);
    assert_int_equal(judge(&r, 2, &merged, &code), ROUND_HAVE);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t f = 0; f < 2; f++) deliver(&r, i, f, 61000000);
    assert_int_equal(close_all(&r, 61000000, &close), 2);
    assert_int_equal(judge(&r, 2, &late, &code), ROUND_HAVE);
    assert_int_equal(judge(&r, 2, &merged, &code), ROUND_HAVE);
    close_machine(&r);
}

static void test_ddp_closes_together(void **state)
{
    (void)state;
    const char *settings[] = {"train.method=ddp", NULL};
    struct round r;
    struct round_close close;
    open_machine(&r, settings, 2);
    assert_int_equal(round_total(&r), 10);
    ready(&r, 0, 2);
    open_round(&r, 0, 3);
    assert_int_equal(grants[0].steps, 1);
    for (uint32_t i = 0; i < 3; i++) deliver(&r, i, 0, 0);
    assert_int_equal(close_all(&r, 0, &close), 0); /* the norm of the gradient spans all fragments */
    for (uint32_t i = 0; i < 3; i++) deliver(&r, i, 1, 0);
    assert_int_equal(close_all(&r, 0, &close), 2);
    close_machine(&r);
}

static void test_async(void **state)
{
    (void)state;
    const char *settings[] = {"train.method=async", "outer.max_staleness=1", "train.max_steps=9", NULL};
    struct round r;
    struct round_open open;
    struct round_close close;
    uint16_t code;
    open_machine(&r, settings, 1);
    ready(&r, 0, 2);
    assert_int_equal(plan(&r, 0, &open), 1); /* one at a time, each journaled before the next */
    open_round(&r, 0, 1);
    assert_int_equal(grants[0].steps, 4);
    assert_true(grants[0].step0 == 0 && grants[0].step_rate == 1);
    open_round(&r, 0, 1);
    assert_int_equal(grants[0].steps, 4);
    assert_true(grants[0].step0 == 4.0 / 3);
    open_round(&r, 0, 1);
    assert_int_equal(r.steps_outstanding, 12);
    assert_int_equal(plan(&r, 0, &open), 0);
    struct round_offer old = offer_of(&r, 2, 0);
    for (int i = 0; i < 5; i++) { /* worker-0 goes on alone */
        deliver(&r, 0, 0, 0);
        assert_int_equal(close_all(&r, 0, &close), 1);
        assert_int_equal(close.n, 1);
        assert_int_equal(close.ids[0], 0);
        if (i < 4) {
            ready(&r, 0, 0);
            open_round(&r, 0, 1);
            assert_int_equal(r.members.members[0]->work.round, i + 1); /* rounds of its own */
            assert_int_equal(r.members.members[0]->work.versions[0], i + 1);
        }
    }
    assert_int_equal(r.versions[0], 5);
    assert_int_equal(round_staleness(&r, 0, 0), 1); /* 5 versions, 3 members */
    assert_int_equal(judge(&r, 2, &old, &code), ROUND_ACCEPT);
    /* 27 steps are the budget: 4 each, the last time what is left; what comes back is handed out again */
    assert_int_equal(grants[0].steps, 3);
    assert_int_equal(r.steps_committed + r.steps_outstanding, 27);
    ready(&r, 0, 0);
    assert_int_equal(plan(&r, 0, &open), 0);
    deliver(&r, 1, 0, 0);
    assert_int_equal(close_all(&r, 0, &close), 1);
    assert_int_equal(round_staleness(&r, 0, 0), 2);
    assert_int_equal(judge(&r, 2, &old, &code), ROUND_DROP);
    assert_int_equal(code, REJECT_STALE);
    assert_int_equal(round_fold_drop(&r, 2, 0, 0, code), STATUS_OK);
    assert_false(round_over(&r));
    assert_int_equal(round_done(&r), 1); /* 23 of 27 steps, 12 a round */
    assert_int_equal(round_fold_leave(&r, 0), STATUS_OK);
    ready(&r, 1, 1);
    open_round(&r, 0, 1);
    assert_int_equal(grants[0].steps, 4);
    assert_int_equal(grants[0].ranges[0].start, 48); /* what was refused: 24 + 24 positions before it */
    old = offer_of(&r, 1, 0);
    old.base_version = 99;
    assert_int_equal(judge(&r, 1, &old, &code), ROUND_DROP); /* from the future */
    assert_int_equal(code, REJECT_BASE);
    deliver(&r, 1, 0, 0);
    assert_int_equal(close_all(&r, 0, &close), 1);
    assert_true(round_over(&r));
    assert_int_equal(round_done(&r), round_total(&r));
    assert_int_equal(r.worker_steps, 27);
    assert_int_equal(r.leases.committed, 162);
    close_machine(&r);
}

/* DyLU: all return at about the same time, but nobody for a handful of steps, unless that is what all of them take. */
static void test_steps_by_speed(void **state)
{
    (void)state;
    static const char *const every[] = {"train.sync_every=20", "train.sync_every=5", "train.sync_every=3"};
    static const uint32_t expect[][3] = {{20, 10, 5}, {5, 5, 5}, {3, 3, 3}};
    for (int i = 0; i < 3; i++) {
        const char *settings[] = {"train.method=async", "train.max_steps=1000", every[i], NULL};
        struct round r;
        open_machine(&r, settings, 1);
        ready(&r, 0, 2);
        r.members.members[0]->step_s = 0.1;
        r.members.members[1]->step_s = 0.2;
        r.members.members[2]->step_s = 10;
        for (int id = 0; id < 3; id++) {
            open_round(&r, 0, 1);
            assert_int_equal(grants[0].steps, expect[i][id]);
        }
        close_machine(&r);
    }
}

/* A damaged journal: records that do not fit change nothing. */
static void test_folds_refuse(void **state)
{
    (void)state;
    struct round r;
    struct round_open open;
    const uint8_t uuid[WIRE_UUID] = {9};
    const struct part part = {.tokens = 1};
    struct round_named named[2] = {{1, 0}, {0, 0}};
    open_machine(&r, NULL, 2);
    assert_int_equal(round_fold_join(&r, 7, uuid, "gap"), STATUS_STATE);
    assert_int_equal(round_fold_join(&r, 2, r.members.members[1]->uuid, "swap"), STATUS_STATE);
    assert_int_equal(round_fold_leave(&r, 9), STATUS_STATE);
    ready(&r, 0, 2);
    assert_int_equal(plan(&r, 0, &open), 3);
    grants[1].id = 0; /* twice */
    assert_int_equal(round_fold_open(&r, &open), STATUS_STATE);
    assert_int_equal(plan(&r, 0, &open), 3);
    grants[2].round = 5;
    assert_int_equal(round_fold_open(&r, &open), STATUS_STATE);
    assert_int_equal(plan(&r, 0, &open), 3);
    grants[2].n_ranges = 0;
    assert_int_equal(round_fold_open(&r, &open), STATUS_STATE);
    open.n = 0;
    assert_int_equal(round_fold_open(&r, &open), STATUS_STATE);
    assert_int_equal(r.leases.n_leases, 0);
    assert_int_equal(round_fold_delta(&r, 0, 0, 0, &part), STATUS_STATE); /* nothing assigned */
    open_round(&r, 0, 3);
    assert_int_equal(round_fold_delta(&r, 0, 1, 0, &part), STATUS_STATE);
    assert_int_equal(round_fold_delta(&r, 0, 0, 2, &part), STATUS_STATE);
    assert_int_equal(round_fold_delta(&r, 9, 0, 0, &part), STATUS_STATE);
    assert_int_equal(round_fold_delta(&r, 0, 0, 0, &(struct part){0}), STATUS_STATE); /* no tokens */
    assert_int_equal(round_fold_drop(&r, 0, 4, UINT32_MAX, REJECT_LATE), STATUS_STATE);
    assert_int_equal(round_fold_update(&r, 0, 1, named, 1), STATUS_STATE); /* not held */
    deliver(&r, 0, 0, 0);
    deliver(&r, 1, 0, 0);
    assert_int_equal(round_fold_update(&r, 0, 2, named, 1), STATUS_STATE); /* a version is missing */
    assert_int_equal(round_fold_update(&r, 0, 1, named, 0), STATUS_STATE);
    assert_int_equal(round_fold_update(&r, 0, 1, named, 2), STATUS_STATE); /* not in order of ids */
    assert_int_equal(r.versions[0], 0);
    assert_int_equal(r.leases.committed, 0);
    named[0] = named[1];
    assert_int_equal(round_fold_update(&r, 0, 1, named, 1), STATUS_OK);
    assert_int_equal(round_fold_update(&r, 0, 2, named, 1), STATUS_STATE); /* merged once */
    close_machine(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barrier_rounds),   cmocka_unit_test(test_judge),
        cmocka_unit_test(test_quorum_and_deadline), cmocka_unit_test(test_member_leaves),
        cmocka_unit_test(test_reopened_round),   cmocka_unit_test(test_reopened_with_half_a_delta),
        cmocka_unit_test(test_ddp_closes_together), cmocka_unit_test(test_half_in_time),
        cmocka_unit_test(test_async),            cmocka_unit_test(test_folds_refuse),
        cmocka_unit_test(test_steps_by_speed),
        cmocka_unit_test(test_async_durations),  cmocka_unit_test(test_quorum_of_a_round_that_was_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
