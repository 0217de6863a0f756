/* gpu/cuda/rt/cuda_rt.h on the CPU; see emulate.h and emulate_impl.h. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "gpu/cuda/cuda_impl.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/cuda/emulator/emulate_impl.h"

static size_t number(const char *name, size_t unset)
{
    const char *set = getenv(name);
    return set && *set ? (size_t)strtoull(set, NULL, 10) : unset;
}

static int gpus(void)
{
    return (int)number("ATOLL_EMULATED_GPUS", 1);
}

enum status cuda_rt_count(int *count, struct err *err)
{
    (void)err;
    *count = gpus();
    return STATUS_OK;
}

/* Parse "1:100", the 100th operation of device 1; 0 for other devices. */
static uint64_t at_operation(const char *name, int index)
{
    int device = -1;
    unsigned long long at = 0;
    const char *set = getenv(name);
    return set && sscanf(set, "%d:%llu", &device, &at) == 2 && device == index ? at : 0;
}

enum status cuda_rt_open(int index, struct cuda_rt **out, char *name, size_t name_size, struct err *err)
{
    if (index < 0 || index >= gpus())
        return err_set(err, STATUS_INVALID, "device cuda:%d: the emulation has %d", index, gpus());
    struct cuda_rt *rt = mem_alloc(1, sizeof *rt);
    if (!rt) return err_set(err, STATUS_NOMEM, "device cuda:%d: out of memory", index);
    rt->index = index;
    rt->fail_at = at_operation("ATOLL_EMULATED_FAIL", index);
    rt->hang_at = at_operation("ATOLL_EMULATED_HANG", index);
    rt->queue_max = number("ATOLL_EMULATED_QUEUE", 0);
    rt->pageable_blocks = number("ATOLL_EMULATED_PAGEABLE", 0);
    snprintf(name, name_size, "emulated on the CPU");
    snprintf(rt->name, sizeof rt->name, "device cuda:%d %s", index, name);
    emulate_queues_init(rt);
    *out = rt;
    return STATUS_OK;
}

void cuda_rt_close(struct cuda_rt *rt)
{
    if (!rt) return;
    emulate_block(rt);
    emulate_queues_finish(rt);
    emulate_memory_release_all(rt); /* later use of memory that was not released crashes */
    mem_free(rt);
}

int cuda_rt_capability(const struct cuda_rt *rt)
{
    (void)rt;
    return (int)number("ATOLL_EMULATED_CAPABILITY", 90);
}

const char *cuda_rt_name(const struct cuda_rt *rt)
{
    return rt->name;
}

void *cuda_rt_stream(struct cuda_rt *rt, enum cuda_queue queue)
{
    return &rt->queues[queue];
}

void *cuda_rt_alloc(struct cuda_rt *rt, size_t bytes)
{
    return emulate_memory_alloc(rt, bytes);
}

void cuda_rt_release(struct cuda_rt *rt, void *p)
{
    if (!p) return;
    emulate_drain(rt);
    emulate_block(rt); /* cudaFree waits for the GPU */
    emulate_memory_release(rt, p);
}

void emulate_name(struct device *dev, const void *p, const char *name)
{
    struct emulated_block *b = emulate_memory_find(cuda_of(dev)->rt, p);
    if (b) b->name = name;
}

void *cuda_rt_host_alloc(struct cuda_rt *rt, size_t bytes)
{
    struct emulated_pinned *pinned = mem_alloc(1, sizeof *pinned);
    void *p = pinned ? mem_alloc(1, bytes) : NULL;
    if (!p) {
        mem_free(pinned);
        return NULL;
    }
    *pinned = (struct emulated_pinned){.next = rt->pinned, .p = p, .bytes = bytes};
    rt->pinned = pinned;
    return p;
}

void cuda_rt_host_release(struct cuda_rt *rt, void *p)
{
    if (!p) return;
    emulate_drain(rt);
    emulate_block(rt);
    for (struct emulated_pinned **at = &rt->pinned; *at; at = &(*at)->next) {
        struct emulated_pinned *pinned = *at;
        if (pinned->p != p) continue;
        *at = pinned->next;
        mem_free(pinned);
        break;
    }
    mem_free(p);
}

static atomic_ulong uploaded;

unsigned long emulate_uploaded(void)
{
    return atomic_load(&uploaded);
}

static bool is_pinned(const struct cuda_rt *rt, const char *p)
{
    for (const struct emulated_pinned *pinned = rt->pinned; pinned; pinned = pinned->next)
        if (p >= pinned->p && p < pinned->p + pinned->bytes) return true;
    return false;
}

struct copy {
    void *dst;
    const void *src;
    size_t bytes;
};

static void run_copy(struct cuda_rt *rt, const void *args)
{
    const struct copy *c = args;
    if (rt->error.code != STATUS_OK) return; /* the host stopped waiting and may have freed its memory */
    emulate_touch(rt, c->src, c->bytes, false);
    emulate_touch(rt, c->dst, c->bytes, true);
    memcpy(c->dst, c->src, c->bytes);
}

void cuda_rt_copy_on(struct cuda_rt *rt, enum cuda_queue queue, void *dst, const void *src, size_t bytes,
                     enum cuda_direction direction)
{
    static const char *const names[] = {"upload", "download", "copy"};
    const struct copy copy = {dst, src, bytes};
    if (direction == CUDA_UPLOAD) atomic_fetch_add(&uploaded, bytes);
    if (bytes) emulate_submit(rt, queue, names[direction], run_copy, &copy, sizeof copy);
    if (rt->pageable_blocks && direction != CUDA_INSIDE && !is_pinned(rt, direction == CUDA_UPLOAD ? src : dst))
        emulate_block(rt);
}

struct cuda_grid cuda_rt_grid(struct cuda_rt *rt, size_t x, size_t y)
{
    void *stream = cuda_rt_stream(rt, CUDA_MAIN);
    if (x && x <= 0x7fffffff && y && y <= 65535) return (struct cuda_grid){(unsigned)x, (unsigned)y, stream};
    cuda_rt_fail(rt, STATUS_LIMIT, "a GPU would refuse this grid");
    return (struct cuda_grid){1, 1, stream};
}

void cuda_rt_launched(struct cuda_rt *rt, const char *what)
{
    (void)rt;
    (void)what;
}

void cuda_rt_fail(struct cuda_rt *rt, enum status code, const char *what)
{
    if (rt->error.code == STATUS_OK) err_set(&rt->error, code, "%s: %s", rt->name, what);
}

enum status cuda_rt_sync(struct cuda_rt *rt, struct err *err)
{
    emulate_drain(rt);
    emulate_memory_check_ends(rt);
    if (rt->error.code == STATUS_OK) return STATUS_OK;
    return err_set(err, rt->error.code, "%s", rt->error.msg);
}
