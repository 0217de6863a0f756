/* The round machine with a barrier: membership, acceptance, duplicates, quorum, deadlines, closing; a fold refuses
 * invalid records. Other rounds are in test_round_async. */
#include <math.h>

#include "coordinator/round/policy.h"
#include "tests/lib/rigs/round_rig.h"
#include "tests/lib/test.h"

TEST(test_rounds_follow_each_other)
{
    struct round r;
    struct round_open open;
    struct round_close close;
    round_rig_open(&r, NULL, 2);
    assert_int_equal(round_total(&r), 3);
    assert_int_equal(round_rig_plan(&r, 0, &open), 0);
    round_rig_ready(&r, 0, 1);
    assert_int_equal(round_rig_plan(&r, 0, &open), 0); /* min_workers is 3 */
    round_rig_ready(&r, 2, 2);
    uint64_t cursor = 0;
    for (uint64_t round = 0; round < 3; round++) {
        assert_int_equal(round_rig_plan(&r, 0, &open), 3);
        uint32_t steps = round < 2 ? 4 : 2; /* 10 = 4 + 4 + 2 */
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(round_rig_grants[i].id, i);
            assert_int_equal(round_rig_grants[i].round, round);
            assert_int_equal(round_rig_grants[i].steps, steps);
            assert_true(round_rig_grants[i].step0 == 4.0 * (double)round && round_rig_grants[i].step_rate == 1);
            assert_int_equal(round_rig_grants[i].ranges[0].start, cursor);
            cursor += round_rig_grants[i].ranges[0].count;
            assert_int_equal(round_rig_grants[i].ranges[0].count, steps * 6);
        }
        round_rig_begin(&r, round, 3);
        assert_int_equal(round_rig_plan(&r, 0, &open), 0); /* one round at a time */
        for (uint32_t i = 0; i < 3; i++) round_rig_deliver(&r, i, 1, round);
        assert_int_equal(round_rig_merge(&r, round, &close), 1); /* fragments close independently */
        assert_int_equal(close.fragment, 1);
        assert_int_equal(close.n, 3);
        assert_true(close.ids[0] == 0 && close.ids[1] == 1 && close.ids[2] == 2);
        assert_int_equal(round_done(&r), round);
        for (uint32_t i = 3; i-- > 0;) round_rig_deliver(&r, i, 0, round); /* the order of arrival has no effect */
        assert_int_equal(round_rig_merge(&r, round, &close), 1);
        assert_true(close.ids[0] == 0 && close.ids[1] == 1 && close.ids[2] == 2);
        assert_false(close.late);
        assert_int_equal(round_done(&r), round + 1);
        for (uint32_t f = 0; f < 2; f++) assert_int_equal(r.versions[f], round + 1);
    }
    assert_true(round_over(&r));
    assert_int_equal(round_rig_plan(&r, 0, &open), 0);
    open.n = 3;
    for (uint32_t i = 0; i < 3; i++) round_rig_grants[i].round = 3;
    assert_int_equal(round_fold_open(&r, &open), STATUS_STATE); /* no round follows the last one */
    assert_int_equal(r.worker_steps, 30);
    assert_int_equal(r.leases.committed, 180);
    round_rig_close(&r);
}

