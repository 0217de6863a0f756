/* GEMM kernels of one instruction-set level: packing and the register tile. gemm.h describes the algorithm. */
#ifndef GPU_GEMM_BODY_H
#define GPU_GEMM_BODY_H

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/cpu/gemm.h"
#include "gpu/cpu/vec.h"

INLINE void tile_zero(int rows, vf acc[][2])
{
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = v_zero();
}

/* Prefetches the memory that the tile's epilogue reads and writes, and the next panel of A, while the sums are
 * computed: a few lines at a time, so that they do not delay the lines of B. */
struct tile_fetch {
    const struct gemm_tile *t; /* NULL: nothing */
    size_t row;                /* next row of the tile to prefetch */
};

INLINE void tile_fetch_row(struct tile_fetch *f)
{
    const struct gemm_tile *t = f->t;
    if (!t || f->row >= t->rows) return;
    size_t at = f->row++ * t->ldc;
    __builtin_prefetch(t->c + at, 1);
    __builtin_prefetch(t->c + at + VL, 1);
    const float *in = t->aux_in ? t->aux_in : t->add != t->c ? t->add : NULL;
    if (in) {
        __builtin_prefetch(in + at);
        __builtin_prefetch(in + at + VL);
    }
}

/* acc[i][] += sum over k of a[i,k] * b[k][0..NR). Element a[i,k] is at a[i * rs + k * cs]. */
INLINE void tile_add(int rows, size_t k, const float *a, size_t rs, size_t cs, const float *b, size_t ldb, vf acc[][2])
{
    for (; k > 0; k--, a += cs, b += ldb) {
        vf b0 = v_load(b), b1 = v_load(b + VL);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vf x = v_set1(a[(size_t)i * rs]);
            acc[i][0] = v_fma(x, b0, acc[i][0]);
            acc[i][1] = v_fma(x, b1, acc[i][1]);
        }
    }
}

/* Same for a whole tile of a product, with prefetch. */
INLINE void tile_add_fetch(int rows, size_t k, const float *a, size_t cs, const float *b, vf acc[][2],
                           const struct gemm_tile *t)
{
    struct tile_fetch fetch = {.t = t};
    size_t ahead = t->next ? (size_t)(t->next - a) : 0;
    for (; k > 0 && fetch.row < t->rows; k--, a += cs, b += NR) {
        tile_fetch_row(&fetch);
        __builtin_prefetch(a + ahead);
        tile_add(rows, 1, a, 1, cs, b, NR, acc);
    }
    if (!ahead) {
        tile_add(rows, k, a, 1, cs, b, NR, acc);
        return;
    }
    for (; k > 0; k--, a += cs, b += NR) {
        __builtin_prefetch(a + ahead);
        tile_add(rows, 1, a, 1, cs, b, NR, acc);
    }
}

/* Same for rows of a row-major A (a[i,k] at a[i * lda + k]). Three rows share a pointer, and one increment covers four
 * steps: with a pointer for each row the address additions would displace multiply-adds. t: what to prefetch, NULL:
 * nothing. During one line of k, it prefetches GEMM_FETCH_ROWS lines of the next panel, one line each of as many
 * rows. */
INLINE void tile_add_rows(int rows, size_t k, const float *a, size_t lda, const float *b, vf acc[][2],
                          const struct gemm_tile *t)
{
    enum { GROUPS_MAX = (GEMM_MR_MAX + 2) / 3, STEPS = 4, LINE = STEPS * GEMM_FETCH_ROWS };
    const float *p[GROUPS_MAX], *next = t ? t->next : NULL;
    struct tile_fetch fetch = {.t = t};
    int groups = (rows + 2) / 3;
#pragma GCC unroll 16
    for (int g = 0; g < groups; g++) p[g] = a + 3 * (size_t)g * lda;
    for (; k >= STEPS; k -= STEPS, b += STEPS * NR) {
        if (next) __builtin_prefetch(next + k / STEPS % GEMM_FETCH_ROWS * lda + (k - STEPS) / LINE * LINE);
        tile_fetch_row(&fetch);
#pragma GCC unroll 4
        for (int s = 0; s < STEPS; s++) {
            vf b0 = v_load(b + s * NR), b1 = v_load(b + s * NR + VL);
#pragma GCC unroll 16
            for (int i = 0; i < rows; i++) {
                vf x = v_set1(p[i / 3][(size_t)(i % 3) * lda + (size_t)s]);
                acc[i][0] = v_fma(x, b0, acc[i][0]);
                acc[i][1] = v_fma(x, b1, acc[i][1]);
            }
        }
#pragma GCC unroll 16
        for (int g = 0; g < groups; g++) p[g] += STEPS;
    }
    for (; k > 0; k--, b += NR) {
        vf b0 = v_load(b), b1 = v_load(b + VL);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            vf x = v_set1(p[i / 3][(size_t)(i % 3) * lda]);
            acc[i][0] = v_fma(x, b0, acc[i][0]);
            acc[i][1] = v_fma(x, b1, acc[i][1]);
        }
#pragma GCC unroll 16
        for (int g = 0; g < groups; g++) p[g]++;
    }
}

