#include "coordinator/outer/outer_opt.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/tensor/apply.h"
#include "common/tensor/sum_squares.h"
#include "compress/codec_simd.h"

static inline double gradient(const struct outer_in *in, size_t i)
{
    return in->parameters ? (double)in->theta[i] - (double)in->acc[i] : (double)in->acc[i];
}

/* step: the value to subtract from theta. */
static inline float result(const struct outer_in *in, size_t i, double step)
{
    return in->increment ? (float)-step : (float)((double)in->theta[i] - step);
}

void outer_sgd(const struct outer_in *in, double lr)
{
    apply_sgd(in->theta, in->acc, in->n, lr, in->parameters, in->increment);
}

void outer_nesterov(const struct outer_in *in, float *v, double lr, double mu)
{
    assert(v || !in->n);
    for (size_t i = 0; i < in->n; i++) {
        double g = gradient(in, i);
        v[i] = (float)(mu * (double)v[i] + g);
        in->acc[i] = result(in, i, lr * (g + mu * (double)v[i]));
    }
}

void outer_nesterov_share(const struct outer_in *in, float *v, const struct outer_share *p)
{
    assert(p->share > 0 && p->mu < 1 && (v || !in->n));
    double keep = pow(p->mu, p->share), c = (1 - keep) / (1 - p->mu), ahead = p->mu * p->mu * c;
    double of_g = (p->share - ahead) / (1 - p->mu);
    for (size_t i = 0; i < in->n; i++) {
        double g = p->scale * gradient(in, i), old = v[i];
        v[i] = (float)(keep * old + c * g);
        in->acc[i] = result(in, i, p->lr * (of_g * g + ahead * old));
    }
}

void outer_adamw(const struct outer_in *in, float *m, float *v, const struct outer_adamw *p)
{
    assert(p->t >= 1 && m && v); /* t = 0 would divide by zero */
    double fix1 = 1 - pow(p->beta1, (double)p->t), fix2 = 1 - pow(p->beta2, (double)p->t);
    for (size_t i = 0; i < in->n; i++) {
        double g = p->scale * gradient(in, i);
        m[i] = (float)(p->beta1 * (double)m[i] + (1 - p->beta1) * g);
        v[i] = (float)(p->beta2 * (double)v[i] + (1 - p->beta2) * g * g);
        double adam = ((double)m[i] / fix1) / (sqrt((double)v[i] / fix2) + p->eps);
        in->acc[i] = result(in, i, p->lr * p->decay * (double)in->theta[i] + p->lr * adam);
    }
}

double outer_clip_scale(double norm, double clip)
{
    if (!(clip > 0)) return 1;
    assert(!(norm < 0));
    double scale = clip / (norm + 1e-6);
    return scale < 1 ? scale : 1;
}

bool outer_finite(const float *x, size_t n)
{
    /* NaN and infinity have all exponent bits set. The integer comparison lets the compiler vectorize the loop. */
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

/* lane[i mod SUM_LANES] += a[i] b[i]. */
CODEC_SIMD(product, (const float *a, const float *b, size_t n, double *restrict lane), (a, b, n, lane))
{
    size_t i = 0;
    for (; i + SUM_LANES <= n; i += SUM_LANES)
        for (size_t k = 0; k < SUM_LANES; k++) lane[k] += (double)a[i + k] * (double)b[i + k];
    for (size_t k = 0; i < n; i++, k++) lane[k] += (double)a[i] * (double)b[i];
}

double outer_dot(const float *a, const float *b, size_t n)
{
    double lane[SUM_LANES] = {0};
    product(a, b, n, lane);
    return sum_lanes(lane);
}
