/* The tensors of a codec's part: a part is a range of the fragment, and may begin and end inside a tensor. */
#ifndef COMPRESS_TENSOR_PIECE_H
#define COMPRESS_TENSOR_PIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compress/codec.h"

struct layout;

/* The range of one tensor within a part. */
struct tensor_piece {
    uint32_t tensor; /* index within the fragment */
    size_t from, to; /* floats of the fragment */
};

/* Walks the pieces of a part in order; the first call takes a zeroed piece. False: there are no more. */
bool tensor_piece_next(const struct layout *layout, uint32_t fragment, struct codec_part part,
                       struct tensor_piece *piece);

#endif
