/* The inner optimizer of one worker: AdamW, plain SGD, or Muon for the matrices of hidden layers and AdamW for the
 * rest.
 *
 * - It works on the flat parameter vector, with decay where the layout says so, and clips by the global norm.
 * - It counts its own steps for bias correction, separately from the run's schedule position. Moments and count survive
 *   outer rounds, checkpoints and restarts together.
 * - Ranks that share theta and moments hold the same reduced gradient. Each updates its own slice: a range of elements,
 *   and whole matrices (worker/inner/inner_matrices.h).
 * - Ranks with their own memory use the `_sharded` calls.
 * - Calls submit a step and return at once: every rank calls `inner_opt_apply`, rank 0 then `inner_opt_download_norm`.
 * - The device skips a step whose gradient is not finite. The host learns it with the norm, in `inner_opt_finish`. The
 *   count that corrects the moments therefore lives on the device. */
#ifndef WORKER_INNER_OPT_H
#define WORKER_INNER_OPT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"
#include "worker/inner/inner_step.h"

struct collective;
struct inner_shard;
struct shard_map;

struct inner_opt_slice {
    struct device *dev;
    struct inner_shard *shard; /* worker/inner/inner_shard.h; NULL: the ranks share the moments */
    struct adamw_span *spans;
    size_t n_spans;
    struct muon_plan *muon; /* NULL: no matrices */
    float *scalars;         /* [SCALARS] device memory: sum of squares, scale, norm, step count */
};

struct inner_opt {
    struct inner_opt_config config;
    uint64_t n_params;
    /* [n_params] moments in device memory of slice 0; NULL with SGD or shards. For muon's matrices m is the momentum
     * and v stays zero. */
    void *m, *v;
    size_t moment;    /* bytes of one moment; 0: SGD. The moments are in m and v, or in the shards of the slices */
    uint8_t *host;    /* [2 n_params] host copy of m and v; NULL: the host reads device memory, or `unread` is set */
    uint64_t steps;   /* finished steps; after changing it, call inner_opt_write */
    uint64_t noise;   /* seed of this worker's rounding */
    uint64_t skipped; /* steps skipped because the gradient was not finite */
    struct inner_opt_slice *slices;
    int n_slices;
};

/* The inner section and run.seed of a resolved configuration. */
struct inner_opt_config inner_opt_config_of(const struct config *config);

/* Bytes of one moment; 0 for SGD. */
size_t inner_opt_moment_size(const struct inner_opt_config *config);
/* Bytes of device memory: of all moments, and of the scalars of one slice. For ranks with their own memory see
 * worker/inner/inner_shard.h. */
uint64_t inner_opt_moment_bytes(const struct inner_opt_config *config, uint64_t n_params);
uint64_t inner_opt_scalar_bytes(void);
/* Bytes of the host copy of the moments, for devices with their own memory; 0 if `unread`. */
uint64_t inner_opt_host_bytes(const struct inner_opt_config *config, uint64_t n_params);
/* Bytes of the workspace of muon on devices like `dev`, summed over all n_ranks ranks. Requires config->hidden_blocks.
 * 0 for other optimizers. */
uint64_t inner_opt_matrix_bytes(const struct inner_opt_config *config, const struct layout *layout, struct device *dev,
                                int n_ranks);

/* Creates one slice per rank on devices[n_ranks] (borrowed). INVALID for another optimizer or SGD with bf16 moments,
 * UNSUPPORTED for muon without hidden_blocks, NOMEM, or the error of a device plan. */
enum status inner_opt_create(struct inner_opt **out, const struct inner_opt_config *config, const struct layout *layout,
                             struct device *const *devices, int n_ranks, struct err *err) MUST_CHECK;
/* As above for ranks with their own memory. colls[map->ranks] and map are borrowed; muon requires map->deal. */
enum status inner_opt_create_sharded(struct inner_opt **out, const struct inner_opt_config *config,
                                     const struct layout *layout, const struct shard_map *map,
                                     struct collective *const *colls, struct err *err) MUST_CHECK;
/* NULL is allowed. */
void inner_opt_destroy(struct inner_opt *opt);
/* Sets the index of the worker in the run. It and config.seed decide the rounding of bf16 moments, so two workers round
 * differently. Call before the first step or between steps. */
void inner_opt_set_worker(struct inner_opt *opt, uint32_t worker);
/* Submits the rank's part of a step: the clip coefficient from the whole gradient, then the update of its slice. A
 * gradient whose norm is not finite changes nothing. */
void inner_opt_apply(struct inner_opt *opt, int rank, float *theta, const float *grad, double lr);
/* The same for a rank with its own memory: `measure` sums the norm over all ranks, `apply` updates the rank's shares of
 * theta from its shares of the reduced gradient. Every rank must return from `measure` before any rank calls `apply`:
 * operations queued behind a late rank could fill the GPU's queue, and a full queue blocks the submitting thread and
 * possibly that late rank. CLOSED if another rank failed. */
enum status inner_opt_measure_sharded(struct inner_opt *opt, int rank, const float *grad) MUST_CHECK;
void inner_opt_apply_sharded(struct inner_opt *opt, int rank, float *theta, const float *grad, double lr);
/* Call after rank 0's apply. Submits the download of the gradient norm before clipping to *norm in host memory. */
void inner_opt_download_norm(struct inner_opt *opt, float *norm);
/* Counts the step with this norm as taken (returns true) or skipped (returns false). Call in the order of the steps. */
bool inner_opt_finish(struct inner_opt *opt, float norm);

/* Returns the moments in host memory, [n_params] each of opt->moment bytes, NULL with SGD. They stay valid until the
 * next call that changes or reads them. Call between steps only. STATE if created with `unread`, or the error of the
 * device. */
enum status inner_opt_read(struct inner_opt *opt, const void **m_p, const void **v_p, struct err *err) MUST_CHECK;
/* Sets both moments from host memory [n_params], or to zero if NULL, and writes opt->steps to the devices. */
enum status inner_opt_write(struct inner_opt *opt, const void *m, const void *v, struct err *err) MUST_CHECK;

#endif
