/* The seed inputs of the fuzzers, made by the build: see make_corpus.c. */
#ifndef TESTS_FUZZ_MAKE_CORPUS_H
#define TESTS_FUZZ_MAKE_CORPUS_H

#include <stddef.h>
#include <stdint.h>

/* Writes FOLDER/fuzzer/name: the bytes of head, then those of data. Ends the program on errors. */
void corpus_put(const char *fuzzer, const char *name, const void *head, size_t head_size, const void *data,
                size_t size);
_Noreturn void corpus_die(const char *what);

void corpus_make_wire(const char *golden);
void corpus_make_journal(void);

#endif
