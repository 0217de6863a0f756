/* Causal self-attention of one head (backward: of the heads that share keys and values).
 *
 * - A panel is NR queries, one a lane. Scores are stored [key][query], so maximum, sum and mask of the softmax are
 *   plain vector operations, and a panel of probabilities is already the B operand of the register tile.
 * - A panel covers the keys up to its last query; later ones are never computed.
 * - Memory is one panel (keys x NR), never T x T. Backward recomputes it from the stored log-sum-exp (Dao et al., arXiv
 *   2205.14135).
 * - Zeros pad everything to whole panels. Causality masks padded keys; padded queries have no gradient. */
#ifndef GPU_ATTN_BODY_H
#define GPU_ATTN_BODY_H

#include <math.h>

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/cpu/gemm_body.h"
#include "gpu/cpu/vec.h"

/* Buffers in the scratch of one thread. hd = head_dim, tp = seq rounded up to NR. */
struct attn_work {
    float *k_rows, *v_rows;  /* [tp][hd] (+ VL): K and V if they cannot be read in place */
    float *p, *ds;           /* [tp][NR] */
    float *q_cols, *do_cols; /* [hd][NR]: Q^T and dO^T as B operands */
    float *out_cols;         /* [hd + VL][NR] */
    float *q_rows, *do_rows; /* [NR][hdp]: as B operands, hdp = hd rounded up to NR */
    float *dk, *dv;          /* [tp][hdp] */
    size_t hdp, tp;
};

