/* One delta on its way in: which offer continues or restarts an upload, which chunks count, when the worker gets
 * credit. */

#include "common/base/hash.h"
#include "coordinator/round/upload.h"
#include "tests/lib/test.h"

enum { MIB = 1 << 20 };

static uint8_t bytes[MIB];

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
    return upload_chunk(u, &chunk);
}

TEST(test_same_offer_continues_upload)
{
    for (int changed = 0; changed < 5; changed++) {
        struct upload u = {0};
        struct msg_offer offer = offer_of(1000);
        upload_start(&u, &offer, 3);
        assert_int_equal(send(&u, 0, 400), STATUS_OK);
        if (changed == 1) offer.round++;
        if (changed == 2) offer.bytes--;
        if (changed == 3) offer.crc++;
        if (changed == 4) offer.base_version++;
        upload_start(&u, &offer, 5);
        assert_int_equal(u.have, changed ? 0 : 400);
        assert_int_equal(u.slot, changed ? 5 : 3);
        assert_int_equal(u.upto, offer.bytes);
        assert_memory_equal(&u.offer, &offer, sizeof offer);
    }
}

TEST(test_only_next_chunk_is_accepted)
{
    struct upload u = {0};
    struct msg_offer offer = offer_of(1000);
    assert_int_equal(send(&u, 0, 400), STATUS_AGAIN); /* no offer yet */
    upload_start(&u, &offer, 0);
    assert_int_equal(send(&u, 0, 400), STATUS_OK);
    assert_int_equal(send(&u, 0, 400), STATUS_AGAIN);   /* again */
    assert_int_equal(send(&u, 500, 400), STATUS_AGAIN); /* the chunk before it was lost */
    struct msg_chunk chunk = {
        .key = 4, .offset = 400, .total = 1000, .crc = crc32c(0, bytes, 600), .data = bytes, .size = 600};
    for (int bad = 0; bad < 4; bad++) {
        struct msg_chunk other = chunk;
        if (bad == 0) other.key++;
        if (bad == 1) other.total++;
        if (bad == 2) other.crc++;
        if (bad == 3) other.size++, other.crc = crc32c(0, bytes, other.size); /* past the end */
        assert_int_equal(upload_chunk(&u, &other), bad ? STATUS_CORRUPT : STATUS_AGAIN);
    }
    assert_int_equal(u.have, 400);
    assert_false(upload_complete(&u));
    assert_int_equal(upload_chunk(&u, &chunk), STATUS_OK);
    assert_true(upload_complete(&u));
    upload_drop(&u);
    assert_false(upload_complete(&u));
    assert_int_equal(send(&u, 0, 400), STATUS_AGAIN);
}

/* A window ahead of the received bytes, announced in halves; the end is announced at once. */
TEST(test_credit_is_sent_in_halves_of_window)
{
    struct upload u = {0};
    struct msg_offer offer = offer_of(8 * MIB);
    upload_start(&u, &offer, 0);
    assert_int_equal(u.upto, UPLOAD_WINDOW);
    static const uint64_t upto[8] = {4, 6, 6, 8, 8, 8, 8, 8}; /* in MiB, after each chunk of 1 MiB */
    for (uint64_t i = 0; i < 8; i++) {
        assert_int_equal(send(&u, i * MIB, MIB), STATUS_OK);
        uint64_t before = u.upto;
        assert_int_equal(upload_extend(&u), upto[i] * MIB > before);
        assert_int_equal(u.upto, upto[i] * MIB);
    }
}

TEST(test_damaged_delta_is_detected)
{
    struct upload u = {0};
    struct msg_offer offer = offer_of(1000);
    offer.crc = crc32c(0, bytes, 1000);
    upload_start(&u, &offer, 0);
    assert_true(upload_intact(&u, bytes));
    bytes[999] ^= 1;
    assert_false(upload_intact(&u, bytes));
    bytes[999] ^= 1;
}

int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 7 % 251);
    return test_run(argc, argv, NULL, NULL);
}
