/* Hostile payloads at the coordinator, for every kind of codec: truncated, too long, with flipped bits, NaN, and
 * counts and positions out of range.
 * Each payload is refused, counted and reported. The round continues as if the delta had never been offered: theta,
 * accumulator and samples equal those of a run without it.
 * Invalid messages are tested, too. */

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "compress/codec.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

static struct rig rig;

enum { PAYLOAD = 2048 };

struct attack {
    uint8_t bytes[PAYLOAD];
    size_t size;
};

static const char *const specs[] = {
    "fp32",     "bf16",         "fp16",       "int8:16",         "int4:64",         "2bit:64",        "1bit:64",
    "fp32+lz4", "int4:64+huff", "topk:9/256", "topk:9/256+2bit", "topk:9/256+int8", "topk:9/256+fp16"};
enum { N_SPECS = sizeof specs / sizeof *specs };

static void open_rig(const char *spec)
{
    char up[64];
    snprintf(up, sizeof up, "codec.up=%s", spec);
    const char *settings[] = {"coordinator.min_workers=2", "train.fragments=1", "train.method=local-sgd", up, NULL};
    rig_open_with(&rig, settings, 2, true);
}

static struct codec *codec_of_run(void)
{
    struct codec *codec = NULL;
    assert_int_equal(codec_create_for_fragment(&codec, rig.config.codec.up, &rig.layout, 0, NULL), STATUS_OK);
    return codec;
}

static void valid_delta(struct attack *a)
{
    float x[RIG_PARAMS];
    struct codec *codec = codec_of_run();
    rig_values(&rig, 0, 1, x);
    for (int i = 0; i < RIG_PARAMS; i += 3) x[i] = -x[i];
    memset(a->bytes, 0, sizeof a->bytes);
    assert_int_equal(codec_encode(codec, x, a->bytes, sizeof a->bytes, &a->size, NULL), STATUS_OK);
    codec_destroy(codec);
}

/* Returns the codec's own status. */
static enum status codec_status(const struct attack *a)
{
    struct codec *codec = codec_of_run();
    struct codec_view view;
    enum status status = codec_open(codec, a->bytes, a->size, NULL, &view);
    codec_destroy(codec);
    return status;
}

static void expect_counted(const char *reason)
{
    struct msg m = {.type = MSG_STATUS};
    char want[64];
    snprintf(want, sizeof want, "\"deltas_refused\":1,\"refused_for\":{\"%s\":1}", reason);
    rig_say(&rig, rig.workers[0].control, &m);
    rig_expect(&rig, 0, MSG_STATUS_REPLY, &m);
    if (!strstr(m.status_reply.json, want)) fail_msg("not %s: %s", want, m.status_reply.json);
}

/* Sends bytes as worker 0, with the offer of another delta. */
static void send_bytes(const struct attack *a, struct msg *m)
{
    m->offer.bytes = a->size;
    m->offer.crc = crc32c(0, a->bytes, a->size < PAYLOAD ? a->size : PAYLOAD);
    rig_say(&rig, rig.workers[0].control, m);
    if (a->size > PAYLOAD) return;
    *m = (struct msg){.type = MSG_CHUNK,
                      .chunk = {.kind = OBJECT_DELTA,
                                .total = a->size,
                                .crc = crc32c(0, a->bytes, a->size),
                                .data = a->bytes,
                                .size = a->size}};
    rig_say(&rig, rig.workers[0].bulk, m);
}

