/* Deltas in memory: bounded bytes, the oldest ones end first, and a place is never taken for another delta's. */
#include "common/base/mem.h"
#include "coordinator/outer/held.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/store_mem.h"
#include "tests/lib/test.h"

static struct rig rig;

static struct journal_ref ref(uint64_t offset)
{
    return (struct journal_ref){1, offset};
}

static uint32_t keep(struct held *h, size_t size, uint64_t offset)
{
    uint32_t place = held_take(h, size);
    assert_int_not_equal(place, 0);
    memset(held_bytes(h, place), (int)offset, size);
    held_keep(h, place, ref(offset));
    return place;
}

static bool has(const struct held *h, uint32_t place, uint64_t offset)
{
    const uint8_t *bytes = held_find(h, place, ref(offset));
    return bytes && bytes[0] == (uint8_t)offset;
}

TEST(test_delta_is_found_until_it_is_merged)
{
    struct held h = {.most = 1000};
    uint32_t a = keep(&h, 100, 7), b = keep(&h, 100, 8);
    assert_true(has(&h, a, 7) && has(&h, b, 8));
    assert_null(held_find(&h, a, ref(8))); /* of another delta */
    assert_null(held_find(&h, a, (struct journal_ref){2, 7}));
    assert_null(held_find(&h, 0, ref(7)));
    held_move(&h, a, ref(7), ref(70));
    assert_null(held_find(&h, a, ref(7)));
    assert_non_null(held_find(&h, a, ref(70)));
    held_drop(&h, a, ref(7)); /* not its position: nothing happens */
    assert_non_null(held_find(&h, a, ref(70)));
    held_drop(&h, a, ref(70));
    assert_null(held_find(&h, a, ref(70)));
    uint32_t c = keep(&h, 100, 9); /* the same memory */
    assert_true(c == a && h.bytes == 200 && !held_find(&h, a, ref(70)) && has(&h, b, 8));
    held_finish(&h);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_memory_is_bounded)
{
    struct held h = {.most = 1000};
    uint32_t place[20], taken[9];
    assert_int_equal(held_take(&h, 1001), 0);
    for (uint64_t i = 0; i < 20; i++) {
        place[i] = keep(&h, 100, i);
        assert_true(h.bytes <= h.most);
    }
    for (uint64_t i = 0; i < 20; i++) assert_int_equal(has(&h, place[i], i), i >= 10); /* the oldest ones ended */
    for (int i = 0; i < 9; i++) taken[i] = held_take(&h, 100);
    for (int i = 0; i < 9; i++) assert_int_not_equal(taken[i], 0);
    assert_int_equal(held_take(&h, 101), 0); /* arriving deltas stay */
    assert_true(held_take(&h, 100) && !held_take(&h, 1));
    held_give(&h, 0);
    for (int i = 0; i < 9; i++) held_give(&h, taken[i]);
    assert_int_not_equal(held_take(&h, 900), 0); /* free memory of another size makes room */
    assert_true(h.bytes <= h.most);
    held_finish(&h);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_without_memory_there_is_no_place)
{
    struct held h = {.most = 1000};
    mem_fail_after(1);
    assert_int_equal(held_take(&h, 100), 0);
    held_finish(&h);
    keep(&h, 100, 1);
    mem_fail_after(1);
    assert_int_equal(held_take(&h, 100), 0);
    assert_int_equal(h.bytes, 100);
    mem_fail_after(0);
    keep(&h, 100, 2);
    held_finish(&h);
    assert_int_equal(mem_live_bytes(), 0);
}

/* --- in the engine ------------------------------------------------------------------------------------------------ */

/* Two rounds of two workers with two fragments. Returns the hash of theta. */
static uint64_t train(uint64_t held_most, uint64_t *spooled_p)
{
    const char *settings[] = {"checkpoint.every=0", "coordinator.min_workers=2", NULL};
    rig_held_most = held_most;
    rig_open_with(&rig, settings, 2, false);
    uint64_t before = store_mem_counts(rig.store).spooled;
    for (int round = 0; round < 2; round++) {
        rig_assigned(&rig, 0);
        rig_assigned(&rig, 1);
        rig_deliver_all(&rig, 2, 1);
    }
    *spooled_p = store_mem_counts(rig.store).spooled - before;
    return rig_theta_hash(&rig);
}

/* Without memory, with enough, and with room for one delta: the others are read from the journal. */
TEST(test_memory_changes_no_bit)
{
    uint64_t spooled[3], hash[3];
    hash[0] = train(0, &spooled[0]);
    rig_close(&rig);
    hash[1] = train(1 << 20, &spooled[1]);
    rig_close(&rig);
    hash[2] = train(spooled[0] / (2 * 2 * 2), &spooled[2]);
    rig_close(&rig);
    rig_held_most = 0;
    assert_true(spooled[0] > 0 && !spooled[1]);
    assert_true(hash[0] == hash[1] && hash[0] == hash[2]);
}

TEST_MAIN(NULL, NULL)