/* Applies the epilogue to one vector of the tile and stores its first n lanes. */
INLINE void tile_finish(const struct gemm_tile *t, size_t at, size_t col, size_t n, vf v)
{
    if (t->bias) v = v + v_part(t->bias + col, n);
    if (t->add) v = v + v_part(t->add + at, n);
    vf dgelu;
    if (t->aux_out) v_put(t->aux_out + at, v, n);
    if (t->gelu) v = v_gelu(v, &dgelu);
    if (t->aux_in) {
        (void)v_gelu(v_part(t->aux_in + at, n), &dgelu);
        v = v * dgelu;
    }
    v_put(t->c + at, v, n);
}

/* The general epilogue: any number of columns, any combination. */
static void tile_finish_slow(const struct gemm_tile *t, const float *sums)
{
    for (size_t i = 0; i < t->rows; i++)
        for (size_t j = 0; j < t->cols; j += VL) {
            size_t n = t->cols - j < VL ? t->cols - j : VL;
            tile_finish(t, i * t->ldc + j, j, n, v_load(sums + i * NR + j));
        }
}

/* Bias and GELU of whole rows of NR. The input of the GELU is read again only in backward, so it bypasses the caches,
 * which saves fetching its lines first. */
static void tile_finish_gelu(const struct gemm_tile *t, const float *sums)
{
    vf bias[2] = {v_zero(), v_zero()}, dgelu;
    bool stream = (uintptr_t)t->aux_out % sizeof(vf) == 0 && t->ldc % VL == 0;
    for (int h = 0; t->bias && h < 2; h++) bias[h] = v_load(t->bias + h * VL);
    for (size_t i = 0, at = 0; i < t->rows; i++, at += t->ldc) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            vf z = v_load(sums + i * NR + h * VL) + bias[h];
            v_store(t->c + at + h * VL, v_gelu(z, &dgelu));
            if (!t->aux_out) continue;
            if (stream) {
                v_stream(t->aux_out + at + h * VL, z);
            } else {
                v_store(t->aux_out + at + h * VL, z);
            }
        }
    }
}

/* Multiplies whole rows of NR by the derivative of the previous layer's GELU. */
static void tile_finish_dgelu(const struct gemm_tile *t, const float *sums)
{
    vf dgelu;
    for (size_t i = 0, at = 0; i < t->rows; i++, at += t->ldc) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            (void)v_gelu(v_load(t->aux_in + at + h * VL), &dgelu);
            v_store(t->c + at + h * VL, v_load(sums + i * NR + h * VL) * dgelu);
        }
    }
}

/* Finishes R rows (a compile-time constant; the last may be one more than t->rows). Whole tiles with a cheap epilogue
 * stay in registers; the others go through a buffer in L1. */
INLINE void tile_store(int R, vf acc[][2], const struct gemm_tile *t)
{
    if (t->cols < NR || t->gelu || t->aux_in) {
        float sums[MR * NR];
#pragma GCC unroll 16
        for (int i = 0; i < R; i++) {
            v_store(sums + i * NR, acc[i][0]);
            v_store(sums + i * NR + VL, acc[i][1]);
        }
        if (t->cols < NR || t->add || (t->aux_in && t->bias)) {
            tile_finish_slow(t, sums);
        } else if (t->gelu) {
            tile_finish_gelu(t, sums);
        } else {
            tile_finish_dgelu(t, sums);
        }
        return;
    }
    vf bias[2] = {v_zero(), v_zero()};
    for (int h = 0; t->bias && h < 2; h++) bias[h] = v_load(t->bias + h * VL);
#pragma GCC unroll 16
    for (int i = 0; i < R; i++) {
        size_t at = (size_t)i * t->ldc;
        if (i == R - 1 && t->rows < (size_t)R) break;
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++, at += VL) {
            vf v = acc[i][h] + bias[h];
            if (t->add) v = v + v_load(t->add + at);
            v_store(t->c + at, v);
        }
    }
}

