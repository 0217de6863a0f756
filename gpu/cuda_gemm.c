/* Matrix products through cuBLASLt: descriptors made once, the algorithm that was fastest on this GPU. */
#include "gpu/cuda_rt_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

enum {
    PROPOSALS = 8,      /* algorithms that are timed */
    RUNS = 3,           /* of each, after one to warm up */
    TIMED_MIN = 1 << 24 /* multiplications of a product that is worth it */
};

/* Pointers to 16 bytes allow faster algorithms; parameters lie anywhere in theta, so both kinds must be at hand. */
enum alignment { ALIGN_ELEMENT, ALIGN_VECTOR, ALIGNMENTS };
enum { VECTOR_BYTES = 16 };

struct cuda_gemm {
    struct cuda_gemm_shape shape;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t first, second, out; /* column-major: B^T, A^T and C^T */
    bool has[ALIGNMENTS];
    cublasLtMatmulAlgo_t algo[ALIGNMENTS];
};

#define SET(desc, what, value) cublasLtMatmulDescSetAttribute((desc), (what), &(value), sizeof(value))

static size_t bytes_of(bool bf16)
{
    return bf16 ? 2 : sizeof(float);
}

static size_t products_of(const struct cuda_gemm_shape *s)
{
    return s->several ? s->several : 1;
}

static bool repeat(cublasLtMatrixLayout_t layout, const struct cuda_gemm_shape *s, size_t step)
{
    int32_t n = (int32_t)products_of(s);
    int64_t elements = (int64_t)step;
    return !s->several ||
           (cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n) ==
                CUBLAS_STATUS_SUCCESS &&
            cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &elements,
                                             sizeof elements) == CUBLAS_STATUS_SUCCESS);
}

/* cuBLAS is column-major: row-major C = A B is C^T = B^T A^T there, and a row-major matrix is its transpose already.
 * The bias belongs to its rows then, as cuBLASLt has it. */
static bool describe(struct cuda_gemm *g)
{
    const struct cuda_gemm_shape *s = &g->shape;
    cublasOperation_t first = s->b_trans ? CUBLAS_OP_T : CUBLAS_OP_N, second = s->a_trans ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t rows1 = s->b_trans ? s->k : s->n, cols1 = s->b_trans ? s->n : s->k;
    uint64_t rows2 = s->a_trans ? s->m : s->k, cols2 = s->a_trans ? s->k : s->m;
    cudaDataType_t in = s->bf16 ? CUDA_R_16BF : CUDA_R_32F, out = s->bf16_out ? CUDA_R_16BF : CUDA_R_32F;
    cublasLtEpilogue_t epilogue = s->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    return cublasLtMatmulDescCreate(&g->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           SET(g->op, CUBLASLT_MATMUL_DESC_TRANSA, first) == CUBLAS_STATUS_SUCCESS &&
           SET(g->op, CUBLASLT_MATMUL_DESC_TRANSB, second) == CUBLAS_STATUS_SUCCESS &&
           SET(g->op, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue) == CUBLAS_STATUS_SUCCESS &&
           (!s->bias || SET(g->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out) == CUBLAS_STATUS_SUCCESS) &&
           cublasLtMatrixLayoutCreate(&g->first, in, rows1, cols1, (int64_t)s->ldb) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&g->second, in, rows2, cols2, (int64_t)s->lda) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&g->out, out, s->n, s->m, (int64_t)s->ldc) == CUBLAS_STATUS_SUCCESS &&
           repeat(g->first, s, s->step_b) && repeat(g->second, s, s->step_a) && repeat(g->out, s, s->step_c);
}

/* Whether rows begin at 16 bytes when matrices do. */
static bool rows_aligned(const struct cuda_gemm_shape *s)
{
    size_t in = bytes_of(s->bf16), out = bytes_of(s->bf16_out);
    return s->lda * in % VECTOR_BYTES == 0 && s->ldb * in % VECTOR_BYTES == 0 && s->ldc * out % VECTOR_BYTES == 0 &&
           s->step_a * in % VECTOR_BYTES == 0 && s->step_b * in % VECTOR_BYTES == 0 &&
           s->step_c * out % VECTOR_BYTES == 0;
}

