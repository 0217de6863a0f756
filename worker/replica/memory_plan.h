/* What a rank will hold in its device's memory, counted before any of it is taken, and from that the level of recompute
 * (model.h) that costs least time and fits. So memory is missing in one line at the start, not in the middle of it.
 *
 * Pure: numbers in, numbers out; the device is only asked for sizes. Where ranks share one memory (a CPU) the plan is
 * for all of them together. */
#ifndef WORKER_MEMORY_PLAN_H
#define WORKER_MEMORY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "worker/model/model.h"
#include "worker/replica/memory_class.h"

struct memory_ask {
    const struct model_family *family;
    const struct model_config *model;
    struct device *dev;
    uint64_t fixed[MEMORY_CLASSES]; /* bytes that depend neither on the batch nor on the level; outer classes: 0 */
    struct memory_outer outer;
    size_t seq;
    size_t row_bytes;                 /* workspace of one sequence, beside attention's and the head's */
    uint32_t ranks;                   /* that this memory is for; >= 1 */
    uint32_t batch_size, batch_unit;  /* train.batch_size, and by how much it can change: the worker's ranks */
    unsigned uses;                    /* model.h, without a level */
    uint64_t free_bytes, total_bytes; /* of the memory; 0: not known, everything fits */
    uint64_t coordinator; /* bytes that the coordinator beside them has of it, or will have: no part of either */
    uint32_t workers; /* that share the memory, which free and total are one worker's part of; 0 or 1: it is alone */
};

/* Workers of one machine that start together each see all of its memory free. `atoll launch` says in the environment
 * how many they are (common/config/gpu_share.h), what the host had free before the first one was started, and what
 * their coordinator, which runs beside them, takes of that. No name may begin with a section of the configuration: such
 * a variable is taken for a misspelt key. */
#define MEMORY_HOST_ENV "ATOLL_HOST_FREE"
#define MEMORY_COORDINATOR_ENV "ATOLL_HOST_COORDINATOR"
/* Cut free_bytes and total_bytes of `ask` down to this worker's part, where there are others, and set coordinator and
 * workers: all of them where the memory is the host's, else the `sharers` of its GPUs (0: it is alone). Of the host's
 * neither is more than a part of what launch found free: whoever is started again is told the same. INVALID: what
 * stands in the environment is no such number. */
enum status memory_ask_share(struct memory_ask *ask, bool of_host, uint32_t sharers, struct err *err) MUST_CHECK;

struct memory_plan {
    uint64_t bytes[MEMORY_CLASSES];
    uint64_t total;                             /* their sum */
    uint64_t free_bytes, total_bytes, reserve;  /* reserve: left alone, for what a GPU's libraries take by themselves */
    uint64_t levels[MODEL_RECOMPUTE_BLOCK + 1]; /* the total at each level */
    enum model_recompute level;
    bool outer_left_out; /* no room for the outer path: it was optional */
};

/* `want`: a level, or RECOMPUTE_AUTO for the first one that fits; the outer path, where optional, goes last. NOMEM: not
 * at all, with the largest train.batch_size that fits; UNSUPPORTED: nor would it if all of total_bytes were free. */
enum status memory_plan_make(struct memory_plan *plan, const struct memory_ask *ask, enum recompute want,
                             struct err *err) MUST_CHECK;

/* What a worker takes of the host's memory beside its GPUs: the sum of ask->fixed, and whether that fits; of `ask` dev,
 * fixed and what there is of the memory are set. NOMEM, UNSUPPORTED: as above, with the parts, and what would help. */
enum status memory_plan_host(struct memory_plan *plan, const struct memory_ask *ask, struct err *err) MUST_CHECK;

/* "parameters 474 MiB, gradient 474 MiB, ..., total 3.1 of 139.8 GiB free": classes that are not empty. Returns out. */
const char *memory_plan_text(const struct memory_plan *plan, char *out, size_t cap);
/* "none" to "block"; of RECOMPUTE_AUTO "auto". */
const char *memory_level_name(enum recompute level);

#endif
