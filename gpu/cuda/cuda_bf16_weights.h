/* The bf16 image of the parameters. With bf16 the parameters stay fp32, and matrix products read a rounded image of
 * them. AdamW writes both. Every other write makes its range of the image stale. A stale range is rounded again when a
 * model announces that it will read the range. */
#ifndef GPU_CUDA_BF16_WEIGHTS_H
#define GPU_CUDA_BF16_WEIGHTS_H

#include "gpu/cuda/cuda_impl.h"

enum { CUDA_IMAGE_SLACK = 1 << 17 }; /* numbers behind the image, which products read when they round up a vocabulary */

struct cuda_bf16_weights {
    uint16_t *values;
    size_t size;        /* capacity in parameters */
    const float *theta; /* the parameters of the image; NULL: none yet */
    size_t n;
    /* Ranges of theta that changed since, in order. When the list is full, two ranges become one. */
    struct {
        size_t begin, end;
    } stale[32];
    size_t n_stale;
};

/* Marks p[bytes] as changed: its range of the image is rounded again before its next use. Every writer of device memory
 * calls it, except kernels that also write the image. */
void cuda_written(struct cuda_device *cuda, const void *p, size_t bytes);
/* Address of parameters w for a matrix product: in the image, or with fp32 w itself. NULL with an error of the device
 * if w lies outside of the parameters. */
const void *cuda_weights(struct cuda_device *cuda, const float *w);
/* The image of theta, for a kernel that writes both; NULL: there is none. */
uint16_t *cuda_image_of(struct cuda_device *cuda, const float *theta);

#endif
