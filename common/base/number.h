/* Numbers as text: one reading of them for options, settings, the environment, files. */
#ifndef COMMON_NUMBER_H
#define COMMON_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* *value = the number that `text` is: digits and nothing else, below 2^64. False, and *value stays: it is none. */
bool number_whole(const char *text, uint64_t *value);

enum { NUMBER_REAL = 32 };
/* The fewest digits that read back as the same double. Returns out. */
const char *number_real_text(double value, char out[NUMBER_REAL]);

/* n bytes as 2 n hexadecimal digits and a terminator. Returns out. */
const char *number_hex_text(const uint8_t *bytes, size_t n, char *out);
/* The first 2 n characters of `text`, which may end earlier, as n bytes; false: they are no such digits. */
bool number_hex(const char *text, uint8_t *bytes, size_t n);

#endif
