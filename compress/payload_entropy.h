/* How small an entropy stage could make a payload that is looked at one symbol at a time. */
#ifndef COMPRESS_PAYLOAD_ENTROPY_H
#define COMPRESS_PAYLOAD_ENTROPY_H

#include <stddef.h>
#include <stdint.h>

/* Order-0 entropy of codes[size], in bits for each of n values: sum of -p log2 p over the frequencies of its symbols.
 * Symbols are what size / n makes them: 1, 2, 4, 8 or 16 bits; of 4 bytes, each byte by its place. NaN: no
 * memory for counts of 16 bits. */
double payload_entropy(const uint8_t *codes, size_t size, size_t n);

#endif
