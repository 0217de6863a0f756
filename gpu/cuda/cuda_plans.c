#include "gpu/cuda/cuda_plans.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"

void *cuda_plan_new(size_t bytes, void (*free)(struct cuda_device *cuda, void *plan))
{
    struct cuda_plan *plan = mem_alloc(1, bytes);
    assert(bytes >= sizeof *plan);
    if (plan) plan->free = free;
    return plan;
}

const void *cuda_plan_of(struct cuda_device *cuda, const void *plan, void (*free)(struct cuda_device *cuda, void *plan))
{
    const struct cuda_plan *p = plan;
    if (p && p->free == free) return p;
    cuda_rt_fail(cuda->rt, STATUS_INVALID, "operation called with a plan of another kind");
    return NULL;
}

static void destroy(struct cuda_device *cuda, struct cuda_plan *plan)
{
    plan->free(cuda, plan);
    mem_free(plan);
}

enum status cuda_plan_refused(struct cuda_device *cuda, enum status status)
{
    if (status == STATUS_UNSUPPORTED)
        snprintf(cuda->base.note, sizeof cuda->base.note, "cuBLASLt has no matrix product for this shape: %.100s",
                 cuda_rt_gemm_refusal(cuda->rt));
    return status;
}

enum status cuda_plan_keep(struct cuda_device *cuda, void *plan, enum status status, void *out)
{
    struct cuda_plan *p = plan;
    assert(p->free && !p->next);
    if (status != STATUS_OK) {
        destroy(cuda, p);
        return status;
    }
    p->next = cuda->plans;
    cuda->plans = p;
    memcpy(out, &plan, sizeof plan); /* *out has the type of a plan of gpu/device.h */
    return STATUS_OK;
}

static void plan_free(struct device *dev, void *plan)
{
    for (struct cuda_plan **at = &cuda_of(dev)->plans; *at; at = &(*at)->next) {
        if (*at != plan) continue;
        *at = (*at)->next;
        destroy(cuda_of(dev), plan);
        return;
    }
}

enum status cuda_plans_open(struct cuda_device *cuda)
{
    cuda->ops.plan_free = plan_free;
    return STATUS_OK;
}

void cuda_plans_close(struct cuda_device *cuda)
{
    while (cuda->plans) plan_free(&cuda->base, cuda->plans);
}
