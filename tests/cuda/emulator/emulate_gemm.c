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
    (void)rt;
    if ((shape->dgelu || shape->bias_grad) && !rows_aligned(shape)) return STATUS_UNSUPPORTED;
    struct cuda_gemm *g = mem_alloc(1, sizeof *g);
    if (!g) return STATUS_NOMEM;
    g->shape = *shape;
    *out = g;
    return STATUS_OK;
}

const char *cuda_rt_gemm_refusal(const struct cuda_rt *rt)
{
    (void)rt;
    return "not here";
}

/* Run what the real runtime times: the operation in both variants, on buffers of exactly its size. */
static void rehearse(struct cuda_rt *rt, const struct cuda_gemm_shape *s, const struct cuda_gemm *apart,
                     const struct cuda_gemm *fused, const struct cuda_gemm_user *user)
{
    size_t in = gemm_number_bytes(s->bf16), out = gemm_number_bytes(s->bf16_out);
    size_t bytes[] = {(s->a_trans ? s->k : s->m) * s->lda * in, (s->b_trans ? s->n : s->k) * s->ldb * in,
                      s->m * s->ldc * out, s->dgelu ? s->m * s->ldc * out : s->n * sizeof(float)};
    void *p[4];
    bool ok = true;
    for (int i = 0; i < 4; i++) {
        p[i] = cuda_rt_alloc(rt, bytes[i]);
        ok = ok && p[i];
    }
    struct cuda_gemm_call call = {.a = p[0],
                                  .b = p[1],
                                  .c = s->bf16_out ? NULL : p[2],
                                  .out = p[2],
                                  .aux = s->dgelu ? p[3] : NULL,
                                  .bias_grad = s->bias_grad ? p[3] : NULL};
    if (ok) user->run(user->ctx, apart, &call);
    if (ok) user->run(user->ctx, fused, &call);
    for (int i = 0; i < 4; i++) cuda_rt_release(rt, p[i]);
}

/* The emulator has no GPU timing: products stay separate unless `wish` asks for fusion. */
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
    all |= fused->shape.dgelu ? (uintptr_t)call->aux : (uintptr_t)call->bias_grad;
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
    if (s->bias_grad) touch(rt, call->bias_grad, 1, s->n, s->n, false, true);
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
    if ((g->shape.dgelu || g->shape.bias_grad) && !cuda_rt_gemm_takes(g, call))
        cuda_rt_fail(rt, STATUS_INVALID, "a fused epilogue with operands that it does not support");
    emulate_submit(rt, CUDA_MAIN, "matrix product", run_gemm, &product, sizeof product);
}
