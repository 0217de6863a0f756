/* The round machine without a barrier: budgets, staleness, steps by speed, and measurements. */

#include <math.h>

#include "tests/lib/rigs/round_rig.h"
#include "tests/lib/test.h"

/* A duration is measured from the member's own assignment, independent of later assignments to others. */
TEST(test_duration_is_measured_per_member)
{
    const char *settings[] = {"train.method=async", "outer.grace=0", "train.max_steps=1000", NULL};
    struct round r;
    struct round_close close;
    round_rig_open(&r, settings, 2);
    round_rig_ready(&r, 0, 2);
    round_rig_begin(&r, 500, 1);
    round_note_resume(&r, 800);
    for (uint32_t i = 0; i < 2; i++) round_rig_begin(&r, 1000 + i * 10000000, 1);
    for (uint32_t f = 0; f < 2; f++) {
        round_rig_deliver(&r, 0, f, 900);
        assert_int_equal(round_rig_merge(&r, 900, &close), 1);
    }
    assert_int_equal(r.arrivals.n, 0); /* its assignment is from before the restart */
    for (uint32_t f = 0; f < 2; f++) {
        round_rig_deliver(&r, 1, f, 1000 + 35000000 + f);
        assert_int_equal(round_rig_merge(&r, 1000 + 35000000 + f, &close), 1);
        round_note_close(&r, 1000 + 35000000 + f);
        assert_int_equal(r.durations.n, f);
    }
    assert_int_equal(r.durations.samples_us[0], 35000001);
    round_rig_close(&r);
}

TEST(test_async_respects_budget_and_staleness)
{
    const char *settings[] = {"train.method=async", "outer.grace=0", "outer.max_staleness=1", "train.max_steps=9",
                              NULL};
    struct round r;
    struct round_open open;
    struct round_close close;
    uint16_t code;
    round_rig_open(&r, settings, 1);
    round_rig_ready(&r, 0, 2);
    assert_int_equal(round_rig_plan(&r, 0, &open), 1); /* one assignment at a time, each journaled before the next */
    round_rig_begin(&r, 0, 1);
    assert_int_equal(round_rig_grants[0].steps, 4);
    assert_true(round_rig_grants[0].step0 == 0 && round_rig_grants[0].step_rate == 1);
    round_rig_begin(&r, 0, 1);
    assert_int_equal(round_rig_grants[0].steps, 4);
    assert_true(round_rig_grants[0].step0 == 4.0 / 3);
    round_rig_begin(&r, 0, 1);
    assert_int_equal(r.steps_outstanding, 12);
    assert_int_equal(round_rig_plan(&r, 0, &open), 0);
    struct round_offer old = round_rig_offer(&r, 2, 0);
    for (int i = 0; i < 5; i++) { /* worker-0 continues alone */
        round_rig_deliver(&r, 0, 0, 0);
        assert_int_equal(round_rig_merge(&r, 0, &close), 1);
        assert_int_equal(close.n, 1);
        assert_int_equal(close.ids[0], 0);
        if (i < 4) {
            round_rig_ready(&r, 0, 0);
            round_rig_begin(&r, 0, 1);
            assert_int_equal(r.members.members[0]->work.round, i + 1); /* its own rounds */
            assert_int_equal(r.members.members[0]->work.versions[0], i + 1);
        }
    }
    assert_int_equal(r.versions[0], 5);
    assert_int_equal(round_staleness(&r, 0, 0), 1); /* 5 versions, 3 members */
    assert_int_equal(round_rig_judge(&r, 2, &old, &code), ROUND_ACCEPT);
    /* The budget is 27 steps: 4 per assignment, and the rest in the last one. Returned steps are assigned again. */
    assert_int_equal(round_rig_grants[0].steps, 3);
    assert_int_equal(r.steps_committed + r.steps_outstanding, 27);
    round_rig_ready(&r, 0, 0);
    assert_int_equal(round_rig_plan(&r, 0, &open), 0);
    round_rig_deliver(&r, 1, 0, 0);
    assert_int_equal(round_rig_merge(&r, 0, &close), 1);
    assert_int_equal(r.recent.stale[0], 5);
    assert_int_equal(r.recent.stale[1], 1); /* its own delta came after five others of three members */
    assert_int_equal(round_staleness(&r, 0, 0), 2);
    assert_int_equal(round_rig_judge(&r, 2, &old, &code), ROUND_DROP);
    assert_int_equal(code, REJECT_STALE);
    assert_int_equal(round_fold_drop(&r, 2, 0, 0, code), STATUS_OK);
    assert_false(round_over(&r));
    assert_int_equal(round_done(&r), 1); /* 23 of 27 steps, 12 per round */
    assert_int_equal(round_fold_leave(&r, 0), STATUS_OK);
    round_rig_ready(&r, 1, 1);
    round_rig_begin(&r, 0, 1);
    assert_int_equal(round_rig_grants[0].steps, 4);
    assert_int_equal(round_rig_grants[0].ranges[0].start, 48); /* the refused samples: 24 + 24 positions before them */
    old = round_rig_offer(&r, 1, 0);
    old.base_version = 99;
    assert_int_equal(round_rig_judge(&r, 1, &old, &code), ROUND_DROP); /* a future version */
    assert_int_equal(code, REJECT_BASE);
    round_rig_deliver(&r, 1, 0, 0);
    assert_int_equal(round_rig_merge(&r, 0, &close), 1);
    assert_true(round_over(&r));
    assert_int_equal(round_done(&r), round_total(&r));
    assert_int_equal(r.worker_steps, 27);
    assert_int_equal(r.leases.committed, 162);
    round_rig_close(&r);
}

