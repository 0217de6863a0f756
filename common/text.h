/* Text that can be printed on a terminal and put into JSON. */
#ifndef COMMON_TEXT_H
#define COMMON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Whether n bytes are UTF-8 without surrogates, control characters or overlong forms; `lines` lets tab, newline and
 * return pass. */
bool text_is_clean(const char *text, size_t n, bool lines);
/* Make a line clean: each byte that belongs to no such character becomes '?', half a character at the end, too. */
void text_make_clean(char *line);

#endif
