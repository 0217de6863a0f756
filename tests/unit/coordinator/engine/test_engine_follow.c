/* Followers at the engine: what MODEL says, what FETCH reads, that workers come first, and how long checkpoints and the
 * process wait for a follower. */

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/tensor/layout.h"
#include "compress/codec.h"
#include "coordinator/engine/engine_impl.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"
#include "wire/model_object.h"
#include "wire/object.h"

enum { FOLLOWER = 900, FRAGMENTS = 2, SECOND = 1000000 };

static struct rig rig;
static uint8_t bytes[1 << 16];

static const struct msg *answer(enum msg_type type)
{
    for (size_t i = 0; i < rig.n_out; i++) {
        struct rig_mail *mail = &rig.out[i];
        if (mail->received || mail->peer != FOLLOWER || mail->m->type != type) continue;
        mail->received = true;
        return mail->m;
    }
    fail_msg("the follower gets no %s", msg_name(type));
    return NULL;
}

static struct msg_model_reply ask(void)
{
    rig_say(&rig, FOLLOWER, &(struct msg){.type = MSG_MODEL});
    return answer(MSG_MODEL_REPLY)->model_reply;
}

static const struct msg_fetch_reply *fetch_part(enum fetch_kind kind, uint32_t index, uint64_t version, uint64_t offset,
                                                uint32_t want)
{
    static uint64_t id;
    struct msg m = {
        .type = MSG_FETCH,
        .fetch = {
            .id = ++id, .kind = (uint8_t)kind, .index = index, .version = version, .offset = offset, .want = want}};
    rig_say(&rig, FOLLOWER, &m);
    const struct msg_fetch_reply *reply = &answer(MSG_FETCH_REPLY)->fetch_reply;
    assert_int_equal(reply->id, id);
    return reply;
}

/* Reads a whole object in parts of odd length; 0: it does not exist. */
static size_t fetch(enum fetch_kind kind, uint32_t index, uint64_t version)
{
    size_t have = 0;
    for (uint64_t total = 1; have < total;) {
        const struct msg_fetch_reply *r = fetch_part(kind, index, version, have, 37);
        if (!r->total) return 0;
        assert_int_equal(r->wait_ms, 0);
        assert_true(r->size > 0 && have + r->size <= r->total && r->total <= sizeof bytes);
        memcpy(bytes + have, r->data, r->size);
        have += r->size;
        total = r->total;
    }
    assert_int_equal(fetch_part(kind, index, version, have, 1)->size, 0);
    return have;
}

/* Applies what a follower reads to theta[RIG_PARAMS]. */
static void follow(float *theta, const struct msg_model_reply *r, const struct wire_version *to, bool snapshot)
{
    for (uint32_t f = 0; f < FRAGMENTS; f++) {
        const struct fragment *frag = &engine_layout(rig.engine)->fragments[f];
        float *part = theta + frag->offset;
        if (snapshot) {
            struct snapshot_head head;
            assert_int_equal(fetch(FETCH_SNAPSHOT, f, r->snapshot[f].version),
                             SNAPSHOT_HEAD_BYTES + frag->count * sizeof *part);
            assert_int_equal(snapshot_head_decode(&head, bytes, SNAPSHOT_HEAD_BYTES), STATUS_OK);
            assert_int_equal(head.hash, r->snapshot[f].hash);
            memcpy(part, bytes + SNAPSHOT_HEAD_BYTES, frag->count * sizeof *part);
            assert_int_equal(hash_floats(NULL, part, frag->count), head.hash);
        }
        for (uint64_t v = r->snapshot[f].version + 1; v <= to[f].version; v++) {
            struct update u;
            struct update_named named[8];
            struct codec *codec;
            float x[RIG_PARAMS];
            size_t size = fetch(FETCH_UPDATE, f, v);
            assert_int_equal(update_decode(&u, named, 8, bytes, size), STATUS_OK);
            assert_int_equal(codec_create_for_fragment(&codec, u.codec, engine_layout(rig.engine), f, NULL), STATUS_OK);
            assert_int_equal(codec_decode(codec, u.payload, u.payload_size, x), STATUS_OK);
            for (uint64_t i = 0; i < frag->count; i++) part[i] = u.form == UPDATE_PARAMETERS ? x[i] : part[i] + x[i];
            codec_destroy(codec);
        }
        assert_int_equal(hash_floats(NULL, part, frag->count), to[f].hash);
    }
}

