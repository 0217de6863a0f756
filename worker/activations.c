#include "worker/activations.h"

#include "common/mem.h"

void *carve_take(struct carve *carve, size_t bytes)
{
    void *piece = carve->base ? carve->base + carve->used : NULL;
    carve->used += (bytes + MEM_ALIGN - 1) & ~(size_t)(MEM_ALIGN - 1);
    return piece;
}

void *carve_layer(struct carve *carve, size_t l, bool kept, void *of_first, size_t bytes)
{
    return l && !kept ? of_first : carve_take(carve, bytes);
}
