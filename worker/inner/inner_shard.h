/* One rank's part of the inner optimizer when ranks have memory of their own (worker/inner/shard.h): moments of its
 * shard and the update of its shares of theta, or, with a deal (worker/inner/shard_deal.h), of its pieces: matrices
 * have a momentum alone. Steps are submitted, not waited for. */
#ifndef WORKER_INNER_SHARD_H
#define WORKER_INNER_SHARD_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"
#include "gpu/collective.h"
#include "worker/inner/inner_opt.h"
#include "worker/inner/shard.h"

struct inner_shard {
    const struct shard_map *map;
    struct collective *coll;
    struct device *dev;
    size_t moment;  /* bytes of one, fp32 or bf16; 0: there are none */
    void *m, *v;    /* device; NULL without moments, or where there are only matrices */
    void *momentum; /* of matrices, device; NULL: none */
    float *sums;    /* [ranks][slots] sums of squares, device; those that a rank has no part for stay 0 */
    size_t slots;
    struct shard_part *parts; /* n_plain of m and v, then those of the momentum */
    size_t n_parts, n_plain;
    struct adamw_span *spans; /* of the plain parts */
    size_t n_spans;
    struct muon_plan *muon; /* NULL: no matrices */
};

/* What a vector of n moments takes, of `moment` bytes each: whole floats, which is what devices fill. */
uint64_t inner_shard_vector_bytes(uint64_t n, size_t moment);
/* Of rank coll->rank; map and coll are borrowed. moment: bytes of one, 0: none are kept. */
enum status inner_shard_create(struct inner_shard **out, const struct shard_map *map, struct collective *coll,
                               const struct layout *layout, size_t moment) MUST_CHECK;
/* NULL is allowed. */
void inner_shard_destroy(struct inner_shard *s);
/* What it takes of the memory of `dev` as rank `rank`, moments and momentum, and beside them. */
uint64_t inner_shard_moment_bytes(const struct shard_map *map, int rank, size_t moment);
uint64_t inner_shard_work_bytes(const struct shard_map *map, int rank, struct device *dev);

/* Submit this rank's part of a step (inner_opt_measure_sharded, inner_opt_apply_sharded); scalars as in struct
 * inner_opt_slice. */
enum status inner_shard_measure(struct inner_shard *s, float *scalars, const float *grad) MUST_CHECK;
void inner_shard_apply(struct inner_shard *s, const struct inner_opt_config *config, float *scalars, float *theta,
                       const float *grad, double lr);
/* Of the moments: into, or from, the host's whole vectors [n_params]; from NULL: zeros. v of matrices is left alone.
 * What was read is there when the call returns; what is written the host may change then, and errors come from sync. */
enum status inner_shard_read(struct inner_shard *s, void *m, void *v, struct err *err) MUST_CHECK;
void inner_shard_write(struct inner_shard *s, const void *m, const void *v);

#endif
