/* A codec turns one fragment's floats into bytes and back.
 *
 * It is named by a spec string, a chain joined by '+': one value stage (fp32, bf16, int8:BLOCK, topk:K/CHUNK, ...) with
 * its modifiers where it has some (topk: sign, 2bit, int8, fp16), and optional byte stages (lz4). A codec object is one
 * chain configured for one fragment; its encoder and decoder allocate nothing. Decoders get untrusted bytes: they check
 * everything before they write anything, never trust a length, and refuse NaN, infinity and scales that would make
 * them. Encoding is a pure function of the input: same floats, same bytes, whatever the CPU. Byte formats:
 * docs/codecs.md. */
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

/* The tensors of the fragment, in order: chunked codecs follow rows and columns, dense ones ignore them. */
struct codec_span {
    uint64_t offset, count; /* elements of the fragment */
    uint64_t rows, cols;    /* 1-D: rows 1; more than two dimensions: leading ones folded into rows */
    uint8_t ndim;
};

struct codec; /* opaque; one per fragment and direction; not thread-safe */

/* Parse `spec` and prepare for n floats described by spans. INVALID with a line naming the bad stage and the known
 * ones, UNSUPPORTED for a fragment that is too large for it. */
enum status codec_create(struct codec **codec_p, const char *spec, const struct codec_span *spans, size_t n_spans,
                         struct err *err) MUST_CHECK;
/* Same, spans taken from fragment `fragment` of a layout. */
enum status codec_create_for_fragment(struct codec **codec_p, const char *spec, const struct layout *layout,
                                      uint32_t fragment, struct err *err) MUST_CHECK;
/* Same, to be asked for sizes and parts, no more: without the buffers of byte stages, each as large as a payload. */
enum status codec_describe_for_fragment(struct codec **codec_p, const char *spec, const struct layout *layout,
                                        uint32_t fragment, struct err *err) MUST_CHECK;
size_t codec_memory(const struct codec *codec); /* bytes of mem_alloc, those buffers included */
void codec_destroy(struct codec *codec);
/* Check a spec without building it. */
enum status codec_spec_check(const char *spec, struct err *err) MUST_CHECK;

/* Top-k: a coordinate is sent about once in so many payloads. 0: in each, or a spec that codec_spec_check refuses. */
uint32_t codec_spec_period(const char *spec);

const char *codec_spec(const struct codec *codec); /* canonical form */
size_t codec_count(const struct codec *codec);     /* floats */
size_t codec_bound(const struct codec *codec);     /* largest encoding of any input, bytes */
bool codec_lossless(const struct codec *codec);    /* codec_spec_lossless */
/* Error-feedback decay the literature advises for this codec: 1 for dense quantizers, 0.95 for top-k. */
float codec_feedback_decay(const struct codec *codec);

/* Encode x[count] into dst. LIMIT if cap < what is needed (cap >= bound always suffices); NONFINITE when x holds NaN or
 * infinity (index of the first in *bad_index when it is not NULL); *size_p only set on success. */
enum status codec_encode(struct codec *codec, const float *x, uint8_t *dst, size_t cap, size_t *size_p,
                         size_t *bad_index) MUST_CHECK;
/* The same bytes by the threads of a pool, where the value stage has parts of its own in a payload (all but top-k: of
 * that only the look for NaN and infinity). pool NULL: the caller alone. Not from inside a job. */
enum status codec_encode_pool(struct codec *codec, struct pool *pool, const float *x, uint8_t *dst, size_t cap,
                              size_t *size_p, size_t *bad_index) MUST_CHECK;
/* x[count] = decoded values. CORRUPT or NONFINITE leave x untouched. */
enum status codec_decode(struct codec *codec, const uint8_t *src, size_t size, float *x) MUST_CHECK;
/* acc[count] += a * decoded values, without a decoded copy where the codec can. CORRUPT or NONFINITE leave acc
 * untouched. Equals decode followed by acc[i] = acc[i] + a * x[i] bit for bit (no fused multiply-add) for a >= 0:
 * coordinates that a payload leaves out are skipped, and decode to -0, which changes no sum. (a < 0 differs in the sign
 * of a zero.) */
enum status codec_decode_axpy(struct codec *codec, float a, const uint8_t *src, size_t size, float *acc) MUST_CHECK;

