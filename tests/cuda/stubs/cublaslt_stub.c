#include "tests/cuda/stubs/cublaslt_stub_impl.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#include "tests/cuda/stubs/cudart_stub.h"

struct stub stub;

uint16_t stub_bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float stub_bf16_value(uint16_t half)
{
    float x;
    uint32_t bits = (uint32_t)half << 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* --- description of a product ------------------------------------------------------------------------------------- */

struct matrix {
    uint64_t rows, cols;
    int64_t ld, step; /* step: distance between the products of a batch */
    int32_t type, several;
};

/* Column-major, as stored. */
static struct matrix matrix_of(cublasLtMatrixLayout_t layout)
{
    struct matrix m = {0};
    (void)cublasLtMatrixLayoutGetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &m.rows, sizeof m.rows, NULL);
    (void)cublasLtMatrixLayoutGetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &m.cols, sizeof m.cols, NULL);
    (void)cublasLtMatrixLayoutGetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_LD, &m.ld, sizeof m.ld, NULL);
    (void)cublasLtMatrixLayoutGetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &m.type, sizeof m.type, NULL);
    (void)cublasLtMatrixLayoutGetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &m.several, sizeof m.several,
                                           NULL);
    (void)cublasLtMatrixLayoutGetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m.step, sizeof m.step,
                                           NULL);
    return m;
}

struct task {
    uint32_t epilogue;
    int32_t trans_a, trans_b, bias_type, aux_type;
    void *bias, *aux;
    int64_t aux_ld;
};

