/* Classes of memory in a plan (worker/replica/memory_plan.h). */
#ifndef WORKER_MEMORY_CLASS_H
#define WORKER_MEMORY_CLASS_H

#include <stdbool.h>
#include <stdint.h>

enum memory_class {
    MEMORY_PARAMS,       /* fp32; on the host a second copy if evaluations read one */
    MEMORY_BF16_WEIGHTS, /* parameters in the precision of the activations */
    MEMORY_GRADIENT,
    MEMORY_MOMENTS,  /* inner optimizer */
    MEMORY_ANCHOR,   /* outer loop: parameters at the start of a round */
    MEMORY_RESIDUAL, /* outer loop: the residual; two copies on a device, which commits late */
    MEMORY_MESSAGES, /* outer loop: deltas and updates in transit */
    MEMORY_ACTIVATIONS,
    MEMORY_LOGITS,
    MEMORY_WORKSPACE, /* attention, tokens, losses, sums */
    MEMORY_PINNED,    /* host buffers for transfers to and from a GPU */
    MEMORY_CLASSES
};

/* Bytes of the outer loop in one memory. */
struct memory_outer {
    uint64_t anchor, residual, messages;
    bool optional; /* the host computes deltas if the device has no room */
};

#endif
