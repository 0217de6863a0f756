/* The part of cuDNN that attention needs. gpu/cuda/cudnn/cuda_cudnn_rt.c implements it with the library;
 * tests/cuda/emulator/emulate_cudnn.c executes the graphs on the CPU. Everything above is the same code. */
#ifndef GPU_CUDA_CUDNN_RT_H
#define GPU_CUDA_CUDNN_RT_H

#include "gpu/cuda/cudnn/cuda_attn_graph.h"
#include "gpu/cuda/rt/cuda_rt.h"

struct cudnn_rt;
struct cudnn_kernel;

/* Opens cuDNN for the device and the main stream of `rt`. name gets the version for messages ("cuDNN 9.19.0"). Errors:
 * UNSUPPORTED, with a one-line message: not in this build, not on this machine, or too old; NOMEM. */
enum status cudnn_rt_open(struct cuda_rt *rt, struct cudnn_rt **out, char *name, size_t name_size,
                          struct err *err) MUST_CHECK;
/* Call it after its kernels are freed. NULL is allowed. */
void cudnn_rt_close(struct cudnn_rt *dnn);

/* Compiles a graph, which takes up to a few seconds. *workspace: bytes that cudnn_rt_run needs, at most workspace_max.
 * exact: equal inputs give equal bits. Errors: UNSUPPORTED, with a one-line message: the device cannot run the graph;
 * LIMIT: more than workspace_max; NOMEM. */
enum status cudnn_rt_compile(struct cudnn_rt *dnn, const struct attn_graph *graph, size_t workspace_max, bool exact,
                             struct cudnn_kernel **out, size_t *workspace, struct err *err) MUST_CHECK;
void cudnn_rt_free(struct cudnn_kernel *kernel);
/* Runs a kernel in the order of the stream. Errors stick to the rt of cudnn_rt_open. memory[role] for the roles of the
 * graph, aligned to 16 bytes. */
void cudnn_rt_run(struct cudnn_rt *dnn, struct cudnn_kernel *kernel, void *const memory[ATTN_ROLES], void *workspace);

#endif
