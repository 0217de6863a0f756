/* What a GPU could do at most. */
#ifndef GPU_CUDA_PEAK_H
#define GPU_CUDA_PEAK_H

/* FLOP/s of dense bf16 products summed in fp32, by the data sheet of the GPU with this name (cudaDeviceProp.name);
 * 0: not in the table. */
double cuda_peak_bf16(const char *name);

#endif
