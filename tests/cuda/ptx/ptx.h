/* Interpreter of the PTX of gpu/cuda/kernels/cuda_*.cu. The emulator's threads run it instead of the kernels compiled
 * as C.
 *
 * - It covers the code in #ifdef __CUDACC__ (tensor core instructions, copies, conversions, wide loads and stores) and
 *   the compiler's output for the rest.
 * - Semantics: PTX ISA 8.7, except that approximate instructions are exact here.
 * - It does not cover the translation by ptxas.
 * - ATOLL_EMULATED_PTX=FOLDER with the build's *.ptx (target cuda_ptx) enables it.
 * - An unknown instruction ends the process; add it to tests/cuda/ptx/ptx_body.h. */
#ifndef TESTS_CUDA_PTX_H
#define TESTS_CUDA_PTX_H

#include <stddef.h>
#include <stdint.h>

/* A register or a constant; bits above the width of the value are ignored. */
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

/* Slots that each thread sets itself. */
enum { PTX_TID, PTX_NTID, PTX_CTAID_X, PTX_CTAID_Y, PTX_NCTAID, PTX_OWN };

struct ptx_insn {
    uint16_t op;                   /* enum ptx_op */
    uint16_t slot[PTX_OPERANDS];   /* in source order, vectors element by element */
    int64_t offset[PTX_ADDRESSES]; /* offsets of the address operands, in the same order */
    uint16_t guard;                /* slot of the predicate */
    enum { PTX_ALWAYS, PTX_IF, PTX_UNLESS } when;
    uint32_t target; /* index of a branch's target instruction */
    int line;        /* line in the file */
};

struct ptx_kernel {
    struct ptx_kernel *next;
    char *name; /* name in the source without _kernel */
    size_t args_bytes;
    unsigned shared_bytes;
    struct ptx_insn *insns; /* [n_insns]; the last one is ret or a branch */
    size_t n_insns;
    union ptx_slot *slots; /* [n_slots]: initial values, with the constants */
    size_t n_slots;
};

/* Read the kernels of a file and prepend them to `others`. A syntax error ends the process with a message. */
struct ptx_kernel *ptx_read(const char *path, struct ptx_kernel *others);
/* Find a kernel by name; ends the process if it is missing. Returns NULL without ATOLL_EMULATED_PTX. */
const struct ptx_kernel *ptx_find(const char *name);

struct ptx_call {
    const struct ptx_kernel *kernel;
    const void *args;
};

/* Run one thread of a struct ptx_call, for cuda_emulate. */
void ptx_thread(const void *call);

#endif
