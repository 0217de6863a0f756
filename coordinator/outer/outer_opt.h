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

/* Delayed Nesterov (async, 2401.09135). Momentum m moves once every n_buffer arrivals:
 *     sum += w g;  flush:  m = mu m + sum / N;  theta' = theta - lr (mu m + w g / N);  sum = 0
 *     otherwise:                                theta' = theta - lr w g / N
 * A group of n deltas that arrived together is n arrivals with g = their mean and w = the sum of their weights. With
 * n = N this is Nesterov's step of a synchronous round.
 * m is used at a flush only, so one vector u[n] = mu m + sum / N stores both. Each g is divided by the N of its own
 * arrival. */
struct outer_delayed {
    double lr, mu, weight;
    uint32_t n_buffer; /* N >= 1 */
    bool flush;        /* the N-th arrival since the last flush is among these */
};
void outer_delayed_nesterov(const struct outer_in *in, float *u, const struct outer_delayed *p);

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
