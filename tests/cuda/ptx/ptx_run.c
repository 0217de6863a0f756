#include <fenv.h>
#include <glob.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/kernels/cuda_mma.h"
#include "tests/cuda/emulator/emulate_impl.h"
#include "tests/cuda/ptx/ptx.h"
#include "tests/cuda/ptx/ptx_impl.h"

static struct ptx_kernel *kernels;
static const char *folder;

static void read_all(void)
{
    char pattern[4096];
    glob_t files;
    folder = getenv("ATOLL_EMULATED_PTX");
    if (!folder || !*folder) return;
    snprintf(pattern, sizeof pattern, "%s/*.ptx", folder);
    if (glob(pattern, 0, NULL, &files)) {
        fprintf(stderr, "ATOLL_EMULATED_PTX: no file %s\n", pattern);
        abort();
    }
    for (size_t i = 0; i < files.gl_pathc; i++) kernels = ptx_read(files.gl_pathv[i], kernels);
    globfree(&files);
}

const struct ptx_kernel *ptx_find(const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_all);
    if (!kernels) return NULL;
    for (const struct ptx_kernel *k = kernels; k; k = k->next)
        if (!strcmp(k->name, name)) return k;
    fprintf(stderr, "%s: no file contains %s_kernel\n", folder, name);
    abort();
}

/* --- instructions ------------------------------------------------------------------------------------------------- */

typedef uint8_t u8_t;
typedef uint16_t u16_t;
typedef uint32_t u32_t;
typedef uint64_t u64_t;
typedef int8_t s8_t;
typedef int16_t s16_t;
typedef int32_t s32_t;
typedef int64_t s64_t;
typedef float f32_t;
typedef double f64_t;

static float flushed(float x)
{
    return fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}

static float fma_down(float a, float b, float c)
{
    volatile float x = a, y = b, z = c, sum; /* volatile: computed while the rounding mode is changed */
    int before = fegetround();
    fesetround(FE_DOWNWARD);
    sum = fmaf(x, y, z);
    fesetround(before);
    return sum;
}

static u32_t insert_bits(u32_t from, u32_t into, u32_t at, u32_t n)
{
    u64_t mask = (((u64_t)1 << (n & 0xff)) - 1) << (at & 0xff);
    return (u32_t)((into & ~mask) | ((u64_t)from << (at & 0xff) & mask));
}

static u64_t address(const struct ptx_insn *in, const union ptx_slot *slots, unsigned operand, unsigned which)
{
    return slots[in->slot[operand]].u64 + (u64_t)in->offset[which];
}

/* Returns the address of `bytes` bytes that an instruction reads or writes; ends the process if it is invalid. */
static unsigned char *param_at(const struct ptx_kernel *k, const struct ptx_insn *in, const void *args, u64_t at,
                               unsigned bytes)
{
    if (at + bytes > k->args_bytes || at % bytes) emulate_broken("an access outside of the parameters", in->line);
    return (unsigned char *)(uintptr_t)args + at;
}

static unsigned char *global_at(const struct ptx_kernel *k, const struct ptx_insn *in, const void *args, u64_t at,
                                unsigned bytes)
{
    (void)k, (void)args;
    if (at % bytes) emulate_broken("a misaligned access to device memory", in->line);
    return (unsigned char *)(uintptr_t)at; /* guard pages check the bounds */
}

static unsigned char *shared_at(const struct ptx_kernel *k, const struct ptx_insn *in, const void *args, u64_t at,
                                unsigned bytes)
{
    (void)args;
    return cuda_emulated_shared((struct shared){.bytes = k->shared_bytes}, (u32_t)at, bytes, in->line);
}

static void copy_in(const struct ptx_kernel *k, const struct ptx_insn *in, const union ptx_slot *slots, unsigned bytes)
{
    unsigned char *to = shared_at(k, in, NULL, address(in, slots, 0, 0), bytes);
    const void *from = (const void *)(uintptr_t)address(in, slots, 1, 1);
    if (slots[in->slot[2]].u32 != bytes) emulate_broken("a copy with a partial fill", in->line);
    memset(to, 0xff, bytes); /* garbage until the thread waits */
    cuda_emulated_copy(to, from, bytes, slots[in->slot[3]].u32, in->line);
}

static void matrices(const struct ptx_kernel *k, const struct ptx_insn *in, union ptx_slot *slots, bool columns)
{
    uint16_t row[8];
    uint32_t out[4], at = (u32_t)address(in, slots, 4, 0);
    memcpy(row, shared_at(k, in, NULL, at, sizeof row), sizeof row);
    cuda_emulated_matrices(row, at, columns, out, in->line);
    for (unsigned i = 0; i < 4; i++) slots[in->slot[i]].u32 = out[i];
}

static void multiply_add(const struct ptx_insn *in, union ptx_slot *slots)
{
    float sum[4];
    uint32_t a[4];
    for (unsigned i = 0; i < 4; i++) sum[i] = slots[in->slot[10 + i]].f32;
    for (unsigned i = 0; i < 4; i++) a[i] = slots[in->slot[4 + i]].u32;
    cuda_emulated_mma(sum, a, slots[in->slot[8]].u32, slots[in->slot[9]].u32, in->line);
    for (unsigned i = 0; i < 4; i++) slots[in->slot[i]].f32 = sum[i];
}

#define D(i) slots[in->slot[i]]
#define WHOLE_WARP(mask, what)                                                                                         \
    {                                                                                                                  \
        if (D(mask).u32 != FULL_WARP) emulate_broken("a mask of only some lanes of the warp", in->line);               \
        what;                                                                                                          \
    }
#define LOADS(space, type, n)                                                                                          \
    {                                                                                                                  \
        unsigned char *p = space##_at(kernel, in, args, address(in, slots, n, 0), (n) * sizeof(type##_t));             \
        type##_t x[n];                                                                                                 \
        memcpy(x, p, sizeof x);                                                                                        \
        for (unsigned i = 0; i < (n); i++) D(i).u64 = (u64_t)x[i];                                                     \
    }
#define STORES(space, type, n)                                                                                         \
    {                                                                                                                  \
        unsigned char *p = space##_at(kernel, in, args, address(in, slots, 0, 0), (n) * sizeof(type##_t));             \
        for (unsigned i = 0; i < (n); i++) memcpy(p + i * sizeof(type##_t), &D(i + 1).type, sizeof(type##_t));         \
    }

void ptx_thread(const void *what)
{
    const struct ptx_call *call = what;
    const struct ptx_kernel *kernel = call->kernel;
    const void *args = call->args;
    union ptx_slot slots[PTX_SLOTS_MAX];
    memcpy(slots, kernel->slots, kernel->n_slots * sizeof *slots);
    slots[PTX_TID].u32 = threadIdx.x;
    slots[PTX_NTID].u32 = blockDim.x;
    slots[PTX_CTAID_X].u32 = blockIdx.x;
    slots[PTX_CTAID_Y].u32 = blockIdx.y;
    slots[PTX_NCTAID].u32 = gridDim.x;
    for (size_t next = 0;;) {
        const struct ptx_insn *in = &kernel->insns[next++];
        if (in->when != PTX_ALWAYS && !slots[in->guard].u32 == (in->when == PTX_IF)) continue;
        switch ((enum ptx_op)in->op) {
#define X(name, operands, ...)                                                                                         \
    case PTX_OP_##name:                                                                                                \
        __VA_ARGS__;                                                                                                   \
        break;
#include "tests/cuda/ptx/ptx_body.h"
#undef X
        }
    }
}
