/* What attention needs of cuDNN. gpu/cuda/cudnn/cuda_cudnn_rt.c has it from the library,
 * tests/cuda/emulator/emulate_cudnn.c executes the graphs on the CPU; everything above is the same code. */
#ifndef GPU_CUDA_CUDNN_RT_H
#define GPU_CUDA_CUDNN_RT_H

#include "gpu/cuda/cudnn/cuda_attn_graph.h"
#include "gpu/cuda/rt/cuda_rt.h"

struct cudnn_rt;
struct cudnn_kernel;

/* For the device and stream of `rt`. name ("cuDNN 9.19.0") is for people. UNSUPPORTED with one line: not in this build,
 * not on this machine, too old; NOMEM. */
enum status cudnn_rt_open(struct cuda_rt *rt, struct cudnn_rt **out, char *name, size_t name_size,
                          struct err *err) MUST_CHECK;
/* After its kernels. NULL is allowed. */
void cudnn_rt_close(struct cudnn_rt *dnn);

/* Up to a few seconds. *workspace: bytes that cudnn_rt_run wants, at most workspace_max. exact: same inputs, same bits.
 * UNSUPPORTED with one line: not this graph on this device; LIMIT: not within workspace_max; NOMEM. */
enum status cudnn_rt_compile(struct cudnn_rt *dnn, const struct attn_graph *graph, size_t workspace_max, bool exact,
                             struct cudnn_kernel **out, size_t *workspace, struct err *err) MUST_CHECK;
void cudnn_rt_free(struct cudnn_kernel *kernel);
/* In the order of the stream; errors stick to the rt of cudnn_rt_open. memory[role] for the roles of the graph, aligned
 * to 16 bytes. */
void cudnn_rt_run(struct cudnn_rt *dnn, struct cudnn_kernel *kernel, void *const memory[ATTN_ROLES], void *workspace);

#endif