static const char *const settings[] = {"train.max_steps=40",
                                       "coordinator.min_workers=2",
                                       "checkpoint.every=2",
                                       "checkpoint.keep=1",
                                       "codec.up=int8:256",
                                       "codec.down=int8:256",
                                       NULL};

TEST(test_follower_reads_what_workers_read)
{
    static struct model_object m;
    float theta[RIG_PARAMS];
    rig_open(&rig, settings);
    assert_int_equal(ask().bytes, 0); /* no model yet */
    assert_int_equal(fetch(FETCH_MODEL, 0, 0), 0);
    rig_join(&rig, 0);
    rig_join(&rig, 1);
    struct msg_model_reply r = ask();
    assert_int_equal(r.round, 0);
    assert_int_equal(r.n_fragments, FRAGMENTS);
    assert_memory_equal(r.run_id, engine_run_id(rig.engine), WIRE_UUID);
    assert_int_equal(fetch(FETCH_MODEL, 0, 0), r.bytes);
    assert_int_equal(model_object_decode(&m, bytes, r.bytes), STATUS_OK);
    assert_memory_equal(m.layout, rig.layout_bytes, m.layout_size);
    assert_int_equal(m.layout_size, rig.layout_size);
    assert_non_null(strstr(m.settings, "int8:256"));
    assert_int_equal(m.n_files, 0);
    follow(theta, &r, r.current, true);
    for (int round = 1; round <= 3; round++) {
        rig_assigned(&rig, 0), rig_assigned(&rig, 1);
        rig_deliver_all(&rig, 2, (float)round);
    }
    r = ask();
    assert_int_equal(r.round, 3);
    assert_int_equal(r.snapshot_round, 2);
    assert_int_equal(r.current[1].version, 3);
    follow(theta, &r, r.current, true);
    assert_memory_equal(theta, engine_theta(rig.engine), sizeof theta);
    assert_int_equal(fetch(FETCH_UPDATE, 0, 4), 0); /* not yet */
    assert_int_equal(fetch(FETCH_UPDATE, FRAGMENTS, 1), 0);
    assert_int_equal(fetch(FETCH_SNAPSHOT, 0, 99), 0);
    assert_int_equal(fetch(FETCH_FILE, 0, 0), 0);
    rig_close(&rig);
}

/* Between two fragments of a round the model is still that of the round before. */
TEST(test_model_is_always_of_a_whole_round)
{
    rig_open_with(&rig, settings, 2, true);
    rig_deliver_all(&rig, 2, 1);
    rig_assigned(&rig, 0), rig_assigned(&rig, 1);
    rig_deliver(&rig, 0, 0, 2), rig_deliver(&rig, 1, 0, 2);
    assert_int_equal(engine_version(rig.engine, 0), 2);
    struct msg_model_reply r = ask();
    assert_int_equal(r.round, 1);
    assert_int_equal(r.current[0].version, 1);
    assert_int_equal(r.current[1].version, 1);
    rig_deliver(&rig, 0, 1, 2), rig_deliver(&rig, 1, 1, 2);
    assert_int_equal(ask().current[0].version, 2);
    rig_close(&rig);
}

