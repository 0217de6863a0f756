#include "tests/cuda/races/traffic.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/cuda/emulator/emulate.h"
#include "tests/cuda/races/races.h"

/* An allocation, and for each byte the launches of its last read and write. */
struct region {
    struct region *next;
    uintptr_t p;
    size_t bytes;
    uint32_t *read, *written;
};

static struct {
    struct region *regions, *recent;
    struct traffic kernels[TRAFFIC_KERNELS], *now; /* now: NULL outside of kernels */
    size_t n_kernels;
    uint32_t launch;
    uintptr_t stack, stack_bytes; /* stack of the running thread */
} counts;

static uint32_t *map(size_t n)
{
    void *p =
        mmap(NULL, n * sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

static void on_allocated(const void *p, size_t bytes)
{
    struct region *r = malloc(sizeof *r);
    if (!r) abort();
    *r = (struct region){
        .next = counts.regions, .p = (uintptr_t)p, .bytes = bytes, .read = map(bytes + 1), .written = map(bytes + 1)};
    counts.regions = r;
}

static void on_released(const void *p)
{
    for (struct region **at = &counts.regions; *at; at = &(*at)->next) {
        struct region *r = *at;
        if (r->p != (uintptr_t)p) continue;
        *at = r->next;
        counts.recent = NULL;
        (void)munmap(r->read, (r->bytes + 1) * sizeof *r->read);
        (void)munmap(r->written, (r->bytes + 1) * sizeof *r->written);
        free(r);
        return;
    }
}

static void on_launch(const char *name, const void *args, size_t args_bytes)
{
    size_t i = 0;
    (void)args;
    (void)args_bytes;
    if (!strncmp(name, "cuda_attn", 9)) return;
    while (i < counts.n_kernels && strcmp(counts.kernels[i].kernel, name) != 0) i++;
    if (i == TRAFFIC_KERNELS) {
        fprintf(stderr, "more than %d kernels\n", TRAFFIC_KERNELS);
        abort();
    }
    if (i == counts.n_kernels) counts.kernels[counts.n_kernels++] = (struct traffic){.kernel = name};
    counts.now = &counts.kernels[i];
    counts.now->launches++;
    counts.launch++;
}

static void on_block(void)
{
}

static void on_end(void)
{
    counts.now = NULL;
}

static void on_run(const char *stack, size_t bytes)
{
    counts.stack = (uintptr_t)stack;
    counts.stack_bytes = bytes;
}

static bool on_wait(const char *file, int line)
{
    (void)file;
    (void)line;
    return true;
}

static void on_met(unsigned first, unsigned last)
{
    (void)first;
    (void)last;
}

void races_begin(void)
{
    static const struct emulate_watch watch = {.allocated = on_allocated,
                                               .released = on_released,
                                               .launch = on_launch,
                                               .block = on_block,
                                               .end = on_end,
                                               .run = on_run,
                                               .wait = on_wait,
                                               .met = on_met};
    emulate_watch = &watch;
}

static struct region *region_of(uintptr_t p)
{
    struct region *r = counts.recent;
    if (r && p - r->p < r->bytes) return r;
    for (r = counts.regions; r && p - r->p >= r->bytes;) r = r->next;
    return r ? counts.recent = r : NULL;
}

void races_access(const void *p, size_t bytes, bool write, const void *code)
{
    (void)code;
    uintptr_t stack = (uintptr_t)p - counts.stack;
    struct region *r = counts.now && stack >= counts.stack_bytes ? region_of((uintptr_t)p) : NULL;
    if (!r) return; /* shared memory, a stack or arguments */
    uint32_t *seen = (write ? r->written : r->read) + ((uintptr_t)p - r->p);
    uint64_t *sum = write ? &counts.now->written : &counts.now->read;
    for (size_t i = 0; i < bytes; i++) {
        *sum += seen[i] != counts.launch;
        seen[i] = counts.launch;
    }
}

void traffic_reset(void)
{
    counts.n_kernels = 0;
}

size_t traffic_of(struct traffic *out)
{
    memcpy(out, counts.kernels, counts.n_kernels * sizeof *out);
    return counts.n_kernels;
}
