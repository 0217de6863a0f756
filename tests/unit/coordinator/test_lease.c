/* The leases: every position is committed, outstanding or free, exactly one of them; returned positions are assigned
 * first. */

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "coordinator/round/lease.h"
#include "tests/lib/test.h"

static uint32_t plan_one(const struct lease_book *book, uint64_t count, struct wire_range ranges[WIRE_RANGES_MAX])
{
    struct lease_plan plan = lease_plan_start(book);
    uint32_t n = 0;
    assert_int_equal(lease_plan_take(&plan, count, ranges, &n), STATUS_OK);
    return n;
}

static void take(struct lease_book *book, uint32_t worker, uint64_t round, uint64_t count)
{
    struct wire_range ranges[WIRE_RANGES_MAX];
    uint32_t n = plan_one(book, count, ranges);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += ranges[i].count;
    assert_int_equal(sum, count);
    assert_int_equal(lease_take(book, worker, round, ranges, n), STATUS_OK);
    assert_int_equal(lease_check(book), STATUS_OK);
}

TEST(test_returned_positions_are_assigned_first)
{
    struct lease_book book;
    struct wire_range ranges[WIRE_RANGES_MAX];
    lease_book_init(&book);
    take(&book, 0, 0, 10);
    take(&book, 1, 0, 10);
    take(&book, 2, 0, 10);
    assert_int_equal(book.cursor, 30);
    assert_int_equal(lease_commit(&book, 1, 0), STATUS_OK);
    assert_int_equal(lease_commit(&book, 1, 0), STATUS_NOTFOUND); /* only once */
    assert_int_equal(lease_return(&book, 0, 0), STATUS_OK);
    assert_int_equal(lease_return(&book, 0, 0), STATUS_NOTFOUND);
    assert_int_equal(lease_return(&book, 1, 0), STATUS_NOTFOUND); /* committed work is not returned */
    assert_int_equal(book.committed, 10);
    assert_int_equal(book.n_free, 1);
    uint32_t n = plan_one(&book, 15, ranges);
    assert_int_equal(n, 2);
    assert_int_equal(ranges[0].start, 0);
    assert_int_equal(ranges[0].count, 10);
    assert_int_equal(ranges[1].start, 30);
    assert_int_equal(ranges[1].count, 5);
    assert_int_equal(book.cursor, 30); /* a plan changes no state */
    take(&book, 3, 1, 15);
    assert_int_equal(book.n_free, 0);
    assert_int_equal(book.cursor, 35);
    assert_int_equal(lease_outstanding(&book), 25);
    lease_book_finish(&book);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_plans_do_not_overlap)
{
    struct lease_book book;
    struct wire_range a[WIRE_RANGES_MAX], b[WIRE_RANGES_MAX];
    uint32_t na, nb;
    lease_book_init(&book);
    take(&book, 0, 0, 6);
    assert_int_equal(lease_return(&book, 0, 0), STATUS_OK);
    struct lease_plan plan = lease_plan_start(&book);
    assert_int_equal(lease_plan_take(&plan, 4, a, &na), STATUS_OK);
    assert_int_equal(lease_plan_take(&plan, 4, b, &nb), STATUS_OK);
    assert_int_equal(na, 1);
    assert_int_equal(nb, 2);
    assert_int_equal(b[0].start, 4);
    assert_int_equal(b[1].start, 6);
    assert_int_equal(lease_take(&book, 0, 1, a, na), STATUS_OK);
    assert_int_equal(lease_take(&book, 1, 1, b, nb), STATUS_OK);
    assert_int_equal(lease_check(&book), STATUS_OK);
    lease_book_finish(&book);
}

/* Plans of returned ranges, several at a time: adjacent in any order, but never overlapping. */
TEST(test_returned_ranges_are_split)
{
    static const struct wire_range beside[][2] = {{{0, 4}, {4, 4}}, {{4, 4}, {0, 4}}};
    static const struct wire_range over[][2] = {{{0, 5}, {4, 4}}, {{4, 4}, {0, 5}}, {{2, 2}, {2, 2}}, {{3, 1}, {0, 8}}};
    for (size_t i = 0; i < 4; i++) {
        struct lease_book book;
        lease_book_init(&book);
        take(&book, 0, 0, 8);
        assert_int_equal(lease_return(&book, 0, 0), STATUS_OK);
        assert_int_equal(lease_take(&book, 1, 0, over[i], 2), STATUS_STATE);
        assert_int_equal(lease_take(&book, 1, 0, beside[i % 2], 2), STATUS_OK);
        assert_int_equal(lease_check(&book), STATUS_OK);
        lease_book_finish(&book);
    }
}

