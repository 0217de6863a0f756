#include "compress/tensor_piece.h"

#include <assert.h>

#include "common/tensor/layout.h"

bool tensor_piece_next(const struct layout *layout, uint32_t fragment, struct codec_part part,
                       struct tensor_piece *piece)
{
    const struct fragment *frag = &layout->fragments[fragment];
    const struct tensor *tensors = &layout->tensors[frag->first_tensor];
    uint32_t t = piece->tensor;
    if (piece->to >= part.to) return false;
    if (!piece->to) { /* first call: find the tensor */
        uint32_t lo = 0, hi = frag->n_tensors - 1;
        while (lo < hi) {
            uint32_t mid = lo + (hi - lo + 1) / 2;
            if (tensors[mid].offset - frag->offset <= part.from)
                lo = mid;
            else
                hi = mid - 1;
        }
        t = lo;
        piece->from = part.from;
    } else {
        t++;
        piece->from = piece->to;
    }
    assert(t < frag->n_tensors);
    size_t end = tensors[t].offset - frag->offset + tensors[t].count;
    piece->tensor = t;
    piece->to = end < part.to ? end : part.to;
    assert(piece->from < piece->to);
    return true;
}
