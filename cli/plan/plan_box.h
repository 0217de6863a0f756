/* A box: one worker with several GPUs whose program is PyTorch. Counts its memory for the ways in which the GPUs can
 * share a decoder model. Numbers in, numbers out; docs/plan.md has the formulas. */
#ifndef CLI_PLAN_BOX_H
#define CLI_PLAN_BOX_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"

enum { PLAN_GPUS_MAX = 1024, PLAN_GPU_GIB_MAX = 65536, PLAN_LORA_MAX = 4096 };

/* DDP: every GPU holds the model. FSDP2: fully_shard of each layer and of the root. The same with a frozen base in the
 * type of the products, and adapters on every matrix of a layer. */
enum plan_way { PLAN_WAY_DDP, PLAN_WAY_FSDP2, PLAN_WAY_LORA, PLAN_WAY_LORA_FSDP2, PLAN_WAYS };

/* Classes of a GPU's memory. IN_USE: copies of weights and gradients that a step makes. */
enum plan_gpu_class {
    PLAN_GPU_PARAMS,
    PLAN_GPU_GRADIENTS,
    PLAN_GPU_MOMENTS,
    PLAN_GPU_IN_USE,
    PLAN_GPU_ACTIVATIONS,
    PLAN_GPU_LOGITS,
    PLAN_GPU_RESERVE,
    PLAN_GPU_CLASSES
};

struct plan_gpu {
    uint64_t bytes[PLAN_GPU_CLASSES];
    uint64_t total;
    bool recompute; /* activations are checkpointed, layer by layer */
    bool fits;
};

struct plan_box {
    uint32_t gpus; /* 0: the plan is not one of boxes */
    double gpu_gib;
    uint32_t lora_rank;
};

struct plan_box_memory {
    struct plan_gpu ways[PLAN_WAYS];
    uint64_t adapters;                /* parameters */
    uint64_t layer, root;             /* parameters of one layer, and of everything outside the layers */
    uint64_t theta, change, messages; /* host memory of the box, for all its ranks together */
    uint64_t inbox, host;             /* arriving updates; the sum of the four */
    uint64_t saved;                   /* a saved state; the folder holds three of them */
    uint64_t copy;                    /* host memory beside `host` for a save during training; 0: saves need none */
};

/* INVALID: train.batch_size is not a multiple of the GPUs. */
enum status plan_box_make(struct plan_box_memory *out, const struct plan_box *box, const struct config *config,
                          const struct layout *layout, uint32_t workers, struct err *err) MUST_CHECK;
/* Adds the deltas of a round, `payload` bytes, to the saved state. */
void plan_box_add_payload(struct plan_box_memory *m, const struct config *config, uint64_t payload);
/* The name of a way in output and JSON: "DDP", "FSDP2", "LoRA", "LoRA on FSDP2". */
const char *plan_way_name(enum plan_way way);

#endif