TEST(test_occupied_positions_are_refused)
{
    struct lease_book book;
    lease_book_init(&book);
    take(&book, 0, 0, 8);
    const struct wire_range leased = {2, 3}, gap = {9, 1}, empty = {8, 0}, next = {8, 4};
    const struct wire_range twice[2] = {{8, 4}, {10, 4}};
    assert_int_equal(lease_take(&book, 1, 0, &leased, 1), STATUS_STATE);
    assert_int_equal(lease_take(&book, 1, 0, &gap, 1), STATUS_STATE);
    assert_int_equal(lease_take(&book, 1, 0, &empty, 1), STATUS_STATE);
    assert_int_equal(lease_take(&book, 1, 0, twice, 2), STATUS_STATE);
    assert_int_equal(lease_take(&book, 0, 0, &next, 1), STATUS_STATE); /* already has a lease for this round */
    assert_int_equal(lease_take(&book, 1, 0, &next, 0), STATUS_STATE);
    assert_int_equal(book.cursor, 8);
    assert_int_equal(lease_check(&book), STATUS_OK);
    assert_int_equal(lease_take(&book, 1, 0, &next, 1), STATUS_OK);
    lease_book_finish(&book);
}

/* Free are 4 .. 7 and 12 .. 15: a range that crosses or leaves a free one is refused; a whole free range or a part
 * of it is not. */
TEST(test_only_free_positions_are_leased)
{
    static const struct wire_range beside[] = {{3, 2}, {4, 5}, {7, 2}, {8, 1}, {6, 8}, {11, 5}, {12, 5}, {3, 14}};
    static const struct wire_range within[] = {{4, 4}, {12, 1}, {15, 1}, {13, 2}};
    struct lease_book book;
    lease_book_init(&book);
    for (uint32_t i = 0; i < 5; i++) take(&book, i, 0, 4);
    assert_int_equal(lease_return(&book, 3, 0), STATUS_OK);
    assert_int_equal(lease_return(&book, 1, 0), STATUS_OK);
    assert_int_equal(book.n_free, 2);
    for (uint32_t i = 0; i < sizeof beside / sizeof *beside; i++)
        assert_int_equal(lease_take(&book, 9, i, &beside[i], 1), STATUS_STATE);
    for (uint32_t i = 0; i < sizeof within / sizeof *within; i++) {
        assert_int_equal(lease_take(&book, 8, i, &within[i], 1), STATUS_OK);
        assert_int_equal(lease_check(&book), STATUS_OK);
    }
    assert_int_equal(book.n_free, 0);
    lease_book_finish(&book);
    assert_int_equal(mem_live_bytes(), 0);
}

/* Counts in saved leases that exceed their bytes are refused before memory is allocated. */
TEST(test_counts_beyond_bytes_are_refused)
{
    static const uint32_t counts[][2] = {{1, 0},          {0, 1},          {(1 << 24) + 1, 0},      {0, (1 << 16) + 1},
                                         {UINT32_MAX, 0}, {0, UINT32_MAX}, {UINT32_MAX, UINT32_MAX}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint8_t bytes[24 + 15];
        struct lease_book book;
        struct writer w = writer_of(bytes, sizeof bytes);
        put_u64(&w, 0);
        put_u64(&w, 0);
        put_u32(&w, counts[i][0]);
        put_u32(&w, counts[i][1]);
        memset(bytes + w.pos, 0, sizeof bytes - w.pos);
        struct reader r = reader_of(bytes, sizeof bytes);
        lease_book_init(&book);
        assert_int_equal(lease_decode(&book, &r), STATUS_CORRUPT);
        assert_int_equal(mem_live_bytes(), 0);
        lease_book_finish(&book);
    }
}

TEST(test_positions_beyond_order_are_refused)
{
    struct lease_book book;
    struct wire_range ranges[WIRE_RANGES_MAX];
    uint32_t n;
    lease_book_init(&book);
    book.cursor = book.committed = ((uint64_t)1 << 63) - 5;
    struct lease_plan plan = lease_plan_start(&book);
    assert_int_equal(lease_plan_take(&plan, 6, ranges, &n), STATUS_LIMIT);
    assert_int_equal(lease_plan_take(&plan, 5, ranges, &n), STATUS_OK);
    lease_book_finish(&book);
}

/* A fragmented pool: an assignment has at most WIRE_RANGES_MAX ranges. */
TEST(test_assignment_has_limited_ranges)
{
    struct lease_book book;
    lease_book_init(&book);
    for (uint32_t i = 0; i < 200; i++) take(&book, i, 0, 2);
    for (uint32_t i = 0; i < 200; i++)
        assert_int_equal(i % 2 ? lease_commit(&book, i, 0) : lease_return(&book, i, 0), STATUS_OK);
    assert_int_equal(book.n_free, 100);
    take(&book, 500, 1, 300);
    const struct lease *lease = lease_find(&book, 500, 1);
    assert_int_equal(lease->n_ranges, WIRE_RANGES_MAX);
    assert_int_equal(lease->ranges[WIRE_RANGES_MAX - 1].start, 400);
    lease_book_finish(&book);
}

