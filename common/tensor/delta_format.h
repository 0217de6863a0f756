/* Quantized deltas of a fragment: the contract between codecs and devices.
 *
 * - Codecs (compress/) cut fragments into pieces and write bytes. Devices (gpu/) compute the quantized values where the
 *   parameters are. The bytes written from these values are equal to the codec's own; docs/codecs.md defines the
 *   values.
 * - A fragment is cut into pieces, in order and without gaps: chunks of top-k, blocks of a quantizer, and plain pieces
 *   where the codec sends 1-D tensors as bf16. */
#ifndef COMMON_DELTA_FORMAT_H
#define COMMON_DELTA_FORMAT_H

#include <stddef.h>
#include <stdint.h>

/* The first four are top-k with these values; the others quantize blocks. */
enum piece_kind {
    PIECE_SIGN,
    PIECE_TWO_LEVELS,
    PIECE_BYTES,
    PIECE_HALF,
    PIECE_INT8,
    PIECE_INT4,
    PIECE_2BIT,
    PIECE_1BIT
};

enum { PIECE_PLAIN_MAX = 4096 }; /* values of a plain piece */

struct piece_range {
    uint64_t from; /* first float of the piece, counted in the fragment */
    uint64_t out;  /* offset of its values: plain piece: in `plain`; chunk: in `index` and `code`; block: in `bytes` */
    uint32_t length;
    uint32_t k; /* values sent: chunk: at most k; block: all values; 0: a plain piece */
};

struct delta_format {
    enum piece_kind kind;
    size_t n_values, n_pieces;
    size_t n_plain, n_chosen, n_bytes; /* totals: plain values, k of all chunks, bytes of all blocks */
    uint32_t longest, k_max;           /* maximum length and k of chunks and blocks */
};

struct piece_head {
    double square;     /* sum of squares of the delta, without the residual */
    uint32_t scale[2]; /* chunk: codes; int8: the fp32 pattern; int4, 1bit: e8m8; 2bit: e8m8, ratio */
    uint32_t n;        /* chunk: values sent */
    uint32_t bad;      /* 1: the piece holds NaN or infinity; its other values are invalid */
};

struct quantized_delta {
    struct piece_head *heads; /* [n_pieces] */
    uint16_t *plain;          /* [n_plain] bf16 */
    uint16_t *index, *code;   /* [n_chosen] positions inside the chunk, ascending; value codes */
    uint8_t *bytes;           /* [n_bytes] codes of blocks, packed as in the payload */
};

/* Lay out all arrays of *out in one buffer at `base` and return its size in bytes. `base` must be 16-byte aligned; it
 * may be a device address or NULL, because the function does not access it. */
size_t delta_format_lay_out(const struct delta_format *shape, void *base, struct quantized_delta *out);

#endif
