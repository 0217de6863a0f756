/* Matrix products through cuBLASLt: descriptors, proposals and calls. gpu/cuda/rt/cuda_gemm_time.c chooses the
 * algorithm. */
#include "gpu/cuda/rt/cuda_rt_impl.h"

#include <assert.h>
#include <stdio.h>

#include "common/base/mem.h"

#define PREFER(preference, what, value)                                                                                \
    cublasLtMatmulPreferenceSetAttribute((preference), (what), &(value), sizeof(value))

/* False if the library refused; then rt->refusal holds its status. */
static bool accepted(struct cuda_rt *rt, cublasStatus_t blas)
{
    if (blas != CUBLAS_STATUS_SUCCESS) rt->refusal = blas;
    return blas == CUBLAS_STATUS_SUCCESS;
}

/* Leaves *out unchanged on failure, because the library does not specify what it writes then. step: of a batch. */
static bool layout_create(struct cuda_rt *rt, cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                          uint64_t cols, size_t ld, size_t batch, size_t step)
{
    cublasLtMatrixLayout_t made;
    int32_t n = (int32_t)batch;
    int64_t elements = (int64_t)step;
    if (!accepted(rt, cublasLtMatrixLayoutCreate(&made, type, rows, cols, (int64_t)ld))) return false;
    *out = made;
    return !batch ||
           (accepted(rt, cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n)) &&
            accepted(rt, cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &elements,
                                                          sizeof elements)));
}

static bool describe_end(struct cuda_rt *rt, struct cuda_gemm *g)
{
    const struct cuda_gemm_shape *s = &g->shape;
    cublasLtEpilogue_t epilogue = s->bias    ? CUBLASLT_EPILOGUE_BIAS
                                  : s->dgelu ? CUBLASLT_EPILOGUE_DGELU
                                             : CUBLASLT_EPILOGUE_DEFAULT;
    cudaDataType_t out = s->bf16_out ? CUDA_R_16BF : CUDA_R_32F;
    int64_t ld = (int64_t)s->ldc; /* of aux; its type defaults to the type of the output */
    return accepted(rt, GEMM_SET(g->op, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)) &&
           (!s->bias || accepted(rt, GEMM_SET(g->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out))) &&
           (!s->dgelu || accepted(rt, GEMM_SET(g->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, ld)));
}

/* Sets operation and layouts. cuBLAS is column-major: row-major C = A B is C^T = B^T A^T there, and a row-major matrix
 * is already its transpose. The bias then belongs to the rows, as cuBLASLt expects. */
static bool describe(struct cuda_rt *rt, struct cuda_gemm *g)
{
    const struct cuda_gemm_shape *s = &g->shape;
    cublasOperation_t first = s->b_trans ? CUBLAS_OP_T : CUBLAS_OP_N, second = s->a_trans ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t rows1 = s->b_trans ? s->k : s->n, cols1 = s->b_trans ? s->n : s->k;
    uint64_t rows2 = s->a_trans ? s->m : s->k, cols2 = s->a_trans ? s->k : s->m;
    cudaDataType_t in = s->bf16 ? CUDA_R_16BF : CUDA_R_32F, out = s->bf16_out ? CUDA_R_16BF : CUDA_R_32F;
    cublasLtMatmulDesc_t op;
    if (!accepted(rt, cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F))) return false;
    g->op = op;
    return accepted(rt, GEMM_SET(g->op, CUBLASLT_MATMUL_DESC_TRANSA, first)) &&
           accepted(rt, GEMM_SET(g->op, CUBLASLT_MATMUL_DESC_TRANSB, second)) && describe_end(rt, g) &&
           layout_create(rt, &g->first, in, rows1, cols1, s->ldb, s->batch, s->step_b) &&
           layout_create(rt, &g->second, in, rows2, cols2, s->lda, s->batch, s->step_a) &&
           layout_create(rt, &g->out, out, s->n, s->m, s->ldc, s->batch, s->step_c);
}

bool cuda_gemm_rows_aligned(const struct cuda_gemm_shape *s)
{
    size_t in = gemm_number_bytes(s->bf16), out = gemm_number_bytes(s->bf16_out);
    size_t all = s->lda * in | s->ldb * in | s->ldc * out | s->step_a * in | s->step_b * in | s->step_c * out;
    return all % GEMM_VECTOR_BYTES == 0;
}

int cuda_gemm_propose(struct cuda_rt *rt, const struct cuda_gemm *g, enum gemm_alignment alignment,
                      cublasLtMatmulHeuristicResult_t found[GEMM_PROPOSALS])
{
    cublasLtMatmulPreference_t preference;
    uint64_t workspace = CUDA_WORKSPACE_BYTES;
    uint32_t in = alignment == GEMM_VECTOR ? GEMM_VECTOR_BYTES : (uint32_t)gemm_number_bytes(g->shape.bf16);
    uint32_t out = alignment == GEMM_VECTOR ? GEMM_VECTOR_BYTES : (uint32_t)gemm_number_bytes(g->shape.bf16_out);
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        uint32_t bytes;
    } aligned[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, in},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, in},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out}};
    /* Split-k kernels must combine their partial sums after the loop, in fp32. INPLACE adds them to the output in order
     * of arrival, which differs from run to run (github.com/NVIDIA/CUDALibrarySamples issue 243). */
    uint32_t output_type = g->shape.bf16_out ? 0 : CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | output_type;
    int n = 0, good = 0;
    if (!accepted(rt, cublasLtMatmulPreferenceCreate(&preference))) return 0;
    bool ok = accepted(rt, PREFER(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace)) &&
              accepted(rt, PREFER(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions));
    for (int i = 0; i < 4; i++) ok = ok && accepted(rt, PREFER(preference, aligned[i].what, aligned[i].bytes));
    ok = ok && accepted(rt, cublasLtMatmulAlgoGetHeuristic(rt->blas, g->op, g->first, g->second, g->out, g->out,
                                                           preference, GEMM_PROPOSALS, found, &n));
    (void)cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; ok && i < n; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS) found[good++] = found[i];
    return good;
}