/* The library's proposals for pointers so aligned, best guess first; their number. */
static int propose(struct cuda_rt *rt, const struct cuda_gemm *g, enum alignment alignment,
                   cublasLtMatmulHeuristicResult_t found[PROPOSALS])
{
    cublasLtMatmulPreference_t wish = NULL;
    uint64_t workspace = CUDA_WORKSPACE_BYTES;
    uint32_t in = alignment == ALIGN_VECTOR ? VECTOR_BYTES : (uint32_t)bytes_of(g->shape.bf16);
    uint32_t out = alignment == ALIGN_VECTOR ? VECTOR_BYTES : (uint32_t)bytes_of(g->shape.bf16_out);
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        uint32_t bytes;
    } aligned[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, in},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, in},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out}};
    int n = 0, good = 0;
    if (cublasLtMatmulPreferenceCreate(&wish) != CUBLAS_STATUS_SUCCESS) return 0;
    bool ok = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                   sizeof workspace) == CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < 4; i++)
        ok = ok && cublasLtMatmulPreferenceSetAttribute(wish, aligned[i].what, &aligned[i].bytes,
                                                        sizeof aligned[i].bytes) == CUBLAS_STATUS_SUCCESS;
    ok = ok && cublasLtMatmulAlgoGetHeuristic(rt->blas, g->op, g->first, g->second, g->out, g->out, wish, PROPOSALS,
                                              found, &n) == CUBLAS_STATUS_SUCCESS;
    (void)cublasLtMatmulPreferenceDestroy(wish);
    for (int i = 0; ok && i < n; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS) found[good++] = found[i];
    return good;
}

static cublasStatus_t multiply(struct cuda_rt *rt, const struct cuda_gemm *g, const cublasLtMatmulAlgo_t *algo,
                               const struct cuda_gemm_call *call)
{
    const float one = 1, zero = 0;
    cublasStatus_t blas = CUBLAS_STATUS_SUCCESS;
    if (g->shape.bias) blas = SET(g->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, call->bias);
    if (blas != CUBLAS_STATUS_SUCCESS) return blas;
    return cublasLtMatmul(rt->blas, g->op, &one, call->b, g->first, call->a, g->second, call->c ? &one : &zero,
                          call->c ? call->c : call->out, g->out, call->out, g->out, algo, rt->workspace,
                          CUDA_WORKSPACE_BYTES, rt->stream);
}

/* --- the fastest algorithm ---------------------------------------------------------------------------------------- */

/* What a product is called in the cache: all that the choice depends on. */
static void key_of(const struct cuda_gemm_shape *s, enum alignment alignment, char key[ALGO_KEY_BYTES])
{
    char several[24] = "";
    if (s->several) snprintf(several, sizeof several, ",%zu", s->several); /* their steps follow from the rest */
    snprintf(key, ALGO_KEY_BYTES, "%zux%zux%zu%s,%zu,%zu,%zu,%c%c,%s-%s%s,%s", s->m, s->n, s->k, several, s->lda,
             s->ldb, s->ldc, s->a_trans ? 't' : 'n', s->b_trans ? 't' : 'n', s->bf16 ? "bf16" : "fp32",
             s->bf16_out ? "bf16" : "fp32", s->bias ? "+bias" : "", alignment == ALIGN_VECTOR ? "vector" : "element");
}

