#include "tests/cuda/emulator/emulate_launch.h"

#include <stdlib.h>
#include <string.h>

#include "gpu/cuda/kernels/cuda_kernel.h"

struct emulated_launch *emulate_launch_keep(const struct cuda_grid *grid, const char *name,
                                            void (*thread)(const void *args), const void *args, size_t bytes,
                                            unsigned threads, size_t *size)
{
    struct emulated_launch *l = calloc(1, *size = sizeof *l + bytes);
    if (!l) abort();
    *l = (struct emulated_launch){
        .name = name, .thread = thread, .x = grid->x, .y = grid->y, .threads = threads, .bytes = bytes};
    memcpy(l->args, args, bytes);
    return l;
}

void emulate_launch_run(const struct emulated_launch *l)
{
    cuda_emulate(l->name, l->thread, l->args, l->bytes, l->x, l->y, l->threads);
}
