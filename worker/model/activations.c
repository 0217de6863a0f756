#include "worker/model/activations.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "compress/half.h"

void *carve_take(struct carve *carve, size_t bytes)
{
    void *piece = carve->base ? carve->base + carve->used : NULL;
    carve->used += (bytes + MEM_ALIGN - 1) & ~(size_t)(MEM_ALIGN - 1);
    return piece;
}

void *carve_layer(struct carve *carve, size_t l, bool kept, void *first, size_t bytes)
{
    return l && !kept ? first : carve_take(carve, bytes);
}

void activations_widen(const void *in, size_t act_bytes, size_t n, float *out)
{
    assert(act_bytes == sizeof(float) || act_bytes == sizeof(uint16_t));
    if (act_bytes == sizeof(float))
        memcpy(out, in, n * sizeof *out);
    else
        bf16_widen(in, n, out);
}
