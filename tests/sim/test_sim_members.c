/* Who takes part: late joiners, slow ones, evicted ones, strangers. SIM_TRACE=1 prints every event. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/sim/sim_rig.h"

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

/* Steps of the run until `rounds` are done, in virtual seconds. */
static double timed_rounds(struct sim_cluster *c, uint64_t rounds)
{
    uint64_t start = sim_net_now(c->net);
    assert_true(until_round(c, rounds));
    return (double)(sim_net_now(c->net) - start) / 1e6;
}

/* Watches the wire: the first message of a type to or from a client. */
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

static void test_late_joiner(void **state)
{
    (void)state;
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
    assert_true(meanwhile < 1.5 * before); /* nobody pauses for it */
    assert_true(sim_rig_until(c, 100, watch_seen, &offer));
    assert_true(sim_rig_ends(c, 1000));
    assert_int_equal(c->workers[2].last_want, OUTER_DONE);
    assert_true(sim_check_counts(c->check).reloaded >= 1);
    sim_rig_done(c);
}

/* A barrier waits for the slow one and says so; `async` goes on without it. */
static uint64_t straggle(const char *method, char *text, size_t cap)
{
    char setting[64];
    snprintf(setting, sizeof(setting), "train.method=%s", method);
    const char *config[] = {setting,
                            "train.max_steps=40",
                            "train.eval_every=0",
                            "coordinator.min_workers=3",
                            "outer.max_staleness=100",
                            "train.dynamic_steps=off",
                            "outer.buffer=3",
                            NULL};
    struct sim_cluster_setup setup = {.seed = 2, .n_workers = 3, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    sim_rig_start(c, 3);
    assert_true(until_round(c, 2));
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

static void test_stopped_worker(void **state)
{
    (void)state;
    char text[WIRE_TEXT_MAX];
    assert_true(straggle("diloco", text, sizeof(text)) <= 3);
    assert_non_null(strstr(text, "worker-1"));
    assert_true(straggle("async", text, sizeof(text)) >= 9); /* of 10: the budget, less what the stopped one holds */
}

/* With a quorum the others do not wait for ever; what comes late is refused and its samples go to somebody else. */
static void test_quorum_and_late_delta(void **state)
{
    (void)state;
    const char *config[] = {"train.max_steps=40",
                            "coordinator.min_workers=3",
                            "coordinator.quorum=2",
                            "train.eval_every=0",
                            "coordinator.evict_after_s=1000",
                            "codec.up=int8:16",
                            NULL};
    struct sim_cluster_setup setup = {.seed = 3, .n_workers = 3, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    struct watch reject = {.type = MSG_REJECT, .client = 2, .to_client = true};
    sim_check_script(c->check, watch_message, &reject);
    c->workers[2].step_us = 350000;
    sim_rig_start(c, 3);
    assert_true(sim_rig_until(c, 300, watch_seen, &reject));
    assert_int_equal(reject.code, REJECT_LATE);
    c->workers[2].step_us = 100000;
    assert_true(sim_rig_ends(c, 1000));
    assert_int_equal(c->workers[2].last_want, OUTER_DONE);
    sim_rig_done(c);
}

static void test_stale_async_delta(void **state)
{
    (void)state;
    const char *config[] = {"train.method=async",
                            "train.max_steps=60",
                            "coordinator.min_workers=2",
                            "train.eval_every=0",
                            "outer.max_staleness=2",
                            "train.dynamic_steps=off",
                            "outer.buffer=2",
                            "outer.staleness_power=0",
                            "codec.up=int8:16",
                            NULL};
    struct sim_cluster_setup setup = {.seed = 4, .n_workers = 2, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    struct watch reject = {.type = MSG_REJECT, .client = 1, .to_client = true};
    sim_check_script(c->check, watch_message, &reject);
    c->workers[1].step_us = 1000000; /* ten times slower: more than two rounds behind when it delivers */
    sim_rig_start(c, 2);
    assert_true(sim_rig_until(c, 300, watch_seen, &reject));
    assert_int_equal(reject.code, REJECT_STALE);
    c->workers[1].step_us = 100000;
    assert_true(sim_rig_ends(c, 1000));
    sim_rig_done(c);
}

static void test_evicted_and_back(void **state)
{
    (void)state;
    const char *config[] = {"train.max_steps=60", "coordinator.min_workers=2", "coordinator.evict_after_s=5",
                            "train.eval_every=0", NULL};
    struct sim_cluster_setup setup = {.seed = 5, .n_workers = 2, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    sim_rig_start(c, 2);
    assert_true(until_round(c, 2));
    uint32_t id = c->workers[1].task.worker_id;
    sim_worker_kill(&c->workers[1]);
    assert_true(until_round(c, 5)); /* the other one goes on alone */
    assert_int_equal(sim_check_counts(c->check).evicted, 1);
    struct watch assign = {.type = MSG_ASSIGN, .client = 1, .to_client = true};
    sim_check_script(c->check, watch_message, &assign);
    sim_worker_start(&c->workers[1]);
    assert_true(sim_rig_until(c, 100, watch_seen, &assign));
    assert_true(sim_rig_ends(c, 1000));
    assert_int_equal(c->workers[1].task.worker_id, id); /* a worker that returns keeps its place in the merge order */
    sim_rig_done(c);
}

/* An evicted worker whose delta arrives after all must not be merged twice, nor its samples. */
static void test_cut_off_then_evicted_then_delivers(void **state)
{
    (void)state;
    const char *config[] = {"train.max_steps=60", "coordinator.min_workers=2", "coordinator.evict_after_s=4",
                            "train.eval_every=0", "codec.up=int8:16",          NULL};
    struct sim_cluster_setup setup = {.seed = 6, .n_workers = 2, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    sim_rig_start(c, 2);
    assert_true(until_round(c, 3));
    sim_net_partition(c->net, 1, true);
    assert_true(until_round(c, 6));
    assert_int_equal(sim_check_counts(c->check).evicted, 1);
    sim_net_partition(c->net, 1, false);
    assert_true(sim_rig_ends(c, 1000));
    assert_int_equal(c->workers[1].last_want, OUTER_DONE);
    sim_rig_done(c);
}

static void wait_us(struct sim_cluster *c, uint64_t us)
{
    uint64_t until = sim_net_now(c->net) + us;
    while (sim_net_now(c->net) < until && sim_net_step(c->net, until)) continue;
}

/* Everybody loses its place in a round that is given out again under its number. One of them comes back, has its delta
 * refused, is told to stop while it waits for the others, and is started again: the round is its own once more. */
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

static void test_refused_stopped_and_started_again(void **state)
{
    (void)state;
    refused_and_started_again("train.method=ddp", "codec.up=fp32", "checkpoint.worker_every=1");
    refused_and_started_again("train.method=diloco", "codec.up=int8:16", "checkpoint.worker_every=1");
    refused_and_started_again("train.method=diloco", "codec.up=int8:16", "checkpoint.worker_every=3");
}

static bool trains(struct sim_cluster *c, void *ctx)
{
    (void)ctx;
    return c->workers[1].busy == SIM_WORKER_TRAINS;
}

/* A delta that was refused, with the state that it was saved with, and the round given out again with other samples. A
 * worker that is killed then must not hand in the old one as the new one. */
static void test_refused_delta_does_not_come_back(void **state)
{
    (void)state;
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
        sim_worker_kill(&c->workers[1]); /* without `training`: before it is told */
        wait_us(c, 1000000);
        sim_worker_start(&c->workers[1]);
        sim_worker_freeze(&c->workers[0], false);
        assert_true(sim_rig_ends(c, 1000));
        sim_rig_done(c);
    }
}

static void test_refused(void **state)
{
    (void)state;
    const char *config[] = {"train.max_steps=60", "coordinator.min_workers=1", "coordinator.max_workers=1",
                            "train.eval_every=0", NULL};
    struct sim_cluster_setup setup = {.seed = 7, .n_workers = 2, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    sim_rig_start(c, 1);
    assert_true(until_round(c, 1));
    struct watch refuse = {.type = MSG_REFUSE, .client = 1, .to_client = true};
    sim_check_script(c->check, watch_message, &refuse);
    sim_worker_start(&c->workers[1]);
    assert_true(sim_rig_until(c, 100, watch_seen, &refuse));
    assert_int_equal(refuse.code, REFUSE_FULL);
    assert_true(sim_rig_ends(c, 1000));
    sim_rig_done(c);
}

/* The same name with another uuid, while the first lives and after it died. */
static void test_stranger_with_a_known_name(void **state)
{
    (void)state;
    const char *config[] = {"train.max_steps=100", "coordinator.min_workers=2", "coordinator.evict_after_s=5",
                            "train.eval_every=0", NULL};
    struct sim_cluster_setup setup = {.seed = 8, .n_workers = 2, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    sim_rig_start(c, 2);
    assert_true(until_round(c, 2));
    sim_worker_kill(&c->workers[1]);
    sim_worker_forget(&c->workers[1]); /* its disk is lost */
    struct watch refuse = {.type = MSG_REFUSE, .client = 1, .to_client = true};
    sim_check_script(c->check, watch_message, &refuse);
    sim_worker_start(&c->workers[1]);
    assert_true(sim_rig_until(c, 100, watch_seen, &refuse));
    assert_int_equal(refuse.code, REFUSE_NAME);
    struct watch assign = {.type = MSG_ASSIGN, .client = 1, .to_client = true};
    sim_check_script(c->check, watch_message, &assign);
    assert_true(sim_rig_until(c, 200, watch_seen, &assign)); /* it keeps asking; the old place is given up in the end */
    assert_true(sim_rig_ends(c, 1000));
    sim_rig_done(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late_joiner),
        cmocka_unit_test(test_stopped_worker),
        cmocka_unit_test(test_quorum_and_late_delta),
        cmocka_unit_test(test_stale_async_delta),
        cmocka_unit_test(test_evicted_and_back),
        cmocka_unit_test(test_cut_off_then_evicted_then_delivers),
        cmocka_unit_test(test_refused_stopped_and_started_again),
        cmocka_unit_test(test_refused_delta_does_not_come_back),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_stranger_with_a_known_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
