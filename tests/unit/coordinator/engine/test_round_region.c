/* The rounds of a region: grants, seals, updates of another run, jumps; a fold refuses records that do not fit. */
#include "tests/lib/rigs/round_rig.h"
#include "tests/lib/test.h"

enum { ONE = 24 }; /* samples of one worker in a round: H 4, 6 a step */

static void begin(struct round *r)
{
    round_rig_open(r, NULL, 2);
    round_follow(r);
    round_rig_ready(r, 0, 2);
}

static enum status grant(struct round *r, uint64_t round, uint64_t start, uint64_t count, bool kept)
{
    struct round_upstream g = {.round = round, .steps = 4, .step0 = 4.0 * (double)round, .step_rate = 1};
    g.kept = kept;
    g.n_ranges = 1;
    g.ranges[0] = (struct wire_range){start, count};
    enum status status = round_fold_grant(r, &g);
    assert_int_equal(lease_check(&r->leases), STATUS_OK);
    assert_true(round_counts_hold(r));
    return status;
}

static void update(struct round *r, uint32_t fragment, const uint32_t *ids, uint32_t n)
{
    struct round_named named[ROUNDRIG_WORKERS];
    for (uint32_t i = 0; i < n; i++) named[i] = (struct round_named){ids[i], r->round};
    assert_int_equal(round_fold_update(r, fragment, r->versions[fragment] + 1, named, n), STATUS_OK);
    assert_true(round_counts_hold(r));
    assert_int_equal(lease_check(&r->leases), STATUS_OK);
    assert_int_equal(round_check(r), STATUS_OK);
}

static const uint32_t all[] = {0, 1, 2};

TEST(test_grant_opens_seal_fixes_update_ends)
{
    struct round r;
    struct round_open open;
    struct round_close close;
    uint16_t code;
    begin(&r);
    assert_int_equal(round_rig_plan(&r, 0, &open), 0); /* nothing is granted */
    assert_int_equal(grant(&r, 1, 0, ONE, true), STATUS_STATE);
    assert_int_equal(grant(&r, 0, 100, 3 * ONE, true), STATUS_OK);
    assert_int_equal(round_count_workers(&r), 3);
    round_rig_begin(&r, 0, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(round_rig_grants[i].ranges[0].start, 100 + i * ONE);
        assert_int_equal(round_rig_grants[i].ranges[0].count, ONE);
    }
    assert_int_equal(round_fold_seal(&r, 0), STATUS_STATE); /* no delta is complete */
    for (uint32_t i = 0; i < 3; i++) {
        round_rig_deliver(&r, i, 0, 0);
        assert_false(round_next_close(&r, 0, &close)); /* the fragments are sealed together */
    }
    for (uint32_t i = 0; i < 3; i++) round_rig_deliver(&r, i, 1, 0);
    assert_true(round_next_close(&r, 0, &close) && close.n == 3 && !close.late);
    assert_int_equal(round_fold_update(&r, 0, 1, (struct round_named[]){{0, 0}}, 1), STATUS_STATE); /* not sealed */
    assert_int_equal(round_fold_seal(&r, 0), STATUS_OK);
    assert_int_equal(round_fold_seal(&r, 0), STATUS_STATE);
    assert_false(round_next_close(&r, 0, &close));
    assert_int_equal(grant(&r, 0, 500, ONE, false), STATUS_STATE); /* its deltas may be on their way */
    update(&r, 1, all, 3);
    assert_true(round_busy(&r) && round_done(&r) == 0);
    update(&r, 0, all, 3);
    assert_true(!round_busy(&r) && round_done(&r) == 1 && !r.region.sealed);
    assert_int_equal(r.leases.committed, 100 + 3 * ONE);
    assert_int_equal(round_rig_plan(&r, 0, &open), 0);
    struct round_offer old = {.round = 0, .base_version = 0, .fragment = 0};
    assert_int_equal(round_rig_judge(&r, 0, &old, &code), ROUND_HAVE);
    assert_int_equal(grant(&r, 1, 500, 2 * ONE, true), STATUS_OK);
    assert_int_equal(round_rig_plan(&r, 0, &open), 2); /* the third waits: upstream has not granted enough */
    round_rig_close(&r);
}

