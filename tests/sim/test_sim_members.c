/* Membership in a simulated cluster: late joiners, stopped workers, and places and rounds that change hands.
 * SIM_TRACE=1 prints every event. */

#include "tests/lib/sim/sim_rig.h"
#include "tests/lib/test.h"

static bool rounds_done(struct sim_cluster *c, void *ctx)
{
    struct engine_summary summary;
    if (!c->engine) return false;
    engine_summary(c->engine, &summary);
    return summary.rounds >= *(uint64_t *)ctx;
}

static bool until_round(struct sim_cluster *c, uint64_t rounds)
{
    return sim_rig_until(c, 1000, rounds_done, &rounds);
}

/* Runs until `rounds` rounds are done; returns the virtual seconds that this took. */
static double timed_rounds(struct sim_cluster *c, uint64_t rounds)
{
    uint64_t start = sim_net_now(c->net);
    assert_true(until_round(c, rounds));
    return (double)(sim_net_now(c->net) - start) / 1e6;
}

/* Counts the messages of one type to or from a client, and keeps the first. */
struct watch {
    enum msg_type type;
    int client;
    bool to_client;
    int seen;
    uint16_t code;
};

static int watch_message(void *ctx, enum sim_net_moment moment, int client, bool to_client, const struct msg *m)
{
    struct watch *w = ctx;
    if (moment == SIM_NET_SENT && m->type == w->type && client == w->client && to_client == w->to_client) {
        w->seen++;
        if (m->type == MSG_REJECT) w->code = m->reject.code;
        if (m->type == MSG_REFUSE) w->code = m->refuse.code;
    }
    return 1;
}

static bool watch_seen(struct sim_cluster *c, void *ctx)
{
    (void)c;
    return ((struct watch *)ctx)->seen > 0;
}

/* ---- */

