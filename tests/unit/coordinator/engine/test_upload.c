/* One delta on its way in: which offer continues or restarts an upload, which chunks count, when the worker gets
 * credit. */

#include "common/base/hash.h"
#include "coordinator/round/upload.h"
#include "tests/lib/test.h"

enum { MIB = 1 << 20 };

static uint8_t bytes[MIB];
static struct upload_pool pool;

static struct msg_offer offer_of(uint64_t size)
{
    return (struct msg_offer){.round = 4, .base_version = 9, .bytes = size, .crc = 77};
}

static enum status send(struct upload *u, uint64_t offset, size_t size)
{
    struct msg_chunk chunk = {.key = 4,
                              .offset = offset,
                              .total = u->offer.bytes,
                              .crc = crc32c(0, bytes, size),
                              .data = bytes,
                              .size = size};
    return upload_chunk(u, &pool, &chunk);
}

TEST(test_same_offer_continues_upload)
{
    for (int changed = 0; changed < 5; changed++) {
        struct upload u = {0};
        pool = (struct upload_pool){0};
        struct msg_offer offer = offer_of(1000);
        upload_start(&u, &pool, &offer, 3);
        assert_int_equal(send(&u, 0, 400), STATUS_OK);
        if (changed == 1) offer.round++;
        if (changed == 2) offer.bytes--;
        if (changed == 3) offer.crc++;
        if (changed == 4) offer.base_version++;
        upload_start(&u, &pool, &offer, 5);
        assert_int_equal(u.have, changed ? 0 : 400);
        assert_int_equal(u.slot, changed ? 5 : 3);
        assert_int_equal(u.upto, offer.bytes);
        assert_memory_equal(&u.offer, &offer, sizeof offer);
    }
}

TEST(test_only_next_chunk_is_accepted)
{
    struct upload u = {0};
    pool = (struct upload_pool){0};
    struct msg_offer offer = offer_of(1000);
    assert_int_equal(send(&u, 0, 400), STATUS_AGAIN); /* no offer yet */
    upload_start(&u, &pool, &offer, 0);
    assert_int_equal(send(&u, 0, 400), STATUS_OK);
    assert_int_equal(send(&u, 0, 400), STATUS_AGAIN);   /* again */
    assert_int_equal(send(&u, 500, 400), STATUS_AGAIN); /* the chunk before it was lost */
    struct msg_chunk chunk = {
        .key = 4, .offset = 400, .total = 1000, .crc = crc32c(0, bytes, 600), .data = bytes, .size = 600};
    for (int bad = 0; bad < 3; bad++) {
        struct msg_chunk other = chunk;
        if (bad == 0) other.key++;
        if (bad == 1) other.total++;
        if (bad == 2) other.size++, other.crc = crc32c(0, bytes, other.size); /* past the end */
        assert_int_equal(upload_chunk(&u, &pool, &other), bad ? STATUS_CORRUPT : STATUS_AGAIN);
    }
    assert_int_equal(u.have, 400);
    assert_false(upload_complete(&u));
    assert_int_equal(upload_chunk(&u, &pool, &chunk), STATUS_OK);
    assert_true(upload_complete(&u));
    upload_drop(&u, &pool);
    assert_false(upload_complete(&u));
    assert_int_equal(send(&u, 0, 400), STATUS_AGAIN);
}

/* Credit ahead of the received bytes; the worker hears of every 2 MiB, also when all of its bytes have credit. */
TEST(test_credit_follows_received_bytes)
{
    struct upload u = {0};
    pool = (struct upload_pool){0};
    struct msg_offer offer = offer_of(36 * MIB);
    upload_start(&u, &pool, &offer, 0);
    assert_int_equal(u.upto, 32 * MIB);
    for (uint64_t i = 0; i < 36; i++) {
        assert_int_equal(send(&u, i * MIB, MIB), STATUS_OK);
        assert_int_equal(upload_extend(&u, &pool), i % 2);
        assert_true(u.upto >= 32 * MIB && u.upto - u.have <= 32 * MIB && pool.granted == u.upto - u.have);
    }
    assert_int_equal(u.upto, 36 * MIB);
}

/* Many uploads share the credit: their sum is bounded, each goes on, and what ends gives its credit back. */
TEST(test_uploads_share_credit)
{
    enum { N = 600 };
    static struct upload uploads[N];
    struct msg_offer offer = offer_of(100 * MIB);
    uint64_t sum = 0;
    for (int i = 0; i < N; i++) {
        upload_start(&uploads[i], &pool, &offer, 0);
        assert_true(uploads[i].upto >= UPLOAD_LEAST);
        sum += uploads[i].upto;
    }
    assert_int_equal(pool.granted, sum);
    assert_in_range(sum, UPLOAD_CREDIT / 2, UPLOAD_CREDIT + N * UPLOAD_LEAST);
    while (uploads[N - 1].have < UPLOAD_LEAST) /* it is told at half of a small window */
        assert_int_equal(send(&uploads[N - 1], uploads[N - 1].have, UPLOAD_LEAST / 2), STATUS_OK);
    assert_true(upload_extend(&uploads[N - 1], &pool));
    assert_int_equal(uploads[N - 1].upto, 2 * UPLOAD_LEAST);
    for (int i = 0; i < N; i++) upload_drop(&uploads[i], &pool);
    assert_int_equal(pool.granted, 0);
}

/* The checksums of the chunks give that of the delta. */
TEST(test_damaged_delta_is_detected)
{
    for (int damaged = 0; damaged < 2; damaged++) {
        struct upload u = {0};
        pool = (struct upload_pool){0};
        struct msg_offer offer = offer_of(1000);
        offer.crc = crc32c(0, bytes, 1000);
        upload_start(&u, &pool, &offer, 0);
        for (uint64_t at = 0; at < 1000; at += 250) {
            struct msg_chunk chunk = {.key = 4, .offset = at, .total = 1000, .data = bytes + at, .size = 250};
            chunk.crc = crc32c(0, bytes + (damaged && at == 500 ? 501 : at), 250);
            assert_false(upload_intact(&u));
            assert_int_equal(upload_chunk(&u, &pool, &chunk), STATUS_OK);
        }
        assert_int_equal(upload_intact(&u), !damaged);
    }
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 7 % 251);
    return test_run(argc, argv, NULL, NULL);
}
