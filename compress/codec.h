/* A codec turns the floats of one fragment into bytes and back.
 *
 * A spec string names it: a chain joined by '+' of one value stage (fp32, bf16, int8:BLOCK, topk:K/CHUNK, ...), the
 * modifiers of that stage (topk: sign, 2bit, int8, fp16) and optional byte stages (lz4). Byte formats: docs/codecs.md.
 *
 * - A codec object is one chain configured for one fragment. Its encoder and decoder allocate nothing.
 * - Decoders take untrusted bytes. They check everything before they write anything, never trust a length, and refuse
 *   NaN, infinity and scales that decode to them.
 * - Encoding is a pure function of the input: the same floats give the same bytes on every CPU. */
#ifndef COMPRESS_CODEC_H
#define COMPRESS_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "common/config/codec_spec.h"
#include "common/tensor/delta_format.h"

struct layout;
struct pool;

/* One tensor of the fragment; spans are in tensor order. Chunked codecs follow rows and columns, dense ones ignore
 * them. */
struct codec_span {
    uint64_t offset, count; /* elements, from the start of the fragment */
    uint64_t rows, cols;    /* 1-D: rows is 1; more than 2-D: rows is the product of the leading dimensions */
    uint8_t ndim;
};

struct codec; /* opaque; one per fragment and direction; not thread-safe */

/* Parses `spec` and prepares for n floats described by spans. INVALID: err names the bad stage and the known ones.
 * UNSUPPORTED: the fragment is too large for the stage. NOMEM. */
enum status codec_create(struct codec **codec_p, const char *spec, const struct codec_span *spans, size_t n_spans,
                         struct err *err) MUST_CHECK;
/* Same, with the spans of fragment `fragment` of a layout. */
enum status codec_create_for_fragment(struct codec **codec_p, const char *spec, const struct layout *layout,
                                      uint32_t fragment, struct err *err) MUST_CHECK;
/* Same, but the codec only answers questions about sizes and parts. It holds no buffers for byte stages, each as large
 * as a payload. */
enum status codec_describe_for_fragment(struct codec **codec_p, const char *spec, const struct layout *layout,
                                        uint32_t fragment, struct err *err) MUST_CHECK;
size_t codec_memory(const struct codec *codec); /* bytes of a codec that can encode, byte stages' buffers included */
void codec_destroy(struct codec *codec);
/* Checks a spec without building it. */
enum status codec_spec_check(const char *spec, struct err *err) MUST_CHECK;

/* Top-k: the codec sends a coordinate in about one of this many payloads. 0: in every payload, or codec_spec_check
 * refuses the spec. */
uint32_t codec_spec_period(const char *spec);

const char *codec_spec(const struct codec *codec); /* canonical form */
size_t codec_count(const struct codec *codec);     /* floats */
size_t codec_bound(const struct codec *codec);     /* largest encoding of any input, bytes */
bool codec_lossless(const struct codec *codec);    /* codec_spec_lossless */
/* Error-feedback decay that the literature advises for this codec: 1 for dense quantizers, 0.95 for top-k. */
float codec_feedback_decay(const struct codec *codec);

/* Encodes x[count] into dst[cap].
 * - LIMIT: the payload does not fit; cap >= codec_bound always suffices.
 * - NONFINITE: x holds NaN or infinity; *bad_index is the index of the first, if bad_index is not NULL.
 * - *size_p is set only on success. */
enum status codec_encode(struct codec *codec, const float *x, uint8_t *dst, size_t cap, size_t *size_p,
                         size_t *bad_index) MUST_CHECK;
/* Makes the same bytes with the threads of a pool where the value stage encodes in parts. Top-k does not; there, the
 * threads only scan for NaN and infinity. pool NULL: the caller alone. Do not call it from inside a job. */
enum status codec_encode_pool(struct codec *codec, struct pool *pool, const float *x, uint8_t *dst, size_t cap,
                              size_t *size_p, size_t *bad_index) MUST_CHECK;
/* x[count] = decoded values. CORRUPT or NONFINITE leave x untouched. */
enum status codec_decode(struct codec *codec, const uint8_t *src, size_t size, float *x) MUST_CHECK;
/* acc[count] += a * decoded values, without a decoded copy where the codec can. CORRUPT or NONFINITE leave acc
 * untouched.
 * For a >= 0 it equals decode followed by acc[i] = acc[i] + a * x[i] bit for bit (no fused multiply-add). It skips the
 * coordinates that a payload leaves out; they decode to -0, which changes no sum. For a < 0 the sign of a zero can
 * differ. */
enum status codec_decode_axpy(struct codec *codec, float a, const uint8_t *src, size_t size, float *acc) MUST_CHECK;

/* From now on encoding and opening may run jobs on this pool, whose threads have `each` bytes of scratch memory each,
 * in order. The results are the same. Codecs that are not used at the same time may share both; they are borrowed. */
void codec_use_pool(struct codec *codec, struct pool *pool, void *scratch, size_t each);