static void check_coded(const struct lease_book *book)
{
    uint8_t bytes[65536];
    struct lease_book copy;
    struct writer w = writer_of(bytes, sizeof bytes);
    lease_encode(book, &w);
    assert_false(w.bad);
    const size_t size = w.pos;
    struct reader r = reader_of(bytes, size);
    lease_book_init(&copy);
    assert_int_equal(lease_decode(&copy, &r), STATUS_OK);
    assert_true(reader_done(&r));
    assert_int_equal(copy.cursor, book->cursor);
    assert_int_equal(copy.n_free, book->n_free);
    assert_int_equal(copy.n_leases, book->n_leases);
    assert_int_equal(lease_outstanding(&copy), lease_outstanding(book));
    lease_book_finish(&copy);
    for (size_t cut = 0; cut < size; cut += 7) { /* every truncation is refused */
        r = reader_of(bytes, cut);
        lease_book_init(&copy);
        assert_int_equal(lease_decode(&copy, &r), STATUS_CORRUPT);
        lease_book_finish(&copy);
    }
}

TEST(test_random_operations_keep_leases_consistent)
{
    struct lease_book book;
    uint64_t round = 0;
    lease_book_init(&book);
    for (uint64_t i = 0; i < 3000; i++) {
        uint64_t draw = rng_u64(7, RNG_TEST, i);
        if (book.n_leases < 12 && draw % 3 == 0) {
            take(&book, (uint32_t)(draw >> 8) % 5, round++, 1 + (draw >> 16) % 40);
        } else if (book.n_leases) {
            struct lease lease = book.leases[(draw >> 8) % book.n_leases];
            enum status status = draw % 2 ? lease_commit(&book, lease.worker, lease.round)
                                          : lease_return(&book, lease.worker, lease.round);
            assert_int_equal(status, STATUS_OK);
        }
        assert_int_equal(lease_check(&book), STATUS_OK);
        if (i % 500 == 0) check_coded(&book);
    }
    assert_true(book.committed > 1000);
    lease_book_finish(&book);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_check_detects_damage)
{
    struct lease_book book;
    lease_book_init(&book);
    take(&book, 0, 0, 10);
    take(&book, 1, 0, 10);
    assert_int_equal(lease_return(&book, 0, 0), STATUS_OK);
    book.committed += 1;
    assert_int_equal(lease_check(&book), STATUS_CORRUPT);
    book.committed -= 1;
    book.free[0].count += 1; /* overlaps the lease */
    assert_int_equal(lease_check(&book), STATUS_CORRUPT);
    book.free[0].count -= 1;
    book.cursor -= 1;
    assert_int_equal(lease_check(&book), STATUS_CORRUPT);
    book.cursor += 1;
    assert_int_equal(lease_check(&book), STATUS_OK);
    lease_book_finish(&book);
}

/* A region: upstream grants positions; the others are another's. */
TEST(test_granted_positions)
{
    struct lease_book book;
    struct wire_range ranges[WIRE_RANGES_MAX];
    uint32_t n;
    lease_book_init(&book);
    assert_int_equal(lease_grant(&book, &(struct wire_range){20, 10}, 1, true), STATUS_OK);
    assert_int_equal(book.cursor, 30);
    assert_int_equal(book.committed, 20);
    assert_int_equal(lease_check(&book), STATUS_OK);
    take(&book, 0, 0, 6);
    /* One that is leased, empty, repeated or beyond the order: unchanged. */
    const struct wire_range bad[][2] = {
        {{25, 2}, {40, 1}}, {{40, 0}, {50, 1}}, {{40, 4}, {42, 4}}, {{40, 1}, {UINT64_MAX - 1, 4}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(lease_grant(&book, bad[i], 2, true), STATUS_STATE);
    assert_int_equal(lease_commit(&book, 0, 0), STATUS_OK);
    /* Positions that no worker used stay, and positions below the cursor come back from another. */
    assert_int_equal(lease_grant(&book, (struct wire_range[]){{5, 5}, {40, 10}}, 2, true), STATUS_OK);
    assert_int_equal(lease_check(&book), STATUS_OK);
    assert_int_equal(book.cursor, 50);
    assert_int_equal(book.committed, 50 - 4 - 15);
    n = plan_one(&book, 19, ranges);
    assert_true(n == 3 && ranges[0].start == 5 && ranges[1].start == 26 && ranges[1].count == 4);
    /* The grant was not merged upstream: its positions are upstream's again. */
    assert_int_equal(lease_grant(&book, (struct wire_range[]){{45, 20}}, 1, false), STATUS_OK);
    assert_int_equal(lease_check(&book), STATUS_OK);
    assert_true(book.n_free == 1 && book.free[0].start == 45 && book.free[0].count == 20);
    assert_true(book.cursor == 65 && book.committed == 45);
    /* Kept, but one is granted twice: upstream has lost its state. */
    assert_int_equal(lease_grant(&book, (struct wire_range[]){{60, 2}}, 1, true), STATUS_OK);
    assert_true(book.n_free == 1 && book.free[0].count == 2);
    lease_give_up(&book);
    assert_true(book.committed == 65 && lease_check(&book) == STATUS_OK);
    lease_book_finish(&book);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
