/* The engine by hand: joining, a whole run, duplicates, refusals, parked requests, snapshots, kept updates. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/apply.h"
#include "common/hash.h"
#include "compress/codec.h"
#include "tests/lib/engine_rig.h"
#include "tests/lib/store_mem.h"
#include "wire/object.h"

static struct rig rig;

static void test_whole_run(void **state)
{
    (void)state;
    const char *settings[] = {"coordinator.min_workers=2", NULL};
    struct msg m;
    rig_open(&rig, settings);
    rig_join(&rig, 1);
    assert_int_equal(rig.workers[1].id, UINT32_MAX); /* ids come with the first round */
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
    /* the final evaluation: 10 windows, split */
    uint64_t windows = 0;
    for (int i = 0; i < 2; i++) {
        rig_expect(&rig, i, MSG_EVAL, &m);
        assert_int_equal(m.eval.versions[0], 3);
        assert_int_equal(m.eval.count, 5);
        assert_true(m.eval.start == 0 || m.eval.start == 5);
        windows |= 1u << m.eval.start;
        struct msg result = {.type = MSG_EVAL_RESULT,
                             .eval_result = {rig.workers[i].session, m.eval.eval_id, m.eval.start, m.eval.count,
                                             (double)m.eval.count * 8 * 1.5, m.eval.count * 8}};
        rig_say(&rig, rig.workers[i].control, &result);
    }
    assert_int_equal(windows, 1 | 1 << 5); /* each once */
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

/* The update on the wire, applied to a copy of theta_0, is the coordinator's theta. */
static void test_update_bytes(void **state)
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

/* One worker, lossless, outer sgd with lr 1: theta is what the worker sent, bit for bit. */
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

static void test_nothing_counts_twice(void **state)
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
    m = rig_deliver(&rig, 0, 0, 1); /* held already: all of it is acknowledged, nothing is journaled */
    assert_int_equal(m.type, MSG_CREDIT);
    assert_true(m.credit.have == m.credit.upto && m.credit.have > 0);
    assert_int_equal(store_mem_counts(rig.store).appended, appended);
    rig_offer_message(&rig, 0, 0, 1, &again);
    rig_deliver_all(&rig, 2, 1);
    uint64_t theta = rig_theta_hash(&rig);
    rig_say(&rig, rig.workers[0].control, &again); /* merged already */
    rig_expect(&rig, 0, MSG_CREDIT, &m);
    assert_int_equal(m.credit.have, again.offer.bytes);
    assert_true(rig_theta_hash(&rig) == theta);
    assert_int_equal(engine_version(rig.engine, 0), 1);
    rig_assigned(&rig, 0);
    rig_beat(&rig, 0, WORKER_READY);
    rig_assigned(&rig, 0); /* said again to a worker that is ready and should not be */
    assert_int_equal(rig.workers[0].task.round, 1);
    rig_beat(&rig, 0, WORKER_TRAINING);
    rig_expect_none(&rig, 0, MSG_ASSIGN);
    rig_close(&rig);
}

/* Each reason to refuse a delta, each with its effect: the round goes on without it, its samples go to others. */
static void test_reject_reasons(void **state)
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
        case 0: offer.offer.base_version = 1; expect = REJECT_BASE; break;
        case 1: offer.offer.tokens++; break;
        case 2: offer.offer.form = DELTA_GRADIENT; break;
        case 3: offer.offer.bytes = (uint64_t)1 << 40; break;
        case 4: offer.offer.round = 7; expect = REJECT_UNASSIGNED; break;
        case 5: offer.offer.steps = 1; break;
        }
        rig_say(&rig, rig.workers[0].control, &offer);
        rig_expect(&rig, 0, MSG_REJECT, &m);
        assert_int_equal(m.reject.code, expect);
        if (reason == 4) { /* nothing it holds is touched */
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
        rig_assigned(&rig, 1);
        assert_int_equal(rig.workers[1].task.ranges[0].start, 0); /* what was given back goes out first */
        rig_close(&rig);
    }
}

