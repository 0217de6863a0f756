/* Updates and snapshot heads: round trip, golden bytes, and refusal of every damage. */
#include <math.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "tests/lib/rigs/golden.h"
#include "tests/lib/test.h"
#include "wire/object.h"

static uint8_t buffer[1 << 18], payload[1 << 16];
static struct update_named named[WIRE_NAMED_MAX], got_named[WIRE_NAMED_MAX];

static struct update sample(uint64_t seed, uint32_t n_named, size_t payload_size)
{
    struct update u = {
        .fragment = (uint32_t)(rng_u64(seed, RNG_TEST, 0) % LAYOUT_FRAGMENTS_MAX),
        .version = 1 + rng_u64(seed, RNG_TEST, 1) / 2,
        .round = rng_u64(seed, RNG_TEST, 2),
        .form = (uint8_t)(rng_u64(seed, RNG_TEST, 3) & 1),
        .theta_hash = rng_u64(seed, RNG_TEST, 4),
        .rate = 0.7 / (double)(seed + 1),
        .codec = "int8:256+lz4",
        .n_named = n_named,
        .named = named,
        .payload = payload,
        .payload_size = payload_size,
    };
    for (uint32_t i = 0; i < n_named; i++)
        named[i] = (struct update_named){.worker_id = (uint32_t)rng_u64(seed, RNG_TEST, 10 + 3 * i),
                                         .round = rng_u64(seed, RNG_TEST, 11 + 3 * i),
                                         .tokens = rng_u64(seed, RNG_TEST, 12 + 3 * i)};
    for (size_t i = 0; i < payload_size; i++) payload[i] = (uint8_t)rng_u64(seed, RNG_TEST + 1, i);
    return u;
}

static size_t encode(const struct update *u)
{
    size_t size = 0;
    assert_int_equal(update_encode(u, buffer, sizeof buffer, &size), STATUS_OK);
    assert_int_equal(size, update_encoded_size(u));
    assert_int_equal(update_crc(buffer, size), crc32c(0, buffer, size));
    return size;
}

static void same_update(const struct update *a, const struct update *b)
{
    assert_int_equal(a->fragment, b->fragment);
    assert_int_equal(a->version, b->version);
    assert_int_equal(a->round, b->round);
    assert_int_equal(a->form, b->form);
    assert_int_equal(a->theta_hash, b->theta_hash);
    assert_true(a->rate == b->rate);
    assert_string_equal(a->codec, b->codec);
    assert_int_equal(a->n_named, b->n_named);
    for (uint32_t i = 0; i < a->n_named; i++) {
        assert_int_equal(a->named[i].worker_id, b->named[i].worker_id);
        assert_int_equal(a->named[i].round, b->named[i].round);
        assert_int_equal(a->named[i].tokens, b->named[i].tokens);
    }
    assert_int_equal(a->payload_size, b->payload_size);
    assert_memory_equal(a->payload, b->payload, a->payload_size);
}

TEST(test_decode_restores_every_update)
{
    static const struct {
        uint32_t n_named;
        size_t payload;
    } cases[] = {{0, 1}, {1, 7}, {3, 4096}, {WIRE_NAMED_MAX, sizeof payload}};
    for (uint64_t seed = 0; seed < 4; seed++) {
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct update u = sample(seed, cases[i].n_named, cases[i].payload), got;
            size_t size = encode(&u);
            assert_int_equal(update_decode(&got, got_named, WIRE_NAMED_MAX, buffer, size), STATUS_OK);
            same_update(&u, &got);
            assert_true(got.payload > buffer && got.payload + got.payload_size < buffer + size);
        }
    }
}

/* Decodes an exact-size heap copy, so that a sanitizer detects any read past the end. */
static enum status decode_copy(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    memcpy(copy, data, size);
    struct update got;
    enum status status = update_decode(&got, got_named, WIRE_NAMED_MAX, copy, size);
    free(copy);
    return status;
}

/* update_peek returns the head as soon as its bytes are present, and AGAIN before. */
TEST(test_peek_returns_head_once_complete)
{
    struct update u = sample(2, 3, 50), got;
    size_t size = encode(&u), head = size - sizeof(uint32_t) - u.payload_size, at = 0;
    for (size_t n = 0; n <= size; n++) {
        uint8_t *copy = malloc(n ? n : 1);
        memcpy(copy, buffer, n);
        enum status status = update_peek(&got, got_named, WIRE_NAMED_MAX, copy, n, &at);
        free(copy);
        assert_int_equal(status, n < head ? STATUS_AGAIN : STATUS_OK);
    }
    assert_int_equal(at, head);
    got.payload = u.payload;
    same_update(&u, &got);
    assert_int_equal(update_peek(&got, got_named, 2, buffer, size, &at), STATUS_LIMIT);
    buffer[0] ^= 1;
    assert_int_equal(update_peek(&got, got_named, WIRE_NAMED_MAX, buffer, size, &at), STATUS_CORRUPT);
}

