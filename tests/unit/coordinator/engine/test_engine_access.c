/* Keys at the engine: a worker's uuid, name and session belong to the key of its connection; the secret of the join
 * line only enrols. Thieves and revoked workers of a real run are in tests/e2e/test_e2e_keys.sh. */

#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

enum { GUEST = 900, THIEF = 901, THIEF_BULK = 902, LISTED_MAX = 8 };

static struct rig rig;
static struct engine_peer guest, thief; /* the secret of the join line; a worker with a key of its own */
static struct {
    uint8_t key[WIRE_KEY];
    char name[WIRE_NAME_MAX];
} listed[LISTED_MAX];
static int n_listed, n_dropped;
static uint64_t dropped[64];

static bool find_peer(void *ctx, uint64_t peer, struct engine_peer *out)
{
    (void)ctx;
    if (peer == GUEST) return *out = guest, true;
    if (peer == THIEF || peer == THIEF_BULK) return *out = thief, true;
    return rig_find_worker(&rig, peer, out);
}

static enum status enrol(void *ctx, const uint8_t key[WIRE_KEY], const char *name, struct err *err)
{
    (void)ctx;
    if (!strcmp(name, "revoked")) return err_set(err, STATUS_REFUSED, "the key of this worker was revoked");
    if (n_listed == LISTED_MAX) return err_set(err, STATUS_LIMIT, "the list of workers is full");
    memcpy(listed[n_listed].key, key, WIRE_KEY);
    snprintf(listed[n_listed++].name, WIRE_NAME_MAX, "%s", name);
    return STATUS_OK;
}

static void drop(void *ctx, uint64_t peer)
{
    (void)ctx;
    dropped[n_dropped++ % 64] = peer;
}

static void open_with_keys(const char *const *settings)
{
    static const struct rig_access access = {.peer = find_peer, .enrol = enrol, .drop = drop};
    rig_access = &access;
    n_listed = n_dropped = 0;
    guest = (struct engine_peer){.key = {1}, .right = ENGINE_RIGHT_ENROL};
    thief = (struct engine_peer){.key = {2}, .right = ENGINE_RIGHT_WORKER, .name = "thief"};
    rig_open(&rig, settings);
}

static void close_with_keys(void)
{
    rig_close(&rig);
    rig_access = NULL;
}

/* Takes the oldest message to a peer that is no worker of the rig. */
static const struct msg *answer_to(uint64_t peer, enum msg_type type)
{
    for (size_t i = 0; i < rig.n_out; i++) {
        struct rig_mail *mail = &rig.out[i];
        if (mail->received || mail->peer != peer || mail->m->type != type) continue;
        mail->received = true;
        return mail->m;
    }
    fail_msg("peer %d gets no %s", (int)peer, msg_name(type));
    return NULL;
}

static void expect_refusal(uint64_t peer, uint16_t code, const char *words)
{
    const struct msg *m = answer_to(peer, MSG_REFUSE);
    if (m->refuse.code != code || !strstr(m->refuse.text, words))
        fail_msg("refused with %u: %s", m->refuse.code, m->refuse.text);
}

static void hello_as(uint64_t peer, const uint8_t *uuid, const char *name)
{
    struct msg m = {.type = MSG_HELLO};
    memcpy(m.hello.uuid, uuid, WIRE_UUID);
    snprintf(m.hello.name, sizeof m.hello.name, "%s", name);
    rig_say(&rig, peer, &m);
}

static void enrol_as(uint64_t peer, const uint8_t key[WIRE_KEY], const char *name)
{
    struct msg m = {.type = MSG_ENROL};
    memcpy(m.enrol.key, key, WIRE_KEY);
    snprintf(m.enrol.name, sizeof m.enrol.name, "%s", name);
    rig_say(&rig, peer, &m);
}

/* A name that people cannot tell from another one is not enrolled. */
TEST(test_invisible_name_is_refused)
{
    static const char *const names[] = {"worker-\u200b0", "\u202eworker", "\ufeffworker"};
    open_with_keys(NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        enrol_as(GUEST, guest.key, names[i]);
        expect_refusal(GUEST, REFUSE_NAME,
                       "has invisible characters, shown as '?': choose another name (--name, or name=");
    }
    assert_int_equal(n_listed, 0);
    close_with_keys();
}

