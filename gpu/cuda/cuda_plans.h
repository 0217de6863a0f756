/* Plans of the CUDA device: a list of structs that begin with struct cuda_plan. */
#ifndef GPU_CUDA_PLANS_H
#define GPU_CUDA_PLANS_H

#include "gpu/cuda/cuda_impl.h"

struct cuda_plan {
    struct cuda_plan *next;
    void (*free)(struct cuda_device *cuda, void *plan); /* frees what the plan holds; tells the kinds of plans apart */
};

/* A zeroed plan of `bytes` bytes that is in no list yet; NULL without memory. */
void *cuda_plan_new(size_t bytes, void (*free)(struct cuda_device *cuda, void *plan)) MUST_CHECK;
/* Keeps the plan in the device's list and sets *out, or frees it if filling it failed with `status`. Returns `status`.
 * A caller that returns UNSUPPORTED for want of a matrix product calls cuda_plan_refused first. */
enum status cuda_plan_keep(struct cuda_device *cuda, void *plan, enum status status, void *out) MUST_CHECK;
/* `plan`, or NULL with an error of the device if the plan has another kind. */
const void *cuda_plan_of(struct cuda_device *cuda, const void *plan,
                         void (*free)(struct cuda_device *cuda, void *plan));
/* Writes cuBLASLt's reason into the device's note if status is UNSUPPORTED. Returns `status`. */
enum status cuda_plan_refused(struct cuda_device *cuda, enum status status) MUST_CHECK;

#endif
