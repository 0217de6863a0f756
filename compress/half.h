/* 16-bit floats as stored bytes (little-endian, any alignment), rounded to nearest, ties to even. A value that would
 * round to infinity becomes the largest finite value of its sign. Denormals and -0 are kept. Every CPU gives the same
 * bits. */
#ifndef COMPRESS_HALF_H
#define COMPRESS_HALF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* bf16: sign, 8 bits of exponent, 7 of mantissa (the upper half of an fp32). x[n] is finite, dst holds 2n bytes. */
void bf16_narrow(const float *x, size_t n, uint8_t *dst);
void bf16_widen(const uint8_t *src, size_t n, float *x);
/* acc[i] = acc[i] + a * value, two roundings. */
void bf16_axpy(float a, const uint8_t *src, size_t n, float *acc);
bool bf16_finite(const uint8_t *src, size_t n);

/* fp16 (IEEE 754 binary16): sign, 5 bits of exponent, 10 of mantissa: up to 65504, 11 significant bits from 2^-14 up,
 * multiples of 2^-24 below. */
void fp16_narrow(const float *x, size_t n, uint8_t *dst);
void fp16_widen(const uint8_t *src, size_t n, float *x);
void fp16_axpy(float a, const uint8_t *src, size_t n, float *acc);
bool fp16_finite(const uint8_t *src, size_t n);

#endif
