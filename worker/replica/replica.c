#include "worker/replica/replica.h"

#include <assert.h>
#include <math.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "worker/replica/replica_impl.h"

/* Sums sequences in the order of the counters, so the sum does not depend on the number of ranks. */
static double loss_of_slot(const struct replica *r, int slot, uint32_t micro_steps)
{
    double sum = 0;
    assert(micro_steps > 0 && micro_steps <= r->config.grad_accum);
    for (uint32_t micro = 0; micro < micro_steps; micro++)
        for (int i = 0; i < r->n_ranks; i++) {
            const struct rank *k = &r->ranks[i];
            step_io_row_losses(&k->io, slot, micro, r->rows, k->row_loss);
            for (uint32_t row = 0; row < r->rows; row++) sum += k->row_loss[row];
        }
    return sum;
}

static enum status check_counters(const struct replica *r, size_t n, struct err *err)
{
    if (r->config.eval_only) return err_set(err, STATUS_STATE, "a replica created with eval_only cannot train");
    if (!n || n > replica_step_samples(r))
        return err_set(err, STATUS_INVALID, "a step takes 1 to %u sequences, not %zu", replica_step_samples(r), n);
    return STATUS_OK;
}

/* Sets *out to values[n_params] in host memory: the values themselves, or a copy. */
static enum status copy_to_host(struct replica *r, const float *values, const float **out, struct err *err)
{
    struct device *dev = r->ranks[0].dev;
    *out = values;
    if (dev->host_memory) return STATUS_OK;
    if (!r->host_values) r->host_values = mem_alloc(r->layout->n_params, sizeof *r->host_values);
    if (!r->host_values)
        return err_set(err, STATUS_NOMEM, "no host memory for a copy of the parameters of %s", dev->name);
    *out = r->host_values;
    return device_fetch(dev, r->host_values, values, r->layout->n_params * sizeof *values, err);
}

/* Waits for a submitted step and reads its results. */
static enum status finish_step(struct replica *r, const struct flight *flight, struct step_result *result,
                               struct err *err)
{
    assert(flight->n > 0 && flight->n <= replica_step_samples(r));
    uint64_t begin = r->done_us > flight->submitted_us ? r->done_us : flight->submitted_us;
    TRY(ranks_wait_slot(r, flight->slot, err));
    r->done_us = clock_monotonic_us();
    *result = (struct step_result){.loss_sum = loss_of_slot(r, flight->slot, r->config.grad_accum),
                                   .tokens = (uint64_t)flight->n * r->seq,
                                   .grad_norm = *r->ranks[0].io.slots[flight->slot].norm,
                                   .compute_s = (double)(r->done_us - begin) * 1e-6};
    result->skipped = !inner_opt_finish(r->opt, *r->ranks[0].io.slots[flight->slot].norm);
    return STATUS_OK;
}

static enum status finish_flight(struct replica *r, struct step_result *result, struct err *err)
{
    struct flight flight = r->flight;
    *result = (struct step_result){0};
    if (!flight.n) return STATUS_OK;
    r->flight.n = 0;
    TRY(finish_step(r, &flight, result, err));
    result->late = true;
    return STATUS_OK;
}

enum status replica_flush(struct replica *r, struct step_result *result, struct err *err)
{
    TRY(finish_flight(r, result, err));
    return r->sharded ? ranks_run(r, ORDER_SYNCHRONIZE, err) : STATUS_OK;
}

enum status replica_train_step(struct replica *r, const uint64_t *counters, size_t n, double lr,
                               struct step_result *result, struct err *err)
{
    struct flight flight = {.n = n, .submitted_us = clock_monotonic_us()};
    TRY(check_counters(r, n, err));
    r->lr = lr;
    TRY(ranks_order(r, ORDER_STEP, &r->train, counters, n, err));
    if (r->sharded)
        TRY(ranks_order(r, ORDER_APPLY, &r->train, counters, n,
                        err)); /* after all ranks have measured: inner_opt_apply_sharded */
    flight.slot = r->slot;
    assert(!r->flight.n || r->flight.slot != flight.slot);
    if (r->ranks[0].dev->host_memory) return finish_step(r, &flight, result, err);
    TRY(finish_flight(r, result, err));
    assert(!r->flight.n); /* at most one step is in flight */
    r->flight = flight;
    return STATUS_OK;
}

