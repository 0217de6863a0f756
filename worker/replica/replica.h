/* One copy of the model on one node: data-parallel ranks (threads with their own device, activations and gradient) that
 * share one parameter vector and step together.
 *
 * A step takes grad_accum micro-steps of batch_size sequences, cut evenly over the ranks; gradients are summed over
 * tokens, divided once by the step's number of tokens, reduced in rank order, and applied by one optimizer. Same
 * inputs, same bits, for any number of compute threads; another number of ranks differs by rounding only.
 *
 * A GPU is kept at work: a step is submitted as a whole and nobody waits for it. Its losses are read when the next one
 * has been submitted, or at replica_flush. A CPU has done the step when the call returns.
 *
 * Not thread-safe: one thread calls, the ranks work inside the call. Nothing is allocated after creation, but room for
 * values that were to stay on the GPU and are asked for all the same. */
#ifndef WORKER_REPLICA_H
#define WORKER_REPLICA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"
#include "common/tensor/tokens.h"
#include "worker/inner/inner_opt.h"
#include "worker/model/model.h"
#include "worker/replica/memory_class.h"

/* What the outer path will want: of the host's memory, and of a device that makes deltas. Where one does, the host is
 * spared `base` of host.anchor and gives `pinned` more. */
struct replica_outer {
    struct memory_outer host, device;
    uint64_t base, pinned;
};

struct memory_plan;
struct pool;

struct replica_config {
    const struct model_family *family;
    struct model_config model;
    const char *device;       /* device_open name of each rank: "auto", "cpu", ... */
    const char *on_cpu;       /* device_advise's: what is said to have the CPU */
    bool bf16;                /* where the device can: activations and products in bf16 */
    uint32_t ranks;           /* >= 1 */
    uint32_t threads;         /* compute threads of all ranks together; >= 1, each rank gets at least one */
    uint32_t batch_size;      /* sequences a micro-step, all ranks; a multiple of ranks */
    uint32_t grad_accum;      /* micro-steps a step; >= 1 */
    uint64_t seed;            /* of the sample order */
    bool sharded;             /* ranks keep a theta each, as several GPUs do, even where they could share memory */
    uint64_t bucket;          /* floats that such ranks send at a time; 0: the default (worker/inner/shard.h) */
    bool gradients;           /* replica_gradient is what will be called, not replica_train_step */
    bool eval_only;           /* no gradients, no optimizer: replica_eval only */
    enum recompute recompute; /* of activations; the default is none */
    uint32_t sharers; /* workers that `atoll launch` put on these GPUs, itself one of them; 0 or 1: it is alone */
    struct replica_outer outer;
    void (*end)(const char *line); /* ends the process when one of several GPUs hangs for good (gpu/collective.h) */
    struct inner_opt_config opt;
    struct pool *pool; /* the caller's, for copies between host and GPU (device.h, stage_plan); may be NULL */
};

struct replica;

struct step_result {
    double loss_sum;  /* nats, over `tokens` */
    uint64_t tokens;  /* 0: no step is over that was not reported before */
    bool late;        /* of the step that was submitted before this one */
    double grad_norm; /* of the mean gradient before clipping */
    bool skipped;     /* the gradient was not finite: parameters unchanged */
    double compute_s; /* wall time: of the call, or, late, from one step's end (or its begin) to the next one's */
};

/* `train` may be NULL with eval_only; it and `layout` must outlive the replica. INVALID for numbers that do not fit
 * together (with the nearest valid ones), NOMEM (before anything is taken if the memory can be foreseen to be short:
 * worker/replica/memory_plan.h), or what the device says. Parameters start as zeros. */
enum status replica_create(struct replica **out, const struct replica_config *config, const struct layout *layout,
                           const struct tokens *train, struct err *err) MUST_CHECK;
/* NULL is allowed. */
void replica_destroy(struct replica *replica);

/* The live parameters [n_params], memory of the first device: where ranks have their own, or it is not the host's
 * (device.h, host_memory), read and write them with the next two. Between calls; late steps: after replica_flush. */
float *replica_params(struct replica *replica);
/* From, or to, memory of the host; *values stays valid until the next call. What the device says. */
enum status replica_set_params(struct replica *replica, const float *values, struct err *err) MUST_CHECK;
/* The same where the first device has a copy in memory of its own: `first` (not the live parameters), which stays as it
 * is while the device reads it; NULL: there is none. */
enum status replica_set_params_at(struct replica *replica, const float *values, const float *first,
                                  struct err *err) MUST_CHECK;
enum status replica_get_params(struct replica *replica, const float **values, struct err *err) MUST_CHECK;
/* The one whose memory they are. */
struct device *replica_device(struct replica *replica);
/* device.note of the first rank that has one: "" if none has. */
const char *replica_note(const struct replica *replica);
/* device.peak_flops of all ranks together; 0: of one it is not known. */
double replica_peak_flops(const struct replica *replica);
/* Sequences of one step: batch_size * grad_accum. */
uint32_t replica_step_samples(const struct replica *replica);
/* "cpu avx512 x2": for logs. */
const char *replica_device_name(const struct replica *replica);
/* What was planned at creation; valid as long as the replica. */
const struct memory_plan *replica_memory(const struct replica *replica);
/* The same of the host's memory beside GPUs; NULL where the devices' memory is the host's. */
const struct memory_plan *replica_host_memory(const struct replica *replica);

/* One optimizer step on the samples with these global counters (worker/replica/batch.h); n = replica_step_samples, or
 * fewer at the end of the data: the gradient is still the mean over the tokens there are. A gradient that is not finite
 * is not an error: the step is skipped, counted and said so in the result. The device knows that at once: a step
 * submitted behind a skipped one is what it would have been had it been known. */
enum status replica_train_step(struct replica *replica, const uint64_t *counters, size_t n, double lr,
                               struct step_result *result, struct err *err) MUST_CHECK;
/* Wait for the step in flight, if there is one: its result. Before anybody looks at optimizer counts, and at the end of
 * a round. */
enum status replica_flush(struct replica *replica, struct step_result *result, struct err *err) MUST_CHECK;
/* The mean gradient instead of a step (method ddp): *grad [n_params] stays valid until the next call. NONFINITE when
 * its norm is not finite. */
enum status replica_gradient(struct replica *replica, const uint64_t *counters, size_t n, const float **grad,
                             struct step_result *result, struct err *err) MUST_CHECK;
/* Sum of losses of the live parameters over windows first .. first + count of `val`, in file order. The sum is taken in
 * double in the order of the windows; windows past the end are left out. */
enum status replica_eval(struct replica *replica, const struct tokens *val, uint64_t first, uint64_t count,
                         double *loss_sum, uint64_t *tokens, struct err *err) MUST_CHECK;

/* The optimizer's state, to be saved and restored between calls (inner_opt_read, inner_opt_write). */
struct inner_opt *replica_optimizer(struct replica *replica);

#endif
