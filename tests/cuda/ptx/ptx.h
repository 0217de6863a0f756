/* The PTX that nvcc makes of gpu/cuda/kernels/cuda_*.cu, carried out by the threads of the emulation in place of the
 * same kernels compiled as C: what stands behind #ifdef __CUDACC__ (instructions of tensor cores, copies, conversions,
 * wide loads and stores) and what the compiler makes of the rest. As PTX ISA 8.7 describes it; that approximate
 * instructions are exact here is the one liberty. Not seen: what ptxas makes of it.
 *
 * ATOLL_EMULATED_PTX=folder of the build's *.ptx (target cuda_ptx) turns it on. An instruction that is not known ends
 * the process; tests/cuda/ptx/ptx_body.h is where it goes. */
#ifndef TESTS_CUDA_PTX_H
#define TESTS_CUDA_PTX_H

#include <stddef.h>
#include <stdint.h>

/* A register or a constant; what is above a value's own width is not looked at. */
union ptx_slot {
    uint64_t u64;
    uint32_t u32;
    uint16_t u16;
    uint8_t u8;
    int64_t s64;
    int32_t s32;
    int16_t s16;
    int8_t s8;
    double f64;
    float f32;
};

enum { PTX_OPERANDS = 14, PTX_ADDRESSES = 2, PTX_SLOTS_MAX = 8192 };

/* Slots that a thread fills itself. */
enum { PTX_TID, PTX_NTID, PTX_CTAID_X, PTX_CTAID_Y, PTX_NCTAID, PTX_OWN };

struct ptx_insn {
    uint16_t op;                   /* enum ptx_op */
    uint16_t slot[PTX_OPERANDS];   /* in the order of the text, elements of vectors one by one */
    int64_t offset[PTX_ADDRESSES]; /* of the addresses among them, in that order */
    uint16_t guard;                /* slot of the predicate */
    enum { PTX_ALWAYS, PTX_IF, PTX_UNLESS } when;
    uint32_t target; /* of a branch: instruction */
    int line;        /* in the file */
};

struct ptx_kernel {
    struct ptx_kernel *next;
    char *name; /* as in the source, without _kernel */
    size_t args_bytes;
    unsigned shared_bytes;
    struct ptx_insn *insns; /* [n_insns]; the last one is ret or a branch */
    size_t n_insns;
    union ptx_slot *slots; /* [n_slots]: constants are there already */
    size_t n_slots;
};

/* The kernels of a file, before those of `others`. What cannot be read ends the process with a message. */
struct ptx_kernel *ptx_read(const char *path, struct ptx_kernel *others);
/* The kernel of that name, which must be there; NULL where PTX is not asked for. */
const struct ptx_kernel *ptx_find(const char *name);

struct ptx_call {
    const struct ptx_kernel *kernel;
    const void *args;
};

/* One thread of a struct ptx_call, for cuda_emulate. */
void ptx_thread(const void *call);

#endif
