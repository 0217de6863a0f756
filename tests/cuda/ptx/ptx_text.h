/* A file of PTX as words and signs. What cannot be read ends the process with file, line and a message. */
#ifndef TESTS_CUDA_PTX_TEXT_H
#define TESTS_CUDA_PTX_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptx_text {
    const char *path;
    char *whole;
    const char *at;
    const char *counted; /* up to there it has so many ends of lines */
    int lines;
};

struct ptx_word {
    const char *at; /* in the text */
    size_t n;
};

void ptx_text_open(struct ptx_text *t, const char *path);
void ptx_text_close(struct ptx_text *t);
_Noreturn void ptx_cannot(struct ptx_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* realloc that cannot fail. */
void *ptx_memory(struct ptx_text *t, void *p, size_t bytes);
/* The line, from 1, of what comes next. */
int ptx_line(struct ptx_text *t);

/* The next character that is no blank and no comment; '\0' at the end. */
char ptx_next(struct ptx_text *t);
/* Is it this one? Then it is taken. */
bool ptx_take(struct ptx_text *t, char c);
void ptx_want(struct ptx_text *t, char c);
/* Up to the character. */
void ptx_skip_to(struct ptx_text *t, char c);
/* Letters, digits, _ $ % . and : between them. */
struct ptx_word ptx_word(struct ptx_text *t);
int64_t ptx_number(struct ptx_text *t);

bool ptx_same(struct ptx_word a, struct ptx_word b);
bool ptx_is(struct ptx_word a, const char *text);

#endif
