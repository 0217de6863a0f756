/* Executes the graphs of gpu/cuda/cudnn/cuda_attn_graph.h on the CPU, one element after the other: what a library that
 * fuses them has to compute. Shapes of every operation are checked, and every access to memory. */
#ifndef TESTS_CUDA_GRAPH_RUN_H
#define TESTS_CUDA_GRAPH_RUN_H

#include "common/base/status.h"
#include "gpu/cuda/cudnn/cuda_attn_graph.h"

struct graph_memory {
    void *p;         /* bf16 is uint16_t */
    size_t elements; /* from p on, that may be touched */
};

/* memory[role], for every role that the graph has. INVALID: an operation whose tensors do not fit together, or an
 * access outside; NOMEM. */
enum status graph_run(const struct attn_graph *graph, const struct graph_memory memory[ATTN_ROLES],
                      struct err *err) MUST_CHECK;

uint16_t graph_bf16(float x); /* nearest, ties to even */
float graph_float(uint16_t bits);

#endif
