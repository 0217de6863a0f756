/* Llama (Touvron et al., arXiv 2302.13971; grouped-query attention as in Llama 2 and 3): RMS norms before attention and
 * MLP, rotary positions, heads that share keys and values, a gated MLP (SwiGLU), no biases, an output layer of its own
 * or tied to the token embedding. Tensor names and shapes are Hugging Face's, weights [out,in]. */
#ifndef WORKER_LLAMA_H
#define WORKER_LLAMA_H

#include "worker/model/model.h"

extern const struct model_family llama_family;

/* llama_family.layout. Initial values: N(0, 0.02) for matrices and embeddings, N(0, 0.02 / sqrt(2 n_layer)) for the two
 * projections that add to the residual stream, 1 for norms. Weight decay applies to matrices and embeddings only. */
enum status llama_layout(const struct model_config *config, struct layout *layout, struct err *err) MUST_CHECK;
/* llama_family.hidden_blocks: the seven matrices of a block. */
uint32_t llama_hidden_blocks(const struct tensor *tensor);
enum status llama_config_json(const struct model_config *config, char *out, size_t cap) MUST_CHECK;

/* Tensors of one block, in layout order. q, k and v are adjacent, and so are gate and up: the device treats each group
 * as one matrix [out,in]. */
enum llama_block_tensor {
    LLAMA_NORM1,
    LLAMA_Q,
    LLAMA_K,
    LLAMA_V,
    LLAMA_O,
    LLAMA_NORM2,
    LLAMA_GATE,
    LLAMA_UP,
    LLAMA_DOWN,
    LLAMA_BLOCK_TENSORS
};

/* Offsets in theta. */
struct llama_offsets {
    /* Tensor j of block i: block0 + model_block_place(i) * block_stride + block[j]. */
    uint64_t embed, block0, block_stride, block[LLAMA_BLOCK_TENSORS];
    uint64_t norm, head, n_params; /* head: equal to embed if tied */
};

struct llama_offsets llama_offsets_of(const struct model_config *config);
/* Columns of the keys (or values) of all heads. */
static inline uint64_t llama_kv_width(const struct model_config *config)
{
    return (uint64_t)config->n_embd / config->n_head * config->n_kv_head;
}

#endif
