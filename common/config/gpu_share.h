/* Assignment of a machine's GPUs to the workers that `atoll launch` starts there.
 *
 * Each worker has its own GPUs if there are enough. launch passes the number of workers and the index of each worker in
 * the environment. Every worker counts the GPUs and computes its share by the same rule, so launch needs no driver. All
 * functions except gpu_share_from_env are pure. */
#ifndef COMMON_GPU_SHARE_H
#define COMMON_GPU_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"

#define WORKERS_HERE_ENV "ATOLL_WORKERS_HERE" /* number of workers that launch starts */
#define WORKER_INDEX_ENV "ATOLL_WORKER_INDEX" /* index of this worker, from 0 */

struct gpu_share {
    uint32_t workers, index; /* of this launch; workers 0: not started by launch */
    uint32_t gpus;           /* number of assigned GPUs; 0: none */
    uint32_t ranks, first;   /* this worker has GPUs [first, first + ranks); `ranks` is equal for all */
    uint32_t sharers;        /* workers on the same GPUs, including this one */
    uint32_t idle;           /* unassigned GPUs */
};

/* Set workers and index from the environment, without GPUs. INVALID: a variable is not a number in its range. */
enum status gpu_share_from_env(struct gpu_share *share, struct err *err) MUST_CHECK;

/* Assign `gpus` GPUs to the workers.
 *
 * - Each worker gets `ranks` adjacent GPUs. ranks 0: an equal part, rounded down until it divides batch_size
 *   (batch_size 0: no such condition).
 * - If there are more workers than parts, workers share parts in turn.
 * - False, with *share unchanged: the worker was not started by launch, or there are fewer GPUs than ranks. */
bool gpu_share_deal(struct gpu_share *share, uint32_t gpus, uint32_t ranks, uint32_t batch_size);

/* INVALID: train.devices is not valid, or lists a GPU twice. */
enum status gpu_share_check(const struct config *config, const struct config_sources *sources,
                            struct err *err) MUST_CHECK;
/* Number of GPUs in train.devices if it is a list, else 0. */
uint32_t gpu_share_count_listed(const char *devices);
/* Device number of entry i of the list; i itself if train.devices is not a list. */
unsigned long gpu_share_device_number(const char *devices, uint32_t i);

/* Assign the GPUs and set train.devices and train.ranks of this worker.
 *
 * - A train.ranks that the user set is kept.
 * - With one GPU for all workers, and when nothing is assigned, both keys stay unchanged.
 * - A list is divided only among several workers, without regard to the batch size, which config_resolve checks.
 * - `most`: maximum number of GPUs of one worker unless the user set train.ranks; 0: no limit.
 * - INVALID: as gpu_share_check, or the list of device numbers is too long for train.devices. */
enum status gpu_share_apply(struct gpu_share *share, uint32_t gpus, uint32_t most, struct config *config,
                            struct config_sources *sources, struct err *err) MUST_CHECK;

/* Write "2 workers on 4 GPUs: this one has cuda:2,3". `devices`: the devices that this worker opens. Returns out. */
const char *gpu_share_text(const struct gpu_share *share, const char *devices, char *out, size_t cap);

#endif