static struct task task_of(cublasLtMatmulDesc_t op)
{
    struct task t = {0};
#define GET(what, field)                                                                                               \
    (void)cublasLtMatmulDescGetAttribute(op, CUBLASLT_MATMUL_DESC_##what, &t.field, sizeof t.field, NULL)
    GET(EPILOGUE, epilogue);
    GET(TRANSA, trans_a);
    GET(TRANSB, trans_b);
    GET(BIAS_POINTER, bias);
    GET(BIAS_DATA_TYPE, bias_type);
    GET(EPILOGUE_AUX_POINTER, aux);
    GET(EPILOGUE_AUX_LD, aux_ld);
    GET(EPILOGUE_AUX_DATA_TYPE, aux_type);
#undef GET
    return t;
}

/* The requirements of the documentation, and those of the kernels on a bias. */
static bool valid(const struct task *t, const struct matrix *d)
{
    if (t->epilogue == CUBLASLT_EPILOGUE_BIAS)
        return t->bias && (uintptr_t)t->bias % 16 == 0 && (t->bias_type == -1 || t->bias_type == d->type);
    if (t->epilogue == CUBLASLT_EPILOGUE_DGELU)
        return t->aux && (uintptr_t)t->aux % 16 == 0 && t->aux_ld % 8 == 0 && t->aux_ld >= (int64_t)d->rows &&
               (t->aux_type == -1 || t->aux_type == d->type);
    return t->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

/* --- the library -------------------------------------------------------------------------------------------------- */

enum { MADE_HERE = 0x4c545354 }; /* marks a proposed algorithm */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = STUB_NOTHING;
    if (stub_fault(&cublaslt_faults, __func__)) return (cublasStatus_t)cublaslt_faults.status;
    if (stub.no_library) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = malloc(1);
    stub_keep(*handle, STUB_HANDLE);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    bool fails = stub_fault(&cublaslt_faults, __func__);
    stub_forget(handle, STUB_HANDLE, __func__);
    free(handle);
    return fails ? (cublasStatus_t)cublaslt_faults.status : CUBLAS_STATUS_SUCCESS;
}

static void all_alive(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                      cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const char *call)
{
    const cublasLtMatrixLayout_t layouts[] = {a, b, c, d};
    stub_alive(handle, STUB_HANDLE, call);
    stub_alive(op, STUB_OP, call);
    for (int i = 0; i < 4; i++) stub_alive(layouts[i], STUB_LAYOUT, call);
}

static void proposed(const cublasLtMatmulAlgo_t *algo, const char *call)
{
    if (algo->data[4] != MADE_HERE) stub_wrong("cublaslt_stub", "an algorithm that was never proposed", call);
}

/* Alignments of A, B, C and D in a preference: powers of two, packed into one value. */
static uint64_t alignments(cublasLtMatmulPreference_t wish)
{
    static const cublasLtMatmulPreferenceAttributes_t of[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    uint64_t all = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t bytes = 0;
        size_t size = sizeof bytes;
        (void)cublasLtMatmulPreferenceGetAttribute(wish, of[i], &bytes, sizeof bytes, &size);
        all |= (uint64_t)(bytes & 0xffff) << 16 * i;
    }
    return all;
}

static bool lies_on(uint64_t all, int i, const void *p)
{
    uint64_t bytes = all >> 16 * i & 0xffff;
    return bytes && (uintptr_t)p % bytes == 0;
}

static const void *end_of(const struct task *t)
{
    return t->epilogue == CUBLASLT_EPILOGUE_DEFAULT ? NULL : t->epilogue == CUBLASLT_EPILOGUE_DGELU ? t->aux : t->bias;
}

/* Alignment of the epilogue's operand in bytes; for a proposal, the alignment in every call. */
static uint64_t end_alignment(const struct task *t)
{
    uint64_t p = (uintptr_t)end_of(t);
    return p ? p & (0 - p) : 1;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t *found, int *n)
{
    all_alive(handle, op, a, b, c, d, __func__);
    struct task t = task_of(op);
    struct matrix out = matrix_of(d);
    size_t size = sizeof stub.schemes;
    stub_alive(wish, STUB_WISH, __func__);
    memset(found, 0x57, (size_t)most * sizeof *found);
    *n = most;
    if (stub_fault(&cublaslt_faults, __func__)) return (cublasStatus_t)cublaslt_faults.status;
    *n = 0;
    if (cublasLtMatmulPreferenceGetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &stub.schemes,
                                             sizeof stub.schemes, &size) != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!valid(&t, &out)) return CUBLAS_STATUS_INVALID_VALUE;
    if (stub.unknown & t.epilogue) return CUBLAS_STATUS_NOT_SUPPORTED;
    found[(*n)++].state = CUBLAS_STATUS_NOT_SUPPORTED; /* the rest of a refused result is undefined */
    for (int i = 0; *n < most && i < STUB_ALGORITHMS; i++) {
        cublasLtMatmulAlgo_t *algo = &found[*n].algo;
        found[(*n)++] = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS};
        algo->data[0] = (uint64_t)(STUB_ALGORITHMS - 1 - i); /* the last one is the fastest */
        algo->data[1] = t.epilogue;
        algo->data[2] = alignments(wish);
        algo->data[3] = end_alignment(&t);
        algo->data[4] = MADE_HERE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
    all_alive(handle, op, a, b, c, d, __func__);
    struct task t = task_of(op);
    proposed(algo, __func__);
    memset(result, 0x57, sizeof *result);
    if (stub_fault(&cublaslt_faults, __func__)) return (cublasStatus_t)cublaslt_faults.status;
    *result = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS};
    return algo->data[1] == t.epilogue ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

static double number(const void *p, size_t i, int32_t type)
{
    return type == CUDA_R_16BF ? (double)stub_bf16_value(((const uint16_t *)p)[i]) : (double)((const float *)p)[i];
}

static void put(void *p, size_t i, int32_t type, double value)
{
    if (type == CUDA_R_16BF)
        ((uint16_t *)p)[i] = stub_bf16_of((float)value);
    else
        ((float *)p)[i] = (float)value;
}

static double dgelu(double z)
{
    const double root = 0.7978845608028654, cube = 0.044715;
    double t = tanh(root * (z + cube * z * z * z));
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * root * (1 + 3 * cube * z * z);
}

/* Element (row, col) of op(M). */
static double element(const void *p, const struct matrix *m, bool trans, size_t row, size_t col)
{
    size_t ld = (size_t)m->ld;
    return number(p, trans ? row * ld + col : col * ld + row, m->type);
}