TEST(test_offers_are_judged)
{
    struct round r;
    struct round_close close;
    uint16_t code;
    round_rig_at_work(&r);
    struct round_offer good = round_rig_offer(&r, 0, 0), bad;
    assert_int_equal(round_rig_judge(&r, 0, &good, &code), ROUND_ACCEPT);
    bad = good;
    bad.base_version++;
    assert_int_equal(round_rig_judge(&r, 0, &bad, &code), ROUND_DROP);
    assert_int_equal(code, REJECT_BASE);
    bad = good;
    bad.tokens--;
    assert_int_equal(round_rig_judge(&r, 0, &bad, &code), ROUND_DROP);
    assert_int_equal(code, REJECT_CORRUPT);
    bad = good;
    bad.steps++;
    assert_int_equal(round_rig_judge(&r, 0, &bad, &code), ROUND_DROP);
    bad = good;
    bad.form = DELTA_GRADIENT;
    assert_int_equal(round_rig_judge(&r, 0, &bad, &code), ROUND_DROP);
    bad = good;
    bad.round = 1;
    assert_int_equal(round_rig_judge(&r, 0, &bad, &code), ROUND_REJECT);
    assert_int_equal(code, REJECT_UNASSIGNED);
    bad = good;
    bad.fragment = 2;
    assert_int_equal(round_rig_judge(&r, 0, &bad, &code), ROUND_REJECT);
    assert_int_equal(round_fold_drop(&r, 0, 0, 0, REJECT_NONFINITE), STATUS_OK);
    assert_int_equal(round_rig_judge(&r, 0, &good, &code), ROUND_REJECT);
    assert_int_equal(code, REJECT_NONFINITE); /* the answer stays the same */
    for (uint32_t i = 1; i < 3; i++)
        for (uint32_t f = 0; f < 2; f++) round_rig_deliver(&r, i, f, 0);
    assert_int_equal(round_fold_drop(&r, 0, 0, UINT32_MAX, REJECT_BASE), STATUS_OK);
    assert_int_equal(round_rig_merge(&r, 0, &close), 2);
    assert_int_equal(close.n, 2);
    good.round = 0;
    assert_int_equal(round_rig_judge(&r, 1, &good, &code), ROUND_HAVE); /* merged earlier */
    assert_int_equal(round_rig_judge(&r, 0, &good, &code), ROUND_REJECT);
    assert_int_equal(r.leases.n_free, 1);       /* the samples of the dropped work are free */
    assert_true(r.members.members[0]->in_step); /* refused for its values: it goes on with the next round */
    round_rig_close(&r);
}

TEST(test_quorum_closes_after_deadline)
{
    const char *const quorums[] = {"coordinator.quorum=2", "coordinator.quorum=60%"};
    for (int q = 0; q < 2; q++) {
        const char *settings[] = {quorums[q], NULL};
        struct round r;
        struct round_close close;
        uint16_t code;
        round_rig_open(&r, settings, 1);
        assert_int_equal(round_quorum(&r), q ? 1 : 1); /* before a round: at least one */
        round_rig_ready(&r, 0, 2);
        round_rig_begin(&r, 1000, 3);
        assert_int_equal(round_quorum(&r), 2);
        round_rig_deliver(&r, 2, 0, 1000 + 3000000);
        assert_int_equal(round_deadline_us(&r), UINT64_MAX); /* no quorum, no limit */
        assert_int_equal(round_rig_merge(&r, UINT64_MAX - 1, &close), 0);
        round_rig_deliver(&r, 0, 0, 1000 + 5000000);
        assert_int_equal(round_deadline_us(&r), 1000 + 2 * 5000000); /* no measurement: twice the elapsed time */
        round_note_pause(&r, 7000000);
        uint64_t limit = round_deadline_us(&r);
        assert_int_equal(limit, 1000 + 2 * 5000000 + 7000000);
        assert_int_equal(round_rig_merge(&r, limit - 1, &close), 0);
        struct round_offer late = round_rig_offer(&r, 1, 0);
        assert_int_equal(round_rig_merge(&r, limit, &close), 1);
        assert_true(close.late);
        assert_int_equal(close.n, 2);
        assert_true(close.ids[0] == 0 && close.ids[1] == 2);
        assert_int_equal(round_rig_judge(&r, 1, &late, &code), ROUND_REJECT);
        assert_int_equal(code, REJECT_LATE);
        assert_int_equal(r.leases.n_free, 1);
        assert_false(r.members.members[1]->in_step);
        round_rig_begin(&r, limit, 2);                             /* at once, without the late worker */
        assert_int_equal(round_rig_grants[0].ranges[0].start, 24); /* its samples are assigned first */
        round_rig_close(&r);
    }
}

/* A restarted process finds the round with a complete quorum. Workers that were in time get time to return, and
 * their old work is not measured. */
