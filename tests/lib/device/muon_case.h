/* Checks of device_ops.muon that any device must pass: numbers of PyTorch (tests/golden/make_muon_golden.py) and what
 * follows from the definition. Each fails the cmocka test it is called from. */
#ifndef TESTS_LIB_MUON_CASE_H
#define TESTS_LIB_MUON_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "gpu/device.h"

/* Three steps on eight odd shapes, the last with other numbers: the way theta went within `tol` of its length, for each
 * matrix; momentum within 1e-6. Gradients come four times too large, with a scale of a quarter. */
void muon_case_golden(struct device *dev, double tol);
/* Wide, tall and square: all singular values of a step are near 1, and left and right directions those of the gradient
 * (the product of gradient and step is symmetric and positive). What lies between columns of a block stays. */
void muon_case_directions(struct device *dev);
/* A scale of 0 changes nothing, even with NaN for a gradient; a zero gradient moves by decay alone; a tiny one (norm
 * 1e-12) and a huge one (1e12, clipping off) stay finite. */
void muon_case_edges(struct device *dev);
/* One step on larger matrices, gradients of many sizes, is that of `reference`, within tol of its length. */
void muon_case_same(struct device *dev, struct device *reference, double tol);
/* Momentum in bf16, two steps: to the bit what a plain loop makes of it (gpu/moment_rules.h), and theta near where it
 * goes with one in fp32, within tol of the way. */
void muon_case_bf16_momentum(struct device *dev, double tol);
/* theta and momentum after two steps on some shapes: hash, to compare bits. */
uint64_t muon_case_bits(struct device *dev);

#endif
