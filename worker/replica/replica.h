/* One copy of the model on one node: data-parallel ranks (threads with their own device, activations and gradient) that
 * share one parameter vector and step together.
 *
 * - A step has grad_accum micro-steps of batch_size sequences, split evenly over the ranks. Gradients are summed over
 *   tokens, divided once by the tokens of the step, reduced in rank order, and applied by one optimizer.
 * - The same inputs give the same bits for any number of compute threads. Another number of ranks differs by rounding
 *   only.
 * - On a GPU a call submits a whole step and returns. The losses are read after the next step was submitted, or by
 *   replica_flush. On a CPU the step has finished when the call returns.
 * - Not thread-safe: one thread calls; the ranks work inside the call.
 * - After creation nothing is allocated, except a host copy if the caller reads values that were planned to stay on the
 *   GPU. */
#ifndef WORKER_REPLICA_H
#define WORKER_REPLICA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"
#include "common/tensor/tokens.h"
#include "worker/replica/replica_memory.h"

struct replica;

struct step_result {
    double loss_sum;  /* nats, summed over `tokens` */
    uint64_t tokens;  /* 0: no newly finished step */
    bool late;        /* the result belongs to the previously submitted step */
    double grad_norm; /* norm of the mean gradient before clipping */
    bool skipped;     /* the gradient was not finite: parameters unchanged */
    double compute_s; /* wall time of the call; if late: since the previous step ended or this one was submitted */
};

/* Creates a replica with zero parameters. `train` may be NULL with eval_only; `train` and `layout` must outlive the
 * replica.
 * - INVALID for numbers that do not fit together; `err` names valid ones.
 * - NOMEM or UNSUPPORTED before any allocation if the plan does not fit (worker/replica/memory_plan.h).
 * - NOMEM, LIMIT, or the error of the device later. */
enum status replica_create(struct replica **out, const struct replica_config *config, const struct layout *layout,
                           const struct tokens *train, struct err *err) MUST_CHECK;
/* NULL is allowed. */
void replica_destroy(struct replica *replica);

/* The live parameters [n_params] in the first device's memory. If ranks have their own theta, or the device's memory is
 * not the host's (device.h, host_memory), use the set and get calls below. Call between steps; with late steps, after
 * replica_flush. */
float *replica_params(struct replica *replica);
/* Copy values[n_params] from host memory to all ranks. Returns the error of the device. */
enum status replica_set_params(struct replica *replica, const float *values, struct err *err) MUST_CHECK;
/* As above, but from a copy in the first device's memory: `first` (not the live parameters), unchanged while the device
 * reads it; NULL: from `values`. */
enum status replica_set_params_at(struct replica *replica, const float *values, const float *first,
                                  struct err *err) MUST_CHECK;
/* Sets *values to the parameters in host memory, valid until the next call. NOMEM, or the error of the device. */
enum status replica_get_params(struct replica *replica, const float **values, struct err *err) MUST_CHECK;
/* The device that holds replica_params. */
struct device *replica_device(struct replica *replica);
/* device.note of the first rank with a note; "" without one. */
const char *replica_note(const struct replica *replica);
/* device.peak_flops summed over the ranks; 0 if unknown for any of them. */
double replica_peak_flops(const struct replica *replica);
/* Sequences of one step: batch_size * grad_accum. */
uint32_t replica_step_samples(const struct replica *replica);
/* "cpu avx512 x2": for logs. */
const char *replica_device_name(const struct replica *replica);
/* The memory plan of the devices; valid as long as the replica. */
const struct memory_plan *replica_memory(const struct replica *replica);
/* The plan of host memory for GPUs; NULL if the devices use host memory. */
const struct memory_plan *replica_host_memory(const struct replica *replica);

/* Runs one optimizer step on the samples with these global counters (worker/replica/batch.h). n = replica_step_samples,
 * or fewer at the end of the data; the gradient is the mean over the available tokens. A gradient that is not finite is
 * no error: the step is skipped and counted, and result->skipped is set. The device skips it at once, so a step
 * submitted behind it starts from the unchanged parameters. */
enum status replica_train_step(struct replica *replica, const uint64_t *counters, size_t n, double lr,
                               struct step_result *result, struct err *err) MUST_CHECK;
/* Waits for the step in flight, if any, and returns its result. Call at the end of a round and before reading the
 * optimizer's counts. */
enum status replica_flush(struct replica *replica, struct step_result *result, struct err *err) MUST_CHECK;
/* Computes the mean gradient without a step (method ddp): *grad [n_params], host memory, valid until the next call.
 * NONFINITE if its norm is not finite. */
enum status replica_gradient(struct replica *replica, const uint64_t *counters, size_t n, const float **grad,
                             struct step_result *result, struct err *err) MUST_CHECK;
/* Sums the losses (nats) of the live parameters over windows first .. first + count of `val`, in file order and in
 * double. Windows past the end are skipped; *tokens counts the others. sums [count / batch_size, rounded up]: the loss
 * of each batch of batch_size windows; NULL: not wanted. */
enum status replica_eval(struct replica *replica, const struct tokens *val, uint64_t first, uint64_t count,
                         double *loss_sum, uint64_t *tokens, double *sums, struct err *err) MUST_CHECK;

/* The optimizer, to save and restore its state between calls (inner_opt_read, inner_opt_write). */
struct inner_opt *replica_optimizer(struct replica *replica);

#endif