static void gemm_tile(size_t k, const float *a, size_t rs, size_t cs, const float *b, const struct gemm_tile *t)
{
    vf acc[MR][2];
    if (t->rows == MR && cs == 1) {
        tile_zero(MR, acc);
        tile_add_rows(MR, k, a, rs, b, acc, t);
        tile_store(MR, acc, t);
        return;
    }
    switch ((t->rows + 1) / 2) {
#define TILE_CASE(pairs)                                                                                               \
    case pairs:                                                                                                        \
        tile_zero(2 * (pairs) <= MR ? 2 * (pairs) : MR, acc);                                                          \
        tile_add_fetch(2 * (pairs) <= MR ? 2 * (pairs) : MR, k, a, cs, b, acc, t);                                     \
        tile_store(2 * (pairs) <= MR ? 2 * (pairs) : MR, acc, t);                                                      \
        break
        TILE_CASE(1);
        TILE_CASE(2);
        TILE_CASE(3);
        TILE_CASE(4);
        TILE_CASE(5);
        TILE_CASE(6);
        TILE_CASE(7);
#undef TILE_CASE
    }
}

/* dst[j * ld + i] = src[i * lds + j] for i < rows <= VL, j < cols; lanes rows.. are zero. Writes VL floats per j. */
INLINE void pack_transposed(size_t rows, size_t cols, const float *src, size_t lds, float *dst, size_t ld)
{
    vf row[VL];
    for (size_t j = 0; j < cols; j += VL) {
        size_t n = cols - j < VL ? cols - j : VL;
        if (n == VL && rows == VL) {
#pragma GCC unroll 16
            for (size_t i = 0; i < VL; i++) row[i] = v_load(src + i * lds + j);
            v_transpose_store(row, dst + j * ld, ld);
            continue;
        }
#pragma GCC unroll 16
        for (size_t i = 0; i < VL; i++) row[i] = i < rows ? v_load_n(src + i * lds + j, n) : v_zero();
        if (n == VL) {
            v_transpose_store(row, dst + j * ld, ld);
        } else {
            float square[VL * VL];
            v_transpose_store(row, square, VL);
            for (size_t q = 0; q < n; q++) v_store(dst + (j + q) * ld, v_load(square + q * VL));
        }
    }
}

/* Panels are written upwards in k, VL >= MR floats at a time. The next k overwrites the excess, and the panel has VL
 * floats of slack after the last one. */
static void pack_a(size_t rows, size_t k, const float *a, size_t lda, float *panel)
{
    pack_transposed(rows, k, a, lda, panel, MR);
}

/* Prefetch distance for rows that the hardware prefetcher cannot predict. */
enum { PACK_AHEAD = 24 };

static void pack_a_trans(size_t rows, size_t k, const float *a, size_t lda, float *panel)
{
    for (size_t j = 0; j < k; j++) {
        __builtin_prefetch(a + (j + PACK_AHEAD) * lda);
        v_store(panel + j * MR, v_load_n(a + j * lda, rows));
    }
}

static void pack_b(size_t cols, size_t k, const float *b, size_t ldb, float *panel, float *colsum)
{
    vf s0 = v_zero(), s1 = v_zero();
    size_t n0 = cols < VL ? cols : VL, n1 = cols - n0;
    for (size_t j = 0; j < k; j++, b += ldb, panel += NR) {
        __builtin_prefetch(b + PACK_AHEAD * ldb);
        __builtin_prefetch(b + PACK_AHEAD * ldb + VL);
        vf v0 = cols == NR ? v_load(b) : v_load_n(b, n0);
        vf v1 = cols == NR ? v_load(b + VL) : v_load_n(b + (n1 ? VL : 0), n1);
        v_store(panel, v0);
        v_store(panel + VL, v1);
        s0 = s0 + v0;
        s1 = s1 + v1;
    }
    if (!colsum) return;
    v_store_n(colsum, v_load_n(colsum, n0) + s0, n0);
    if (n1) v_store_n(colsum + VL, v_load_n(colsum + VL, n1) + s1, n1);
}

static void pack_b_trans(size_t cols, size_t k, const float *b, size_t ldb, float *panel)
{
    size_t n0 = cols < VL ? cols : VL, n1 = cols - n0;
    pack_transposed(n0, k, b, ldb, panel, NR);
    pack_transposed(n1, k, b + n0 * ldb, ldb, panel + VL, NR);
}

static double fma_burn(size_t rounds)
{
    vf acc[12], x = v_set1(1.0000001f), y = v_set1(1e-9f);
    for (int i = 0; i < 12; i++) acc[i] = v_set1((float)i);
    for (size_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) acc[i] = v_fma(acc[i], x, y);
    }
    for (int i = 1; i < 12; i++) acc[0] = acc[0] + acc[i];
    volatile float keep = v_hsum(acc[0]);
    (void)keep;
    return (double)rounds * 12 * 2 * VL;
}

#endif
