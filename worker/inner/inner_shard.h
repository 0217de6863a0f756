/* One rank's shard of the inner optimizer, for ranks with their own memory (worker/inner/shard.h).
 *
 * The rank keeps the moments of its shard and updates its shares of theta. With a deal (worker/inner/shard_deal.h) it
 * owns pieces instead; matrix pieces have a momentum only. Calls submit steps and do not wait. */
#ifndef WORKER_INNER_SHARD_H
#define WORKER_INNER_SHARD_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"
#include "gpu/collective.h"
#include "worker/inner/inner_step.h"
#include "worker/inner/shard.h"

struct inner_shard {
    const struct shard_map *map;
    struct collective *coll;
    struct device *dev;
    size_t moment;  /* bytes of one moment, fp32 or bf16; 0: SGD */
    void *m, *v;    /* device; NULL with SGD or if the rank owns matrices only */
    void *momentum; /* device, momentum of the matrices; NULL: no matrices */
    float *sums;    /* [ranks][slots] device, sums of squares per part; unused slots stay 0 */
    size_t slots;
    struct shard_part *parts; /* [n_parts]: n_plain parts with m and v, then the parts with a momentum */
    size_t n_parts, n_plain;
    struct adamw_span *spans; /* [n_spans] of the plain parts */
    size_t n_spans;
    struct muon_plan *muon; /* NULL: no matrices */
};

/* Bytes of n moments of `moment` bytes each, rounded up to whole floats because devices fill floats. */
uint64_t inner_shard_vector_bytes(uint64_t n, size_t moment);
/* Creates the shard of rank coll->rank; map and coll are borrowed. moment: bytes of one moment, 0: SGD. NOMEM, or the
 * error of the device plan. */
enum status inner_shard_create(struct inner_shard **out, const struct shard_map *map, struct collective *coll,
                               const struct layout *layout, size_t moment) MUST_CHECK;
/* NULL is allowed. */
void inner_shard_destroy(struct inner_shard *s);
/* Bytes of device memory of one rank's shard: moments and momentum, and workspace. */
uint64_t inner_shard_moment_bytes(const struct shard_map *map, int rank, size_t moment);
uint64_t inner_shard_work_bytes(const struct shard_map *map, int rank, struct device *dev);

/* Submit this rank's part of a step: inner_opt_measure_sharded and inner_opt_apply_sharded call these. scalars: struct
 * inner_opt_slice. CLOSED if another rank failed. */
enum status inner_shard_measure(struct inner_shard *s, float *scalars, const float *grad) MUST_CHECK;
void inner_shard_apply(struct inner_shard *s, const struct inner_opt_config *config, float *scalars, float *theta,
                       const float *grad, double lr);
/* Copy the rank's moments to or from whole vectors [n_params] in host memory; write with NULL sets zeros. v of matrices
 * is skipped. read has finished when it returns. After write the caller may change the source at once; errors appear at
 * the next sync. */
enum status inner_shard_read(struct inner_shard *s, void *m, void *v, struct err *err) MUST_CHECK;
void inner_shard_write(struct inner_shard *s, const void *m, const void *v);

#endif
