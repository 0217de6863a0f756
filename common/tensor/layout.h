/* Layout of the parameter vector theta: named tensors laid end to end in one flat fp32 vector, grouped into contiguous
 * fragments, the unit of synchronization.
 *
 * - A worker makes the layout from its model and sends it when it joins. The coordinator keeps the first one and
 *   refuses others.
 * - The coordinator knows tensors only through the layout: (name, shape, offset, decay, init).
 * - Names and shapes are those of Hugging Face, so a checkpoint is theta after a safetensors header. */
#ifndef COMMON_LAYOUT_H
#define COMMON_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/bytes.h"
#include "common/base/status.h"

enum { LAYOUT_NAME_MAX = 192, LAYOUT_DIMS_MAX = 8, LAYOUT_TENSORS_MAX = 16384, LAYOUT_FRAGMENTS_MAX = 256 };
#define LAYOUT_PARAMS_MAX ((uint64_t)1 << 40)

enum layout_init { LAYOUT_INIT_ZEROS, LAYOUT_INIT_ONES, LAYOUT_INIT_NORMAL };
enum layout_flags {
    LAYOUT_DECAY = 1, /* weight decay applies (tensors of two or more dimensions) */
    LAYOUT_MEAN = 2,  /* not trained: the outer step takes the mean over the workers (statistics of BatchNorm) */
};

struct tensor {
    char name[LAYOUT_NAME_MAX];
    uint8_t ndim;                    /* 0 .. LAYOUT_DIMS_MAX */
    uint8_t init;                    /* enum layout_init */
    bool decay, mean;                /* enum layout_flags */
    float sigma;                     /* standard deviation of LAYOUT_INIT_NORMAL */
    uint64_t shape[LAYOUT_DIMS_MAX]; /* row-major */
    uint64_t offset, count;          /* elements of theta */
};

struct fragment {
    uint32_t first_tensor, n_tensors;
    uint64_t offset, count; /* elements of theta */
};

struct layout {
    struct tensor *tensors;
    uint32_t n_tensors, n_fragments;
    struct fragment fragments[LAYOUT_FRAGMENTS_MAX];
    uint64_t n_params;
};

void layout_init(struct layout *layout);
void layout_finish(struct layout *layout);
/* Append a tensor of shape[ndim]; its offset follows from the tensors before it. `flags`: enum layout_flags, or-ed.
 * INVALID for a zero or overflowing shape, a repeated name, or a name that a checkpoint cannot store: it must be
 * printable ASCII, not empty, without the prefix "__". NOMEM. */
enum status layout_add(struct layout *layout, const char *name, int ndim, const uint64_t *shape, enum layout_init init,
                       float sigma, uint32_t flags) MUST_CHECK;
/* Cut the trained tensors into at most `n` fragments of whole tensors and near-equal size. n 0: by size; one fragment
 * per started 4 Mi parameters up to 8, then 8 until a fragment would exceed 32 Mi. Mean tensors get fragments of their
 * own, by size. INVALID: a mean tensor stands before a trained one, or n is too large. */
enum status layout_split(struct layout *layout, uint32_t n) MUST_CHECK;
/* Cut it into n fragments that end before the elements ends[n], ascending; the last one is n_params. INVALID: an end
 * lies inside a tensor, or there are too many. */
enum status layout_cut(struct layout *layout, const uint64_t *ends, uint32_t n) MUST_CHECK;
/* A name that safetensors can store: printable ASCII, except for its reserved prefix ("__metadata__"). */
bool layout_name_ok(const char *name);
/* Index of the tensor called `name`, or -1. */
int layout_find(const struct layout *layout, const char *name);
/* Fingerprint of all tensors and fragments. */
uint64_t layout_hash(const struct layout *layout);

enum { LAYOUT_DIFFERENCE_MAX = 640 };
/* Writes how `other` differs from `run` in the first tensor that does: its name, and both shapes, or that one of the
 * two lacks it. Returns out. */
const char *layout_difference(const struct layout *other, const struct layout *run, char out[LAYOUT_DIFFERENCE_MAX]);

enum { LAYOUT_SHAPE = 192 };
/* "2, 3" of a shape, with `between` (at most 3 bytes) between the sizes; the end of a long one is cut. Returns out. */
const char *layout_shape(const uint64_t *shape, uint32_t ndim, const char *between, char out[LAYOUT_SHAPE]);

/* Bytes that layout_encode writes. */
size_t layout_encoded_size(const struct layout *layout);
void layout_encode(const struct layout *layout, struct writer *w);
/* True: the fragment holds mean tensors, otherwise trained ones. */
bool layout_is_mean(const struct layout *layout, uint32_t fragment);
/* The first fragment of mean tensors, which follow the trained ones; n_fragments: there is none. */
uint32_t layout_first_mean(const struct layout *layout);
/* True: a part of the name between dots is wte, wpe, embed_tokens or lm_head, the embeddings of GPT-2 and Llama. */
bool tensor_is_embedding(const char *name);
/* Fill an initialised layout; checks every limit before it allocates. CORRUPT, NOMEM; call layout_finish then, too. */
enum status layout_decode(struct layout *layout, struct reader *r) MUST_CHECK;

/* Write theta_0 of a fragment to theta[count]. The values depend only on (seed, tensor index, element). Large fragments
 * use all cores that the process may use. */
void layout_fill(const struct layout *layout, uint32_t fragment, uint64_t seed, float *theta);

/* The run's theta_hash: hash_floats over all tensors end to end in the order of their names, as in a checkpoint's
 * model.safetensors. It does not depend on the fragments. theta[n_params]. */
uint64_t layout_theta_hash(const struct layout *layout, const float *theta);

#endif
