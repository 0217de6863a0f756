/* The inner optimizer of one worker: AdamW, plain SGD, or Muon for the matrices between hidden layers and AdamW for all
 * else, on the flat parameter vector, with decay only where the layout says so and global-norm clipping. It counts its
 * own steps (bias correction), apart from the run's schedule position: moments and count survive outer rounds,
 * checkpoints and restarts together.
 *
 * Ranks of a worker that share theta and the moments hold the same reduced gradient; each updates its own slice: a
 * range of the elements, and whole matrices (worker/inner/inner_matrices.h). Ranks with memory of their own: the
 * `_sharded` calls. A step is submitted, not waited for: every rank calls `inner_opt_apply`, one of them
 * `inner_opt_download_norm`. Whether it was taken is known to the device at once and to the host when the norm came:
 * then `inner_opt_finish`. So the count that corrects the moments lives on the device. */
#ifndef WORKER_INNER_OPT_H
#define WORKER_INNER_OPT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "gpu/device.h"
#include "worker/inner/inner_matrices.h"

struct inner_opt_config {
    enum optimizer kind; /* OPTIMIZER_ADAMW, OPTIMIZER_MUON or OPTIMIZER_SGD */
    double beta1, beta2, eps, weight_decay;
    double grad_clip; /* of the global L2 norm; <= 0: no clipping */
    double muon_momentum;
    uint32_t muon_steps;            /* >= 1 */
    hidden_blocks_fn hidden_blocks; /* of the model family, for muon */
    bool bf16;                      /* moments are bf16 (gpu/moment_rules.h), not fp32 */
    uint64_t seed;                  /* of the run: of their rounding */
    bool unread;                    /* nobody calls inner_opt_read: the host needs no room for moments that a GPU has */
};

struct collective;
struct inner_shard;
struct shard_map;

/* Places in a slice's scalars; SCALAR_COUNT: a struct step_count. */
enum { SCALAR_SUMSQ, SCALAR_SCALE, SCALAR_NORM, SCALAR_COUNT = 4, SCALARS = 12 };

struct inner_opt_slice {
    struct device *dev;
    struct inner_shard *shard; /* worker/inner/inner_shard.h; NULL: the ranks share the moments */
    struct adamw_span *spans;
    size_t n_spans;
    struct muon_plan *muon; /* NULL: no matrices */
    float *scalars;         /* device memory: sum of squares, scale, norm, and the count of steps taken */
};

struct inner_opt {
    struct inner_opt_config config;
    uint64_t n_params;
    /* [n_params] moments in device memory of slice 0; NULL with SGD. Of muon's matrices m is the momentum and v stays
     * zero. */
    void *m, *v;
    size_t moment;    /* bytes of one; 0: there are none. They are in m and v, or dealt to the slices' shards */
    uint8_t *host;    /* [2 n_params] where they are read to; NULL: the host sees the device's memory, or `unread` */
    uint64_t steps;   /* taken, as far as finished; after changing it: inner_opt_write */
    uint64_t noise;   /* seed of the worker's roundings */
    uint64_t skipped; /* refused because the gradient was not finite */
    struct inner_opt_slice *slices;
    int n_slices;
};

/* The inner section of a resolved configuration, and what it rounds by. */
struct inner_opt_config inner_opt_config_of(const struct config *config);

/* Bytes of one moment; 0: there are none. */
size_t inner_opt_moment_size(const struct inner_opt_config *config);
/* Bytes of device memory: of all moments together, and of one slice beside them. Of ranks with memory of their own:
 * worker/inner/inner_shard.h. */
uint64_t inner_opt_moment_bytes(const struct inner_opt_config *config, uint64_t n_params);
uint64_t inner_opt_scalar_bytes(void);
/* Of the host's memory where that of the devices is not it: the moments, where they are read. */
uint64_t inner_opt_host_bytes(const struct inner_opt_config *config, uint64_t n_params);
/* What muon works in on a device like `dev`, all of its n_ranks ranks together; config->hidden_blocks is set. 0 for
 * others. */
uint64_t inner_opt_matrix_bytes(const struct inner_opt_config *config, const struct layout *layout, struct device *dev,
                                int n_ranks);

/* One slice per rank on devices[0 .. n_ranks-1] (borrowed). INVALID for another optimizer, UNSUPPORTED for muon without
 * hidden_blocks, or what the device says of a plan. */
enum status inner_opt_create(struct inner_opt **out, const struct inner_opt_config *config, const struct layout *layout,
                             struct device *const *devices, int n_ranks, struct err *err) MUST_CHECK;
/* Ranks with memory of their own: colls[map->ranks] and map are borrowed; with muon there is a map->deal. */
enum status inner_opt_create_sharded(struct inner_opt **out, const struct inner_opt_config *config,
                                     const struct layout *layout, const struct shard_map *map,
                                     struct collective *const *colls, struct err *err) MUST_CHECK;
/* NULL is allowed. */
void inner_opt_destroy(struct inner_opt *opt);
/* Whose moments they are: worker `worker` of the run. With bf16 that and config.seed decide how they are rounded; two
 * workers do not round alike. Between steps, and before the first of them. */
void inner_opt_set_worker(struct inner_opt *opt, uint32_t worker);
/* Submit rank's part of a step: clip coefficient from the whole gradient, then the update of its slice. A gradient
 * whose norm is not finite changes nothing. */
void inner_opt_apply(struct inner_opt *opt, int rank, float *theta, const float *grad, double lr);
/* The same of a rank with memory of its own, whose shares of the gradient are summed; its shares of theta change. In
 * two calls, the second when every rank has made the first, which tells all of them the norm: behind what waits for a
 * rank that is late a GPU's queue could fill, and submitting to a full one blocks, maybe that other rank, too.
 * CLOSED when another rank gave up. */
enum status inner_opt_measure_sharded(struct inner_opt *opt, int rank, const float *grad) MUST_CHECK;
void inner_opt_apply_sharded(struct inner_opt *opt, int rank, float *theta, const float *grad, double lr);
/* After rank 0's apply: submit the download of the gradient's norm before clipping; *norm is host memory. */
void inner_opt_download_norm(struct inner_opt *opt, float *norm);
/* The norm came: count its step. In the order of the steps; true when it was taken. */
bool inner_opt_finish(struct inner_opt *opt, float norm);

/* The moments as the host can read them, [n_params] each, of opt->moment bytes, until the next call that changes or
 * reads them; NULL with SGD. Between steps only. Fails as the device does. */
enum status inner_opt_read(struct inner_opt *opt, const void **m_p, const void **v_p, struct err *err) MUST_CHECK;
/* The other way: both from the host, or zeros (NULL), none with SGD; and the count of steps. */
enum status inner_opt_write(struct inner_opt *opt, const void *m, const void *v, struct err *err) MUST_CHECK;

#endif
