#include "tests/cuda/ptx/ptx_text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ptx_text_open(struct ptx_text *t, const char *path)
{
    FILE *file = fopen(path, "r");
    size_t n = 0, cap = 0, got = 0;
    *t = (struct ptx_text){.path = path};
    if (!file) {
        perror(path);
        abort();
    }
    do {
        n += got;
        if (n + 1 >= cap) t->whole = ptx_memory(t, t->whole, cap = cap ? 2 * cap : 1 << 20);
    } while ((got = fread(t->whole + n, 1, cap - n - 1, file)));
    fclose(file);
    t->whole[n] = '\0';
    t->counted = t->at = t->whole;
}

void ptx_text_close(struct ptx_text *t)
{
    free(t->whole);
}

void ptx_cannot(struct ptx_text *t, const char *fmt, ...)
{
    va_list args;
    fprintf(stderr, "%s:%d: ", t->path, ptx_line(t));
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

void *ptx_memory(struct ptx_text *t, void *p, size_t bytes)
{
    p = realloc(p, bytes);
    if (!p) ptx_cannot(t, "out of memory");
    return p;
}

int ptx_line(struct ptx_text *t)
{
    for (; t->counted < t->at; t->counted++) t->lines += *t->counted == '\n';
    return t->lines + 1;
}

char ptx_next(struct ptx_text *t)
{
    for (;; t->at++) {
        if (t->at[0] == '/' && t->at[1] == '/') ptx_skip_to(t, '\n');
        if (!isspace((unsigned char)*t->at)) return *t->at;
    }
}

bool ptx_take(struct ptx_text *t, char c)
{
    if (ptx_next(t) != c) return false;
    t->at++;
    return true;
}

void ptx_want(struct ptx_text *t, char c)
{
    if (!ptx_take(t, c)) ptx_cannot(t, "expected '%c' before \"%.10s\"", c, t->at);
}

void ptx_skip_to(struct ptx_text *t, char c)
{
    while (*t->at && *t->at != c) t->at++;
}

struct ptx_word ptx_word(struct ptx_text *t)
{
    ptx_next(t);
    struct ptx_word word = {.at = t->at};
    while (isalnum((unsigned char)word.at[word.n]) || (word.at[word.n] && strchr("_$%.:", word.at[word.n]))) word.n++;
    if (word.n && word.at[word.n - 1] == ':') word.n--; /* end of a label */
    if (!word.n) ptx_cannot(t, "expected a word before \"%.10s\"", t->at);
    t->at += word.n;
    return word;
}

int64_t ptx_number(struct ptx_text *t)
{
    char *end;
    ptx_next(t);
    int64_t value = strtoll(t->at, &end, 0);
    if (end == t->at) ptx_cannot(t, "expected a number before \"%.10s\"", t->at);
    t->at = end;
    return value;
}

bool ptx_same(struct ptx_word a, struct ptx_word b)
{
    return a.n == b.n && !memcmp(a.at, b.at, a.n);
}

bool ptx_is(struct ptx_word a, const char *text)
{
    return ptx_same(a, (struct ptx_word){text, strlen(text)});
}
