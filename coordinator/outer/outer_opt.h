/* Outer optimizer steps on one fragment.
 *
 * - Elementwise in double; state and results in fp32. Any split into ranges gives the same bits.
 * - Input: the merged values acc[n]. Output, in place: the increment of theta (`increment`), or the new theta.
 * - The pseudo-gradient of an element is g = acc (acc is a merged gradient or pseudo-gradient), or g = theta - acc (acc
 *   is a mean of parameters). */
#ifndef COORDINATOR_OUTER_OPT_H
#define COORDINATOR_OUTER_OPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct outer_in {
    const float *theta; /* [n] before the step */
    float *acc;         /* [n] in: merged; out: increment or new theta */
    size_t n;
    bool parameters; /* acc is a mean of parameters, not a gradient */
    bool increment;  /* true: compute the increment; false: the new theta */
};

/* theta' = theta - lr * g. With lr 1 and a mean of parameters, theta' is exactly that mean. */
void outer_sgd(const struct outer_in *in, double lr);
/* v[n]: v = mu v + g; theta' = theta - lr (g + mu v). PyTorch's Nesterov; DiLoCo, 2311.08105. */
void outer_nesterov(const struct outer_in *in, float *v, double lr, double mu);

/* A share of Nesterov's step (async): the deltas of a group have the inner steps of `share` synchronous rounds.
 *     h = g / (1 - mu), where v settles if g stays;   c = (1 - mu^share) / (1 - mu)
 *     theta' = theta - lr (share h + c mu^2 (v - h));   v = h + mu^share (v - h)
 * Steps with shares a and b and equal g are one step with the share a + b, and a share of 1 is outer_nesterov. So
 * momentum lasts as many inner steps as in a synchronous round, whatever the size of the groups. Delayed Nesterov
 * (2401.09135) moves momentum when as many deltas as workers have arrived. */
struct outer_share {
    double lr, mu, share; /* share > 0 */
    double scale;         /* multiplies g */
};
void outer_nesterov_share(const struct outer_in *in, float *v, const struct outer_share *p);

/* AdamW with m[n] and v[n], the same as the workers' (decoupled decay; Loshchilov and Hutter, 1711.05101):
 *     g *= scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g g
 *     theta' = theta (1 - lr decay) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) */
struct outer_adamw {
    double lr, beta1, beta2, eps, decay;
    double scale; /* clip coefficient of the gradient */
    uint64_t t;   /* step, from 1 */
};
void outer_adamw(const struct outer_in *in, float *m, float *v, const struct outer_adamw *p);

/* min(1, clip / (norm + 1e-6)); 1 when clip <= 0. PyTorch's clip_grad_norm_. */
double outer_clip_scale(double norm, double clip);
/* The dot product, added in the order of common/tensor/sum_squares.h. */
double outer_dot(const float *a, const float *b, size_t n);
/* True if all values of x[n] are finite. */
bool outer_finite(const float *x, size_t n);

#endif