TEST(test_restarted_quorum_gives_time_to_return)
{
    const uint64_t start = 1000, minute = 60000000;
    for (int i = 0; i < 3; i++) {
        const char *settings[] = {"coordinator.quorum=2", i == 1 ? "coordinator.evict_after_s=90" : NULL, NULL};
        struct round r;
        struct round_close close;
        round_rig_open(&r, settings, 1);
        round_rig_ready(&r, 0, 2);
        round_rig_begin(&r, start, 3);
        for (uint32_t id = 0; id < 2; id++) round_rig_deliver(&r, id, 0, start);
        r.arrivals = r.durations = (struct deadline){0};
        if (i == 2) r.members.members[1]->work.parts[0].compute_us = 50000000;
        round_note_resume(&r, start);
        uint64_t limit = i == 0 ? minute : i == 1 ? 90000000 : 2 * 50000000;
        assert_int_equal(round_deadline_us(&r), start + limit);
        assert_int_equal(round_rig_merge(&r, start + limit - 1, &close), 0);
        round_rig_deliver(&r, 2, 0, start + 2000000);
        assert_int_equal(round_rig_merge(&r, start + 2000000, &close), 1);
        assert_false(close.late);
        round_note_close(&r, start + 2000000);
        assert_int_equal(r.arrivals.n, 0);
        assert_int_equal(r.durations.n, 0);
        round_rig_begin(&r, start + 2000000, 3);
        for (uint32_t id = 0; id < 3; id++) round_rig_deliver(&r, id, 0, start + 4000000);
        assert_int_equal(round_rig_merge(&r, start + 4000000, &close), 1);
        round_note_close(&r, start + 4000000);
        assert_int_equal(r.arrivals.n, 3);
        assert_int_equal(r.durations.n, 1);
        round_rig_close(&r);
    }
}

TEST(test_round_continues_without_leaving_member)
{
    struct round r;
    struct round_open open;
    struct round_close close;
    round_rig_at_work(&r);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t f = 0; f < 2; f++) round_rig_deliver(&r, i, f, 0);
    round_rig_deliver(&r, 2, 0, 0);
    assert_int_equal(round_rig_merge(&r, 0, &close), 1); /* only fragment 0 */
    assert_int_equal(round_fold_leave(&r, 2), STATUS_OK);
    assert_int_equal(round_fold_leave(&r, 2), STATUS_STATE);
    assert_int_equal(round_rig_merge(&r, 0, &close), 1);
    assert_int_equal(close.n, 2);
    assert_int_equal(r.leases.n_free, 0); /* half of its work is merged: its samples are committed */
    round_rig_begin(&r, 0, 2);
    /* All members leave during the round: it reopens when enough have returned. */
    assert_int_equal(round_fold_leave(&r, 0), STATUS_OK);
    assert_int_equal(round_fold_leave(&r, 1), STATUS_OK);
    assert_int_equal(round_rig_merge(&r, UINT64_MAX, &close), 0);
    assert_int_equal(r.leases.n_leases, 0);
    assert_int_equal(r.round, 1);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(round_fold_join(&r, i, r.members.members[i]->uuid, "back"), STATUS_OK);
    const uint64_t hour = 3600000000u, minute = 60000000;
    round_note_idle(&r, 5);
    assert_int_equal(round_deadline_us(&r), UINT64_MAX);
    round_rig_ready(&r, 1, 1);
    round_note_idle(&r, hour); /* the first ready member starts a timeout of one minute */
    round_rig_ready(&r, 2, 2);
    round_note_idle(&r, hour + 10);
    assert_int_equal(round_deadline_us(&r), hour + minute);
    assert_int_equal(round_rig_plan(&r, hour + minute - 1, &open), 0);
    assert_int_equal(round_rig_plan(&r, hour + minute, &open), 2); /* missing members do not delay the round */
    round_rig_ready(&r, 0, 0);
    round_rig_begin(&r, 10, 3);
    assert_int_equal(r.members.members[0]->work.round, 1);
    assert_int_equal(round_rig_grants[0].ranges[0].start, 72); /* the same samples again, in order of ids */
    round_rig_close(&r);
}