static void damage(struct msg *offer, uint8_t *payload, size_t size, int how)
{
    const float infinite = __builtin_inff();
    if (how == 1) memcpy(payload + size - 4, &infinite, 4);
    if (how == 2) payload[size - 1] ^= 1; /* after the checksum was taken */
    if (how != 2) offer->offer.crc = crc32c(0, payload, size);
}

static void test_bad_payloads(void **state)
{
    (void)state;
    const char *settings[] = {"coordinator.min_workers=2", "train.fragments=1", NULL};
    for (int how = 1; how <= 2; how++) {
        struct msg offer, m;
        uint8_t payload[8192];
        float x[RIG_PARAMS];
        struct codec *codec;
        size_t size;
        rig_open(&rig, settings);
        rig_join(&rig, 0);
        rig_join(&rig, 1);
        rig_assigned(&rig, 0);
        rig_assigned(&rig, 1);
        rig_offer_message(&rig, 0, 0, 1, &offer);
        rig_values(&rig, 0, 1, x);
        assert_int_equal(codec_create_for_fragment(&codec, "fp32", &rig.layout, 0, NULL), STATUS_OK);
        assert_int_equal(codec_encode(codec, x, payload, sizeof payload, &size, NULL), STATUS_OK);
        codec_destroy(codec);
        damage(&offer, payload, size, how);
        rig_say(&rig, rig.workers[0].control, &offer);
        m = (struct msg){
            .type = MSG_CHUNK,
            .chunk = {
                .kind = OBJECT_DELTA, .total = size, .data = payload, .size = size, .crc = crc32c(0, payload, size)}};
        rig_say(&rig, rig.workers[0].bulk, &m);
        rig_expect(&rig, 0, MSG_REJECT, &m);
        assert_int_equal(m.reject.code, how == 1 ? REJECT_NONFINITE : REJECT_CORRUPT);
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 1); /* counted, named */
        assert_int_equal(rig_deliver(&rig, 1, 0, 1).type, MSG_CREDIT);
        assert_int_equal(engine_version(rig.engine, 0), 1); /* the round closed without it */
        rig_close(&rig);
    }
}

/* Chunks out of order, repeated, damaged or of nothing change nothing; the upload goes on where it was. */
static void test_chunks_out_of_order(void **state)
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
                      .chunk = {.kind = OBJECT_DELTA, .total = m.offer.bytes, .data = junk, .size = sizeof junk,
                                .crc = crc32c(0, junk, sizeof junk)}};
    bad.chunk.offset = 100; /* a gap */
    rig_say(&rig, rig.workers[0].bulk, &bad);
    bad.chunk.offset = 0;
    bad.chunk.key = 5; /* another round */
    rig_say(&rig, rig.workers[0].bulk, &bad);
    bad.chunk.key = 0;
    bad.chunk.fragment = 9;
    rig_say(&rig, rig.workers[0].bulk, &bad);
    rig_say(&rig, 12345, &bad); /* a stranger */
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    assert_int_equal(rig_deliver(&rig, 0, 1, 1).type, MSG_CREDIT);
    assert_int_equal(engine_version(rig.engine, 0), 1);
    rig_close(&rig);
}

static void test_parked_get(void **state)
{
    (void)state;
    struct msg m;
    uint8_t object[8192];
    rig_open(&rig, NULL);
    rig_join(&rig, 0);
    rig_assigned(&rig, 0);
    for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_get(&rig, 0, OBJECT_UPDATE, f, 1, object, sizeof object), 0);
    assert_int_equal(rig_deliver(&rig, 0, 1, 1).type, MSG_CREDIT);
    rig_expect(&rig, 0, MSG_CHUNK, &m); /* at once, without another request */
    assert_int_equal(m.chunk.fragment, 1);
    assert_int_equal(m.chunk.key, 1);
    rig_expect_none(&rig, 0, MSG_CHUNK);
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    rig_expect(&rig, 0, MSG_CHUNK, &m);
    assert_int_equal(m.chunk.fragment, 0);
    /* from an offset: the tail */
    struct msg get = {.type = MSG_GET, .get = {.session = rig.workers[0].session, .kind = OBJECT_UPDATE, .version = 1,
                                               .offset = m.chunk.total - 3, .length = 1000}};
    rig_say(&rig, rig.workers[0].control, &get);
    uint8_t tail[3];
    memcpy(tail, m.chunk.data + m.chunk.total - 3, 3);
    rig_expect(&rig, 0, MSG_CHUNK, &m);
    assert_int_equal(m.chunk.size, 3);
    assert_memory_equal(m.chunk.data, tail, 3);
    rig_close(&rig);
}

