/* Lines of fields on terminals of any width. A field begins with a letter and ends at two spaces; spaces inside are
 * for alignment. A line that is too long loses its last fields, whole: it says less instead of wrapping. */
#ifndef COMMON_COLUMNS_H
#define COMMON_COLUMNS_H

#include <stddef.h>

/* Columns of the terminal at this descriptor; the environment's COLUMNS says otherwise when it is a number. 0: there is
 * no terminal, or nobody knows. */
unsigned columns_of(int fd);
/* How much of line[size] to show in `width` columns (0: all of it). The first field stays whatever its length. Counts
 * bytes: what people may have written in more than one goes last. */
size_t columns_fit(const char *line, size_t size, unsigned width);

#endif