/* ---- in parts, for several threads ----------------------------------------------------------------------------------
 *
 * A codec cuts its fragment into parts: ranges [from, to) of coordinates, end to end, about 2^17 floats each. They
 * depend only on the spec and the spans. Opening a payload undoes its byte stages and checks everything. After that,
 * any number of threads decode its parts in any order, and decoding cannot fail. Each coordinate is computed alone: a
 * caller that adds the payloads to a part in one order gets the same bits with any number of threads:
 *
 *     for every worker w: codec_open(codec, payload[w], size[w], room[w], &view[w]);          one thread, or many
 *     for every part p, shared out to threads:
 *         codec_views_add(all views and their weights, in order, workers, p, acc + codec_part(codec, p).from, NULL);
 *
 * A part's floats stay in cache while all workers are added to it, and several sparse payloads are read at once. */
struct codec_part {
    size_t index, from, to;
};

/* A payload that passed all checks. It borrows the payload, the codec and the room given to codec_open. */
struct codec_view {
    const struct codec *codec;
    const uint8_t *payload;
    size_t size;
};

size_t codec_parts(const struct codec *codec); /* >= 1 */
struct codec_part codec_part(const struct codec *codec, size_t index);
/* Bytes that codec_open needs to undo byte stages. 0 without byte stages: views then need no memory, and any number can
 * be open at once. */
size_t codec_open_room(const struct codec *codec);
/* Checks a payload and opens it.
 * - room: codec_open_room(codec) bytes, kept by the caller as long as the view. NULL: the codec's own memory; the view
 *   then ends at the next open, encode or decode on this codec.
 * - CORRUPT or NONFINITE as codec_decode.
 * - Not thread-safe on one codec that has byte stages. Views are thread-safe. */
enum status codec_open(struct codec *codec, const uint8_t *src, size_t size, uint8_t *room,
                       struct codec_view *view) MUST_CHECK;
/* The same for a payload that codec_open has accepted before, and that has not changed since: it is not checked again.
 */
enum status codec_open_again(struct codec *codec, const uint8_t *src, size_t size, uint8_t *room,
                             struct codec_view *view) MUST_CHECK;
/* Below, x, acc and weight point at the part's first coordinate and hold part.to - part.from floats. x = decoded values
 * of the part. */
void codec_view_decode(const struct codec_view *view, size_t part, float *x);
/* codec_sparse: the coordinates of the part that the payload carries, ascending from 0, and their values as
 * codec_view_decode gives them. The others decode to -0. Returns their number; both arrays have room for the whole
 * part. */
size_t codec_view_list(const struct codec_view *view, size_t part, uint32_t *index, float *value);
/* acc[i] += a * value, as codec_decode_axpy. */
void codec_view_axpy(const struct codec_view *view, size_t part, float a, float *acc);
/* Same, and weight[i] += a for each coordinate that the payload carries: acc / weight is then the mean over the senders
 * of a coordinate. A dense stage carries every coordinate. Top-k carries those it sent, and never sends a 0. */
void codec_view_axpy_weigh(const struct codec_view *view, size_t part, float a, float *acc, float *weight);

/* One of several payloads and its factor. */
struct codec_addend {
    const struct codec_view *view;
    float a;
};

/* Adds n payloads of one codec, in order. Bit for bit the same as n calls of codec_view_axpy_weigh, or of
 * codec_view_axpy if weight is NULL. */
void codec_views_add(const struct codec_addend *from, size_t n, size_t part, float *acc, float *weight);

/* True if payloads may leave out coordinates (top-k). False: every weight of a part is the same. */
bool codec_sparse(const struct codec *codec);

/* ---- quantized by a device ------------------------------------------------------------------------------------------
 *
 * A device may do the costly half of encoding, selecting and quantizing (common/tensor/delta_format.h). The functions
 * below turn its quantized values into bytes and back. */

/* How the codec cuts its fragment: *shape, and the table pieces[shape->n_pieces] unless `pieces` is NULL. Returns false
 * if the value stage has no such form. */
bool codec_delta_format(const struct codec *codec, struct delta_format *shape, struct piece_range *pieces);
/* Writes the payload of quantized values: byte for byte the result of codec_encode on the floats that the device
 * quantized.
 * - INVALID: codec_delta_format returns false.
 * - NONFINITE: a piece is marked bad.
 * - CORRUPT: no floats quantize to these values.
 * - LIMIT: as codec_encode. */
enum status codec_encode_quantized(struct codec *codec, const struct quantized_delta *quantized, uint8_t *dst,
                                   size_t cap, size_t *size_p) MUST_CHECK;

/* Unpacks a payload into quantized values, which a device adds (device.h, delta_add). They equal those that the payload
 * was made from, except `square`. `room`: as many bytes as delta_format_lay_out returns. INVALID as above; CORRUPT or
 * NONFINITE as codec_decode; room is undefined after an error. */
enum status codec_decode_quantized(struct codec *codec, const uint8_t *src, size_t size, void *room) MUST_CHECK;

/* Zeroth-order entropy of the payload's codes and positions, in bits per value.
 * - Dense stages: the entropy of the codes, without scales.
 * - Top-k: log2 of the number of ways to choose K positions in each chunk, plus the value bits.
 * - 1-D tensors of stages that send them as bf16 count 16 bits a value.
 * A payload can be smaller where zeros cluster, as in rows that training did not touch: +lz4 finds the runs, and top-k
 * sends no values for a chunk of zeros. */
double codec_bound_bits(const struct codec_view *view);

/* Prints the value stages and byte stages of this build, one line each. */
void codec_list(FILE *out);

#endif
