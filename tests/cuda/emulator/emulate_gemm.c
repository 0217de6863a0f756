/* Matrix products of gpu/cuda/rt/cuda_rt.h on the CPU instead of cuBLASLt: sums in fp64, rounded once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "gpu/cuda/cuda_impl.h"
#include "gpu/cuda/kernels/cuda_act.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/cuda/emulator/emulate_impl.h"

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
    if (shape->dgelu && !rows_aligned(shape)) return STATUS_UNSUPPORTED;
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

/* Record the access to A or B. Neither may overlap the result; C may, as it is updated in place. */
static void read_operand(struct cuda_rt *rt, const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call,
                         const void *p, size_t rows, size_t columns, size_t ld)
{
    size_t in = gemm_number_bytes(s->bf16), out = gemm_number_bytes(s->bf16_out);
    const char *from = p, *to = call->out;
    touch(rt, p, rows, columns, ld, s->bf16, false);
    if (from < to + ((s->m - 1) * s->ldc + s->n) * out && to < from + ((rows - 1) * ld + columns) * in)
        cuda_rt_fail(rt, STATUS_INVALID, "the result of a product overlaps an operand");
}

static double element(const void *p, size_t i, bool bf16)
{
    return bf16 ? (double)bf16_value(((const uint16_t *)p)[i]) : (double)((const float *)p)[i];
}

static const void *step(const void *p, size_t elements, bool bf16)
{
    return (const char *)p + elements * gemm_number_bytes(bf16);
}

/* Derivative of the tanh GELU, like the library's. */
static double dgelu(double z)
{
    const double root = 0.7978845608028654, cube = 0.044715;
    double t = tanh(root * (z + cube * z * z * z));
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * root * (1 + 3 * cube * z * z);
}

/* Copy a stored matrix, transposed or not, to a new array [rows * columns + more]; the caller frees it. */
static double *widened(const void *p, size_t rows, size_t columns, size_t ld, bool transposed, bool bf16, size_t more)
{
    double *wide = malloc((rows * columns + more) * sizeof *wide);
    if (!wide) abort();
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            wide[i * columns + j] = element(p, transposed ? j * ld + i : i * ld + j, bf16);
    return wide;
}

/* Apply the epilogue to a sum, and round it. */
static void finish(const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call, size_t at, size_t column,
                   double sum)
{
    if (call->c) sum += element(call->c, at, s->bf16_out);
    if (s->bias) sum += element(call->bias, column, s->bf16_out);
    if (s->dgelu) sum *= dgelu(element(call->aux, at, s->bf16_out));
    if (s->bf16_out)
        ((uint16_t *)call->out)[at] = bf16_of((float)sum);
    else
        ((float *)call->out)[at] = (float)sum;
}

static void run_one(struct cuda_rt *rt, const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call)
{
    read_operand(rt, s, call, call->a, s->a_trans ? s->k : s->m, s->a_trans ? s->m : s->k, s->lda);
    read_operand(rt, s, call, call->b, s->b_trans ? s->n : s->k, s->b_trans ? s->k : s->n, s->ldb);
    if (call->c) touch(rt, call->c, s->m, s->n, s->ldc, s->bf16_out, false);
    if (s->bias) touch(rt, call->bias, 1, s->n, s->n, s->bf16_out, false);
    if (s->dgelu) touch(rt, call->aux, s->m, s->n, s->ldc, s->bf16_out, false);
    touch(rt, call->out, s->m, s->n, s->ldc, s->bf16_out, true);
    double *a = widened(call->a, s->m, s->k, s->lda, s->a_trans, s->bf16, s->n);
    double *b = widened(call->b, s->k, s->n, s->ldb, s->b_trans, s->bf16, 0), *row = a + s->m * s->k;
    for (size_t i = 0; i < s->m; i++) {
        memset(row, 0, s->n * sizeof *row);
        for (size_t k = 0; k < s->k; k++)
            for (size_t j = 0; j < s->n; j++) row[j] += a[i * s->k + k] * b[k * s->n + j];
        for (size_t j = 0; j < s->n; j++) finish(s, call, i * s->ldc + j, j, row[j]);
    }
    free(a);
    free(b);
}

static void run_gemm(struct cuda_rt *rt, const void *args)
{
    const struct product *product = args;
    const struct cuda_gemm_shape *s = &product->shape;
    for (size_t i = 0; i < gemm_products(s); i++) {
        struct cuda_gemm_call call = product->call;
        call.a = step(call.a, i * s->step_a, s->bf16);
        call.b = step(call.b, i * s->step_b, s->bf16);
        if (call.c) call.c = step(call.c, i * s->step_c, s->bf16_out);
        call.out = (char *)call.out + i * s->step_c * gemm_number_bytes(s->bf16_out);
        run_one(rt, s, &call);
    }
}

void cuda_rt_gemm(struct cuda_rt *rt, const struct cuda_gemm *g, const struct cuda_gemm_call *call)
{
    struct product product = {.shape = g->shape, .call = *call};
    if (g->shape.dgelu && !cuda_rt_gemm_takes(g, call))
        cuda_rt_fail(rt, STATUS_INVALID, "a fused epilogue with operands that it does not support");
    emulate_submit(rt, CUDA_MAIN, "matrix product", run_gemm, &product, sizeof product);
}
