/* How theta is sharded over the ranks of one worker that have their own memory (ZeRO-1: Rajbhandari et al., arXiv
 * 1910.02054): every rank holds the whole theta and gradient, and the optimizer's moments of its shard.
 *
 * - Theta is cut into buckets of equal size, regardless of tensor boundaries. Collectives run bucket by bucket.
 * - A bucket is cut into one equal share per rank. A rank's shard is its shares, end to end.
 * - The last bucket is padded: theta and gradient have `padded` floats, and the floats after the parameters are unused.
 */
#ifndef WORKER_SHARD_H
#define WORKER_SHARD_H

#include <stdint.h>

enum {
    SHARD_BUCKETS_MAX = 60,       /* per replica; each bucket uses two tickets of a collective */
    SHARD_BUCKET_FLOATS = 8 << 20 /* default size; larger if that gives too many buckets */
};

struct shard_deal;

struct shard_map {
    uint64_t n_params, padded;
    uint64_t bucket; /* floats of each bucket except the last */
    uint32_t ranks, n_buckets;
    const struct shard_deal
        *deal; /* not NULL: these pieces replace equal shares (worker/inner/shard_deal.h); borrowed */
};

/* A share, without its padding. */
struct shard_part {
    uint64_t offset, count; /* in theta; count may be 0 */
    uint64_t state;         /* offset in the shard */
};

/* Cuts n_params into buckets of about `bucket` floats (0: SHARD_BUCKET_FLOATS). Buckets grow if their number would
 * exceed SHARD_BUCKETS_MAX. */
struct shard_map shard_map_make(uint64_t n_params, uint32_t ranks, uint64_t bucket);
static inline uint64_t shard_bucket_offset(const struct shard_map *map, uint32_t bucket)
{
    return bucket * map->bucket;
}
/* Floats of one bucket with padding, and without. */
uint64_t shard_bucket_floats(const struct shard_map *map, uint32_t bucket);
uint64_t shard_bucket_params(const struct shard_map *map, uint32_t bucket);
struct shard_part shard_part_of(const struct shard_map *map, uint32_t rank, uint32_t bucket);
/* Floats of one rank's shard, with padding. */
static inline uint64_t shard_floats(const struct shard_map *map)
{
    return map->padded / map->ranks;
}

#endif