/* Upstream closed the round without this region: its workers put their deltas back. */
TEST(test_update_without_the_region)
{
    struct round r;
    struct round_open open;
    uint16_t code;
    begin(&r);
    assert_int_equal(grant(&r, 0, 0, 3 * ONE, true), STATUS_OK);
    round_rig_begin(&r, 0, 3);
    for (uint32_t f = 0; f < 2; f++) round_rig_deliver(&r, 0, f, 0);
    struct round_offer held = round_rig_offer(&r, 0, 0), missing = round_rig_offer(&r, 1, 0);
    update(&r, 0, NULL, 0);
    assert_int_equal(round_rig_judge(&r, 0, &held, &code), ROUND_REJECT);
    assert_int_equal(code, REJECT_LATE);
    assert_int_equal(round_rig_judge(&r, 1, &missing, &code), ROUND_REJECT);
    assert_true(round_busy(&r)); /* the other fragment */
    struct round_close close;
    assert_false(round_next_close(&r, UINT64_MAX / 2, &close)); /* half a delta is not sealed */
    update(&r, 1, NULL, 0);
    assert_true(!round_busy(&r) && round_done(&r) == 1);
    assert_int_equal(r.leases.committed, 0);
    round_rig_ready(&r, 0, 2);
    assert_int_equal(grant(&r, 1, 300, ONE, false), STATUS_OK);
    assert_int_equal(round_rig_plan(&r, 0, &open), 1);
    assert_int_equal(round_rig_grants[0].ranges[0].start, 300); /* the old positions are upstream's again */
    update(&r, 0, NULL, 0);                                     /* and rounds pass without any work */
    assert_int_equal(round_rig_plan(&r, 0, &open), 0);          /* half of the round is over */
    update(&r, 1, NULL, 0);
    assert_int_equal(round_done(&r), 2);
    round_rig_close(&r);
}

TEST(test_late_members_are_dropped_as_a_whole)
{
    static const char *const quorum[] = {"coordinator.quorum=1", NULL};
    struct round r;
    struct round_close close;
    uint16_t code;
    round_rig_open(&r, quorum, 2);
    round_follow(&r);
    round_rig_ready(&r, 0, 2);
    assert_int_equal(grant(&r, 0, 0, 3 * ONE, true), STATUS_OK);
    round_rig_begin(&r, 0, 3);
    round_rig_deliver(&r, 0, 0, 1);
    round_rig_deliver(&r, 1, 1, 1);
    assert_false(round_next_close(&r, 4000000000u, &close)); /* no member has delivered both */
    round_rig_deliver(&r, 0, 1, 2);
    assert_true(round_next_close(&r, 4000000000u, &close) && close.late && close.n == 1 && close.ids[0] == 0);
    assert_int_equal(round_fold_seal(&r, 0), STATUS_OK);
    struct round_offer held = {.round = 0, .fragment = 1};
    assert_int_equal(round_rig_judge(&r, 1, &held, &code), ROUND_REJECT);
    update(&r, 0, all, 1);
    update(&r, 1, all, 1);
    assert_int_equal(r.leases.committed, ONE);
    round_rig_close(&r);
}

TEST(test_round_granted_again)
{
    struct round r;
    struct round_open open;
    begin(&r);
    assert_int_equal(grant(&r, 0, 0, 3 * ONE, true), STATUS_OK);
    round_rig_begin(&r, 0, 3);
    round_rig_deliver(&r, 0, 0, 0);
    assert_int_equal(grant(&r, 0, 200, 2 * ONE, true), STATUS_OK); /* upstream has evicted this region meanwhile */
    assert_false(round_busy(&r));
    round_rig_ready(&r, 0, 2);
    assert_int_equal(round_rig_plan(&r, 0, &open), 2);
    assert_int_equal(round_rig_grants[0].ranges[0].start, 200);
    round_rig_close(&r);
}

TEST(test_jump_drops_all_work)
{
    struct round r;
    struct round_open open;
    const uint64_t versions[] = {2, 1};
    begin(&r);
    assert_int_equal(grant(&r, 0, 0, 3 * ONE, true), STATUS_OK);
    round_rig_begin(&r, 0, 3);
    for (uint32_t f = 0; f < 2; f++) round_rig_deliver(&r, 0, f, 0);
    round_fold_jump(&r, versions);
    assert_true(!round_busy(&r) && round_done(&r) == 1 && r.versions[0] == 2);
    assert_int_equal(round_check(&r), STATUS_OK);
    round_rig_ready(&r, 0, 2);
    assert_int_equal(grant(&r, 1, 100, 3 * ONE, true), STATUS_OK);
    assert_int_equal(round_rig_plan(&r, 0, &open), 0); /* in the middle of a round */
    update(&r, 1, NULL, 0);
    assert_int_equal(round_done(&r), 2);
    assert_int_equal(grant(&r, 2, 200, 3 * ONE, true), STATUS_OK);
    assert_int_equal(round_rig_plan(&r, 0, &open), 3);
    round_rig_close(&r);
}

TEST_MAIN(NULL, NULL)
