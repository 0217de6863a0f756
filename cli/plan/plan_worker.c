#include "cli/plan/plan_worker.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/median.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/tensor/tokens.h"
#include "coordinator/outer/outer_state.h"
#include "gpu/collective.h"
#include "gpu/device.h"
#include "wire/zmq/backlog.h"
#include "worker/replica/memory_plan.h"
#include "worker/replica/replica_memory.h"

enum { STEPS_MAX = 1000, STEPS_MIN = 3, WINDOWS = 64 };

static enum status worker_memory(struct plan_memory *memory, const struct layout *layout,
                                 const struct replica_config *replica, struct device *const *devices, struct err *err)
{
    struct memory_plan plan, host = {0};
    struct err why = {0};
    enum status status = replica_memory_plan(&plan, replica, layout, devices, &why);
    memory->worker_bytes = plan.total + plan.reserve;
    memory->worker_free_bytes = plan.free_bytes;
    if (status == STATUS_OK && !devices[0]->host_memory) {
        status = replica_host_plan(&host, replica, layout, devices, &plan, &why);
        memory->host_bytes = host.total;
    }
    if (status == STATUS_OK) return STATUS_OK;
    if (status != STATUS_NOMEM && status != STATUS_UNSUPPORTED) return err_set(err, status, "%s", why.msg);
    snprintf(memory->short_of, sizeof memory->short_of, "%.500s", why.msg);
    return STATUS_OK;
}

enum status plan_memory_make(struct plan_memory *memory, const struct config *config, const struct layout *layout,
                             const struct replica_config *replica, uint32_t workers, struct err *err)
{
    *memory = (struct plan_memory){0};
    TRY(outer_state_bytes(&memory->coordinator_bytes, config, layout, workers, err));
    memory->coordinator_bytes += BACKLOG_BYTES + outer_buffer_bytes(workers, layout->n_params);
    if (!replica) return STATUS_OK;
    struct device *device, *devices[COLLECTIVE_RANKS_MAX];
    char name[DEVICE_NAME_BYTES];
    (void)device_of_rank(replica->device, 0, (int)replica->ranks, name);
    TRY(device_advise(device_open(name, 1, &device, err), name, replica->on_cpu, err));
    enum status status = replica->bf16 && !device->host_memory ? device_use_bf16(device, err) : STATUS_OK;
    for (uint32_t i = 0; i < replica->ranks && i < COLLECTIVE_RANKS_MAX; i++) devices[i] = device; /* they are alike */
    if (status == STATUS_OK) status = worker_memory(memory, layout, replica, devices, err);
    snprintf(memory->device, sizeof memory->device, "%s", device->name);
    device_close(device);
    return status;
}

/* --- the time of a step ------------------------------------------------------------------------------------------- */

static enum status one_step(struct replica *r, bool gradient, uint64_t *counters, double *took_s, struct err *err)
{
    struct step_result result;
    const float *grad;
    uint32_t n = replica_step_samples(r);
    for (uint32_t i = 0; i < n; i++) counters[i] += n;
    uint64_t from = clock_monotonic_us();
    if (gradient)
        TRY(replica_gradient(r, counters, n, &grad, &result, err));
    else
        TRY(replica_train_step(r, counters, n, 1e-4, &result, err));
    if (!gradient) TRY(replica_flush(r, &result, err));
    *took_s = (double)(clock_monotonic_us() - from) * 1e-6;
    return STATUS_OK;
}

static enum status time_steps(struct replica *r, bool gradient, double seconds, double *step_s, struct err *err)
{
    double times[STEPS_MAX], spent = 0;
    size_t n = 0;
    uint64_t *counters = mem_alloc(replica_step_samples(r), sizeof *counters);
    if (!counters) return err_set(err, STATUS_NOMEM, "out of memory");
    for (uint32_t i = 0; i < replica_step_samples(r); i++) counters[i] = i;
    enum status status = one_step(r, gradient, counters, &times[0], err); /* warms up caches and clocks */
    while (status == STATUS_OK && n < STEPS_MAX && (n < STEPS_MIN || spent < seconds)) {
        status = one_step(r, gradient, counters, &times[n], err);
        spent += times[n++];
    }
    mem_free(counters);
    if (status == STATUS_OK) *step_s = median_of(times, n);
    return status;
}

enum status plan_step_measure(double *step_s, const struct config *config, const struct layout *layout,
                              const struct replica_config *replica, double seconds, struct err *err)
{
    size_t n = (size_t)WINDOWS * config->model.block_size + 1;
    uint32_t *data = mem_alloc(n, sizeof *data);
    if (!data) return err_set(err, STATUS_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) data[i] = (uint32_t)(rng_u64(1, RNG_TEST, i) % config->model.vocab_size);
    struct token_shard shard = {.tokens = (const uint8_t *)data, .fd = -1, .n_tokens = n, .width = sizeof *data};
    struct tokens tokens = {.shards = &shard, .n_shards = 1, .n_tokens = n};
    struct replica *r = NULL;
    enum status status = replica_create(&r, replica, layout, &tokens, err);
    if (status == STATUS_OK) {
        float *theta = mem_alloc(layout->n_params, sizeof *theta);
        for (uint32_t f = 0; theta && f < layout->n_fragments; f++)
            layout_fill(layout, f, config->run.seed, theta + layout->fragments[f].offset);
        status = theta ? replica_set_params(r, theta, err) : err_set(err, STATUS_NOMEM, "out of memory");
        mem_free(theta);
    }
    if (status == STATUS_OK) status = time_steps(r, replica->gradients, seconds, step_s, err);
    replica_destroy(r);
    mem_free(data);
    return status;
}