/* Operands to time a product with: no particular numbers, but none that a GPU is quick at. */
static bool make_operands(struct cuda_rt *rt, const struct cuda_gemm_shape *s, void *operands[3],
                          struct cuda_gemm_call *call)
{
    size_t before = products_of(s) - 1; /* the last one */
    size_t bytes[3] = {(before * s->step_a + (s->a_trans ? s->k : s->m) * s->lda) * bytes_of(s->bf16),
                       (before * s->step_b + (s->b_trans ? s->n : s->k) * s->ldb) * bytes_of(s->bf16),
                       (before * s->step_c + (s->m + 1) * s->ldc) * bytes_of(s->bf16_out)}; /* a row more: the bias */
    bool ok = true;
    for (int i = 0; i < 3; i++) { /* in the products' own stream, which waits for no other */
        ok = ok && cudaMalloc(&operands[i], bytes[i]) == cudaSuccess &&
             cudaMemsetAsync(operands[i], 0x3c, bytes[i], rt->stream) == cudaSuccess;
    }
    if (!ok) (void)cudaGetLastError(); /* no room to measure in is no failure */
    *call = (struct cuda_gemm_call){.a = operands[0], .b = operands[1], .out = operands[2],
                                    .c = s->bf16_out ? NULL : operands[2], /* gradients are added to */
                                    .bias = s->bias ? (char *)operands[2] + s->m * s->ldc * bytes_of(s->bf16_out)
                                                    : NULL};
    return ok;
}

/* Milliseconds of RUNS products; below zero: it does not run. */
static float time_of(struct cuda_rt *rt, const struct cuda_gemm *g, const cublasLtMatmulAlgo_t *algo,
                     const struct cuda_gemm_call *call, cudaEvent_t begin, cudaEvent_t end)
{
    float ms = -1;
    bool ok = multiply(rt, g, algo, call) == CUBLAS_STATUS_SUCCESS && cudaEventRecord(begin, rt->stream) == cudaSuccess;
    for (int i = 0; i < RUNS; i++) ok = ok && multiply(rt, g, algo, call) == CUBLAS_STATUS_SUCCESS;
    ok = ok && cudaEventRecord(end, rt->stream) == cudaSuccess && cudaEventSynchronize(end) == cudaSuccess &&
         cudaEventElapsedTime(&ms, begin, end) == cudaSuccess;
    return ok ? ms : -1;
}

/* The place of the fastest of n proposals; -1 where nothing can be measured. */
static int fastest(struct cuda_rt *rt, const struct cuda_gemm *g, const cublasLtMatmulHeuristicResult_t *found, int n)
{
    void *operands[3] = {NULL, NULL, NULL};
    struct cuda_gemm_call call;
    cudaEvent_t begin = NULL, end = NULL;
    float least = -1;
    int best = -1;
    bool ok = make_operands(rt, &g->shape, operands, &call) && cudaEventCreate(&begin) == cudaSuccess &&
              cudaEventCreate(&end) == cudaSuccess;
    for (int i = 0; ok && i < n; i++) {
        float ms = time_of(rt, g, &found[i].algo, &call, begin, end);
        if (ms < 0 || (least >= 0 && ms >= least)) continue;
        least = ms;
        best = i;
    }
    (void)cudaStreamSynchronize(rt->stream);
    (void)cudaGetLastError();
    if (begin) (void)cudaEventDestroy(begin);
    if (end) (void)cudaEventDestroy(end);
    for (int i = 0; i < 3; i++) (void)cudaFree(operands[i]);
    return best;
}

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == ALGO_WORDS * sizeof(uint64_t), "an algorithm is eight words");

/* Kept from an earlier run, if the library still takes it. */
static bool choose_kept(struct cuda_rt *rt, struct cuda_gemm *g, const char *key, enum alignment alignment)
{
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulAlgo_t algo;
    uint64_t words[ALGO_WORDS];
    if (!algo_cache_find(&rt->algos, key, words)) return false;
    memcpy(&algo, words, sizeof algo);
    if (cublasLtMatmulAlgoCheck(rt->blas, g->op, g->first, g->second, g->out, g->out, &algo, &result) !=
            CUBLAS_STATUS_SUCCESS || result.workspaceSize > CUDA_WORKSPACE_BYTES)
        return false;
    g->algo[alignment] = algo;
    return g->has[alignment] = true;
}

