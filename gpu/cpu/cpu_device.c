#include "gpu/cpu/cpu_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/os/host_memory.h"
#include "gpu/cpu/gemm.h"

void cpu_fail(struct cpu_device *cpu, enum status code, const char *what)
{
    assert(code != STATUS_OK);
    if (cpu->error.code == STATUS_OK) err_set(&cpu->error, code, "device %s: %s", cpu->base.name, what);
}

/* Makes the scratch of every thread at least this large. */
static enum status reserve_scratch(struct cpu_device *cpu, size_t bytes)
{
    if (bytes <= cpu->scratch_bytes) return STATUS_OK;
    for (int t = 0; t < cpu->base.threads; t++) {
        void *block = mem_alloc(1, bytes);
        if (!block) return STATUS_NOMEM; /* earlier threads keep the larger block, which is harmless */
        mem_free(cpu->scratch[t]);
        cpu->scratch[t] = block;
    }
    cpu->scratch_bytes = bytes;
    return STATUS_OK;
}

const struct cpu_plan *cpu_plan_of(struct cpu_device *cpu, const void *plan, enum cpu_plan_kind kind)
{
    const struct cpu_plan *p = plan;
    if (p && p->kind == kind) return p;
    cpu_fail(cpu, STATUS_INVALID, "plan of another kind");
    return NULL;
}

static void plan_destroy(struct cpu_plan *plan)
{
    assert(plan->kind <= CPU_PLAN_MUON);
    if (plan->kind == CPU_PLAN_DELTA) {
        mem_free(plan->as.delta.pieces);
        mem_free(plan->as.delta.x);
    }
    if (plan->kind == CPU_PLAN_MUON) mem_free(plan->as.muon.matrices);
    if (plan->kind == CPU_PLAN_MUON) mem_free(plan->as.muon.x);
    mem_free(plan);
}

static void cpu_close(struct device *dev)
{
    struct cpu_device *cpu = cpu_of(dev);
    pool_destroy(cpu->pool);
    for (struct cpu_plan *plan = cpu->plans, *next; plan; plan = next) {
        next = plan->next;
        plan_destroy(plan);
    }
    for (int t = 0; cpu->scratch && t < dev->threads; t++) mem_free(cpu->scratch[t]);
    mem_free(cpu->scratch);
    mem_free(cpu->logits);
    mem_free(cpu->partials);
    mem_free(cpu);
}

static void cpu_memory_of(struct device *dev, uint64_t *free_p, uint64_t *total_p)
{
    (void)dev;
    host_memory(free_p, total_p);
}

static void *cpu_alloc(struct device *dev, size_t bytes)
{
    (void)dev;
    return mem_alloc(1, bytes);
}

static void cpu_release(struct device *dev, void *p)
{
    (void)dev;
    mem_free(p);
}

static void cpu_copy(struct device *dev, void *dst, const void *src, size_t bytes)
{
    pool_copy(cpu_of(dev)->pool, dst, src, bytes);
}

static void cpu_fill(struct device *dev, float *p, size_t n, float value)
{
    (void)dev;
    for (size_t i = 0; i < n; i++) p[i] = value;
}

/* Operations run when they are submitted, so there is nothing to wait for. */
static enum status cpu_sync(struct device *dev, struct err *err)
{
    const struct cpu_device *cpu = cpu_of(dev);
    if (cpu->error.code == STATUS_OK) return STATUS_OK;
    return err_set(err, cpu->error.code, "%s", cpu->error.msg);
}

enum status cpu_plan_new(struct cpu_device *cpu, enum cpu_plan_kind kind, struct cpu_plan **out)
{
    assert(kind <= CPU_PLAN_MUON);
    struct cpu_plan *plan = mem_alloc(1, sizeof *plan);
    if (!plan) return STATUS_NOMEM;
    plan->kind = kind;
    plan->next = cpu->plans;
    cpu->plans = plan;
    *out = plan;
    return STATUS_OK;
}

