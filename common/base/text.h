/* Clean text: UTF-8 without surrogates, control characters or overlong forms. It can be stored in JSON. A terminal
 * shows it as it is if it also has no hidden characters. Also the distance of two names. */
#ifndef COMMON_TEXT_H
#define COMMON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TEXT_SHOWN = 64, TEXT_DISTANCE_MAX = 48 };

/* Length of the clean character at the start of text[n], n > 0, and its code point in *code; 0: there is none. */
size_t text_character(const char *text, size_t n, uint32_t *code);
/* True when text[n] is clean; `lines` also allows tab, newline and carriage return. */
bool text_is_clean(const char *text, size_t n, bool lines);
/* True for a character that no reader sees, or that reorders the text around it: zero width, joiners, directions. */
bool text_is_hidden(uint32_t code);
/* True when text[n] can be a name, which people compare by eye: clean, and without hidden characters. */
bool text_is_name(const char *text, size_t n);
/* Make a line fit for a terminal: replace each byte outside a clean character by '?', including a cut character at the
 * end, and each byte of a hidden character. */
void text_make_clean(char *line);
/* The same for text[n], which may hold zero bytes; `lines` keeps tabs and newlines. */
void text_make_clean_n(char *text, size_t n, bool lines);
/* printf of at most 16 kB for people, without control and hidden characters: the arguments may come from strangers. */
void text_print(FILE *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Write text[n] to out for use in a message: clean, and if it is too long its beginning and "...". Returns out. */
const char *text_shown(const char *text, size_t n, char out[TEXT_SHOWN]);

/* printf behind the text in out[cap], as much of it as fits. */
void text_add(char *out, size_t cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Text that arrives in pieces, which may end inside a character. {0} at the start. */
struct text_stream {
    char part[4]; /* [n] an incomplete character */
    size_t n;
};
/* Writes the next piece to `out` for a terminal: tabs, newlines and visible characters as they are, U+FFFD in place of
 * others. Returns false if the write failed. */
bool text_stream_put(struct text_stream *s, const char *text, size_t n, FILE *out);
/* Ends the text: writes U+FFFD in place of each byte of an incomplete character. */
bool text_stream_end(struct text_stream *s, FILE *out);

/* Levenshtein distance, for "did you mean": insertions, deletions and replacements that turn a into b. Compares only
 * the first TEXT_DISTANCE_MAX bytes of each. */
int text_distance(const char *a, const char *b);

#endif