/* A fragment closed, then all members left: the round's next assignment waits only for open fragments. */
TEST(test_reopened_round_waits_for_open_fragments)
{
    struct round r;
    struct round_close close;
    uint16_t code;
    round_rig_at_work(&r);
    for (uint32_t i = 0; i < 3; i++) round_rig_deliver(&r, i, 0, 0);
    assert_int_equal(round_rig_merge(&r, 0, &close), 1);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(round_fold_leave(&r, i), STATUS_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(round_fold_join(&r, i, r.members.members[i]->uuid, "w"), STATUS_OK);
    round_rig_ready(&r, 0, 2);
    round_rig_begin(&r, 0, 3);
    assert_int_equal(r.members.members[0]->work.versions[0], 1);
    assert_int_equal(r.members.members[0]->work.versions[1], 0);
    struct round_offer offer = round_rig_offer(&r, 0, 0);
    assert_int_not_equal(round_rig_judge(&r, 0, &offer, &code), ROUND_ACCEPT);
    for (uint32_t i = 0; i < 3; i++) round_rig_deliver(&r, i, 1, 0);
    assert_int_equal(round_rig_merge(&r, 0, &close), 1);
    assert_int_equal(round_done(&r), 1);
    assert_int_equal(r.versions[0], 1);
    round_rig_close(&r);
}

/* A member whose delta is half merged gets no place in the reopened round before it receives the refusal of the
 * other half. */
TEST(test_reopened_round_excludes_half_merged_member)
{
    struct round r;
    struct round_open open;
    struct round_close close;
    round_rig_at_work(&r);
    round_rig_deliver(&r, 0, 0, 0);
    for (uint32_t i = 0; i < 3; i++) assert_int_equal(round_fold_leave(&r, i), STATUS_OK);
    assert_int_equal(round_fold_join(&r, 0, r.members.members[0]->uuid, "w0"), STATUS_OK);
    assert_int_equal(round_rig_merge(&r, 0, &close), 1);
    assert_true(r.members.members[0]->in_step);
    assert_int_equal(round_rig_plan(&r, 0, &open), 0);
    for (uint32_t i = 1; i < 3; i++)
        assert_int_equal(round_fold_join(&r, i, r.members.members[i]->uuid, "w"), STATUS_OK);
    round_rig_ready(&r, 1, 2);
    assert_int_equal(round_rig_plan(&r, 0, &open), 0); /* too few */
    round_rig_ready(&r, 0, 0);
    round_rig_begin(&r, 0, 3);
    for (uint32_t i = 0; i < 3; i++) round_rig_deliver(&r, i, 1, 0);
    assert_int_equal(round_rig_merge(&r, 0, &close), 1);
    round_rig_begin(&r, 0, 3); /* the next round has a place for all of them */
    round_rig_close(&r);
}

/* One fragment in time, the other late: the worker gets a place in the next round. It receives the refusal at any
 * later time. If later work of a fragment was merged, the worker detects it itself. */
TEST(test_half_late_delta_is_refused)
{
    const char *settings[] = {"coordinator.quorum=2", NULL};
    struct round r;
    struct round_close close;
    uint16_t code;
    round_rig_open(&r, settings, 2);
    round_rig_ready(&r, 0, 2);
    round_rig_begin(&r, 0, 3);
    struct round_offer late = round_rig_offer(&r, 2, 0), merged = round_rig_offer(&r, 2, 1);
    for (uint32_t i = 0; i < 5; i++) round_rig_deliver(&r, i / 2, 1 - i % 2, 1000000);
    assert_int_equal(round_rig_merge(&r, 60000000, &close), 2);
    round_rig_begin(&r, 60000000, 3);
    assert_int_equal(round_rig_judge(&r, 2, &late, &code), ROUND_REJECT);
    assert_int_equal(code, REJECT_LATE);
    assert_int_equal(round_rig_judge(&r, 2, &merged, &code), ROUND_HAVE);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t f = 0; f < 2; f++) round_rig_deliver(&r, i, f, 61000000);
    assert_int_equal(round_rig_merge(&r, 61000000, &close), 2);
    assert_int_equal(round_rig_judge(&r, 2, &late, &code), ROUND_HAVE);
    assert_int_equal(round_rig_judge(&r, 2, &merged, &code), ROUND_HAVE);
    round_rig_close(&r);
}