void cpu_plan_free(struct device *dev, void *plan)
{
    for (struct cpu_plan **at = &cpu_of(dev)->plans; *at; at = &(*at)->next) {
        if (*at != plan) continue;
        *at = (*at)->next;
        plan_destroy(plan);
        return;
    }
}

static enum status cpu_lin_plan(struct device *dev, const struct lin_shape *shape, struct lin_plan **out)
{
    struct cpu_plan *plan;
    if (!shape->n || !shape->k || !shape->m) return STATUS_INVALID;
    TRY(cpu_plan_new(cpu_of(dev), CPU_PLAN_LIN, &plan));
    plan->as.lin = *shape;
    *out = (struct lin_plan *)plan;
    return STATUS_OK;
}

/* Bytes for one thread. */
static size_t attn_scratch_bytes(const struct cpu_device *cpu, const struct attn_shape *shape)
{
    struct attn_dims dims = {.seq = shape->seq, .head_dim = shape->head_dim};
    size_t floats = cpu->kernels->attn_scratch_floats(&dims, !shape->inference);
    size_t forward = cpu->kernels->attn_scratch_floats(&dims, false);
    return (floats > forward ? floats : forward) * sizeof(float);
}

static size_t cpu_attn_bytes(struct device *dev, const struct attn_shape *shape)
{
    const struct cpu_device *cpu = cpu_of(dev);
    size_t bytes = attn_scratch_bytes(cpu, shape);
    return bytes > cpu->scratch_bytes ? (bytes - cpu->scratch_bytes) * (size_t)dev->threads : 0;
}

static enum status cpu_attn_plan(struct device *dev, const struct attn_shape *shape, struct attn_plan **out)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct cpu_plan *plan;
    struct attn_shape own = *shape;
    if (!attn_shape_valid(&own)) return STATUS_INVALID;
    TRY(reserve_scratch(cpu, attn_scratch_bytes(cpu, shape)));
    TRY(cpu_plan_new(cpu, CPU_PLAN_ATTN, &plan));
    plan->as.attn = own;
    *out = (struct attn_plan *)plan;
    return STATUS_OK;
}

/* Rows of one chunk of logits; *ld is the length of a row. */
static size_t head_rows(const struct head_shape *shape, size_t *ld)
{
    *ld = (shape->v + 15) / 16 * 16;
    size_t rows = HEAD_BYTES / sizeof(float) / *ld;
    assert(shape->n > 0 && *ld >= shape->v);
    if (rows < 1) rows = 1;
    return rows > shape->n ? shape->n : rows;
}

static size_t cpu_head_bytes(struct device *dev, const struct head_shape *shape)
{
    size_t ld, rows = head_rows(shape, &ld), current = cpu_of(dev)->logits_floats;
    return rows * ld > current ? (rows * ld - current) * sizeof(float) : 0;
}

static enum status cpu_head_plan(struct device *dev, const struct head_shape *shape, struct head_plan **out)
{
    struct cpu_device *cpu = cpu_of(dev);
    struct cpu_plan *plan;
    if (!shape->n || !shape->c || !shape->v) return STATUS_INVALID;
    size_t ld, rows = head_rows(shape, &ld);
    if (rows * ld > cpu->logits_floats) {
        float *logits = mem_alloc(rows * ld, sizeof *logits);
        if (!logits) return STATUS_NOMEM;
        mem_free(cpu->logits);
        cpu->logits = logits;
        cpu->logits_floats = rows * ld;
    }
    TRY(cpu_plan_new(cpu, CPU_PLAN_HEAD, &plan));
    plan->as.head.shape = *shape;
    plan->as.head.rows = rows;
    plan->as.head.ld = ld;
    *out = (struct head_plan *)plan;
    return STATUS_OK;
}

