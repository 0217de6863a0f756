/* The engine by hand: a whole run, its updates, duplicates, refused deltas, chunks out of order. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/hash.h"
#include "common/tensor/apply.h"
#include "compress/codec.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "wire/object.h"

static struct rig rig;

static void test_run_reaches_its_end(void **state)
{
    (void)state;
    const char *settings[] = {"coordinator.min_workers=2", NULL};
    struct msg m;
    rig_open(&rig, settings);
    rig_join(&rig, 1);
    assert_int_equal(rig.workers[1].id, UINT32_MAX); /* ids are assigned with the first round */
    rig_expect_none(&rig, 1, MSG_ASSIGN);
    rig_join(&rig, 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 2; i++) {
            rig_assigned(&rig, i);
            const struct msg_assign *a = &rig.workers[i].task;
            assert_int_equal(a->round, round);
            assert_int_equal(a->worker_id, i); /* by name, not by arrival */
            assert_int_equal(a->steps, 2);
            assert_true(a->step0 == 2.0 * round && a->step_rate == 1);
            assert_int_equal(a->n_ranges, 1);
            assert_int_equal(a->ranges[0].start, 4 * round + 2 * i);
            assert_int_equal(a->ranges[0].count, 2);
            for (uint32_t f = 0; f < 2; f++) assert_int_equal(a->versions[f], round);
        }
        rig_deliver_all(&rig, 2, 1.0f);
    }
    /* The final evaluation: 10 windows, split between the workers. */
    uint64_t windows = 0;
    for (int i = 0; i < 2; i++) {
        rig_expect(&rig, i, MSG_EVAL, &m);
        assert_int_equal(m.eval.versions[0], 3);
        assert_int_equal(m.eval.count, 5);
        assert_true(m.eval.start == 0 || m.eval.start == 5);
        windows |= 1u << m.eval.start;
        struct msg result;
        rig_eval_result(&rig, i, &m, 1.5, &result);
        rig_say(&rig, rig.workers[i].control, &result);
    }
    assert_int_equal(windows, 1 | 1 << 5); /* each once */
    rig_answer_evals(&rig, 2, 1.5);        /* and samples by the other worker */
    struct engine_summary sum;
    engine_summary(rig.engine, &sum);
    assert_true(sum.done);
    assert_true(sum.final_val_loss == 1.5);
    assert_int_equal(sum.rounds, 3);
    assert_int_equal(sum.worker_steps, 12);
    assert_int_equal(sum.workers, 2);
    assert_true(sum.theta_hash == rig_theta_hash(&rig));
    assert_int_equal(engine_samples_committed(rig.engine), 12);
    for (int i = 0; i < 2; i++) {
        rig_expect(&rig, i, MSG_DONE, &m);
        struct msg leave = {.type = MSG_LEAVE, .leave = {.session = rig.workers[i].session, .finished = true}};
        rig_say(&rig, rig.workers[i].control, &leave);
    }
    rig_wait(&rig, 10);
    assert_true(engine_finished(rig.engine));
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_ROUND), 3);
    rig_close(&rig);
}

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
static void test_done_waits_for_the_last_update(void **state)
{
    (void)state;
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
static void test_done_waits_for_no_other_worker(void **state)
{
    (void)state;
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

/* The update on the wire, applied to a copy of theta_0, gives the coordinator's theta. */
static void test_update_gives_theta_of_coordinator(void **state)
{
    (void)state;
    const char *settings[] = {"codec.down=int8:16", "codec.up=int8:16", NULL};
    float theta[RIG_PARAMS], x[RIG_PARAMS];
    uint8_t object[8192];
    struct update_named named[4];
    struct update u;
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    memcpy(theta, engine_theta(rig.engine), sizeof theta);
    for (int round = 0; round < 3; round++) {
        rig_assigned(&rig, 0);
        rig_deliver_all(&rig, 1, 2.0f);
        for (uint32_t f = 0; f < 2; f++) {
            const struct fragment *frag = &rig.layout.fragments[f];
            struct codec *codec;
            size_t size = rig_get(&rig, 0, OBJECT_UPDATE, f, (uint64_t)round + 1, object, sizeof object);
            assert_int_equal(update_decode(&u, named, 4, object, size), STATUS_OK);
            assert_int_equal(u.form, UPDATE_INCREMENT);
            assert_int_equal(u.n_named, 1);
            assert_int_equal(named[0].round, round);
            assert_int_equal(named[0].tokens, 16);
            assert_int_equal(codec_create_for_fragment(&codec, u.codec, &rig.layout, f, NULL), STATUS_OK);
            assert_int_equal(codec_decode(codec, u.payload, u.payload_size, x), STATUS_OK);
            apply_update(theta + frag->offset, false, x, frag->count);
            assert_true(hash_floats(NULL, theta + frag->offset, frag->count) == u.theta_hash);
            codec_destroy(codec);
        }
        assert_memory_equal(theta, engine_theta(rig.engine), sizeof theta);
    }
    rig_close(&rig);
}

/* Updates of mean tensors are not relayed. They name their own codec, not that of the run. */
static void test_means_name_their_own_codec(void **state)
{
    (void)state;
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

/* One worker, lossless, outer sgd with lr 1: theta equals the worker's parameters, bit for bit. */
static void test_single_worker_is_plain_training(void **state)
{
    (void)state;
    const char *settings[] = {"train.method=local-sgd", "codec.up=fp32", "codec.down=fp32+lz4", NULL};
    float x[RIG_PARAMS];
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    rig_assigned(&rig, 0);
    rig_deliver_all(&rig, 1, -3.0f);
    for (uint32_t f = 0; f < 2; f++) {
        const struct fragment *frag = &rig.layout.fragments[f];
        rig_values(&rig, f, -3.0f, x);
        assert_memory_equal(engine_theta(rig.engine) + frag->offset, x, frag->count * sizeof *x);
    }
    rig_close(&rig);
}

static void test_delta_is_merged_once(void **state)
{
    (void)state;
    const char *settings[] = {"coordinator.min_workers=2", NULL};
    struct msg m, again;
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    rig_join(&rig, 1);
    rig_assigned(&rig, 0);
    rig_assigned(&rig, 1);
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    uint64_t appended = store_mem_counts(rig.store).appended;
    m = rig_deliver(&rig, 0, 0, 1); /* already held: all bytes are acknowledged, no record is written */
    assert_int_equal(m.type, MSG_CREDIT);
    assert_true(m.credit.have == m.credit.upto && m.credit.have > 0);
    assert_int_equal(store_mem_counts(rig.store).appended, appended);
    rig_offer_message(&rig, 0, 0, 1, &again);
    rig_deliver_all(&rig, 2, 1);
    uint64_t theta = rig_theta_hash(&rig);
    rig_say(&rig, rig.workers[0].control, &again); /* already merged */
    rig_expect(&rig, 0, MSG_CREDIT, &m);
    assert_int_equal(m.credit.have, again.offer.bytes);
    assert_true(rig_theta_hash(&rig) == theta);
    assert_int_equal(engine_version(rig.engine, 0), 1);
    rig_assigned(&rig, 0);
    rig_beat(&rig, 0, WORKER_READY);
    rig_assigned(&rig, 0); /* sent again to a READY worker that should train */
    assert_int_equal(rig.workers[0].task.round, 1);
    rig_beat(&rig, 0, WORKER_TRAINING);
    rig_expect_none(&rig, 0, MSG_ASSIGN);
    rig_close(&rig);
}

/* Every reason to refuse a delta: the round continues without it, and other workers get its samples. */
static void test_refused_delta_returns_its_samples(void **state)
{
    (void)state;
    const char *settings[] = {"coordinator.min_workers=3", "train.fragments=1", NULL};
    struct msg offer, m;
    for (int reason = 0; reason < 6; reason++) {
        uint16_t expect = REJECT_CORRUPT;
        rig_open(&rig, settings);
        for (int i = 0; i < 3; i++) rig_join(&rig, i);
        for (int i = 0; i < 3; i++) rig_assigned(&rig, i);
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

/* Chunks that are out of order, repeated, damaged or empty change no state; the upload continues at its position. */
static void test_wrong_chunks_change_nothing(void **state)
{
    (void)state;
    struct msg m, credit;
    uint8_t junk[100] = {1};
    rig_open(&rig, NULL);
    rig_join(&rig, 0);
    rig_assigned(&rig, 0);
    rig_offer_message(&rig, 0, 0, 1, &m);
    rig_say(&rig, rig.workers[0].control, &m);
    rig_expect(&rig, 0, MSG_CREDIT, &credit);
    assert_int_equal(credit.credit.have, 0);
    assert_int_equal(credit.credit.upto, m.offer.bytes);
    struct msg bad = {.type = MSG_CHUNK,
                      .chunk = {.kind = OBJECT_DELTA,
                                .total = m.offer.bytes,
                                .data = junk,
                                .size = sizeof junk,
                                .crc = crc32c(0, junk, sizeof junk)}};
    bad.chunk.offset = 100; /* a gap */
    rig_say(&rig, rig.workers[0].bulk, &bad);
    bad.chunk.offset = 0;
    bad.chunk.key = 5; /* another round */
    rig_say(&rig, rig.workers[0].bulk, &bad);
    bad.chunk.key = 0;
    bad.chunk.fragment = 9;
    rig_say(&rig, rig.workers[0].bulk, &bad);
    rig_say(&rig, 12345, &bad); /* an unknown peer */
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    assert_int_equal(rig_deliver(&rig, 0, 1, 1).type, MSG_CREDIT);
    assert_int_equal(engine_version(rig.engine, 0), 1);
    rig_close(&rig);
}

/* Parameters without a finite loss end the evaluation and the run like others. */
static void test_run_ends_with_nonfinite_loss(void **state)
{
    (void)state;
    struct msg m;
    rig_open(&rig, NULL);
    rig_join(&rig, 0);
    for (int round = 0; round < 3; round++) {
        rig_assigned(&rig, 0);
        rig_deliver_all(&rig, 1, 1.0f);
    }
    rig_expect(&rig, 0, MSG_EVAL, &m);
    struct msg result;
    rig_eval_result(&rig, 0, &m, NAN, &result);
    rig_say(&rig, rig.workers[0].control, &result);
    struct engine_summary sum;
    engine_summary(rig.engine, &sum);
    assert_true(sum.done && !isfinite(sum.final_val_loss));
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 1);
    rig_restart(&rig, false, 0); /* the journal record can be replayed */
    engine_summary(rig.engine, &sum);
    assert_true(sum.done && !isfinite(sum.final_val_loss));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_reaches_its_end),
        cmocka_unit_test(test_done_waits_for_the_last_update),
        cmocka_unit_test(test_done_waits_for_no_other_worker),
        cmocka_unit_test(test_update_gives_theta_of_coordinator),
        cmocka_unit_test(test_means_name_their_own_codec),
        cmocka_unit_test(test_single_worker_is_plain_training),
        cmocka_unit_test(test_delta_is_merged_once),
        cmocka_unit_test(test_refused_delta_returns_its_samples),
        cmocka_unit_test(test_wrong_chunks_change_nothing),
        cmocka_unit_test(test_run_ends_with_nonfinite_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
