/* The outer path of a device against the codec.
 * Compares the quantized values of device_ops.delta, the bytes made from them, and the residual with feedback_encode
 * of the same floats. */
#ifndef TESTS_LIB_DELTA_CASE_H
#define TESTS_LIB_DELTA_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "compress/codec.h"
#include "gpu/device.h"

/* The values of a fragment's delta. */
enum delta_values {
    DELTA_NORMAL,
    DELTA_TIES,   /* a few magnitudes */
    DELTA_ZEROS,  /* of both signs */
    DELTA_SPARSE, /* fewer values than the codec may send */
    DELTA_TINY,   /* denormals, and values near the smallest that is sent */
    DELTA_WIDE,   /* magnitudes over 200 octaves: sums depend on their order */
    DELTA_LARGE,
    DELTA_N,
    /* One stage each: another order of additions gives another scale. */
    DELTA_CHUNK_ORDER = DELTA_N, /* topk:32/256 */
    DELTA_BLOCK_ORDER            /* 1bit:64 */
};

/* The form of the call. */
enum delta_call {
    DELTA_CALL,          /* residual as input, rest as output */
    DELTA_CALL_IN_PLACE, /* rest is residual */
    DELTA_CALL_ALONE,    /* neither: feedback is off */
    DELTA_CALL_GRADIENT, /* no anchor */
    DELTA_CALLS
};

/* A fragment of odd sizes: matrices and vectors, 7 spans of 13,470 values. */
const struct codec_span *delta_case_spans(size_t *n_spans);
struct codec *delta_case_codec(const char *spec, const struct codec_span *spans, size_t n_spans);
/* Fail the test if a byte of the payload or a bit of the residual differs. */
void delta_case_check(struct device *dev, const char *spec, const struct codec_span *spans, size_t n_spans,
                      enum delta_values values, enum delta_call call);

/* Add a payload's quantized values to theta on the device, against codec_decode and apply_update. Fails the test if
 * a bit of theta differs, or if the values make another payload. */
void delta_case_add(struct device *dev, const char *spec, const struct codec_span *spans, size_t n_spans,
                    enum delta_values values);

/* Return the quantized values of the spans' fragment in host memory, from `dev`; mem_free(*room). */
struct quantized_delta delta_case_numbers(struct device *dev, const struct codec *codec, const float *x, void **room);
void delta_case_fill(enum delta_values values, uint64_t seed, float *x, size_t n);

#endif
