/* Whose memory it is. */
#ifndef WORKER_MEMORY_CLASS_H
#define WORKER_MEMORY_CLASS_H

#include <stdbool.h>
#include <stdint.h>

enum memory_class {
    MEMORY_PARAMS, /* fp32, and a second copy that evaluations read where the host keeps its own */
    MEMORY_IMAGE,  /* of the parameters, in the activations' precision */
    MEMORY_GRADIENT,
    MEMORY_MOMENTS,  /* of the inner optimizer */
    MEMORY_ANCHOR,   /* of the outer path: what a round started from */
    MEMORY_RESIDUAL, /* of the outer path: what codecs lost, twice on a device: it commits late */
    MEMORY_MESSAGES, /* of the outer path: deltas and updates on their way */
    MEMORY_ACTIVATIONS,
    MEMORY_LOGITS,
    MEMORY_WORKSPACE, /* of attention, tokens, losses, sums */
    MEMORY_PINNED,    /* of the host, beside a GPU: what goes up and down */
    MEMORY_CLASSES
};

/* Bytes of the outer path in this memory. */
struct memory_outer {
    uint64_t anchor, residual, messages;
    bool optional; /* the host does its work if there is no room */
};

#endif
