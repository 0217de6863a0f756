/* Every parameter has one owner and one position in its shard, for odd sizes of everything. */

#include "tests/lib/test.h"
#include "worker/inner/shard.h"

static void check(uint64_t n, uint32_t ranks, uint64_t bucket)
{
    static uint8_t seen[100000], state[8][20000];
    struct shard_map map = shard_map_make(n, ranks, bucket);
    assert_true(map.padded >= n && map.padded % ranks == 0 && map.n_buckets >= 1);
    assert_true(map.n_buckets <= SHARD_BUCKETS_MAX);
    assert_true(shard_floats(&map) <= sizeof state[0] && n <= sizeof seen);
    memset(seen, 0, sizeof seen);
    memset(state, 0, sizeof state);
    uint64_t floats = 0, params = 0;
    for (uint32_t b = 0; b < map.n_buckets; b++) {
        assert_int_equal(shard_bucket_offset(&map, b), floats);
        floats += shard_bucket_floats(&map, b);
        params += shard_bucket_params(&map, b);
        assert_int_equal(shard_bucket_floats(&map, b) % ranks, 0);
        for (uint32_t r = 0; r < ranks; r++) {
            struct shard_part part = shard_part_of(&map, r, b);
            for (uint64_t i = 0; i < part.count; i++) {
                assert_int_equal(seen[part.offset + i]++, 0);
                assert_true(part.state + i < shard_floats(&map));
                assert_int_equal(state[r][part.state + i]++, 0);
            }
        }
    }
    assert_int_equal(floats, map.padded);
    assert_int_equal(params, n);
    for (uint64_t i = 0; i < n; i++) assert_int_equal(seen[i], 1);
}

TEST(test_every_parameter_has_one_owner)
{
    static const uint64_t sizes[] = {1, 63, 64, 65, 127, 128, 129, 191, 193, 4096, 9999, 10007};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint32_t ranks = 1; ranks <= 8; ranks++)
            for (uint64_t bucket = 1; bucket <= 10000; bucket *= 7) check(sizes[i], ranks, bucket);
    check(10007, 3, 0);
}

TEST(test_large_theta_has_one_owner_per_parameter)
{
    struct shard_map map = shard_map_make(8030261248u, 8, 0);
    assert_true(map.n_buckets <= SHARD_BUCKETS_MAX && map.n_buckets > SHARD_BUCKETS_MAX / 2);
    assert_true(map.padded - map.n_params < 8 * 64);
    struct shard_part last = shard_part_of(&map, 7, map.n_buckets - 1);
    assert_true(last.offset + last.count == map.n_params);
    assert_int_equal(shard_map_make(124000000, 2, 0).n_buckets, 15);
}

TEST_MAIN(NULL, NULL)
