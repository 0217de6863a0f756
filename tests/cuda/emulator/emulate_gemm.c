/* Matrix products of gpu/cuda/rt/cuda_rt.h on the CPU instead of cuBLASLt. */
#include "common/base/mem.h"
#include "gpu/cuda/cuda_impl.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/cuda/emulator/emulate_impl.h"
#include "tests/cuda/emulator/emulate_product.h"

struct cuda_gemm {
    struct cuda_gemm_shape shape;
};

static bool rows_aligned(const struct cuda_gemm_shape *s)
{
    size_t in = gemm_number_bytes(s->bf16), out = gemm_number_bytes(s->bf16_out);
    return (s->lda * in | s->ldb * in | s->ldc * out) % 16 == 0;
}

enum status cuda_rt_gemm_create(struct cuda_rt *rt, const struct cuda_gemm_shape *shape, struct cuda_gemm **out)
{
    const struct cuda_gemm_shape dense = gemm_dense(*shape);
    (void)rt;
    if (shape->dgelu && !rows_aligned(&dense)) return STATUS_UNSUPPORTED;
    struct cuda_gemm *g = mem_alloc(1, sizeof *g);
    if (!g) return STATUS_NOMEM;
    g->shape = dense;
    *out = g;
    return STATUS_OK;
}

const char *cuda_rt_gemm_refusal(const struct cuda_rt *rt)
{
    (void)rt;
    return "not here";
}

bool cuda_rt_gemm_takes(const struct cuda_gemm *gemm, const struct cuda_gemm_call *call)
{
    if (!gemm) return false;
    uintptr_t all = (uintptr_t)call->a | (uintptr_t)call->b | (uintptr_t)call->c | (uintptr_t)call->out;
    if (gemm->shape.dgelu) all |= (uintptr_t)call->aux;
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

/* Record the access to the rows of a stored matrix. */
static void touch(struct cuda_rt *rt, const void *p, size_t rows, size_t columns, size_t ld, bool bf16, bool write)
{
    size_t bytes = gemm_number_bytes(bf16);
    for (size_t i = 0; i < rows; i++) emulate_touch(rt, (const char *)p + i * ld * bytes, columns * bytes, write);
}

static void touch_all(struct cuda_rt *rt, const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call)
{
    touch(rt, call->a, s->a_trans ? s->k : s->m, s->a_trans ? s->m : s->k, s->lda, s->bf16, false);
    touch(rt, call->b, s->b_trans ? s->n : s->k, s->b_trans ? s->k : s->n, s->ldb, s->bf16, false);
    if (call->c) touch(rt, call->c, s->m, s->n, s->ldc, s->bf16_out, false);
    if (s->bias) touch(rt, call->bias, 1, s->n, s->n, s->bf16_out, false);
    if (s->dgelu) touch(rt, call->aux, s->m, s->n, s->ldc, s->bf16_out, false);
    touch(rt, call->out, s->m, s->n, s->ldc, s->bf16_out, true);
}

static void run_gemm(struct cuda_rt *rt, const void *args)
{
    const struct product *product = args;
    for (size_t i = 0; i < gemm_products(&product->shape); i++) {
        const struct cuda_gemm_call call = emulate_product_of(&product->shape, &product->call, i);
        touch_all(rt, &product->shape, &call);
        emulate_product(&product->shape, &call);
    }
}

void cuda_rt_gemm(struct cuda_rt *rt, const struct cuda_gemm *g, const struct cuda_gemm_call *call)
{
    struct product product = {.shape = g->shape, .call = *call};
    if (g->shape.dgelu && !cuda_rt_gemm_takes(g, call))
        cuda_rt_fail(rt, STATUS_INVALID, "a fused epilogue with operands that it does not support");
    emulate_submit(rt, CUDA_MAIN, "matrix product", run_gemm, &product, sizeof product);
}