/* A full lane: the request stays and is served when there is room. A peer that is gone is not written to again. */
static void test_full_lane(void **state)
{
    (void)state;
    uint8_t object[8192];
    struct msg m;
    rig_open(&rig, NULL);
    rig_join(&rig, 0);
    rig_assigned(&rig, 0);
    rig.bulk_answer = STATUS_AGAIN;
    assert_int_equal(rig_get(&rig, 0, OBJECT_SNAPSHOT, 0, 0, object, sizeof object), 0);
    assert_true(engine_next_deadline_us(rig.engine) <= rig.now + 10000);
    rig.bulk_answer = STATUS_OK;
    rig_wait(&rig, 20000);
    rig_expect(&rig, 0, MSG_CHUNK, &m);
    rig.bulk_answer = STATUS_CLOSED;
    assert_int_equal(rig_get(&rig, 0, OBJECT_SNAPSHOT, 0, 0, object, sizeof object), 0);
    rig.bulk_answer = STATUS_OK;
    rig_wait(&rig, 20000);
    rig_expect_none(&rig, 0, MSG_CHUNK);
    m = (struct msg){.type = MSG_BIND, .bind.session = rig.workers[0].session};
    rig_say(&rig, rig.workers[0].bulk, &m); /* back: what was asked for goes on */
    rig_expect(&rig, 0, MSG_CHUNK, &m);
    rig_close(&rig);
}

static void test_snapshot_bytes(void **state)
{
    (void)state;
    const char *settings[] = {"checkpoint.every=1", "checkpoint.keep=2", NULL};
    uint8_t object[8192];
    struct snapshot_head head;
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    for (uint64_t version = 0; version < 2; version++) {
        rig_assigned(&rig, 0);
        for (uint32_t f = 0; f < 2; f++) {
            const struct fragment *frag = &rig.layout.fragments[f];
            size_t size = rig_get(&rig, 0, OBJECT_SNAPSHOT, f, version, object, sizeof object);
            assert_int_equal(size, SNAPSHOT_HEAD_BYTES + frag->count * 4);
            assert_int_equal(snapshot_head_decode(&head, object, SNAPSHOT_HEAD_BYTES), STATUS_OK);
            assert_int_equal(head.version, version);
            assert_true(head.hash == hash_floats(NULL, engine_theta(rig.engine) + frag->offset, frag->count));
            assert_memory_equal(object + SNAPSHOT_HEAD_BYTES, engine_theta(rig.engine) + frag->offset, frag->count * 4);
        }
        rig_deliver_all(&rig, 1, 1);
    }
    rig_close(&rig);
}

