/* Instructions of gpu/cuda/kernels/cuda_mma.h on the CPU: each lane writes its operands to a slot. When all 32 lanes
 * have done so, each lane computes its part of the result. Two slots in turn: a lane that writes its next operands must
 * not overwrite those that another lane still reads. */
#include "gpu/cuda/kernels/cuda_mma.h"

#include <string.h>

#include "tests/cuda/emulator/emulate_impl.h"

enum { LANES = 32, THREADS_MAX = 1024, COPIES_MAX = 64, BANKS_BYTES = 128 };

struct operands {
    uint16_t row[8]; /* a row of a matrix, and its offset */
    unsigned at;
    float a[8], b[4]; /* fragments, in the order of their elements */
};

/* In the section that the emulator fills with NaN before every block. */
__shared__ _Alignas(1024) unsigned char block_memory[MMA_SHARED_MAX];

static struct {
    struct operands operands[2][THREADS_MAX];
    unsigned char turn[THREADS_MAX];
    struct emulated_copy copies[THREADS_MAX][COPIES_MAX];            /* ring buffer of n copies from `first` on */
    unsigned first[THREADS_MAX], n[THREADS_MAX], group[THREADS_MAX]; /* group: group of the next copy */
} lanes;

static struct operands *bring(unsigned thread)
{
    lanes.turn[thread] ^= 1;
    return &lanes.operands[lanes.turn[thread]][thread];
}

/* Wait for all lanes of the thread's warp and return their slots. */
static const struct operands *meet(unsigned thread, int line)
{
    emulate_meet(line);
    return &lanes.operands[lanes.turn[thread]][thread / LANES * LANES];
}

void emulate_copies_end(unsigned threads)
{
    for (unsigned i = 0; i < threads; i++) {
        if (lanes.n[i]) emulate_broken("the block ends with copies in flight", 0);
        lanes.group[i] = 0;
    }
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

unsigned char *cuda_emulated_shared(struct shared s, unsigned at, unsigned bytes, int line)
{
    if (at % bytes) emulate_broken("a misaligned access to shared memory", line);
    if (at > s.bytes || bytes > s.bytes - at) emulate_broken("an access past the end of shared memory", line);
    return block_memory + at;
}

void cuda_emulated_copy(unsigned char *to, const void *from, unsigned bytes, unsigned filled, int line)
{
    unsigned me = emulate_thread();
    if ((uintptr_t)from % bytes) emulate_broken("a misaligned copy from device memory", line);
    if (filled && filled != bytes) emulate_broken("a copy with a partial fill", line);
    if (lanes.n[me] == COPIES_MAX) emulate_broken("more copies in flight than the emulator supports", line);
    lanes.copies[me][(lanes.first[me] + lanes.n[me]++) % COPIES_MAX] =
        (struct emulated_copy){.to = to, .from = from, .bytes = bytes, .filled = filled, .group = lanes.group[me]};
}

void cuda_emulated_commit(void)
{
    lanes.group[emulate_thread()]++;
}

/* A wait covers only copies in committed groups. */
bool cuda_emulated_arrival(int but, struct emulated_copy *copy)
{
    unsigned me = emulate_thread();
    const struct emulated_copy *next = &lanes.copies[me][lanes.first[me]];
    if (!lanes.n[me] || next->group + (unsigned)but >= lanes.group[me]) return false;
    *copy = *next;
    lanes.first[me] = (lanes.first[me] + 1) % COPIES_MAX;
    lanes.n[me]--;
    return true;
}

/* --- matrices ----------------------------------------------------------------------------------------------------- */

/* A load without conflict needs the rows in different banks; a repeated row counts once. */
static void check_banks(const struct operands *of_matrix, int line)
{
    unsigned seen[BANKS_BYTES / 16];
    bool is_seen[BANKS_BYTES / 16] = {false};
    for (int i = 0; i < 8; i++) {
        unsigned at = of_matrix[i].at, bank = at % BANKS_BYTES / 16;
        if (is_seen[bank] && seen[bank] != at) emulate_broken("bank conflict between rows of a matrix", line);
        is_seen[bank] = true;
        seen[bank] = at;
    }
}

void cuda_emulated_matrices(const uint16_t *row, unsigned at, bool columns, uint32_t *out, int line)
{
    unsigned me = emulate_thread(), lane = me % LANES, first = lane / 4, pair = 2 * (lane % 4);
    struct operands *mine = bring(me);
    memcpy(mine->row, row, sizeof mine->row);
    mine->at = at;
    const struct operands *all = meet(me, line);
    if (lane % 8 == 0) check_banks(all + lane, line);
    for (unsigned i = 0; i < 4; i++) {
        const struct operands *matrix = all + 8 * i;
        uint32_t low = columns ? matrix[pair].row[first] : matrix[first].row[pair];
        uint32_t high = columns ? matrix[pair + 1].row[first] : matrix[first].row[pair + 1];
        out[i] = low | high << 16;
    }
}

/* sum[4] of lane 4 g + t: rows g, g + 8; columns 2t, 2t + 1. all: slots of the 32 lanes. */
static inline __attribute__((always_inline)) void multiply(float *sum, const struct operands *all, unsigned g,
                                                           unsigned t)
{
    float sums[4]; /* local, so that the compiler knows that `all` does not change */
    memcpy(sums, sum, sizeof sums);
#pragma GCC unroll 16
    for (unsigned k = 0; k < 16; k++) { /* outermost, so that the four sums are independent */
        unsigned lane = k % 8 / 2, upper = k / 8;
#pragma GCC unroll 4
        for (unsigned i = 0; i < 4; i++)
            sums[i] = fmaf(all[4 * g + lane].a[4 * upper + 2 * (i / 2) + k % 2],
                           all[4 * (2 * t + i % 2) + lane].b[2 * upper + k % 2], sums[i]);
    }
    memcpy(sum, sums, sizeof sums);
}

#if defined(__x86_64__) /* makes fmaf an instruction instead of a call */
__attribute__((target("fma"))) static void multiply_fast(float *sum, const struct operands *all, unsigned g, unsigned t)
{
    multiply(sum, all, g, t);
}
#endif

void cuda_emulated_mma(float *sum, const uint32_t *a, uint32_t b0, uint32_t b1, int line)
{
    unsigned me = emulate_thread(), g = me % LANES / 4, t = me % 4;
    struct operands *mine = bring(me);
    for (unsigned i = 0; i < 8; i++) mine->a[i] = bf16_value(a[i / 2] >> 16 * (i % 2) & 0xffff);
    for (unsigned i = 0; i < 4; i++) mine->b[i] = bf16_value((i < 2 ? b0 : b1) >> 16 * (i % 2) & 0xffff);
    const struct operands *all = meet(me, line);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("fma")) {
        multiply_fast(sum, all, g, t);
        return;
    }
#endif
    multiply(sum, all, g, t);
}
