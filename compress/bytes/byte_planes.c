#include "compress/bytes/byte_planes.h"

#include <string.h>

#include "compress/codec_simd.h"

/* With a constant width the compiler makes shuffles. */
CODEC_SIMD(split, (const uint8_t *restrict src, size_t n, size_t width, uint8_t *restrict dst), (src, n, width, dst))
{
    if (width == 2) {
        for (size_t i = 0; i < n; i++) dst[i] = src[2 * i];
        for (size_t i = 0; i < n; i++) dst[n + i] = src[2 * i + 1];
    } else if (width == 4) {
        for (size_t plane = 0; plane < 4; plane++)
            for (size_t i = 0; i < n; i++) dst[plane * n + i] = src[4 * i + plane];
    } else {
        for (size_t plane = 0; plane < width; plane++)
            for (size_t i = 0; i < n; i++) dst[plane * n + i] = src[i * width + plane];
    }
}

CODEC_SIMD(join, (const uint8_t *restrict src, size_t n, size_t width, uint8_t *restrict dst), (src, n, width, dst))
{
    if (width == 2) {
        for (size_t i = 0; i < n; i++) {
            dst[2 * i] = src[i];
            dst[2 * i + 1] = src[n + i];
        }
    } else if (width == 4) {
        for (size_t i = 0; i < n; i++) {
            dst[4 * i] = src[i];
            dst[4 * i + 1] = src[n + i];
            dst[4 * i + 2] = src[2 * n + i];
            dst[4 * i + 3] = src[3 * n + i];
        }
    } else {
        for (size_t plane = 0; plane < width; plane++)
            for (size_t i = 0; i < n; i++) dst[i * width + plane] = src[plane * n + i];
    }
}

void planes_split(const uint8_t *src, size_t size, size_t width, uint8_t *dst)
{
    size_t n = size / width;
    split(src, n, width, dst);
    memcpy(dst + n * width, src + n * width, size - n * width);
}

void planes_join(const uint8_t *src, size_t size, size_t width, uint8_t *dst)
{
    size_t n = size / width;
    join(src, n, width, dst);
    memcpy(dst + n * width, src + n * width, size - n * width);
}
