/* Host memory: every allocation of the project goes through here, so that tests can make the n-th one fail.
 *
 * mem_alloc returns zeroed memory aligned to 64 bytes (one cache line, one AVX-512 register), or NULL. An arena hands
 * out pieces of one allocation made at start; it is freed as a whole. */
#ifndef COMMON_MEM_H
#define COMMON_MEM_H

#include <stddef.h>

#include "common/base/status.h"

enum { MEM_ALIGN = 64 };

/* Zeroed, MEM_ALIGN-aligned; NULL on failure or when count * size overflows. size 0 gives a valid pointer. */
void *mem_alloc(size_t count, size_t size) MUST_CHECK;
/* Grow or shrink, keeping min(old, new) bytes; new bytes are zero. On failure the old block stays valid. */
void *mem_resize(void *old, size_t old_bytes, size_t new_bytes) MUST_CHECK;
char *mem_strdup(const char *text) MUST_CHECK;
/* NULL is allowed. */
void mem_free(void *block);

/* Test hook: the n-th allocation from now on (1 = the next) fails once; 0 switches the hook off. Returns what was left
 * of the n before: 0 when that one failed. */
long mem_fail_after(long n);
/* Bytes handed out and not yet freed. */
size_t mem_live_bytes(void);

struct arena {
    unsigned char *base;
    size_t size, used;
};

enum status arena_init(struct arena *arena, size_t bytes) MUST_CHECK;
void arena_finish(struct arena *arena);
/* A zeroed MEM_ALIGN-aligned piece, NULL when the arena is full: sizes are computed beforehand. */
void *arena_take(struct arena *arena, size_t count, size_t size) MUST_CHECK;
/* What arena_take would consume for count * size bytes. */
size_t arena_need(size_t count, size_t size);

#endif
