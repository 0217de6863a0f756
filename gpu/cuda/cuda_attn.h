/* Attention of the CUDA device: cuDNN in bf16, else the plain loops of kernels/cuda_attention.cu. */
#ifndef GPU_CUDA_ATTN_H
#define GPU_CUDA_ATTN_H

#include "gpu/cuda/cuda_impl.h"

enum status cuda_attn_open(struct cuda_device *cuda) MUST_CHECK;
void cuda_attn_close(struct cuda_device *cuda);
/* Opens cuDNN for attention in bf16, if it is available. Appends to the device's name what computes attention. Errors:
 * INVALID: ATOLL_ATTENTION has an unknown value; those of cuDNN if it is required. */
enum status cuda_attn_use_bf16(struct cuda_device *cuda, struct err *err) MUST_CHECK;

#endif
