/* The outer path of a device against the codec: numbers made by device_ops.delta, bytes made of them, and the residual,
 * held against feedback_encode of the same floats. */
#ifndef TESTS_LIB_DELTA_CASE_H
#define TESTS_LIB_DELTA_CASE_H

#include <stddef.h>
#include <stdint.h>

#include "compress/codec.h"
#include "gpu/device.h"

/* What a fragment's delta looks like. */
enum delta_values {
    DELTA_NORMAL,
    DELTA_TIES,   /* a handful of magnitudes */
    DELTA_ZEROS,  /* of both signs */
    DELTA_SPARSE, /* fewer values than are to be sent */
    DELTA_TINY,   /* denormals, and around the smallest that is sent */
    DELTA_WIDE,   /* magnitudes over 200 octaves: sums depend on their order */
    DELTA_LARGE,
    DELTA_N,
    /* For one stage each: where another order of additions gives another scale. */
    DELTA_CHUNK_ORDER = DELTA_N, /* topk:32/256 */
    DELTA_BLOCK_ORDER            /* 1bit:64 */
};

/* How the operation is called. */
enum delta_call {
    DELTA_CALL,          /* residual in, rest out */
    DELTA_CALL_IN_PLACE, /* rest is residual */
    DELTA_CALL_ALONE,    /* neither: feedback is off */
    DELTA_CALL_GRADIENT, /* no anchor */
    DELTA_CALLS
};

/* A fragment of odd sizes: matrices and vectors, 7 spans of 13,470 values. */
const struct codec_span *delta_case_spans(size_t *n_spans);
struct codec *delta_case_codec(const char *spec, const struct codec_span *spans, size_t n_spans);
/* Fails the test where a byte of the payload or a bit of the residual differs. */
void delta_case_check(struct device *dev, const char *spec, const struct codec_span *spans, size_t n_spans,
                      enum delta_values values, enum delta_call call);

/* The way back: a payload's numbers, added to theta by the device, against codec_decode and apply_update. Fails the
 * test where a bit of theta differs, or where the numbers make another payload. */
void delta_case_add(struct device *dev, const char *spec, const struct codec_span *spans, size_t n_spans,
                    enum delta_values values);

/* The numbers of the spans' fragment in host memory, from `dev`; mem_free(*room). */
struct quantized_delta delta_case_numbers(struct device *dev, const struct codec *codec, const float *x, void **room);
void delta_case_fill(enum delta_values values, uint64_t seed, float *x, size_t n);

#endif
