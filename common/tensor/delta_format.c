#include "common/tensor/delta_format.h"

#include <assert.h>

enum { ALIGN = 16 };

size_t delta_format_lay_out(const struct delta_format *shape, void *base, struct quantized_delta *out)
{
    size_t sizes[] = {shape->n_pieces * sizeof *out->heads, shape->n_plain * sizeof *out->plain,
                      shape->n_chosen * sizeof *out->index, shape->n_chosen * sizeof *out->code, shape->n_bytes};
    assert((uintptr_t)base % ALIGN == 0);
    uintptr_t at[5], end = (uintptr_t)base;
    for (int i = 0; i < 5; i++) {
        at[i] = end;
        end += (sizes[i] + ALIGN - 1) / ALIGN * ALIGN;
    }
    *out = (struct quantized_delta){.heads = (void *)at[0],
                                    .plain = (void *)at[1],
                                    .index = (void *)at[2],
                                    .code = (void *)at[3],
                                    .bytes = (void *)at[4]};
    return (size_t)(end - (uintptr_t)base);
}
