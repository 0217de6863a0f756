/* What the shared parameter vector looks like: named tensors laid end to end in one flat fp32 vector theta, grouped
 * into contiguous fragments, the unit of synchronization.
 *
 * A worker makes the layout from its model and sends it when it joins; the coordinator keeps the first one and refuses
 * others. The coordinator knows tensors only through it: (name, shape, offset, decay, init). Names are the Hugging Face
 * names, shapes the Hugging Face shapes, so a checkpoint is theta with a safetensors header before it. */
#ifndef COMMON_LAYOUT_H
#define COMMON_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/bytes.h"
#include "common/base/status.h"

enum { LAYOUT_NAME_MAX = 96, LAYOUT_DIMS_MAX = 4, LAYOUT_TENSORS_MAX = 16384, LAYOUT_FRAGMENTS_MAX = 256 };
#define LAYOUT_PARAMS_MAX ((uint64_t)1 << 40)

enum layout_init { LAYOUT_INIT_ZEROS, LAYOUT_INIT_ONES, LAYOUT_INIT_NORMAL };

struct tensor {
    char name[LAYOUT_NAME_MAX];
    uint8_t ndim;                    /* 1 .. LAYOUT_DIMS_MAX */
    uint8_t init;                    /* enum layout_init */
    bool decay;                      /* weight decay applies (tensors of two or more dimensions) */
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
/* Append a tensor; offset follows from those before it. INVALID for a repeated name or one that no checkpoint carries
 * (printable ASCII, not empty, not beginning with "__"), a zero or overflowing shape. */
enum status layout_add(struct layout *layout, const char *name, int ndim, const uint64_t *shape, enum layout_init init,
                       float sigma, bool decay) MUST_CHECK;
/* Cut into at most `n` fragments of whole tensors and near-equal size. 0: by size, one per 4 Mi parameters begun up to
 * 8, then 8 until they would be larger than 32 Mi. */
enum status layout_split(struct layout *layout, uint32_t n) MUST_CHECK;
/* Index of the tensor called `name`, or -1. */
int layout_find(const struct layout *layout, const char *name);
/* Fingerprint of everything above. */
uint64_t layout_hash(const struct layout *layout);

size_t layout_encoded_size(const struct layout *layout);
void layout_encode(const struct layout *layout, struct writer *w);
/* Fills an initialised layout; checks every limit before it allocates. */
enum status layout_decode(struct layout *layout, struct reader *r) MUST_CHECK;

/* theta_0 of fragment f: theta is the fragment's `count` floats. Depends on (seed, tensor index, element) only; a large
 * one is made on all cores that the process may use. */
void layout_fill(const struct layout *layout, uint32_t fragment, uint64_t seed, float *theta);

/* The run's theta_hash: that of hash_floats over all tensors end to end in order of their names, which is how a
 * checkpoint's model.safetensors has them. However theta is cut into fragments, the same. */
uint64_t layout_theta_hash(const struct layout *layout, const float *theta);

#endif