INLINE size_t round_to(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Lays the buffers out in scratch (NULL: only counts); returns the floats used. */
static size_t attn_layout(const struct attn_dims *d, bool backward, float *scratch, struct attn_work *w)
{
    size_t hd = d->head_dim, hdp = round_to(hd, NR), tp = round_to(d->seq, NR), used = 0;
    struct attn_work none;
    if (!w) w = &none;
    *w = (struct attn_work){.hdp = hdp, .tp = tp};
#define BUFFER(name, floats) (w->name = scratch ? scratch + used : NULL, used += round_to((floats), 16))
    BUFFER(k_rows, tp * hd + VL);
    BUFFER(v_rows, tp * hd + VL);
    BUFFER(p, tp * NR);
    BUFFER(q_cols, hd * NR);
    BUFFER(out_cols, (hd + VL) * NR);
    if (backward) {
        BUFFER(ds, tp * NR);
        BUFFER(do_cols, hd * NR);
        BUFFER(q_rows, NR * hdp);
        BUFFER(do_rows, NR * hdp);
        BUFFER(dk, tp * hdp);
        BUFFER(dv, tp * hdp);
    }
#undef BUFFER
    return used;
}

static size_t attn_scratch_floats(const struct attn_dims *d, bool backward)
{
    return attn_layout(d, backward, NULL, NULL);
}

/* dst[r][0..hd) = src[r][0..hd); writes nothing else. */
static void attn_copy_rows(size_t rows, size_t hd, const float *src, size_t ld, float *dst, size_t ldd)
{
    for (size_t r = 0; r < rows; r++) {
        FOR_VECTORS(i, n, hd) v_put(dst + r * ldd + i, v_part(src + r * ld + i, n), n);
    }
}

/* Same, into a block of `padded` rows of width ldd; the rest of the block becomes zero. */
static void attn_pad_rows(size_t rows, size_t padded, size_t hd, const float *src, size_t ld, float *dst, size_t ldd)
{
    if (rows < padded || hd < ldd) memset(dst, 0, padded * ldd * sizeof *dst);
    attn_copy_rows(rows, hd, src, ld, dst, ldd);
}

/* Rows of K or V as A operands: whole tiles only, row r at p + r * ld. */
struct attn_rows {
    const float *p;
    size_t ld;
};

/* Reads the rows in place, with two exceptions: they do not fill whole tiles, or a power of two separates them so
 * widely that their cache lines compete for the same sets of L1. */
static struct attn_rows attn_rows_of(const struct attn_dims *d, size_t tp, const float *src, float *copy)
{
    size_t hd = d->head_dim;
    if (d->seq == tp && hd % AMR == 0 && d->ld_qkv % 1024 != 0) return (struct attn_rows){.p = src, .ld = d->ld_qkv};
    attn_pad_rows(d->seq, tp, hd, src, d->ld_qkv, copy, hd);
    return (struct attn_rows){.p = copy, .ld = hd};
}

/* cols[hd][NR] = rows^T of the panel's nq queries. */
static void attn_pack_cols(size_t nq, size_t hd, const float *src, size_t ld, float *cols)
{
    size_t n0 = nq < VL ? nq : VL, n1 = nq - n0;
    pack_transposed(n0, hd, src, ld, cols, NR);
    pack_transposed(n1, hd, src + (n1 ? VL * ld : 0), ld, cols + VL, NR);
}

/* dst[q * ldd + j] = cols[j][q] for q < nq, j < hd; writes nothing else. */
static void attn_store_cols(size_t nq, size_t hd, const float *cols, float *dst, size_t ldd)
{
    float square[VL * VL];
    for (size_t q0 = 0; q0 < nq; q0 += VL)
        for (size_t j = 0; j < hd; j += VL) {
            size_t nj = hd - j < VL ? hd - j : VL, n = nq - q0 < VL ? nq - q0 : VL;
            vf row[VL];
#pragma GCC unroll 16
            for (size_t i = 0; i < VL; i++) row[i] = v_load(cols + (j + i) * NR + q0);
            if (n == VL && nj == VL) {
                v_transpose_store(row, dst + q0 * ldd + j, ldd);
                continue;
            }
            v_transpose_store(row, square, VL);
            for (size_t q = 0; q < n; q++) v_store_n(dst + (q0 + q) * ldd + j, v_load(square + q * VL), nj);
        }
}

/* Lanes of v whose query sees key `key`; the others become `masked`. half: 0 or 1 of the panel that starts at query
 * q0. */
INLINE vf attn_mask(vf v, size_t key, size_t q0, size_t half, vf masked)
{
    size_t first = q0 + half * VL;
    if (key <= first) return v;
    return v_keep_from(v, key - first < VL ? key - first : VL, masked);
}

/* As tile_add, on the second half of the lanes only. */
INLINE void attn_add_half(size_t k, const float *a, size_t rs, size_t cs, const float *b, vf acc[][2])
{
    for (; k > 0; k--, a += cs, b += NR) {
        vf b1 = v_load(b + VL);
#pragma GCC unroll 8
        for (int i = 0; i < AMR; i++) acc[i][1] = v_fma(v_set1(a[(size_t)i * rs]), b1, acc[i][1]);
    }
}

/* acc = rows key .. key + AMR of (K or V) times the panel's columns. The first half of the queries sees none of the
 * last VL keys, so these functions skip it there. */
INLINE void attn_dot(size_t key, size_t n_full, size_t hd, struct attn_rows rows, const float *cols, vf acc[][2])
{
    const float *a = rows.p + key * rows.ld;
    tile_zero(AMR, acc);
    if (key < n_full) {
        tile_add_rows(AMR, hd, a, rows.ld, cols, acc, NULL);
    } else {
        attn_add_half(hd, a, rows.ld, 1, cols, acc);
    }
}

/* cols[j][] = (sum over keys of rows[key][j] * p[key][]) * factor[]: out^T = V^T P, dQ^T = K^T dS. */
INLINE void attn_reduce_keys(size_t n_full, size_t hd, struct attn_rows rows, const float *p, const vf factor[2],
                             float *cols)
{
    vf acc[AMR][2];
    for (size_t j = 0; j < hd; j += AMR) {
        tile_zero(AMR, acc);
        tile_add(AMR, n_full, rows.p + j, 1, rows.ld, p, NR, acc);
        attn_add_half(VL, rows.p + n_full * rows.ld + j, 1, rows.ld, p + n_full * NR, acc);
#pragma GCC unroll 8
        for (size_t i = 0; i < AMR; i++) {
            v_store(cols + (j + i) * NR, acc[i][0] * factor[0]);
            v_store(cols + (j + i) * NR + VL, acc[i][1] * factor[1]);
        }
    }
}

/* out[key][] += sum over the panel's queries of p[key][query] * rows[query][]: dV += P dO, dK += dS Q. The first head
 * stores the sums of the panel's own keys, which no earlier panel has reached. */
INLINE void attn_add_keys(size_t q0, size_t hdp, const float *p, const float *rows, size_t ld, float *out,
                          size_t ld_out, bool first)
{
    vf acc[AMR][2];
    for (size_t j = 0; j < q0 + NR; j += AMR) {
        size_t skip = j < q0 + VL ? 0 : VL;
        for (size_t c = 0; c < hdp; c += NR) {
            tile_zero(AMR, acc);
            tile_add(AMR, NR - skip, p + j * NR + skip, NR, 1, rows + skip * ld + c, ld, acc);
#pragma GCC unroll 8
            for (size_t i = 0; i < AMR; i++) {
                float *o = out + (j + i) * ld_out + c;
                if (j < q0 || !first) {
                    acc[i][0] = acc[i][0] + v_load(o);
                    acc[i][1] = acc[i][1] + v_load(o + VL);
                }
                v_store(o, acc[i][0]);
                v_store(o + VL, acc[i][1]);
            }
        }
    }
}

static void attn_scores(size_t n_full, size_t hd, struct attn_rows k, const float *q_cols, float *p)
{
    vf acc[AMR][2];
    for (size_t j = 0; j < n_full + VL; j += AMR) {
        attn_dot(j, n_full, hd, k, q_cols, acc);
#pragma GCC unroll 8
        for (size_t i = 0; i < AMR; i++) {
            v_store(p + (j + i) * NR, acc[i][0]);
            v_store(p + (j + i) * NR + VL, acc[i][1]);
        }
    }
}

/* Softmax of one panel of unscaled scores, in place, without the division by the sums: factor = 1 / sum, lse =
 * log-sum-exp. */
INLINE void attn_softmax(size_t q0, float scale, float *p, vf factor[2], float lse[NR])
{
    const vf masked = v_set1(-1e30f), by = v_set1(scale);
    for (size_t half = 0; half < 2; half++) {
        vf top = masked, sum = v_zero();
        float *s = p + half * VL;
        size_t seen = q0 + half * VL; /* keys that all queries see; some queries see the next VL */
        for (size_t j = 0; j < seen; j++) top = v_max(top, v_load(s + j * NR));
        for (size_t j = seen; j < seen + VL; j++) top = v_max(top, v_keep_from(v_load(s + j * NR), j - seen, masked));
        top = top * by;
        for (size_t j = 0; j < seen; j++) {
            vf e = v_exp(v_fma(v_load(s + j * NR), by, -top));
            sum = sum + e;
            v_store(s + j * NR, e);
        }
        for (size_t j = seen; j < seen + VL; j++) {
            vf e = v_keep_from(v_exp(v_fma(v_load(s + j * NR), by, -top)), j - seen, v_zero());
            sum = sum + e;
            v_store(s + j * NR, e);
        }
        factor[half] = v_set1(1.0f) / sum;
        v_store(lse + half * VL, top + v_log(sum));
    }
    for (size_t j = q0 + VL; j < q0 + NR; j++) v_store(p + j * NR, v_zero());
}

static void attn_fwd_head(const struct attn_dims *d, const float *q, const float *k, const float *v, float *o,
                          float *lse, float *scratch)
{
    struct attn_work w;
    size_t hd = d->head_dim;
    attn_layout(d, false, scratch, &w);
    struct attn_rows k_rows = attn_rows_of(d, w.tp, k, w.k_rows), v_rows = attn_rows_of(d, w.tp, v, w.v_rows);
    for (size_t q0 = 0; q0 < d->seq; q0 += NR) {
        size_t nq = d->seq - q0 < NR ? d->seq - q0 : NR, n_full = q0 + VL;
        float lse_panel[NR];
        vf factor[2];
        attn_pack_cols(nq, hd, q + q0 * d->ld_qkv, d->ld_qkv, w.q_cols);
        attn_scores(n_full, hd, k_rows, w.q_cols, w.p);
        attn_softmax(q0, d->scale, w.p, factor, lse_panel);
        attn_reduce_keys(n_full, hd, v_rows, w.p, factor, w.out_cols);
        attn_store_cols(nq, hd, w.out_cols, o + q0 * d->ld_o, d->ld_o);
        if (lse) memcpy(lse + q0, lse_panel, nq * sizeof *lse);
    }
}

/* Dot products of n <= VL pairs of rows, one a lane; lanes n.. are zero. */
INLINE vf attn_row_dots(size_t n, size_t hd, const float *x, const float *y, size_t ld)
{
    vf row[VL], sum = v_zero();
    float square[VL * VL];
    for (size_t r = 0; r < VL; r++) {
        row[r] = v_zero();
        if (r >= n) continue;
        FOR_VECTORS(i, lanes, hd) row[r] = v_fma(v_part(x + r * ld + i, lanes), v_part(y + r * ld + i, lanes), row[r]);
    }
    v_transpose_store(row, square, VL);
    for (int i = 0; i < VL; i++) sum = sum + v_load(square + i * VL);
    return sum;
}

/* Inputs of backward for one panel of queries. */
struct attn_panel {
    size_t q0, nq;
    vf lse[2], delta[2]; /* delta = rowsum(dO o) */
};

static struct attn_panel attn_panel_of(const struct attn_dims *d, size_t q0, const float *o, const float *d_o,
                                       const float *lse)
{
    struct attn_panel panel = {.q0 = q0, .nq = d->seq - q0 < NR ? d->seq - q0 : NR};
    for (size_t half = 0; half < 2; half++) {
        size_t r = q0 + half * VL, n = r >= d->seq ? 0 : d->seq - r < VL ? d->seq - r : VL;
        if (n == 0) r = q0;
        panel.lse[half] = v_load_n(lse + r, n);
        panel.delta[half] = attn_row_dots(n, d->head_dim, d_o + r * d->ld_o, o + r * d->ld_o, d->ld_o);
    }
    return panel;
}

/* p = exp(scale * scores - lse), ds = scale * p (dp - delta) with dp = V dO^T: gradients of q k^T. */
INLINE void attn_bwd_panel(const struct attn_work *w, const struct attn_dims *d, struct attn_rows k, struct attn_rows v,
                           const struct attn_panel *panel)
{
    vf acc[AMR][2], by = v_set1(d->scale);
    vf lse[2] = {-panel->lse[0], -panel->lse[1]}, delta[2] = {-panel->delta[0] * by, -panel->delta[1] * by};
    size_t q0 = panel->q0, hd = d->head_dim;
    for (size_t j = 0; j < q0 + NR; j += AMR) {
        attn_dot(j, q0 + VL, hd, k, w->q_cols, acc);
#pragma GCC unroll 8
        for (size_t i = 0; i < AMR; i++)
#pragma GCC unroll 2
            for (size_t half = 0; half < 2; half++) {
                vf e = v_exp(v_fma(acc[i][half], by, lse[half]));
                v_store(w->p + (j + i) * NR + half * VL, attn_mask(e, j + i, q0, half, v_zero()));
            }
        attn_dot(j, q0 + VL, hd, v, w->do_cols, acc);
#pragma GCC unroll 8
        for (size_t i = 0; i < AMR; i++)
#pragma GCC unroll 2
            for (size_t half = 0; half < 2; half++) {
                size_t at = (j + i) * NR + half * VL;
                v_store(w->ds + at, v_load(w->p + at) * v_fma(acc[i][half], by, delta[half]));
            }
    }
}

/* Accumulators of dK and dV: in place if their panels are whole tiles. */
struct attn_sums {
    float *dk, *dv;
    size_t ld;
    bool whole; /* panels of Q, dO, dK and dV are whole tiles: no copies */
};

/* Backward of one query head. The `first` of its group stores; the others add. */
static void attn_bwd_head(const struct attn_dims *d, struct attn_work *w, struct attn_rows k_rows,
                          struct attn_rows v_rows, const float *q, const float *o, const float *lse, const float *d_o,
                          float *dq, const struct attn_sums *sums, bool first)
{
    size_t hd = d->head_dim, ld = d->ld_qkv;
    const vf one[2] = {v_set1(1.0f), v_set1(1.0f)};
    for (size_t q0 = 0; q0 < d->seq; q0 += NR) {
        struct attn_panel panel = attn_panel_of(d, q0, o, d_o, lse);
        const float *q_rows = q + q0 * ld, *do_rows = d_o + q0 * d->ld_o;
        size_t ldq = ld, ldo = d->ld_o;
        attn_pack_cols(panel.nq, hd, q_rows, ld, w->q_cols);
        attn_pack_cols(panel.nq, hd, do_rows, d->ld_o, w->do_cols);
        if (!sums->whole) {
            attn_pad_rows(panel.nq, NR, hd, q_rows, ld, w->q_rows, w->hdp);
            attn_pad_rows(panel.nq, NR, hd, do_rows, d->ld_o, w->do_rows, w->hdp);
            q_rows = w->q_rows;
            do_rows = w->do_rows;
            ldq = ldo = w->hdp;
        }
        attn_bwd_panel(w, d, k_rows, v_rows, &panel);
        attn_add_keys(q0, w->hdp, w->p, do_rows, ldo, sums->dv, sums->ld, first);
        attn_add_keys(q0, w->hdp, w->ds, q_rows, ldq, sums->dk, sums->ld, first);
        attn_reduce_keys(q0 + VL, hd, k_rows, w->ds, one, w->out_cols);
        attn_store_cols(panel.nq, hd, w->out_cols, dq + q0 * ld, ld);
    }
}

static void attn_bwd_group(const struct attn_dims *d, const float *q, const float *k, const float *v, const float *o,
                           const float *lse, const float *d_o, float *dq, float *dk, float *dv, float *scratch)
{
    struct attn_work w;
    size_t hd = d->head_dim, ld = d->ld_qkv;
    attn_layout(d, true, scratch, &w);
    struct attn_rows k_rows = attn_rows_of(d, w.tp, k, w.k_rows), v_rows = attn_rows_of(d, w.tp, v, w.v_rows);
    struct attn_sums sums = {.dk = dk, .dv = dv, .ld = ld, .whole = d->seq == w.tp && hd == w.hdp};
    if (!sums.whole) sums = (struct attn_sums){.dk = w.dk, .dv = w.dv, .ld = w.hdp};
    for (size_t h = 0; h < d->group; h++)
        attn_bwd_head(d, &w, k_rows, v_rows, q + h * hd, o + h * hd, lse + h * d->seq, d_o + h * hd, dq + h * hd, &sums,
                      h == 0);
    if (sums.whole) return;
    attn_copy_rows(d->seq, hd, w.dk, w.hdp, dk, ld);
    attn_copy_rows(d->seq, hd, w.dv, w.hdp, dv, ld);
}

#endif
