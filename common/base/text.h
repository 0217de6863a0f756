/* Clean text: UTF-8 without surrogates, control characters or overlong forms. It can be printed on a terminal and
 * stored in JSON. Also the distance of two names. */
#ifndef COMMON_TEXT_H
#define COMMON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TEXT_SHOWN = 64, TEXT_DISTANCE_MAX = 48 };

/* Length of the clean character at the start of text[n], n > 0, and its code point in *code; 0: there is none. */
size_t text_character(const char *text, size_t n, uint32_t *code);
/* True when text[n] is clean; `lines` also allows tab, newline and carriage return. */
bool text_is_clean(const char *text, size_t n, bool lines);
/* Make a line clean: replace each byte outside a clean character by '?', including a cut character at the end. */
void text_make_clean(char *line);
/* Write text[n] to out for use in a message: clean, and if it is too long its beginning and "...". Returns out. */
const char *text_shown(const char *text, size_t n, char out[TEXT_SHOWN]);
/* Levenshtein distance, for "did you mean": insertions, deletions and replacements that turn a into b. Compares only
 * the first TEXT_DISTANCE_MAX bytes of each. */
int text_distance(const char *a, const char *b);

#endif
