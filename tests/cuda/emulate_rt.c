/* gpu/cuda_rt.h on the CPU: every allocation ends at a page that nobody may touch (the bytes up to it are checked by
 * cuda_rt_sync), and all of them are closed while no operation runs, so host code that takes device memory for its
 * own dies at once. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/mem.h"
#include "gpu/cuda_rt.h"
#include "tests/cuda/emulate.h"

struct block {
    struct block *next;
    struct cuda_rt *owner;
    unsigned char *base, *p;
    size_t bytes, pages; /* pages: bytes that can be opened, a guard page follows */
};

/* Of what is given out: what a GPU's widest loads want. The fewer bytes up to the guard page, the better. */
enum { ALIGN = 16 };

struct cuda_rt {
    int index;
    struct err error;
};

struct cuda_gemm {
    struct cuda_gemm_shape shape;
};

/* One thread at a time uses the emulation (cuda_emulate's lock is about shared memory); ranks are not emulated. */
static struct block *blocks;
static int opened;

static void protect(int rights)
{
    for (struct block *b = blocks; b; b = b->next) (void)mprotect(b->base, b->pages, rights);
}

void emulate_memory_open(void)
{
    if (opened++ == 0) protect(PROT_READ | PROT_WRITE);
}

void emulate_memory_close(void)
{
    if (--opened == 0) protect(PROT_NONE);
}

enum status cuda_rt_count(int *count, struct err *err)
{
    (void)err;
    *count = 1;
    return STATUS_OK;
}

enum status cuda_rt_open(int index, struct cuda_rt **out, char *name, size_t name_size, struct err *err)
{
    if (index != 0) return err_set(err, STATUS_INVALID, "device cuda:%d: the emulation has cuda:0 only", index);
    struct cuda_rt *rt = mem_alloc(1, sizeof *rt);
    if (!rt) return err_set(err, STATUS_NOMEM, "device cuda:%d: out of memory", index);
    snprintf(name, name_size, "emulated on the CPU");
    *out = rt;
    return STATUS_OK;
}

void cuda_rt_close(struct cuda_rt *rt)
{
    if (!rt) return;
    for (struct block *b = blocks, *next; b; b = next) { /* a caller that did not release dies with the device */
        next = b->next;
        if (b->owner == rt) cuda_rt_release(rt, b->p);
    }
    mem_free(rt);
}

void *cuda_rt_alloc(struct cuda_rt *rt, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    struct block *b = mem_alloc(1, sizeof *b);
    if (!b) return NULL;
    b->pages = (inside + page - 1) / page * page + page; /* a zero-sized one has an address, too */
    b->base = mmap(NULL, b->pages + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->base == MAP_FAILED) {
        mem_free(b);
        return NULL;
    }
    b->owner = rt;
    b->p = b->base + b->pages - inside;
    b->bytes = bytes;
    b->next = blocks;
    blocks = b;
    emulate_memory_open();
    (void)mprotect(b->base, b->pages, PROT_READ | PROT_WRITE);
    memset(b->p + bytes, 0xff, inside - bytes);
    emulate_memory_close();
    if (emulate_watch) emulate_watch->allocated(b->p, bytes);
    return b->p;
}

void cuda_rt_release(struct cuda_rt *rt, void *p)
{
    for (struct block **at = &blocks; *at && p; at = &(*at)->next) {
        struct block *b = *at;
        if (b->p != p) continue;
        *at = b->next;
        if (emulate_watch) emulate_watch->released(p);
        (void)munmap(b->base, b->pages + (size_t)sysconf(_SC_PAGESIZE));
        mem_free(b);
        return;
    }
    if (p) cuda_rt_fail(rt, STATUS_INVALID, "release of memory that is none of its own");
}

void cuda_rt_copy(struct cuda_rt *rt, void *dst, const void *src, size_t bytes, enum cuda_direction direction)
{
    (void)rt;
    (void)direction;
    emulate_memory_open();
    if (bytes) memcpy(dst, src, bytes);
    emulate_memory_close();
}

struct cuda_grid cuda_rt_grid(struct cuda_rt *rt, size_t x, size_t y)
{
    if (x && x <= 0x7fffffff && y && y <= 65535) return (struct cuda_grid){(unsigned)x, (unsigned)y, NULL};
    cuda_rt_fail(rt, STATUS_LIMIT, "not a grid that a GPU would take");
    return (struct cuda_grid){1, 1, NULL};
}

void cuda_rt_launched(struct cuda_rt *rt, const char *what)
{
    (void)rt;
    (void)what;
}

void cuda_rt_fail(struct cuda_rt *rt, enum status code, const char *what)
{
    if (rt->error.code == STATUS_OK) err_set(&rt->error, code, "device cuda:%d: %s", rt->index, what);
}

static void check_ends(struct cuda_rt *rt)
{
    emulate_memory_open();
    for (struct block *b = blocks; b; b = b->next)
        for (unsigned char *end = b->p + b->bytes; end < b->base + b->pages; end++)
            if (b->owner == rt && *end != 0xff) cuda_rt_fail(rt, STATUS_CORRUPT, "written behind the end of memory");
    emulate_memory_close();
}

enum status cuda_rt_sync(struct cuda_rt *rt, struct err *err)
{
    check_ends(rt);
    if (rt->error.code == STATUS_OK) return STATUS_OK;
    return err_set(err, rt->error.code, "%s", rt->error.msg);
}

/* --- matrix products: plain loops, in the place of cuBLASLt ------------------------------------------------------- */

enum status cuda_rt_gemm_create(struct cuda_rt *rt, const struct cuda_gemm_shape *shape, struct cuda_gemm **out)
{
    (void)rt;
    struct cuda_gemm *g = mem_alloc(1, sizeof *g);
    if (!g) return STATUS_NOMEM;
    g->shape = *shape;
    *out = g;
    return STATUS_OK;
}

void cuda_rt_gemm_free(struct cuda_gemm *g)
{
    mem_free(g);
}

void cuda_rt_gemm(struct cuda_rt *rt, const struct cuda_gemm *g, const float *a, const float *b, float *c, float beta)
{
    (void)rt;
    const struct cuda_gemm_shape *s = &g->shape;
    emulate_memory_open();
    for (size_t i = 0; i < s->m; i++)
        for (size_t j = 0; j < s->n; j++) {
            double sum = 0;
            for (size_t k = 0; k < s->k; k++)
                sum += (double)(s->a_trans ? a[k * s->lda + i] : a[i * s->lda + k]) *
                       (double)(s->b_trans ? b[j * s->ldb + k] : b[k * s->ldb + j]);
            float *out = &c[i * s->ldc + j];
            *out = (float)sum + (beta != 0 ? beta * *out : 0);
        }
    emulate_memory_close();
}
