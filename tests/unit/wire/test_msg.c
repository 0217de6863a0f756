/* Messages: decode restores every encoded message, damaged or foreign bytes are refused, and the format is pinned. */
#include <math.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "common/base/text.h"
#include "tests/lib/rigs/golden.h"
#include "tests/lib/rigs/msg_sample.h"
#include "tests/lib/test.h"
#include "wire/frame.h"
#include "wire/msg_table.h"

static uint8_t buffer[WIRE_HEADER + WIRE_BODY_MAX];
static struct msg m, got;

static size_t encode(void)
{
    size_t size = 0;
    enum status status = msg_encode(&m, buffer, sizeof buffer, &size);
    if (status != STATUS_OK) fail_msg("%s: %s", msg_name(m.type), status_text(status));
    assert_int_equal(size, msg_encoded_size(&m));
    return size;
}

/* Decodes an exact-size heap copy, so that a sanitizer detects any read past the end. */
static enum status decode_copy(size_t size, struct err *err)
{
    uint8_t *copy = malloc(size ? size : 1);
    memcpy(copy, buffer, size);
    enum status status = msg_decode(&got, copy, size, err);
    /* An accepted message must be usable: encoding it reads every field. */
    static uint8_t again[WIRE_HEADER + WIRE_BODY_MAX];
    size_t n = 0;
    if (status == STATUS_OK) {
        assert_int_equal(msg_encode(&got, again, sizeof again, &n), STATUS_OK);
        assert_int_equal(n, size);
        if (copy[4] == WIRE_VERSION) assert_memory_equal(again, copy, size);
    }
    free(copy);
    return status;
}

TEST(test_decode_restores_every_message)
{
    static const uint32_t most[] = {1, 5, 40, 300, 70000, 2000000};
    for (const enum msg_type *type = msg_sample_types; *type; type++) {
        for (uint64_t seed = 0; seed < 24; seed++) {
            msg_sample(&m, *type, seed, most[seed % 6]);
            size_t size = encode();
            assert_true(size <= sizeof buffer);
            memset(&got, 0, sizeof got);
            assert_int_equal(msg_decode(&got, buffer, size, NULL), STATUS_OK);
            if (!msg_sample_equal(&m, &got)) fail_msg("%s, seed %d", msg_name(*type), (int)seed);
        }
    }
}