TEST(test_ddp_fragments_close_together)
{
    const char *settings[] = {"train.method=ddp", NULL};
    struct round r;
    struct round_close close;
    round_rig_open(&r, settings, 2);
    assert_int_equal(round_total(&r), 10);
    round_rig_ready(&r, 0, 2);
    round_rig_begin(&r, 0, 3);
    assert_int_equal(round_rig_grants[0].steps, 1);
    for (uint32_t i = 0; i < 3; i++) round_rig_deliver(&r, i, 0, 0);
    assert_int_equal(round_rig_merge(&r, 0, &close), 0); /* the norm of the gradient spans all fragments */
    for (uint32_t i = 0; i < 3; i++) round_rig_deliver(&r, i, 1, 0);
    assert_int_equal(round_rig_merge(&r, 0, &close), 2);
    round_rig_close(&r);
}

/* A worker that left before any of its work was merged has no claim on its place. */
TEST(test_vacant_place_is_given_to_another_worker)
{
    struct round r;
    struct round_close close;
    const uint8_t first[WIRE_UUID] = {1}, second[WIRE_UUID] = {2}, fourth[WIRE_UUID] = {4}, fifth[WIRE_UUID] = {5};
    round_rig_at_work(&r);
    assert_int_equal(round_fold_join(&r, 0, fourth, "w3"), STATUS_STATE); /* w0 is there */
    round_rig_deliver(&r, 0, 0, 1);
    assert_int_equal(round_fold_leave(&r, 0), STATUS_OK);
    assert_int_equal(round_fold_join(&r, 0, fourth, "w3"), STATUS_STATE); /* its delta may still be merged */
    assert_int_equal(round_fold_leave(&r, 1), STATUS_OK);
    assert_int_equal(member_free_place(&r.members), 1);
    assert_int_equal(round_fold_join(&r, 1, fourth, "w3"), STATUS_OK);
    const struct member *m = member_by_id(&r.members, 1);
    assert_string_equal(m->name, "w3");
    assert_true(m->active && !m->work.open && !m->ready);
    assert_int_equal(m->next_round, 1); /* (id, round) names one assignment only */
    assert_null(member_by_uuid(&r.members, second));
    assert_int_equal(member_free_place(&r.members), 3);
    for (uint32_t f = 0; f < 2; f++) round_rig_deliver(&r, 2, f, 2);
    assert_int_equal(round_rig_merge(&r, 2, &close), 2);
    assert_int_equal(round_fold_leave(&r, 2), STATUS_OK);
    assert_int_equal(member_free_place(&r.members), 3); /* w0 and w2 have merged work */
    assert_int_equal(round_fold_join(&r, 0, fifth, "w4"), STATUS_STATE);
    assert_int_equal(round_fold_join(&r, 0, first, "w0"), STATUS_OK); /* and get their places back */
    assert_int_equal(round_fold_join(&r, 3, second, "w1"), STATUS_OK);
    assert_int_equal(r.members.n, 4);
    round_rig_close(&r);
}

TEST(test_members_are_limited)
{
    struct round r;
    struct member *m;
    uint8_t uuid[WIRE_UUID] = {99};
    round_rig_open(&r, NULL, 1);
    while (r.members.n < MEMBERS_MAX) {
        memcpy(uuid + 1, &r.members.n, sizeof r.members.n);
        assert_int_equal(member_add(&r.members, uuid, "w", &m), STATUS_OK);
    }
    round_recount(&r);
    uuid[0] = 98;
    assert_int_equal(member_free_place(&r.members), UINT32_MAX);
    assert_int_equal(round_fold_join(&r, MEMBERS_MAX, uuid, "more"), STATUS_LIMIT);
    assert_int_equal(round_fold_leave(&r, 7), STATUS_OK);
    assert_int_equal(member_free_place(&r.members), 7);
    assert_int_equal(round_fold_join(&r, 7, uuid, "more"), STATUS_OK);
    round_rig_close(&r);
}

