/* A model family: a description of its parameters and of its blocks. worker/model/decoder.h creates and runs instances.
 *
 * To add a family: one file with its layout, its config.json and its kind, and a row in model.c. */
#ifndef WORKER_MODEL_H
#define WORKER_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"
#include "common/tensor/rope_scaling.h"
#include "gpu/device.h"
#include "worker/inner/inner_matrices.h"

struct config;
struct decoder_kind;
struct hf_config;

struct model_config {
    uint32_t n_layer, n_head, n_embd, block_size, vocab_size;
    /* llama alone */
    uint32_t n_kv_head, ffn;
    double rope_theta, norm_eps;
    struct rope_scaling rope_scaling;
    bool tied; /* the output layer is the token embedding */

    bool bytes; /* a token is a byte, and 0 stands between documents */
};

/* What an instance will be asked for; activations of every layer are kept only with MODEL_TRAIN. */
enum model_use { MODEL_TRAIN = 1, MODEL_LOSS = 2, MODEL_LOGITS = 4 };

/* With MODEL_TRAIN: what of a layer is not kept for backward but made again there, from what is. Each level forgets
 * what the one before does, and more; losses and gradients are the same to the bit. */
enum model_recompute {
    MODEL_KEEP_ALL,
    MODEL_RECOMPUTE_ACT,  /* outputs of activation functions */
    MODEL_RECOMPUTE_NORM, /* those of norms, too */
    MODEL_RECOMPUTE_BLOCK /* everything but the residual stream between layers: most of a forward pass once more */
};

/* `uses` with a level, and back. */
static inline unsigned model_uses(unsigned uses, enum model_recompute level)
{
    return uses | (unsigned)level << 8;
}

static inline enum model_recompute model_recompute_of(unsigned uses)
{
    return (enum model_recompute)(uses >> 8);
}

/* What a caller wants to hear while decoder_run submits operations, for instance to move parameters and gradients
 * between devices beside them. Ranges of theta come in any order and size; either function may be NULL. */
struct model_hooks {
    /* What is submitted from now on reads theta [offset, offset + count). Every parameter is named in each run, before
     * its first use. */
    void (*needs)(void *ctx, uint64_t offset, uint64_t count);
    /* Gradients [offset, offset + count) are final once what was submitted so far is done, and not read again. Each one
     * is named once in every run that makes gradients. */
    void (*ready)(void *ctx, uint64_t offset, uint64_t count);
    void *ctx;
};

struct model_family {
    const char *name;               /* model.family */
    hidden_blocks_fn hidden_blocks; /* NULL: nobody has said yet, and inner.optimizer muon is refused */
    /* Append the tensors (Hugging Face names and shapes) to an initialised layout; fragments are the caller's. INVALID
     * for sizes that make no model. */
    enum status (*layout)(const struct model_config *config, struct layout *layout, struct err *err) MUST_CHECK;
    /* Text of config.json for Hugging Face. LIMIT when it does not fit. */
    enum status (*config_json)(const struct model_config *config, char *out, size_t cap) MUST_CHECK;
    /* What decoder.c needs to know of the family; `config` is one that `layout` took. */
    struct decoder_kind (*kind_of)(const struct model_config *config);
};

/* Parameters [offset, offset + count) of theta[n] are about to be read: the listener brings them, the device makes its
 * own form of them. */
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

/* NULL when there is none of that name. */
const struct model_family *model_family_find(const char *name);
/* Cut a filled layout into train.fragments fragments. INVALID. */
enum status model_split_fragments(const struct config *config, struct layout *layout, struct err *err) MUST_CHECK;
/* The lines of config.json that say which tokens begin and end a text: those of bytes, of GPT-2 and of Llama 3, by the
 * size of the vocabulary; of others nobody knows. */
const char *model_ids_json(const struct model_config *config, char out[96]);
/* The model section of a resolved configuration; what a config.json says. */
struct model_config model_config_of(const struct config *config);
struct model_config model_config_of_folder(const struct hf_config *hf);

#endif