struct product {
    struct task task;
    struct matrix a_is, b_is, c_is, d_is;
    const void *a, *b, *c;
    void *d;
    float alpha, beta, ms;
};

static const void *of_product(const void *p, const struct matrix *m, size_t i)
{
    return (const char *)p + i * (size_t)m->step * (m->type == CUDA_R_16BF ? sizeof(uint16_t) : sizeof(float));
}

static void multiply(const struct product *p, size_t nth)
{
    const struct task *t = &p->task;
    const struct matrix *A = &p->a_is, *B = &p->b_is, *D = &p->d_is;
    const void *a = of_product(p->a, A, nth), *b = of_product(p->b, B, nth), *c = of_product(p->c, &p->c_is, nth);
    void *d = (void *)of_product(p->d, D, nth);
    size_t inner = t->trans_a == CUBLAS_OP_N ? A->cols : A->rows;
    for (size_t i = 0; i < D->rows; i++) {
        for (size_t j = 0; j < D->cols; j++) {
            double sum = 0;
            for (size_t k = 0; k < inner; k++)
                sum += element(a, A, t->trans_a != CUBLAS_OP_N, i, k) * element(b, B, t->trans_b != CUBLAS_OP_N, k, j);
            sum *= (double)p->alpha;
            if (p->beta != 0) sum += (double)p->beta * element(c, &p->c_is, false, i, j);
            if (t->epilogue == CUBLASLT_EPILOGUE_BIAS) sum += number(t->bias, i, D->type);
            if (t->epilogue == CUBLASLT_EPILOGUE_DGELU)
                sum *= dgelu(number(t->aux, j * (size_t)t->aux_ld + i, D->type));
            put(d, j * (size_t)D->ld + i, D->type, sum);
        }
    }
}

/* True if many of the matrix's values are equal, in a sample. */
static bool is_alike(const void *p, const struct matrix *m)
{
    size_t n = (m->cols - 1) * (size_t)m->ld + m->rows, same = 0;
    for (size_t i = 1; i < 64; i++)
        same += number(p, i * 2654435761 % n, m->type) == number(p, (i - 1) * 2654435761 % n, m->type);
    return same > 8;
}

static void run(void *args, bool dead)
{
    const struct product *p = args;
    cudart_stub.now_ms += p->ms;
    stub.alike += stub.idle && (is_alike(p->a, &p->a_is) || is_alike(p->b, &p->b_is) || is_alike(p->c, &p->c_is));
    for (size_t i = 0; !dead && !stub.idle && i < (size_t)p->d_is.several; i++) multiply(p, i);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_is, const void *b, cublasLtMatrixLayout_t b_is, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_is, void *d, cublasLtMatrixLayout_t d_is,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    all_alive(handle, op, a_is, b_is, c_is, d_is, __func__);
    struct product p = {.task = task_of(op),
                        .a_is = matrix_of(a_is),
                        .b_is = matrix_of(b_is),
                        .c_is = matrix_of(c_is),
                        .d_is = matrix_of(d_is),
                        .a = a,
                        .b = b,
                        .c = c,
                        .d = d,
                        .alpha = *(const float *)alpha,
                        .beta = *(const float *)beta};
    (void)workspace, (void)workspace_bytes;
    proposed(algo, __func__);
    if (stub_fault(&cublaslt_faults, __func__)) return (cublasStatus_t)cublaslt_faults.status;
    if (!valid(&p.task, &p.d_is)) return CUBLAS_STATUS_INVALID_VALUE;
    const uint64_t *on = &algo->data[2];
    if (!lies_on(*on, 0, a) || !lies_on(*on, 1, b) || !lies_on(*on, 2, c) || !lies_on(*on, 3, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((uintptr_t)end_of(&p.task) % algo->data[3]) return CUBLAS_STATUS_INVALID_VALUE;
    if (algo->data[1] != p.task.epilogue) return CUBLAS_STATUS_NOT_SUPPORTED;
    stub.products++;
    p.ms = 10 + (float)algo->data[0];
    stream->submit(stream, run, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}
