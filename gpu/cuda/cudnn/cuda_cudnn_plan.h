/* A graph of operations (gpu/cuda/cudnn/cuda_attn_graph.h) compiled by cuDNN into a kernel, for a device or for a
 * description of one. Empty in builds without cuDNN's headers. */
#ifndef GPU_CUDA_CUDNN_PLAN_H
#define GPU_CUDA_CUDNN_PLAN_H

#ifdef ATOLL_CUDNN

#include "gpu/cuda/cudnn/cuda_attn_graph.h"
#include "gpu/cuda/cudnn/cuda_cudnn_lib.h"

struct cudnn_plan;

/* What to compile for: one of the two. */
struct cudnn_target {
    cudnnHandle_t handle;                /* the device that it runs on */
    cudnnBackendDescriptor_t properties; /* cudnn_properties; nothing can be executed then */
};

/* A device that is not here, from JSON as cuDNN 9.8 and newer write it (tests/cuda/properties). UNSUPPORTED, with one
 * line. The caller unmakes it with lib->unmake. */
enum status cudnn_properties(const struct cudnn_lib *lib, const char *json, cudnnBackendDescriptor_t *out,
                             struct err *err) MUST_CHECK;

/* Compiles the first engine that the heuristics name, or the next where one cannot be compiled, wants more than
 * `workspace_max` bytes, or sums in any order where `exact` is asked for. Costs half a second to a second for each.
 * UNSUPPORTED with one line when there is none, LIMIT when there is one with more workspace; NOMEM. */
enum status cudnn_plan_create(const struct cudnn_lib *lib, const struct cudnn_target *target,
                              const struct attn_graph *graph, size_t workspace_max, bool exact, struct cudnn_plan **out,
                              struct err *err) MUST_CHECK;
/* NULL is allowed. */
void cudnn_plan_free(struct cudnn_plan *plan);

struct cudnn_plan_facts {
    size_t workspace; /* bytes */
    int engines;      /* that the heuristics named */
    int chosen;       /* the one of them that was taken, from 0 */
};
struct cudnn_plan_facts cudnn_plan_facts(const struct cudnn_plan *plan);

/* On the handle's stream. memory[role] for the roles of the graph. Pointers are remembered: a call with those of an
 * earlier one makes nothing. UNSUPPORTED, with one line: cuDNN refused. prepare does all but the launch. */
enum status cudnn_plan_prepare(struct cudnn_plan *plan, void *const memory[ATTN_ROLES], void *workspace,
                               struct err *err) MUST_CHECK;
enum status cudnn_plan_execute(struct cudnn_plan *plan, void *const memory[ATTN_ROLES], void *workspace,
                               struct err *err) MUST_CHECK;

#endif
#endif
