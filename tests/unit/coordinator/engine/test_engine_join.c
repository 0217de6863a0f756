/* Joining: refusals that name the difference, late joiners, returning workers, names, replaced sessions, leaving,
 * eviction, reassigned evaluations. */
#include <unistd.h>

#include "common/base/hash.h"
#include "common/os/host_memory.h"
#include "coordinator/engine/engine_impl.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

static struct rig rig;

TEST(test_hello_of_other_run_is_refused)
{
    struct msg m, config;
    rig_open(&rig, NULL);
    rig_hello(&rig, 0);
    rig_expect(&rig, 0, MSG_CONFIG, &config);
    assert_true(config.config.config_hash == config_run_hash(&rig.config));
    assert_memory_equal(config.config.run_id, engine_run_id(rig.engine), WIRE_UUID);
    m = (struct msg){.type = MSG_HELLO, .hello.name = "worker-0"};
    memcpy(m.hello.run_id, config.config.run_id, WIRE_UUID);
    rig_say(&rig, rig.workers[0].control, &m);
    rig_expect(&rig, 0, MSG_CONFIG, &config);
    m.hello.run_id[3] ^= 1;
    rig_say(&rig, rig.workers[0].control, &m);
    rig_refused(&rig, 0, REFUSE_RUN, "another run");
    rig_close(&rig);
}

TEST(test_invalid_first_join_is_refused)
{
    struct msg m;
    rig_open(&rig, NULL);
    rig_hello(&rig, 0);
    for (int i = 0; i < 5; i++) {
        static const uint16_t codes[] = {REFUSE_CONFIG, REFUSE_MALFORMED, REFUSE_MALFORMED, REFUSE_CONFIG,
                                         REFUSE_DATASET};
        rig_join_message(&rig, 0, false, &m);
        switch (i) {
        case 0: m.join.config_hash ^= 1; break;
        case 1: m.join.layout_size--; break;
        case 2: m.join.layout_hash ^= 1; break;
        case 3: m.join.sample_tokens++; break;
        case 4: m.join.train_samples = 0; break;
        }
        rig_say(&rig, rig.workers[0].control, &m);
        rig_refused(&rig, 0, codes[i], "");
        assert_null(engine_theta(rig.engine)); /* the refused JOIN defines no model */
    }
    rig_join(&rig, 0);
    assert_non_null(engine_theta(rig.engine));
    rig_close(&rig);
}

/* Sends a JOIN whose model is one matrix. */
static void join_with(uint64_t rows, uint64_t cols)
{
    const uint64_t shape[2] = {rows, cols};
    struct layout huge;
    uint8_t bytes[512];
    struct msg m;
    rig_hello(&rig, 0);
    layout_init(&huge);
    assert_int_equal(layout_add(&huge, "tensor", 2, shape, LAYOUT_INIT_ZEROS, 0, true), STATUS_OK);
    assert_int_equal(layout_split(&huge, 1), STATUS_OK);
    struct writer w = writer_of(bytes, sizeof bytes);
    layout_encode(&huge, &w);
    rig_join_message(&rig, 0, false, &m);
    m.join.layout = bytes;
    m.join.layout_size = w.pos;
    m.join.layout_hash = layout_hash(&huge);
    rig_say(&rig, rig.workers[0].control, &m);
    layout_finish(&huge);
}

/* A layout has few bytes, but its model may need much memory: the engine checks before it allocates. With a byte
 * stage a model takes more than 20 bytes per parameter; this one has a parameter per 17 bytes of the machine. */
TEST(test_model_beyond_memory_is_refused)
{
    const char *staged[] = {"codec.up=fp32+lz4", "codec.down=fp32", NULL};
    const uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    rig_open(&rig, NULL);
    join_with(1 << 20, 1 << 19);
    rig_refused(&rig, 0, REFUSE_LAYOUT, "549755813888 parameters: the coordinator would need at least 2048.00 GiB");
    rig_join(&rig, 0);
    rig_close(&rig);
    rig_open(&rig, staged);
    join_with(machine / 17 / 1024, 1024);
    rig_refused(&rig, 0, REFUSE_LAYOUT, "the coordinator would need at least");
    rig_join(&rig, 0);
    rig_close(&rig);
    /* The user's limit counts, as for a worker. */
    rig_open(&rig, NULL);
    setenv(HOST_MEMORY_ENV, "1000000", 1);
    join_with(1 << 10, 1 << 8);
    rig_refused(&rig, 0, REFUSE_LAYOUT,
                "262144 parameters: the coordinator would need at least 1.0 MiB of memory and has "
                "1000000 bytes");
    unsetenv(HOST_MEMORY_ENV);
    rig_join(&rig, 0);
    rig_close(&rig);
}