/* A damaged journal: invalid records change no state. */
TEST(test_folds_refuse_invalid_records)
{
    struct round r;
    struct round_open open;
    const uint8_t uuid[WIRE_UUID] = {9};
    const struct part part = {.tokens = 1};
    struct round_named named[2] = {{1, 0}, {0, 0}};
    round_rig_open(&r, NULL, 2);
    assert_int_equal(round_fold_join(&r, 7, uuid, "gap"), STATUS_STATE);
    assert_int_equal(round_fold_join(&r, 2, r.members.members[1]->uuid, "swap"), STATUS_STATE);
    assert_int_equal(round_fold_leave(&r, 9), STATUS_STATE);
    round_rig_ready(&r, 0, 2);
    assert_int_equal(round_rig_plan(&r, 0, &open), 3);
    round_rig_grants[1].id = 0; /* twice */
    assert_int_equal(round_fold_open(&r, &open), STATUS_STATE);
    assert_int_equal(round_rig_plan(&r, 0, &open), 3);
    round_rig_grants[2].round = 5;
    assert_int_equal(round_fold_open(&r, &open), STATUS_STATE);
    assert_int_equal(round_rig_plan(&r, 0, &open), 3);
    round_rig_grants[2].n_ranges = 0;
    assert_int_equal(round_fold_open(&r, &open), STATUS_STATE);
    open.n = 0;
    assert_int_equal(round_fold_open(&r, &open), STATUS_STATE);
    assert_int_equal(r.leases.n_leases, 0);
    assert_int_equal(round_fold_delta(&r, 0, 0, 0, &part), STATUS_STATE); /* nothing assigned */
    round_rig_begin(&r, 0, 3);
    assert_int_equal(round_fold_delta(&r, 0, 1, 0, &part), STATUS_STATE);
    assert_int_equal(round_fold_delta(&r, 0, 0, 2, &part), STATUS_STATE);
    assert_int_equal(round_fold_delta(&r, 9, 0, 0, &part), STATUS_STATE);
    assert_int_equal(round_fold_delta(&r, 0, 0, 0, &(struct part){0}), STATUS_STATE); /* no tokens */
    assert_int_equal(round_fold_drop(&r, 0, 4, UINT32_MAX, REJECT_LATE), STATUS_STATE);
    assert_int_equal(round_fold_update(&r, 0, 1, named, 1), STATUS_STATE); /* not held */
    round_rig_deliver(&r, 0, 0, 0);
    round_rig_deliver(&r, 1, 0, 0);
    assert_int_equal(round_fold_update(&r, 0, 2, named, 1), STATUS_STATE); /* a version is missing */
    assert_int_equal(round_fold_update(&r, 0, 1, named, 0), STATUS_STATE);
    assert_int_equal(round_fold_update(&r, 0, 1, named, 2), STATUS_STATE); /* not in order of ids */
    assert_int_equal(r.versions[0], 0);
    assert_int_equal(r.leases.committed, 0);
    named[0] = named[1];
    assert_int_equal(round_fold_update(&r, 0, 1, named, 1), STATUS_OK);
    assert_int_equal(round_fold_update(&r, 0, 2, named, 1), STATUS_STATE); /* already merged */
    named[0].id = 1 - named[0].id;
    assert_int_equal(round_fold_update(&r, 0, 2, named, 1), STATUS_STATE); /* held, but the fragment is closed */
    round_rig_close(&r);
}

static void expect_damaged(struct round *r, uint64_t *number, uint64_t other)
{
    uint64_t good = *number;
    *number = other;
    assert_int_equal(round_check(r), STATUS_CORRUPT);
    *number = good;
    assert_int_equal(round_check(r), STATUS_OK);
}