/* Worker 0 offers the damaged delta, worker 1 its valid one. Returns the hash of theta after the round. */
static uint64_t attacked_round(const struct attack *a, uint16_t *code)
{
    struct msg m;
    *code = 0;
    rig_offer_message(&rig, 0, 0, 1, &m);
    send_bytes(a, &m);
    rig_expect(&rig, 0, MSG_REJECT, &m);
    *code = m.reject.code;
    expect_counted(*code == REJECT_NONFINITE ? "nonfinite" : "corrupt");
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 1); /* and reported */
    assert_int_equal(engine_version(rig.engine, 0), 0);
    assert_int_equal(rig_deliver(&rig, 1, 0, 1).type, MSG_CREDIT);
    assert_int_equal(engine_version(rig.engine, 0), 1);
    assert_int_equal(engine_samples_committed(rig.engine), 4 / 2);
    return rig_theta_hash(&rig);
}

static void attack_once(const char *spec, const struct attack *a, uint64_t unharmed, const char *how)
{
    uint16_t code;
    open_rig(spec);
    enum status status = a->size <= PAYLOAD ? codec_status(a) : STATUS_CORRUPT;
    uint64_t hash = attacked_round(a, &code);
    if (code != (status == STATUS_NONFINITE ? REJECT_NONFINITE : REJECT_CORRUPT))
        fail_msg("%s, %s: code %u, but the codec returns %s", spec, how, code, status_text(status));
    if (hash != unharmed) fail_msg("%s, %s: theta differs from a run without the delta", spec, how);
    rig_close(&rig);
}

/* Returns theta of a round without worker 0, whose offer has a wrong token count. */
static uint64_t round_without(const char *spec)
{
    struct msg m;
    open_rig(spec);
    rig_offer_message(&rig, 0, 0, 1, &m);
    m.offer.tokens++;
    rig_say(&rig, rig.workers[0].control, &m);
    rig_expect(&rig, 0, MSG_REJECT, &m);
    assert_int_equal(rig_deliver(&rig, 1, 0, 1).type, MSG_CREDIT);
    uint64_t hash = rig_theta_hash(&rig);
    rig_close(&rig);
    return hash;
}

/* The first damage of each kind that the codec detects; undetected damage gives a valid delta. */
TEST(test_damaged_payloads_are_refused)
{
    for (int s = 0; s < N_SPECS; s++) {
        static struct attack real, a;
        uint64_t unharmed = round_without(specs[s]);
        open_rig(specs[s]);
        valid_delta(&real);
        rig_close(&rig);
        a = real;
        a.size--;
        attack_once(specs[s], &a, unharmed, "cut short");
        a = real;
        a.size = 0;
        attack_once(specs[s], &a, unharmed, "empty");
        a = real;
        a.size++;
        attack_once(specs[s], &a, unharmed, "one byte more");
        a.size = (size_t)1 << 40;
        attack_once(specs[s], &a, unharmed, "huge");
        int seen = 0;
        for (size_t bit = 0; bit < 8 * real.size && seen < 4; bit += 8 * real.size / 61 + 1) {
            a = real;
            a.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            open_rig(specs[s]);
            enum status status = codec_status(&a);
            rig_close(&rig);
            if (status == STATUS_OK) continue;
            attack_once(specs[s], &a, unharmed, "a bit flipped");
            seen++;
        }
    }
}

/* Runs a round of one worker with one value replaced. Returns the code of the refusal; 0: merged. */
static uint16_t replaced(const char *method, const char *spec, float number)
{
    struct attack a;
    struct msg m;
    float x[RIG_PARAMS];
    char up[64];
    bool ddp = !strcmp(method, "train.method=ddp");
    snprintf(up, sizeof up, "codec.up=%s", spec);
    const char *settings[] = {"train.fragments=1",
                              "coordinator.min_workers=1",
                              ddp ? "run.seed=1" : "outer.learning_rate=3",
                              method,
                              up,
                              NULL};
    rig_open_with(&rig, settings, 1, true);
    struct codec *codec = codec_of_run();
    rig_values(&rig, 0, 1, x);
    x[RIG_PARAMS / 2] = number;
    assert_int_equal(codec_encode(codec, x, a.bytes, sizeof a.bytes, &a.size, NULL), STATUS_OK);
    codec_destroy(codec);
    rig_offer_message(&rig, 0, 0, 1, &m);
    send_bytes(&a, &m);
    uint16_t code = rig_take(&rig, 0, MSG_REJECT, &m) ? m.reject.code : 0;
    assert_int_equal(engine_version(rig.engine, 0), code ? 0 : 1);
    rig_close(&rig);
    return code;
}