/* Each member takes what it can do in a beat, at least 5 and at most 2 H; all together as many as without it. The
 * schedule of the learning rate advances by what all do meanwhile. */
TEST(test_steps_follow_speed)
{
    static const struct {
        const char *every;
        double step_s[3], transfer_s[3]; /* of each way */
        uint32_t steps[3];
        uint32_t beats; /* the last member delivers in one of so many */
    } cases[] = {
        {"train.sync_every=20", {0.1, 0.2, 0.3}, {0, 0, 0}, {33, 17, 11}, 1},
        {"train.sync_every=20", {0.1, 0.1, 0.1}, {0, 0.25, 0.5}, {25, 20, 15}, 1},    /* a beat of 2.5 s */
        {"train.sync_every=20", {0.1, 0.105, 0.1}, {0.02, 0, 0.02}, {20, 20, 20}, 1}, /* about equal */
        {"train.sync_every=20", {0.1, 0.1, 10}, {0, 0, 0}, {30, 30, 6}, 17},
        {"train.sync_every=20", {0.1, 0.1, 0.1}, {0, 0, 1.5}, {25, 25, 20}, 2},
        {"train.sync_every=20", {0.01, 0.1, 0.1}, {0, 0, 0}, {40, 10, 10}, 1}, /* at most 2 H */
        {"train.sync_every=3", {0.1, 0.3, 0.3}, {0, 0, 0}, {6, 3, 3}, 1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *settings[] = {"train.method=async", "train.max_steps=1000", cases[c].every, NULL};
        struct round r;
        round_rig_open(&r, settings, 1);
        round_rig_ready(&r, 0, 2);
        for (int id = 0; id < 3; id++) {
            double transfer_s = cases[c].transfer_s[id];
            struct member_times times = {cases[c].step_s[id], transfer_s, transfer_s};
            member_speed_add(&r.members.members[id]->speed, &times, 20);
        }
        round_note_update(&r, 0, 1000000);
        for (int id = 0; id < 3; id++) {
            round_rig_begin(&r, 1000000, 1);
            const struct round_grant *grant = &round_rig_grants[0];
            uint32_t beats = id == 2 ? cases[c].beats : 1;
            if (grant->steps + 1 < cases[c].steps[id] || grant->steps > cases[c].steps[id] + 1)
                fail_msg("case %zu, member %d: %u steps", c, id, grant->steps);
            assert_true(fabs(grant->step_rate * grant->steps / (beats * r.p.sync_every) - 1) < 0.21); /* rounded up */
        }
        round_rig_close(&r);
    }
}

/* Five beats of 20 steps for each of two members are left, then one. A member that delivers in every 17th gets no work,
 * unless it is alone. */
TEST(test_the_end_is_shared)
{
    const char *settings[] = {"train.method=async", "train.sync_every=20", "train.max_steps=110", NULL};
    struct round r;
    struct round_open open;
    round_rig_open(&r, settings, 1);
    r.p.min_workers = 2;
    round_rig_ready(&r, 0, 2);
    for (uint32_t id = 0; id < 3; id++) round_rig_speed(&r, id, id == 2 ? 10 : id ? 0.15 : 0.1, 20);
    round_note_update(&r, 0, 1000000);
    round_rig_begin(&r, 1000000, 1);
    round_rig_begin(&r, 1000000, 1);
    assert_int_equal(round_rig_grants[0].id, 1);
    assert_int_equal(round_rig_plan(&r, 1000000, &open), 0); /* member 2 waits */
    for (uint32_t id = 0; id < 2; id++) assert_int_equal(round_fold_leave(&r, id), STATUS_OK);
    r.p.min_workers = 1;
    assert_int_equal(round_rig_plan(&r, 1000000, &open), 1);
    assert_int_equal(round_rig_grants[0].id, 2);
    round_rig_close(&r);
}

/* One assignment: the member offers after us, its delta arrives later. Returns the steps. */
static uint32_t work(struct round *r, uint64_t now, uint32_t id, uint64_t us)
{
    struct round_close close;
    for (uint32_t i = 0; i < r->members.n; i++) r->members.members[i]->in_step = false; /* only this one gets work */
    round_rig_ready(r, id, id);
    round_rig_begin(r, now, 1);
    assert_int_equal(round_rig_grants[0].id, id);
    uint32_t steps = round_rig_grants[0].steps;
    round_note_offer(r, r->members.members[id], now + us);
    round_note_offer(r, r->members.members[id], now + us + 500000); /* a repeated OFFER */
    round_rig_deliver(r, id, 0, now + us + 900000);
    assert_int_equal(round_rig_merge(r, now + us + 900000, &close), 1);
    return steps;
}

/* DyLU: the fastest takes H steps. */
TEST(test_own_window_steps_follow_speed)
{
    static const char *const every[] = {"train.sync_every=20", "train.sync_every=5", "train.sync_every=3"};
    static const uint32_t expect[][3] = {{20, 10, 5}, {5, 5, 5}, {3, 3, 3}};
    for (int i = 0; i < 3; i++) {
        const char *settings[] = {"train.method=async", "outer.grace=0", "train.max_steps=1000", every[i], NULL};
        struct round r;
        round_rig_open(&r, settings, 1);
        round_rig_ready(&r, 0, 2);
        for (uint32_t id = 0; id < 3; id++) round_rig_speed(&r, id, id == 2 ? 10 : id ? 0.2 : 0.1, 1);
        for (int id = 0; id < 3; id++) {
            round_rig_begin(&r, 0, 1);
            assert_int_equal(round_rig_grants[0].steps, expect[i][id]);
        }
        round_rig_close(&r);
    }
}

/* The coordinator measures from ASSIGN to the first OFFER, and the upload after it. An offer whose delta does not
 * follow does not count. */
TEST(test_speed_is_measured)
{
    const char *settings[] = {"train.method=async",        "outer.grace=0",
                              "train.max_steps=100000",    "train.sync_every=20",
                              "coordinator.min_workers=1", NULL};
    struct round r;
    round_rig_open(&r, settings, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(work(&r, 1000000, 0, 2000000), 20);
        assert_int_equal(work(&r, 1000000, 1, 4000000), i ? 10 : 20); /* 0.2 s a step, then 0.4 s */
    }
    assert_true(fabs(r.members.members[0]->speed.usual.step_s - 0.1) < 1e-9);
    assert_true(fabs(r.members.members[0]->speed.usual.up_s - 0.9) < 1e-6);
    assert_true(r.members.members[2]->speed.usual.step_s == 0);
    round_rig_ready(&r, 2, 2);
    for (uint32_t i = 0; i < 2; i++) r.members.members[i]->in_step = false;
    round_rig_begin(&r, 9000000, 1);
    round_note_offer(&r, r.members.members[2], 9000000); /* at once, and no delta follows */
    assert_int_equal(work(&r, 9000000, 0, 2000000), 20);
    assert_int_equal(round_fold_leave(&r, 2), STATUS_OK);
    assert_true(r.members.members[2]->speed.usual.step_s == 0);
    round_rig_close(&r);
}

/* A worker's own figure divides the time before the OFFER into steps and the download; it counts up to that time. */
TEST(test_downloads_are_measured)
{
    static const struct {
        uint64_t own_us;
        double step_s, down_s;
    } cases[] = {{2000000, 0.1, 1}, {0, 0.15, 0}, {9000000, 0.15, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *settings[] = {"train.method=async", "train.sync_every=20", "train.max_steps=100000", NULL};
        struct round r;
        round_rig_open(&r, settings, 1);
        r.versions[0] = 1; /* version 0 is not downloaded */
        round_rig_ready(&r, 0, 2);
        round_rig_begin(&r, 1000000, 1);
        struct member *m = r.members.members[0];
        round_note_offer(&r, m, 4000000);
        round_rig_deliver(&r, 0, 0, 4500000);
        m->speed = (struct member_speed){.n = 0};
        m->work.parts[0].compute_us = cases[c].own_us;
        round_note_delivery(&r, m, 0, 4500000);
        const struct member_times *t = &m->speed.usual;
        assert_true(fabs(t->step_s - cases[c].step_s) < 1e-6 && fabs(t->down_s - cases[c].down_s) < 1e-6);
        assert_true(fabs(t->up_s - 0.5) < 1e-6);
        round_rig_close(&r);
    }
}

static double noise(uint32_t *x) /* 0 to 1 */
{
    *x = *x * 1664525u + 1013904223u;
    return (*x >> 8) * 0x1p-24;
}

/* Equal members keep the same number of steps, whatever part of the time is per assignment. One outage of a minute does
 * not change that. A member of half the speed settles at half the steps. */
TEST(test_equal_members_stay_equal)
{
    static const double fixed_s[] = {0, 0.5, 4};
    const char *settings[] = {"train.method=async",        "outer.grace=0",
                              "train.max_steps=1000000",   "train.sync_every=20",
                              "coordinator.min_workers=1", NULL};
    for (int c = 0; c < 3; c++) {
        struct round r;
        uint32_t steps[3] = {20, 20, 20}, seed = 7;
        uint64_t now = 1000000;
        round_rig_open(&r, settings, 1);
        for (int i = 0; i < 60; i++)
            for (uint32_t id = 0; id < 3; id++) {
                double step_s = (id == 2 ? 0.2 : 0.1) * (0.97 + 0.06 * noise(&seed));
                double s = fixed_s[c] + steps[id] * step_s + (i == 30 && !id ? 60 : 0);
                steps[id] = work(&r, now, id, (uint64_t)(s * 1e6));
                if (id < 2) assert_int_equal(steps[id], 20);
                now += 1000000;
            }
        assert_in_range(steps[2], c == 2 ? 5 : 9, 13);
        round_rig_close(&r);
    }
}

/* Deltas that arrive within the grace window are one outer step. A window ends when no delta is missing. */
TEST(test_arrivals_within_the_window_are_one_step)
{
    const char *settings[] = {"train.method=async", "outer.grace=2", "train.max_steps=1000", NULL};
    struct round r;
    struct round_close close;
    round_rig_open(&r, settings, 1);
    round_rig_ready(&r, 0, 2);
    for (int i = 0; i < 3; i++) round_rig_begin(&r, 1000000, 1);
    round_rig_deliver(&r, 1, 0, 5000000);
    assert_int_equal(round_rig_merge(&r, 6999999, &close), 0);
    assert_int_equal(round_deadline_us(&r), 7000000);
    round_rig_deliver(&r, 0, 0, 6000000);
    assert_int_equal(round_rig_merge(&r, 7000000, &close), 1);
    assert_int_equal(close.n, 2);
    assert_true(close.ids[0] == 0 && close.ids[1] == 1);
    assert_int_equal(r.versions[0], 1);
    assert_int_equal(round_deadline_us(&r), UINT64_MAX);
    round_rig_deliver(&r, 2, 0, 8000000); /* the others have no assignment: it does not wait */
    assert_int_equal(round_rig_merge(&r, 8000000, &close), 1);
    assert_int_equal(close.n, 1);
    round_rig_close(&r);
}

/* The window is measured. A member that is expected within half of the usual 10 s is waited for, and a tenth of 10 s
 * longer. A delta that arrives earlier than 9 s after the last update waits for others in any case. */
TEST(test_window_is_measured)
{
    static const struct {
        double own_s, other_s; /* of a step; 0: unknown */
        uint64_t updated_us;   /* the last update; 0: none */
        uint64_t closes_us;    /* after the first delivery */
    } cases[] = {
        {0.5, 0.55, 0, 1500000},     /* expected 0.5 s later */
        {0.5, 0.3, 0, 1000000},      /* overdue */
        {0.5, 1, 0, 0},              /* it is not expected soon */
        {0.5, 0.7, 0, 4500000},      /* expected 3.5 s later */
        {0.5, 0.75, 0, 5000000},     /* expected 4.5 s later: not much longer than half */
        {0.5, 1, 8500000, 10500000}, /* until 17.5 s, then for the other, until 21 s */
        {0.5, 1, 1500000, 0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *settings[] = {"train.method=async", "train.sync_every=20", "train.max_steps=1000",
                                  "train.dynamic_steps=off", NULL};
        struct round r;
        struct round_close close;
        round_rig_open(&r, settings, 1);
        round_rig_ready(&r, 0, 2);
        r.members.members[2]->ready = false;
        r.p.min_workers = 1;
        for (uint32_t i = 0; i < 2; i++) {
            double step_s = i ? cases[c].other_s : cases[c].own_s;
            if (step_s > 0) round_rig_speed(&r, i, step_s, 1);
        }
        for (int i = 0; i < 5; i++) deadline_add(&r.durations, 10000000);
        for (int i = 0; i < 2; i++) round_rig_begin(&r, 1000000, 1);
        r.updated_us[0] = cases[c].updated_us;
        round_note_offer(&r, r.members.members[0], 11000000);
        round_rig_deliver(&r, 0, 0, 11500000);
        assert_int_equal(round_rig_merge(&r, 11500000, &close), cases[c].closes_us == 0);
        if (cases[c].closes_us) assert_true(fabs((double)round_deadline_us(&r) - 11500000 - cases[c].closes_us) < 2);
        round_rig_close(&r);
    }
}

/* An update waits for members that download the last one, up to 1.5 of the usual 10 s, not for those that lack more.
 * The first deltas wait as long again as the first took. A member that lacks two updates gets no work. */
TEST(test_slow_links_are_waited_for)
{
    static const struct {
        uint64_t have; /* of member 1 + 1, of three versions; 0: unknown */
        uint64_t closes_us;
        uint32_t assigned;
    } cases[] = {{0, 0, 1}, {4, 0, 1}, {3, 4000000, 1}, {2, 0, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const char *settings[] = {"train.method=async", "train.sync_every=20", "train.max_steps=1000", NULL};
        struct round r;
        struct round_open open;
        struct round_close close;
        round_rig_open(&r, settings, 1);
        r.versions[0] = 3;
        round_rig_ready(&r, 0, 2);
        r.members.members[2]->ready = false;
        r.p.min_workers = 1;
        for (uint32_t i = 0; i < 2; i++) round_rig_speed(&r, i, i ? 2 : 0.5, 20);
        for (int i = 0; i < 5; i++) deadline_add(&r.durations, 10000000);
        if (cases[c].have) round_note_have(&r, 1, 0, cases[c].have - 1);
        round_rig_begin(&r, 1000000, 1);
        assert_int_equal(round_rig_plan(&r, 1000000, &open), cases[c].assigned);
        if (cases[c].assigned) round_rig_begin(&r, 1000000, 1);
        round_note_offer(&r, r.members.members[0], 11000000);
        r.updated_us[0] = 1000000;
        round_rig_deliver(&r, 0, 0, 12000000);
        assert_int_equal(round_rig_merge(&r, 12000000, &close), cases[c].closes_us == 0);
        if (cases[c].closes_us) assert_int_equal(round_deadline_us(&r), 12000000 + cases[c].closes_us);
        round_rig_close(&r);
    }
}

/* A worker gets its next work when its delta is merged; with a window of its own and no overlap, when it is ready. */
TEST(test_next_work_is_assigned_ahead)
{
    static const char *const cases[][2] = {{"train.overlap=0", "outer.grace=0"},
                                           {"train.overlap=2", "outer.grace=0"},
                                           {"train.overlap=0", "outer.grace=auto"}};
    for (int c = 0; c < 3; c++) {
        const char *settings[] = {"train.method=async", "train.max_steps=1000", cases[c][0], cases[c][1], NULL};
        struct round r;
        struct round_close close;
        struct round_open open;
        round_rig_open(&r, settings, 1);
        round_rig_ready(&r, 0, 2);
        round_rig_begin(&r, 0, 1);
        for (uint32_t id = 0; id < 3; id++) r.members.members[id]->ready = false; /* it trains, the others are away */
        round_rig_deliver(&r, 0, 0, 10);
        assert_int_equal(round_rig_merge(&r, 10, &close), 1);
        assert_int_equal(round_rig_plan(&r, 10, &open), c > 0);
        round_rig_close(&r);
    }
}

TEST_MAIN(NULL, NULL)
