/* How theta is dealt to the ranks of one worker when each has memory of its own (ZeRO-1: Rajbhandari et al., arXiv
 * 1910.02054): every rank holds theta and gradient whole, and the optimizer's moments of its shard.
 *
 * Theta is cut into buckets of equal size, whatever tensors lie in them, and a bucket into one share a rank, so that
 * collectives go bucket by bucket, with equal shares. The last bucket is padded: theta and gradient have `padded`
 * floats, and what lies behind the parameters has no meaning. A rank's shard is its shares, end to end. */
#ifndef WORKER_SHARD_H
#define WORKER_SHARD_H

#include <stdint.h>

enum {
    SHARD_BUCKETS_MAX = 60,       /* of a replica: each has two tickets of a collective */
    SHARD_BUCKET_FLOATS = 8 << 20 /* unless that makes too many */
};

struct shard_deal;

struct shard_map {
    uint64_t n_params, padded;
    uint64_t bucket; /* floats of each bucket but the last */
    uint32_t ranks, n_buckets;
    const struct shard_deal *deal; /* not NULL: no equal shares, but these (worker/inner/shard_deal.h); borrowed */
};

/* A share, without its padding. */
struct shard_part {
    uint64_t offset, count; /* in theta; count may be 0 */
    uint64_t state;         /* where it lies in the shard */
};

/* Buckets of about `bucket` floats (0: SHARD_BUCKET_FLOATS), more if there would be too many. */
struct shard_map shard_map_make(uint64_t n_params, uint32_t ranks, uint64_t bucket);
static inline uint64_t shard_bucket_offset(const struct shard_map *map, uint32_t bucket)
{
    return bucket * map->bucket;
}
/* Floats of one bucket, padding included, and without it. */
uint64_t shard_bucket_floats(const struct shard_map *map, uint32_t bucket);
uint64_t shard_bucket_params(const struct shard_map *map, uint32_t bucket);
struct shard_part shard_part_of(const struct shard_map *map, uint32_t rank, uint32_t bucket);
/* Floats of one rank's shard, padding included. */
static inline uint64_t shard_floats(const struct shard_map *map)
{
    return map->padded / map->ranks;
}

#endif
