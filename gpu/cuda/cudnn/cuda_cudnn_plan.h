/* A graph of operations (gpu/cuda/cudnn/cuda_attn_graph.h) compiled by cuDNN into a kernel, for a present device or for
 * a description of a device. Empty in builds without cuDNN's headers. */
#ifndef GPU_CUDA_CUDNN_PLAN_H
#define GPU_CUDA_CUDNN_PLAN_H

#ifdef ATOLL_CUDNN

#include "gpu/cuda/cudnn/cuda_cudnn_lib.h"
#include "gpu/cuda/cudnn/cuda_cudnn_rt.h"

/* The target of a compilation: one of the two members. */
struct cudnn_target {
    cudnnHandle_t handle;                /* a present device */
    cudnnBackendDescriptor_t properties; /* of an absent one (tests/cuda/graphs); such a plan cannot be executed */
};

/* Compiles the first engine of the heuristics' list. Skips an engine that does not compile, needs more than
 * `workspace_max` bytes, or, with `exact`, may sum in any order. Takes 0.5 to 1 s per engine. Errors: UNSUPPORTED, with
 * a one-line message: no engine; LIMIT: an engine exists but needs more workspace; NOMEM. cudnn_rt_free frees it. */
enum status cudnn_plan_create(const struct cudnn_lib *lib, const struct cudnn_target *target,
                              const struct attn_graph *graph, size_t workspace_max, bool exact,
                              struct cudnn_kernel **out, struct err *err) MUST_CHECK;

struct cudnn_plan_facts {
    size_t workspace; /* bytes */
    int engines;      /* number of engines in the heuristics' list */
    int chosen;       /* index of the compiled engine, from 0 */
};
struct cudnn_plan_facts cudnn_plan_facts(const struct cudnn_kernel *plan);

/* Executes the plan on the handle's stream, with memory[role] for the roles of the graph. Sets of pointers are cached,
 * so a repeated call creates nothing. UNSUPPORTED, with a one-line message: cuDNN refused. */
enum status cudnn_plan_execute(struct cudnn_kernel *plan, void *const memory[ATTN_ROLES], void *workspace,
                               struct err *err) MUST_CHECK;

#endif
#endif
