#include "tests/cuda/emulator/emulate_product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/kernels/cuda_act.h"

static double element(const void *p, size_t i, bool bf16)
{
    return bf16 ? (double)bf16_value(((const uint16_t *)p)[i]) : (double)((const float *)p)[i];
}

static const void *step(const void *p, size_t elements, bool bf16)
{
    return (const char *)p + elements * gemm_number_bytes(bf16);
}

struct cuda_gemm_call emulate_product_of(const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call, size_t i)
{
    struct cuda_gemm_call one = *call;
    one.a = step(call->a, i * s->step_a, s->bf16);
    one.b = step(call->b, i * s->step_b, s->bf16);
    if (call->c) one.c = step(call->c, i * s->step_c, s->bf16_out);
    one.out = (char *)call->out + i * s->step_c * gemm_number_bytes(s->bf16_out);
    return one;
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

void emulate_product(const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call)
{
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
