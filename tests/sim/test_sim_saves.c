/* checkpoint.worker_every auto: a worker saves each round as long as that holds up none, and otherwise as rarely as its
 * disk needs. */
#include "tests/lib/sim/sim_rig.h"
#include "tests/lib/test.h"
#include "worker/outer/outer_loop_impl.h"

enum { ROUNDS = 60, STEP_US = 100000 };

static const char *const settings[] = {"train.sync_every=5",
                                       "train.max_steps=300",
                                       "codec.up=int8:16",
                                       "train.eval_every=0",
                                       "checkpoint.every=5",
                                       "checkpoint.keep=2",
                                       NULL,
                                       NULL};

static struct sim_cluster *cluster(const char *every, uint64_t save_us)
{
    static const char *config[sizeof settings / sizeof *settings];
    memcpy(config, settings, sizeof settings);
    config[6] = every;
    struct sim_cluster_setup setup = {.seed = 5, .n_workers = 1, .config = config, .train_samples = 4096};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    c->workers[0].step_us = STEP_US;
    c->workers[0].disk.save_us = save_us;
    sim_rig_start(c, 1);
    return c;
}

static bool runs(struct sim_cluster *c, void *round)
{
    const struct outer_loop *loop = c->workers[0].up ? c->workers[0].loop : NULL;
    return loop && loop->sync.round != SYNC_NO_ROUND && loop->sync.round >= *(uint64_t *)round;
}

static uint64_t every_at(struct sim_cluster *c, uint64_t round, uint64_t *worst_p)
{
    assert_true(sim_rig_until(c, 10000, runs, &round));
    return outer_loop_save_every(c->workers[0].loop, worst_p);
}

static double seconds(const char *every, uint64_t save_us)
{
    struct sim_cluster *c = cluster(every, save_us);
    assert_true(sim_rig_ends(c, 10000));
    double s = (double)c->result.end_us * 1e-6;
    sim_rig_done(c);
    return s;
}

/* A round takes 0.5 s. Its upload takes longer than a save of 1 ms. */
TEST(test_fast_disk_saves_each_round)
{
    uint64_t worst;
    struct sim_cluster *c = cluster("checkpoint.worker_every=auto", 1000);
    assert_int_equal(every_at(c, ROUNDS - 2, &worst), 1);
    assert_int_equal(worst, 0);
    assert_true(c->workers[0].disk.save.count >= ROUNDS - 2);
    assert_true(sim_rig_ends(c, 10000));
    sim_rig_done(c);
}

/* A save takes 1.3 s: three rounds. Training goes on meanwhile. */
TEST(test_slow_disk_saves_beside_the_training)
{
    uint64_t worst;
    struct sim_cluster *c = cluster("checkpoint.worker_every=auto", 1300000);
    uint64_t every = every_at(c, 30, &worst);
    assert_in_range(every, 2, 4);
    assert_in_range(worst, every + 1, every + 4);
    assert_true(sim_rig_ends(c, 10000));
    double with_auto = (double)c->result.end_us * 1e-6;
    sim_rig_done(c);
    double with_1 = seconds("checkpoint.worker_every=1", 1300000), fast = seconds("checkpoint.worker_every=1", 0);
    printf("60 rounds: %.1f s without saves' time, %.1f s with auto, %.1f s with saves each round\n", fast, with_auto,
           with_1);
    assert_true(with_1 > fast + ROUNDS * 0.7);
    assert_true(with_auto < fast + 10 * 1.3); /* the first saves, until it has measured three */
}

/* Once the disk is fast again, a kill costs nothing again. */
TEST(test_disk_becomes_fast_again)
{
    uint64_t worst;
    struct sim_cluster *c = cluster("checkpoint.worker_every=auto", 1300000);
    assert_true(every_at(c, 20, &worst) > 1);
    c->workers[0].disk.save_us = 1000;
    assert_int_equal(every_at(c, ROUNDS - 5, &worst), 1);
    assert_true(sim_rig_ends(c, 10000));
    sim_rig_done(c);
}

/* Killed while a save runs beside the training: the worker comes back with an older state, at most as old as it said,
 * and finds the updates that it lacks: the coordinator keeps them. */
TEST(test_killed_during_a_save)
{
    for (uint64_t at = 25; at < 35; at++) {
        uint64_t worst;
        struct sim_cluster *c = cluster("checkpoint.worker_every=auto", 1300000);
        assert_true(every_at(c, at, &worst) > 1);
        uint64_t saved = c->workers[0].loop->save.saved_round;
        if (saved + worst < at)
            fail_msg("round %llu: saved %llu, and said %llu", (unsigned long long)at, (unsigned long long)saved,
                     (unsigned long long)worst);
        sim_worker_kill(&c->workers[0]);
        sim_worker_start(&c->workers[0]);
        assert_true(sim_rig_ends(c, 10000));
        assert_int_equal(c->result.rounds, ROUNDS);
        sim_rig_done(c);
    }
}

TEST_MAIN(NULL, NULL)
