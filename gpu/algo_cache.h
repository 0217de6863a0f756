/* Which algorithm computes a matrix product fastest on one kind of GPU: found out by timing when a device first meets
 * the product, kept in a text file, so that later runs start without timing and choose the same (another algorithm may
 * give other last bits).
 *
 * The file: $ATOLL_ALGO_CACHE, or atoll/gemm-GPU-VERSION.txt in $XDG_CACHE_HOME or ~/.cache; a line a product, its key
 * and eight hexadecimal words. Nothing is lost with it: whoever deletes it pays the timing once more. */
#ifndef GPU_ALGO_CACHE_H
#define GPU_ALGO_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum { ALGO_KEY_BYTES = 96, ALGO_WORDS = 8 };

struct algo_choice {
    char key[ALGO_KEY_BYTES]; /* no blanks */
    uint64_t words[ALGO_WORDS];
};

struct algo_cache {
    char *path; /* NULL: there is no place for a file, choices live as long as this */
    struct algo_choice *all;
    size_t n, cap;
};

/* For GPUs of this name and a library of this version. A file that is not there is an empty one; lines that make no
 * sense are left out. NOMEM. */
enum status algo_cache_open(struct algo_cache *cache, const char *gpu, unsigned version) MUST_CHECK;
void algo_cache_close(struct algo_cache *cache);
/* Copies what is kept for `key` to words; false: nothing. */
bool algo_cache_find(const struct algo_cache *cache, const char *key, uint64_t words[ALGO_WORDS]);
/* Keep a choice, and write the file with what others may have added since. LIMIT: key too long; NOMEM, or what the file
 * system says: the choice holds for this process anyway. Threads and processes may do it at the same time: the last
 * one's file stands, whole. */
enum status algo_cache_put(struct algo_cache *cache, const char *key, const uint64_t words[ALGO_WORDS],
                           struct err *err) MUST_CHECK;

#endif
