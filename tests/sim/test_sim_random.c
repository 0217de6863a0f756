/* Whole clusters under random faults. The checker asserts its invariants after every event
 * (tests/lib/sim/sim_check.h).
 *
 *   SIM_SEED=n test_sim_random     replays one run and prints every event
 *   SIM_RUNS=n test_sim_random     runs n seeds; SIM_FROM=n sets the first
 *   SIM_HARSH=1                    draws more faults, with either of these
 *
 * ctest: timeout=300 */

#include "tests/lib/sim/sim_random.h"
#include "tests/lib/test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { RUNS = 200 };
#else
enum { RUNS = 1000 };
#endif

struct totals {
    uint64_t beat_updates, repeats, long_works, most_flying;
    double beats; /* of beat_updates, if each beat published one */
    uint64_t runs, compared, kills, evicted, resumed, reloaded, returned, lost_versions, rejected, faults, updates,
        checks, relayed;
    struct sim_net_counts net;
};

static void totals_add(struct totals *t, const struct sim_random_outcome *o)
{
    t->runs++;
    t->repeats += o->checks.repeats;
    t->long_works += o->long_works;
    if (o->checks.most_flying > t->most_flying) t->most_flying = o->checks.most_flying;
    t->kills += o->kills;
    t->evicted += o->checks.evicted;
    t->resumed += o->checks.resumed;
    t->reloaded += o->checks.reloaded;
    t->returned += o->checks.returned;
    t->lost_versions += o->checks.lost_versions;
    t->rejected += o->checks.rejected;
    t->faults += o->checks.faults;
    t->updates += o->checks.updates;
    t->relayed += o->checks.relayed;
    t->checks += o->checks.checks;
    t->net.sent += o->net.sent;
    t->net.lost += o->net.lost;
    t->net.duplicated += o->net.duplicated;
}

static unsigned weather; /* SIM_RANDOM_HARSH or 0 */

static void add_beats(uint64_t seed, struct totals *t)
{
    struct sim_random_plan plan;
    struct sim_random_outcome calm;
    assert_int_equal(sim_random_run(seed, weather | SIM_RANDOM_CALM, stdout, &plan, &calm), STATUS_OK);
    assert_true(calm.ended);
    t->beat_updates += calm.checks.updates;
    t->beats += plan.updates;
}

/* Returns false if the run breaks an invariant, does not end, or ends at another theta than the run without faults. */
static bool run_seed(uint64_t seed, bool trace, struct totals *t)
{
    struct sim_random_plan plan;
    struct sim_random_outcome stormy, calm;
    assert_int_equal(sim_random_run(seed, weather | (trace ? SIM_RANDOM_TRACE : 0), stdout, &plan, &stormy), STATUS_OK);
    totals_add(t, &stormy);
    if (!stormy.ended) return false;
    if (plan.updates > 0) add_beats(seed, t);
    if (!plan.comparable || stormy.checks.evicted || stormy.checks.left) return true;
    assert_int_equal(sim_random_run(seed, weather | SIM_RANDOM_CALM, stdout, &plan, &calm), STATUS_OK);
    t->compared++;
    if (calm.ended && calm.result.theta_hash == stormy.result.theta_hash) return true;
    printf("seed %llu: ends at theta %016llx, without faults at %016llx\n%s\n", (unsigned long long)seed,
           (unsigned long long)stormy.result.theta_hash, (unsigned long long)calm.result.theta_hash, plan.text);
    return false;
}

TEST(test_random_faults_break_no_invariant)
{
    struct totals t = {0};
    const char *one = getenv("SIM_SEED"), *many = getenv("SIM_RUNS"), *begin = getenv("SIM_FROM");
    weather = getenv("SIM_HARSH") ? SIM_RANDOM_HARSH : 0;
    if (one) {
        assert_true(run_seed(strtoull(one, NULL, 10), true, &t));
        return;
    }
    uint64_t runs = many ? strtoull(many, NULL, 10) : RUNS, failed = 0, from = begin ? strtoull(begin, NULL, 10) : 1;
    for (uint64_t seed = from; seed < from + runs && failed < 5; seed++) {
        if (run_seed(seed, false, &t)) continue;
        failed++;
        printf("%sSIM_SEED=%llu replays this run\n\n", weather ? "SIM_HARSH=1 " : "", (unsigned long long)seed);
    }
    printf("%llu runs, %llu compared with a run without faults; %llu kills, %llu evictions, %llu states loaded, %llu "
           "joins from a snapshot (%llu kept the residual), %llu unseen versions lost\n",
           (unsigned long long)t.runs, (unsigned long long)t.compared, (unsigned long long)t.kills,
           (unsigned long long)t.evicted, (unsigned long long)t.resumed, (unsigned long long)t.reloaded,
           (unsigned long long)t.returned, (unsigned long long)t.lost_versions);
    printf("%llu updates, %llu of them relayed deltas; %llu deltas refused; %llu messages, %llu lost, %llu duplicated; "
           "%llu checks\n",
           (unsigned long long)t.updates, (unsigned long long)t.relayed, (unsigned long long)t.rejected,
           (unsigned long long)t.net.sent, (unsigned long long)t.net.lost, (unsigned long long)t.net.duplicated,
           (unsigned long long)t.checks);
    printf("%llu pieces of long work, %llu requests sent again without an answer, %llu bytes requested at once; "
           "outer.grace auto: %llu updates instead of %.0f\n",
           (unsigned long long)t.long_works, (unsigned long long)t.repeats, (unsigned long long)t.most_flying,
           (unsigned long long)t.beat_updates, t.beats);
    assert_int_equal(failed, 0);
    assert_true(t.beats < 100 || (double)t.beat_updates <= SIM_RANDOM_UPDATES_MOST * t.beats);
    if (many || weather) return;
    /* The schedules must cover the cases below. */
    assert_true(t.compared > runs / 10 && t.kills > runs && t.evicted > 0 && t.resumed > 0);
    assert_true(t.long_works > runs / 2 && (t.most_flying > 2 * (4 << 20) || runs < 1000)); /* of a wide run */
    assert_true(t.repeats > runs && t.beats > (double)runs / 10);
    assert_true(t.reloaded > 0 && t.returned > 0 && t.reloaded > t.returned);
    assert_true(t.relayed > t.updates / 20 && t.rejected > 0 && t.net.lost > 0 && t.net.duplicated > 0);
}

/* Harsh runs that once failed. */
TEST(test_seeds_that_failed)
{
    static const uint64_t seeds[] = {254, 500, 4097, 4893, 4960};
    struct totals t = {0};
    weather = SIM_RANDOM_HARSH;
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) assert_true(run_seed(seeds[i], false, &t));
}

TEST_MAIN(NULL, NULL)
