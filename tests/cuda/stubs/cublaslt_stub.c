/* Stub of cuBLASLt without a GPU.
 * - A product is what its descriptors say, as the library documents them (column-major). It runs on its stream
 *   (cudart_stub.h). It knows the epilogues BIAS and DGELU.
 * - It proposes several algorithms with equal results.
 * - cublaslt_faults makes one call fail. */
#include <cublasLt.h>

#include "tests/cuda/emulator/emulate_product.h"
#include "tests/cuda/stubs/cudart_stub.h"

enum { ALGORITHMS = 3, ATTRIBUTES = 64, K_TIMED = 1 << 20 };

extern struct stub_faults cublaslt_faults;
struct stub_faults cublaslt_faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define FAILS() stub_fault(&cublaslt_faults, __func__)
#define FAILED ((cublasStatus_t)cublaslt_faults.status)

/* ---- objects ----------------------------------------------------------------------------------------------------- */

/* A description, a layout or a preference: attributes have at most 8 bytes. */
struct object {
    uint64_t attributes[ATTRIBUTES];
};

static cublasStatus_t create(struct object **out, bool fails)
{
    *out = STUB_NOTHING;
    if (fails) return FAILED;
    if (!(*out = calloc(1, sizeof **out))) abort();
    stub_made(&cublaslt_faults, 1);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set(struct object *o, size_t what, const void *value, size_t bytes)
{
    if (what >= ATTRIBUTES || bytes > sizeof o->attributes[0]) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&o->attributes[what], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t destroy(void *object, bool fails)
{
    free(object);
    stub_made(&cublaslt_faults, -1);
    return fails ? FAILED : CUBLAS_STATUS_SUCCESS;
}

static uint64_t *attributes_of(const void *object)
{
    return ((struct object *)object)->attributes;
}

#define SET_AND_DESTROY(name, type, attribute)                                                                         \
    cublasStatus_t cublasLt##name##SetAttribute(type it, attribute what, const void *value, size_t bytes)              \
    {                                                                                                                  \
        return FAILS() ? FAILED : set((struct object *)it, (size_t)what, value, bytes);                                \
    }                                                                                                                  \
    cublasStatus_t cublasLt##name##Destroy(type it)                                                                    \
    {                                                                                                                  \
        return destroy(it, FAILS());                                                                                   \
    }

SET_AND_DESTROY(MatmulDesc, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t)
SET_AND_DESTROY(MatrixLayout, cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t)
SET_AND_DESTROY(MatmulPreference, cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t)

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    (void)compute, (void)scale;
    cublasStatus_t status = create((struct object **)out, FAILS());
    if (status == CUBLAS_STATUS_SUCCESS) attributes_of(*out)[CUBLASLT_MATMUL_DESC_EPILOGUE] = CUBLASLT_EPILOGUE_DEFAULT;
    return status;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    cublasStatus_t status = create((struct object **)out, FAILS());
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    uint64_t *attributes = attributes_of(*out);
    attributes[CUBLASLT_MATRIX_LAYOUT_TYPE] = (uint64_t)type;
    attributes[CUBLASLT_MATRIX_LAYOUT_ROWS] = rows;
    attributes[CUBLASLT_MATRIX_LAYOUT_COLS] = cols;
    attributes[CUBLASLT_MATRIX_LAYOUT_LD] = (uint64_t)ld;
    attributes[CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT] = 1;
    return status;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    return create((struct object **)out, FAILS());
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return create((struct object **)handle, FAILS());
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle, FAILS());
}

