/* Peak arithmetic throughput of GPUs. */
#ifndef GPU_CUDA_PEAK_H
#define GPU_CUDA_PEAK_H

/* Peak of dense bf16 products with fp32 sums, in FLOP/s, from the data sheet of the GPU with this name
 * (cudaDeviceProp.name). 0: the table does not have it. */
double cuda_peak_bf16(const char *name);

#endif