/* Knowing a session's id does not help: messages of a session come with its key. */
TEST(test_session_belongs_to_its_key)
{
    struct msg m, offer, join, hello = {.type = MSG_HELLO, .hello.name = "worker-0"};
    open_with_keys(NULL);
    rig_join(&rig, 0);
    rig_assigned(&rig, 0);
    uint64_t id = rig.workers[0].session, control = rig.workers[0].control;
    rig_offer_message(&rig, 0, 0, 1, &offer);
    rig_join_message(&rig, 0, false, &join);
    memcpy(hello.hello.uuid, rig.workers[0].uuid, WIRE_UUID);
    const struct msg stolen[] = {
        {.type = MSG_HEARTBEAT, .heartbeat.session = id},
        {.type = MSG_LEAVE, .leave.session = id},
        {.type = MSG_GET, .get = {.session = id, .kind = OBJECT_SNAPSHOT, .length = 1}},
        {.type = MSG_METRICS, .metrics = {.session = id, .round = UINT64_MAX}},
        {.type = MSG_EVAL_RESULT, .eval_result = {.session = id, .eval_id = 1, .tokens = 1}},
        {.type = MSG_OFFER, .offer = offer.offer},
        {.type = MSG_SAVES, .saves = {.session = id, .every = 5}},
        hello,
        join,
    };
    rig_forget(&rig);
    for (size_t i = 0; i < sizeof stolen / sizeof *stolen; i++) {
        rig_say(&rig, THIEF, &stolen[i]);
        expect_refusal(THIEF, REFUSE_KEY, "speaks for another worker than the key of its connection");
    }
    m = (struct msg){.type = MSG_BIND, .bind.session = id};
    rig_say(&rig, THIEF_BULK, &m); /* bulk: its data would go to the thief, its chunks into the upload */
    assert_int_equal(dropped[n_dropped - 1], THIEF_BULK);
    rig_say(&rig, control, &offer); /* the session is whole, and still answers its owner */
    rig_expect(&rig, 0, MSG_CREDIT, &m);
    assert_int_equal(m.credit.have, 0);
    assert_int_equal(rig.workers[0].session, id);
    rig_deliver_all(&rig, 1, 1);
    close_with_keys();
}

/* The secret of the join line enrols and asks for the status. It joins nothing, even with a uuid that fits it. */
TEST(test_secret_only_enrols)
{
    struct msg m;
    uint8_t key[WIRE_KEY] = {7};
    open_with_keys(NULL);
    rig_join(&rig, 0);
    m = (struct msg){.type = MSG_STATUS};
    rig_say(&rig, GUEST, &m);
    answer_to(GUEST, MSG_STATUS_REPLY);
    hello_as(GUEST, guest.key, "guest");
    expect_refusal(
        GUEST, REFUSE_KEY,
        "only enrols workers, asks for the status, probes the link and follows the model, and HELLO came with it");
    assert_int_equal(dropped[0], GUEST);
    rig_join_message(&rig, 0, false, &m);
    rig_say(&rig, GUEST, &m);
    expect_refusal(GUEST, REFUSE_KEY, "JOIN came with it");
    m = (struct msg){.type = MSG_LEAVE, .leave.session = rig.workers[0].session};
    rig_say(&rig, GUEST, &m);
    expect_refusal(GUEST, REFUSE_KEY, "LEAVE came with it");
    enrol_as(GUEST, key, "new");
    assert_memory_equal(answer_to(GUEST, MSG_ENROLLED)->enrolled.key, key, WIRE_KEY);
    assert_int_equal(n_listed, 1);
    assert_string_equal(listed[0].name, "new");
    enrol_as(GUEST, key, "revoked");
    expect_refusal(GUEST, REFUSE_KEY, "was revoked");
    n_listed = LISTED_MAX;
    enrol_as(GUEST, key, "one more");
    expect_refusal(GUEST, REFUSE_FULL, "is full");
    enrol_as(THIEF, key, "friend");
    expect_refusal(THIEF, REFUSE_KEY, "a worker may not enrol another one");
    close_with_keys();
}

static const struct msg_probe_reply *probe(uint64_t id, uint32_t want)
{
    rig_say(&rig, GUEST, &(struct msg){.type = MSG_PROBE, .probe = {.id = id, .want = want}});
    const struct msg_probe_reply *reply = &answer_to(GUEST, MSG_PROBE_REPLY)->probe_reply;
    assert_int_equal(reply->id, id);
    return reply;
}

/* The secret may also measure the link: 10 s, then the coordinator rests for 20 s. */
TEST(test_probes_end_after_a_while)
{
    open_with_keys(NULL);
    rig_join(&rig, 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(probe(1, 0)->size, 0);
        assert_int_equal(probe(2, WIRE_PROBE_MAX)->size, WIRE_PROBE_MAX);
        rig_wait(&rig, 9000000);
        assert_int_equal(probe(3, 1000)->wait_s, 0);
        rig_wait(&rig, 2000000);
        assert_int_equal(probe(4, 1000)->size, 0);
        assert_in_range(probe(5, 1000)->wait_s, 18, 20);
        rig_wait(&rig, 20000000);
    }
    assert_int_equal(n_dropped, 0);
    close_with_keys();
}

/* A copy of a folder under another name has the key of the first: refused while the first is connected, and later by
 * the name of its key. */
TEST(test_name_belongs_to_its_key)
{
    open_with_keys(NULL);
    rig_join(&rig, 0);
    hello_as(rig.workers[0].control, rig.workers[0].uuid, "copy");
    expect_refusal(rig.workers[0].control, REFUSE_NAME, "the folder of 'copy' is a copy of the folder of 'worker-0'");
    rig_wait(&rig, 4000000);
    hello_as(rig.workers[0].control, rig.workers[0].uuid, "copy");
    expect_refusal(rig.workers[0].control, REFUSE_KEY, "the key of 'copy' is enrolled under the name 'worker-0'");
    close_with_keys();
}

TEST_MAIN(NULL, NULL)
