/* How much memory this process can still get. */
#ifndef GPU_CPU_MEMORY_H
#define GPU_CPU_MEMORY_H

#include <stdint.h>

/* *free_p of *total_p bytes: of the machine, or of the control group that this process is confined to, whichever has
 * less left. What cannot be read is 0, both of them when nothing can. */
void cpu_memory(uint64_t *free_p, uint64_t *total_p);

#endif
