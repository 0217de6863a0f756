/* Lower bound on the output of an entropy coder that codes a payload symbol by symbol. */
#ifndef COMPRESS_PAYLOAD_ENTROPY_H
#define COMPRESS_PAYLOAD_ENTROPY_H

#include <stddef.h>
#include <stdint.h>

/* Zeroth-order entropy of codes[size], in bits for each of n values: sum of -p log2 p over the frequencies p of the
 * symbols. size / n decides the symbol: 1, 2, 4, 8 or 16 bits; elements of 4 bytes are coded by byte position. NaN: no
 * memory to count 16-bit symbols. */
double payload_entropy(const uint8_t *codes, size_t size, size_t n);

#endif
