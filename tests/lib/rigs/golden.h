/* Bytes that must never change: tests/golden/NAME.hex, 32 bytes per line. */
#ifndef TESTS_LIB_GOLDEN_H
#define TESTS_LIB_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool golden_exists(const char *name);
/* Return the size of the file; the test fails if it is missing, malformed or larger than cap. */
size_t golden_read(const char *name, uint8_t *out, size_t cap);
/* Fail the test at the first difference. With ATOLL_GOLDEN=write in the environment, write the file instead: for a
 * new format version, never to make a test pass. */
void golden_check(const char *name, const uint8_t *bytes, size_t size);

#endif