/* ---- in parts, for several threads ----------------------------------------------------------------------------------
 *
 * A codec cuts its fragment into parts: ranges [from, to) of coordinates that lie end to end and depend on the spec and
 * the spans only (about 2^17 floats each). A payload is opened once, which undoes byte stages and checks everything;
 * after that its parts are decoded in any order, by any number of threads, and nothing can fail. Each coordinate is
 * computed alone, so whoever adds the payloads to a part in one order gets the same bits at any number of threads:
 *
 *     for every worker w: codec_open(codec, payload[w], size[w], room[w], &view[w]);          one thread, or many
 *     for every part p, shared out to threads:
 *         codec_views_add(all views and their weights, in order, workers, p, acc + codec_part(codec, p).from, NULL);
 *
 * A part's floats stay in cache while all the workers are added to it, and sparse payloads are read several at once. */
struct codec_part {
    size_t index, from, to;
};

/* A payload that passed all checks. Borrows the payload, the codec and the room given to codec_open. */
struct codec_view {
    const struct codec *codec;
    const uint8_t *payload;
    size_t size;
};

size_t codec_parts(const struct codec *codec); /* >= 1 */
struct codec_part codec_part(const struct codec *codec, size_t index);
/* Bytes that codec_open needs to undo byte stages; 0 when there are none: then views cost nothing and any number may be
 * open at once. */
size_t codec_open_room(const struct codec *codec);
/* room: codec_open_room(codec) bytes, kept as long as the view; or NULL: the codec's own memory, and the view ends at
 * the next open, encode or decode on this codec. CORRUPT or NONFINITE as codec_decode. Not thread-safe on one codec
 * that has byte stages; views are. */
enum status codec_open(struct codec *codec, const uint8_t *src, size_t size, uint8_t *room,
                       struct codec_view *view) MUST_CHECK;
/* x, acc and weight point at the part's first coordinate and hold part.to - part.from floats.
 * Decoded values of the part. */
void codec_view_decode(const struct codec_view *view, size_t part, float *x);
/* acc[i] += a * value, as codec_decode_axpy. */
void codec_view_axpy(const struct codec_view *view, size_t part, float a, float *acc);
/* The same, and weight[i] += a for each coordinate that the payload carries: acc / weight is then the mean over the
 * senders of a coordinate. A dense stage carries every coordinate; top-k those it sent, and never one that was 0. */
void codec_view_axpy_weigh(const struct codec_view *view, size_t part, float a, float *acc, float *weight);

/* One of several payloads, and what it is multiplied by. */
struct codec_addend {
    const struct codec_view *view;
    float a;
};

/* The sum of n payloads of one codec: as codec_view_axpy_weigh, or where weight is NULL codec_view_axpy, of one after
 * the other, bit for bit. */
void codec_views_add(const struct codec_addend *from, size_t n, size_t part, float *acc, float *weight);

/* Payloads may leave out coordinates (top-k): where this is false, every weight of a part is the same. */
bool codec_sparse(const struct codec *codec);

/* ---- numbers made elsewhere -----------------------------------------------------------------------------------------
 *
 * The costly half of encoding, choosing and quantizing, may be a device's (common/tensor/delta_format.h); bytes are
 * made here. */

/* How the codec cuts its fragment: *shape, and the table [shape->n_pieces] where `pieces` is not NULL. False: the value
 * stage has no such form. */
bool codec_delta_format(const struct codec *codec, struct delta_format *shape, struct piece_range *pieces);
/* The payload of these numbers: byte for byte what codec_encode makes of the floats that they were made of. INVALID
 * where codec_delta_format is false, NONFINITE where a piece is bad, CORRUPT for numbers that no floats give, LIMIT. */
enum status codec_encode_quantized(struct codec *codec, const struct quantized_delta *numbers, uint8_t *dst, size_t cap,
                                   size_t *size_p) MUST_CHECK;

/* The numbers of a payload, for a device that adds what they stand for (device.h, delta_add): those that encode made it
 * of, but for `square`. `room`: as many bytes as delta_format_lay_out says. INVALID as above; CORRUPT or NONFINITE as
 * codec_decode; room is undefined then. */
enum status codec_decode_quantized(struct codec *codec, const uint8_t *src, size_t size, void *room) MUST_CHECK;

/* Bits per value that no coding of this payload's content goes below that takes codes and places one by one: for dense
 * stages the entropy of the codes, without scales; for top-k log2 of the number of choices where each chunk sends K,
 * and the value bits. 1-D tensors of stages that send those as bf16 count 16 bits a value. Where zeros lie together, as
 * in rows that were not touched, it takes less: +lz4 sees that, and top-k sends nothing of a chunk of them. */
double codec_bound_bits(const struct codec_view *view);

/* Value stages and byte stages this build knows, one line each. */
void codec_list(FILE *out);

#endif