TEST(test_damaged_updates_are_refused)
{
    struct update u = sample(1, 2, 50);
    size_t size = encode(&u);
    assert_int_equal(decode_copy(buffer, size), STATUS_OK);
    for (size_t n = 0; n < size; n++) assert_int_equal(decode_copy(buffer, n), STATUS_CORRUPT);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(decode_copy(buffer, size), STATUS_CORRUPT);
        buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    buffer[size] = 0;
    assert_int_equal(decode_copy(buffer, size + 1), STATUS_CORRUPT);
}

static void reseal(size_t size)
{
    uint32_t crc = crc32c(0, buffer, size - 4);
    for (int i = 0; i < 4; i++) buffer[size - 4 + (size_t)i] = (uint8_t)(crc >> (8 * i));
}

/* Valid checksum, invalid content, as another program may send it. The offsets are those of docs/protocol.md. */
TEST(test_invalid_content_is_refused)
{
    static const struct {
        size_t at;
        uint8_t value;
    } invalid[] = {
        {0, 'X'},              /* magic */
        {4, 3},                /* format */
        {5, 2},                /* form */
        {6, 1},                /* reserved */
        {9, 1},                /* fragment 256 and up */
        {44, 63},              /* codec name shorter than announced */
        {46, 0},               /* NUL in the codec name */
        {46, '\n'},            /* control character */
        {58, 0xff},            /* named deltas */
        {58, 3},               /* one more than the update has */
        {62 + 2 * 20, 51},     /* payload one byte shorter than announced */
        {62 + 2 * 20, 49},     /* one byte longer: a byte is left over */
        {62 + 2 * 20 + 7, 64}, /* an enormous length */
    };
    for (size_t i = 0; i < sizeof invalid / sizeof invalid[0]; i++) {
        struct update u = sample(1, 2, 50);
        u.fragment = 1;
        size_t size = encode(&u);
        buffer[invalid[i].at] = invalid[i].value;
        reseal(size);
        assert_int_equal(decode_copy(buffer, size), STATUS_CORRUPT);
    }
    struct update u = sample(1, 2, 50), got;
    size_t size = encode(&u);
    assert_int_equal(update_decode(&got, got_named, 1, buffer, size), STATUS_LIMIT);
    memset(buffer + 12, 0, 8); /* version 0 has no update */
    reseal(size);
    assert_int_equal(decode_copy(buffer, size), STATUS_CORRUPT);
}

TEST(test_encode_refuses_values_over_limits)
{
    size_t size = 77;
    struct update good = sample(2, 2, 50), u = good;
    assert_int_equal(update_encode(&good, buffer, update_encoded_size(&good) - 1, &size), STATUS_LIMIT);
    u.fragment = LAYOUT_FRAGMENTS_MAX;
    assert_int_equal(update_encode(&u, buffer, sizeof buffer, &size), STATUS_INVALID);
    u = good;
    u.n_named = WIRE_NAMED_MAX + 1;
    assert_int_equal(update_encode(&u, buffer, sizeof buffer, &size), STATUS_INVALID);
    u = good;
    memset(u.codec, 'x', sizeof u.codec);
    assert_int_equal(update_encode(&u, buffer, sizeof buffer, &size), STATUS_INVALID);
    u = good;
    u.payload_size = 0;
    assert_int_equal(update_encode(&u, buffer, sizeof buffer, &size), STATUS_INVALID);
    u = good;
    u.rate = INFINITY;
    assert_int_equal(update_encode(&u, buffer, sizeof buffer, &size), STATUS_INVALID);
    assert_int_equal(size, 77);
}

TEST(test_snapshot_head_is_restored_or_refused)
{
    struct snapshot_head h = {.fragment = 255, .version = 1ull << 60, .hash = UINT64_MAX, .count = 1ull << 40}, got;
    uint8_t bytes[SNAPSHOT_HEAD_BYTES + 4] = {0};
    snapshot_head_encode(&h, bytes);
    assert_int_equal(snapshot_head_decode(&got, bytes, sizeof bytes), STATUS_OK);
    assert_int_equal(got.fragment, h.fragment);
    assert_int_equal(got.version, h.version);
    assert_int_equal(got.hash, h.hash);
    assert_int_equal(got.count, h.count);
    for (size_t n = 0; n < SNAPSHOT_HEAD_BYTES; n++)
        assert_int_equal(snapshot_head_decode(&got, bytes, n), STATUS_CORRUPT);
    for (size_t bit = 0; bit < 8 * SNAPSHOT_HEAD_BYTES; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(snapshot_head_decode(&got, bytes, sizeof bytes), STATUS_CORRUPT);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    snapshot_head_encode(&h, buffer);
    buffer[28] = 1; /* count */
    reseal(SNAPSHOT_HEAD_BYTES);
    assert_int_equal(snapshot_head_decode(&got, buffer, SNAPSHOT_HEAD_BYTES), STATUS_CORRUPT);
}

TEST(test_objects_match_golden_files)
{
    struct update u = sample(1, 2, 33);
    golden_check("protocol_v3/update", buffer, encode(&u));
    struct snapshot_head h = {.fragment = 3, .version = 17, .hash = 0x0123456789abcdef, .count = 1000000};
    snapshot_head_encode(&h, buffer);
    golden_check("protocol_v3/snapshot_head", buffer, SNAPSHOT_HEAD_BYTES);
}

TEST_MAIN(NULL, NULL)
