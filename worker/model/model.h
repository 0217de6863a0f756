/* A model family describes its parameters and blocks. worker/model/decoder.h creates and runs instances.
 *
 * To add a family: one file with its layout, its config.json and its kind, and a row in families.c. */
#ifndef WORKER_MODEL_H
#define WORKER_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/hf_config.h"
#include "common/tensor/layout.h"
#include "gpu/device.h"
#include "worker/inner/inner_matrices.h"

struct config;
struct decoder_kind;

/* The place of block i in theta, and the number of blocks before group g. */
static inline uint32_t model_blocks_before(const struct model_config *c, uint32_t g)
{
    uint32_t n = c->groups > 1 ? c->groups : 1, rest = c->n_layer % n;
    return g * (c->n_layer / n) + (g < rest ? g : rest);
}

static inline uint32_t model_block_place(const struct model_config *c, uint32_t i)
{
    uint32_t n = c->groups > 1 ? c->groups : 1;
    return model_blocks_before(c, i % n) + i / n;
}

/* Purposes of an instance. Only MODEL_TRAIN keeps the activations of every layer. */
enum model_use { MODEL_TRAIN = 1, MODEL_LOSS = 2, MODEL_LOGITS = 4 };

/* With MODEL_TRAIN: the activations that backward recomputes instead of keeping. Each level recomputes all that the
 * level before does, and more. Losses and gradients are the same bit for bit. */
enum model_recompute {
    MODEL_KEEP_ALL,
    MODEL_RECOMPUTE_ACT,  /* outputs of activation functions */
    MODEL_RECOMPUTE_NORM, /* and outputs of norms */
    MODEL_RECOMPUTE_BLOCK /* everything except the residual stream between layers: most of a second forward pass */
};

/* Pack a recompute level into `uses`, and unpack it. */
static inline unsigned model_uses(unsigned uses, enum model_recompute level)
{
    return uses | (unsigned)level << 8;
}

static inline enum model_recompute model_recompute_of(unsigned uses)
{
    return (enum model_recompute)(uses >> 8);
}

/* Callbacks of decoder_run while it submits operations. Ranks use them to move parameters and gradients between devices
 * in parallel with the computation. Ranges of theta come in any order and size; either function may be NULL. */
struct model_hooks {
    /* The operations submitted after this call read theta [offset, offset + count). Each run names every parameter
     * before its first use. */
    void (*needs)(void *ctx, uint64_t offset, uint64_t count);
    /* Gradients [offset, offset + count) are final when the operations submitted so far have finished, and later
     * operations do not read them. Each run with gradients names every gradient once. */
    void (*ready)(void *ctx, uint64_t offset, uint64_t count);
    void *ctx;
};

struct model_family {
    const char *name;               /* model.family */
    hidden_blocks_fn hidden_blocks; /* NULL: inner.optimizer muon is refused */
    /* Appends the tensors (Hugging Face names and shapes) to an initialised layout; the caller cuts fragments. INVALID
     * for sizes that do not form a model. */
    enum status (*layout)(const struct model_config *config, struct layout *layout, struct err *err) MUST_CHECK;
    /* Writes the text of config.json for Hugging Face to out[cap]. LIMIT if it does not fit. */
    enum status (*config_json)(const struct model_config *config, char *out, size_t cap) MUST_CHECK;
    /* Describes the blocks for decoder.c. Requires a `config` that `layout` accepted. */
    struct decoder_kind (*kind_of)(const struct model_config *config);
};

/* Announces that parameters [offset, offset + count) of theta[n] are read next: the hook delivers them, the device
 * converts them to its own format. */
static inline void model_needs(struct device *dev, const float *theta, uint64_t n, const struct model_hooks *hooks,
                               uint64_t offset, uint64_t count)
{
    if (hooks && hooks->needs) hooks->needs(hooks->ctx, offset, count);
    device_params(dev, theta, n, offset, count);
}

static inline void model_ready(const struct model_hooks *hooks, uint64_t offset, uint64_t count)
{
    if (hooks && hooks->ready) hooks->ready(hooks->ctx, offset, count);
}

/* Returns NULL for an unknown name. */
const struct model_family *model_family_find(const char *name);
/* Cuts a filled layout into train.fragments fragments of near-equal size. With train.stagger: the embeddings, the
 * groups of blocks (the last with the final norm), and an output layer of its own. INVALID. */
enum status model_split_fragments(const struct config *config, struct layout *layout, struct err *err) MUST_CHECK;
/* The model of a resolved configuration; hf_config_load reads that of a folder. */
struct model_config model_config_of(const struct config *config);

#endif