/* The round of a checkpoint is consistent, or refused. */
TEST(test_check_detects_damage)
{
    struct round r;
    struct round_close close;
    round_rig_at_work(&r);
    assert_int_equal(round_check(&r), STATUS_OK);
    struct member *m = r.members.members[0];
    expect_damaged(&r, &r.steps_outstanding, r.steps_outstanding - 1);
    expect_damaged(&r, &r.round, 1);
    expect_damaged(&r, &m->next_round, 7);
    expect_damaged(&r, &m->work.round, 7);
    expect_damaged(&r, &m->merged_in[1], 1); /* version 1 does not exist yet */
    m->work.merged = true;
    assert_int_equal(round_check(&r), STATUS_CORRUPT); /* its lease is not committed */
    m->work.merged = false;
    r.open = false;
    assert_int_equal(round_check(&r), STATUS_CORRUPT);
    r.open = true;
    for (uint32_t i = 0; i < 3; i++) round_rig_deliver(&r, i, 0, 0);
    assert_int_equal(round_rig_merge(&r, 0, &close), 1);
    assert_int_equal(round_check(&r), STATUS_OK);
    expect_damaged(&r, &r.versions[0], 0);
    expect_damaged(&r, &m->merged[0], 3);
    round_rig_close(&r);
}

/* train.dynamic_steps: a member of a fifth of the speed takes fewer steps, the others more. The tokens of the round and
 * its place in the schedule of the learning rate stay. Members that differ by less than 10 % take H steps each. */
TEST(test_steps_follow_speed_with_a_barrier)
{
    static const double step_s[][3] = {{0.1, 0.1, 0.5}, {0.1, 0.105, 0.1}, {0.1, 0.1, 0}, {0.1, 1000, 1000}};
    static const uint32_t expect[][3] = {{27, 27, 6}, {20, 20, 20}, {20, 20, 20}, {58, 1, 1}};
    const char *settings[] = {"train.dynamic_steps=on", "train.max_steps=50", "train.sync_every=20", NULL};
    for (int c = 0; c < 4; c++) {
        struct round r;
        uint64_t samples = 0;
        round_rig_open(&r, settings, 1);
        round_rig_ready(&r, 0, 2);
        for (uint32_t i = 0; i < 3; i++)
            if (step_s[c][i] > 0) round_rig_speed(&r, i, step_s[c][i], 1);
        round_rig_begin(&r, 0, 3);
        for (uint32_t i = 0; i < 3; i++) {
            const struct assignment *work = &r.members.members[i]->work;
            assert_int_equal(work->steps, expect[c][i]);
            assert_true(work->step0 == 0 && fabs(work->step_rate * work->steps - 20) < 1e-9);
            for (uint32_t k = 0; k < work->n_ranges; k++) samples += work->ranges[k].count;
        }
        assert_int_equal(samples, 60 * r.p.step_samples);
        round_rig_close(&r);
    }
}

/* train.start_step: rounds of one step, then rounds of train.sync_every steps. Their times are not compared. */
TEST(test_short_rounds_come_first)
{
    static const uint32_t steps[] = {1, 1, 1, 4, 3}, first[] = {0, 1, 2, 3, 7};
    const char *settings[] = {"train.start_step=3", "train.dynamic_steps=on", NULL};
    struct round r;
    struct round_close close;
    round_rig_open(&r, settings, 1);
    assert_int_equal(round_total(&r), 5);
    round_rig_ready(&r, 0, 2);
    for (uint32_t i = 0; i < 3; i++) round_rig_speed(&r, i, i + 1, 1);
    for (uint64_t round = 0; round < 5; round++) {
        uint64_t at = 1000 * round, sum = 0;
        round_rig_begin(&r, at, 3);
        if (round == 3) assert_true(r.arrivals.n == 0 && r.durations.n == 0);
        for (uint32_t i = 0; i < 3; i++) {
            const struct assignment *work = &r.members.members[i]->work;
            assert_true(work->step0 == first[round]);
            if (round < 3) assert_int_equal(work->steps, 1); /* no share of one step */
            sum += work->steps;
        }
        assert_int_equal(sum, 3 * steps[round]);
        for (uint32_t i = 0; i < 3; i++) round_rig_deliver(&r, i, 0, at + 10);
        assert_int_equal(round_rig_merge(&r, at + 20, &close), 1);
        round_note_close(&r, at + 20);
        assert_true(r.arrivals.n == 3 * (round < 3 ? round + 1 : round - 2));
        assert_int_equal(round_span(&r, round_done(&r)).first, first[round] + steps[round]);
    }
    assert_true(round_over(&r));
    round_rig_close(&r);
}

TEST_MAIN(NULL, NULL)