/* Proposals and checks take the bias to be as aligned as its pointer is: for them, and never read, one that is just so
 * aligned. */
static bool align_bias(struct cuda_rt *rt, const struct cuda_gemm *g, enum alignment alignment)
{
    const void *bias = (char *)rt->workspace + (alignment == ALIGN_VECTOR ? VECTOR_BYTES : bytes_of(g->shape.bf16_out));
    return !g->shape.bias || SET(g->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias) == CUBLAS_STATUS_SUCCESS;
}

/* ATOLL_ALGO_TIMING=off takes the library's guess, its first proposal, as does who cannot measure. */
static bool choose(struct cuda_rt *rt, struct cuda_gemm *g, enum alignment alignment)
{
    cublasLtMatmulHeuristicResult_t found[PROPOSALS];
    const char *timing = getenv("ATOLL_ALGO_TIMING");
    char key[ALGO_KEY_BYTES];
    bool timed = !timing || strcmp(timing, "off") != 0;
    int at = -1;
    if (!align_bias(rt, g, alignment)) return false;
    key_of(&g->shape, alignment, key);
    if (timed && choose_kept(rt, g, key, alignment)) return true;
    int n = propose(rt, g, alignment, found);
    if (!n) return false;
    /* Pointers that are not aligned are rare, and what is tiny is fast anyway. */
    timed = timed && n > 1 && (alignment == ALIGN_VECTOR || !rows_aligned(&g->shape)) &&
            products_of(&g->shape) * g->shape.m * g->shape.n * g->shape.k >= TIMED_MIN;
    if (timed) at = fastest(rt, g, found, n);
    g->algo[alignment] = found[at < 0 ? 0 : at].algo;
    g->has[alignment] = true;
    if (at >= 0) {
        uint64_t words[ALGO_WORDS];
        memcpy(words, &g->algo[alignment], sizeof words);
        (void)!algo_cache_put(&rt->algos, key, words, NULL); /* where it cannot be written, it is timed again */
    }
    return true;
}

enum status cuda_rt_gemm_create(struct cuda_rt *rt, const struct cuda_gemm_shape *shape, struct cuda_gemm **out)
{
    struct cuda_gemm *g = mem_alloc(1, sizeof *g);
    if (!g) return STATUS_NOMEM;
    g->shape = *shape;
    cuda_rt_use(rt);
    if (describe(g)) {
        (void)choose(rt, g, ALIGN_ELEMENT);
        if (rows_aligned(shape)) (void)choose(rt, g, ALIGN_VECTOR);
    }
    if (!g->has[ALIGN_ELEMENT] && !g->has[ALIGN_VECTOR]) {
        cuda_rt_gemm_free(g);
        return STATUS_UNSUPPORTED;
    }
    *out = g;
    return STATUS_OK;
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

static bool call_aligned(const struct cuda_gemm_call *call)
{
    uintptr_t all = (uintptr_t)call->a | (uintptr_t)call->b | (uintptr_t)call->c | (uintptr_t)call->out |
                    (uintptr_t)call->bias;
    return all % VECTOR_BYTES == 0;
}

void cuda_rt_gemm(struct cuda_rt *rt, const struct cuda_gemm *g, const struct cuda_gemm_call *call)
{
    enum alignment alignment = g->has[ALIGN_VECTOR] && call_aligned(call) ? ALIGN_VECTOR : ALIGN_ELEMENT;
    cuda_rt_use(rt);
    if (!g->has[alignment]) {
        cuda_rt_fail(rt, STATUS_UNSUPPORTED, "cuBLASLt has no algorithm for operands that are not aligned to 16 bytes");
        return;
    }
    cublasStatus_t blas = multiply(rt, g, &g->algo[alignment], call);
    if (blas != CUBLAS_STATUS_SUCCESS) cuda_rt_fail(rt, STATUS_IO, cublasLtGetStatusString(blas));
}
