/* The engine by hand: a whole run, its updates, duplicates, refused deltas, chunks out of order. */
#include <math.h>

#include "common/base/hash.h"
#include "common/tensor/apply.h"
#include "compress/codec.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"
#include "wire/object.h"

static struct rig rig;

/* A run of two workers up to its end; worker 1 evaluates nothing and lacks the last update. */
static void end_without_last_update(void)
{
    const char *settings[] = {"coordinator.min_workers=2", NULL};
    rig_open(&rig, settings);
    rig.workers[1].blind = true;
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
        if (round < 2) rig_deliver_all(&rig, 2, 1.0f);
    }
    for (int i = 0; i < 2; i++)
        for (uint32_t f = 0; f < 2; f++) rig_deliver(&rig, i, f, 1.0f);
    rig_catch_up(&rig, 0);
    rig_answer_evals(&rig, 1, 1.5);
    assert_true(engine_done(rig.engine));
}

/* DONE follows the last update, and the coordinator stays for a worker that receives it. */
TEST(test_done_waits_for_the_last_update)
{
    struct msg m;
    end_without_last_update();
    rig_expect(&rig, 0, MSG_DONE, &m);
    for (int i = 0; i < 20; i++) {
        rig_wait(&rig, 1000000);
        rig_beat(&rig, 1, WORKER_WAITING);
        rig_expect_none(&rig, 1, MSG_DONE);
        assert_false(engine_finished(rig.engine));
    }
    rig_catch_up(&rig, 1);
    rig_expect(&rig, 1, MSG_DONE, &m);
    rig_close(&rig);
}

/* A worker that trains, or receives nothing for 30 s, ends without the last update. */
TEST(test_done_waits_for_no_other_worker)
{
    struct msg m;
    end_without_last_update();
    rig_beat(&rig, 1, WORKER_TRAINING);
    rig_expect(&rig, 1, MSG_DONE, &m);
    rig_beat(&rig, 1, WORKER_WAITING);
    rig_expect_none(&rig, 1, MSG_DONE);
    for (int i = 0; i < 31; i++) {
        rig_wait(&rig, 1000000);
        rig_beat(&rig, 1, WORKER_WAITING);
    }
    rig_expect(&rig, 1, MSG_DONE, &m);
    rig_wait(&rig, 1000000);
    assert_true(engine_finished(rig.engine));
    rig_close(&rig);
}

/* Updates of mean tensors are not relayed. They name their own codec, not that of the run. */
TEST(test_means_name_their_own_codec)
{
    const char *settings[] = {"train.method=local-sgd", "codec.up=fp32+lz4", "codec.down=auto", NULL};
    const char *relayed[] = {"train.method=local-sgd", "codec.up=fp32", "codec.down=relay", NULL};
    uint8_t object[8192];
    struct update_named named[4];
    struct update u;
    for (int means = 0; means < 2; means++) {
        rig_layout_flags = means ? LAYOUT_MEAN : 0;
        rig_open(&rig, means ? relayed : settings);
        rig_join(&rig, 0);
        rig_assigned(&rig, 0);
        rig_deliver_all(&rig, 1, 2.0f);
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_UPDATE), rig.layout.n_fragments);
        for (uint32_t f = 0; f < rig.layout.n_fragments; f++) {
            size_t size = rig_get(&rig, 0, OBJECT_UPDATE, f, 1, object, sizeof object);
            assert_int_equal(update_decode(&u, named, 4, object, size), STATUS_OK);
            assert_string_equal(u.codec, means ? "fp32" : "fp32+lz4");
            assert_int_equal(u.form, UPDATE_PARAMETERS);
        }
        static char status[1 << 16]; /* the codec of trained tensors */
        assert_true(engine_status_json(rig.engine, status, sizeof status) > 0);
        assert_non_null(strstr(status, means ? "\"down\":null" : "\"down\":\"fp32+lz4\""));
        rig_close(&rig);
    }
    rig_layout_flags = 0;
}

/* A worker's heartbeat says which versions it holds, and so does its GET of the version after. */
TEST(test_versions_of_workers_are_known)
{
    const char *settings[] = {"train.method=async", "outer.grace=0", "train.fragments=1", NULL};
    uint8_t object[8192];
    rig_open_with(&rig, settings, 1, true);
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    assert_int_equal(engine_version(rig.engine, 0), 1);
    assert_true(rig_get(&rig, 0, OBJECT_UPDATE, 0, 1, object, sizeof object) > 0);
    assert_int_equal(engine_member_have(rig.engine, 0, 0), 1);
    assert_int_equal(rig_get(&rig, 0, OBJECT_UPDATE, 0, 2, object, sizeof object), 0);
    assert_int_equal(engine_member_have(rig.engine, 0, 0), 2);
    rig_catch_up(&rig, 0);
    rig_beat(&rig, 0, WORKER_READY);
    rig_assigned(&rig, 0);
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    rig_catch_up(&rig, 0);
    rig_beat(&rig, 0, WORKER_READY);
    assert_int_equal(engine_member_have(rig.engine, 0, 0), 3);
    rig_close(&rig);
}

