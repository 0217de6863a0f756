/* Fit lines of fields to the width of a terminal.
 *
 * A field begins with a letter and ends at two spaces; other runs of spaces align columns. A line that is too long
 * loses whole fields at its end instead of wrapping. */
#ifndef COMMON_COLUMNS_H
#define COMMON_COLUMNS_H

#include <stddef.h>

/* Width of the terminal at descriptor fd in columns; the environment variable COLUMNS overrides it if it is a number.
 * 0: not a terminal, or the width is unknown. */
unsigned columns_of(int fd);
/* Number of bytes of line[size] to print in `width` columns (0: no limit). The first field is always kept. It counts
 * bytes, so the caller puts fields that may hold multi-byte characters last. */
size_t columns_fit(const char *line, size_t size, unsigned width);

#endif
