/* Text that can be printed on a terminal and put into JSON: UTF-8 without surrogates, control characters or overlong
 * forms. */
#ifndef COMMON_TEXT_H
#define COMMON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TEXT_SHOWN = 64 };

/* Length of the clean character at `text`, which has n > 0 bytes, and in *code which one it is; 0: there is none. */
size_t text_character(const char *text, size_t n, uint32_t *code);
/* Whether n bytes are clean; `lines` lets tab, newline and return pass. */
bool text_is_clean(const char *text, size_t n, bool lines);
/* Make a line clean: each byte that belongs to no such character becomes '?', half a character at the end, too. */
void text_make_clean(char *line);
/* What a line about `text`, n bytes long, shows of it: clean, and where it is long its beginning and "...". Returns
 * out. */
const char *text_shown(const char *text, size_t n, char out[TEXT_SHOWN]);

#endif