/* Every reason to refuse a delta: the round continues without it, and other workers get its samples. */
TEST(test_refused_delta_returns_its_samples)
{
    const char *settings[] = {"coordinator.min_workers=3", "train.fragments=1", NULL};
    struct msg offer, m;
    for (int reason = 0; reason < 6; reason++) {
        uint16_t expect = REJECT_CORRUPT;
        rig_open_with(&rig, settings, 3, true);
        rig_offer_message(&rig, 0, 0, 1, &offer);
        switch (reason) {
        case 0:
            offer.offer.base_version = 1;
            expect = REJECT_BASE;
            break;
        case 1: offer.offer.tokens++; break;
        case 2: offer.offer.form = DELTA_GRADIENT; break;
        case 3: offer.offer.bytes = (uint64_t)1 << 40; break;
        case 4:
            offer.offer.round = 7;
            expect = REJECT_UNASSIGNED;
            break;
        case 5: offer.offer.steps = 1; break;
        }
        rig_say(&rig, rig.workers[0].control, &offer);
        rig_expect(&rig, 0, MSG_REJECT, &m);
        assert_int_equal(m.reject.code, expect);
        if (reason == 4) { /* the worker's own delta is still accepted */
            assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
            rig_close(&rig);
            continue;
        }
        rig_say(&rig, rig.workers[0].control, &offer); /* the answer stays the same */
        rig_expect(&rig, 0, MSG_REJECT, &m);
        assert_int_equal(m.reject.code, expect);
        assert_int_equal(rig_deliver(&rig, 1, 0, 1).type, MSG_CREDIT);
        assert_int_equal(rig_deliver(&rig, 2, 0, 1).type, MSG_CREDIT);
        assert_int_equal(engine_version(rig.engine, 0), 1);
        assert_int_equal(engine_samples_committed(rig.engine), 4);
        for (int i = 0; i < 3; i++) rig_catch_up(&rig, i);
        int first = reason ? 0 : 1; /* worker 0 had a wrong base: it is not in step before it is ready */
        rig_assigned(&rig, first);
        assert_int_equal(rig.workers[first].task.ranges[0].start, 0); /* returned samples are assigned first */
        rig_close(&rig);
    }
}

static uint64_t samples_of(int worker)
{
    uint64_t samples = 0;
    for (uint32_t i = 0; i < rig.workers[worker].task.n_ranges; i++)
        samples += rig.workers[worker].task.ranges[i].count;
    return samples;
}

/* A region gets the samples of all its workers. It may have lost some of them since, a plain worker may not. */
TEST(test_region_gets_samples_for_its_workers)
{
    const char *settings[] = {"coordinator.min_workers=2", "coordinator.max_workers=4", "train.fragments=1", NULL};
    struct msg offer, m;
    rig_open(&rig, settings);
    rig.workers[1].workers = 3;
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    assert_int_equal(samples_of(1), 3 * samples_of(0));
    for (int less = 0; less < 2; less++) {
        rig_offer_message(&rig, less ? 0 : 1, 0, 1, &offer);
        offer.offer.tokens = less ? offer.offer.tokens - 1 : 3 * offer.offer.tokens + 1;
        rig_say(&rig, rig.workers[less ? 0 : 1].control, &offer);
        rig_expect(&rig, less ? 0 : 1, MSG_REJECT, &m);
        assert_int_equal(m.reject.code, REJECT_CORRUPT);
    }
    rig_close(&rig);
}

/* Its place keeps their number until it has connected again. */
TEST(test_region_keeps_its_size_and_may_deliver_less)
{
    const char *settings[] = {"coordinator.min_workers=2", "coordinator.max_workers=4", "train.fragments=1",
                              "train.eval_every=1", NULL};
    rig_open(&rig, settings);
    rig.workers[1].workers = 3;
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    for (int i = 0; i < 2; i++) assert_int_equal(rig_deliver(&rig, i, 0, 1).type, MSG_CREDIT); /* of one worker */
    assert_int_equal(engine_version(rig.engine, 0), 1);
    rig_restart(&rig, false, 1); /* before the next round opens: the evaluation is not complete */
    rig_join(&rig, 0);
    rig_catch_up(&rig, 0);
    rig_answer_evals(&rig, 1, 1.5);
    rig_assigned(&rig, 0);
    rig_join(&rig, 1);
    rig_catch_up(&rig, 1);
    rig_assigned(&rig, 1);
    assert_int_equal(samples_of(1), 3 * samples_of(0));
    rig.workers[1].workers = 9; /* more than a run may have */
    rig_catch_up(&rig, 1);
    for (int i = 0; i < 2; i++) assert_int_equal(rig_deliver(&rig, i, 0, 1).type, MSG_CREDIT);
    for (int i = 0; i < 2; i++) rig_catch_up(&rig, i);
    rig_answer_evals(&rig, 2, 1.5);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    assert_int_equal(samples_of(1), 4 * samples_of(0));
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