/* rda holds all deltas of a fragment together: memory is counted for the workers that come, not for the first ones. */
TEST(test_worker_beyond_memory_waits_for_a_place)
{
    const char *rda[] = {"merge.rule=rda", "train.method=local-sgd", "coordinator.min_workers=1", NULL};
    uint64_t need;
    char two[32];
    struct err err = {0};
    rig_open_with(&rig, rda, 2, false);
    assert_int_equal(outer_state_bytes(&need, &rig.engine->config, &rig.engine->ledger.layout, 2, &err), STATUS_OK);
    snprintf(two, sizeof two, "%llu",
             (unsigned long long)need + 2 * RIG_PARAMS * sizeof(float)); /* theirs on the way */
    setenv(HOST_MEMORY_ENV, two, 1);
    rig_say_join(&rig, 2);
    rig_refused(&rig, 2, REFUSE_FULL,
                "the run has no memory for 'worker-2': with 3 workers the coordinator would need");
    rig_say_join(&rig, 1); /* its place is counted already */
    struct msg m;
    rig_expect(&rig, 1, MSG_WELCOME, &m);
    rig_leave(&rig, 0);
    rig_join(&rig, 2);
    unsetenv(HOST_MEMORY_ENV);
    rig_close(&rig);
}

TEST(test_later_join_that_differs_is_refused)
{
    struct layout other;
    uint8_t bytes[2048];
    struct msg m;
    const uint64_t shape[2] = {9, 4};
    rig_open_with(&rig, NULL, 1, false);
    rig_hello(&rig, 1);
    for (int i = 0; i < 5; i++) {
        static const uint16_t codes[] = {REFUSE_CONFIG, REFUSE_LAYOUT, REFUSE_DATASET, REFUSE_DATASET, REFUSE_DATASET};
        static const char *const words[] = {"the settings of 'worker-1' differ from the run's",
                                            "tensor 'tensor_0' has shape (9, 4), the run's has (8, 4)", "training data",
                                            "validation data", "(49 samples instead of 50)"};
        layout_init(&other);
        rig_join_message(&rig, 1, false, &m);
        switch (i) {
        case 0: m.join.config_hash ^= 1; break;
        case 1:
            assert_int_equal(layout_add(&other, "tensor_0", 2, shape, LAYOUT_INIT_ONES, 0, true), STATUS_OK);
            assert_int_equal(layout_split(&other, 1), STATUS_OK);
            struct writer w = writer_of(bytes, sizeof bytes);
            layout_encode(&other, &w);
            m.join.layout = bytes;
            m.join.layout_size = w.pos;
            m.join.layout_hash = layout_hash(&other);
            break;
        case 2: m.join.train_hash++; break;
        case 3: m.join.val_hash++; break;
        case 4: m.join.train_samples--; break;
        }
        rig_say(&rig, rig.workers[1].control, &m);
        rig_refused(&rig, 1, codes[i], words[i]);
        layout_finish(&other);
    }
    rig_close(&rig);
}

TEST(test_full_run_and_taken_name_are_refused)
{
    const char *settings[] = {"coordinator.max_workers=2", NULL};
    struct msg m;
    rig_open_with(&rig, settings, 2, false);
    rig_hello(&rig, 2);
    rig_expect(&rig, 2, MSG_CONFIG, &m);
    rig_join_message(&rig, 2, false, &m);
    rig_say(&rig, rig.workers[2].control, &m);
    rig_refused(&rig, 2, REFUSE_FULL, "worker-0, worker-1 hold all 2 places (coordinator.max_workers)");
    snprintf(rig.workers[3].name, sizeof rig.workers[3].name, "worker-1");
    rig_hello(&rig, 3);
    rig_refused(&rig, 3, REFUSE_NAME, "'worker-1'");
    rig_wait(&rig, 4000000); /* three heartbeats of silence: the name still has its owner */
    rig_hello(&rig, 3);
    rig_refused(&rig, 3, REFUSE_NAME, "'worker-1' belongs to a worker that is silent");
    for (int s = 0; s < 60; s += 2) { /* evicted, because worker-0 is here: the name is free */
        rig_beat(&rig, 0, WORKER_READY);
        rig_wait(&rig, 2000000);
    }
    rig_hello(&rig, 3);
    rig_expect(&rig, 3, MSG_CONFIG, &m);
    rig_close(&rig);
}

