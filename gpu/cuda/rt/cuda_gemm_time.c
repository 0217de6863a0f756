/* Choice by timing: the fastest algorithm of a matrix product on this GPU. Results are kept in the cache. */
#include "gpu/cuda/rt/cuda_rt_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

enum {
    RUNS = 3,            /* of each candidate, after one to warm up */
    ROUNDS = 3,          /* over all candidates; the best round counts, because candidates may be close */
    TIMED_MIN = 1 << 24, /* a product with so many multiplications is timed, */
    READ_MIN = 1 << 22,  /* or one that reads so many numbers: a long sum over few columns can be slow, too */
    OPERANDS = 4,        /* A, B, OUT, aux */
    SAMPLE = 4099        /* numbers that operands repeat: a prime, so that rows differ */
};

/* Key of a product in the cache: everything that the choice depends on. */
static void key_of(const struct cuda_gemm_shape *s, enum gemm_alignment alignment, char key[ALGO_KEY_BYTES])
{
    char batch[24] = "";
    const char *end = s->bias ? "+bias" : s->dgelu ? "+dgelu" : "";
    if (s->batch) snprintf(batch, sizeof batch, ",%zu", s->batch); /* the steps follow from the other fields */
    snprintf(key, ALGO_KEY_BYTES, "%zux%zux%zu%s,%zu,%zu,%zu,%c%c,%s-%s%s,%s", s->m, s->n, s->k, batch, s->lda, s->ldb,
             s->ldc, s->a_trans ? 't' : 'n', s->b_trans ? 't' : 'n', s->bf16 ? "bf16" : "fp32",
             s->bf16_out ? "bf16" : "fp32", end, alignment == GEMM_VECTOR ? "vector" : "element");
}

enum status cuda_gemm_timing(bool *out, struct err *err)
{
    const char *set = getenv("ATOLL_ALGO_TIMING");
    *out = !set || !*set || !strcmp(set, "on");
    if (*out || !strcmp(set, "off")) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "ATOLL_ALGO_TIMING is \"%.40s\": set it to on or off", set);
}

static bool worth_timing(const struct cuda_gemm_shape *s)
{
    size_t products = gemm_products(s);
    return products * s->m * s->n * s->k >= TIMED_MIN || products * (s->m + s->n) * s->k >= READ_MIN;
}

/* --- operands for timing ------------------------------------------------------------------------------------------ */

struct timing {
    void *operands[OPERANDS];
    struct cuda_gemm_call call;
    cudaEvent_t begin, end;
};

static void timing_finish(struct cuda_rt *rt, struct timing *t)
{
    (void)cudaStreamSynchronize(rt->stream);
    (void)cudaGetLastError();
    if (t->begin) (void)cudaEventDestroy(t->begin);
    if (t->end) (void)cudaEventDestroy(t->end);
    for (int i = 0; i < OPERANDS; i++) (void)cudaFree(t->operands[i]);
}

/* Fills an operand with normal random numbers, as in a model. With equal numbers a GPU draws less power and clocks
 * higher, and another algorithm may be the fastest. */
static bool fill(struct cuda_rt *rt, void *to, size_t bytes, bool bf16)
{
    float *sample = mem_alloc(SAMPLE, sizeof *sample);
    if (!sample) return false;
    rng_normal_fill(1, RNG_TIMING, 0, 1, sample, SAMPLE);
    for (size_t i = 0; bf16 && i < SAMPLE; i++) /* bf16 is the upper half of fp32 */
        memmove((char *)sample + 2 * i, (char *)(sample + i) + 2, 2);
    size_t done = SAMPLE * gemm_number_bytes(bf16);
    if (done > bytes) done = bytes;
    bool ok = cudaMemcpyAsync(to, sample, done, cudaMemcpyHostToDevice, rt->stream) == cudaSuccess;
    while (ok && done < bytes) {
        size_t n = bytes - done < done ? bytes - done : done;
        ok = cudaMemcpyAsync((char *)to + done, to, n, cudaMemcpyDeviceToDevice, rt->stream) == cudaSuccess;
        done += n;
    }
    ok = cudaStreamSynchronize(rt->stream) == cudaSuccess && ok; /* copies of unpinned memory may complete late */
    mem_free(sample);
    return ok;
}

/* Allocates operands to time a product with. False if the GPU has no room for them; then the product is not timed. */
static bool timing_begin(struct cuda_rt *rt, const struct cuda_gemm_shape *s, struct timing *t)
{
    size_t before = gemm_products(s) - 1, in = gemm_number_bytes(s->bf16), out = gemm_number_bytes(s->bf16_out);
    size_t bytes[OPERANDS] = {(before * s->step_a + (s->a_trans ? s->k : s->m) * s->lda) * in,
                              (before * s->step_b + (s->b_trans ? s->n : s->k) * s->ldb) * in,
                              (before * s->step_c + (s->m + 1) * s->ldc) * out, /* one more row for the bias */
                              s->dgelu ? s->m * s->ldc * out : 0};
    bool ok = true;
    *t = (struct timing){0};
    for (int i = 0; i < OPERANDS; i++) { /* on the stream of the products, which waits for no other */
        if (!bytes[i]) continue;
        ok = ok && cudaMalloc(&t->operands[i], bytes[i]) == cudaSuccess &&
             fill(rt, t->operands[i], bytes[i], i < 2 ? s->bf16 : s->bf16_out);
    }
    void *row = ok ? (char *)t->operands[2] + s->m * s->ldc * out : NULL;
    t->call = (struct cuda_gemm_call){
        .a = t->operands[0],
        .b = t->operands[1],
        .out = t->operands[2],
        .c = s->bf16_out ? NULL : t->operands[2], /* products with an fp32 output accumulate gradients */
        .bias = s->bias ? row : NULL,
        .aux = t->operands[3]};
    ok = ok && cudaEventCreate(&t->begin) == cudaSuccess && cudaEventCreate(&t->end) == cudaSuccess;
    if (!ok) timing_finish(rt, t);
    return ok;
}

