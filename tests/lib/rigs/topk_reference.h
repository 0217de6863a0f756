/* Top-k payloads by a slow reference written from docs/codecs.md: it sorts, and writes bit by bit. */
#ifndef TESTS_LIB_TOPK_REFERENCE_H
#define TESTS_LIB_TOPK_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compress/codec.h"

enum topk_form { TOPK_SIGN, TOPK_TWO_BIT, TOPK_INT8, TOPK_FP16, TOPK_FORMS };

/* Write the payload of x[all spans], topk:K/CHUNK in one form, to dst (as large as codec_bound). Sets the decoded
 * values and the carried coordinates; returns the payload's size. Asserts that all chunks fit. */
size_t topk_reference(enum topk_form form, uint32_t k, uint32_t chunk, const struct codec_span *spans, size_t n_spans,
                      const float *x, uint8_t *dst, float *decoded, bool *carried);

#endif