/* A copied folder with its saved state. Under another name it is refused while the first worker is alive. Under the
 * same name both workers get the warning. */
TEST(test_copied_worker_folder_is_reported)
{
    struct msg m;
    rig_open_with(&rig, NULL, 1, false);
    memcpy(rig.workers[1].uuid, rig.workers[0].uuid, sizeof rig.workers[1].uuid);
    rig_hello(&rig, 1);
    rig_refused(&rig, 1, REFUSE_NAME, "'worker-1' is a copy of the folder of 'worker-0'");
    rig_wait(&rig, 4000000); /* silent: the worker may have been renamed */
    rig_hello(&rig, 1);
    rig_expect(&rig, 1, MSG_CONFIG, &m);
    rig_join(&rig, 0);
    for (int i = 0; i < 3; i++) {
        uint64_t old = rig.workers[0].session;
        rig_wait(&rig, 1000000);
        rig_join(&rig, 0);
        rig_forget(&rig);
        m = (struct msg){.type = MSG_HEARTBEAT, .heartbeat.session = old};
        rig_say(&rig, rig.workers[0].control, &m);
        rig_refused(&rig, 0, REFUSE_UNKNOWN_SESSION,
                    i < 1 ? "was restarted" : "two processes join in turn as 'worker-0'");
    }
    rig_close(&rig);
}

/* A worker repeats JOIN while the coordinator defines a large model, and all copies are read together. If each began a
 * session, the first heartbeat would come too late for it and be refused: the worker would join again, and so on. */
TEST(test_repeated_join_keeps_its_session)
{
    struct msg m;
    rig_open(&rig, NULL);
    rig_say_join(&rig, 0);
    for (int i = 0; i < 3; i++) {
        rig_join_message(&rig, 0, false, &m);
        rig_say(&rig, rig.workers[0].control, &m);
    }
    rig_expect(&rig, 0, MSG_WELCOME, &m);
    uint64_t session = m.welcome.session;
    for (int i = 0; i < 3; i++) {
        rig_expect(&rig, 0, MSG_WELCOME, &m);
        assert_true(m.welcome.session == session);
    }
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_JOIN), 1);
    rig.workers[0].session = session;
    rig_beat(&rig, 0, WORKER_READY);
    rig_expect(&rig, 0, MSG_HEARTBEAT_ACK, &m);
    rig_join(&rig, 0); /* HELLO first */
    assert_true(rig.workers[0].session != session);
    rig_close(&rig);
}

/* A run folder restored from a copy: workers hold versions that its log lacks. */
TEST(test_older_run_folder_is_reported)
{
    rig_open_with(&rig, NULL, 1, false);
    rig.workers[0].versions[0] = 7;
    rig_join(&rig, 0);
    assert_false(rig.workers[0].resume);
    const char *text = "";
    for (size_t i = 0; i < rig.n_events; i++)
        if (rig.events[i].kind == ENGINE_EVENT_JOIN) text = rig.event_text[i];
    if (!strstr(text, "its version 7 is newer than the run's version 0 (after a power cut, or in an older copy"))
        fail_msg("%s", text);
    rig_close(&rig);
}

/* A coordinator that was suspended for a long time must not evict workers whose heartbeats it has not read. */
TEST(test_suspended_coordinator_evicts_no_worker)
{
    const char *settings[] = {"coordinator.min_workers=2", "coordinator.evict_after_s=5", "train.max_steps=20", NULL};
    struct err err = {0};
    rig_open_with(&rig, settings, 2, false);
    for (int message = 0; message < 2; message++) {
        rig.now += 300000000;
        if (message)
            rig_beat(&rig, 0, WORKER_TRAINING); /* the first one of many */
        else
            assert_int_equal(engine_tick(rig.engine, rig.now, &err), STATUS_OK);
        rig_wait(&rig, 3000000);
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), 0);
        for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_TRAINING);
    }
    for (int s = 0; s < 3; s++) {
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), 0);
        rig_beat(&rig, 0, WORKER_TRAINING);
        rig_wait(&rig, 2000000);
    }
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), 1); /* a worker that is silent from here on is evicted */
    rig_close(&rig);
}

