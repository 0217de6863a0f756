/* Row kernels of one instruction-set level: embedding, norms, cross entropy. A row is c (or v) floats. */
#ifndef GPU_ROWS_BODY_H
#define GPU_ROWS_BODY_H

#include <math.h>

#include "gpu/cpu/cpu_kernels.h"
#include "gpu/cpu/vec.h"

static void embed_rows(size_t first, size_t n_rows, size_t seq, size_t c, const int32_t *tokens, const float *wte,
                       const float *wpe, float *out)
{
    for (size_t r = first; r < first + n_rows; r++) {
        const float *word = wte + (size_t)tokens[r] * c, *position = wpe ? wpe + r % seq * c : NULL;
        if (!position) {
            memcpy(out + r * c, word, c * sizeof *out);
            continue;
        }
        FOR_VECTORS(i, n, c) v_put(out + r * c + i, v_part(word + i, n) + v_part(position + i, n), n);
    }
}

/* y += x for one row. */
static void add_row(size_t c, const float *x, float *y)
{
    FOR_VECTORS(i, n, c) v_put(y + i, v_part(y + i, n) + v_part(x + i, n), n);
}

/* Layer norm, or with mean and b NULL RMS norm. */
static void norm_fwd(size_t n_rows, size_t c, float eps, const float *x, const float *w, const float *b, float *y,
                     float *mean, float *rstd)
{
    float inv = 1.0f / (float)c, mu = 0;
    for (size_t r = 0; r < n_rows; r++, x += c, y += c) {
        vf sum = v_zero(), square = v_zero();
        if (mean) {
            FOR_VECTORS(i, n, c) sum = sum + v_part(x + i, n);
            mean[r] = mu = v_hsum(sum) * inv;
        }
        FOR_VECTORS(i, n, c)
        {
            vf d = v_part(x + i, n) - v_set1(mu);
            if (n < VL) d = v_keep_from(v_zero(), n, d);
            square = v_fma(d, d, square);
        }
        float rs = 1.0f / sqrtf(v_hsum(square) * inv + eps);
        FOR_VECTORS(i, n, c)
        {
            vf hat = (v_part(x + i, n) - v_set1(mu)) * v_set1(rs), by = v_part(w + i, n), plain = hat * by;
            v_put(y + i, b ? v_fma(hat, by, v_part(b + i, n)) : plain, n);
        }
        rstd[r] = rs;
    }
}

/* dx = dres + rstd * (g - mean(g) - hat * mean(g hat)), g = dy w, hat = (x - mean) rstd; dw += dy hat, db += dy. RMS
 * norm has no mean, no mean(g) and no db. */
static void norm_bwd(size_t n_rows, size_t c, const float *dy, const float *x, const float *w, const float *mean,
                     const float *rstd, const float *dres, float *dx, float *dw, float *db)
{
    float inv = 1.0f / (float)c;
    for (size_t r = 0; r < n_rows; r++, x += c, dy += c, dx += c) {
        vf mu = v_set1(mean ? mean[r] : 0), rs = v_set1(rstd[r]), sum = v_zero(), dot = v_zero();
        FOR_VECTORS(i, n, c)
        {
            vf d = v_part(dy + i, n), hat = (v_part(x + i, n) - mu) * rs;
            vf g = d * v_part(w + i, n);
            sum = sum + g;
            dot = v_fma(g, hat, dot); /* lanes from n on: g is zero */
            v_put(dw + i, v_fma(d, hat, v_part(dw + i, n)), n);
            if (db) v_put(db + i, v_part(db + i, n) + d, n);
        }
        vf mean_g = v_set1(mean ? v_hsum(sum) * inv : 0), mean_gh = v_set1(v_hsum(dot) * inv);
        FOR_VECTORS(i, n, c)
        {
            vf hat = (v_part(x + i, n) - mu) * rs, g = v_part(dy + i, n) * v_part(w + i, n);
            vf d = (g - mean_g - hat * mean_gh) * rs;
            if (dres) d = d + v_part(dres + r * c + i, n);
            v_put(dx + i, d, n);
        }
    }
}

/* log(sum(exp(row))) without overflow. */
INLINE float row_lse(const float *row, size_t v)
{
    vf top = v_set1(-INFINITY), sum = v_zero();
    size_t whole = v / VL * VL;
    for (size_t i = 0; i < whole; i += VL) top = v_max(top, v_load(row + i));
    float lanes[VL], max = -INFINITY;
    v_store(lanes, top);
    for (int i = 0; i < VL; i++) max = max > lanes[i] ? max : lanes[i];
    for (size_t i = whole; i < v; i++) max = max > row[i] ? max : row[i];
    for (size_t i = 0; i < whole; i += VL) sum = sum + v_exp(v_load(row + i) - v_set1(max));
    double total = v_hsum(sum);
    for (size_t i = whole; i < v; i++) total += exp((double)row[i] - (double)max);
    return max + (float)log(total);
}

/* loss = lse - logit[target]. Unless loss_only, logits become dlogits = (softmax - onehot) * dscale; the padding
 * columns v to ld become zero. */
static void xent_rows(size_t n_rows, size_t v, size_t ld, float *logits, const int32_t *targets, float dscale,
                      float *loss, bool loss_only)
{
    for (size_t r = 0; r < n_rows; r++) {
        float *row = logits + r * ld;
        int32_t target = targets[r];
        float lse = target < 0 ? 0 : row_lse(row, v);
        loss[r] = target < 0 ? 0 : lse - row[target];
        if (loss_only) continue;
        if (target < 0) {
            memset(row, 0, ld * sizeof *row);
            continue;
        }
        FOR_VECTORS(i, n, v) v_put(row + i, v_exp(v_part(row + i, n) - v_set1(lse)) * v_set1(dscale), n);
        row[target] -= dscale;
        for (size_t i = v; i < ld; i++) row[i] = 0;
    }
}

#endif
