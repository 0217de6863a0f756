/* Cache of the fastest cuBLASLt algorithm for each matrix product on one kind of GPU. A device times the algorithms
 * when it first meets a product. The result is kept in a text file, so that later runs skip the timing and choose the
 * same algorithm (another algorithm may give other last bits).
 *
 * The file: $ATOLL_ALGO_CACHE, or atoll/gemm-GPU-VERSION.txt in $XDG_CACHE_HOME or ~/.cache.
 * - A line is GPU-VERSION, the key of a product and eight hexadecimal words. GPUs of several kinds may share a file:
 *   each reads only its own lines.
 * - The last line of a key wins.
 * - Lines are only appended, each in one write under a lock, so threads, processes and machines may share the file.
 * - Timing is exclusive: two processes that share a GPU would disturb each other's measurements.
 * - Deleting the file is safe; the next run times again. */
#ifndef GPU_ALGO_CACHE_H
#define GPU_ALGO_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { ALGO_KEY_BYTES = 96, ALGO_WORDS = 8, ALGO_KIND_BYTES = 288 };

struct algo_choice {
    char key[ALGO_KEY_BYTES]; /* contains no blanks */
    uint64_t words[ALGO_WORDS];
};

struct algo_cache {
    char *path;                 /* NULL: no file; choices live as long as the cache */
    char kind[ALGO_KIND_BYTES]; /* GPU-VERSION, the first word of this cache's lines */
    struct algo_choice *all;
    size_t n, cap;
    int held; /* descriptor of the locked file between lock and unlock; else -1 */
};

/* Opens the cache of the GPU with this name and the library of this version. A missing file counts as empty. Malformed
 * lines are skipped. Errors: NOMEM. */
enum status algo_cache_open(struct algo_cache *cache, const char *gpu, unsigned version) MUST_CHECK;
void algo_cache_close(struct algo_cache *cache);
/* Copies the words stored for `key`; false if the cache has no entry. */
bool algo_cache_find(const struct algo_cache *cache, const char *key, uint64_t words[ALGO_WORDS]);
/* Takes the exclusive right to time. Waits a few seconds at most for other processes that share the file, then reads
 * their choices. Does not wait without a file. */
void algo_cache_lock(struct algo_cache *cache);
void algo_cache_unlock(struct algo_cache *cache);
/* Stores a choice and appends it to the file. Errors: LIMIT if the key is malformed or too long; NOMEM; IO if the file
 * cannot be written. After IO the choice still holds for this process. */
enum status algo_cache_put(struct algo_cache *cache, const char *key, const uint64_t words[ALGO_WORDS],
                           struct err *err) MUST_CHECK;

#endif
