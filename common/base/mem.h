/* Host memory: every allocation of the project uses these functions, so that tests can make the n-th one fail.
 *
 * - mem_alloc returns zeroed memory aligned to 64 bytes (one cache line, one AVX-512 register), or NULL.
 * - An arena hands out pieces of one allocation made at start; it is freed as a whole.
 * - The mem_ functions are thread-safe; an arena has one owner. */
#ifndef COMMON_MEM_H
#define COMMON_MEM_H

#include <stddef.h>

#include "common/base/status.h"

enum { MEM_ALIGN = 64 };

/* Zeroed, MEM_ALIGN-aligned; NULL on failure or when count * size overflows. size 0 gives a valid pointer. */
void *mem_alloc(size_t count, size_t size) MUST_CHECK;
/* mem_alloc in the open file fd, which grows by the block: the system writes its pages there when memory is short. NULL
 * with errno, for example when the disk is full. mem_free unmaps it; its bytes stay in the file until that is closed.
 */
void *mem_map(int fd, size_t count, size_t size) MUST_CHECK;
/* Not zeroed: pages of a large block take no memory before they are written. */
void *mem_alloc_untouched(size_t bytes) MUST_CHECK;
/* Grow or shrink, keeping min(old_bytes, new_bytes) bytes; new bytes are zero. NULL: the old block stays valid. */
void *mem_resize(void *old, size_t old_bytes, size_t new_bytes) MUST_CHECK;
char *mem_strdup(const char *text) MUST_CHECK;
/* NULL is allowed. */
void mem_free(void *block);

/* Test hook: the n-th allocation from now on (1 = the next) fails once; 0 disables the hook. Returns the remaining
 * count of the previous call: 0 when its allocation failed. */
long mem_fail_after(long n);
/* Bytes allocated and not yet freed. */
size_t mem_live_bytes(void);

struct arena {
    unsigned char *base;
    size_t size, used;
};

enum status arena_init(struct arena *arena, size_t bytes) MUST_CHECK;
void arena_finish(struct arena *arena);
/* A zeroed MEM_ALIGN-aligned piece; NULL when the arena is full: the caller computes its size with arena_need. */
void *arena_take(struct arena *arena, size_t count, size_t size) MUST_CHECK;
/* Bytes that arena_take uses for count * size bytes. */
size_t arena_need(size_t count, size_t size);

#endif
