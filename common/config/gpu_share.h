/* The GPUs of one machine, dealt among the workers that `atoll launch` starts there: each has its own as long as there
 * are enough. launch says in the environment how many workers they are and which one this is; every worker then counts
 * the GPUs and finds its own by the same rule, so that launch needs no driver. Pure but for gpu_share_from_env. */
#ifndef COMMON_GPU_SHARE_H
#define COMMON_GPU_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"

#define WORKERS_HERE_ENV "ATOLL_WORKERS_HERE" /* how many workers launch starts */
#define WORKER_INDEX_ENV "ATOLL_WORKER_INDEX" /* which of them this is, from 0 */

struct gpu_share {
    uint32_t workers, index; /* of this launch; workers 0: started by hand */
    uint32_t gpus;           /* that were dealt; 0: none were */
    uint32_t ranks, first;   /* this worker has `ranks` of them from `first` on; all workers have as many */
    uint32_t sharers;        /* workers that have these GPUs, itself one of them */
    uint32_t idle;           /* GPUs that no worker has */
};

/* Workers and index from the environment, nothing dealt yet. INVALID: what stands there is no such number. */
enum status gpu_share_from_env(struct gpu_share *share, struct err *err) MUST_CHECK;

/* Deal `gpus`. `ranks` GPUs for each worker, neighbours; 0: an equal part, rounded down, and further until it divides
 * batch_size (0: anything does). More workers than parts: they share them, in turn. False, with nothing dealt, for a
 * worker started by hand, or where there are fewer GPUs than ranks. */
bool gpu_share_deal(struct gpu_share *share, uint32_t gpus, uint32_t ranks, uint32_t batch_size);

/* INVALID: not what train.devices may be, or a list that names a GPU twice. */
enum status gpu_share_check(const struct config *config, const struct config_sources *sources,
                            struct err *err) MUST_CHECK;
/* GPUs in train.devices where that is a list, else 0. */
uint32_t gpu_share_count_listed(const char *devices);
/* The number at place i of such a list; of anything else i itself. */
unsigned long gpu_share_device_number(const char *devices, uint32_t i);

/* Deal them, and make train.devices and train.ranks those of this worker: train.ranks that somebody chose is kept.
 * Where it is one GPU for all, and where nothing was dealt, they stay as they are. A list is divided among several
 * workers only, and without a look at the batch size: config_resolve is to check that. `most`: GPUs of one worker
 * unless chosen; 0: no limit. INVALID: as gpu_share_check, or so many numbers are too long a text. */
enum status gpu_share_apply(struct gpu_share *share, uint32_t gpus, uint32_t most, struct config *config,
                            struct config_sources *sources, struct err *err) MUST_CHECK;

/* "2 workers on 4 GPUs: this one has cuda:2,3". `devices`: what this one opens. Returns out. */
const char *gpu_share_text(const struct gpu_share *share, const char *devices, char *out, size_t cap);

#endif
