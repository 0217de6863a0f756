/* Internals of the CPU device: shared by cpu_device.c (open, memory, plans) and cpu_*.c (operations). */
#ifndef GPU_CPU_IMPL_H
#define GPU_CPU_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/pool.h"
#include "gpu/cpu/cpu.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device.h"

enum {
    NORM_BLOCKS = 32, /* backward of a norm sums dw and db over this many fixed blocks of rows, then over the blocks */
    PARTIAL_FLOATS = 256 * 1024, /* room for those sums */
    SUM_SEGMENTS = 256,          /* sum and sumsq cut their vector into this many segments, for any number of threads */
    HEAD_BYTES = 128 << 20,      /* logits in memory at one time */
};

enum cpu_plan_kind { CPU_PLAN_LIN, CPU_PLAN_ATTN, CPU_PLAN_HEAD, CPU_PLAN_DELTA, CPU_PLAN_MUON };

struct cpu_plan {
    struct cpu_plan *next;
    enum cpu_plan_kind kind;
    union {
        struct lin_shape lin;
        struct attn_shape attn;
        struct {
            struct head_shape shape;
            size_t rows, ld; /* of one chunk of logits */
        } head;
        struct {
            struct delta_format shape;
            struct piece_range *pieces;
            float *x; /* [longest], one piece */
        } delta;
        struct {
            struct muon_matrix *matrices; /* owned */
            size_t n;
            float *x, *y;              /* [largest rows * cols]; x owns all five */
            float *gram, *poly, *mult; /* [largest side * side] */
        } muon;
    } as;
};

struct cpu_device {
    struct device base;
    struct device_ops ops;
    const struct cpu_kernels *kernels;
    struct pool *pool;
    struct cpu_plan *plans;
    void **scratch; /* [threads], scratch_bytes each */
    size_t scratch_bytes;
    float *logits;
    size_t logits_floats;
    float *partials;
    double segments[SUM_SEGMENTS];
    struct err error; /* the first error; code OK: none */
};

static inline struct cpu_device *cpu_of(struct device *dev)
{
    return (struct cpu_device *)dev;
}

/* Records an error of an operation; the first one stays. */
void cpu_fail(struct cpu_device *cpu, enum status code, const char *what);
/* Returns `plan`. If it has another kind, returns NULL and records an error of the device. */
const struct cpu_plan *cpu_plan_of(struct cpu_device *cpu, const void *plan, enum cpu_plan_kind kind);

/* A plan in the device's list, to be filled. */
enum status cpu_plan_new(struct cpu_device *cpu, enum cpu_plan_kind kind, struct cpu_plan **out) MUST_CHECK;
void cpu_plan_free(struct device *dev, void *plan);

/* Each sets the operations of its file. */
void cpu_matrix_ops(struct device_ops *ops); /* cpu_ops.c */
void cpu_row_ops(struct device_ops *ops);
void cpu_vector_ops(struct device_ops *ops);
void cpu_muon_ops(struct device_ops *ops);
void cpu_delta_ops(struct device_ops *ops);

#endif
