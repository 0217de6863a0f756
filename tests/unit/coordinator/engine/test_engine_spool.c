/* Deltas that arrive at the same time lie side by side in the spool, in any order of their chunks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "compress/codec.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"

enum { PIECE = 40 };

static struct rig rig;

struct sender {
    int worker;
    uint32_t fragment;
    uint8_t payload[RIG_PARAMS * sizeof(float) + 64];
    size_t size, at;
};

/* Sends an OFFER; the answer gives the position to continue from. */
static void offer(struct sender *s)
{
    struct msg m;
    while (rig_take(&rig, s->worker, MSG_CREDIT, &m)) continue;
    rig_offer_message(&rig, s->worker, s->fragment, (float)s->worker + 1, &m);
    assert_int_equal(m.offer.bytes, s->size);
    rig_say(&rig, rig.workers[s->worker].control, &m);
    rig_expect(&rig, s->worker, MSG_CREDIT, &m);
    assert_int_equal(m.credit.have, s->at);
}

static struct sender sender_of(int worker, uint32_t fragment)
{
    struct sender s = {.worker = worker, .fragment = fragment};
    struct codec *codec;
    float x[RIG_PARAMS];
    rig_values(&rig, fragment, (float)worker + 1, x);
    assert_int_equal(codec_create_for_fragment(&codec, "fp32", &rig.layout, fragment, NULL), STATUS_OK);
    assert_int_equal(codec_encode(codec, x, s.payload, sizeof s.payload, &s.size, NULL), STATUS_OK);
    codec_destroy(codec);
    return s;
}

/* Sends the next piece; false if there is none. */
static bool step(struct sender *s)
{
    size_t n = s->size - s->at < PIECE ? s->size - s->at : PIECE;
    const uint8_t *data = s->payload + s->at;
    struct msg m = {.type = MSG_CHUNK,
                    .chunk = {.kind = OBJECT_DELTA,
                              .fragment = s->fragment,
                              .key = rig.workers[s->worker].task.round,
                              .offset = s->at,
                              .total = s->size,
                              .crc = crc32c(0, data, n),
                              .data = data,
                              .size = n}};
    if (!n) return false;
    rig_say(&rig, rig.workers[s->worker].bulk, &m);
    s->at += n;
    return true;
}

static void open_with(int n_workers)
{
    const char *settings[] = {"coordinator.min_workers=3", NULL};
    rig_open(&rig, settings);
    for (int i = 0; i < n_workers; i++) rig_join(&rig, i);
    for (int i = 0; i < n_workers; i++) rig_assigned(&rig, i);
}

static uint64_t hash_after(void (*deliver)(void))
{
    open_with(3);
    deliver();
    for (int i = 0; i < 3; i++) rig_expect_none(&rig, i, MSG_REJECT);
    assert_int_equal(engine_version(rig.engine, 0), 1);
    assert_int_equal(engine_version(rig.engine, 1), 1);
    uint64_t hash = rig_theta_hash(&rig);
    rig_close(&rig);
    return hash;
}

static void one_after_the_other(void)
{
    for (int worker = 0; worker < 3; worker++)
        for (uint32_t f = 0; f < 2; f++)
            assert_int_equal(rig_deliver(&rig, worker, f, (float)worker + 1).type, MSG_CREDIT);
}

static void all_at_once(void)
{
    struct sender s[6];
    for (int i = 0; i < 6; i++) {
        s[i] = sender_of(i % 3, (uint32_t)i / 3);
        offer(&s[i]);
    }
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < 6; i++) any = step(&s[i]) || any;
    }
}

/* A worker that joins again in the middle gets another session; its bytes stay in place and belong to it. */
static void across_a_new_session(void)
{
    struct sender s[3];
    for (int i = 0; i < 3; i++) {
        s[i] = sender_of(i, 0);
        offer(&s[i]);
        step(&s[i]);
    }
    while (step(&s[0])) continue; /* its place in the spool is free again */
    rig_join(&rig, 1);
    offer(&s[1]);
    struct sender other = sender_of(0, 1);
    offer(&other);
    for (bool any = true; any;) {
        any = step(&s[1]);
        any = step(&s[2]) || any;
        any = step(&other) || any;
    }
    assert_int_equal(rig_deliver(&rig, 1, 1, 2).type, MSG_CREDIT);
    assert_int_equal(rig_deliver(&rig, 2, 1, 3).type, MSG_CREDIT);
}

static void test_concurrent_uploads_give_same_theta(void **state)
{
    (void)state;
    uint64_t expected = hash_after(one_after_the_other);
    assert_int_equal(hash_after(all_at_once), expected);
    assert_int_equal(hash_after(across_a_new_session), expected);
}

/* An incomplete delta takes no memory, with any number of uploads. */
static void test_incomplete_deltas_take_no_memory(void **state)
{
    (void)state;
    open_with(3);
    struct sender first = sender_of(0, 0), second = sender_of(1, 0);
    offer(&first);
    step(&first);
    struct sender more[2] = {sender_of(2, 0), sender_of(2, 1)};
    size_t before = mem_live_bytes(), spool = store_mem_counts(rig.store).spooled;
    offer(&second);
    offer(&more[0]);
    offer(&more[1]);
    assert_int_equal(mem_live_bytes(), before);
    for (int i = 0; i < 2; i++) {
        step(&second);
        step(&more[0]);
        step(&more[1]);
    }
    assert_int_equal(store_mem_counts(rig.store).spooled, spool + 6 * PIECE);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_concurrent_uploads_give_same_theta),
        cmocka_unit_test(test_incomplete_deltas_take_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