TEST(test_late_joiner_does_not_delay_others)
{
    const char *config[] = {"train.max_steps=80", "coordinator.min_workers=2", "train.eval_every=0",
                            "codec.up=int8:16",   "codec.down=int8:16",        NULL};
    struct sim_cluster_setup setup = {.seed = 1, .n_workers = 3, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    sim_rig_start(c, 2);
    assert_true(until_round(c, 4));
    double before = timed_rounds(c, 8);
    struct watch offer = {.type = MSG_OFFER, .client = 2};
    sim_check_script(c->check, watch_message, &offer);
    sim_worker_start(&c->workers[2]);
    double meanwhile = timed_rounds(c, 12);
    assert_true(meanwhile < 1.5 * before); /* the other workers do not pause for the late joiner */
    assert_true(sim_rig_until(c, 100, watch_seen, &offer));
    assert_true(sim_rig_ends(c, 1000));
    assert_int_equal(c->workers[2].last_want, OUTER_DONE);
    assert_true(sim_check_counts(c->check).reloaded >= 1);
    sim_rig_done(c);
}

/* Stops one worker. A barrier method waits for it and reports that; `async` continues. Returns the rounds done. */
static uint64_t run_with_stopped_worker(const char *method, char *text, size_t cap)
{
    char setting[64];
    snprintf(setting, sizeof(setting), "train.method=%s", method);
    const char *config[] = {setting,
                            "train.max_steps=40",
                            "train.eval_every=0",
                            "coordinator.min_workers=3",
                            "outer.max_staleness=100",
                            "train.dynamic_steps=off",
                            "coordinator.evict_after_s=60",
                            NULL};
    struct sim_cluster_setup setup = {.seed = 2, .n_workers = 3, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    sim_rig_start(c, 3);
    assert_true(until_round(c, 2));
    uint64_t working = sim_net_now(c->net) + 250000; /* the workers train their next assignment */
    while (sim_net_now(c->net) < working && sim_net_step(c->net, working)) continue;
    sim_worker_freeze(&c->workers[1], true);
    uint64_t start = sim_net_now(c->net);
    while (sim_net_now(c->net) < start + 20000000 && sim_net_step(c->net, start + 20000000)) continue;
    struct engine_summary summary;
    engine_summary(c->engine, &summary);
    engine_waiting(c->engine, text, cap);
    sim_worker_freeze(&c->workers[1], false);
    assert_true(sim_rig_ends(c, 1000));
    sim_rig_done(c);
    return summary.rounds;
}

TEST(test_only_barrier_methods_wait_for_stopped_worker)
{
    char text[WIRE_TEXT_MAX];
    assert_true(run_with_stopped_worker("diloco", text, sizeof(text)) <= 3);
    assert_non_null(strstr(text, "worker-1"));
    assert_true(run_with_stopped_worker("async", text, sizeof(text)) >= 9); /* of 10: the stopped worker holds 1 */
}

static bool evicted(struct sim_cluster *c, void *ctx)
{
    (void)ctx;
    return sim_check_counts(c->check).evicted > 0;
}

/* worker-0 is evicted before any merge, and worker-1 gets its place. A power cut loses that record: worker-0 has its
 * place again, and worker-1 gets another one. */
TEST(test_power_cut_gives_place_back)
{
    const char *config[] = {"coordinator.evict_after_s=5", "train.eval_every=0", "codec.up=int8:16", NULL};
    struct sim_cluster_setup setup = {.seed = 7, .n_workers = 2, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    sim_rig_start(c, 1);
    struct watch assign = {.type = MSG_ASSIGN, .client = 0, .to_client = true};
    sim_check_script(c->check, watch_message, &assign);
    assert_true(sim_rig_until(c, 100, watch_seen, &assign));
    sim_worker_freeze(&c->workers[0], true);
    assert_true(sim_rig_until(c, 100, evicted, NULL));
    struct watch welcome = {.type = MSG_WELCOME, .client = 1, .to_client = true};
    sim_check_script(c->check, watch_message, &welcome);
    sim_worker_start(&c->workers[1]);
    assert_true(sim_rig_until(c, 100, watch_seen, &welcome));
    assert_string_equal(engine_member_name(c->engine, 0), "worker-1");
    sim_cluster_coordinator_kill(c, true);
    sim_cluster_coordinator_start(c);
    assert_string_equal(engine_member_name(c->engine, 0), "worker-0");
    assign.seen = 0;
    sim_check_script(c->check, watch_message, &assign);
    sim_worker_freeze(&c->workers[0], false);
    assert_true(sim_rig_until(c, 100, watch_seen, &assign));
    assert_true(sim_rig_ends(c, 1000));
    assert_int_equal(c->workers[0].task.worker_id, 0);
    sim_rig_done(c);
}

static void wait_us(struct sim_cluster *c, uint64_t us)
{
    uint64_t until = sim_net_now(c->net) + us;
    while (sim_net_now(c->net) < until && sim_net_step(c->net, until)) continue;
}

/* All workers lose their place in a round, and the coordinator assigns the round again under the same number.
 * One worker comes back, has its delta refused, and is told to stop while it waits for the others.
 * After its restart the worker holds the round again. */
static void refused_and_started_again(const char *method, const char *codec, const char *every)
{
    const char *config[] = {method,
                            codec,
                            every,
                            "train.max_steps=40",
                            "coordinator.min_workers=2",
                            "coordinator.evict_after_s=4",
                            "train.eval_every=0",
                            NULL};
    struct sim_cluster_setup setup = {.seed = 9, .n_workers = 2, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    sim_rig_start(c, 2);
    assert_true(until_round(c, 3));
    struct watch reject = {.type = MSG_REJECT, .client = 0, .to_client = true};
    sim_check_script(c->check, watch_message, &reject);
    while (c->workers[0].busy != SIM_WORKER_TRAINS) assert_true(sim_net_step(c->net, UINT64_MAX));
    for (int i = 0; i < 2; i++) sim_worker_freeze(&c->workers[i], true);
    wait_us(c, 8000000);
    assert_int_equal(sim_check_counts(c->check).evicted, 2);
    sim_worker_freeze(&c->workers[0], false);
    assert_true(sim_rig_until(c, 30, watch_seen, &reject));
    wait_us(c, 2000000);
    sim_worker_leave(&c->workers[0]);
    wait_us(c, 500000);
    sim_worker_start(&c->workers[0]);
    wait_us(c, 1000000);
    sim_worker_freeze(&c->workers[1], false);
    assert_true(sim_rig_ends(c, 300));
    sim_rig_done(c);
}

TEST(test_worker_resumes_reassigned_round)
{
    refused_and_started_again("train.method=ddp", "codec.up=fp32", "checkpoint.worker_every=1");
    refused_and_started_again("train.method=diloco", "codec.up=int8:16", "checkpoint.worker_every=1");
    refused_and_started_again("train.method=diloco", "codec.up=int8:16", "checkpoint.worker_every=3");
}

static bool trains(struct sim_cluster *c, void *ctx)
{
    (void)ctx;
    return c->workers[1].busy == SIM_WORKER_TRAINS;
}

/* A delta is refused together with the state it was saved with, and the round is assigned again with other samples.
 * A worker that is killed then must not deliver the old delta as the new one. */
TEST(test_refused_delta_is_not_delivered_again)
{
    const char *config[] = {"codec.up=int8:16",          "train.max_steps=40",
                            "coordinator.min_workers=1", "coordinator.evict_after_s=4",
                            "train.eval_every=0",        NULL};
    struct sim_cluster_setup setup = {.seed = 10, .n_workers = 2, .config = config};
    for (int training = 0; training < 2; training++) {
        struct sim_cluster *c = sim_rig_cluster(&setup);
        sim_rig_start(c, 2);
        assert_true(until_round(c, 3));
        assert_true(sim_rig_until(c, 10, trains, NULL));
        sim_net_partition(c->net, 1, true);
        sim_worker_freeze(&c->workers[0], true);
        wait_us(c, 8000000);
        assert_int_equal(sim_check_counts(c->check).evicted, 2);
        struct watch assign = {.type = MSG_ASSIGN, .client = 1, .to_client = true};
        sim_check_script(c->check, watch_message, &assign);
        sim_net_partition(c->net, 1, false);
        assert_true(sim_rig_until(c, 100, watch_seen, &assign));
        assert_true(sim_check_counts(c->check).rejected > 0);
        if (training) assert_true(sim_rig_until(c, 10, trains, NULL));
        sim_worker_kill(&c->workers[1]); /* without `training`: before the worker receives the refusal */
        wait_us(c, 1000000);
        sim_worker_start(&c->workers[1]);
        sim_worker_freeze(&c->workers[0], false);
        assert_true(sim_rig_ends(c, 1000));
        sim_rig_done(c);
    }
}

/* What `atoll status --json` says has this text. */
static bool status_has(struct sim_cluster *c, const char *text)
{
    static char json[1 << 18];
    assert_non_null(c->engine);
    assert_true(engine_status_json(c->engine, json, sizeof json) > 0);
    return strstr(json, text) != NULL;
}

/* A machine is gone at night: with a barrier no round ends, with a quorum it misses rounds. Back again, all is well. */
TEST(test_lost_worker_is_an_alert)
{
    for (int quorum = 0; quorum < 2; quorum++) {
        const char *config[] = {"train.max_steps=40000",
                                "coordinator.min_workers=2",
                                "train.eval_every=0",
                                "coordinator.evict_after_s=100000",
                                quorum ? "coordinator.quorum=1" : "coordinator.quorum=all",
                                NULL};
        struct sim_cluster_setup setup = {.seed = 3, .n_workers = 2, .config = config};
        const char *rule = quorum ? "\"rule\":\"worker_missing\",\"worker\":\"worker-1\"" : "\"rule\":\"no_round\"";
        struct sim_cluster *c = sim_rig_cluster(&setup);
        sim_rig_start(c, 2);
        assert_true(until_round(c, 8));
        assert_false(status_has(c, rule));
        sim_worker_kill(&c->workers[1]);
        wait_us(c, 120000000);
        assert_true(status_has(c, rule));
        sim_worker_start(&c->workers[1]);
        wait_us(c, 120000000);
        assert_false(status_has(c, rule));
        sim_rig_done(c);
    }
}

TEST_MAIN(NULL, NULL)
