/* A codec turns one fragment's floats into bytes and back.
 *
 * It is named by a spec string, a chain joined by '+': one value stage (fp32, bf16, int8:BLOCK, ...) and optional byte
 * stages (lz4). A codec object is one chain configured for one fragment; its encoder and decoder allocate nothing.
 * Decoders get untrusted bytes: they check everything before they write anything, never trust a length, and refuse NaN,
 * infinity and scales that would make them. Encoding is a pure function of the input: same floats, same bytes, whatever
 * the CPU. Byte formats: docs/codecs.md. */
#ifndef COMPRESS_CODEC_H
#define COMPRESS_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/status.h"

struct layout;

/* The tensors of the fragment, in order: chunked codecs follow rows and columns, dense ones ignore them. */
struct codec_span {
    uint64_t offset, count; /* elements of the fragment */
    uint64_t rows, cols;    /* 1-D: rows 1; more than two dimensions: leading ones folded into rows */
    uint8_t ndim;
};

struct codec; /* opaque; one per fragment and direction; not thread-safe */

/* Parse `spec` and prepare for n floats described by spans. INVALID with a line naming the bad stage and the known ones. */
enum status codec_create(struct codec **codec_p, const char *spec, const struct codec_span *spans, size_t n_spans,
                         struct err *err) MUST_CHECK;
/* Same, spans taken from fragment `fragment` of a layout. */
enum status codec_create_for_fragment(struct codec **codec_p, const char *spec, const struct layout *layout,
                                      uint32_t fragment, struct err *err) MUST_CHECK;
void codec_destroy(struct codec *codec);
/* Check a spec without building it. */
enum status codec_spec_check(const char *spec, struct err *err) MUST_CHECK;

const char *codec_spec(const struct codec *codec); /* canonical form */
size_t codec_count(const struct codec *codec);     /* floats */
size_t codec_bound(const struct codec *codec);     /* largest encoding of any input, bytes */
bool codec_lossless(const struct codec *codec);    /* decode(encode(x)) == x bit for bit */
/* Error-feedback decay the literature advises for this codec: 1 for dense quantizers, 0.95 for top-k. */
float codec_feedback_decay(const struct codec *codec);

/* Encode x[count] into dst. LIMIT if cap < what is needed (cap >= bound always suffices); NONFINITE when x holds NaN or
 * infinity (index of the first in *bad_index when it is not NULL); *size_p only set on success. */
enum status codec_encode(struct codec *codec, const float *x, uint8_t *dst, size_t cap, size_t *size_p,
                         size_t *bad_index) MUST_CHECK;
/* x[count] = decoded values. CORRUPT or NONFINITE leave x untouched. */
enum status codec_decode(struct codec *codec, const uint8_t *src, size_t size, float *x) MUST_CHECK;
/* acc[count] += a * decoded values, without a decoded copy where the codec can. CORRUPT or NONFINITE leave acc untouched.
 * Equals decode followed by acc[i] = acc[i] + a * x[i] bit for bit (no fused multiply-add). */
enum status codec_decode_axpy(struct codec *codec, float a, const uint8_t *src, size_t size, float *acc) MUST_CHECK;

/* Value stages and byte stages this build knows, one line each. */
void codec_list(FILE *out);

#endif
