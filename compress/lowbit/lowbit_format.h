/* The dense low-bit formats, block by block: a head (scales) and codes of 1, 2 or 4 bits for up to 65536 values.
 *
 * - Scales of 16 bits ("e8m8") are the upper half of a positive fp32 pattern shifted left by one: 8 bits of exponent, 8
 *   of mantissa.
 * - A block whose scale would fall below 2^-110 is sent as zeros (head 0, codes 0), because devices treat denormals
 *   differently. Error feedback keeps its values. */
#ifndef COMPRESS_LOWBIT_FORMAT_H
#define COMPRESS_LOWBIT_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "compress/lowbit/lowbit.h"

enum { LOWBIT_LEVELS = 16, LOWBIT_HEAD_MAX = 3 };

struct lowbit_format {
    const char *name;
    uint8_t bits, head; /* bits of a code; bytes of a head */
    /* Encodes n finite values into a head and codes. */
    void (*encode)(const struct lowbit_kernels *kernels, const float *x, size_t n, uint8_t *head, uint8_t *codes);
    /* CORRUPT or NONFINITE for a head that encode never makes. */
    enum status (*check)(const uint8_t *head);
    /* The value of every code. */
    void (*levels)(const uint8_t *head, float levels[LOWBIT_LEVELS]);
};

extern const struct lowbit_format lowbit_int4, lowbit_2bit, lowbit_1bit;

#endif