enum status replica_gradient(struct replica *r, const uint64_t *counters, size_t n, const float **grad,
                             struct step_result *result, struct err *err)
{
    uint64_t start = clock_monotonic_us();
    TRY(check_counters(r, n, err));
    TRY(ranks_order(r, ORDER_GRADIENT, &r->train, counters, n, err));
    if (r->sharded) TRY(ranks_run(r, ORDER_SYNCHRONIZE, err));
    struct rank *k = &r->ranks[0];
    float *norm = k->io.slots[r->slot].norm;
    k->dev->ops->sumsq(k->dev, r->layout->n_params, k->grad, k->loss);
    k->dev->ops->download(k->dev, norm, k->loss, sizeof *norm);
    TRY(ranks_wait_slot(r, r->slot, err));
    TRY(k->dev->ops->sync(k->dev, err));
    *result = (struct step_result){.loss_sum = loss_of_slot(r, r->slot, r->config.grad_accum),
                                   .tokens = (uint64_t)n * r->seq,
                                   .grad_norm = sqrt(*norm)};
    result->compute_s = (double)(clock_monotonic_us() - start) * 1e-6;
    if (!isfinite(result->grad_norm))
        return err_set(err, STATUS_NONFINITE,
                       "the gradient is not finite: lower inner.learning_rate or check the data");
    return copy_to_host(r, k->grad, grad, err);
}

enum status replica_eval(struct replica *r, const struct tokens *val, uint64_t first, uint64_t count, double *loss_sum,
                         uint64_t *tokens, double *sums, struct err *err)
{
    struct batch_source source;
    TRY(batch_source_init(&source, val, r->seq, r->config.model.vocab_size, 0, true, err));
    if (first > source.n_samples) first = source.n_samples;
    if (count > source.n_samples - first) count = source.n_samples - first;
    double sum = 0;
    for (uint64_t done = 0; done < count;) {
        size_t n = count - done < r->config.batch_size ? (size_t)(count - done) : r->config.batch_size;
        for (size_t i = 0; i < n; i++) r->eval_counters[i] = first + done + i;
        TRY(ranks_order(r, ORDER_EVAL, &source, r->eval_counters, n, err));
        TRY(ranks_wait_slot(r, r->slot, err));
        double loss = loss_of_slot(r, r->slot, 1);
        sum += loss;
        if (sums) *sums++ = loss;
        done += n;
    }
    *loss_sum = sum;
    *tokens = count * r->seq;
    return STATUS_OK;
}

/* --- parameters and properties ----------------------------------------------------------------------------------- */

float *replica_params(struct replica *r)
{
    return r->ranks[0].theta;
}

enum status replica_set_params_at(struct replica *r, const float *values, const float *first, struct err *err)
{
    struct rank *k = &r->ranks[0];
    assert(values || first);
    if (r->sharded) TRY(ranks_run(r, ORDER_SYNCHRONIZE, err));
    if (first)
        k->dev->ops->copy(k->dev, k->theta, first, r->layout->n_params * sizeof *values);
    else
        device_send(k->dev, k->theta, values, r->layout->n_params * sizeof *values);
    /* GPU to GPU, to avoid one upload over the bus per rank. */
    return r->sharded ? ranks_run(r, ORDER_BROADCAST, err) : STATUS_OK;
}

enum status replica_set_params(struct replica *r, const float *values, struct err *err)
{
    return replica_set_params_at(r, values, NULL, err);
}

enum status replica_get_params(struct replica *r, const float **values, struct err *err)
{
    if (r->sharded) TRY(ranks_run(r, ORDER_SYNCHRONIZE, err));
    return copy_to_host(r, r->ranks[0].theta, values, err);
}

struct device *replica_device(struct replica *r)
{
    return r->ranks[0].dev;
}

const char *replica_note(const struct replica *r)
{
    int k = 0;
    while (k < r->n_ranks - 1 && !*r->ranks[k].dev->note) k++;
    return r->ranks[k].dev->note;
}

uint32_t replica_step_samples(const struct replica *r)
{
    return r->config.batch_size * r->config.grad_accum;
}

double replica_peak_flops(const struct replica *r)
{
    double sum = 0;
    for (int k = 0; k < r->n_ranks; k++) {
        double peak = r->ranks[k].dev->peak_flops;
        if (!(peak > 0)) return 0;
        sum += peak;
    }
    return sum;
}

const char *replica_device_name(const struct replica *r)
{
    return r->names;
}

const struct memory_plan *replica_memory(const struct replica *r)
{
    return &r->memory;
}

const struct memory_plan *replica_host_memory(const struct replica *r)
{
    return r->ranks[0].dev->host_memory ? NULL : &r->host;
}

struct inner_opt *replica_optimizer(struct replica *r)
{
    return r->opt;
}
