#include "worker/inner/shard.h"

#include <assert.h>

enum { SHARE_ALIGN = 64 }; /* floats: shares start at addresses aligned for vector loads */

static uint64_t round_up(uint64_t n, uint64_t step)
{
    return (n + step - 1) / step * step;
}

struct shard_map shard_map_make(uint64_t n_params, uint32_t ranks, uint64_t bucket)
{
    assert(ranks > 0);
    uint64_t step = (uint64_t)ranks * SHARE_ALIGN;
    uint64_t least = (n_params + SHARD_BUCKETS_MAX - 1) / SHARD_BUCKETS_MAX;
    if (!bucket) bucket = SHARD_BUCKET_FLOATS;
    if (bucket < least) bucket = least;
    struct shard_map map = {.n_params = n_params, .ranks = ranks, .bucket = round_up(bucket, step)};
    map.padded = round_up(n_params ? n_params : 1, step);
    map.n_buckets = (uint32_t)((map.padded + map.bucket - 1) / map.bucket);
    assert(map.n_buckets > 0 && map.n_buckets <= SHARD_BUCKETS_MAX);
    assert(map.padded >= n_params && map.padded % step == 0 && map.bucket % step == 0);
    return map;
}

uint64_t shard_bucket_floats(const struct shard_map *map, uint32_t bucket)
{
    assert(bucket < map->n_buckets);
    uint64_t left = map->padded - shard_bucket_offset(map, bucket);
    return left < map->bucket ? left : map->bucket;
}

uint64_t shard_bucket_params(const struct shard_map *map, uint32_t bucket)
{
    assert(bucket < map->n_buckets && shard_bucket_offset(map, bucket) <= map->n_params);
    uint64_t left = map->n_params - shard_bucket_offset(map, bucket);
    return left < map->bucket ? left : map->bucket;
}

struct shard_part shard_part_of(const struct shard_map *map, uint32_t rank, uint32_t bucket)
{
    assert(rank < map->ranks && shard_bucket_floats(map, bucket) % map->ranks == 0);
    uint64_t share = shard_bucket_floats(map, bucket) / map->ranks;
    uint64_t offset = shard_bucket_offset(map, bucket) + rank * share;
    uint64_t left = offset < map->n_params ? map->n_params - offset : 0;
    return (struct shard_part){
        .offset = offset, .count = left < share ? left : share, .state = shard_bucket_offset(map, bucket) / map->ranks};
}
