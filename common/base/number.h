/* Numbers as text: one parser for options, configuration, environment and files. */
#ifndef COMMON_NUMBER_H
#define COMMON_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parse `text`, digits only, below 2^64, into *value. False for other text; *value is unchanged. */
bool number_whole(const char *text, uint64_t *value);

enum { NUMBER_REAL = 32 };
/* Write `value` with the fewest digits that parse to the same double. Returns out. */
const char *number_real_text(double value, char out[NUMBER_REAL]);

/* Write bytes[n] as 2 n hexadecimal digits and a terminator. Returns out. */
const char *number_hex_text(const uint8_t *bytes, size_t n, char *out);
/* Parse the first 2 n characters of `text` to bytes[n]. False when one is not a hexadecimal digit or `text` is shorter.
 */
bool number_hex(const char *text, uint8_t *bytes, size_t n);

#endif
