/* Checks of device_ops.muon for any device: the values of PyTorch (tests/golden/make_muon_golden.py) and properties
 * of the definition. A failure fails the running cmocka test. */
#ifndef TESTS_LIB_MUON_CASE_H
#define TESTS_LIB_MUON_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "gpu/device.h"

/* Three steps on eight odd shapes, the last with other settings. Each matrix's step has a relative error within
 * `tol`; momentum within 1e-6. Gradients are four times too large, with a scale of a quarter. */
void muon_case_golden(struct device *dev, double tol);
/* Wide, tall and square: all singular values of a step are near 1. Its left and right directions are the gradient's
 * (the product of gradient and step is symmetric and positive). Values between the columns of a block stay. */
void muon_case_directions(struct device *dev);
/* A scale of 0 changes no value, even with a NaN gradient. A zero gradient moves by decay alone. A tiny one (norm
 * 1e-12) and a huge one (1e12, clipping off) stay finite. */
void muon_case_edges(struct device *dev);
/* One step on larger matrices with gradients of many magnitudes equals the step of `reference`, within a relative
 * error of tol. */
void muon_case_same(struct device *dev, struct device *reference, double tol);
/* Momentum in bf16, two steps: bit for bit as a plain loop computes it (gpu/moment_rules.h). The step of theta is
 * within a relative error of tol of the fp32 step. */
void muon_case_bf16_momentum(struct device *dev, double tol);
/* Return the hash of theta and momentum after two steps on several shapes, to compare bits. */
uint64_t muon_case_bits(struct device *dev);

#endif