/* While a worker sends, all followers together get a tenth of the workers' bytes. */
TEST(test_workers_come_first)
{
    rig_open_with(&rig, settings, 2, true);
    fetch_part(FETCH_SNAPSHOT, 0, 0, 0, 64);
    rig_beat(&rig, 0, WORKER_SENDING);
    rig_wait(&rig, SECOND);
    rig_beat(&rig, 0, WORKER_SENDING);
    rig.socket += 500;
    uint64_t got = 0;
    for (int i = 0; i < 50; i++) {
        const struct msg_fetch_reply *r = fetch_part(FETCH_SNAPSHOT, 0, 0, 0, 8);
        assert_true(r->size ? !r->wait_ms : r->wait_ms > 0);
        assert_true(r->total > 0);
        got += r->size;
    }
    assert_true(got > 0 && got <= 2 * 500 / 10 + 8); /* the rig counts bytes up and down */
    rig_beat(&rig, 0, WORKER_TRAINING);
    rig_wait(&rig, SECOND);
    for (int i = 0; i < 50; i++) assert_int_equal(fetch_part(FETCH_SNAPSHOT, 0, 0, 0, 8)->size, 8);
    rig_close(&rig);
}

/* However many connections ask, the main loop has time for the workers. */
TEST(test_many_followers_are_told_to_wait)
{
    enum { ASKED = 3000, SERVED_MOST = 1100, AGAIN = 100 };
    const struct msg_fetch m = {.id = 1, .kind = FETCH_SNAPSHOT, .want = 8};
    int served = 0;
    rig_open_with(&rig, settings, 2, true);
    rig_wait(&rig, SECOND);
    for (int i = 0; i < ASKED; i++) { /* at one moment */
        engine_on_fetch(rig.engine, FOLLOWER, &m);
        served += answer(MSG_FETCH_REPLY)->fetch_reply.size > 0;
        rig_forget(&rig);
    }
    assert_true(served >= AGAIN && served < SERVED_MOST);
    rig_wait(&rig, SECOND);
    for (int i = 0; i < AGAIN; i++) assert_int_equal(fetch_part(FETCH_SNAPSHOT, 0, 0, 0, 8)->size, 8);
    rig_close(&rig);
}

static bool has_checkpoint(uint64_t round)
{
    uint64_t *list;
    size_t n;
    bool found = false;
    assert_int_equal(store_list(rig.store, rig.store->ops->checkpoint_list, &list, &n, NULL), STATUS_OK);
    for (size_t i = 0; i < n; i++) found = found || list[i] == round;
    mem_free(list);
    return found;
}

static void play_rounds(int n)
{
    for (int i = 0; i < n; i++) {
        rig_assigned(&rig, 0), rig_assigned(&rig, 1);
        rig_deliver_all(&rig, 2, 1);
    }
}

/* A checkpoint that is read, and the updates after it, stay for ten seconds. */
TEST(test_checkpoint_waits_for_its_reader)
{
    rig_open_with(&rig, settings, 2, false);
    play_rounds(2);
    assert_true(has_checkpoint(2));
    fetch_part(FETCH_SNAPSHOT, 0, 2, 0, 8);
    play_rounds(4);
    assert_true(has_checkpoint(2) && has_checkpoint(6));
    assert_true(fetch_part(FETCH_UPDATE, 1, 3, 0, 8)->total > 0); /* reads the log after it */
    rig_wait(&rig, 9 * SECOND);
    play_rounds(2);
    assert_true(has_checkpoint(2));
    rig_wait(&rig, 2 * SECOND);
    play_rounds(2);
    assert_false(has_checkpoint(2));
    assert_int_equal(fetch_part(FETCH_SNAPSHOT, 0, 2, 0, 8)->total, 0);
    rig_close(&rig);
}

/* At the end the process lives on for a follower that was heard in the last three seconds. */
TEST(test_process_waits_for_a_follower)
{
    rig_open_with(&rig, settings, 2, false);
    rig_play(&rig, NULL);
    assert_true(engine_done(rig.engine));
    struct msg_model_reply r = ask();
    assert_true(r.done);
    assert_int_equal(r.round, r.rounds);
    for (int i = 0; i < 10; i++) { /* twice as long as it waits for workers */
        rig_wait(&rig, SECOND);
        ask();
        assert_false(engine_finished(rig.engine));
    }
    rig_wait(&rig, 4 * SECOND);
    assert_true(engine_finished(rig.engine));
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
