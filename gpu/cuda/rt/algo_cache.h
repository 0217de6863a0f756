/* Which algorithm computes a matrix product fastest on one kind of GPU: found out by timing when a device first meets
 * the product, kept in a text file, so that later runs start without timing and choose the same (another algorithm may
 * give other last bits).
 *
 * The file: $ATOLL_ALGO_CACHE, or atoll/gemm-GPU-VERSION.txt in $XDG_CACHE_HOME or ~/.cache. A line is GPU-VERSION, the
 * key of a product and eight hexadecimal words, so GPUs of several kinds may share a file that was named by hand: each
 * reads its own lines. Of lines with the same key the last one holds. Lines are only ever added, one write under a lock
 * each: threads, processes and machines that share the file lose nothing of each other. They do not measure at the same
 * time, either: two that share a GPU would measure each other. Nothing is lost with the file: whoever deletes it pays
 * the timing once more. */
#ifndef GPU_ALGO_CACHE_H
#define GPU_ALGO_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { ALGO_KEY_BYTES = 96, ALGO_WORDS = 8, ALGO_KIND_BYTES = 288 };

struct algo_choice {
    char key[ALGO_KEY_BYTES]; /* no blanks */
    uint64_t words[ALGO_WORDS];
};

struct algo_cache {
    char *path;                 /* NULL: there is no place for a file, choices live as long as this */
    char kind[ALGO_KIND_BYTES]; /* begins the lines that are read and written */
    struct algo_choice *all;
    size_t n, cap;
    int held; /* the file, locked, between enter and leave; else -1 */
};

/* For GPUs of this name and a library of this version. A file that is not there is an empty one; lines that make no
 * sense are left out. NOMEM. */
enum status algo_cache_open(struct algo_cache *cache, const char *gpu, unsigned version) MUST_CHECK;
void algo_cache_close(struct algo_cache *cache);
/* Copies what is kept for `key` to words; false: nothing. */
bool algo_cache_find(const struct algo_cache *cache, const char *key, uint64_t words[ALGO_WORDS]);
/* Whoever measures is alone: waits, for some seconds at most, until nobody else who shares the file measures, and finds
 * what they chose. Who has no file does not wait. */
void algo_cache_lock(struct algo_cache *cache);
void algo_cache_unlock(struct algo_cache *cache);
/* Keep a choice, and add it to the file. LIMIT: key too long; NOMEM, IO: the choice holds for this process anyway. */
enum status algo_cache_put(struct algo_cache *cache, const char *key, const uint64_t words[ALGO_WORDS],
                           struct err *err) MUST_CHECK;

#endif
