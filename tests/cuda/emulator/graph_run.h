/* Interpreter of the graphs of gpu/cuda/cudnn/cuda_attn_graph.h on the CPU, element by element: the reference for a
 * library that fuses them. It checks the shapes of every operation and every memory access. */
#ifndef TESTS_CUDA_GRAPH_RUN_H
#define TESTS_CUDA_GRAPH_RUN_H

#include "common/base/status.h"
#include "gpu/cuda/cudnn/cuda_attn_graph.h"

struct graph_memory {
    void *p;         /* uint16_t for bf16, or float */
    size_t elements; /* accessible elements from p on */
};

/* Run a graph on memory[role], for every role in the graph. Errors: INVALID for tensors that do not fit together or an
 * access out of bounds; NOMEM. */
enum status graph_run(const struct attn_graph *graph, const struct graph_memory memory[ATTN_ROLES],
                      struct err *err) MUST_CHECK;

uint16_t graph_bf16(float x); /* rounds to nearest, ties to even */
float graph_float(uint16_t bits);

#endif
