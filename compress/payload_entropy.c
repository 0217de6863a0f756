#include "compress/payload_entropy.h"

#include <math.h>

#include "common/base/mem.h"

enum { SYMBOLS_MAX = 1 << 16 };

static double entropy(const uint64_t *count, size_t symbols)
{
    double total = 0, bits = 0;
    for (size_t i = 0; i < symbols; i++) total += (double)count[i];
    for (size_t i = 0; i < symbols; i++)
        if (count[i]) bits -= (double)count[i] / total * log2((double)count[i] / total);
    return bits;
}

/* Entropy of symbols of `bits` <= 8 bits at any bit offset of a byte. */
static double entropy_of_bits(const uint8_t *codes, size_t size, unsigned bits)
{
    uint64_t bytes[256] = {0}, count[256] = {0};
    for (size_t i = 0; i < size; i++) bytes[codes[i]]++;
    for (unsigned byte = 0; byte < 256; byte++)
        for (unsigned at = 0; at < 8; at += bits) count[byte >> at & ((1u << bits) - 1)] += bytes[byte];
    return entropy(count, (size_t)1 << bits);
}

static double entropy_of_16(const uint8_t *codes, size_t n)
{
    uint64_t *count = mem_alloc(SYMBOLS_MAX, sizeof *count);
    if (!count) return NAN;
    for (size_t i = 0; i < n; i++) count[codes[2 * i] | codes[2 * i + 1] << 8]++;
    double bits = entropy(count, SYMBOLS_MAX);
    mem_free(count);
    return bits;
}

static double entropy_of_planes(const uint8_t *codes, size_t n, size_t width)
{
    double bits = 0;
    for (size_t plane = 0; plane < width; plane++) {
        uint64_t count[256] = {0};
        for (size_t i = 0; i < n; i++) count[codes[i * width + plane]]++;
        bits += entropy(count, 256);
    }
    return bits;
}

double payload_entropy(const uint8_t *codes, size_t size, size_t n)
{
    if (size >= 4 * n) return entropy_of_planes(codes, n, 4);
    if (size >= 2 * n) return entropy_of_16(codes, n);
    unsigned bits = 8;
    while (bits > 1 && 8 * size < n * bits) bits /= 2;
    return entropy_of_bits(codes, size, bits);
}