size_t cublasLtGetVersion(void)
{
    return 1;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "another status";
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

struct product {
    struct cuda_gemm_shape shape;
    struct cuda_gemm_call call;
};

static void run(void *args, bool dead)
{
    const struct product *p = args;
    dead = dead || p->shape.k >= K_TIMED; /* as long a sum as in test_timing, whose results nobody reads */
    for (size_t i = 0; !dead && i < gemm_products(&p->shape); i++) {
        const struct cuda_gemm_call call = emulate_product_of(&p->shape, &p->call, i);
        emulate_product(&p->shape, &call);
    }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t *found, int *n)
{
    (void)handle, (void)a, (void)b, (void)c, (void)d;
    uint64_t epilogue = attributes_of(op)[CUBLASLT_MATMUL_DESC_EPILOGUE];
    memset(found, 0x57, (size_t)most * sizeof *found);
    *n = most;
    if (FAILS()) return FAILED;
    *n = 0;
    /* The bits of a sum must not depend on the order of arrival. */
    if (attributes_of(wish)[CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK] & CUBLASLT_REDUCTION_SCHEME_INPLACE)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_BIAS &&
        epilogue != CUBLASLT_EPILOGUE_DGELU)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    found[(*n)++].state = CUBLAS_STATUS_NOT_SUPPORTED; /* the rest of a refused result is undefined */
    while (*n < most && *n <= ALGORITHMS)
        found[(*n)++] = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *result)
{
    (void)handle, (void)op, (void)a, (void)b, (void)c, (void)d, (void)algo;
    memset(result, 0x57, sizeof *result);
    if (FAILS()) return FAILED;
    *result = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_is, const void *b, cublasLtMatrixLayout_t b_is, const void *beta,
                              const void *c, cublasLtMatrixLayout_t c_is, void *d, cublasLtMatrixLayout_t d_is,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    (void)handle, (void)alpha, (void)algo, (void)workspace, (void)workspace_bytes, (void)c_is;
    const uint64_t *is = attributes_of(op), *first = attributes_of(a_is), *second = attributes_of(b_is);
    const uint64_t *out = attributes_of(d_is), epilogue = is[CUBLASLT_MATMUL_DESC_EPILOGUE];
    const bool a_trans = is[CUBLASLT_MATMUL_DESC_TRANSB] != CUBLAS_OP_N;
    const bool b_trans = is[CUBLASLT_MATMUL_DESC_TRANSA] != CUBLAS_OP_N;
    const void *bias = (const void *)is[CUBLASLT_MATMUL_DESC_BIAS_POINTER];
    /* Column-major: the transposes of our matrices, so the library's A is our B. */
    struct product p = {.shape = {.m = out[CUBLASLT_MATRIX_LAYOUT_COLS],
                                  .n = out[CUBLASLT_MATRIX_LAYOUT_ROWS],
                                  .k = first[b_trans ? CUBLASLT_MATRIX_LAYOUT_ROWS : CUBLASLT_MATRIX_LAYOUT_COLS],
                                  .lda = second[CUBLASLT_MATRIX_LAYOUT_LD],
                                  .ldb = first[CUBLASLT_MATRIX_LAYOUT_LD],
                                  .ldc = out[CUBLASLT_MATRIX_LAYOUT_LD],
                                  .a_trans = a_trans,
                                  .b_trans = b_trans,
                                  .bf16 = first[CUBLASLT_MATRIX_LAYOUT_TYPE] == CUDA_R_16BF,
                                  .bf16_out = out[CUBLASLT_MATRIX_LAYOUT_TYPE] == CUDA_R_16BF,
                                  .bias = epilogue == CUBLASLT_EPILOGUE_BIAS,
                                  .dgelu = epilogue == CUBLASLT_EPILOGUE_DGELU,
                                  .batch = out[CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT],
                                  .step_a = second[CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET],
                                  .step_b = first[CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET],
                                  .step_c = out[CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET]},
                        .call = {.a = b,
                                 .b = a,
                                 .c = *(const float *)beta != 0 ? c : NULL,
                                 .out = d,
                                 .bias = bias,
                                 .aux = (const void *)is[CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER]}};
    if (FAILS()) return FAILED;
    if ((uintptr_t)bias % 16) return CUBLAS_STATUS_INVALID_VALUE; /* kernels need it */
    stream->submit(stream, run, &p, sizeof p);
    return CUBLAS_STATUS_SUCCESS;
}