/* Checkpoints beyond `keep` go, but never the update somebody still has to apply. */
static void test_kept_for_those_behind(void **state)
{
    (void)state;
    const char *settings[] = {"checkpoint.every=1", "checkpoint.keep=1", "coordinator.min_workers=2",
                              "train.max_steps=20", NULL};
    uint8_t object[8192];
    struct msg m;
    uint64_t list[64];
    size_t n;
    rig_open(&rig, settings);
    rig_join(&rig, 0);
    rig_join(&rig, 1);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
        for (int i = 0; i < 2; i++)
            for (uint32_t f = 0; f < 2; f++) assert_int_equal(rig_deliver(&rig, i, f, 1).type, MSG_CREDIT);
        rig_catch_up(&rig, 0); /* worker-1 only says that it waits, at the version it had */
        rig_beat(&rig, 1, WORKER_WAITING);
    }
    for (uint64_t v = 1; v <= 4; v++) assert_true(rig_get(&rig, 1, OBJECT_UPDATE, 0, v, object, sizeof object) > 0);
    rig_catch_up(&rig, 1);
    /* Nor the one that a worker killed now would begin with: its state was saved before version 4. */
    assert_int_equal(rig.store->ops->snapshot_list(rig.store, list, 64, &n, NULL), STATUS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(list[0], 3);
    assert_true(rig_get(&rig, 1, OBJECT_UPDATE, 0, 4, object, sizeof object) > 0);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    assert_int_equal(rig_deliver(&rig, 0, 1, 1).type, MSG_CREDIT);
    assert_int_equal(rig_deliver(&rig, 1, 0, 1).type, MSG_CREDIT);
    for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_WAITING);
    assert_int_equal(rig.store->ops->snapshot_list(rig.store, list, 64, &n, NULL), STATUS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(rig_deliver(&rig, 1, 1, 1).type, MSG_CREDIT); /* the last one: saved since version 4, all of it */
    for (int i = 0; i < 2; i++) rig_catch_up(&rig, i);
    assert_int_equal(rig.store->ops->snapshot_list(rig.store, list, 64, &n, NULL), STATUS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(list[0], 4);
    assert_int_equal(list[1], 5);
    assert_int_equal(rig.store->ops->segment_list(rig.store, list, 64, &n, NULL), STATUS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(rig_get(&rig, 1, OBJECT_UPDATE, 0, 4, object, sizeof object), 0);
    rig_expect(&rig, 1, MSG_REFUSE, &m);
    assert_int_equal(m.refuse.code, REFUSE_GONE);
    assert_int_equal(rig_get(&rig, 1, OBJECT_SNAPSHOT, 0, 3, object, sizeof object), 0);
    rig_expect(&rig, 1, MSG_REFUSE, &m);
    assert_int_equal(m.refuse.code, REFUSE_GONE);
    rig_close(&rig);
}

static void test_status(void **state)
{
    (void)state;
    const char *settings[] = {"coordinator.min_workers=2", NULL};
    char text[WIRE_TEXT_MAX];
    struct msg m = {.type = MSG_STATUS};
    rig_open(&rig, settings);
    assert_string_equal(engine_waiting(rig.engine, text, sizeof text), "the first worker to join");
    rig_join(&rig, 0);
    assert_string_equal(engine_waiting(rig.engine, text, sizeof text), "workers: 1 of 2 ready");
    rig_join(&rig, 1);
    rig_assigned(&rig, 0);
    rig_assigned(&rig, 1);
    assert_int_equal(rig_deliver(&rig, 0, 0, 1).type, MSG_CREDIT);
    assert_int_equal(rig_deliver(&rig, 0, 1, 1).type, MSG_CREDIT);
    rig_beat(&rig, 0, WORKER_WAITING);
    rig_beat(&rig, 1, WORKER_TRAINING);
    assert_string_equal(engine_waiting(rig.engine, text, sizeof text),
                        "round 1: worker-1 (training, step 0/2)");
    rig_forget(&rig);
    rig_say(&rig, rig.workers[0].control, &m);
    rig_expect(&rig, 0, MSG_STATUS_REPLY, &m);
    assert_non_null(strstr(m.status_reply.json, "\"waiting_for\":\"round 1: worker-1"));
    assert_non_null(strstr(m.status_reply.json, "\"state\":\"training\""));
    rig_wait(&rig, 15000000);
    assert_true(rig_events(&rig, ENGINE_EVENT_WAITING) >= 1); /* said without being asked */
    rig_close(&rig);
}

/* Control messages that the transport drops are said again; nothing depends on one of them. */
static void test_messages_that_make_no_sense(void **state)
{
    (void)state;
    struct msg m;
    rig_open(&rig, NULL);
    const enum msg_type types[] = {MSG_HEARTBEAT, MSG_OFFER, MSG_GET, MSG_EVAL_RESULT,
                                   MSG_METRICS,   MSG_LEAVE, MSG_BIND};
    for (int modelled = 0; modelled < 2; modelled++) {
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            m = (struct msg){.type = types[i]};
            rig.workers[3].control = rig.workers[3].bulk = 777;
            rig_say(&rig, 777, &m); /* session 0 */
            rig_expect(&rig, 3, MSG_REFUSE, &m);
            assert_int_equal(m.refuse.code, REFUSE_UNKNOWN_SESSION);
        }
        if (!modelled) rig_join(&rig, 0);
    }
    m = (struct msg){.type = MSG_OFFER, .offer = {.session = rig.workers[0].session, .fragment = 200}};
    rig_say(&rig, rig.workers[0].control, &m);
    rig_expect(&rig, 0, MSG_REJECT, &m);
    m = (struct msg){.type = MSG_GET,
                     .get = {.session = rig.workers[0].session, .fragment = 200, .kind = OBJECT_UPDATE}};
    rig_say(&rig, rig.workers[0].control, &m);
    rig_expect(&rig, 0, MSG_REFUSE, &m);
    m = (struct msg){.type = MSG_EVAL_RESULT, .eval_result = {.session = rig.workers[0].session, .eval_id = 9}};
    rig_say(&rig, rig.workers[0].control, &m);
    m = (struct msg){.type = MSG_ASSIGN};
    rig_say(&rig, rig.workers[0].control, &m);
    rig_close(&rig);
}

/* Parameters that give no finite loss end the evaluation, and the run, like others do. */
static void test_loss_not_finite(void **state)
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
    struct msg result = {.type = MSG_EVAL_RESULT,
                         .eval_result = {rig.workers[0].session, m.eval.eval_id, m.eval.start, m.eval.count, NAN, 80}};
    rig_say(&rig, rig.workers[0].control, &result);
    struct engine_summary sum;
    engine_summary(rig.engine, &sum);
    assert_true(sum.done && !isfinite(sum.final_val_loss));
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 1);
    rig_restart(&rig, false, 0); /* what the journal says of it can be read again */
    engine_summary(rig.engine, &sum);
    assert_true(sum.done && !isfinite(sum.final_val_loss));
    rig_close(&rig);
}