TEST(test_truncated_or_flipped_messages_are_refused)
{
    for (const enum msg_type *type = msg_sample_types; *type; type++) {
        msg_sample(&m, *type, 3, 6);
        size_t size = encode();
        for (size_t n = 0; n < size; n++) assert_int_equal(decode_copy(n, NULL), STATUS_CORRUPT);
        for (size_t bit = 0; bit < 8 * size; bit++) {
            buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_int_equal(decode_copy(size, NULL), STATUS_CORRUPT);
            buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        buffer[size] = 0;
        assert_int_equal(decode_copy(size + 1, NULL), STATUS_CORRUPT);
    }
}

/* A damaged body with a valid checksum may come from another program: it is refused or decodes to a valid message. */
TEST(test_damage_behind_valid_checksum_is_safe)
{
    long accepted = 0, refused = 0;
    for (const enum msg_type *type = msg_sample_types; *type; type++) {
        msg_sample(&m, *type, 4, 6);
        size_t size = encode(), body = size - WIRE_HEADER;
        for (size_t bit = 0; bit < 8 * body; bit++) {
            uint8_t *at = &buffer[WIRE_HEADER + bit / 8], mask = (uint8_t)(1 << bit % 8);
            *at ^= mask;
            frame_seal(buffer, WIRE_VERSION, (uint8_t)*type, body);
            if (decode_copy(size, NULL) == STATUS_OK)
                accepted++;
            else
                refused++;
            *at ^= mask;
        }
        for (size_t cut = 1; cut <= body; cut++) {
            frame_seal(buffer, WIRE_VERSION, (uint8_t)*type, body - cut);
            assert_int_equal(decode_copy(size - cut, NULL), STATUS_CORRUPT);
        }
        buffer[size] = 0;
        frame_seal(buffer, WIRE_VERSION, (uint8_t)*type, body + 1);
        assert_int_equal(decode_copy(size + 1, NULL), STATUS_CORRUPT);
    }
    assert_true(accepted > 5000 && refused > 500);
}

/* Any text for the user is sent: a path with other bytes, a line truncated within a character. */
TEST(test_text_is_cleaned_when_sent)
{
    static const char *const texts[][2] = {
        {"cannot open d\xff/\xc3\xbc.bin", "cannot open d?/\xc3\xbc.bin"},
        {"one\ntwo\x1b[2J", "one?two?[2J"},
        {"m\xc3", "m?"},
        {"\xe2\x82\xac and \xe2\x82", "\xe2\x82\xac and ??"},
        {"\xed\xa0\x80", "???"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        msg_sample(&m, MSG_LEAVE, 1, 5);
        strcpy(m.leave.text, texts[i][0]);
        size_t size = encode();
        assert_int_equal(msg_decode(&got, buffer, size, NULL), STATUS_OK);
        assert_string_equal(got.leave.text, texts[i][1]);
        assert_string_equal(m.leave.text, texts[i][0]);
        assert_true(text_is_clean(got.leave.text, strlen(got.leave.text), false));
    }
    memset(m.leave.text, 'x', sizeof m.leave.text); /* no terminator */
    assert_int_equal(msg_encoded_size(&m), 0);
}

TEST(test_random_bodies_are_safe)
{
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t r = rng_u64(7, RNG_TEST, i);
        size_t body = r % 97;
        for (size_t k = 0; k < body; k++) /* mostly zeros: plausible counts and lengths */
            buffer[WIRE_HEADER + k] = rng_u64(i, RNG_TEST, k) % 4 ? 0 : (uint8_t)rng_u64(i, RNG_TEST + 1, k);
        frame_seal(buffer, WIRE_VERSION, (uint8_t)(r >> 32) % 25, body);
        enum status status = decode_copy(WIRE_HEADER + body, NULL);
        assert_true(status == STATUS_OK || status == STATUS_CORRUPT);
    }
}

static void encode_refuses(void)
{
    size_t size = 99;
    if (msg_encode(&m, buffer, sizeof buffer, &size) != STATUS_INVALID || size != 99) fail_msg("%s", msg_name(m.type));
}

TEST(test_encode_refuses_values_over_limits)
{
    size_t size = 99;
    msg_sample(&m, MSG_HELLO, 1, 5);
    assert_int_equal(msg_encode(&m, buffer, msg_encoded_size(&m) - 1, &size), STATUS_LIMIT);
    assert_int_equal(msg_encode(&m, buffer, WIRE_HEADER - 1, &size), STATUS_LIMIT);
    memset(m.hello.name, 'x', sizeof m.hello.name); /* no terminator */
    encode_refuses();
    assert_int_equal(msg_encoded_size(&m), 0);
    strcpy(m.hello.name, "");
    encode_refuses();
    static const char *const unclean[] = {"a\nb", "a\x1b[2J", "\x7f",         "\xc2\x85",
                                          "\xff", "\xc0\x80", "\xed\xa0\x80", "\xe2\x82"};
    for (size_t i = 0; i < sizeof unclean / sizeof unclean[0]; i++) {
        msg_sample(&m, MSG_HELLO, 1, 5);
        strcpy(m.hello.name, unclean[i]);
        encode_refuses();
    }
    msg_sample(&m, MSG_HEARTBEAT, 1, 5);
    m.heartbeat.n_fragments = LAYOUT_FRAGMENTS_MAX + 1;
    encode_refuses();
    assert_int_equal(msg_encoded_size(&m), 0);
    msg_sample(&m, MSG_HEARTBEAT, 1, 5);
    m.heartbeat.state = WORKER_FINISHED + 1;
    encode_refuses();
    msg_sample(&m, MSG_HEARTBEAT, 1, 5);
    m.heartbeat.step_s = NAN;
    encode_refuses();
    msg_sample(&m, MSG_ASSIGN, 1, 5);
    m.assign.ranges[0] = (struct wire_range){.start = UINT64_MAX, .count = 1};
    encode_refuses();
    msg_sample(&m, MSG_EVAL, 1, 5);
    m.eval.count = WIRE_PARTS_MAX * 3 + 1;
    m.eval.part = 3;
    encode_refuses();
    m.eval.part = 0;
    encode_refuses();
    m.eval.part = 4;
    m.eval.count = 13;
    m.eval.wanted = 1 << 4; /* of 4 parts */
    encode_refuses();
    m.eval.wanted = 0;
    encode_refuses();
    m.eval.wanted = 1 << 3;
    assert_int_equal(msg_decode(&got, buffer, encode(), NULL), STATUS_OK);
    msg_sample(&m, MSG_CHUNK, 1, 5);
    m.chunk.crc ^= 1;
    encode_refuses();
    msg_sample(&m, MSG_CHUNK, 1, 5);
    m.chunk.total = m.chunk.offset + m.chunk.size - 1;
    encode_refuses();
    msg_sample(&m, MSG_CHUNK, 1, 5);
    m.chunk.offset = UINT64_MAX - 1;
    encode_refuses();
    msg_sample(&m, MSG_METRICS, 1, 5);
    m.metrics.n_steps = WIRE_METRICS_MAX + 1;
    encode_refuses();
    msg_sample(&m, MSG_METRICS, 1, 5); /* a diverged loss is reported, not refused */
    m.metrics.steps[0].loss = NAN;
    m.metrics.steps[0].grad_norm = INFINITY;
    assert_int_equal(msg_decode(&got, buffer, encode(), NULL), STATUS_OK);
    assert_true(isnan(got.metrics.steps[0].loss) && isinf(got.metrics.steps[0].grad_norm));
    msg_sample(&m, MSG_OFFER, 1, 5); /* the loss of a program may be unknown */
    m.offer.loss_sum = NAN;
    assert_int_equal(msg_decode(&got, buffer, encode(), NULL), STATUS_OK);
    assert_true(isnan(got.offer.loss_sum));
    m.type = (enum msg_type)22;
    encode_refuses();
    assert_int_equal(msg_encoded_size(&m), 0);
}

/* A chunk that is encoded around its data has the bytes of one that is encoded from elsewhere. */
TEST(test_chunk_is_encoded_in_place)
{
    static uint8_t other[sizeof buffer];
    for (uint64_t seed = 1; seed < 20; seed++) {
        size_t size = 0;
        msg_sample(&m, MSG_CHUNK, seed, 5);
        size_t whole = encode();
        struct msg_chunk chunk = m.chunk;
        memset(other, 0xee, sizeof other);
        memcpy(other + MSG_CHUNK_HEAD, m.chunk.data, m.chunk.size);
        chunk.crc = 0;
        assert_int_equal(msg_encode_chunk(&chunk, other, &size), STATUS_OK);
        assert_int_equal(size, whole);
        assert_memory_equal(other, buffer, whole);
        assert_int_equal(chunk.crc, m.chunk.crc);
    }
    struct msg_chunk beyond = m.chunk;
    beyond.total = beyond.offset + beyond.size - 1;
    size_t size;
    assert_int_equal(msg_encode_chunk(&beyond, other, &size), STATUS_INVALID);
}

/* A frame with a right checksum whose CHUNK names another one for its data. */
TEST(test_chunk_with_wrong_checksum_is_refused)
{
    struct err err = {0};
    msg_sample(&m, MSG_CHUNK, 1, 5);
    size_t size = encode();
    buffer[MSG_CHUNK_HEAD - 8] ^= 1; /* crc and the number of bytes are before the data */
    frame_seal(buffer, WIRE_VERSION, MSG_CHUNK, size - WIRE_HEADER);
    assert_int_equal(msg_decode(&got, buffer, size, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.msg, "checksum of the data"));
    buffer[MSG_CHUNK_HEAD - 8] ^= 1;
    buffer[size - 1] ^= 1;
    frame_seal(buffer, WIRE_VERSION, MSG_CHUNK, size - WIRE_HEADER);
    assert_int_equal(msg_decode(&got, buffer, size, &err), STATUS_CORRUPT);
}

/* The largest message of each kind fits the limits of the transport. */
TEST(test_largest_messages_fit)
{
    static uint8_t data[WIRE_BODY_MAX];
    memset(&m, 0, sizeof m);
    m.type = MSG_CHUNK;
    m.chunk = (struct msg_chunk){.total = WIRE_CHUNK_MAX, .data = data, .size = WIRE_CHUNK_MAX};
    m.chunk.crc = crc32c(0, data, WIRE_CHUNK_MAX);
    assert_int_equal(msg_decode(&got, buffer, encode(), NULL), STATUS_OK);
    m.chunk.size = m.chunk.total = WIRE_CHUNK_MAX + 1;
    m.chunk.crc = crc32c(0, data, WIRE_CHUNK_MAX + 1);
    encode_refuses();
    msg_sample(&m, MSG_JOIN, 1, 5);
    m.join.layout = data;
    m.join.layout_size = WIRE_BODY_MAX - (msg_encoded_size(&m) - WIRE_HEADER - m.join.layout_size);
    assert_int_equal(encode(), sizeof buffer);
    assert_int_equal(msg_decode(&got, buffer, sizeof buffer, NULL), STATUS_OK);
    m.join.layout_size++;
    encode_refuses();
}

/* A count over its limit, with as many elements as it announces: writing them would overrun the struct. */
TEST(test_counts_over_limit_are_refused)
{
    static const struct {
        enum msg_type type;
        size_t count_at, item;
    } lists[] = {{MSG_JOIN, 84, 16},   {MSG_HEARTBEAT, 65, 8}, {MSG_METRICS, 52, 44}, {MSG_WELCOME, 17, 32},
                 {MSG_ASSIGN, 48, 16}, {MSG_EVAL, 40, 8},      {MSG_DONE, 0, 16},     {MSG_EVAL_RESULT, 48, 16}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (size_t n = 257; n * lists[i].item < WIRE_BODY_MAX - 100; n *= 6) {
            size_t body = lists[i].count_at + 4 + n * lists[i].item;
            memset(buffer, 0, WIRE_HEADER + body);
            for (int k = 0; k < 4; k++) buffer[WIRE_HEADER + lists[i].count_at + (size_t)k] = (uint8_t)(n >> (8 * k));
            frame_seal(buffer, WIRE_VERSION, (uint8_t)lists[i].type, body);
            assert_int_equal(decode_copy(WIRE_HEADER + body, NULL), STATUS_CORRUPT);
        }
    }
}

TEST(test_other_version_is_refused_except_refuse)
{
    struct err err = {0};
    msg_sample(&m, MSG_HELLO, 1, 5);
    size_t size = encode();
    frame_seal(buffer, WIRE_VERSION + 1, MSG_HELLO, size - WIRE_HEADER);
    assert_int_equal(decode_copy(size, &err), STATUS_UNSUPPORTED);
    assert_string_equal(err.msg, "the other side uses protocol version 4, this program 3: use the same release on "
                                 "both sides");
    size = golden_read("protocol_v2/01_HELLO", buffer, sizeof buffer);
    assert_int_equal(decode_copy(size, &err), STATUS_UNSUPPORTED);
    size = golden_read("protocol_v2/05_REFUSE", buffer, sizeof buffer);
    assert_int_equal(decode_copy(size, &err), STATUS_OK);
    msg_sample(&m, MSG_REFUSE, 1, 30);
    m.refuse.code = 777; /* a reason that this version does not know */
    size = encode();
    frame_seal(buffer, 200, MSG_REFUSE, size - WIRE_HEADER);
    assert_int_equal(decode_copy(size, &err), STATUS_OK);
    assert_int_equal(got.refuse.code, 777);
    frame_seal(buffer, WIRE_VERSION, 33, 0);
    assert_int_equal(decode_copy(WIRE_HEADER, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.msg, "type 33"));
    frame_seal(buffer, WIRE_VERSION, 0, 0);
    assert_int_equal(decode_copy(WIRE_HEADER, &err), STATUS_CORRUPT);
}

TEST(test_every_type_has_name_and_lane)
{
    int n = 0;
    for (const enum msg_type *type = msg_sample_types; *type; type++, n++) {
        assert_non_null(msg_spec_of(*type));
        bool bulk = *type == MSG_BIND || *type == MSG_CHUNK || *type == MSG_PROBE || *type == MSG_PROBE_REPLY ||
                    *type == MSG_FETCH || *type == MSG_FETCH_REPLY;
        assert_int_equal(msg_lane(*type), bulk ? WIRE_BULK : WIRE_CONTROL);
    }
    assert_int_equal(n, 32);
    assert_null(msg_spec_of(0));
    assert_null(msg_spec_of(33));
    assert_null(msg_spec_of(255));
    assert_string_equal(msg_name(MSG_HEARTBEAT_ACK), "HEARTBEAT_ACK");
    assert_string_equal(msg_name((enum msg_type)33), "?");
}

/* The bytes of a golden message are those of the message that they decode to. ATOLL_GOLDEN=write makes missing files.
 */
TEST(test_messages_match_golden_files)
{
    static uint8_t kept[WIRE_HEADER + WIRE_BODY_MAX];
    for (const enum msg_type *type = msg_sample_types; *type; type++) {
        char name[64];
        snprintf(name, sizeof name, "protocol_v3/%02d_%s", *type, msg_name(*type));
        msg_sample(&m, *type, 1, 4);
        if (!golden_exists(name)) golden_check(name, buffer, encode());
        size_t size = golden_read(name, kept, sizeof kept);
        assert_int_equal(msg_decode(&m, kept, size, NULL), STATUS_OK);
        assert_int_equal(m.type, *type);
        assert_int_equal(encode(), size);
        assert_memory_equal(buffer, kept, size);
    }
}

TEST_MAIN(NULL, NULL)