static void say_data(int worker, uint64_t train_hash, uint64_t val_hash)
{
    struct msg m = {.type = MSG_HEARTBEAT,
                    .heartbeat = {.session = rig.workers[worker].session,
                                  .state = WORKER_TRAINING,
                                  .train_hash = train_hash,
                                  .val_hash = val_hash,
                                  .n_fragments = rig.layout.n_fragments}};
    rig_say(&rig, rig.workers[worker].control, &m);
}

static void expect_data_refusal(int worker, const char *set)
{
    struct msg m;
    rig_expect(&rig, worker, MSG_REFUSE, &m);
    assert_int_equal(m.refuse.code, REFUSE_DATASET);
    char want[64];
    snprintf(want, sizeof want, "the %s data of 'worker-%d' differs", set, worker);
    assert_non_null(strstr(m.refuse.text, want));
}

/* Workers report the hash of all tokens some time after they joined. A worker that differs from most loses its place,
 * and its samples go to others. */
TEST(test_worker_with_other_tokens_is_refused)
{
    const char *settings[] = {"coordinator.min_workers=3", "train.max_steps=20", "coordinator.quorum=2", NULL};
    for (int odd = 0; odd < 3; odd++) {
        rig_open_with(&rig, settings, 3, true);
        rig_forget(&rig);
        say_data(0, 0, 0); /* not known yet */
        for (int i = 0; i < 3; i++) say_data(i, i == odd ? 7 : 5, 6);
        for (int i = 0; i < 3; i++) say_data(i, i == odd ? 7 : 5, 6);
        expect_data_refusal(odd, "training");
        if (odd == 0) expect_data_refusal(1, "training"); /* of two, the later one: it comes back */
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVICT), odd ? 1 : 2);
        rig_join(&rig, odd == 2 ? 0 : 2); /* the others stay, or may return */
        say_data(odd == 2 ? 0 : 2, 5, 6);
        rig_expect_none(&rig, odd == 2 ? 0 : 2, MSG_REFUSE);
        rig_join(&rig, odd);
        say_data(odd, 7, 6);
        expect_data_refusal(odd, "training");
        rig_close(&rig);
    }
    rig_open_with(&rig, settings, 3, false);
    say_data(0, 5, 6);
    say_data(2, 5, 8);
    expect_data_refusal(2, "validation");
    rig_close(&rig);
}

/* can false: the worker returns its share. */
static void answer(int worker, const struct msg *eval, bool can)
{
    struct msg m;
    rig_eval_result(&rig, worker, eval, 3, &m);
    if (!can) m.eval_result.tokens = 0;
    rig_say(&rig, rig.workers[worker].control, &m);
}

/* A worker that cannot evaluate must not block a barrier. */
TEST(test_returned_share_goes_to_other_worker)
{
    const char *settings[] = {"coordinator.min_workers=2", "train.eval_every=1", "train.eval_tokens=64",
                              "train.max_steps=20", NULL};
    struct msg mine, other, m;
    rig_open_with(&rig, settings, 2, true);
    rig_deliver_all(&rig, 2, 1);
    rig_expect(&rig, 0, MSG_EVAL, &mine);
    rig_expect(&rig, 1, MSG_EVAL, &other);
    rig_forget(&rig);
    answer(0, &mine, false);
    rig_beat(&rig, 0, WORKER_READY);
    rig_expect_none(&rig, 0, MSG_EVAL); /* not the same share again: the other worker will finish soon */
    answer(1, &other, true);
    rig_expect_none(&rig, 0, MSG_EVAL);
    rig_expect(&rig, 1, MSG_EVAL, &m);
    assert_int_equal(m.eval.start, mine.eval.start);
    answer(1, &m, true);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVAL), 1);
    for (int i = 0; i < 2; i++) {
        rig_beat(&rig, i, WORKER_READY);
        rig_assigned(&rig, i);
    }
    rig_close(&rig);
}

/* ddp: the result is independent of the fragments, because the norm spans all of them. */
TEST(test_ddp_is_independent_of_fragments)
{
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        const char *settings[] = {"train.method=ddp", "coordinator.min_workers=2", "inner.grad_clip=0.001",
                                  i ? "train.fragments=2" : "train.fragments=1", NULL};
        rig_open_with(&rig, settings, 2, false);
        for (int round = 0; round < 3; round++) {
            for (int w = 0; w < 2; w++) rig_assigned(&rig, w);
            rig_deliver_all(&rig, 2, (float)round);
        }
        hash[i] = hash_floats(NULL, engine_theta(rig.engine), RIG_PARAMS);
        rig_close(&rig);
    }
    assert_true(hash[0] == hash[1]);
}

TEST_MAIN(NULL, NULL)