/* Finite values that no training makes, such as a flipped exponent bit, are refused. A value just below the limit is
 * accepted, and the outer step with its rate and momentum stays finite. */
TEST(test_too_large_values_are_refused)
{
    static const char *const methods[] = {"train.method=local-sgd", "train.method=ddp", "train.method=diloco",
                                          "train.method=async"};
    static const char *const ups[] = {"fp32", "bf16", "int8:16", "topk:9/256", "fp32+lz4"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        for (size_t k = 0; k < sizeof ups / sizeof *ups; k++) {
            uint16_t code = replaced(methods[i], ups[k], 0x1p66f), larger = replaced(methods[i], ups[k], -3.2e38f);
            if (code != REJECT_NONFINITE || larger != REJECT_NONFINITE)
                fail_msg("%s, %s: codes %u, %u", methods[i], ups[k], code, larger);
        }
        assert_int_equal(replaced(methods[i], "fp32", 0x1p64f), REJECT_NONFINITE);
        assert_int_equal(replaced(methods[i], "fp32", 0x1.fffffep63f), 0);
    }
}

/* Messages with unknown sessions, unknown objects, or of types that only a coordinator sends. */
TEST(test_invalid_messages_are_refused)
{
    struct msg m;
    rig_open(&rig, NULL);
    const enum msg_type types[] = {MSG_HEARTBEAT, MSG_OFFER, MSG_GET,  MSG_EVAL_RESULT,
                                   MSG_METRICS,   MSG_LEAVE, MSG_SAVES};
    for (int modelled = 0; modelled < 2; modelled++) {
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            m = (struct msg){.type = types[i]};
            rig.workers[3].control = rig.workers[3].bulk = 777;
            rig_say(&rig, 777, &m); /* session 0 */
            rig_expect(&rig, 3, MSG_REFUSE, &m);
            assert_int_equal(m.refuse.code, REFUSE_UNKNOWN_SESSION);
        }
        m = (struct msg){.type = MSG_BIND};
        rig_say(&rig, 777, &m);
        rig_expect_none(&rig, 3, MSG_REFUSE); /* that lane carries no REFUSE */
        if (!modelled) rig_join(&rig, 0);
    }
    m = (struct msg){.type = MSG_OFFER, .offer = {.session = rig.workers[0].session, .fragment = 200}};
    rig_say(&rig, rig.workers[0].control, &m);
    rig_expect(&rig, 0, MSG_REJECT, &m);
    m = (struct msg){.type = MSG_GET,
                     .get = {.session = rig.workers[0].session, .fragment = 200, .kind = OBJECT_UPDATE}};
    rig_say(&rig, rig.workers[0].control, &m);
    rig_expect(&rig, 0, MSG_REFUSE, &m);
    static const uint8_t junk[100] = {1};
    m = (struct msg){.type = MSG_CHUNK,
                     .chunk = {.kind = OBJECT_DELTA,
                               .fragment = 200,
                               .total = 1000,
                               .data = junk,
                               .size = sizeof junk,
                               .crc = crc32c(0, junk, sizeof junk)}};
    rig_say(&rig, rig.workers[0].bulk, &m);
    rig_say(&rig, 12345, &m); /* a peer without a session */
    m = (struct msg){.type = MSG_EVAL_RESULT, .eval_result = {.session = rig.workers[0].session, .eval_id = 9}};
    rig_say(&rig, rig.workers[0].control, &m);
    m = (struct msg){.type = MSG_ASSIGN};
    rig_say(&rig, rig.workers[0].control, &m);
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
