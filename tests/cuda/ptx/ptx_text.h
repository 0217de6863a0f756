/* Tokenizer of a PTX file. A syntax error ends the process with file, line and a message. */
#ifndef TESTS_CUDA_PTX_TEXT_H
#define TESTS_CUDA_PTX_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptx_text {
    const char *path;
    char *whole;
    const char *at;
    const char *counted; /* position up to which lines are counted */
    int lines;
};

struct ptx_word {
    const char *at; /* start in the text */
    size_t n;
};

void ptx_text_open(struct ptx_text *t, const char *path);
void ptx_text_close(struct ptx_text *t);
_Noreturn void ptx_cannot(struct ptx_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* realloc; ends the process if out of memory. */
void *ptx_memory(struct ptx_text *t, void *p, size_t bytes);
/* Line number, from 1, of the current position. */
int ptx_line(struct ptx_text *t);

/* Next character after blanks and comments; '\0' at the end. */
char ptx_next(struct ptx_text *t);
/* Consume the next character if it is c. */
bool ptx_take(struct ptx_text *t, char c);
void ptx_want(struct ptx_text *t, char c);
/* Skip to the next c. */
void ptx_skip_to(struct ptx_text *t, char c);
/* Read a word of letters, digits, _ $ % . and inner : */
struct ptx_word ptx_word(struct ptx_text *t);
int64_t ptx_number(struct ptx_text *t);

bool ptx_same(struct ptx_word a, struct ptx_word b);
bool ptx_is(struct ptx_word a, const char *text);

#endif
