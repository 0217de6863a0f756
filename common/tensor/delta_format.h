/* What the outer path sends of a fragment, as numbers: the contract between the codecs (compress/), which cut fragments
 * and write bytes, and the devices (gpu/), which make the numbers where the parameters are. What a number means is in
 * docs/codecs.md; the bytes made of them are the same as the codec's own.
 *
 * A fragment is cut into pieces, in order and without gaps: chunks of top-k, blocks of a quantizer, and, where the
 * codec sends 1-D tensors as bf16, plain pieces. */
#ifndef COMMON_DELTA_FORMAT_H
#define COMMON_DELTA_FORMAT_H

#include <stddef.h>
#include <stdint.h>

/* The first four: top-k with these values. */
enum piece_kind {
    PIECE_SIGN,
    PIECE_TWO_LEVELS,
    PIECE_BYTES,
    PIECE_HALF,
    PIECE_INT8,
    PIECE_INT4,
    PIECE_E3M0,
    PIECE_2BIT,
    PIECE_1BIT
};

enum { PIECE_PLAIN_MAX = 4096 }; /* values of a plain piece */

struct piece_range {
    uint64_t from; /* its first float in the fragment */
    uint64_t out;  /* where its numbers begin: in `plain`; of a chunk in `index` and `code`; of a block in `bytes` */
    uint32_t length;
    uint32_t k; /* values sent: of a chunk at most this many, of a block all; 0: a plain piece */
};

struct delta_format {
    enum piece_kind kind;
    size_t n_values, n_pieces;
    size_t n_plain, n_chosen, n_bytes; /* numbers of all pieces: of plain ones, chunks (their k), blocks */
    uint32_t longest, k_max;           /* of chunks and blocks */
};

struct piece_head {
    double square;     /* sum of squares of the delta, without the residual */
    uint32_t scale[2]; /* chunk: codes; int8: the fp32 pattern; int4, 1bit: e8m8; e3m0: exponent; 2bit: e8m8, ratio */
    uint32_t n;        /* chunk: values sent */
    uint32_t bad;      /* 1: the piece holds NaN or infinity; nothing else of it counts */
};

struct quantized_delta {
    struct piece_head *heads; /* [n_pieces] */
    uint16_t *plain;          /* [n_plain] bf16 */
    uint16_t *index, *code;   /* [n_chosen] places inside the chunk, ascending; value codes */
    uint8_t *bytes;           /* [n_bytes] codes of blocks, packed as in the payload */
};

/* All of them in one buffer at `base` (16-byte aligned; any address: only computed with), which takes so many bytes. */
size_t delta_format_lay_out(const struct delta_format *shape, void *base, struct quantized_delta *out);

#endif
