/* ctest: labels=threads waits=1
 * Keys of connections over loopback: strangers are refused, and an unknown worker enrols. */

#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/lib/net/transport_rig.h"
#include "tests/lib/test.h"
#include "wire/msg.h"
#include "wire/zmq/peers.h"

/* Strangers on the same machine: with another secret, with the key of another coordinator, without keys. */
TEST(test_invalid_keys_are_refused)
{
    struct endpoints p = {0};
    uint64_t peers[2];
    struct arrival a;
    struct transport_worker self = test_access_worker(0), stranger = test_access_worker(1);
    listen_at(&p, "tcp://127.0.0.1:*");
    p.access.strict = true;
    p.access.admitted = &self.key;
    dial(&p, 0);
    greet(&p, 0, peers);
    say(p.listener, peers[WIRE_BULK], WIRE_BULK, "secret");
    expect_text(p.diallers[0], WIRE_BULK, "secret", NULL);
    log_set_level(LOG_WARN);
    log_set_sink(keep_warning, NULL);
    struct transport_address good = p.address;
    p.address.has_secret = false; /* its own key is not enrolled */
    dial(&p, 1);
    p.address = good;
    memcpy(p.address.secret, stranger.key.secret, WIRE_KEY);
    dial(&p, 2);
    p.address = good;
    memcpy(p.address.server_key, stranger.key.public_key, WIRE_KEY);
    dial(&p, 3);
    for (int i = 1; i < 4; i++) {
        static const char *const words[] = {
            [1] = "refused the key", "refused the secret of this join line", "it closed the connection; check"};
        forget_warnings();
        (void)send_to(p.diallers[i], 0, WIRE_CONTROL, "let me in", 9);
        uint64_t end = clock_monotonic_us() + PATIENCE;
        while (!warned(words[i]) && clock_monotonic_us() < end)
            assert_int_equal(recv_for(p.diallers[i], SECOND / 10, &a), STATUS_AGAIN);
        if (!warned(words[i])) fail_msg("dialler %d: no warning \"%s\"", i, words[i]);
    }
    log_set_sink(NULL, NULL);
    log_set_level(LOG_ERROR);
    assert_int_equal(recv_for(p.listener, SECOND / 2, &a), STATUS_AGAIN);
    greet(&p, 0, peers); /* the enrolled worker is not disturbed */
    uint8_t key[WIRE_KEY];
    assert_true(p.listener->ops->key(p.listener, peers[WIRE_CONTROL], key));
    assert_memory_equal(key, self.key.public_key, WIRE_KEY);
    assert_false(p.listener->ops->key(p.listener, peers[WIRE_CONTROL] + PEERS_MAX, key));
    close_all(&p);
}

/* Waits for ENROL of dialler 0, which comes with the secret, and answers it. */
static void answer_enrol(struct endpoints *p, const struct msg *answer)
{
    static struct msg m;
    uint8_t key[WIRE_KEY], frame[WIRE_HEADER + 256];
    size_t size;
    struct arrival a;
    uint64_t end = clock_monotonic_us() + PATIENCE;
    while (recv_for(p->listener, SECOND / 50, &a) == STATUS_AGAIN) {
        struct arrival none;
        assert_true(clock_monotonic_us() < end);
        assert_int_equal(recv_for(p->diallers[0], SECOND / 50, &none), STATUS_AGAIN);
    }
    assert_int_equal(msg_decode(&m, a.data, a.size, NULL), STATUS_OK);
    assert_int_equal(m.type, MSG_ENROL);
    assert_string_equal(m.enrol.name, "w2");
    assert_true(p->listener->ops->key(p->listener, a.peer, key));
    assert_memory_equal(key, p->access.enrol.public_key, WIRE_KEY);
    assert_int_equal(msg_encode(answer, frame, sizeof frame, &size), STATUS_OK);
    assert_int_equal(send_to(p->listener, a.peer, WIRE_CONTROL, frame, size), STATUS_OK);
}

/* A worker whose key the coordinator does not know enrols it; then its messages come with its own key. */
TEST(test_unknown_key_is_enrolled)
{
    struct transport_worker self = test_access_worker(2);
    struct msg enrolled = {.type = MSG_ENROLLED}, refuse = {.type = MSG_REFUSE, .refuse = {REFUSE_NAME, "taken"}};
    memcpy(enrolled.enrolled.key, self.key.public_key, WIRE_KEY);
    for (int fresh = 0; fresh < 2; fresh++) {
        static struct msg got;
        struct endpoints p = {0};
        uint64_t peers[2];
        uint8_t key[WIRE_KEY];
        self.fresh = fresh;
        listen_at(&p, "tcp://127.0.0.1:*");
        p.access.strict = true;
        assert_int_equal(transport_zmq_dial(&p.diallers[0], &p.address, &self, NULL), STATUS_OK);
        if (fresh) {
            answer_enrol(&p, &refuse);
            struct arrival a = expect(p.diallers[0]); /* the layers above get the refusal */
            assert_int_equal(msg_decode(&got, a.data, a.size, NULL), STATUS_OK);
            assert_int_equal(got.type, MSG_REFUSE);
        }
        answer_enrol(&p, &enrolled);
        p.access.admitted = &self.key;
        assert_int_equal(atomic_load(&p.diallers[0]->connected), 0);
        expect_healed(&p);
        greet(&p, 0, peers);
        for (int lane = 0; lane < 2; lane++) {
            assert_true(p.listener->ops->key(p.listener, peers[lane], key));
            assert_memory_equal(key, self.key.public_key, WIRE_KEY);
        }
        assert_int_equal(atomic_load(&p.diallers[0]->connected), 1);
        close_all(&p);
    }
}

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR);
    return test_run(argc, argv, NULL, NULL);
}
