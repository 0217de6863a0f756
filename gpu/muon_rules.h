/* Muon's constants, shared by both back ends: the polynomial, the length of a step, the work.
 *
 * One round of the Newton-Schulz iteration applies the odd quintic s -> a s + b s^3 + c s^5 to all singular values,
 * with X on its short side: G = X X^T, X = (a I + b G + c G G) X (for a tall X, X (...) with G = X^T X). The
 * coefficients are those of Keller Jordan's Muon (2024). They are steep at 0: five rounds bring every singular value
 * above 0.002 of the norm to 0.68 .. 1.21, and do not converge to 1. Before the first round X is divided by its
 * Frobenius norm, the root of G's trace, so the norm needs no pass over X. */
#ifndef GPU_MUON_RULES_H
#define GPU_MUON_RULES_H

#include <math.h>
#include <stddef.h>

#define MUON_A 3.4445f
#define MUON_B (-4.7750f)
#define MUON_C 2.0315f
#define MUON_NORM_MIN 1e-7 /* lower limit of the norm: avoids a division by zero */

static inline size_t muon_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static inline size_t muon_side(size_t rows, size_t cols)
{
    return rows < cols ? rows : cols;
}

/* 0.2 sqrt(max(rows, cols)) gives the step a root mean square of 0.2, about that of AdamW's (arXiv 2502.16982), so that
 * AdamW's learning rate and weight decay fit. */
static inline float muon_length(size_t rows, size_t cols)
{
    return (float)(0.2 * sqrt((double)muon_max(rows, cols)));
}

/* Multiply-adds of one round. */
static inline double muon_work(size_t rows, size_t cols)
{
    double side = (double)muon_side(rows, cols);
    return side * (2 * (double)rows * (double)cols + side * side);
}

#endif
