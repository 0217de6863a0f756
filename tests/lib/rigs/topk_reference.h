/* Top-k payloads by a slow reference written from docs/codecs.md: it sorts, and writes one bit at a time. */
#ifndef TESTS_LIB_TOPK_REFERENCE_H
#define TESTS_LIB_TOPK_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compress/codec.h"

enum topk_form { TOPK_SIGN, TOPK_TWO_BIT, TOPK_INT8, TOPK_FP16, TOPK_FORMS };

/* The whole payload of x[all spans] into dst (as large as codec_bound), what it decodes to, and which coordinates it
 * carries; returns its bytes. Of topk:K/CHUNK in one form. Asserts that it has room for all chunks. */
size_t topk_reference(enum topk_form form, uint32_t k, uint32_t chunk, const struct codec_span *spans, size_t n_spans,
                      const float *x, uint8_t *dst, float *decoded, bool *carried);

#endif