static enum status cpu_delta_plan(struct device *dev, const struct delta_format *shape,
                                  const struct piece_range *pieces, struct delta_plan **out)
{
    struct cpu_plan *plan;
    size_t longest = shape->longest > PIECE_PLAIN_MAX ? shape->longest : PIECE_PLAIN_MAX;
    if (!shape->n_pieces) return STATUS_INVALID;
    TRY(cpu_plan_new(cpu_of(dev), CPU_PLAN_DELTA, &plan));
    plan->as.delta.shape = *shape;
    plan->as.delta.pieces = mem_alloc(shape->n_pieces, sizeof *pieces);
    plan->as.delta.x = mem_alloc(longest, sizeof(float));
    if (!plan->as.delta.pieces || !plan->as.delta.x) {
        cpu_plan_free(dev, plan);
        return STATUS_NOMEM;
    }
    memcpy(plan->as.delta.pieces, pieces, shape->n_pieces * sizeof *pieces);
    *out = (struct delta_plan *)plan;
    return STATUS_OK;
}

static const struct device_ops own_ops = {
    .close = cpu_close,
    .memory = cpu_memory_of,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .upload = cpu_copy,
    .download = cpu_copy,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .sync = cpu_sync,
    .lin_plan = cpu_lin_plan,
    .attn_plan = cpu_attn_plan,
    .head_plan = cpu_head_plan,
    .delta_plan = cpu_delta_plan,
    .attn_bytes = cpu_attn_bytes,
    .head_bytes = cpu_head_bytes,
    .plan_free = cpu_plan_free,
};

static enum status cpu_fill_in(struct cpu_device *cpu, int threads)
{
    cpu->ops = own_ops;
    cpu_matrix_ops(&cpu->ops);
    cpu_row_ops(&cpu->ops);
    cpu_vector_ops(&cpu->ops);
    cpu_muon_ops(&cpu->ops);
    cpu_delta_ops(&cpu->ops);
    cpu->base.ops = &cpu->ops;
    cpu->base.act_bytes = sizeof(float);
    cpu->base.threads = threads;
    cpu->base.host_memory = true;
    snprintf(cpu->base.name, sizeof cpu->base.name, "cpu %s x%d", cpu->kernels->name, threads);
    cpu->scratch = mem_alloc((size_t)threads, sizeof *cpu->scratch);
    cpu->partials = mem_alloc(PARTIAL_FLOATS, sizeof *cpu->partials);
    if (!cpu->scratch || !cpu->partials) return STATUS_NOMEM;
    TRY(reserve_scratch(cpu, gemm_scratch_bytes()));
    return pool_create(threads, POOL_FLOATS_FLUSHED, &cpu->pool);
}

enum status cpu_open(int threads, struct device **out, struct err *err)
{
    const char *level = getenv("ATOLL_CPU");
    const struct cpu_kernels *kernels = cpu_kernels_select(level);
    if (!kernels && (!strcmp(level, "avx2") || !strcmp(level, "avx512")))
        return err_set(err, STATUS_UNSUPPORTED, "ATOLL_CPU=%s: this CPU does not support it: unset it", level);
    if (!kernels) return err_set(err, STATUS_INVALID, "ATOLL_CPU=%.40s: want portable, avx2 or avx512", level);
    if (threads < 1 || threads > POOL_THREADS_MAX) {
        return err_set(err, STATUS_INVALID, "device cpu: %d threads, want 1 to %d", threads, POOL_THREADS_MAX);
    }
    struct cpu_device *cpu = mem_alloc(1, sizeof *cpu);
    if (!cpu) return err_set(err, STATUS_NOMEM, "device cpu: out of memory");
    cpu->kernels = kernels;
    enum status status = cpu_fill_in(cpu, threads);
    if (status != STATUS_OK) {
        cpu_close(&cpu->base);
        return err_set(err, status, "device cpu: no memory, or cannot start %d threads", threads);
    }
    *out = &cpu->base;
    return STATUS_OK;
}