/* `tokens` of a step: merged so far, and what this round's steps have added over all members. */
static void test_tokens_of_a_step(void **state)
{
    (void)state;
    static const uint64_t expected[] = {16, 32, 48, 64}; /* two workers, two steps each */
    size_t seen = 0;
    const char *const settings[] = {"coordinator.min_workers=2", NULL};
    rig_open(&rig, settings);
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    for (uint32_t step = 0; step < 2; step++) {
        for (int i = 0; i < 2; i++) {
            struct msg m = {.type = MSG_METRICS, .metrics = {.session = rig.workers[i].session, .round = UINT64_MAX,
                                                             .n_steps = 1}};
            m.metrics.steps[0] = (struct metrics_step){.round = 0, .step = step, .position = step, .tokens = 16};
            rig_say(&rig, rig.workers[i].control, &m);
        }
    }
    for (size_t i = 0; i < rig.n_events; i++) {
        const struct engine_event *event = &rig.events[i];
        if (event->kind != ENGINE_EVENT_STEP) continue;
        assert_int_equal(event->tokens, expected[seen]);
        assert_int_equal(event->step, 1 + seen / 2);
        assert_int_equal(event->round, 1);
        seen++;
    }
    assert_int_equal(seen, 4);
    rig_deliver_all(&rig, 2, 1.0f);
    struct engine_summary sum;
    engine_summary(rig.engine, &sum);
    rig_assigned(&rig, 0);
    struct msg m = {.type = MSG_METRICS,
                    .metrics = {.session = rig.workers[0].session, .round = UINT64_MAX, .n_steps = 1}};
    m.metrics.steps[0] = (struct metrics_step){.round = 1, .step = 0, .position = 2, .tokens = 16};
    rig_say(&rig, rig.workers[0].control, &m);
    assert_int_equal(rig.events[rig.n_events - 1].tokens, sum.tokens + 16);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_run),
        cmocka_unit_test(test_update_bytes),
        cmocka_unit_test(test_single_worker_is_plain_training),
        cmocka_unit_test(test_nothing_counts_twice),
        cmocka_unit_test(test_reject_reasons),
        cmocka_unit_test(test_bad_payloads),
        cmocka_unit_test(test_chunks_out_of_order),
        cmocka_unit_test(test_parked_get),
        cmocka_unit_test(test_full_lane),
        cmocka_unit_test(test_snapshot_bytes),
        cmocka_unit_test(test_kept_for_those_behind),
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_messages_that_make_no_sense),
        cmocka_unit_test(test_loss_not_finite),
        cmocka_unit_test(test_tokens_of_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
