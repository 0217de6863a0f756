/* Groups bytes of the same significance: splits elements of `width` bytes into planes (all first bytes, then all second
 * ones, ...) and joins them again. Bytes after the last whole element follow unchanged. */
#ifndef COMPRESS_BYTE_PLANES_H
#define COMPRESS_BYTE_PLANES_H

#include <stddef.h>
#include <stdint.h>

/* dst[size]; src and dst do not overlap. width >= 1. */
void planes_split(const uint8_t *src, size_t size, size_t width, uint8_t *dst);
void planes_join(const uint8_t *src, size_t size, size_t width, uint8_t *dst);

#endif