/* Milliseconds between the events; negative on failure. */
static float timing_read(struct cuda_rt *rt, const struct timing *t)
{
    float ms = -1;
    bool ok = cudaEventRecord(t->end, rt->stream) == cudaSuccess && cudaEventSynchronize(t->end) == cudaSuccess &&
              cudaEventElapsedTime(&ms, t->begin, t->end) == cudaSuccess;
    return ok ? ms : -1;
}

/* --- the fastest algorithm ---------------------------------------------------------------------------------------- */

/* Milliseconds of RUNS products; negative if the algorithm does not run. */
static float time_algo(struct cuda_rt *rt, const struct cuda_gemm *g, const cublasLtMatmulAlgo_t *algo,
                       const struct timing *t)
{
    bool ok = cuda_gemm_multiply(rt, g, algo, &t->call) == CUBLAS_STATUS_SUCCESS &&
              cudaEventRecord(t->begin, rt->stream) == cudaSuccess;
    for (int i = 0; i < RUNS; i++) ok = ok && cuda_gemm_multiply(rt, g, algo, &t->call) == CUBLAS_STATUS_SUCCESS;
    return ok ? timing_read(rt, t) : -1;
}

/* Index of the fastest of n proposals; -1 if timing fails. */
static int fastest(struct cuda_rt *rt, const struct cuda_gemm *g, const cublasLtMatmulHeuristicResult_t *found, int n)
{
    struct timing t;
    float least = -1;
    int best = -1;
    if (!timing_begin(rt, &g->shape, &t)) return -1;
    for (int i = 0; i < ROUNDS * n; i++) { /* in turn, because an idle GPU starts at a low clock */
        float ms = time_algo(rt, g, &found[i % n].algo, &t);
        if (ms < 0 || (least >= 0 && ms >= least)) continue;
        least = ms;
        best = i % n;
    }
    timing_finish(rt, &t);
    return best;
}

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == ALGO_WORDS * sizeof(uint64_t), "an algorithm is eight words");

/* Uses the cached algorithm, if the library still accepts it. */
static bool choose_cached(struct cuda_rt *rt, struct cuda_gemm *g, const char *key, enum gemm_alignment alignment)
{
    cublasLtMatmulHeuristicResult_t result;
    cublasLtMatmulAlgo_t algo;
    uint64_t words[ALGO_WORDS];
    if (!algo_cache_find(&rt->algos, key, words)) return false;
    memcpy(&algo, words, sizeof algo);
    if (cublasLtMatmulAlgoCheck(rt->blas, g->op, g->first, g->second, g->out, g->out, &algo, &result) !=
            CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > CUDA_WORKSPACE_BYTES)
        return false;
    g->algo[alignment] = algo;
    return g->has[alignment] = true;
}

/* The library's proposals and checks need a pointer for bias and aux, and assume its alignment for all calls. The
 * pointer is never read. It is aligned to 16 bytes and no more, as the pointers of calls are. */
static bool set_epilogue_pointers(struct cuda_rt *rt, const struct cuda_gemm *g)
{
    const struct cuda_gemm_shape *s = &g->shape;
    const void *at = (const char *)rt->workspace + GEMM_VECTOR_BYTES;
    return (!s->bias || GEMM_SET(g->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, at) == CUBLAS_STATUS_SUCCESS) &&
           (!s->dgelu || GEMM_SET(g->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at) == CUBLAS_STATUS_SUCCESS);
}

/* Times the proposals, unless another process has chosen meanwhile. The caller holds the cache's lock. */
static void choose_fastest(struct cuda_rt *rt, struct cuda_gemm *g, const char *key, enum gemm_alignment alignment,
                           const cublasLtMatmulHeuristicResult_t *found, int n)
{
    uint64_t words[ALGO_WORDS];
    if (choose_cached(rt, g, key, alignment)) return;
    int at = fastest(rt, g, found, n);
    if (at < 0) return;
    g->algo[alignment] = found[at].algo;
    memcpy(words, &g->algo[alignment], sizeof words);
    (void)!algo_cache_put(&rt->algos, key, words, NULL); /* if the write fails, the next run times again */
}

/* Falls back to the library's first proposal if nothing can be timed. */
bool cuda_gemm_choose(struct cuda_rt *rt, struct cuda_gemm *g, enum gemm_alignment alignment)
{
    cublasLtMatmulHeuristicResult_t found[GEMM_PROPOSALS];
    char key[ALGO_KEY_BYTES];
    bool timed = rt->timing;
    if (!set_epilogue_pointers(rt, g)) return false;
    key_of(&g->shape, alignment, key);
    if (timed && choose_cached(rt, g, key, alignment)) return true;
    int n = cuda_gemm_propose(rt, g, alignment, found);
    if (!n) return false;
    /* Misaligned pointers are rare, and tiny products are fast with any algorithm. */
    timed =
        timed && n > 1 && (alignment == GEMM_VECTOR || !cuda_gemm_rows_aligned(&g->shape)) && worth_timing(&g->shape);
    g->algo[alignment] = found[0].algo;
    if (timed) {
        algo_cache_lock(&rt->algos);
        choose_fastest(rt, g, key, alignment, found, n);
        algo_cache_unlock(&rt->algos);
    }
    return g->has[alignment] = true;
}
