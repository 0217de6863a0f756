#include "common/base/mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Header of MEM_ALIGN bytes before each block: mem_free needs the size. */
struct mem_header {
    size_t bytes;
    size_t mapped; /* bytes of its map (mem_map), or 0 */
};

static struct mem_header *header_of(void *block)
{
    assert((uintptr_t)block % MEM_ALIGN == 0);
    return (struct mem_header *)(void *)((unsigned char *)block - MEM_ALIGN);
}

enum { HUGE_FROM = 2 << 20 }; /* blocks of at least this size use transparent huge pages */

static atomic_long fail_countdown;
static atomic_size_t live_bytes;

long mem_fail_after(long n)
{
    return atomic_exchange(&fail_countdown, n);
}

size_t mem_live_bytes(void)
{
    return atomic_load(&live_bytes);
}

static int should_fail(void)
{
    long left = atomic_load(&fail_countdown);
    if (left <= 0) return 0;
    return atomic_fetch_sub(&fail_countdown, 1) == 1;
}

static size_t round_up(size_t bytes)
{
    return (bytes + MEM_ALIGN - 1) & ~(size_t)(MEM_ALIGN - 1);
}

static void *take(size_t bytes, bool zero)
{
    if (should_fail() || bytes > SIZE_MAX / 2) return NULL;
    size_t whole = round_up(bytes) + MEM_ALIGN;
    size_t align = whole >= HUGE_FROM ? (size_t)2 << 20 : MEM_ALIGN;
    unsigned char *raw = aligned_alloc(align, (whole + align - 1) / align * align);
    if (!raw) return NULL;
    if (align > MEM_ALIGN) madvise(raw, whole, MADV_HUGEPAGE);
    if (zero) memset(raw, 0, whole);
    *(struct mem_header *)raw = (struct mem_header){.bytes = bytes};
    atomic_fetch_add(&live_bytes, bytes);
    return raw + MEM_ALIGN;
}

void *mem_alloc(size_t count, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? NULL : take(bytes, true);
}

void *mem_alloc_untouched(size_t bytes)
{
    return take(bytes, false);
}

void *mem_resize(void *old, size_t old_bytes, size_t new_bytes)
{
    assert(old ? old_bytes <= header_of(old)->bytes : !old_bytes);
    void *block = mem_alloc(1, new_bytes);
    if (!block) return NULL;
    if (old) memcpy(block, old, old_bytes < new_bytes ? old_bytes : new_bytes);
    mem_free(old);
    return block;
}

char *mem_strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = mem_alloc(1, n);
    if (copy) memcpy(copy, text, n);
    return copy;
}

void mem_free(void *block)
{
    if (!block) return;
    struct mem_header *header = header_of(block);
    size_t live = atomic_fetch_sub(&live_bytes, header->bytes);
    assert(live >= header->bytes);
    if (header->mapped)
        munmap(header, header->mapped);
    else
        free(header);
}

void *mem_map(int fd, size_t count, size_t size)
{
    size_t bytes;
    struct stat st;
    if (should_fail()) {
        errno = ENOMEM;
        return NULL;
    }
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 4) {
        errno = ENOMEM;
        return NULL;
    }
    if (fstat(fd, &st)) return NULL;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (MEM_ALIGN + bytes + page - 1) / page * page;
    off_t at = (off_t)(((size_t)st.st_size + page - 1) / page * page);
    errno = posix_fallocate(fd, at, (off_t)whole); /* a full disk would otherwise end the process later, by a signal */
    if (errno) return NULL;
    unsigned char *raw = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    if (raw == MAP_FAILED) return NULL;
    *(struct mem_header *)(void *)raw = (struct mem_header){.bytes = bytes, .mapped = whole};
    atomic_fetch_add(&live_bytes, bytes);
    return raw + MEM_ALIGN;
}

enum status arena_init(struct arena *arena, size_t bytes)
{
    arena->base = mem_alloc(1, bytes);
    arena->size = bytes;
    arena->used = 0;
    return arena->base ? STATUS_OK : STATUS_NOMEM;
}

void arena_finish(struct arena *arena)
{
    mem_free(arena->base);
    memset(arena, 0, sizeof *arena);
}

size_t arena_need(size_t count, size_t size)
{
    assert(!size || count <= SIZE_MAX / 2 / size);
    return round_up(count * size);
}

void *arena_take(struct arena *arena, size_t count, size_t size)
{
    size_t bytes;
    assert(arena->used <= arena->size && arena->used % MEM_ALIGN == 0);
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > arena->size) return NULL;
    size_t need = round_up(bytes);
    if (need > arena->size - arena->used) return NULL;
    void *piece = arena->base + arena->used;
    arena->used += need;
    return piece;
}
