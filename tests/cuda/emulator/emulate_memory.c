/* Device memory of the emulator. A guard page follows every allocation; the bytes before it are checked when the host
 * waits. The memory is inaccessible while no operation of the device runs, so host code that uses it crashes. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/cuda/emulator/emulate_impl.h"

/* ALIGN: as the widest loads of a GPU require, and no more, to keep the gap before the guard page small. */
enum { ALIGN = 16, LARGE = 4 << 20 };

/* Map new memory, with huge pages if the system has them: replicas touch most of their memory once, and a fault per 4
 * KiB takes longer than the work on it. Returns NULL if out of memory. */
static void *take(size_t bytes, int rights)
{
    void *p = mmap(NULL, bytes, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (bytes >= LARGE) (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static void protect(struct cuda_rt *rt, int rights)
{
    for (struct emulated_block *b = rt->blocks; b; b = b->next) (void)mprotect(b->base, b->pages, rights);
}

void emulate_memory_open(struct cuda_rt *rt)
{
    if (rt->opened++ == 0) protect(rt, PROT_READ | PROT_WRITE);
}

void emulate_memory_close(struct cuda_rt *rt)
{
    if (--rt->opened == 0) protect(rt, PROT_NONE);
}

/* ATOLL_EMULATED_MEMORY: bytes of each device, or "first,others". */
static uint64_t capacity(const struct cuda_rt *rt)
{
    const char *set = getenv("ATOLL_EMULATED_MEMORY"), *others = set && rt->index ? strchr(set, ',') : NULL;
    return set && *set ? strtoull(others ? others + 1 : set, NULL, 10) : UINT64_C(1) << 40;
}

void cuda_rt_memory(struct cuda_rt *rt, uint64_t *free_p, uint64_t *total_p)
{
    *total_p = *free_p = capacity(rt);
    for (const struct emulated_block *b = rt->blocks; b; b = b->next) *free_p -= b->bytes;
}

void *emulate_memory_alloc(struct cuda_rt *rt, size_t bytes)
{
    uint64_t left, all;
    cuda_rt_memory(rt, &left, &all);
    if (bytes > left) return NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    struct emulated_block *b = mem_alloc(1, sizeof *b);
    if (!b) return NULL;
    b->pages = (inside + page - 1) / page * page + page; /* an allocation of 0 bytes has an address, too */
    b->base = take(b->pages + page, PROT_NONE);
    if (!b->base) {
        mem_free(b);
        return NULL;
    }
    b->number = ++rt->n_blocks;
    b->p = b->base + b->pages - inside;
    b->bytes = bytes;
    b->born = rt->queues[CUDA_MAIN].clock.at[CUDA_MAIN] += rt->recording;
    b->next = rt->blocks;
    rt->blocks = b;
    memset(rt->pages, 0, sizeof rt->pages);
    (void)mprotect(b->base, b->pages, PROT_READ | PROT_WRITE);
    memset(b->p + bytes, 0xff, inside - bytes);
    if (!rt->opened) (void)mprotect(b->base, b->pages, PROT_NONE);
    if (emulate_watch) emulate_watch->allocated(b->p, bytes);
    return b->p;
}

static size_t marks_bytes(const struct emulated_block *b)
{
    return (b->bytes / 4 + 1) * sizeof *b->marks;
}

static void unmap(struct cuda_rt *rt, struct emulated_block *b)
{
    if (emulate_watch) emulate_watch->released(b->p);
    memset(rt->pages, 0, sizeof rt->pages);
    if (b->marks) (void)munmap(b->marks, marks_bytes(b));
    (void)munmap(b->base, b->pages + (size_t)sysconf(_SC_PAGESIZE));
    mem_free(b);
}

void emulate_memory_release(struct cuda_rt *rt, void *p)
{
    for (struct emulated_block **at = &rt->blocks; *at && p; at = &(*at)->next) {
        struct emulated_block *b = *at;
        if (b->p != p) continue;
        *at = b->next;
        unmap(rt, b);
        return;
    }
    if (p) cuda_rt_fail(rt, STATUS_INVALID, "release of memory that the device does not own");
}

void emulate_memory_release_all(struct cuda_rt *rt)
{
    for (struct emulated_block *b = rt->blocks, *next; b; b = next) {
        next = b->next;
        unmap(rt, b);
    }
    rt->blocks = NULL;
}

void emulate_memory_check_ends(struct cuda_rt *rt)
{
    emulate_memory_open(rt);
    for (struct emulated_block *b = rt->blocks; b; b = b->next)
        for (unsigned char *end = b->p + b->bytes; end < b->base + b->pages; end++)
            if (*end != 0xff) cuda_rt_fail(rt, STATUS_CORRUPT, "a write past the end of an allocation");
    emulate_memory_close(rt);
}

static struct emulated_block *find(struct cuda_rt *rt, const unsigned char *p)
{
    struct emulated_block *b = rt->blocks;
    while (b && (p < b->base || p >= b->base + b->pages)) b = b->next;
    if (b && !b->marks) b->marks = take(marks_bytes(b), PROT_READ | PROT_WRITE);
    return b;
}

struct emulated_block *emulate_memory_find(struct cuda_rt *rt, const void *p)
{
    uintptr_t page = (uintptr_t)p / 4096; /* blocks start and end at page boundaries */
    struct emulated_page *known = &rt->pages[page % EMULATED_PAGES];
    if (known->page != page) *known = (struct emulated_page){.page = page, .block = find(rt, p)};
    return known->block;
}