/* Returns the bias at a 16-byte aligned address, and copies it there if needed. The library knows the alignment of the
 * operands but not of the bias, and may propose a kernel that loads 16 bytes of it at a time (pytorch/pytorch pull
 * request 194497: "misaligned address", after which the GPU is unusable). NULL if the bias is too long or cannot be
 * copied. */
static const void *bias_of(struct cuda_rt *rt, const struct cuda_gemm *g, const void *bias)
{
    size_t bytes = g->shape.n * gemm_number_bytes(g->shape.bf16_out);
    assert(bias);
    char *place = (char *)rt->workspace + CUDA_WORKSPACE_BYTES;
    if ((uintptr_t)bias % GEMM_VECTOR_BYTES == 0) return bias;
    if (bytes > CUDA_BIAS_BYTES) return NULL;
    return cudaMemcpyAsync(place, bias, bytes, cudaMemcpyDeviceToDevice, rt->stream) == cudaSuccess ? place : NULL;
}

cublasStatus_t cuda_gemm_multiply(struct cuda_rt *rt, const struct cuda_gemm *g, const cublasLtMatmulAlgo_t *algo,
                                  const struct cuda_gemm_call *call)
{
    const float one = 1, zero = 0;
    assert(!g->shape.dgelu || (call->aux && !call->c));
    const void *bias = g->shape.bias ? bias_of(rt, g, call->bias) : NULL;
    cublasStatus_t blas = g->shape.bias && !bias ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
    if (bias) blas = GEMM_SET(g->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (g->shape.dgelu) blas = GEMM_SET(g->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call->aux);
    if (blas != CUBLAS_STATUS_SUCCESS) return blas;
    return cublasLtMatmul(rt->blas, g->op, &one, call->b, g->first, call->a, g->second, call->c ? &one : &zero,
                          call->c ? call->c : call->out, g->out, call->out, g->out, algo, rt->workspace,
                          CUDA_WORKSPACE_BYTES, rt->stream);
}

enum status cuda_rt_gemm_create(struct cuda_rt *rt, const struct cuda_gemm_shape *shape, struct cuda_gemm **out)
{
    struct cuda_gemm *g = mem_alloc(1, sizeof *g);
    if (!g) return STATUS_NOMEM;
    assert(shape->m && shape->n && shape->k);
    assert(!(shape->bias && shape->dgelu) && !(shape->batch && (shape->bias || shape->dgelu)));
    g->shape = gemm_dense(*shape);
    rt->refusal = CUBLAS_STATUS_NOT_SUPPORTED; /* until the library gives another reason */
    cuda_rt_use(rt);
    if (describe(rt, g)) {
        if (!shape->dgelu) (void)cuda_gemm_choose(rt, g, GEMM_ELEMENT);
        if (cuda_gemm_rows_aligned(&g->shape)) (void)cuda_gemm_choose(rt, g, GEMM_VECTOR);
    }
    if (!g->has[GEMM_ELEMENT] && !g->has[GEMM_VECTOR]) {
        cuda_rt_gemm_free(g);
        return STATUS_UNSUPPORTED;
    }
    *out = g;
    return STATUS_OK;
}

const char *cuda_rt_gemm_refusal(const struct cuda_rt *rt)
{
    return cublasLtGetStatusString(rt->refusal);
}

void cuda_rt_gemm_free(struct cuda_gemm *g)
{
    if (!g) return;
    if (g->out) (void)cublasLtMatrixLayoutDestroy(g->out);
    if (g->second) (void)cublasLtMatrixLayoutDestroy(g->second);
    if (g->first) (void)cublasLtMatrixLayoutDestroy(g->first);
    if (g->op) (void)cublasLtMatmulDescDestroy(g->op);
    mem_free(g);
}

static bool call_aligned(const struct cuda_gemm *g, const struct cuda_gemm_call *call)
{
    uintptr_t all = (uintptr_t)call->a | (uintptr_t)call->b | (uintptr_t)call->c | (uintptr_t)call->out;
    if (g->shape.dgelu) all |= (uintptr_t)call->aux;
    return all % GEMM_VECTOR_BYTES == 0;
}

bool cuda_rt_gemm_takes(const struct cuda_gemm *gemm, const struct cuda_gemm_call *call)
{
    return gemm && call_aligned(gemm, call);
}

void cuda_rt_gemm(struct cuda_rt *rt, const struct cuda_gemm *g, const struct cuda_gemm_call *call)
{
    char what[128];
    enum gemm_alignment alignment = g->has[GEMM_VECTOR] && call_aligned(g, call) ? GEMM_VECTOR : GEMM_ELEMENT;
    cuda_rt_use(rt);
    if (!g->has[alignment]) {
        cuda_rt_fail(rt, STATUS_UNSUPPORTED, "cuBLASLt has no algorithm for operands without 16-byte alignment");
        return;
    }
    cublasStatus_t blas = cuda_gemm_multiply(rt, g, &g->algo[alignment], call);
    if (blas == CUBLAS_STATUS_SUCCESS) return;
    snprintf(what, sizeof what, "cuBLASLt refused a matrix product: %s", cublasLtGetStatusString(blas));
    cuda_rt_fail(rt, STATUS_IO, what);
}
