/* gpu/cuda_rt.h on the CPU, see emulate.h and emulate_impl.h. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "gpu/cuda_act.h"
#include "gpu/cuda_impl.h"
#include "tests/cuda/emulate.h"
#include "tests/cuda/emulate_impl.h"

struct cuda_gemm {
    struct cuda_gemm_shape shape;
};

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

/* "1:100": device 1 at its 100th operation. */
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
    emulate_memory_release_all(rt); /* a caller that did not release dies with the device */
    mem_free(rt);
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
    emulate_block(rt); /* memory is not freed while a GPU is at work */
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
    if (rt->error.code != STATUS_OK) return; /* the host gave up, and its memory may be gone */
    emulate_touch(rt, c->src, c->bytes, false);
    emulate_touch(rt, c->dst, c->bytes, true);
    memcpy(c->dst, c->src, c->bytes);
}

void cuda_rt_copy(struct cuda_rt *rt, void *dst, const void *src, size_t bytes, enum cuda_direction direction)
{
    cuda_rt_copy_on(rt, CUDA_MAIN, dst, src, bytes, direction);
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
    return cuda_rt_grid_on(rt, CUDA_MAIN, x, y);
}

struct cuda_grid cuda_rt_grid_on(struct cuda_rt *rt, enum cuda_queue queue, size_t x, size_t y)
{
    void *stream = cuda_rt_stream(rt, queue);
    if (x && x <= 0x7fffffff && y && y <= 65535) return (struct cuda_grid){(unsigned)x, (unsigned)y, stream};
    cuda_rt_fail(rt, STATUS_LIMIT, "not a grid that a GPU would take");
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

/* --- matrix products: plain loops, in the place of cuBLASLt ------------------------------------------------------- */

static bool rows_aligned(const struct cuda_gemm_shape *s)
{
    size_t in = s->bf16 ? sizeof(uint16_t) : sizeof(float), out = s->bf16_out ? sizeof(uint16_t) : sizeof(float);
    return (s->lda * in | s->ldb * in | s->ldc * out) % 16 == 0;
}

enum status cuda_rt_gemm_create(struct cuda_rt *rt, const struct cuda_gemm_shape *shape, struct cuda_gemm **out)
{
    (void)rt;
    if ((shape->slope || shape->sums) && !rows_aligned(shape)) return STATUS_UNSUPPORTED;
    struct cuda_gemm *g = mem_alloc(1, sizeof *g);
    if (!g) return STATUS_NOMEM;
    g->shape = *shape;
    *out = g;
    return STATUS_OK;
}

/* What the true runtime times: the operation both ways, on memory of its own and not a byte more. */
static void rehearse(struct cuda_rt *rt, const struct cuda_gemm_shape *s, const struct cuda_gemm *apart,
                     const struct cuda_gemm *fused, const struct cuda_gemm_user *user)
{
    size_t in = s->bf16 ? sizeof(uint16_t) : sizeof(float), out = s->bf16_out ? sizeof(uint16_t) : sizeof(float);
    size_t bytes[] = {(s->a_trans ? s->k : s->m) * s->lda * in, (s->b_trans ? s->n : s->k) * s->ldb * in,
                      s->m * s->ldc * out, s->slope ? s->m * s->ldc * out : s->n * sizeof(float)};
    void *p[4];
    bool ok = true;
    for (int i = 0; i < 4; i++) {
        p[i] = cuda_rt_alloc(rt, bytes[i]);
        ok = ok && p[i];
    }
    struct cuda_gemm_call call = {.a = p[0], .b = p[1], .c = s->bf16_out ? NULL : p[2], .out = p[2],
                                  .aux = s->slope ? p[3] : NULL, .sums = s->sums ? p[3] : NULL};
    if (ok) user->run(user->ctx, apart, &call);
    if (ok) user->run(user->ctx, fused, &call);
    for (int i = 0; i < 4; i++) cuda_rt_release(rt, p[i]);
}

/* There is no time here that a GPU would take: what is not asked for stays apart. */
enum status cuda_rt_gemm_fuse(struct cuda_rt *rt, const struct cuda_gemm_shape *shape, enum cuda_epilogue wish,
                              const struct cuda_gemm *apart, const struct cuda_gemm_user *user, struct cuda_gemm **out)
{
    if (wish != CUDA_EPILOGUE_FUSED) return STATUS_OK;
    enum status status = cuda_rt_gemm_create(rt, shape, out);
    if (status == STATUS_OK) rehearse(rt, shape, apart, *out, user);
    return status == STATUS_UNSUPPORTED ? STATUS_OK : status;
}

bool cuda_rt_gemm_takes(const struct cuda_gemm *fused, const struct cuda_gemm_call *call)
{
    if (!fused) return false;
    uintptr_t all = (uintptr_t)call->a | (uintptr_t)call->b | (uintptr_t)call->c | (uintptr_t)call->out;
    all |= fused->shape.slope ? (uintptr_t)call->aux : (uintptr_t)call->sums;
    return all % 16 == 0;
}

void cuda_rt_gemm_free(struct cuda_gemm *g)
{
    mem_free(g);
}

struct product {
    struct cuda_gemm_shape shape;
    struct cuda_gemm_call call;
};

/* Rows of a stored matrix. */
static void touch(struct cuda_rt *rt, const void *p, size_t rows, size_t columns, size_t ld, bool bf16, bool write)
{
    size_t bytes = bf16 ? sizeof(uint16_t) : sizeof(float);
    for (size_t i = 0; i < rows; i++) emulate_touch(rt, (const char *)p + i * ld * bytes, columns * bytes, write);
}

static double element(const void *p, size_t i, bool bf16)
{
    return bf16 ? (double)bf16_value(((const uint16_t *)p)[i]) : (double)((const float *)p)[i];
}

static const void *step(const void *p, size_t elements, bool bf16)
{
    return (const char *)p + elements * (bf16 ? sizeof(uint16_t) : sizeof(float));
}

/* Of the tanh GELU, as the library has it. */
static double slope(double z)
{
    const double root = 0.7978845608028654, cube = 0.044715;
    double t = tanh(root * (z + cube * z * z * z));
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * root * (1 + 3 * cube * z * z);
}

/* Of B's columns; what was there is overwritten. */
static void column_sums(struct cuda_rt *rt, const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call)
{
    touch(rt, call->sums, 1, s->n, s->n, false, true);
    for (size_t j = 0; j < s->n; j++) {
        double sum = 0;
        for (size_t k = 0; k < s->k; k++)
            sum += element(call->b, s->b_trans ? j * s->ldb + k : k * s->ldb + j, s->bf16);
        call->sums[j] = (float)sum;
    }
}

static void run_one(struct cuda_rt *rt, const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call)
{
    touch(rt, call->a, s->a_trans ? s->k : s->m, s->a_trans ? s->m : s->k, s->lda, s->bf16, false);
    touch(rt, call->b, s->b_trans ? s->n : s->k, s->b_trans ? s->k : s->n, s->ldb, s->bf16, false);
    if (call->c) touch(rt, call->c, s->m, s->n, s->ldc, s->bf16_out, false);
    if (s->bias) touch(rt, call->bias, 1, s->n, s->n, s->bf16_out, false);
    if (s->slope) touch(rt, call->aux, s->m, s->n, s->ldc, s->bf16_out, false);
    if (s->sums) column_sums(rt, s, call);
    touch(rt, call->out, s->m, s->n, s->ldc, s->bf16_out, true);
    for (size_t i = 0; i < s->m; i++)
        for (size_t j = 0; j < s->n; j++) {
            double sum = 0;
            for (size_t k = 0; k < s->k; k++)
                sum += element(call->a, s->a_trans ? k * s->lda + i : i * s->lda + k, s->bf16) *
                       element(call->b, s->b_trans ? j * s->ldb + k : k * s->ldb + j, s->bf16);
            size_t at = i * s->ldc + j;
            if (call->c) sum += element(call->c, at, s->bf16_out);
            if (s->bias) sum += element(call->bias, j, s->bf16_out);
            if (s->slope) sum *= slope(element(call->aux, at, s->bf16_out));
            if (s->bf16_out) ((uint16_t *)call->out)[at] = bf16_of((float)sum);
            else ((float *)call->out)[at] = (float)sum;
        }
}

static void run_gemm(struct cuda_rt *rt, const void *args)
{
    const struct product *product = args;
    const struct cuda_gemm_shape *s = &product->shape;
    for (size_t i = 0; i < (s->several ? s->several : 1); i++) {
        struct cuda_gemm_call call = product->call;
        call.a = step(call.a, i * s->step_a, s->bf16);
        call.b = step(call.b, i * s->step_b, s->bf16);
        if (call.c) call.c = step(call.c, i * s->step_c, s->bf16_out);
        call.out = (char *)call.out + i * s->step_c * (s->bf16_out ? sizeof(uint16_t) : sizeof(float));
        run_one(rt, s, &call);
    }
}

void cuda_rt_gemm(struct cuda_rt *rt, const struct cuda_gemm *g, const struct cuda_gemm_call *call)
{
    struct product product = {.shape = g->shape, .call = *call};
    if ((g->shape.slope || g->shape.sums) && !cuda_rt_gemm_takes(g, call))
        cuda_rt_fail(rt, STATUS_INVALID, "a product that ends in more, of operands that it does not take");
    emulate_submit(rt, CUDA_MAIN, "matrix product", run_gemm, &product, sizeof product);
}
